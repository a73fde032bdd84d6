"""A lock on a folder, so that one process at a time writes there; a run holds it from first step to last.

The lock consists of two files in the folder. ``.numpyro_bnn.lock`` is locked by the operating system, which
releases it when the process ends for whatever reason. ``.numpyro_bnn.owner`` names that process (host,
process id, when the process began), and is touched every ten seconds. Some network file systems have no
locks, or locks that other hosts do not see: there the second file decides alone.

An owner that no longer runs on this host is replaced at once. One that has not touched its file for a
minute is replaced with a warning, on whatever host it is. If it was only suspended, it finds before its
next write that another process has the folder now, and stops. Readers need no lock.
"""

import json
import os
import socket
import threading
import time
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from numpyro.util import find_stack_level

# Prefix of the names of temporary files that this package puts in a folder.
OWN_PREFIX = ".numpyro_bnn."
# Seconds between two touches of the owner file, and seconds without one after which an owner counts as gone.
HEARTBEAT = 10.0
SILENCE = 60.0
# Without locks of the system: seconds to wait, so that processes that replace one owner notice each other.
_SETTLE = 1.0
# Two readings of the time at which a process began may differ by so many seconds: clocks are corrected.
_SAME_START = 2.0


class FolderInUse(RuntimeError):
    """Another process writes to the folder of a run, or has taken it over."""


