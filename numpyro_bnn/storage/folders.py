"""Folders that a user names for output: checks that they can be written, made before a run begins."""

import json
import os
import tempfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from numpyro_bnn.storage.locks import OWN_PREFIX


def require_storage(what: str) -> None:
    """Refuse to write or read runs on disk without the packages that this takes."""
    missing = [name for name in ("filelock", "orbax", "psutil", "zarr") if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"{what} needs packages that are not installed: {', '.join(missing)}. Install them by "
            '`pip install "numpyro-bnn[storage]"`.'
        )


def refuse_nested(checkpoint: Path | None, draws: Path | None) -> None:
    """Refuse folders for checkpoint and draws that are one folder, or of which one is inside the other.

    Links and mounts are followed.
    """
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
    for place in (inner, *inner.parents):
        if place == folder:
            return True
        # A folder that is mounted twice has two paths without any link.
        if place.exists() and folder.exists() and place.samefile(folder):
            return True
    return False


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


def path_of(name: str, value: object) -> Path | None:
    """The absolute path of a folder given to ``MCMC``: the process may change its directory later."""
    if value is None:
        return None
    if not isinstance(value, (str, Path)):
        raise TypeError(f"MCMC: {name} must be the path of a folder, got {value!r}.")
    if value == "":
        raise ValueError(
            f"MCMC: {name} must name a folder, got ''. Give a name such as 'run', or leave {name} out."
        )
    return Path(value).absolute()


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
