"""Refuses minibatches and chunks of a model whose likelihood of a row depends on which rows are beside it.

A sum over chunks is then not the likelihood of all rows, nor does a minibatch estimate it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_uniform

from numpyro_bnn._types import Array
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.rows_in_parts import same_in_parts

# Rows that are computed together; a part is an odd number of them, less than half.
_TOGETHER = 64
# Results by the text of the program, and how many are kept.
_known: dict[str, bool] = {}
_MOST = 100


def refuse_dependent_rows(potential: Any, plate: str, size: int) -> None:
    """Refuse to take some rows of a plate, where what they contribute depends on the others among them."""
    if size < 4:
        return
    try:
        separate = _are_separate(potential, plate, size)
    except Exception:  # the model may raise on made-up numbers; treat as unknown
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


def _distributions(
    potential: Any, model: Callable, share: float, arguments: tuple
) -> list[jax.Array]:
    """Parameters, values and weights of the observed sites at rows that are a `share` of all."""
    args, kwargs = arguments
    sites = trace(model).get_trace(*args, **kwargs)
    found: list[Any] = []
    for name in potential.structure.data:
        site = sites[name]
        found += [*jax.tree.leaves(site["fn"]), site["value"]]
        if isinstance(site["scale"], jax.Array):
            found.append(site["scale"] * share)
    return [jnp.asarray(leaf) for leaf in found if isinstance(leaf, (jax.Array, np.ndarray))]


def _are_separate(potential: Any, plate: str, size: int) -> bool:
    """Compare distributions at the data, or at made-up data where these are traced; once for each program."""
    arguments = Arguments.split(potential.args, potential.kwargs)

    def distributions(indices: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
        seeded = seed(potential.rows_of(indices, plate), jax.random.key(0))
        drawn = substitute(seeded, substitute_fn=init_to_uniform(radius=1.0))
        given = Arguments.join(arrays, arguments.static)
        return _distributions(potential, drawn, len(indices) / size, given)

    def shapes(count: int) -> Sequence[tuple[int, ...]]:
        kinds = jax.eval_shape(
            distributions, jax.ShapeDtypeStruct((count,), jnp.int32), arguments.arrays
        )
        return [kind.shape for kind in kinds]

    some = jax.ShapeDtypeStruct((min(_TOGETHER, size),), jnp.int32)
    kinds = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arguments.arrays]
    program = f"{jax.make_jaxpr(distributions)(some, kinds)} {plate} {size}"
    if program not in _known:
        if len(_known) >= _MOST:
            _known.clear()
        _known[program] = _compared(distributions, shapes, arguments.arrays, size, potential)
    return _known[program]


def _compared(
    distributions: Callable, shapes: Callable, given: list[Array], size: int, potential: Any
) -> bool:
    with jax.ensure_compile_time_eval():
        arrays = [_made_up(array) for array in given]
        program = jax.jit(distributions)

        def at_rows(rows: np.ndarray) -> list[np.ndarray]:
            return [np.asarray(one) for one in program(jnp.asarray(rows, jnp.int32), arrays)]

        drawn = potential.structure.takes_keys
        return same_in_parts(at_rows, shapes, size, _TOGETHER // 2 - 1, _TOGETHER, drawn)


def _made_up(array: Array) -> Array:
    """The array, or random numbers of its type where it is traced."""
    if not isinstance(array, jax.core.Tracer):
        return array
    rng = np.random.default_rng(0)
    few = (min(len(array), 509), *array.shape[1:]) if array.ndim else ()
    real = jnp.issubdtype(array.dtype, jnp.floating)
    values = rng.normal(size=few) if real else rng.integers(0, 2, few)
    return jnp.asarray(np.resize(values, array.shape), array.dtype)
