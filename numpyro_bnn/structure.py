"""What a NumPyro model consists of for given arguments: sites, plates, hierarchical precisions.

Found by an abstract trace, so that nothing is computed; with the checks that every fit makes
before it begins.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_sample
from numpyro.infer.gibbs import GIBBS_SITES_KWARG

from numpyro_bnn.host_rows import with_stand_ins
from numpyro_bnn.levels import Level, levels_of


class Plate(NamedTuple):
    """A plate of a model.

    - **size** - number of rows, N
    - **subsample_size** - rows that the model itself takes of them; N unless it subsamples
    """

    size: int
    subsample_size: int


class Site(NamedTuple):
    """A sample site of a model, without its values.

    - **shape** - of the value
    - **distribution_shape** - batch and event shape of its distribution
    - **event_dim** - number of event axes
    - **observed** - whether it is part of the likelihood
    - **discrete** - whether its support is
    - **plates** - enclosing plates: name to axis, counted from the right of the batch shape
    - **factor** - whether it comes from ``numpyro.factor``
    """

    shape: tuple[int, ...]
    distribution_shape: tuple[int, ...]
    event_dim: int
    observed: bool
    discrete: bool
    plates: dict[str, int]
    factor: bool


class Structure(NamedTuple):
    """What a model consists of for given arguments.

    - **sites** - its sample sites, in order
    - **plates** - its plates
    - **levels** - its hierarchical precisions of weights, the lowest first
    - **deterministic** - shapes of its deterministic sites
    """

    sites: dict[str, Site]
    plates: dict[str, Plate]
    levels: dict[str, Level]
    deterministic: dict[str, tuple[int, ...]]

    @property
    def latent(self) -> list[str]:
        return [name for name, site in self.sites.items() if not site.observed]

    @property
    def observed(self) -> list[str]:
        return [name for name, site in self.sites.items() if site.observed]

    @property
    def groups(self) -> dict[str, Level]:
        """Precisions that are Gamma distributed given the weights and the level above."""
        return {name: level for name, level in self.levels.items() if level.conjugate}

    @property
    def row_counts(self) -> set[int]:
        """Sizes of the plates around observed sites."""
        return {self.plates[p].size for name in self.observed for p in self.sites[name].plates}


def as_jax(tree: Any) -> Any:
    """NumPy's arrays as JAX's, which the traced rows of a minibatch can index."""

    def convert(leaf: Any) -> Any:
        numeric = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc"
        return jnp.asarray(leaf) if numeric else leaf

    return jax.tree.map(convert, tree)


@contextmanager
def explain_tracing() -> Iterator[None]:
    """Say why a model cannot compute Python numbers from its data."""
    try:
        yield
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        error.add_note(
            "numpyro_bnn compiles the model with its data as arguments, so that the model cannot "
            "branch on their values or give them to NumPy. Compute such numbers (for example how "
            "many classes there are) outside, and pass them as Python constants."
        )
        raise


@explain_tracing()
def structure_of(
    model: Callable, args: tuple, kwargs: dict, indices: Mapping[str, jax.Array] | None = None
) -> Structure:
    """Trace a model abstractly: parameters have shapes only, the arguments keep their values.

    Checks inside the model that look at concrete data therefore still happen, while nothing is
    computed from random values.

    :param model: a NumPyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param indices: rows to take, by plate.
    """
    found: list[Structure] = []
    args, kwargs = as_jax((args, kwargs))
    # Sites that NumPyro's Gibbs holds fixed for this block are neither latent nor data.
    held = set(kwargs.get(GIBBS_SITES_KWARG, ()))

    def visit(key: jax.Array) -> jax.Array:
        bound = substitute(with_stand_ins(model), data=dict(indices or {}))
        seeded = seed(bound, key)
        sites = trace(substitute(seeded, substitute_fn=init_to_sample)).get_trace(*args, **kwargs)
        samples = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and name not in held
        }
        plates = {name: site for name, site in sites.items() if site["type"] == "plate"}
        found.append(
            Structure(
                {name: _site(site) for name, site in samples.items()},
                {
                    name: Plate(site["args"][0], site["args"][1] or site["args"][0])
                    for name, site in plates.items()
                },
                {n: v for n, v in levels_of(samples).items() if not v.of_noise},
                {
                    n: jnp.shape(s["value"])
                    for n, s in sites.items()
                    if s["type"] == "deterministic"
                },
            )
        )
        return key

    jax.eval_shape(visit, jax.random.key(0))
    return found[0]


def _site(site: dict[str, Any]) -> Site:
    distribution = site["fn"]
    # Weights of the rows that stay whole in a minibatch are an error here.
    if site["scale"] is not None:
        jnp.broadcast_shapes(jnp.shape(site["scale"]), distribution.batch_shape)
    return Site(
        shape=jnp.shape(site["value"]),
        distribution_shape=tuple(distribution.shape()),
        event_dim=distribution.event_dim,
        observed=site["is_observed"],
        discrete=bool(distribution.support.is_discrete),
        plates={frame.name: frame.dim for frame in site["cond_indep_stack"]},
        factor=type(distribution).__name__ == "Unit",
    )


def check_key(owner: str, key: Any, batch: int = 1) -> None:
    """Refuse what is not one random key, or one a chain.

    :raises TypeError: naming what it is.
    """
    if isinstance(key, (jax.Array, np.ndarray)):
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        shape = key.shape if typed else key.shape[:-1]
        raw = key.dtype == jnp.uint32 and key.shape[-1:] == (2,)
        if (typed or raw) and shape in ((), (batch,)):
            return
    what = f"an array of shape {np.shape(key)}" if hasattr(key, "shape") else repr(key)
    raise TypeError(
        f"{owner}: expected a random key, such as `jax.random.key(0)`, got {what}. The key comes "
        "before the arguments of the model."
    )


def refuse_equal_keys(owner: str, keys: Any) -> None:
    """Refuse chains that would be the same chain.

    :param keys: one random key a chain.
    :raises ValueError: naming two chains.
    """
    typed = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    rows = [bytes(row) for row in np.asarray(jax.random.key_data(keys) if typed else keys)]
    for chain, row in enumerate(rows):
        if (first := rows.index(row)) < chain:
            raise ValueError(
                f"{owner}: chains {first} and {chain} have the same random key, so that they would be "
                "one chain and agree whatever it does. Give one key, from which every chain gets its "
                f"own, or `jax.random.split(key, {len(rows)})`."
            )


def begin_fit(model: Callable, args: tuple, kwargs: dict) -> Structure:
    """What every fit does first: let the model see its training data, and check them.

    :return: the structure of the model.
    :raises ValueError: if the model keeps the units of other data, or an observed site
        broadcasts to an outer product; and whatever the model itself refuses.
    """
    ready = innermost(model)
    learned = hasattr(ready, "learn") and ready.learn(*args, **kwargs)
    try:
        structure = structure_of(model, args, kwargs)
        _check_broadcast(structure)
    except Exception:
        if learned:
            ready.forget()
        raise
    return structure


def innermost(model: Any) -> Any:
    """The model under all handlers that wrap it."""
    while getattr(model, "fn", None) is not None:
        model = model.fn
    return model


def _check_broadcast(structure: Structure) -> None:
    """Refuse observations that meet their distribution in an outer product.

    :raises ValueError: for the N×N broadcast of a prediction (N, 1) against a target (N,).
    """
    for name in structure.observed:
        site = structure.sites[name]
        if site.factor or not site.shape or site.shape == site.distribution_shape:
            continue
        padded = (1,) * (len(site.distribution_shape) - len(site.shape)) + site.shape
        grown = [
            axis
            for axis, (have, want) in enumerate(zip(padded, site.distribution_shape))
            if have == 1 and want > 1
        ]
        if grown and max(site.shape) > 1:
            raise ValueError(
                f"The observed site '{name}' has values of shape {site.shape} but a distribution "
                f"of shape {site.distribution_shape}: every value would be compared with every "
                "prediction. Give both the same shape, for example with `f.squeeze(-1)`."
            )
