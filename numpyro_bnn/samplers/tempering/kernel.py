"""Parallel tempering: a sampler that crosses between modes, and estimates the evidence.

A ladder of copies of the chain goes from the prior to the posterior by the power of the likelihood.
On the first rung every sweep draws from the prior afresh; all others move by HMC, NUTS or MAMS;
then neighbours swap states (:mod:`~numpyro_bnn.samplers.tempering.ladder`). A state that reaches the
posterior from the prior is independent of the mode of earlier states: so modes are visited in proportion to
their masses. All rungs move in one ``jax.vmap``; the chains of ``MCMC`` are independent replicas of the whole
ladder.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike
from numpyro.infer import HMC
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from numpyro_bnn._checks import check_whole
from numpyro_bnn._text import ReprMixin
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.potential import Potential, Values, constrained_by_support
from numpyro_bnn.potential.starts import centered, own_coordinates
from numpyro_bnn.samplers.gibbs.moves import Bound, Move
from numpyro_bnn.samplers.gibbs.precision_gibbs import concentrations, redrawn_on_rung
from numpyro_bnn.samplers.tempering import ladder, rung_kernels
from numpyro_bnn.samplers.tempering.evidence import FIELDS, Tempering, tempering_of
from numpyro_bnn.samplers.tempering.ladder import RungTuning, TemperingState

# The pilot run: sweeps and rungs; rungs are doubled while pairs reject too often to estimate the barrier.
_PILOT_SWEEPS = 200
_PILOT_RUNGS = 8
_MOST_PILOT_RUNGS = 128
_TOO_COARSE = 0.65
_FEWEST_RUNGS = 3
_FIRST_STEP = 0.1


class ParallelTempering(ReprMixin, MCMCKernel):
    r"""Non-reversible parallel tempering from the prior to the posterior.

    Rung k targets p(θ) p(y | θ)^b_k, 0 = b_0 < … < b_K = 1. What is tempered is every observed site
    and factor; priors never are. A sweep draws the first rung from the prior, moves every other rung
    by trajectories, draws hierarchical precisions anew given the weights, and swaps neighbours, even
    and odd pairs in turn (Syed et al. 2022, *JRSS B* 84(2)). Warm-up adapts the ladder to equal
    rejection, and a step size and a diagonal metric for every rung; all are frozen after it. The log
    evidence log p(y) comes from stepping stones (Xie et al. 2011): ``mcmc.log_evidence``,
    ``mcmc.log_evidence_error``, and further statistics of the ladder in ``mcmc.tempering``. It is that of all
    given values, including sites that ``handlers.condition`` holds.

    For posteriors of several modes, and to compare models by their evidence. A sweep costs rungs ×
    steps gradients: where NUTS mixes, it is cheaper. Trajectories must be long enough for the cold
    rungs to forget, and warm-up for them to see all modes. Rungs differ in their step sizes (by a factor
    of 500 on Neal's rdata): of a trajectory whose length is given, each takes the steps that it needs for
    it, at most 512, and rungs that need few move up to eight times a sweep. Non-centred hierarchical
    priors (the default) make the rungs near the prior easy. A run without round trips, or whose replicas
    differ in log evidence, gets no verdict from ``diagnose``; no run is proved right by them, so compare
    with one in other coordinates or with another kernel: ``diagnose(run, x, second=other)``.

    A model whose output layer is integrated out (:func:`~numpyro_bnn.integrate_output`) keeps the path of
    the model as it was written: rung k targets p(θ) ∫ p(w) p(y | w, θ)^b_k dw, w the output weights. So
    its log evidence is that of the plain ladder, its barrier no higher once both mix. Noise of Student's t
    is tempered given its case precisions, which is another path with the same ends.

    States travel only where moves change their likelihood: ``mcmc.tempering.move_correlations`` has, by
    rung, the correlation of the log likelihood before and after the moves of a sweep. Where it is near 1 the
    rung is a bottleneck, and longer trajectories or `moves` help more than further rungs.

    :param model: a NumPyro model whose latent sites all have proper priors.
    :param kernel: how a rung moves: ``HMC`` (trajectories of length 1 in units of the adapted metric,
        steps of jittered size), ``NUTS`` (trees of depth 7) or ``MAMS`` (momenta of constant size,
        trajectories of random length, π/2 on average, at most 1024 steps), or one of them over the
        same model, whose `num_steps`, `trajectory_length`, `max_num_steps`, `max_tree_depth` and
        `target_accept_prob` are taken. Where trajectories differ in steps, rungs take turns on a CPU;
        elsewhere all wait for the longest.
    :param num_rungs: rungs from prior to posterior, both included; ``"auto"``: twice the
        communication barrier and one, from a pilot run that :class:`~numpyro_bnn.MCMC` makes
        before its chains begin (200 sweeps, more than once where the barrier is high).
    :param moves: of :mod:`numpyro_bnn.moves`, made on every rung but the first after its trajectories, in
        order, at the power of the rung.
    :raises TypeError: for another kind of kernel.
    :raises ValueError: for a number of rungs below 2, or a kernel over another model; when run, for
        priors that cannot be drawn from, naming the sites.

    >>> import numpyro_bnn as bnn
    >>> kernel = bnn.ParallelTempering(model)                               # doctest: +SKIP
    >>> mcmc = bnn.MCMC(kernel, num_warmup=1000, num_samples=1000, num_chains=4)  # doctest: +SKIP
    >>> mcmc.run(jax.random.key(0), x, y)                                   # doctest: +SKIP
    >>> mcmc.log_evidence                                                   # doctest: +SKIP
    array([42.31, 42.54, 42.2 , 42.47])
    """

    sample_field = "z"
    # A model that subsamples would use one fixed minibatch for the whole run, see run/kernel_protocol.py.
    looks_at_all_rows = True
    # NumPyro initialises kernels without this attribute again on every run.
    _sample_fn = True

    def __init__(
        self,
        model: Callable,
        kernel: Any = HMC,
        num_rungs: int | str = "auto",
        moves: Sequence[Move] = (),
    ) -> None:
        if num_rungs != "auto":
            label = "num_rungs ('auto' or a number)"
            num_rungs = check_whole("ParallelTempering", label, num_rungs, 2)
        self._model = model
        self.moves = tuple(moves)
        self.kernel = kernel
        self.num_rungs = num_rungs
        self._rung_kernel = rung_kernels.RungKernel.of(kernel, model)

    @property
    def model(self) -> Callable:
        """The model that is tempered."""
        return self._model

    @property
    def default_fields(self) -> tuple[str, ...]:
        """State fields that are collected of each draw."""
        fields = ("z", "potential_energy", "accept_prob", "diverging", "num_steps")
        return (*fields, *FIELDS, "move_correlations")

    def get_diagnostics_str(self, state: TemperingState) -> str:
        """Rungs, round trips and acceptance in words, for the progress bar."""
        barrier = float(jnp.sum(1 - state.swap_probs))
        return (
            f"{state.likelihood_powers.size} rungs, {int(state.round_trips)} round trips, last sweep's "
            f"barrier {barrier:.1f}, acc. prob={float(state.accept_prob):.2f}"
        )

    def with_pilot(
        self, key: jax.Array, args: tuple, kwargs: dict[str, object]
    ) -> "ParallelTempering":
        """This kernel with a number of rungs, from a pilot run where it is ``"auto"``."""
        if self.num_rungs != "auto":
            return self
        arguments = Arguments.split(args, kwargs)
        rungs = _PILOT_RUNGS
        while True:
            rejections = _pilot(self._with(rungs), key, arguments)
            if rejections.mean() < _TOO_COARSE or rungs >= _MOST_PILOT_RUNGS:
                return self._with(max(_FEWEST_RUNGS, round(2 * float(rejections.sum())) + 1))
            rungs *= 2

    def evidence_of(self, fields: Mapping[str, ArrayLike]) -> Tempering | None:
        """Ladder and log evidence of what a run recorded, arrays (chain, draw, …); None without draws."""
        return tempering_of(fields)

    def _with(self, num_rungs: int) -> "ParallelTempering":
        kernel = copy.copy(self)
        kernel.num_rungs = num_rungs
        return kernel

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int | jax.Array,
        init_params: Values | None = None,
        model_args: tuple = (),
        model_kwargs: dict | None = None,
    ) -> TemperingState:
        """The first state of all rungs of a chain, or of all chains for an array of keys."""
        if not is_prng_key(rng_key):
            init = partial(self.init, model_args=model_args, model_kwargs=model_kwargs)
            return jax.vmap(lambda key, z: init(key, num_warmup, z))(rng_key, init_params)
        if not isinstance(num_warmup, jax.core.Tracer):
            self.check_num_warmup(int(num_warmup))
        if self.num_rungs == "auto":
            raise ValueError(
                "ParallelTempering: num_rungs='auto' needs a pilot run, which only numpyro_bnn.MCMC "
                "makes, outside of JAX transformations. Give a number of rungs."
            )
        potential = Potential(self._model, model_args, model_kwargs)
        rung_kernels.refuse_improper(potential)
        num_rungs = int(self.num_rungs)
        key_start, rng_key = jax.random.split(rng_key)
        if init_params is None:
            rungs = rung_kernels.best_draws(potential, key_start, num_rungs)
        else:
            real = jnp.result_type(float)
            rungs = {
                name: jnp.broadcast_to(jnp.asarray(value, real), (num_rungs, *jnp.shape(value)))
                for name, value in init_params.items()
            }
        powers = ladder.first_ladder(num_rungs)
        found = rung_energies(potential, powers, rungs)
        z = jax.tree.map(lambda leaf: leaf[-1], rungs)
        real = found.posterior.dtype
        pairs, size = num_rungs - 1, ravel_pytree(z)[0].size
        step_size = jnp.full(pairs, _FIRST_STEP, real)
        return TemperingState(
            i=jnp.zeros((), jnp.int32),
            num_warmup=jnp.asarray(num_warmup, jnp.int32),
            z=z,
            potential_energy=found.posterior[-1],
            accept_prob=jnp.zeros((), real),
            diverging=jnp.zeros((), bool),
            num_steps=jnp.zeros((), jnp.int32),
            rungs=rungs,
            log_likelihoods=-found.up,
            likelihood_powers=powers.astype(real),
            swap_probs=jnp.zeros(pairs, real),
            round_trips=jnp.zeros((), jnp.int32),
            move_correlations=jnp.full(pairs, jnp.nan, real),
            move_moments=ladder.moments_of_moves(pairs),
            heading=jnp.zeros(num_rungs, jnp.int32),
            adaptation=ladder.begin_round(step_size, jnp.ones((pairs, size), real)),
            rng_key=rng_key,
        )

    def check_num_warmup(self, num_warmup: int) -> None:
        """Refuse a run without warm-up."""
        if num_warmup < 1:
            raise ValueError(
                "ParallelTempering: ladder, step sizes and metrics are found in warm-up, but "
                f"num_warmup={num_warmup}. Give it some hundred sweeps."
            )

    def sample(
        self, state: TemperingState, model_args: tuple, model_kwargs: dict | None
    ) -> TemperingState:
        """One sweep: a prior draw, trajectories on every other rung, and swaps."""
        if state.i.ndim:
            return jax.vmap(lambda s: self.sample(s, model_args, model_kwargs))(state)
        potential = Potential(self._model, model_args, model_kwargs)
        keys = jax.random.split(state.rng_key, 6)
        rng_key, key_prior, key_trajectories, *key_moves, key_swaps = keys
        powers, tuning = state.likelihood_powers, state.adaptation
        unravel = ravel_pytree(state.z)[1]
        flat = jax.vmap(lambda z: ravel_pytree(z)[0])(state.rungs)

        def tempered(power: jax.Array, position: jax.Array) -> jax.Array:
            prior, likelihood = potential.tempered(unravel(position))
            return prior + likelihood(power)

        keys = jax.random.split(key_trajectories, powers.size - 1)
        moved = self._rung_kernel.move_all(
            lambda power: partial(tempered, power),
            powers[1:],
            rung_kernels.Rung(flat[1:], keys, tuning.step_size, tuning.inverse_mass_matrix),
        )
        positions = jax.vmap(unravel)(moved.position)
        structure = centered(potential.model, potential.args, potential.kwargs).structure
        known = concentrations(structure.levels, structure.shapes)
        key_noise, key_prior = jax.random.split(key_prior)
        # Gamma variates of the prior draw and of all redraws in one call.
        more = np.tile(known, (powers.size - 1, 1))
        noise, gammas = rung_kernels.prior_noise(potential.structure, key_noise, more=more)
        if structure.levels:
            redraw = partial(redrawn_on_rung, potential, structure)
            keys = jax.random.split(key_moves[0], powers.size - 1)
            redrawn = jax.vmap(redraw)(keys, positions, gammas)
            positions = jax.vmap(rung_kernels.finite_or_before)(redrawn, positions)
        if self.moves:
            keys = jax.random.split(key_moves[1], powers.size - 1)
            by_moves = partial(moved_by, potential, self.moves)
            positions = jax.vmap(by_moves)(keys, powers[1:], positions)
        before = jax.tree.map(lambda leaf: leaf[0], state.rungs)
        drawn = rung_kernels.prior_draw(potential, key_prior, noise)
        first = rung_kernels.finite_or_before(drawn, before)
        rungs = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, positions)
        # Both in one call, so that the energies are compiled once.
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), state.rungs, rungs)
        energies = jax.vmap(partial(rung_energies, potential, powers))(both)
        before, found = (jax.tree.map(itemgetter(i), energies) for i in (0, 1))
        swap_probs = ladder.swap_probabilities(powers, found.up, found.down)
        order = ladder.swap_order(swap_probs, key_swaps, state.i)
        # Round trips that began in warm-up do not count: they were on another ladder.
        heading = jnp.where(state.i == state.num_warmup, 0, state.heading)
        heading, trips = ladder.round_trips(heading[order])
        rungs = jax.tree.map(lambda leaf: leaf[order], rungs)
        warming = state.i < state.num_warmup
        moments = ladder.after_moves(state.move_moments, before.up[1:], found.up[1:])
        moments = jax.tree.map(partial(jnp.where, warming), state.move_moments, moments)
        seen = moved.position, moved.accept_prob, swap_probs
        powers, adaptation = self._adapted(warming, state, *seen)
        return state._replace(
            i=state.i + 1,
            z=jax.tree.map(lambda leaf: leaf[-1], rungs),
            potential_energy=found.posterior[order[-1]],
            accept_prob=moved.accept_prob[-1],
            diverging=moved.diverging[-1],
            num_steps=moved.num_steps[-1].astype(jnp.int32),
            rungs=rungs,
            log_likelihoods=-found.up,
            swap_probs=swap_probs,
            round_trips=state.round_trips + jnp.where(warming, 0, trips),
            move_correlations=ladder.correlation_of_moves(moments).astype(powers.dtype),
            move_moments=moments,
            heading=heading,
            likelihood_powers=powers,
            adaptation=adaptation,
            rng_key=rng_key,
        )

    def state_for_data(
        self, state: TemperingState, model_args: tuple, model_kwargs: dict | None
    ) -> TemperingState:
        """The state as it is: every sweep computes all energies again."""
        return state

    def _adapted(
        self, warming: jax.Array, state: TemperingState, *seen: jax.Array
    ) -> tuple[jax.Array, RungTuning]:
        """Ladder and tuning after a sweep; unchanged once warm-up is over."""
        swept = state.i + 1

        def same(*unchanged: Any) -> tuple:
            return unchanged

        def learn(powers: jax.Array, adaptation: RungTuning) -> tuple[jax.Array, RungTuning]:
            target, last = self._rung_kernel.target_accept_prob, swept == state.num_warmup
            adaptation = ladder.after_sweep(adaptation, target, last, *seen)
            over = ladder.ends_round(swept, state.num_warmup)
            return lax.cond(over, ladder.next_round, same, powers, adaptation)

        return lax.cond(warming, learn, same, state.likelihood_powers, state.adaptation)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """The function that turns a position into values of all sites."""
        potential = Potential(self._model, model_args, model_kwargs)
        return partial(potential.constrain, deterministic=True)

    def get_constrain_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Constrained values of the latent sites, from their supports alone."""
        return constrained_by_support(self._model, model_args, model_kwargs)


def _pilot(kernel: ParallelTempering, key: jax.Array, arguments: Arguments) -> jax.Array:
    """Mean rejection probability of each pair of rungs, at the end of a short warm-up."""

    def sweeps(key: jax.Array, arrays: list[Any]) -> RungTuning:
        args, kwargs = Arguments.join(arrays, arguments.static)
        state = kernel.init(key, _PILOT_SWEEPS, None, args, kwargs)

        def sweep(_: int, state: TemperingState) -> TemperingState:
            return kernel.sample(state, args, kwargs)

        return lax.fori_loop(0, _PILOT_SWEEPS, sweep, state).adaptation

    seen = Program(sweeps)(key, arguments.arrays)
    return seen.rejections / seen.sweeps


def moved_by(
    potential: Potential, moves: Sequence[Move], key: jax.Array, power: jax.Array, z: Values
) -> Values:
    """Unconstrained values after all moves in order."""
    # Each move leaves p(θ) p(y | θ)^b invariant, where its `bound` has the power b.
    bound = Bound(potential.model, potential.args, potential.kwargs, power)
    values = potential.constrain(z, deterministic=True)
    values = {name: values[name] for name in bound.latent}
    for key_move, move in zip(jax.random.split(key, len(moves)), moves):
        values = move(key_move, values, bound)
    return rung_kernels.finite_or_before(own_coordinates(potential, values), z)


class RungEnergies(NamedTuple):
    """Energies of the state of each rung, in nats, (rung,)."""

    # `up` and `down` are -log p(y | θ), for integrated weights see `TemperedLikelihood.between`.

    posterior: jax.Array  # U on the posterior's rung
    # The energy of the likelihood between a rung and the next; of the last rung, as `down`.
    up: jax.Array
    down: jax.Array  # That between the rung before and a rung; of the first rung, as `up`


def rung_energies(potential: Potential, powers: jax.Array, rungs: Values) -> RungEnergies:
    """Energies of the states of a ladder; a likelihood without a value is 0."""
    below = jnp.concatenate([powers[:1], powers[:-1]])
    above = jnp.concatenate([powers[1:], powers[-1:]])
    # Of the last rung the pair below it counts twice, and of the first the pair above.
    lows = jnp.stack([powers.at[-1].set(below[-1]), below], 1)
    highs = jnp.stack([above, powers.at[0].set(above[0])], 1)

    def of_state(z: Values, lows: jax.Array, highs: jax.Array) -> RungEnergies:
        prior, likelihood = potential.tempered(z)
        up, down = likelihood.between(lows, highs)
        return RungEnergies(prior + likelihood(1.0), up, down)

    found = jax.vmap(of_state)(rungs, lows, highs)
    return RungEnergies(*(jnp.where(jnp.isnan(energy), jnp.inf, energy) for energy in found))
