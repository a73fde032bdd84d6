"""Compares what a model computes for some rows together with what it computes for parts of them.

Predictions are computed by blocks of rows, and likelihoods summed over chunks and minibatches. Both are
silently wrong if rows depend on one another: a model that standardises its inputs by their mean, a recurrent
network along the rows, lags made inside, a sum over rows. :func:`refuse_dependent_rows` refuses minibatches
and chunks of such likelihoods. :func:`with_padding` adds rows of weight 0 where they change nothing.
"""

import zlib
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._types import Array
from numpyro_bnn.compilation.program_identity import Program, traced_once
from numpyro_bnn.data.units import Prepared
from numpyro_bnn.potential.compiled_arguments import Arguments

# Rows that are computed together; a part is an odd number of them, less than half.
_TOGETHER = 64
# What a model may raise where its rows are compared.
_OF_A_MODEL = (TypeError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError)
# Rounding, in standard deviations of a result and in proportion to its numbers.
_ROUNDING, _LAST_DIGITS = 1e-3, 1e-5


def differing(first: tuple[int, ...], second: tuple[int, ...]) -> list[int]:
    """Axes on which two shapes differ."""
    if len(first) != len(second):
        return list(range(len(first)))
    return [axis for axis, (a, b) in enumerate(zip(first, second)) if a != b]


def same_in_parts(
    function: Callable,
    given: Callable[[np.ndarray], tuple],
    size: int,
    part: int,
    most: int,
    drawn: bool = False,
) -> bool:
    """Whether `function` of what is `given` at row numbers has the same results in parts of the rows."""
    # The first and the last rows of some are computed alone: dependence on other rows, on their number or
    # on the place of a row shows. Results have their rows on the axis that changes with their number; those
    # without such an axis must not change at all. Random numbers belong to places (`drawn`): then other
    # rows replace one half of a part, and results of the other half must stay.
    if size < 2:
        return True
    program = Program(function, runs_once=True)
    pairs = _replaced(size, part) if drawn else _parts(size, part, most)

    def at_rows(rows: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(program(*given(rows)))]

    rows = pairs[0][0]
    together = at_rows(rows)
    fewer = jax.tree.leaves(jax.eval_shape(function, *given(rows[:-1])))
    axes = [differing(one.shape, two.shape) for one, two in zip(together, fewer)]
    if any(len(axis) > 1 for axis in axes):
        return False
    for _, rows, kept, place in pairs:
        for one, two, axis in zip(together, at_rows(rows), axes):
            at = (slice(None),) * axis[0] if axis else ()
            if not _agree(one[(*at, kept)] if axis else one, two[(*at, place)] if axis else two):
                return False
    return True


