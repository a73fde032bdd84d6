"""The potential energy of a NumPyro model, on all data or on a minibatch.

:class:`Potential` is the interface between models and samplers: samplers, optimisers and
diagnostics take one and know nothing of models. For unconstrained values z of the latent
sites and indices I of B out of N rows,

    U(z)    = -log p(θ(z)) |∂θ/∂z| - Σ_i log p(y_i | x_i, θ),
    U(z; I) = -log p(θ(z)) |∂θ/∂z| - (N/B) Σ_{i in I} log p(y_i | x_i, θ),

energies in nats. A minibatch is made from outside the model, by substituting the indices of
its data plate.
"""

import copy
import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import biject_to
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer import HMC, init_to_sample, init_to_uniform
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import (
    _unconstrain_params,
    compute_log_probs,
    constrain_fn,
    log_density,
    potential_energy,
)
from numpyro.primitives import Messenger

from numpyro_bnn._checks import check_whole
from numpyro_bnn.data.arguments import prepared
from numpyro_bnn.data.host_rows import RowsTaken, WithStandIns, sources_in
from numpyro_bnn.distributions.stable_densities import scaled
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.potential.flat_position import FlatPosition
from numpyro_bnn.potential.rows import Rows, rows_are_shared, summed, taken_by_all
from numpyro_bnn.potential.rows_in_parts import refuse_dependent_rows
from numpyro_bnn.potential.sites import without_subsampling
from numpyro_bnn.potential.structure import as_jax, check_targets, structure_of, with_structure
from numpyro_bnn.priors.precision_conditionals import Level


class TemperedLikelihood(NamedTuple):
    """Energy of the likelihood at given values of the latent sites, as a function of its power."""

    # Most observed sites are tempered as p(y | θ)^b. A site with integrated weights w (`LinearGaussian`) is
    # tempered before the integral, ∫ p(w) p(y | w, θ)^b dw, so that the path from prior to posterior is that
    # of the model with its weights.

    product: jax.Array  # -log p(y | θ) of the sites that are raised to the power, in nats
    # For each other site, its energy at a power.
    integrals: tuple[Callable[[Any], jax.Array], ...] = ()

    def __call__(self, power: Any) -> jax.Array:
        """The energy at one power, in nats."""
        return power * self.product + sum(one(power) for one in self.integrals)

    def between(self, low: jax.Array, high: jax.Array) -> jax.Array:
        """The rise of the energy from one power to another, over the rise of the power."""
        # Without integrated weights this is the energy of the likelihood, whatever the powers. With them it
        # is its mean over their conditional distribution, averaged over the powers between the two.
        ends = jnp.stack([low, high])
        # One call for all powers, so that the integral is compiled once.
        energies = (jax.vmap(one)(ends.reshape(-1)).reshape(ends.shape) for one in self.integrals)
        means = ((above - below) / (high - low) for below, above in energies)
        return self.product + sum(means, start=jnp.zeros(jnp.shape(low)))


def tempered_likelihood(
    energies: dict[str, jax.Array], sites: dict[str, Any]
) -> TemperedLikelihood:
    """The likelihood of observed sites in a trace, from -log p(y | θ) of each in nats."""
    own = [name for name in energies if hasattr(sites[name]["fn"], "tempered_log_prob")]

    def integral(name: str, power: Any) -> jax.Array:
        site = sites[name]
        return -site["fn"].tempered_log_prob(site["value"], power)

    return TemperedLikelihood(
        sum((e for name, e in energies.items() if name not in own), start=jnp.zeros(())),
        tuple(partial(integral, name) for name in own),
    )


Values = dict[str, jax.Array]


