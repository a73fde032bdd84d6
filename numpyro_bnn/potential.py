"""From a NumPyro model to its potential energy, on all data or on a minibatch.

:class:`Potential` is the joint between models and samplers: samplers, optimisers and
diagnostics take one and know nothing of models. For unconstrained values z of the latent
sites and indices I of B out of N rows,

    U(z)    = -log p(θ(z)) |∂θ/∂z| - Σ_i log p(y_i | x_i, θ),
    U(z; I) = -log p(θ(z)) |∂θ/∂z| - (N/B) Σ_{i in I} log p(y_i | x_i, θ),

energies in nats. A minibatch is made from outside the model, by substituting the indices of
its data plate; this file alone does so.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_sample
from numpyro.infer.gibbs import GIBBS_SITES_KWARG
from numpyro.infer.util import constrain_fn, log_density, potential_energy
from numpyro.primitives import Messenger

from numpyro_bnn.hierarchy import Group, groups_of
from numpyro_bnn.host_rows import sources_in, with_stand_ins
from numpyro_bnn.summed import Rows, summed

Values = dict[str, jax.Array]


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
    - **groups** - its hierarchical precisions
    - **deterministic** - shapes of its deterministic sites
    """

    sites: dict[str, Site]
    plates: dict[str, Plate]
    groups: dict[str, Group]
    deterministic: dict[str, tuple[int, ...]]

    @property
    def latent(self) -> list[str]:
        return [name for name, site in self.sites.items() if not site.observed]

    @property
    def observed(self) -> list[str]:
        return [name for name, site in self.sites.items() if site.observed]

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
                groups_of(samples),
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


