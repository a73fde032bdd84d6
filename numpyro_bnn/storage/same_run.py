"""What a stored run was, and the refusal to continue it with other settings, data or another program.

Facts are lines of text by dotted name: settings, a hash of each array, versions. The program of a run, which
kernel and model lower to (:mod:`numpyro_bnn.compilation.program_identity`), is kept as text beside them, so
that a refusal can show where it differs.
"""

import hashlib
import platform
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from numpyro_bnn._checks import is_typed_key
from numpyro_bnn._text import text_of
from numpyro_bnn._types import PyTree
from numpyro_bnn.compilation.program_identity import first_differences
from numpyro_bnn.data.host_rows import OnHost

Facts = dict[str, str]
# Settings that the shapes of stored states and draws depend on: a resumed run cannot differ in them.
_LENGTHS = ("num_warmup", "num_samples", "num_chains", "thinning", "checkpoint_every")
_FORM = ("sites", *_LENGTHS, "draws", "draws_dtype", "x64")
# Bytes that are hashed at a time: memory-mapped data are never in memory as a whole.
_BLOCK = 2**26
_LIBRARIES = ("numpyro_bnn", "numpyro", "jax", "jaxlib", "flax", "optax", "numpy")
# The largest number of differences that a message names.
_MOST = 8


def facts_of(values: PyTree) -> Facts:
    """Facts about settings and data, by dotted path."""
    leaves = jax.tree_util.tree_leaves_with_path(values, is_leaf=lambda leaf: leaf is None)
    return {jax.tree_util.keystr(p, simple=True, separator="."): _fact(leaf) for p, leaf in leaves}


def _fact(value: Any) -> str:
    if isinstance(value, OnHost):
        return digest(value.array, value.rows)
    if hasattr(value, "dtype") or hasattr(value, "__array__"):
        return digest(value)
    # Of objects that are no numbers, the program shows more.
    return text_of(value)


def digest(array: Any, rows_of: Callable[[slice], np.ndarray] | None = None) -> str:
    """Dtype, shape and a hash of the values of an array, which is read a block at a time, by `rows_of`."""
    if isinstance(array, jax.Array) and is_typed_key(array):
        return f"key {digest(jax.random.key_data(array))}"
    if not hasattr(array, "dtype") or isinstance(array, jax.Array):
        array = np.asarray(array)
    summary = hashlib.blake2b(digest_size=16)
    take = rows_of or array.__getitem__
    rows = max(1, _BLOCK // max(1, take(slice(0, 1)).nbytes)) if array.shape else 1
    for begin in range(0, array.shape[0] if array.shape else 1, rows):
        block = np.ascontiguousarray(take(slice(begin, begin + rows)) if array.shape else array)
        summary.update(block.reshape(-1).view(np.uint8))
    return f"{array.dtype}{list(array.shape)} {summary.hexdigest()}"


def environment() -> Facts:
    """Versions of libraries, device and precision: the last bit of a draw may depend on them."""
    from numpyro_bnn import __version__ as own

    found = {"library.python": ".".join(platform.python_version_tuple()[:2])}
    found |= {f"library.{name}": version(name) for name in _LIBRARIES[1:]}
    found |= {"library.numpyro_bnn": own, "device": jax.default_backend()}
    return found | {"x64": str(bool(jax.config.read("jax_enable_x64")))}


def check_accept(accept: Collection[str]) -> Collection[str]:
    """Refuse an `accept` that names a setting the stored files depend on."""
    if fixed := [name for name in accept if _is_within(name, _FORM)]:
        raise ValueError(
            f"resume: accept={fixed} cannot differ, because the stored states and draws have that form. "
            "Resume with what the run began with, or begin a new run in another folder."
        )
    return accept


def refuse_other_facts(
    directory: Path, before: Facts, now: Facts, accept: Collection[str] | None
) -> None:
    """Refuse to continue the stored run with other settings, data or libraries."""
    differs = [n for n in {**before, **now} if before.get(n) != now.get(n)]
    differs = [name for name in differs if not _is_within(name, accept or ())]
    lines = [f"{n}: there {before.get(n, 'absent')}, here {now.get(n, 'absent')}" for n in differs]
    if len(lines) > _MOST:
        lines = [*lines[:_MOST], f"and {len(lines) - _MOST} more"]
    if lines:
        _refuse(directory, lines, differs, accept)


def refuse_other_program(
    directory: Path,
    before: Mapping[str, str],
    now: Mapping[str, str],
    accept: Collection[str] | None,
) -> None:
    """Refuse to continue the stored run with another program."""
    if before["program"] == now["program"] or "program" in (accept or ()):
        return
    differences = first_differences(before["program"], now["program"])
    lines = [f"program (of kernel and model): {differences}"]
    if before["kernel"] != now["kernel"]:
        lines.insert(0, f"kernel: there {before['kernel']}, here {now['kernel']}")
    _refuse(directory, lines, ["program"], accept)


def _refuse(
    directory: Path, lines: list[str], names: list[str], accept: Collection[str] | None
) -> None:
    advice = "Resume with what the run began with, or begin a new run in another folder."
    if accept is not None and not any(_is_within(name, _FORM) for name in names):
        advice += f" If that changes no draw, go on with `resume(…, accept={names[:3]})`."
    raise ValueError(
        f"The checkpoint in {directory} is of another run, and would not continue to "
        f"the same draws. What differs: {'; '.join(lines)}. {advice}"
    )


def _is_within(name: str, paths: Collection[str]) -> bool:
    """Whether a path is one of `paths`, or inside one of them."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)
