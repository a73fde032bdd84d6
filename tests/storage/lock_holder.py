"""A process that holds the lock of a folder until it is told to end: ``lock_holder.py FOLDER [SECONDS]``."""

import sys
from pathlib import Path

from numpyro_bnn.storage import folders as locks

if len(sys.argv) > 2:
    locks.SILENCE = float(sys.argv[2])
    locks.HEARTBEAT = locks.SILENCE / 10
lock = locks.FolderLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
for _ in sys.stdin:
    # "write": what a run does before it writes.
    try:
        lock.check()
        print("may write", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
lock.release()