class _DefaultKey(Messenger):
    """Gives models that ask for a key outside `seed` (dropout) a constant one, as NumPyro does."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = jax.random.key(0)


class _Slices(Messenger):
    """Takes consecutive rows by slicing, which a gather of as many rows is slower than.

    A plate gathers the rows of what passes through ``numpyro.subsample`` inside it; this
    handler, around the model, takes them first.
    """

    def __init__(self, fn: Callable, indices: jax.Array, axis: int, size: int) -> None:
        self.indices = indices
        self.axis = axis
        self.size = size
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "subsample":
            return
        axis = self.axis - msg["kwargs"]["event_dim"]
        shape = jnp.shape(msg["value"])
        if len(shape) >= -axis and shape[axis] == self.size:
            msg["type"] = "sliced"
            start, count = self.indices[0], len(self.indices)
            msg["value"] = lax.dynamic_slice_in_dim(msg["value"], start, count, axis)


class Potential:
    """Potential energy of a model given its arguments, over unconstrained latent values.

    Call it with ``z: {site: array}`` for the energy in nats.

    :param model: a NumPyro model.
    :param args: its positional arguments; arrays, or pytrees of them, may be traced.
    :param kwargs: its keyword arguments.
    :raises ValueError: if the model has no latent site, or a discrete one.
    """

    def __init__(self, model: Callable, args: tuple = (), kwargs: dict | None = None) -> None:
        self.model = model
        self.args, self.kwargs = as_jax((args, kwargs or {}))
        self.structure = structure_of(model, self.args, self.kwargs)
        if not self.structure.latent:
            raise ValueError("The model has no latent site: every sample site is observed.")
        discrete = [n for n in self.structure.latent if self.structure.sites[n].discrete]
        if discrete:
            raise ValueError(
                f"The latent site(s) {discrete} are discrete and have no gradient. Sum them out in "
                "the model, or sample them with NumPyro's DiscreteGibbs as a block of Gibbs."
            )
        self._sources = sources_in((self.args, self.kwargs))
        self.bound = with_stand_ins(_DefaultKey(model))

    @property
    def is_on_host(self) -> bool:
        """Whether some of the data are, see :class:`~numpyro_bnn.host_rows.OnHost`."""
        return bool(self._sources)

    def __call__(self, z: Values) -> jax.Array:
        if self._sources:
            chunk = min(source.rows_a_pass for source in self._sources)
            return summed(Rows(self, *self.data_plate()), chunk)(z)
        return potential_energy(self.bound, self.args, self.kwargs, z)

    def minibatch(
        self,
        z: Values,
        indices: jax.Array,
        plate: str,
        contiguous: bool = False,
        ahead: jax.Array | None = None,
    ) -> jax.Array:
        """U(z; I): the likelihood of the rows `indices` of `plate`, scaled by N/B.

        :param z: unconstrained values by site.
        :param indices: row numbers.
        :param plate: name of the data plate.
        :param contiguous: whether the rows are consecutive, and can be sliced out.
        :param ahead: rows that will be wanted next, which data on the host are read for.
        """
        model = self.rows_of(indices, plate, contiguous, ahead)
        return potential_energy(model, self.args, self.kwargs, z)

    def rows_of(
        self,
        indices: jax.Array,
        plate: str,
        contiguous: bool = False,
        ahead: jax.Array | None = None,
    ) -> Callable:
        """The model that sees the rows `indices` of `plate` only; see :meth:`minibatch`."""
        bound = with_stand_ins(_DefaultKey(self.model), indices, ahead)
        model = substitute(bound, data={plate: indices})
        return self._sliced(model, indices, plate) if contiguous else model

    def _sliced(self, model: Callable, indices: jax.Array, plate: str) -> Callable:
        axes = {
            self.structure.sites[name].plates[plate]
            for name in self.structure.observed
            if plate in self.structure.sites[name].plates
        }
        (axis,) = axes
        return _Slices(model, indices, axis, self.structure.plates[plate].size)

    def data_plate(self, plate: str | None = None) -> tuple[str, int]:
        """The plate that minibatches are taken from, and its size N.

        :param plate: its name, where the model has several.
        :raises ValueError: if there is none, if it must be named, or if the model does not
            follow minibatches of it: an observed site outside the plate, a latent site inside,
            data that are not subsampled, or a likelihood summed before it reaches the plate.
        """
        observed = {name: self.structure.sites[name] for name in self.structure.observed}
        candidates = sorted({p for site in observed.values() for p in site.plates})
        if plate is None and len(candidates) == 1:
            (plate,) = candidates
        if plate is None or plate not in candidates:
            raise ValueError(_no_plate(plate, candidates))
        size, subsample_size = self.structure.plates[plate]
        if subsample_size < size:
            raise ValueError(
                f"The plate '{plate}' already subsamples in the model (subsample_size="
                f"{subsample_size} of {size}). Remove `subsample_size=` and give the kernel "
                "`batch_size=`."
            )
        self._check_follows(plate, size)
        return plate, size

    def _check_follows(self, plate: str, size: int) -> None:
        # A size that no other axis of the model is likely to have, so that chance cannot hide
        # a site that ignores the minibatch; one row would broadcast silently.
        probe = next(b for b in (7, 5, 3, 2, 1) if b < size or b == 1)
        try:
            indices = {plate: jnp.arange(probe)}
            taken = structure_of(self.model, self.args, self.kwargs, indices)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The model does not follow a minibatch of {probe} of the {size} rows of plate "
                f"'{plate}'. {_SUBSAMPLE} The model says: {error}"
            ) from error
        for name, site in taken.sites.items():
            inside = plate in site.plates
            if not site.observed:
                if inside:
                    raise ValueError(
                        f"The latent site '{name}' is inside the data plate '{plate}': it has one "
                        "value a row, and a minibatch would update only some of them. Use a "
                        "full-batch kernel, or move it out of the plate."
                    )
                continue
            if not inside:
                raise ValueError(
                    f"The observed site '{name}' is outside the plate '{plate}', so that a "
                    f"minibatch would neither subsample nor scale it. {_SUBSAMPLE}"
                )
            batch = site.distribution_shape[: len(site.distribution_shape) - site.event_dim]
            value_batch = site.shape[: len(site.shape) - site.event_dim]
            axis = site.plates[plate]
            if len(value_batch) < -axis or value_batch[axis] != probe or value_batch != batch:
                raise ValueError(
                    f"The observed site '{name}' has values of shape {site.shape} and a "
                    f"distribution of shape {site.distribution_shape} for a minibatch of {probe} "
                    f"rows of plate '{plate}'; the batch axis {axis} of both must be {probe}. "
                    f"{_SUBSAMPLE} A likelihood summed into one factor would count {size} times."
                )

    def constrain(self, z: Values, deterministic: bool = False) -> Values:
        """Constrained values of the latent sites.

        :param z: unconstrained values by site.
        :param deterministic: whether to add the deterministic sites.
        """
        return constrain_fn(self.bound, self.args, self.kwargs, z, deterministic)

    def unconstrain(self, values: Values) -> Values:
        """Unconstrained values from constrained ones of every latent site."""
        seeded = seed(substitute(self.bound, data=dict(values)), jax.random.key(0))
        sites = trace(seeded).get_trace(*self.args, **self.kwargs)
        return {
            name: biject_to(sites[name]["fn"].support).inv(values[name])
            for name in self.structure.latent
        }

    def prior_draw(self, key: jax.Array) -> Values:
        """Constrained values of the latent sites drawn from their priors."""
        seeded = substitute(seed(with_stand_ins(self.model), key), substitute_fn=init_to_sample)
        sites = trace(seeded).get_trace(*self.args, **self.kwargs)
        return {name: sites[name]["value"] for name in self.structure.latent}

    def log_joint_by_site(self, values: Values) -> Values:
        """Log density of each sample site, summed, at constrained values."""
        bound = seed(self.bound, jax.random.key(0))
        _, sites = log_density(bound, self.args, self.kwargs, values)
        return {
            name: jnp.sum(site["fn"].log_prob(site["value"]))
            for name, site in sites.items()
            if site["type"] == "sample"
        }


_SUBSAMPLE = (
    "Inside `with numpyro.plate('data', N):` take the rows with "
    "`numpyro.subsample(x, event_dim=1)` and `numpyro.subsample(y, event_dim=0)`, and observe "
    "one value a row."
)


def _no_plate(plate: str | None, candidates: list[str]) -> str:
    if not candidates:
        return (
            "A minibatch needs a plate around the observed sites, and this model has none. "
            + _SUBSAMPLE
        )
    if plate is None:
        return (
            f"The observed sites are inside several plates, {candidates}; say which one holds the "
            "rows with `plate=`."
        )
    return f"No observed site is inside a plate named {plate!r}; the plates are {candidates}."


def transforms_of(model: Callable, args: tuple, kwargs: dict | None) -> dict[str, Callable]:
    """How each latent site is constrained, by its support alone."""
    seeded = substitute(seed(model, jax.random.key(0)), substitute_fn=init_to_sample)
    sites = trace(seeded).get_trace(*args, **(kwargs or {}))
    return {
        name: biject_to(site["fn"].support)
        for name, site in sites.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and not site["fn"].support.is_discrete
    }


def potential_of(model: Callable, *args: Any, **kwargs: Any) -> Potential:
    """The potential energy of a NumPyro model for given arguments.

    :param model: a NumPyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :raises ValueError: if the model has no latent site, or a discrete one.

    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, numpyro_bnn as bnn
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0., 1.))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mean, 1.), obs=numpyro.subsample(y, event_dim=0))
    >>> potential = bnn.potential_of(model, jnp.array([1., 2., 3.]))
    >>> potential.data_plate()
    ('data', 3)
    """
    return Potential(model, args, kwargs)


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
