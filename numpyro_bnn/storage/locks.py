"""A lock on a folder, so that one process at a time writes there; a run holds it from first step to last.

The lock is a lease of ``filelock``: a file that names its owner, which touches it every ten seconds. It needs
no locks of the file system, only that hosts see each other's files. An owner on this host that has ended is
replaced at once. One that was silent for a minute, on whatever host, is replaced with a warning,
after another minute in which nothing is heard of it. If it was only suspended, it finds before its next write
that another process has the folder now, and stops. Readers need no lock.
"""

import socket
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpyro.util import find_stack_level

# Prefix of the names of temporary files that this package puts in a folder.
OWN_PREFIX = ".numpyro_bnn."
# Seconds between two touches of the file, and seconds without one after which an owner counts as gone.
HEARTBEAT = 10.0
SILENCE = 60.0
# Seconds in which `filelock` replaces an owner that has ended: it needs two looks.
_PATIENCE = 0.5


class FolderInUse(RuntimeError):
    """Another process writes to the folder of a run, or has taken it over."""


class FolderLock:
    """The lock of one folder; the head of this module says how it works."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / f"{OWN_PREFIX}lock"
        self._lease: Any = None

    def acquire(self) -> None:
        """Take the folder for this process."""
        import filelock

        lease = filelock.SoftFileLease(
            self._file, lease_duration=SILENCE, heartbeat_interval=HEARTBEAT, thread_local=False
        )
        if _is_zombie(lease.owner):
            lease.break_lock()
        try:
            lease.acquire(timeout=_PATIENCE)
        except filelock.Timeout:
            owner, silent = _message(lease.owner), self._seconds_silent()
            if silent < SILENCE:
                raise FolderInUse(
                    f"{self.folder} is in use by {owner}, which gave a sign of life {max(silent, 0):.0f} s "
                    "ago. Wait until it ends, or choose another folder. If it is dead, try again "
                    f"{SILENCE:.0f} s after its last sign of life."
                ) from None
            if lease.owner is None:
                lease.break_lock()
            try:
                lease.acquire(timeout=1.5 * SILENCE)
            except filelock.Timeout:
                raise FolderInUse(
                    f"{self.folder} is in use by {_message(lease.owner)}. Wait until it ends, or choose "
                    "another folder."
                ) from None
            warnings.warn(
                f"{self.folder} was held by {owner}, which has given no sign of life for "
                f"{silent + SILENCE:.0f} s. This run takes over; if that process still exists, it stops when "
                "it next wants to write.",
                stacklevel=find_stack_level(),
            )
        self._lease = lease

    def check(self) -> None:
        """Check that this process still holds the lock; called before anything is written."""
        if self._lease is None:
            return
        owner = self._lease.owner
        if owner is None or owner.token != self._lease.token:
            now = _message(owner) if self._file.exists() else "nobody: its file was removed"
            raise FolderInUse(
                f"{self.folder} was taken over while this process stood still: it is held by {now}. "
                "This run stops, and writes nothing more there. Let the other one end, then "
                "read the draws with `bnn.load`."
            )

    def release(self) -> None:
        """Release the folder; if another process has taken it over, that process keeps it."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(OSError):
                lease.release()

    def _seconds_silent(self) -> float:
        """Seconds since the owner's last sign of life."""
        # Both times come from the clock of the file system: the clocks of hosts differ.
        with (
            tempfile.NamedTemporaryFile(dir=self.folder, prefix=OWN_PREFIX) as now,
            suppress(OSError),
        ):
            return Path(now.name).stat().st_mtime - self._file.stat().st_mtime
        return 0.0


def _is_zombie(owner: Any) -> bool:
    """Whether the owner has ended, and nobody has asked how: ``filelock`` takes it for alive."""
    import psutil

    if owner is None or owner.hostname.partition("?")[0] != socket.gethostname():
        return False
    with suppress(psutil.Error):
        return psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE
    return False


def _message(owner: Any) -> str:
    """The owner of a lease, in words."""
    return "another process" if owner is None else f"process {owner.pid} on host {owner.hostname!r}"
