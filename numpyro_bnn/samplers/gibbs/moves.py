"""Cheap exact steps along directions in which gradient samplers of hierarchical networks are slow.

Weights and their precision are strongly dependent: the prior is nearly flat along (w, τ) → (s w, τ/s²),
and a gradient sampler moves slowly along that ridge. Relu units have a direction along which no prediction
changes: in-weights times s, out-weights over s. A *move* takes a step along such an orbit that leaves
the posterior as it is; :class:`Interleaved` takes moves after every step of a kernel.

An orbit {T_s θ} of a group of scalings has the conditional density p(T_s θ) |∂T_s θ / ∂θ| ds / s.
Source: J. S. Liu and C. Sabatti, *Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian
computation*, Biometrika 87 (2000), theorem 1.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.gibbs import CustomGibbs, DiscreteGibbs, Gibbs, with_conditioning
from numpyro.infer.hmc import HMCState
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import compute_log_probs

from numpyro_bnn._checks import check_positive
from numpyro_bnn._text import ReprMixin
from numpyro_bnn._types import PyTree
from numpyro_bnn.distributions.generalized_inverse_gaussian import sample_log
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.models.affine_sites import prior_part
from numpyro_bnn.potential.flat_position import flat_like
from numpyro_bnn.potential.potential import Potential, Values, tempered_likelihood
from numpyro_bnn.potential.starts import own_coordinates
from numpyro_bnn.potential.structure import structure_of
from numpyro_bnn.priors.precision_conditionals import GammaScaleMixture, Level, levels_of
from numpyro_bnn.samplers.gibbs import precision_gibbs
from numpyro_bnn.samplers.kernels import fields_of, has_exact_energy, refuse_temperature
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState


class Bound(ReprMixin):
    """A model in centred coordinates with its data; moves use it.

    :param model: a NumPyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param power: power of the likelihood, 1 for the posterior; less on the rungs of a ladder.
    """

    def __init__(
        self, model: Callable, args: tuple, kwargs: dict | None, power: float | jax.Array = 1.0
    ) -> None:
        self.model = precision_gibbs.centered_model(model)
        self.args, self.kwargs = args, kwargs or {}
        self.power = power

    def _at(self, values: Values) -> Callable:
        # A constant key for random values that the model draws outside of its latent sites.
        return seed(substitute(self.model, data=values), jax.random.key(0))

    def sites(self, values: Values) -> dict[str, dict]:
        """The trace at constrained values.

        :raises ValueError: if handlers scale or mask a hierarchical prior.
        """
        return _unaltered(trace(self._at(values)).get_trace(*self.args, **self.kwargs))

    @property
    def latent(self) -> list[str]:
        """Names of all latent sites: weights, precisions and others."""
        return list(structure_of(self.model, self.args, self.kwargs).latent)

    def levels(self, owner: str, values: Values) -> dict[str, Level]:
        """The hierarchical precisions of weights.

        :param owner: the move that calls, for the error.
        :raises ValueError: if there are none.
        """
        if not (levels := _levels_of_weights(self.sites(values))):
            raise ValueError(
                f"{owner}: the model has no hierarchical precision. Give the network the prior "
                "`bnn.priors.Hierarchical(…)`."
            )
        return levels

    def log_joint(self, values: Values) -> jax.Array:
        """log p(θ) p(y | θ)^b at constrained values, in nats, with b the power of the likelihood."""
        logs, sites = compute_log_probs(self._at(values), self.args, self.kwargs, {})
        _unaltered(sites)
        observed = {name: -logs.pop(name) for name in list(logs) if sites[name]["is_observed"]}
        likelihood = tempered_likelihood(observed, sites)
        return sum(logs.values(), start=jnp.zeros(())) - likelihood(self.power)


def _levels_of_weights(sites: dict[str, dict]) -> dict[str, Level]:
    return {name: level for name, level in levels_of(sites).items() if not level.of_noise}


def _unaltered(sites: dict[str, dict]) -> dict[str, dict]:
    """The trace; refused if a handler scales or masks a hierarchical prior."""
    precision_gibbs.refuse_altered("Interleaved", _levels_of_weights(sites).values(), sites)
    return sites


class Move(Protocol):
    """A step that leaves the posterior of a model as it is."""

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        """New constrained values of all latent sites."""


class RidgeScaling(ReprMixin):
    """A Metropolis step along (w, τ) → (s w, τ/s²), one for every hierarchical group.

    All weights below a top precision are multiplied by s, and all precisions between divided by
    s², with log s ~ Normal(0, step²). Of n weights and m precisions the Jacobian is s^(n - 2m). Costs an
    energy for every group, and one more.

    :param step: standard deviation of log s; about the posterior spread of log τ^(-1/2).
    :raises ValueError: if `step` is not positive; when run, if the model has no hierarchical
        precision.
    """

    def __init__(self, step: float = 0.3) -> None:
        check_positive("RidgeScaling", step=step)
        self.step = step

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        levels = bound.levels("RidgeScaling", values)
        before = bound.log_joint(values)
        tops = [level for level in levels.values() if level.parent is None]
        for i, top in enumerate(tops):
            # Weights and precisions of the group, its top precision included.
            family = [top, *(levels[child.site] for child in top.children)]
            weights = [name for level in family for name in level.members]
            precisions = [level.site for level in family]
            key_scale, key_accept = jax.random.split(jax.random.fold_in(key, i))
            log_s = self.step * jax.random.normal(key_scale)
            new = dict(values)
            new |= {name: values[name] * jnp.exp(log_s) for name in weights}
            new |= {name: values[name] * jnp.exp(-2 * log_s) for name in precisions}
            after = bound.log_joint(new)
            jacobian = _count(values, weights) - 2 * _count(values, precisions)
            gain = after - before + jacobian * log_s
            accepted = -jax.random.exponential(key_accept) <= gain
            values = _choose(accepted, new, values)
            before = jnp.where(accepted, after, before)
        return values


def _count(values: Values, names: Sequence[str]) -> int:
    return sum(values[name].size for name in names)


class PrecisionRedraw(ReprMixin):
    """Draw every precision of weights from its exact conditional given the weights; needs no energy.

    After a kernel in non-centred coordinates this interweaves centred and non-centred coordinates: each is
    fast in directions where the other is slow. (After a kernel in centred coordinates it is a further Gibbs
    step.)

    :raises ValueError: when run, if the model has no hierarchical precision.

    Source: Y. Yu and X.-L. Meng, *To center or not to center: that is not the question*, JCGS 20
    (2011).
    """

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        return precision_gibbs.redrawn(key, bound.levels("PrecisionRedraw", values), values)


class UnitRescaling(ReprMixin):
    """Rescale each hidden unit of a layer: in-weights times s, out-weights over s.

    With relu units (or others with φ(s a) = s φ(a)) no prediction changes: s depends on the prior alone.
    Where it is Gaussian given its precisions, s² has a generalised inverse Gaussian distribution with shape
    (n_in - n_out)/2, up Σ τ w_in²/2 and down Σ τ w_out²/2, and is drawn exactly, for all units at once.
    That is the proposal of a Metropolis step, which is then always accepted; with other activations, or
    priors with a scale (Student t), fewer proposals are accepted and the step is still exact. Costs two
    energies.

    :param incoming: site of the kernel whose last axis counts the units.
    :param outgoing: site of the kernel whose first axis but the last counts them.
    :param vectors: sites of one value a unit, such as the bias.
    :raises ValueError: when run, for sites whose prior has no scale.
    """

    def __init__(self, incoming: str, outgoing: str, vectors: Sequence[str] = ()) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.vectors = tuple(vectors)

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        entering = (self.incoming, *self.vectors)
        units = values[self.incoming].shape[-1]
        sites = bound.sites(values)
        up = sum(_squares(n, sites, values).reshape(-1, units).sum(0) for n in entering) / 2
        out = _squares(self.outgoing, sites, values)
        down = out.reshape(-1, units, out.shape[-1]).sum((0, 2)) / 2
        count = (_count(values, entering) - _count(values, [self.outgoing])) / units
        key_scale, key_accept = jax.random.split(key)
        log_square = sample_log(key_scale, count / 2, up, down)
        scale = jnp.exp(log_square / 2)
        new = dict(values)
        new |= {name: values[name] * scale for name in entering}
        new[self.outgoing] = values[self.outgoing] / scale[:, None]
        # The Jacobian s^count is also part of the shape of the proposal, and cancels.
        square = scale**2
        proposal = jnp.sum(up * (square - 1) + down * (1 / square - 1))
        gain = bound.log_joint(new) - bound.log_joint(values) + proposal
        return _choose(-jax.random.exponential(key_accept) <= gain, new, values)


class UnitRefresh(ReprMixin):
    """A Metropolis step on each hidden unit of a layer, one after the other: new weights into it.

    The weights w into a unit become sqrt(1 - s²) w + s v, with v drawn from their Gaussian prior given its
    precisions, so that the prior is kept and the likelihood alone decides. Log s is uniform between the
    logarithms of `smallest` and 1: some proposals are small, some give the unit another function, and no
    size is to be tuned for the temperature of a rung. A unit whose weights out are integrated
    (:func:`~numpyro_bnn.integrate_output`) is accepted together with the best use of it. Costs an energy
    for every unit, and one more.

    :param incoming: site of the kernel whose last axis counts the units.
    :param vectors: sites of one value a unit, such as the bias.
    :param smallest: the least s.
    :raises ValueError: for a `smallest` outside of 0 to 1; when run, for sites whose prior is not Gaussian
        given its precisions.

    Source: S. L. Cotter, G. O. Roberts, A. M. Stuart and D. White, *MCMC methods for functions*,
    Statistical Science 28 (2013), eq. 4.5.
    """

    def __init__(self, incoming: str, vectors: Sequence[str] = (), smallest: float = 0.03) -> None:
        if not 0 < smallest <= 1:
            raise ValueError(
                f"UnitRefresh: smallest must be above 0 and at most 1, got smallest={smallest!r}. At 1 "
                "every proposal is a draw of the prior."
            )
        self.incoming = incoming
        self.vectors = tuple(vectors)
        self.smallest = smallest

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        names = (self.incoming, *self.vectors)
        units = values[self.incoming].shape[-1]
        sites = bound.sites(values)
        priors = {name: _gaussian(name, sites) for name in names}
        key_units, key_scales = jax.random.split(key)
        smallest = jnp.log(self.smallest)
        log_scales = jax.random.uniform(key_scales, (units,), minval=smallest, maxval=0.0)

        def log_prior(own: Values) -> jax.Array:
            logs = (jnp.sum(priors[name].log_prob(own[name])) for name in names)
            return sum(logs, start=jnp.zeros(()))

        def one(unit: jax.Array, state: tuple[Values, jax.Array]) -> tuple[Values, jax.Array]:
            now, before = state
            key_draw, key_accept = jax.random.split(jax.random.fold_in(key_units, unit))
            scale = jnp.exp(log_scales[unit])
            own = {name: now[name] for name in names}
            for name, key_name in zip(names, jax.random.split(key_draw, len(names))):
                distribution, loc = priors[name], priors[name].loc
                drawn = distribution.sample(key_name) - loc
                mixed = loc + jnp.sqrt(1 - scale**2) * (own[name] - loc) + scale * drawn
                own[name] = jnp.where(jnp.arange(units) == unit, mixed, own[name])
            after = bound.log_joint(now | own)
            gain = after - before - log_prior(own) + log_prior({n: now[n] for n in names})
            accepted = -jax.random.exponential(key_accept) <= gain
            return _choose(accepted, now | own, now), jnp.where(accepted, after, before)

        return jax.lax.fori_loop(0, units, one, (dict(values), bound.log_joint(values)))[0]


def _gaussian(name: str, sites: dict[str, Any]) -> dist.Normal:
    """The prior of a site given its precisions, of the shape of the site."""
    distribution = sites[name]["fn"]
    base = unwrapped(distribution)
    if not isinstance(base, dist.Normal):
        raise ValueError(
            f"UnitRefresh: the prior of '{name}' is {type(base).__name__}, and the step keeps Gaussian "
            "ones. Use Normal or hierarchical weights."
        )
    return dist.Normal(prior_part(distribution, "loc"), prior_part(distribution, "scale"))


def _squares(name: str, sites: dict[str, Any], values: Values) -> jax.Array:
    """Squared weights over the squared scales of their prior."""
    distribution = unwrapped(sites[name]["fn"])
    if not isinstance(distribution, (dist.Normal, dist.StudentT, dist.Laplace)):
        raise ValueError(
            f"UnitRescaling: the prior of '{name}' is {type(distribution).__name__}, which has no scale that "
            "this knows. Use Normal, Student t or Laplace weights given their precisions."
        )
    return (values[name] / distribution.scale) ** 2


def _choose(accepted: jax.Array, new: Values, old: Values) -> Values:
    return {name: jnp.where(accepted, new[name], old[name]) for name in old}


class Interleaved(ReprMixin, MCMCKernel):
    """A kernel over a model, and moves after each of its steps.

    :param kernel: HMC, NUTS or a kernel of this package over the model in centred or non-centred
        coordinates, or ``Gibbs`` of them (:func:`numpyro_bnn.neal`).
    :param moves: steps that leave the posterior as it is, in order.
    :raises ValueError: for a kernel at another temperature than 1, or that takes minibatches, with a move
        that needs all rows; when run, for collapsed coordinates, which have no precisions to move.
    """

    def __init__(self, kernel: MCMCKernel, moves: Sequence[Move]) -> None:
        _check_kernel(kernel, moves)
        self.kernel: Any = kernel.as_part() if isinstance(kernel, SGMCMC) else kernel
        self.moves = tuple(moves)

    @property
    def model(self) -> Callable:
        """The model of the inner kernel."""
        return self.kernel.model

    @property
    def _sample_fn(self) -> Any:
        # NumPyro initialises kernels again that have none.
        return getattr(self.kernel, "_sample_fn", None)

    @property
    def sample_field(self) -> str:
        """The state field that holds the position, as the inner kernel names it."""
        return self.kernel.sample_field

    @property
    def default_fields(self) -> tuple[str, ...]:
        """State fields that are collected of each draw: those of the inner kernel."""
        return fields_of(self.kernel)

    @property
    def has_exact_energy(self) -> bool:
        """Whether ``potential_energy`` is exact at the draw, as that of the inner kernel is."""
        return has_exact_energy(self.kernel)

    def get_diagnostics_str(self, state: PyTree) -> str:
        """Text for the progress bar, from the inner kernel."""
        return self.kernel.get_diagnostics_str(state)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """The function that turns a position into values of sites, from the inner kernel."""
        return self.kernel.postprocess_fn(model_args, model_kwargs)

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: PyTree,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> PyTree:
        """The first state of a chain: that of the inner kernel.

        :raises ValueError: for collapsed coordinates, which have no precisions to move.
        """
        state = self.kernel.init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        self._check(Bound(self.model, model_args, model_kwargs), getattr(state, self.sample_field))
        return state

    def _check(self, bound: Bound, z: Values) -> None:
        if isinstance(self.kernel, Gibbs):
            hidden = [name for name in bound.latent if name not in z]
        else:
            seeded = seed(self.model, jax.random.key(0))
            sites = trace(seeded).get_trace(*bound.args, **bound.kwargs)
            sampled = {n: unwrapped(s["fn"]) for n, s in sites.items() if s["type"] == "sample"}
            hidden = [n for n, fn in sampled.items() if isinstance(fn, GammaScaleMixture)]
        if hidden:
            raise ValueError(
                f"Interleaved: moves need weights and precisions, and the kernel has none at {hidden}: it "
                "integrates them out, or sees the model in other coordinates. Build it over "
                '`bnn.parameterize(model, "noncentered")` or "centered", or with `bnn.neal(model)`.'
            )

    def state_for_data(self, state: PyTree, model_args: tuple, model_kwargs: dict | None) -> PyTree:
        """The state with what the inner kernel keeps of the data recomputed; moves keep nothing."""
        return self.kernel.refresh(state, model_args, model_kwargs)

    def sample(self, state: PyTree, model_args: tuple, model_kwargs: dict | None) -> PyTree:
        """One step of the inner kernel, then each move in order."""
        state = self.kernel.sample(state, model_args, model_kwargs)
        key, *keys = jax.random.split(state.rng_key, 1 + len(self.moves))
        bound = Bound(self.model, model_args, model_kwargs)
        values = centered_values(self.kernel, getattr(state, self.sample_field), bound)
        for key_move, move in zip(keys, self.moves):
            values = move(key_move, values, bound)
        return state_at(self.kernel, state._replace(rng_key=key), values, bound)


def _check_kernel(kernel: MCMCKernel, moves: Sequence[Move]) -> None:
    """Refuse other temperatures than 1, and minibatches under a move that needs all rows."""
    parts = [part for part, _ in kernel.blocks] if isinstance(kernel, Gibbs) else [kernel]
    for part in parts:
        refuse_temperature(
            part,
            "Moves keep the posterior, the distribution at temperature 1. Leave the moves out, or sample at "
            "temperature 1.",
        )
        rows = part.gradient.batch_size if isinstance(part, SGMCMC) else None
        for move in moves:
            if rows is not None and getattr(move, "needs_all_rows", False):
                name = type(part).__name__
                raise ValueError(
                    f"Interleaved: {type(move).__name__} draws from the posterior given all rows, and {name} "
                    f"takes minibatches of {rows}. Use a kernel on all rows, such as HMC or {name} without "
                    "`batch_size=` and `gradient=`, or leave the move out."
                )


def centered_values(kernel: MCMCKernel, z: Values, bound: Bound) -> Values:
    """Constrained values of all sites of the model in centred coordinates."""
    if isinstance(kernel, Gibbs):
        return dict(kernel.get_constrain_fn(bound.args, bound.kwargs)(z))
    own = Potential(kernel.model, bound.args, bound.kwargs).constrain(z, deterministic=True)
    return {name: own[name] for name in bound.latent}


def state_at(kernel: MCMCKernel, state: PyTree, values: Values, bound: Bound) -> PyTree:
    """The state of a kernel moved to other values of its sites; energies and gradients are recomputed."""
    args, kwargs = bound.args, bound.kwargs
    if not isinstance(kernel, Gibbs):
        z = own_coordinates(Potential(kernel.model, args, kwargs), values)
        after = kernel.refresh(_at(z, state, kernel), args, kwargs)
        if not isinstance(state, HMCState):
            return after
        # HMC records the total energy of each draw: now that of the new position and the same momentum.
        change = after.potential_energy - state.potential_energy
        return after._replace(energy=state.energy + change)
    states: list[Any] = []
    merged: Values = {}
    for (part, _), own in zip(kernel.blocks, state.block_states):
        z = _native(part, getattr(own, part.sample_field), values, bound)
        others = {name: value for name, value in values.items() if name not in z}
        own = part.refresh(_at(z, own, part), args, with_conditioning(kwargs, others))
        states.append(own)
        merged |= z
    return state._replace(z=merged, block_states=tuple(states))


def _at(z: Values, state: PyTree, kernel: MCMCKernel) -> PyTree:
    """A state with another position and its own momentum."""
    if isinstance(state, SGMCMCState):
        position = flat_like(state.dynamics.position, z)
        return state._replace(dynamics=state.dynamics._replace(position=position))
    return state._replace(**{kernel.sample_field: z})


def _native(kernel: MCMCKernel, z: Values, values: Values, bound: Bound) -> Values:
    """Values of the sites in the form of the kernel's state: constrained for Gibbs, else unconstrained."""
    if isinstance(kernel, (precision_gibbs.PrecisionGibbs, CustomGibbs, DiscreteGibbs)):
        return {name: values[name] for name in z}
    sites = bound.sites(values)
    return {name: biject_to(sites[name]["fn"].support).inv(values[name]) for name in z}
