"""Checks of arguments that files of several layers share, and their warnings."""

import operator
import os
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

# Packages that parts of this one need, by the extra that installs them.
_EXTRAS = {
    "export": ("flatbuffers",),
    "low_rank": ("matfree",),
    "storage": ("filelock", "orbax", "zarr"),
}


# With their last separator: a project of a user may be called numpyro_bnn_something.
_INSIDE = tuple(os.path.join(os.path.dirname(file), "") for file in (numpyro.__file__, __file__))


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called NumPyro or this package."""
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename.startswith(_INSIDE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def require_extra(what: str, extra: str) -> None:
    """Refuse what needs packages that are not installed, and say what installs them."""
    if missing := [name for name in _EXTRAS[extra] if find_spec(name) is None]:
        raise ModuleNotFoundError(
            f"{what} needs packages that are not installed: {', '.join(missing)}. Install them by "
            f'`pip install "numpyro-bnn[{extra}]"`.'
        )


def check_positive(owner: str, **numbers: object) -> None:
    """Refuse values that are not positive finite numbers, or arrays of them; traced ones are not checked."""
    for label, value in numbers.items():
        if isinstance(value, jax.core.Tracer):
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise TypeError(f"{owner}: {label} must be a number, got {label}={value!r}.")
        if not (array > 0).all() or not np.isfinite(array).all():
            raise ValueError(f"{owner}: {label} must be positive and finite, got {label}={value}.")


def check_whole(owner: str, label: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least` as Python's own, from any type that holds one (NumPy, JAX)."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        asked = "be a positive integer" if least == 1 else f"be an integer of at least {least}"
        if least == 0:
            asked = "not be negative" if number is not None else "be an integer of 0 or more"
        raise ValueError(f"{owner}: {label} must {asked}, got {value!r}.")
    return number


def check_share(owner: str, label: str, value: Any, may_be_0: bool = False) -> None:
    """Refuse anything but a number strictly between 0 and 1, or also 0."""
    number = np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"
    if not number or not (0 < value < 1 or (may_be_0 and value == 0)):
        asked = "in [0, 1)" if may_be_0 else "strictly between 0 and 1"
        raise ValueError(f"{owner}: {label} is a share {asked}, got {value!r}. Give 0.9 for 90 %.")


def is_typed_key(value: Any) -> bool:
    """Whether an array, abstract or not, holds random keys of JAX's own type, which NumPy cannot hold."""
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def check_key(owner: str, key: object, batch: int = 1) -> None:
    """Refuse values that are neither a random key nor one key a chain."""
    if isinstance(key, (jax.Array, np.ndarray)):
        typed = is_typed_key(key)
        shape = key.shape if typed else key.shape[:-1]
        raw = key.dtype == jnp.uint32 and key.shape[-1:] == (2,)
        if (typed or raw) and shape in ((), (batch,)):
            return
    what = f"an array of shape {np.shape(key)}" if hasattr(key, "shape") else repr(key)
    raise TypeError(
        f"{owner}: expected a random key, such as `jax.random.key(0)`, got {what}. The key comes "
        "before the arguments of the model."
    )


def refuse_equal_keys(owner: str, keys: jax.Array) -> None:
    """Refuse equal keys, one a chain: their chains would be identical."""
    typed = is_typed_key(keys)
    rows = [bytes(row) for row in np.asarray(jax.random.key_data(keys) if typed else keys)]
    for chain, row in enumerate(rows):
        if (first := rows.index(row)) < chain:
            raise ValueError(
                f"{owner}: chains {first} and {chain} have the same random key, so that they would be "
                "one chain and agree whatever it does. Give one key, from which every chain gets its "
                f"own, or `jax.random.split(key, {len(rows)})`."
            )


def num_cpus() -> int:
    """CPUs that this process may use, where the system can say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