class Owner(NamedTuple):
    """The process that holds a folder.

    - **host** - name of the machine
    - **pid** - process id there
    - **started** - when that process began, in seconds since 1970
    - **namespace** - the namespace of the process id: containers of one host have their own
    - **token** - random text that identifies this one run
    """

    host: str
    pid: int
    started: float
    namespace: str
    token: str

    @classmethod
    def here(cls) -> "Owner":
        """The owner record of this process, with a new token."""
        import psutil

        pid = os.getpid()
        started = psutil.Process(pid).create_time()
        return cls(socket.gethostname(), pid, started, _namespace(), uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host!r}"

    def is_gone(self, trust_host: bool) -> bool:
        """Whether the owner's process is known to have ended; False where this process cannot know it.

        :param trust_host: whether a host of this name is certainly this machine, containers included.
        """
        import psutil

        if self.host != socket.gethostname():
            return False
        if not (trust_host or self.namespace == _namespace()):
            return False
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            return abs(process.create_time() - self.started) > _SAME_START
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class FolderLock:
    """The lock of one folder; the head of this module says how it works.

    :param folder: the folder of a run; it must exist when the lock is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock_file = folder / f"{OWN_PREFIX}lock"
        self._owner_file = folder / f"{OWN_PREFIX}owner"
        self._owner: Owner | None = None
        self._system: Any = None
        self._released = threading.Event()

    def acquire(self) -> None:
        """Take the folder for this process.

        :raises FolderInUse: if another process, or another run of this one, writes there.
        """
        owner = Owner.here()
        lock, excludes = self._lock_by_system()
        try:
            self._claim(owner, lock, excludes)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        # Replacing an owner may have brought a lock of the operating system with it.
        self._system = lock if lock is not None else self._system
        self._owner = owner
        self._released = threading.Event()
        threading.Thread(
            target=self._beat, args=(self._released,), name="numpyro_bnn heartbeat", daemon=True
        ).start()

    def check(self) -> None:
        """Check that this process still holds the lock; called before anything is written.

        :raises FolderInUse: if the lock was taken over, or removed.
        """
        if self._owner is None:
            return
        owner = self._read()
        if owner is None or owner.token != self._owner.token:
            now = "nobody: its file was removed" if owner is None else str(owner)
            raise FolderInUse(
                f"{self.folder} was taken over while this process stood still: it is held by {now}. "
                "This run stops, and writes nothing more there. Let the other one end, then "
                "read the draws with `bnn.load`."
            )

    def release(self) -> None:
        """Release the folder; if another process has taken it over, that process keeps it."""
        owner, self._owner = self._owner, None
        system, self._system = self._system, None
        self._released.set()
        if owner is None:
            return
        with suppress(OSError):
            found = self._read()
            if found is not None and found.token == owner.token:
                self._owner_file.unlink()
                self._lock_file.unlink()
        if system is not None:
            system.release()

    def _lock_by_system(self) -> tuple[Any, bool]:
        """Try to take the operating system's lock.

        :return: the lock, None where it could not be had; and whether the file system has locks at all.
        """
        import filelock

        lock = filelock.FileLock(self._lock_file, timeout=0, thread_local=False)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="flock not supported")
                lock.acquire()
        except filelock.Timeout:
            return None, True
        except (OSError, NotImplementedError):
            return None, False
        if isinstance(lock, filelock.SoftFileLock):
            # This kind of lock is a file that merely exists: it would outlive its process.
            lock.release()
            return None, False
        return lock, True

    def _claim(self, owner: Owner, lock: Any, excludes: bool) -> None:
        """Write this process into the owner file, if nobody holds the folder or the last owner is gone."""
        while not self._create(owner):
            before = self._read()
            silent = self._seconds_silent()
            if silent is None:
                continue  # it was released meanwhile
            gone = before is not None and before.is_gone(trust_host=lock is not None)
            if not gone and silent < SILENCE:
                raise FolderInUse(self._said_in_use(before, silent))
            if lock is None:
                # The process that has the lock may be about to write the owner file.
                time.sleep(_SETTLE)
                if self._read() != before:
                    continue
            if not gone:
                warnings.warn(
                    f"{self.folder} was held by {before or 'an unknown process'}, which has given no "
                    f"sign of life for {silent:.0f} s. This run takes over; if that process still "
                    "exists, it stops when it next wants to write.",
                    stacklevel=find_stack_level(),
                )
            self._replace(owner, lock, excludes)
            return

    def _create(self, owner: Owner) -> bool:
        try:
            with self._owner_file.open("x", encoding="utf-8") as file:
                json.dump(owner._asdict(), file)
        except FileExistsError:
            return False
        return True

    def _replace(self, owner: Owner, lock: Any, excludes: bool) -> None:
        """Replace an owner that is gone."""
        partial = self._owner_file.with_name(f"{self._owner_file.name}.{owner.token}")
        partial.write_text(json.dumps(owner._asdict()), encoding="utf-8")
        os.replace(partial, self._owner_file)
        if lock is not None:
            return
        time.sleep(_SETTLE)
        found = self._read()
        if found is None or found.token != owner.token:
            raise FolderInUse(self._said_in_use(found, 0.0))
        if excludes:
            # The old lock file stays locked by a suspended owner, or by child processes that it left.
            with suppress(OSError):
                self._lock_file.unlink()
                self._system, _ = self._lock_by_system()

    def _read(self) -> Owner | None:
        """The owner in the owner file; None without such a file, or where it cannot be understood."""
        try:
            content = json.loads(self._owner_file.read_text(encoding="utf-8"))
            owner = Owner(**content)
            return owner._replace(pid=int(owner.pid), started=float(owner.started))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            return None

    def _seconds_silent(self) -> float | None:
        """Seconds since the owner's last sign of life; None if there is no owner."""
        # Both times come from the clock of the file system: the clocks of hosts differ.
        self._lock_file.touch()
        try:
            return self._lock_file.stat().st_mtime - self._owner_file.stat().st_mtime
        except FileNotFoundError:
            return None

    def _said_in_use(self, owner: Owner | None, silent: float) -> str:
        return (
            f"{self.folder} is in use by {owner or 'another process'}, which gave a sign of life "
            f"{max(silent, 0):.0f} s ago. Wait until it ends, or choose another folder. If it is dead, "
            f"try again {SILENCE:.0f} s after its last sign of life."
        )

    def _beat(self, released: threading.Event) -> None:
        while not released.wait(HEARTBEAT):
            with suppress(OSError, FolderInUse):
                self.check()
                os.utime(self._owner_file)
