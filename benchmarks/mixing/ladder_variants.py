"""Ladders of the study `ladders` that are not in the package.

Each is a :class:`~numpyro_bnn.ParallelTempering` with one thing changed, and leaves the density of every rung
as it is, so that posterior and evidence are the model's: hidden units exchanged between neighbouring rungs,
step sizes chosen where a trajectory begins, starts by sequential Monte Carlo, metrics of low rank
(:mod:`~benchmarks.mixing.ladder_low_rank`); and
:func:`~benchmarks.mixing.ladder_reference.with_reference` another prior of the first rung.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.infer import HMC
from numpyro.infer.hmc_util import euclidean_kinetic_energy, velocity_verlet
from numpyro.util import is_prng_key

import numpyro_bnn as bnn
from benchmarks.mixing.hierarchical_posteriors import CHAINS, Posterior
from benchmarks.mixing.ladder_annealed import annealed, gradients
from benchmarks.mixing.ladder_low_rank import axes_of_a_run, with_axes
from benchmarks.mixing.ladder_reference import (
    Moments,
    ReferenceRedraw,
    log_moments,
    with_reference,
)
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.samplers.tempering.kernel import rung_energies
from numpyro_bnn.samplers.tempering.ladder import TemperingState, begin_round
from numpyro_bnn.samplers.tempering.rung_kernels import Moved, RungKernel


class Variant(bnn.ParallelTempering):
    """A ladder that counts its gradients, and whose subclasses may change its first state."""

    # Gradients of a trajectory of HMC beside those of its steps.
    extra_a_trajectory = 0

    def gradients_a_sweep(self, step_size: np.ndarray) -> float:
        """Gradients of a sweep of one replica; an energy of a move counts as one.

        :param step_size: adapted step sizes, (replica, rung - 1).
        """
        kernel = self._rung_kernel
        if kernel.num_steps is not None:
            return float((int(self.num_rungs) - 1) * (kernel.num_steps + self.extra_a_trajectory))
        rule = kernel.random_length
        assert rule is not None
        assert rule.trajectory_length is not None
        # The mean of what `Metropolis.draw_num_steps` draws, by the midpoints of a uniform number.
        uniform = (np.arange(1000) + 0.5) / 1000
        drawn = np.ceil(uniform * 2 * rule.trajectory_length / step_size[..., None])
        steps = np.clip(drawn, 1, rule.num_steps).mean(-1)
        times = np.asarray(kernel.trajectories_per_sweep(jnp.asarray(step_size)))
        return float((steps * times).sum(-1).mean())

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Values | None = None,
        model_args: tuple = (),
        model_kwargs: dict | None = None,
    ) -> TemperingState:
        """The first state of all rungs of a chain, or of all chains for an array of keys."""
        state = super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        if not is_prng_key(rng_key):
            return state
        return self.begun(Potential(self._model, model_args, model_kwargs), state)

    # Beside `init`, so that programs of sweeps know that they need nothing else of it.
    check_num_warmup = bnn.ParallelTempering.check_num_warmup

    def begun(self, potential: Potential, state: TemperingState) -> TemperingState:
        """The first state of a chain, changed from that of the package."""
        return state


# Sites with the numbers of one hidden unit, and the axis along which each counts units.
Layer = tuple[tuple[str, int], ...]
_EXCHANGES = 8


class ExchangedUnits(Variant):
    """A ladder whose neighbours exchange hidden units after the swaps of a sweep.

    Eight times, for pairs of one parity and of the other in turn, a unit of each state of a pair takes the
    place of one of the other's, by a Metropolis decision of the pair's density.

    Source: F. Liang and W. H. Wong, *Real-parameter evolutionary Monte Carlo*, JASA 96 (2001), the crossover
    of two chains, here with units as what crosses over and neighbours as the parents.

    :param layers: the sites of units, by layer; their priors are alike on all rungs.
    """

    def __init__(self, *given: Any, layers: Sequence[Layer], **options: Any) -> None:
        super().__init__(*given, **options)
        self.layers = tuple(layers)

    def gradients_a_sweep(self, step_size: np.ndarray) -> float:
        """Those of trajectories, an energy a rung for each exchange, and one more a rung."""
        return super().gradients_a_sweep(step_size) + (_EXCHANGES + 1) * int(self.num_rungs)

    def _sweep(self, potential: Potential, state: TemperingState) -> TemperingState:
        state = super()._sweep(potential, state)
        rng_key, key = jax.random.split(state.rng_key)
        powers = state.likelihood_powers
        energies = jax.vmap(partial(energy, potential))(powers, state.rungs)

        def again(i: jax.Array, now: tuple[Values, jax.Array]) -> tuple[Values, jax.Array]:
            key_i, parity = jax.random.fold_in(key, i), (state.i + i) % 2
            return exchanged(potential, self.layers, key_i, powers, parity, *now)

        rungs, energies = lax.fori_loop(0, _EXCHANGES, again, (state.rungs, energies))
        z = jax.tree.map(lambda leaf: leaf[-1], rungs)
        return state._replace(
            rungs=rungs,
            z=z,
            potential_energy=energies[-1].astype(state.potential_energy.dtype),
            rng_key=rng_key,
        )


def energy(potential: Potential, power: jax.Array, z: Values) -> jax.Array:
    """-log p(θ) p(y | θ)^b at unconstrained values, in nats; infinite where it has no value."""
    prior, likelihood = potential.tempered(z)
    found = prior + likelihood(power)
    return jnp.where(jnp.isnan(found), jnp.inf, found)


def exchanged(
    potential: Potential,
    layers: Sequence[Layer],
    key: jax.Array,
    powers: jax.Array,
    parity: jax.Array | int,
    rungs: Values,
    energies: jax.Array,
) -> tuple[Values, jax.Array]:
    """States and energies after each pair of a parity exchanged a hidden unit, or kept its own.

    :param potential: potential energy of the model.
    :param layers: sites of units, by layer.
    :param key: random key.
    :param powers: likelihood powers (rung,).
    :param parity: pairs of rungs k and k + 1 with k of this parity.
    :param rungs: positions: leaves (rung, …).
    :param energies: of the states at the powers of their rungs.
    """
    index = jnp.arange(powers.size)
    partner = index + jnp.where(index % 2 == parity, 1, -1)
    # A rung without a partner exchanges with itself, which changes nothing.
    partner = jnp.where((partner < 0) | (partner >= powers.size), index, partner)
    lower = jnp.minimum(index, partner)
    key_layer, key_unit, key_accept = jax.random.split(key, 3)
    layer = jax.random.randint(key_layer, powers.shape, 0, len(layers))[lower]
    place = jax.random.uniform(key_unit, powers.shape)

    def proposal(
        own: Values, other: Values, layer: jax.Array, place: jax.Array, of_other: jax.Array
    ) -> Values:
        new = dict(own)
        for i, sites in enumerate(layers):
            for name, axis in sites:
                count = own[name].shape[axis]
                to, origin = (jnp.floor(p * count).astype(int) for p in (place, of_other))
                unit = jnp.expand_dims(jnp.take(other[name], origin, axis), axis)
                shape = [count if a == axis % unit.ndim else 1 for a in range(unit.ndim)]
                here = (layer == i) & (jnp.arange(count) == to).reshape(shape)
                new[name] = jnp.where(here, unit, new[name])
        return new

    others = jax.tree.map(lambda leaf: leaf[partner], rungs)
    new = jax.vmap(proposal)(rungs, others, layer, place, place[partner])
    found = jax.vmap(partial(energy, potential))(powers, new)
    gain = energies - found
    # Both states of a pair see the same number, and decide alike.
    accepted = -jax.random.exponential(key_accept, powers.shape)[lower] <= gain + gain[partner]

    def chosen(after: jax.Array, before: jax.Array) -> jax.Array:
        return jnp.where(accepted.reshape(-1, *[1] * (after.ndim - 1)), after, before)

    return jax.tree.map(chosen, new, rungs), chosen(found, energies)


# The largest number of halvings of a step, and the factors that it is jittered between before it is halved.
_HALVINGS = 5
_LOW, _HIGH = 0.8, 1.2
_FIRST_STEP = 0.4
_LARGEST_ERROR = 1000.0


class StepByPosition(RungKernel):
    """HMC whose trajectories choose their step size where they begin.

    The step is ε 2^-j with the smallest j from 0 to 5 for which the energy error of one leapfrog step from
    the start is below a threshold that is drawn for the trajectory, exponential with mean 1. A trajectory
    whose end, with its momentum turned round, would choose another j is rejected: so the way back has the
    same step, and the decision is that of HMC of this step.

    Source: M. Biron-Lattes, N. Surjanovic, S. Syed, T. Campbell and A. Bouchard-Côté, *autoMALA: locally
    adaptive Metropolis-adjusted Langevin algorithm*, AISTATS 2024, with trajectories for its single steps,
    one threshold in place of two, and halvings alone; N. Bou-Rabee, B. Carpenter and M. Marsden, *GIST: Gibbs
    self-tuning for locally adaptive Hamiltonian Monte Carlo* (2024).
    """

    def move(
        self,
        potential_fn: Callable[[jax.Array], jax.Array],
        position: jax.Array,
        key: jax.Array,
        step_size: jax.Array,
        inverse_mass_matrix: jax.Array,
        is_moving: jax.Array | bool = True,
    ) -> Moved:
        """One trajectory, which leaves the density exp(-U) invariant."""
        key_momentum, key_step, key_threshold, key_choice = jax.random.split(key, 4)
        begin, update = velocity_verlet(potential_fn, euclidean_kinetic_energy)
        noise = jax.random.normal(key_momentum, position.shape, position.dtype)
        start = begin(position, noise / jnp.sqrt(inverse_mass_matrix))
        longest = step_size * jax.random.uniform(key_step, minval=_LOW, maxval=_HIGH)
        threshold = jax.random.exponential(key_threshold)

        def total(state: Any) -> jax.Array:
            kinetic = euclidean_kinetic_energy(inverse_mass_matrix, state.r)
            return state.potential_energy + kinetic

        def halvings(state: Any) -> jax.Array:
            def error(step: jax.Array) -> jax.Array:
                return jnp.abs(total(update(step, inverse_mass_matrix, state)) - total(state))

            errors = jax.vmap(error)(longest / 2.0 ** jnp.arange(_HALVINGS + 1))
            small = errors < threshold
            return jnp.where(small.any(), jnp.argmax(small), _HALVINGS)

        chosen = halvings(start)
        step, steps = longest / 2.0**chosen, is_moving * self.steps(step_size)
        end = lax.fori_loop(0, steps, lambda _, s: update(step, inverse_mass_matrix, s), start)
        returns = halvings(end._replace(r=-end.r)) == chosen
        error = total(end) - total(start)
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        accept_prob = returns * jnp.exp(jnp.minimum(-error, 0.0))
        accepted = jax.random.uniform(key_choice) < accept_prob
        z = jnp.where(accepted, end.z, position)
        return Moved(z, accept_prob, error > _LARGEST_ERROR, jnp.asarray(steps, jnp.int32))


class StepsByPosition(Variant):
    """A ladder whose HMC chooses the step size of each trajectory, see :class:`StepByPosition`.

    Warm-up adapts the largest step to the acceptance, rejected returns included, from 0.4.
    """

    # A step of each size at both ends.
    extra_a_trajectory = 2 * (_HALVINGS + 1)

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._rung_kernel = StepByPosition(*self._rung_kernel)

    def begun(self, potential: Potential, state: TemperingState) -> TemperingState:
        """The first state, with larger steps."""
        state = super().begun(potential, state)
        known = state.adaptation
        steps = jnp.full_like(known.step_size, _FIRST_STEP)
        return state._replace(adaptation=begin_round(steps, known.inverse_mass_matrix))


class SMCStarts(Variant):
    """A ladder whose rungs begin at particles, see :mod:`~benchmarks.mixing.ladder_annealed`.

    Starts that are given are not used.
    """

    @property
    def gradients_of_particles(self) -> int:
        """Gradients of a replica before its warm-up; an energy counts as one."""
        return gradients(self._rung_kernel, int(self.num_rungs))

    def begun(self, potential: Potential, state: TemperingState) -> TemperingState:
        """The first state, at particles."""
        state = super().begun(potential, state)
        rng_key, key = jax.random.split(state.rng_key)
        # Particles move by plain HMC also where the rungs choose their step sizes.
        mover = RungKernel(*self._rung_kernel)
        rungs = annealed(potential, mover, key, int(self.num_rungs))
        found = rung_energies(potential, state.likelihood_powers, rungs)
        real = state.potential_energy.dtype
        return state._replace(
            rungs=rungs,
            z=jax.tree.map(lambda leaf: leaf[-1], rungs),
            potential_energy=found.posterior[-1].astype(real),
            log_likelihoods=-found.up,
            rng_key=rng_key,
        )


class Together(ExchangedUnits, StepsByPosition, SMCStarts):
    """Exchanged units, step sizes by position and starts at particles, in one ladder."""


class Made(NamedTuple):
    """A ladder, and the gradients of a replica before its warm-up."""

    kernel: Variant
    gradients_before: int = 0


REFERENCE, EXCHANGED, BY_POSITION, SMC, BY_MAMS, TOGETHER, LOW_RANK = NAMES = (
    "integrated, learned reference",
    "integrated, exchanged units",
    "integrated, step sizes by position",
    "integrated, SMC starts",
    "integrated, MAMS",
    "integrated, together",
    "integrated, metrics of low rank",
)
# Units of a 16-16 network in non-centred coordinates. Weights out of the last layer are integrated out.
LAYERS: tuple[Layer, ...] = (
    (
        ("net/Dense_0.kernel.base", -1),
        ("net/Dense_0.bias.base", -1),
        ("net/Dense_1.kernel.base", -2),
    ),
    (("net/Dense_1.kernel.base", -1), ("net/Dense_1.bias.base", -1)),
)


def made(name: str, given: Posterior, rungs: int, steps: int, warmup: int, begin: Values) -> Made:
    """The ladder of a name, over the model with its output layer integrated out.

    :param name: one of `NAMES`.
    :param given: the model and its data.
    :param rungs: from prior to posterior.
    :param steps: of a trajectory of HMC; the most of one of MAMS.
    :param warmup: sweeps of warm-up; a first run, where there is one, has a quarter of them and a sixth as
        many draws.
    :param begin: its starts.
    """
    model = bnn.integrate_output(given.model)

    def ladder(kind: Callable, model: Callable = model, **options: Any) -> Any:
        hmc = HMC(model, num_steps=steps, trajectory_length=None)
        return kind(model, hmc, num_rungs=rungs, **options)

    if name in (REFERENCE, LOW_RANK):
        sweeps = (warmup // 4, warmup // 6)
        first, before = ladder(Variant), sum(sweeps) * (rungs - 1) * steps
        mcmc = first_run(first, given, *sweeps, begin)
        if name == LOW_RANK:
            kernel = ladder(Variant)
            potential = bnn.potential_of(model, given.split.x, given.split.y)
            axes = axes_of_a_run(mcmc, partial(energy, potential))
            kernel._rung_kernel = with_axes(kernel._rung_kernel, axes)
            # One more at each of the draws of the first run.
            return Made(kernel, before + sweeps[1] * (rungs - 1))
        moments = moments_of_a_run(mcmc, model, given)
        again = [ReferenceRedraw(model, moments)]
        return Made(ladder(Variant, with_reference(model, moments), moves=again), before)
    if name == EXCHANGED:
        return Made(ladder(ExchangedUnits, layers=LAYERS))
    if name == BY_POSITION:
        return Made(ladder(StepsByPosition))
    if name == BY_MAMS:
        return Made(Variant(model, bnn.MAMS(model, max_num_steps=steps), num_rungs=rungs))
    kernel = ladder(SMCStarts) if name == SMC else ladder(Together, layers=LAYERS)
    return Made(kernel, kernel.gradients_of_particles)


def first_run(
    kernel: bnn.ParallelTempering, given: Posterior, warmup: int, draws: int, begin: Values
) -> bnn.MCMC:
    """A short run of all replicas, with the states of all rungs."""
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=CHAINS,
        progress_bar=False,
    )
    fields = ("rungs", "likelihood_powers")
    x, y = given.split.x, given.split.y
    mcmc.run(jax.random.key(2), x, y, init_params=begin, extra_fields=fields)
    return mcmc


def moments_of_a_run(mcmc: bnn.MCMC, model: Callable, given: Posterior) -> Moments:
    """Moments of the logarithms of all precisions over the draws of a run."""
    latent = bnn.potential_of(model, given.split.x, given.split.y).structure.latent
    names = [name for name in latent if name.endswith("precision")]
    return log_moments(mcmc.get_samples(), names)
