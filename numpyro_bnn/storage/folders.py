"""Folders that a user names for output: checks before a run begins, and a lock for one process at a time.

The lock, which a run holds from first step to last, is a lease of ``filelock``: a file that names its owner,
which touches it every ten seconds. It needs no locks of the file system, only that hosts see each other's
files. An owner on this host that has ended is replaced at once. One that was silent for a minute, on whatever
host, is replaced with a warning, after another minute in which nothing is heard of it. If it was only
suspended, it finds before its next write that another process has the folder now, and stops. Readers need
no lock.
"""

import json
import os
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

from numpyro_bnn._checks import warn


def refuse_nested(checkpoint: Path | None, draws: Path | None) -> None:
    """Refuse folders for checkpoint and draws that are one, or one inside the other, links followed."""
    if checkpoint is None or draws is None:
        return
    if _contains(checkpoint, draws) or _contains(draws, checkpoint):
        raise ValueError(
            f"MCMC: checkpoint={str(checkpoint)!r} and draws={str(draws)!r} are the same folder, or one "
            "is inside the other. Give folders side by side, or leave `draws` out: without it the "
            "checkpoint keeps the draws. Draws that lie inside a checkpoint already can be moved "
            "out, under the same name."
        )


def _contains(folder: Path, inner: Path) -> bool:
    folder, inner = folder.resolve(), inner.resolve()
    places = (inner, *inner.parents)
    # A folder that is mounted twice has two paths without any link.
    return folder in places or (
        folder.exists() and any(place.exists() and place.samefile(folder) for place in places)
    )


def entries(folder: Path) -> set[str]:
    """Names of what a folder holds, without locks and marks of this package; none if it is missing."""
    try:
        return {name for name in os.listdir(folder) if not name.startswith(OWN_PREFIX)}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def leave_mark(folder: Path, what: str) -> str:
    """Make a folder and leave an empty file in it, which proves that it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=OWN_PREFIX, delete=False) as file:
            return Path(file.name).name
    except OSError as error:
        why = error.strerror or str(error)
        raise type(error)(error.errno, what.format(folder=folder, why=why)) from error


def require_writable(folder: Path, what: str) -> None:
    """Make a folder and prove that it can be written, leaving no file in it; see :func:`leave_mark`."""
    (folder / leave_mark(folder, what)).unlink()


def path_of(value: object) -> Path | None:
    """The absolute path of a folder given to ``MCMC``: the process may change its directory later."""
    return None if value is None else Path(value).absolute()  # type: ignore[arg-type]


# What readers of damaged files raise: JSON, NumPy, zip, zarr, orbax and tensorstore.
UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BadZipFile,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
    zlib.error,
)


def read_json(path: Path, safe: str) -> dict[str, Any]:
    """Read a JSON file of this package that holds an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds {type(content).__name__} instead of an object")
    except (ValueError, RecursionError) as error:
        raise damaged(path, error, safe) from error
    return content


def damaged(path: Path, error: Exception, safe: str) -> ValueError:
    """The error to raise for a damaged file; `safe` is a sentence on what is not lost."""
    what = f"there is no {error}" if isinstance(error, KeyError) else error
    return ValueError(f"{path} is damaged: {what}. {safe}")


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
            warn(
                f"{self.folder} was held by {owner}, which has given no sign of life for "
                f"{silent + SILENCE:.0f} s. This run takes over; if that process still exists, it stops when "
                "it next wants to write."
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


def _message(owner: Any) -> str:
    """The owner of a lease, in words."""
    return "another process" if owner is None else f"process {owner.pid} on host {owner.hostname!r}"
