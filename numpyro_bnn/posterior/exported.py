"""A predictive distribution as one file that JAX reads without this package.

The file holds a program, made by ``jax.export``, in which the draws are constants: from a batch of inputs to
the average over the draws, in the user's units.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._calls import result_or_error
from numpyro_bnn._checks import require_extra
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import as_arrays, is_ready
from numpyro_bnn.posterior import prediction_sites
from numpyro_bnn.posterior.draws import Draws, Run, draws_of
from numpyro_bnn.posterior.predictions import Predictor, keys_of_draws, predictor_of
from numpyro_bnn.potential.compiled_arguments import map_in_blocks
from numpyro_bnn.samplers.suspects import warn_of_use
from numpyro_bnn.storage.folders import require_writable

# Bytes of draws in one file; the format holds 2 GiB.
_MOST_BYTES = 2**30


def export(
    run: Run,
    x: PyTree,
    path: str | Path,
    *,
    site: str | None = None,
    platforms: Sequence[str] = ("cpu", "cuda"),
    precision: str = "highest",
    **by_row: PyTree,
) -> Path:
    """Write the average predictions of a run as a function in one file, which JAX alone can call.

    Who loads the file needs JAX and ``flatbuffers``, and neither this package nor the code of the network:

        import jax.export
        predictive = jax.export.deserialize(bytearray(open("small.jax", "rb").read()))
        predictive.call(x_new)              # {"mean": (rows,), "sd": (rows,)}

    Inputs are as the model takes them, in the user's units, with the types that `x` has on the device
    (float32 for ready models) and any number of rows. The result is that of
    :func:`~numpyro_bnn.average`: ``{"probs": (rows, classes)}`` for classes; for other targets ``"mean"`` and
    ``"sd"``, the standard deviation of the mixture, in units of the target. It differs from that of
    :func:`~numpyro_bnn.predict` by rounding: here all is computed in the types of the device. Each draw has
    its own masks of dropout, the same at every call.

    Every draw becomes a part of the file, and each is evaluated at every call: choose a few first, by
    :func:`~numpyro_bnn.thin`. The file works with JAX of the version that wrote it and of later ones, as long
    as ``jax.export`` promises (at least six months).

    :param run: draws with a model, such as ``thin(run, 20)``, an ``MCMC`` after `run`, a fit or an estimator.
    :param x: inputs like those that will be predicted, an array, a table or a pytree of arrays with rows
        first: their types and all axes but the first are fixed.
    :param path: the file to write; its folder is made.
    :param site: the site to predict, see :func:`~numpyro_bnn.predict`.
    :param platforms: what the function can run on: ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``.
    :param precision: of the products of matrices, as in ``jax.default_matmul_precision``. It is written into
        the file: a setting where the file is loaded does not change it.
    :param by_row: further arguments of the model by name, with a value for each row of x. The function in the
        file takes them by name too, also those that ``functools.partial`` binds to the model.
    :return: the path written.
    :raises ValueError: without draws or a model, for latent values of single rows, for more than 1 GiB of
        draws, and for a model that cannot be compiled for these platforms and an unknown number of rows.
    :raises TypeError: if `run` is something else.
    :raises ImportError: where ``flatbuffers`` is not installed.
    :raises OSError: if the file cannot be written.

    >>> bnn.export(bnn.thin(run, 20), x, "small.jax")                       # doctest: +SKIP
    """
    require_extra("export", "export")
    draws = draws_of(run, owner="export")
    path = Path(path)
    require_writable(path.parent, "export: the folder {folder} cannot be written ({why}).")
    warn_of_use("export", draws.suspect)
    others: dict[Any, PyTree] = dict(by_row)
    predictor = predictor_of(draws, x, others, owner="export", site=site)
    specification = _specification(draws.model, predictor.inputs, predictor.others)
    program = _compiled(_predictive(draws, predictor), specification, platforms, precision)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(program)
    partial.replace(path)
    return path


def _predictive(draws: Draws, known: Predictor) -> Callable[..., dict[str, jax.Array]]:
    """The function from inputs to averages over the draws of a model."""
    model, structure = known.model, known.structure
    target = known.target_of(draws)
    if target in structure.sites and structure.sites[target].directions:
        raise ValueError(
            f"export: '{target}' holds directions, whose mean and standard deviation on a line say nothing. "
            "Use `bnn.average(bnn.predict(…))`."
        )
    plates = set(structure.sites[target].plates) if target in structure.sites else set()
    local = [n for n in structure.latent if n != target and plates & set(structure.sites[n].plates)]
    if local := local + prediction_sites.measured_sites(structure):
        raise ValueError(
            f"export: the latent sites {local} have a value for every row, which is known for the rows of "
            "the fit alone. A model whose latent sites belong to no single row can be exported."
        )
    given = prediction_sites.draws_for(known.call, draws, target, known.batch_size)
    values = {name: prediction_sites.flat_draws(np.asarray(value)) for name, value in given.items()}
    size = sum(value.nbytes for value in values.values())
    if size > _MOST_BYTES:
        raise ValueError(
            f"export: {draws.num_chains * draws.num_draws} draws take {size / 2**30:.3g} GiB, and a file "
            f"holds {_MOST_BYTES / 2**30:.3g}. Choose fewer: `bnn.export(bnn.thin(run, 20), …)`."
        )
    constants = {name: jnp.asarray(value) for name, value in values.items()}

    def predictive(x: PyTree, **others: PyTree) -> dict[str, jax.Array]:
        def of_one(given: tuple[dict[str, jax.Array], jax.Array]) -> dict[str, jax.Array]:
            draw, key = given
            seeded = seed(model, key)
            found = trace(substitute(seeded, data=draw)).get_trace(x, **others)[target]
            if found["type"] == "deterministic":
                return {"mean": found["value"]}
            return prediction_sites.parameters_of(found["fn"])

        # Each draw has its own dropout masks and values of groups without draws.
        keys = prediction_sites.flat_draws(keys_of_draws((draws.num_chains, draws.num_draws)))
        return _averaged(map_in_blocks(of_one, (constants, keys), prediction_sites.VECTOR))

    return predictive


def _averaged(parameters: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The average over draws, as :func:`~numpyro_bnn.posterior.predictive_draws.average` has it."""
    if "probs" in parameters:
        return {"probs": _mean(parameters["probs"])}
    # A deterministic site has no noise.
    within = _mean(jnp.square(parameters["scale"])) if "scale" in parameters else 0.0
    # Differences from one draw keep digits that numbers far from zero lose.
    first = parameters["mean"][0]
    apart = parameters["mean"] - first
    middle = _mean(apart)
    return {"mean": first + middle, "sd": jnp.sqrt(within + _mean(jnp.square(apart - middle)))}