class _DefaultKey(Messenger):
    """Gives models that need a random key (for dropout) a constant one, so that their density is fixed."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = jax.random.key(0)


class Potential:
    """Potential energy of a model given its arguments, over unconstrained latent values.

    Call it with ``z: {site: array}`` for the energy in nats. All rows count, even where a plate of the
    model subsamples (``subsample_size=``); only :meth:`minibatch` takes some of them.

    :param model: a NumPyro model.
    :param args: its positional arguments; arrays, or pytrees of them, may be traced.
    :param kwargs: its keyword arguments.
    :raises ValueError: if the model has no latent site or a discrete one, or if values of an
        observed site would be stretched or counted several times.
    """

    def __init__(self, model: Callable, args: tuple = (), kwargs: dict | None = None) -> None:
        self.args, self.kwargs = as_jax(prepared(model, args, kwargs or {}))
        model, self._given_structure = with_structure(model, self.args, self.kwargs)
        self.structure = self._given_structure
        self.model = without_subsampling(model, self.structure)
        if self.model is not model:
            self.structure = structure_of(self.model, self.args, self.kwargs)
        # Targets are checked here too, because kernels of this package may run in NumPyro's own MCMC.
        check_targets(self.structure)
        discrete = [n for n in self.structure.latent if self.structure.sites[n].discrete]
        if discrete:
            raise ValueError(
                f"The latent site(s) {discrete} are discrete and have no gradient. Sum them out in "
                "the model, or sample them with NumPyro's DiscreteGibbs as a block of Gibbs."
            )
        self._sources = sources_in((self.args, self.kwargs))
        self.bound = WithStandIns(_DefaultKey(self.model))
        self.levels = self.structure.levels

    @cached_property
    def levels(self) -> dict[str, Level]:
        """The hierarchical precisions at these arguments, among which are the scales of a prior."""
        known = self.structure.levels
        return structure_of(self.model, self.args, self.kwargs).levels if known else known

    def at(
        self, args: tuple, kwargs: dict | None = None, model: Callable | None = None
    ) -> "Potential":
        """The potential for other arguments of the same shapes, which may be traced; not checked again.

        :param args: positional arguments.
        :param kwargs: keyword arguments.
        :param model: another model of the same sites; None for the same one.
        """
        other = copy.copy(self)
        if model is not None:
            other.model = without_subsampling(model, self._given_structure)
            other.bound = WithStandIns(_DefaultKey(other.model))
        other.args, other.kwargs = as_jax(prepared(other.model, args, kwargs or {}))
        other.__dict__.pop("levels", None)
        other._sources = sources_in((other.args, other.kwargs))
        return other

    @property
    def is_on_host(self) -> bool:
        """Whether some of the data stay on the host, see :class:`~numpyro_bnn.data.host_rows.OnHost`."""
        return bool(self._sources)

    def __call__(self, z: Values) -> jax.Array:
        if self._sources:
            chunk = min(source.rows_a_pass for source in self._sources)
            return summed(Rows(self, *self.data_plate()), chunk)(z)
        return potential_energy(self.bound, self.args, self.kwargs, z)

    def energies(self, z: Values) -> tuple[jax.Array, jax.Array]:
        """The two parts of U(z): the prior's, Jacobians of transforms included, and the likelihood's.

        :param z: unconstrained values by site.
        :return: -log p(θ(z)) |∂θ/∂z| and -log p(y | θ(z)), in nats.
        """
        prior, likelihood = self.tempered(z)
        return prior, likelihood(1.0)

    def tempered(self, z: Values) -> tuple[jax.Array, TemperedLikelihood]:
        """The energy of the prior, and that of the likelihood as a function of its power.

        The likelihood consists of all observed sites and factors.

        :param z: unconstrained values by site.
        :return: -log p(θ(z)) |∂θ/∂z| in nats, and the likelihood.
        """
        unconstrained = _unconstrain_params(self.bound, z)
        by_site, sites = compute_log_probs(unconstrained, self.args, self.kwargs, {})
        observed = {name: -by_site.pop(name) for name in self.structure.observed}
        return -sum(by_site.values(), start=jnp.zeros(())), tempered_likelihood(observed, sites)

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
        :param ahead: row numbers of the next step: data on the host are read for them meanwhile.
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
        if plate not in self._plates:
            raise ValueError(_no_plate(plate, self._plates))
        take: Callable | None = None
        if rows_are_shared():

            def take(values: jax.Array, axis: int) -> jax.Array:
                return taken_by_all(values, indices, axis)

        elif contiguous:

            def take(values: jax.Array, axis: int) -> jax.Array:
                # A slice is faster than a gather of as many rows.
                return lax.dynamic_slice_in_dim(values, indices[0], len(indices), axis)

        rows = RowsTaken(indices, plate, self.structure.plates[plate].size, ahead, take)
        return substitute(WithStandIns(_DefaultKey(self.model), rows), data={plate: indices})

    @property
    def _plates(self) -> list[str]:
        """Names of the plates around data."""
        data = (self.structure.sites[name] for name in self.structure.data)
        return sorted({plate for site in data for plate in site.plates})

    def data_plate(self, plate: str | None = None) -> tuple[str, int]:
        """The plate of minibatches and its size N; refuses models that do not follow minibatches."""
        candidates = self._plates
        if plate is None and len(candidates) == 1:
            (plate,) = candidates
        if plate is None or plate not in candidates:
            raise ValueError(_no_plate(plate, candidates))
        size = self.structure.plates[plate].size
        self._check_follows(plate, size)
        refuse_dependent_rows(self, plate, size)
        return plate, size

    def _check_follows(self, plate: str, size: int) -> None:
        # A size that no other axis of the model is likely to have, so that chance cannot hide
        # a site that ignores the minibatch; one row would broadcast silently.
        probe = next(b for b in (7, 5, 3, 2, 1) if b < size or b == 1)
        try:
            indices = {plate: jnp.arange(probe)}
            subsampled = structure_of(self.model, self.args, self.kwargs, indices)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The model does not follow a minibatch of {probe} of the {size} rows of plate "
                f"'{plate}'. {_SUBSAMPLE} The model says: {error}"
            ) from error
        for name, site in subsampled.sites.items():
            if name in self.structure.given:
                continue
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

    def prior_draw(
        self, key: jax.Array, given: Values | None = None, noise: Values | None = None
    ) -> Values:
        """Constrained values of the latent sites drawn from their priors.

        :param key: random key.
        :param given: values of some sites; the other sites are drawn conditionally on them.
        :param noise: standard normals of Gaussian sites and draws from Gamma(concentration, 1) of Gamma sites
            (see :class:`~numpyro_bnn.potential.sites.Site`) to make values from; other sites use the key.
            Where it is None, normals of all Gaussian sites are drawn at once.
        """
        given = dict(given or {})
        if noise is None:
            key_noise, key = jax.random.split(key)
            noise = self._standard_normals(key_noise, given)
        seeded = substitute(seed(WithStandIns(self.model), key), data=given)
        seeded = substitute(seeded, substitute_fn=partial(_drawn, noise))
        sites = trace(seeded).get_trace(*self.args, **self.kwargs)
        return {name: sites[name]["value"] for name in self.structure.latent}

    def _standard_normals(self, key: jax.Array, given: Values) -> Values:
        """Standard normals of the Gaussian sites, by one call: that of each site would be compiled apart."""
        sites = self.structure.sites
        drawn = [n for n in self.structure.latent if sites[n].distribution is dist.Normal]
        shapes = tuple((name, sites[name].shape) for name in drawn if name not in given)
        flat = jax.random.normal(key, (sum(math.prod(shape) for _, shape in shapes),))
        return FlatPosition(lax.optimization_barrier(flat), shapes).sites() if shapes else {}

    def log_joint_by_site(self, values: Values, model: Callable | None = None) -> Values:
        """Log density of each sample site, summed, at constrained values; weights and scales count in it."""
        bound = seed(self.bound if model is None else model, jax.random.key(0))
        return compute_log_probs(bound, self.args, self.kwargs, dict(values))[0]


def _drawn(noise: Values, site: dict[str, Any]) -> jax.Array | None:
    """A value of a latent site from its distribution; around 0, unconstrained, where that has no draws."""
    # NumPyro's ``init_to_sample`` compiles a median of one draw, which takes several times as long.
    if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
        return None
    if site["fn"].support.is_discrete:
        return None
    if site["name"] in noise:
        distribution, standard = unwrapped(site["fn"]), noise[site["name"]]
        if type(distribution) is dist.Normal:
            return distribution.loc + distribution.scale * standard
        return scaled(standard, distribution.rate)
    try:
        return site["fn"](**site["kwargs"])
    except NotImplementedError:
        return init_to_uniform(site)


_SUBSAMPLE = (
    "Inside `with numpyro.plate('data', N):` take the rows with "
    "`numpyro.subsample(x, event_dim=1)` and `numpyro.subsample(y, event_dim=0)`, and observe "
    "one value a row."
)


def _no_plate(plate: str | None, candidates: list[str]) -> str:
    if not candidates:
        return f"A minibatch needs a plate around the observed sites, and this model has none. {_SUBSAMPLE}"
    return (
        f"Say with `plate=` which plate around observed sites, {candidates}, holds the rows of a minibatch, "
        f"got {plate!r}."
    )


def constrained_by_support(
    model: Callable, args: tuple, kwargs: dict | None
) -> Callable[[Values], Values]:
    """A function from unconstrained to constrained values, by the supports of sites alone."""
    # Unlike that of a potential it takes some of the sites, and discrete ones, which stay as they are.
    seeded = substitute(seed(model, jax.random.key(0)), substitute_fn=init_to_sample)
    sites = trace(seeded).get_trace(*args, **(kwargs or {}))
    transforms = {
        name: biject_to(site["fn"].support)
        for name, site in sites.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and not site["fn"].support.is_discrete
    }
    return lambda z: {n: transforms[n](v) if n in transforms else v for n, v in z.items()}


def potential_of(model: Callable, *args: object, **kwargs: object) -> Potential:
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


SITE = "log likelihood in chunks"


class _LogLikelihood:
    """Log likelihood and gradient of some rows, as :func:`~numpyro_bnn.potential.rows.in_chunks` expects."""

    def __init__(self, model: Callable, args: tuple, kwargs: dict) -> None:
        self.potential = Potential(model, args, kwargs)
        self.plate, self.size = self.potential.data_plate()

    def value(self, latent: dict, indices: jax.Array, contiguous: bool) -> jax.Array:
        """log p(y_I | θ) N/B at constrained values."""
        potential = self.potential
        bound = substitute(potential.rows_of(indices, self.plate, contiguous), data=latent)
        hidden = block(seed(bound, jax.random.key(0)), hide=list(potential.structure.latent))
        # This code runs inside a model, whose handlers must not see the rows of a chunk.
        with block():
            return log_density(hidden, potential.args, potential.kwargs, {})[0]

    def some(self, latent: dict, indices: jax.Array, contiguous: bool) -> tuple[jax.Array, dict]:
        return jax.value_and_grad(self.value)(latent, indices, contiguous)


class Chunked:
    """A model whose likelihood is summed in chunks of rows; the head of this module says how."""

    def __init__(self, fn: Callable, chunk_size: int) -> None:
        self.fn = fn
        self.chunk_size = check_whole("MCMC", "chunk_size", chunk_size)

    def __call__(self, *args: object, **kwargs: object) -> object:
        with block():
            observed = structure_of(self.fn, args, kwargs).observed
        if not observed:
            return self.fn(*args, **kwargs)
        # The model is called on all rows once more, for the values of deterministic sites; the compiler
        # removes that call where they are not used.
        hidden = block(WithStandIns(self.fn), hide=observed)
        sites = trace(hidden).get_trace(*args, **kwargs)
        latent = {
            name: site["value"]
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        with block():
            rows = _LogLikelihood(self.fn, args, kwargs)
        numpyro.factor(SITE, summed(rows, self.chunk_size)(latent))
        return None


def chunked_kernel(kernel: MCMCKernel, chunk_size: int) -> MCMCKernel:
    """A copy of HMC or NUTS over a model whose likelihood is summed in chunks."""
    if not isinstance(kernel, HMC) or kernel.model is None:
        raise ValueError(
            f"MCMC: chunk_size={chunk_size!r} is for HMC or NUTS over a model, got "
            f"{type(kernel).__name__}. For a kernel of this package give it "
            f"`gradient=gradients.full(chunk_size={chunk_size!r})` instead."
        )
    return kernel.wrap_model(lambda model: Chunked(model, chunk_size))