def _parts(size: int, part: int, most: int) -> list[tuple]:
    """Numbers of rows together and in a part, and the places of the common ones in both."""
    count = min(size, max(most, 2))
    part = min(part, -(-count // 2))
    rows, every = np.arange(count), slice(None)
    first = rows, rows[:part], slice(part), every
    last = rows, rows[-part:], slice(-part, None), every
    return [first, last]


def _replaced(size: int, part: int) -> list[tuple]:
    """The arguments with half of their rows replaced by other rows."""
    half = max(min(part, size) // 2, 1)
    rows, others = np.arange(2 * half), np.arange(size - half, size)[::-1]
    first, last = slice(half), slice(half, None)
    return [
        (rows, np.concatenate([rows[first], others]), first, first),
        (rows, np.concatenate([others, rows[last]]), last, last),
    ]


def _agree(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether numbers are equal up to rounding, where they are finite."""
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    if one.shape != two.shape:
        return False
    known = np.isfinite(one)
    if not known.any():
        return True
    off = _ROUNDING * np.std(one[known]) + _LAST_DIGITS * np.abs(one[known])
    return bool((np.abs(two[known] - one[known]) <= off).all())


def refuse_dependent_rows(potential: Any, plate: str, size: int) -> None:
    """Refuse to take some rows of a plate, where what they contribute depends on the others among them."""
    if size < 4:
        return
    try:
        separate = _are_separate(potential, plate, size)
    except _OF_A_MODEL:
        # What a model raises in a trace, its steps raise too; a host function may refuse made-up numbers.
        return
    if not separate:
        raise ValueError(
            f"The rows of plate '{plate}' depend on one another: among {min(size, _TOGETHER)} rows a row has "
            "another distribution of its target than among half of them, so that sums over minibatches "
            "(`batch_size=`, `subsample_size=`) or chunks (`chunk_size=`, `OnHost`) are not the likelihood "
            "of all rows. Compute what relates rows (a mean over them, lags, a recurrent network along them) "
            "before `numpyro.subsample` takes rows of it, or sample with all rows at once: `NUTS`, or a "
            "kernel of this package, without these options."
        )


def _some_value(site: dict[str, Any]) -> jax.Array | None:
    """Numbers for a latent site that look random, and take no time to compile."""
    if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete:
        return None
    if site["value"] is not None:
        return site["value"]
    transform = biject_to(site["fn"].support)
    shape = transform.inverse_shape(site["fn"].shape(site["kwargs"].get("sample_shape") or ()))
    phase = zlib.crc32(site["name"].encode()) % 997
    return transform(jnp.sin(phase + 12.9898 * jnp.arange(prod(shape))).reshape(shape))


def _are_separate(potential: Any, plate: str, size: int) -> bool:
    """Compare distributions at the data, or at made-up data where these are traced; once for each program."""
    arguments = Arguments.split(potential.args, potential.kwargs)

    def distributions(indices: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
        """Parameters, values and weights of the observed sites at some rows."""
        args, kwargs = Arguments.join(arrays, arguments.static)
        model = substitute(potential.rows_of(indices, plate), substitute_fn=_some_value)
        sites = trace(seed(model, jax.random.key(0))).get_trace(*args, **kwargs)
        found: list[Any] = []
        for name in potential.structure.data:
            site = sites[name]
            found += [*jax.tree.leaves(site["fn"]), site["value"]]
            if isinstance(site["scale"], jax.Array):
                found.append(site["scale"] * (len(indices) / size))
        return [jnp.asarray(leaf) for leaf in found if isinstance(leaf, (jax.Array, np.ndarray))]

    some = jax.ShapeDtypeStruct((min(_TOGETHER, size),), jnp.int32)
    kinds = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arguments.arrays]
    # The text has the numbers of constants, and the jaxpr the functions that are called on the host.
    text = Program(distributions).text(some, kinds)
    jaxpr = jax.make_jaxpr(distributions)(some, kinds)

    def compare() -> bool:
        arrays = [made_up(array) for array in arguments.arrays]
        part, drawn = _TOGETHER // 2 - 1, potential.structure.takes_keys

        def given(rows: np.ndarray) -> tuple:
            return rows.astype(np.int32), arrays

        return same_in_parts(distributions, given, size, part, _TOGETHER, drawn)

    return traced_once.made((text, str(jaxpr), plate, size), compare)


def made_up(array: Array) -> Array:
    """The array, or random numbers of its type where it is traced."""
    if not isinstance(array, jax.core.Tracer):
        return array
    rng = np.random.default_rng(0)
    few = (min(len(array), 509), *array.shape[1:]) if array.ndim else ()
    real = jnp.issubdtype(array.dtype, jnp.floating)
    values = rng.normal(size=few) if real else rng.integers(0, 2, few)
    return np.resize(values, array.shape).astype(array.dtype)


def padded_size(size: int) -> int:
    """The number of rows of the program for `size` rows: folds that differ by a row or two share one."""
    step = max(16, (1 << size.bit_length()) >> 5)
    # Three more, so that a step lies at no round number of rows, where folds often begin to differ.
    return -(-(size + 3) // step) * step


def with_padding(model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Prepared arguments of a ready model with rows of weight 0 up to a size that other data share."""
    given = dict(zip(("x", "y", "weights"), args)) | kwargs
    x: Any = given.get("x")
    weighs = isinstance(x, Prepared) and getattr(model, "weighs_rows", False)
    if not (weighs and _are_rows_separate(model, x)):
        return args, kwargs
    size = len(x.rows)
    if given.get("weights") is None:
        given["weights"] = np.ones(size, jax.dtypes.canonicalize_dtype(float))
    more = padded_size(size) - size

    def pad(leaf: Any) -> Any:
        others = [(0, 0)] * (np.ndim(leaf) - 1)
        return np.pad(leaf, [(0, more), *others], "edge") if np.ndim(leaf) else leaf

    given = jax.tree.map(pad, given)
    given["weights"][size:] = 0
    return (), given


def _are_rows_separate(model: Any, x: Prepared) -> bool:
    """Whether the target of a ready model has the same distribution at a row among any others."""
    rows, part = np.resize(x.rows, (_TOGETHER, *x.rows.shape[1:])), _TOGETHER // 2 - 1

    def parameters(x: Prepared) -> list[jax.Array]:
        drawn = seed(substitute(model, substitute_fn=_some_value), jax.random.key(0))
        return jax.tree.leaves(trace(drawn).get_trace(x)["y"]["fn"])

    def given(some: np.ndarray) -> tuple[Prepared]:
        return (Prepared(rows[some], x.y_scale),)

    def compare() -> bool:
        return same_in_parts(parameters, given, _TOGETHER, part, _TOGETHER)

    try:
        known = model.kind, type(model.module), repr(model.module), rows.shape
        return traced_once.made(model.traced_as and known, compare)
    except _OF_A_MODEL:
        return False