def _mean(values: jax.Array) -> jax.Array:
    """The mean over draws by sums of sums: a single sum of many draws in single precision rounds one way."""
    count = len(values)
    length = math.isqrt(count - 1) + 1
    filled = jnp.pad(values, [(0, length**2 - count), *[(0, 0)] * (values.ndim - 1)])
    return filled.reshape(length, length, *values.shape[1:]).sum(1).sum(0) / count


def _specification(model: Any, x: PyTree, others: dict[Any, PyTree]) -> Any:
    """Shapes and types of the arguments, with a number of rows that is not known."""
    arrays = as_arrays(model, (x,), others)
    (rows,) = jax_export.symbolic_shape("rows")

    def of(leaf: Any) -> jax.ShapeDtypeStruct:
        kind = jax.dtypes.canonicalize_dtype(np.float64 if is_ready(model) else leaf.dtype)
        return jax.ShapeDtypeStruct((rows, *np.shape(leaf)[1:]), kind)

    return jax.tree.map(of, arrays)


def _compiled(
    function: Callable[..., Any], specification: Any, platforms: Sequence[str], precision: str
) -> bytearray:
    """The function for all platforms and any number of rows."""
    args, kwargs = specification

    def compiled() -> bytearray:
        # The file keeps the precision of its products: what is set where it is loaded changes nothing.
        with jax.default_matmul_precision(precision):
            exported = jax_export.export(jax.jit(function), platforms=tuple(platforms))
            return exported(*args, **kwargs).serialize()

    made = result_or_error(compiled)
    if isinstance(made, Exception):
        raise ValueError(
            f"export: the predictions of this model cannot be compiled for {list(platforms)}: {made} A file "
            "takes any number of rows in single precision: write `x.shape[0]` for `len(x)`, without branches "
            "on that number and without calls of Python functions, or ship draws and model by `bnn.save`."
        ) from made
    return made
