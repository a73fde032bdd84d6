"""Finds NaN and infinite values among the arguments of a model, after a run or an optimisation has failed.

A model of one's own may allow for NaN (masked rows, say), so that they are not refused beforehand. Where the
energy is not finite in the end, they are the first thing to name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

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
        if not jax.numpy.issubdtype(values.dtype, np.inexact):
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
