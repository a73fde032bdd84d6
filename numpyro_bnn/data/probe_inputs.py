"""Inputs that are made up of what was noted of others: the same structure, shapes, types and ranges.

A file of draws has no training rows. That a model is the one they are draws of can still be seen from what it
predicts at such inputs.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.host_rows import OnHost

# Rows whose ranges are noted, and rows that are made.
_LOOKED_AT, _MADE = 100, 8
# Most columns with a range of their own; more columns share one.
_MOST_COLUMNS = 64


def noted_inputs(x: PyTree) -> str | None:
    """What :func:`probe_inputs` needs of inputs, as JSON: ranges of their first rows; None if unknown."""
    noted = _noted(x)
    return None if noted is None else json.dumps(noted)


def _noted(x: Any) -> dict[str, Any] | None:
    kind = type(x)
    if isinstance(x, (dict, list, tuple)):
        parts: dict[Any, Any] = x if isinstance(x, dict) else dict(enumerate(x))
        inside = {key: _noted(part) for key, part in parts.items()}
        # JSON has no other keys, and other containers cannot be built again.
        plain = kind in (list, tuple) or (kind is dict and all(isinstance(k, str) for k in x))
        return {kind.__name__: inside} if plain and inside and None not in inside.values() else None
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return None
    shape = x.shape if isinstance(x, OnHost) else np.shape(x)
    if not shape or not shape[0]:
        return None
    first = slice(0, _LOOKED_AT)
    rows = x.rows(first) if isinstance(x, OnHost) else np.asarray(x[first])
    if rows.dtype.kind not in "biuf" and rows.dtype != jnp.bfloat16:
        return None
    numbers = rows.astype(np.float64)
    columns = rows.ndim > 1 and 0 < rows.shape[-1] <= _MOST_COLUMNS
    numbers = numbers.reshape(-1, rows.shape[-1] if columns else 1)
    finite = np.isfinite(numbers)
    low, high = (
        np.where(finite.any(0), f(np.where(finite, numbers, -s * np.inf), 0), 0.0)
        for f, s in ((np.min, -1), (np.max, 1))
    )
    return {
        "row": list(rows.shape[1:]),
        "type": rows.dtype.name,
        "low": low.tolist(),
        "high": high.tolist(),
    }


def probe_inputs(noted: str) -> PyTree:
    """Eight rows, uniform between least and largest number of each column, equal in every process."""
    return _made_up(json.loads(noted), np.random.default_rng(0))


def _made_up(noted: dict[str, Any], rng: np.random.Generator) -> Any:
    for kind in (dict, list, tuple):
        if kind.__name__ in noted:
            inside = {k: _made_up(v, rng) for k, v in noted[kind.__name__].items()}
            return inside if kind is dict else kind(inside.values())
    low, high = (np.asarray(noted[name]) for name in ("low", "high"))
    shape, kind = (_MADE, *noted["row"]), jnp.dtype(noted["type"])
    at = rng.random(shape)
    # Both ends of whole numbers are among them.
    values = low + (high - low) * at if kind.kind not in "biu" else np.rint(low + (high - low) * at)
    return values.astype(kind)
