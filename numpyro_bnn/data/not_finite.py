"""Finds NaN and infinite values among the arguments of a model, after a run or an optimisation has failed.

A model of one's own may allow for NaN (masked rows, say), so that they are not refused beforehand. Where the
energy is not finite in the end, they are the first thing to name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import named_leaves
from numpyro_bnn.data.host_rows import OnHost

# Most arguments that are named.
_NAMED = 5


def advice_on_data(model: Callable | None, args: tuple, kwargs: Mapping[str, object]) -> str:
    """A sentence on data that are not finite, ``"x has 1 NaN, …. "``; empty where all are finite."""
    found = [
        said
        for label, leaf in named_leaves(model, args, kwargs)
        if isinstance(leaf, (np.ndarray, jax.Array, np.generic, float, OnHost))
        and (said := _not_finite(label, leaf))
    ]
    if not found:
        return ""
    more = f"; and {len(found) - _NAMED} more arguments" if len(found) > _NAMED else ""
    return (
        f"{'; '.join(found[:_NAMED])}{more}: fill them in or leave those rows out, unless the model "
        "allows for them. "
    )


def _not_finite(label: str, data: Any) -> str:
    """How many values of an array are not finite, and where the first one is; empty where all are finite."""
    blocks = data.blocks() if isinstance(data, OnHost) else [(0, np.asarray(data))]
    missing = infinite = 0
    first: tuple[int, ...] | None = None
    for begin, values in blocks:
        if not jnp.issubdtype(values.dtype, np.inexact):
            return ""
        bad = ~np.isfinite(values)
        if not bad.any():
            continue
        missing += (nans := int(np.isnan(values).sum()))
        infinite += int(bad.sum()) - nans
        if first is None:
            first = tuple(int(i) for i in np.argwhere(bad)[0])
            first = (first[0] + begin, *first[1:]) if first else first
    if first is None:
        return ""
    parts = [f"{missing} NaN"] if missing else []
    parts += [f"{infinite} infinite value{'s' * (infinite > 1)}"] if infinite else []
    at = "" if not first else f", the first at {first[0] if len(first) == 1 else first}"
    return f"{label} has {' and '.join(parts)}{at}"


def not_finite(bad: dict[int, int]) -> dict[int, str]:
    """The reason of failure, in words, of chains with draws that are not finite."""
    return {chain: f"draw {i} is not finite" for chain, i in bad.items()}


def first_bad_draws(draws: PyTree) -> dict[int, int]:
    """Index of the first draw with NaN or infinities, by chain that has one."""
    found: dict[int, int] = {}
    for values in jax.tree.leaves(draws):
        if not jnp.issubdtype(values.dtype, jnp.inexact):
            continue
        finite = np.asarray(_finite(values))
        for chain in np.flatnonzero(~finite.all(1)):
            first = int(np.argmin(finite[chain]))
            found[int(chain)] = min(first, found.get(int(chain), first))
    return found


_on_device = jax.jit(lambda x: jnp.isfinite(x).all(axis=tuple(range(2, x.ndim))))


def _finite(values: Any) -> Any:
    if isinstance(values, jax.Array):
        if any(device.platform != "cpu" for device in values.devices()):
            return _on_device(values)
        # On the host, where nothing is compiled for each shape.
        values = np.asarray(values)
    # A sum needs one pass and no memory; it is finite only if all values are.
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum()):
            return np.ones(values.shape[:2], bool)
    return np.isfinite(values).all(axis=tuple(range(2, values.ndim)))
