"""Cheap exact steps along directions in which networks with hierarchical priors hardly move.

Weights and their precision are tied: the prior is nearly flat along (w, τ) → (s w, τ/s²), and a
gradient sampler creeps along that ridge. Relu units have a direction along which no prediction
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
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import log_density

from numpyro_bnn.chains import fields_of
from numpyro_bnn.gibbs import PrecisionGibbs, centered_model
from numpyro_bnn.inverse_gaussian import sample_log
from numpyro_bnn.levels import Level, levels_of
from numpyro_bnn.observations import unwrapped
from numpyro_bnn.potential import Potential, Values
from numpyro_bnn.redraw import redrawn
from numpyro_bnn.scale_mixture import GammaScaleMixture
from numpyro_bnn.sgmcmc.state import SGMCMCState
from numpyro_bnn.start import own_coordinates
from numpyro_bnn.structure import structure_of


class Bound:
    """A model in centred coordinates with its data, as moves see it.

    :param model: a NumPyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    """

    def __init__(self, model: Callable, args: tuple, kwargs: dict | None) -> None:
        self.model = centered_model(model)
        self.args, self.kwargs = args, kwargs or {}

    def _at(self, values: Values) -> Callable:
        # The key is for what a model draws beside its latent sites, the same at every look.
        return seed(substitute(self.model, data=values), jax.random.key(0))

    def sites(self, values: Values) -> dict[str, Any]:
        """The trace at constrained values."""
        return trace(self._at(values)).get_trace(*self.args, **self.kwargs)

    @property
    def latent(self) -> list[str]:
        """Names of all weights, precisions and whatever else is sampled."""
        return list(structure_of(self.model, self.args, self.kwargs).latent)

    def levels(self, owner: str, values: Values) -> dict[str, Level]:
        """The hierarchical precisions of weights.

        :param owner: the move that asks.
        :raises ValueError: if there are none.
        """
        every = levels_of(self.sites(values))
        levels = {name: level for name, level in every.items() if not level.of_noise}
        if not levels:
            raise ValueError(
                f"{owner}: the model has no hierarchical precision. Give the network the prior "
                "`bnn.priors.Hierarchical(…)`."
            )
        return levels

    def log_joint(self, values: Values) -> jax.Array:
        """log p(θ, y) at constrained values, in nats."""
        return log_density(self._at(values), self.args, self.kwargs, {})[0]


class Move(Protocol):
    """A step that leaves the posterior of a model as it is."""

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        """New constrained values of all latent sites."""


class RidgeScaling:
    """A Metropolis step along (w, τ) → (s w, τ/s²), one for every hierarchical group.

    All weights below a top precision are multiplied by s, and all precisions between divided by
    s², with log s ~ Normal(0, step²). Of n weights and m precisions the Jacobian is s^(n - 2m). Costs an
    energy for every group, and one more.

    :param step: standard deviation of log s; about the posterior spread of log τ^(-1/2).
    :raises ValueError: if `step` is not positive; when run, if the model has no hierarchical
        precision.
    """

    def __init__(self, step: float = 0.3) -> None:
        if not step > 0:
            raise ValueError(f"RidgeScaling: step must be positive, got step={step!r}.")
        self.step = step

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        levels = bound.levels("RidgeScaling", values)
        before = bound.log_joint(values)
        tops = [level for level in levels.values() if level.parent is None]
        for i, top in enumerate(tops):
            weights, precisions = _family(top, levels)
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


def _family(top: Level, levels: dict[str, Level]) -> tuple[list[str], list[str]]:
    """Weights and precisions below and at a top precision."""
    below = [levels[child.site] for child in top.children]
    weights = [name for level in (top, *below) for name in level.members]
    return weights, [level.site for level in (top, *below)]


class PrecisionRedraw:
    """Every precision of weights drawn anew, exactly, given the weights; costs no energy.

    After a kernel in non-centred coordinates, where weights follow their precision, this interweaves the
    two ways to see the model: each takes the steps that the other is bad at. (In centred coordinates it
    is a further Gibbs step.)

    :raises ValueError: when run, if the model has no hierarchical precision.

    Source: Y. Yu and X.-L. Meng, *To center or not to center: that is not the question*, JCGS 20
    (2011).
    """

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        return redrawn(key, bound.levels("PrecisionRedraw", values), values)


class UnitRescaling:
    """Each hidden unit of a layer moved along its orbit: in-weights times s, out-weights over s.

    With relu units (or others with φ(s a) = s φ(a)) no prediction changes, so that the prior decides.
    Where it is Gaussian given its precisions, log p(s²) is that of a generalised inverse Gaussian law
    with shape (n_in - n_out)/2, up Σ τ w_in²/2 and down Σ τ w_out²/2, from which s² is drawn
    exactly, for all units at once. That law is the proposal of a Metropolis step, always accepted
    there; other activations and priors with a scale (Student t) cost acceptance, not exactness. Costs
    two energies.

    :param incoming: site of the kernel whose last axis counts the units.
    :param outgoing: site of the kernel whose first axis but the last counts them.
    :param vectors: sites of one value a unit, such as the bias.
    :raises ValueError: when run, for sites that the model lacks, whose sizes do not agree, or whose
        prior has no scale.
    """

    def __init__(self, incoming: str, outgoing: str, vectors: Sequence[str] = ()) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.vectors = tuple(vectors)

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        entering = (self.incoming, *self.vectors)
        self._check(values)
        sites = bound.sites(values)
        units = values[self.incoming].shape[-1]
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
        # The Jacobian s^count is in the shape of the proposal too, and cancels.
        square = scale**2
        proposal = jnp.sum(up * (square - 1) + down * (1 / square - 1))
        gain = bound.log_joint(new) - bound.log_joint(values) + proposal
        return _choose(-jax.random.exponential(key_accept) <= gain, new, values)

    def _check(self, values: Values) -> None:
        names = (self.incoming, *self.vectors, self.outgoing)
        missing = [name for name in names if name not in values]
        if missing:
            raise ValueError(
                f"UnitRescaling: the model has no latent site {missing}; it has {list(values)}."
            )
        shapes = {name: values[name].shape for name in names}
        units = shapes[self.incoming][-1]
        fits = all(shapes[name] == (units,) for name in self.vectors)
        out = shapes[self.outgoing]
        if not fits or len(out) < 2 or out[-2] != units:
            raise ValueError(
                f"UnitRescaling: the {units} units of '{self.incoming}' are not those of the other "
                f"sites, of shapes {shapes}. Give the bias and the next kernel of the same layer."
            )


def _squares(name: str, sites: dict[str, Any], values: Values) -> jax.Array:
    """Squared weights over the squared scales of their prior."""
    law = unwrapped(sites[name]["fn"])
    if not isinstance(law, (dist.Normal, dist.StudentT, dist.Laplace)):
        raise ValueError(
            f"UnitRescaling: the prior of '{name}' is {type(law).__name__}, which has no scale that "
            "this knows. Use Normal, Student t or Laplace weights given their precisions."
        )
    return (values[name] / law.scale) ** 2


def _choose(accepted: jax.Array, new: Values, old: Values) -> Values:
    return {name: jnp.where(accepted, new[name], old[name]) for name in old}


class Interleaved(MCMCKernel):
    """A kernel over a model, and moves after each of its steps.

    :param kernel: HMC, NUTS or a kernel of this package over the model in centred or non-centred
        coordinates, or ``Gibbs`` of them (:func:`numpyro_bnn.neal`).
    :param moves: steps that leave the posterior as it is, in order.
    :raises TypeError: if `kernel` is no kernel over a model.
    :raises ValueError: when run, for collapsed coordinates, which have no precisions to move.
    """

    def __init__(self, kernel: MCMCKernel, moves: Sequence[Move]) -> None:
        if not isinstance(kernel, MCMCKernel) or getattr(kernel, "model", None) is None:
            raise TypeError(f"Interleaved: expected a kernel over a model, got {kernel!r}.")
        self.kernel = kernel
        self.moves = tuple(moves)
        self._sample_fn: Callable | None = None

    @property
    def model(self) -> Callable:
        return self.kernel.model

    @property
    def sample_field(self) -> str:
        return self.kernel.sample_field

    @property
    def default_fields(self) -> tuple[str, ...]:
        return fields_of(self.kernel)

    def get_diagnostics_str(self, state: Any) -> str:
        return self.kernel.get_diagnostics_str(state)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        return self.kernel.postprocess_fn(model_args, model_kwargs)

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> Any:
        state = self.kernel.init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        self._check(Bound(self.model, model_args, model_kwargs), getattr(state, self.sample_field))
        self._sample_fn = self._sample_one
        return state

    def _check(self, bound: Bound, z: Values) -> None:
        if isinstance(self.kernel, Gibbs):
            hidden = [name for name in bound.latent if name not in z]
        else:
            sites = trace(seed(self.model, jax.random.key(0))).get_trace(
                *bound.args, **bound.kwargs
            )
            laws = {n: unwrapped(s["fn"]) for n, s in sites.items() if s["type"] == "sample"}
            hidden = [n for n, law in laws.items() if isinstance(law, GammaScaleMixture)]
        if hidden:
            raise ValueError(
                f"Interleaved: moves need weights and precisions, and the kernel has none at {hidden}: it "
                "integrates them out, or sees the model in other coordinates. Build it over "
                '`bnn.parameterize(model, "noncentered")` or "centered", or with `bnn.neal(model)`.'
            )

    def sample(self, state: Any, model_args: tuple, model_kwargs: dict | None) -> Any:
        assert self._sample_fn is not None
        return self._sample_fn(state, model_args, model_kwargs)

    def _sample_one(self, state: Any, args: tuple, kwargs: dict | None) -> Any:
        state = self.kernel.sample(state, args, kwargs)
        key, *keys = jax.random.split(state.rng_key, 1 + len(self.moves))
        bound = Bound(self.model, args, kwargs)
        values = centered_values(self.kernel, getattr(state, self.sample_field), bound)
        for key_move, move in zip(keys, self.moves):
            values = move(key_move, values, bound)
        return placed(self.kernel, state._replace(rng_key=key), values, bound)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sample_fn": None}


def centered_values(kernel: MCMCKernel, z: Values, bound: Bound) -> Values:
    """Constrained values of all sites of the model in centred coordinates."""
    if isinstance(kernel, Gibbs):
        return dict(kernel.get_constrain_fn(bound.args, bound.kwargs)(z))
    own = Potential(kernel.model, bound.args, bound.kwargs).constrain(z, deterministic=True)
    return {name: own[name] for name in bound.latent}


def placed(kernel: MCMCKernel, state: Any, values: Values, bound: Bound) -> Any:
    """The state of a kernel at other values of its sites, with what it keeps computed anew."""
    args, kwargs = bound.args, bound.kwargs
    if not isinstance(kernel, Gibbs):
        z = own_coordinates(Potential(kernel.model, args, kwargs), values)
        return kernel.refresh(_at(z, state, kernel), args, kwargs)
    states: list[Any] = []
    merged: Values = {}
    for (part, _), own in zip(kernel.blocks, state.block_states):
        z = _native(part, getattr(own, part.sample_field), values, bound)
        others = {name: value for name, value in values.items() if name not in z}
        own = part.refresh(_at(z, own, part), args, with_conditioning(kwargs, others))
        states.append(own)
        merged |= z
    return state._replace(z=merged, block_states=tuple(states))


def _at(z: Values, state: Any, kernel: MCMCKernel) -> Any:
    """A state at another position; a momentum does not depend on it, and stays."""
    if isinstance(state, SGMCMCState):
        return state._replace(dynamics=state.dynamics._replace(position=z))
    return state._replace(**{kernel.sample_field: z})


def _native(kernel: MCMCKernel, z: Values, values: Values, bound: Bound) -> Values:
    """Values in the form in which a kernel keeps them."""
    if isinstance(kernel, (PrecisionGibbs, CustomGibbs, DiscreteGibbs)):
        return {name: values[name] for name in z}
    sites = bound.sites(values)
    return {name: biject_to(sites[name]["fn"].support).inv(values[name]) for name in z}
