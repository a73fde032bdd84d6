"""The ladder of parallel tempering: powers of the likelihood from 0 to 1, swaps of neighbours, and its state.

Rung k targets p(θ) p(y | θ)^b_k; b_0 = 0 is the prior and the last, b = 1, the posterior. The ladder is best
where every pair of neighbours rejects equally often (Syed, Bouchard-Côté, Deligiannidis and Doucet 2022,
*Non-reversible parallel tempering*, section 5.4); the sum of the rejection rates hardly depends on the ladder
and is the communication barrier Λ, about 2Λ + 1 rungs being the best use of a processor.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer.hmc_util import dual_averaging, welford_covariance

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.potential import Values

# Rungs are spaced and interpolated in b^(1/_ROOT): close to the prior the power that matters may
# be 1e-8, where the prior is wide, and is found within a few rounds only on such a scale.
_ROOT = 8
# A pair that never rejects counts with this rejection rate, so that rungs never coincide.
_LEAST_REJECTION = 0.01


def first_ladder(num_rungs: int) -> jax.Array:
    """Powers of the likelihood to begin with, from prior to posterior."""
    return jnp.linspace(0.0, 1.0, num_rungs) ** _ROOT


def equalized(powers: jax.Array, rejections: jax.Array) -> jax.Array:
    """The ladder on which all pairs would reject equally often."""
    barrier = jnp.cumsum(jnp.maximum(rejections, _LEAST_REJECTION))
    barrier = jnp.concatenate([jnp.zeros(1), barrier])
    wanted = jnp.linspace(0.0, 1.0, powers.size) * barrier[-1]
    spaced = jnp.interp(wanted, barrier, powers ** (1 / _ROOT)) ** _ROOT
    return spaced.at[0].set(0.0).at[-1].set(1.0)


def carried_over(values: jax.Array, powers: jax.Array, new_powers: jax.Array) -> jax.Array:
    """Values (rung, …) on the rungs of one ladder, interpolated for the rungs of another."""
    old, new = powers ** (1 / _ROOT), new_powers ** (1 / _ROOT)
    flat = values.reshape(len(values), -1)
    return jax.vmap(lambda column: jnp.interp(new, old, column), 1, 1)(flat).reshape(values.shape)


def swap_probabilities(powers: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Probability that neighbours change places: min(1, exp((b_{k+1} - b_k) (E_{k+1} - E_k)))."""
    # E_k is the energy of the likelihood of the state on rung k over the powers between the
    # two rungs, in nats; infinite where the likelihood is 0.
    gain = jnp.diff(powers) * (down[1:] - up[:-1])
    # Two states of likelihood 0 are not swapped.
    return jnp.where(jnp.isnan(gain), 0.0, jnp.exp(jnp.minimum(gain, 0.0)))


def swap_order(probabilities: jax.Array, key: jax.Array, sweep: jax.Array) -> jax.Array:
    """The index of the state that each rung has after the swaps; even pairs swap in even sweeps."""
    # A state whose swaps are accepted keeps its direction (Syed et al. 2022).
    pairs = probabilities.size
    proposed = jnp.arange(pairs) % 2 == sweep % 2
    swapped = proposed & (jax.random.uniform(key, (pairs,)) < probabilities)
    up, down = jnp.append(swapped, False), jnp.append(False, swapped)
    return jnp.arange(pairs + 1) + up - down


def round_trips(heading: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The ends that states visited last (0 neither, 1 prior, 2 posterior), and completed round trips."""
    trips = (heading[0] == 2).astype(jnp.int32)
    heading = heading.at[0].set(1)
    return heading.at[-1].set(jnp.where(heading[-1] == 1, 2, heading[-1])), trips


_SHORTEST_ROUND = 8
# Weight of the metric of the last round, in positions of the new one.
_METRIC_WEIGHT = 10

_begin_averaging, _average = dual_averaging()
_begin_moments, _add_moments, _ = welford_covariance(diagonal=True)
_begin_pairs, _add_pair, _ = welford_covariance(diagonal=False)


class RungTuning(NamedTuple):
    """Step sizes and metrics of each rung but the first, and the statistics that tune them."""

    step_size: jax.Array  # Step size in use (rung - 1,)
    averaging: PyTree  # Dual averaging of the log step sizes
    inverse_mass_matrix: jax.Array  # Diagonal metric (rung - 1, parameter)
    moments: PyTree  # Running mean and variance of the positions of this round
    rejections: jax.Array  # Summed rejection probabilities of the pairs of this round (rung - 1,)
    sweeps: jax.Array  # Sweeps in this round


def begin_round(step_size: jax.Array, inverse_mass_matrix: jax.Array) -> RungTuning:
    """The tuning at the start of a round, with empty statistics."""
    rungs, size = inverse_mass_matrix.shape
    return RungTuning(
        step_size=step_size,
        averaging=jax.vmap(_begin_averaging)(jnp.log(step_size)),
        inverse_mass_matrix=inverse_mass_matrix,
        moments=jax.vmap(lambda _: _begin_moments(size))(jnp.arange(rungs)),
        rejections=jnp.zeros(rungs, inverse_mass_matrix.dtype),
        sweeps=jnp.zeros((), jnp.int32),
    )


def after_sweep(
    adaptation: RungTuning,
    target: float,
    last: jax.Array,
    positions: jax.Array,
    accept_probs: jax.Array,
    swap_probs: jax.Array,
) -> RungTuning:
    """The tuning after one more sweep; the last one of warm-up takes the mean of the log step sizes."""
    accept_probs = jnp.where(jnp.isfinite(accept_probs), accept_probs, 0.0)
    averaging = jax.vmap(_average)(target - accept_probs, adaptation.averaging)
    log_step = jnp.where(last, averaging[1], averaging[0])
    return adaptation._replace(
        step_size=jnp.exp(log_step).astype(adaptation.step_size.dtype),
        averaging=averaging,
        moments=jax.vmap(_add_moments)(positions, adaptation.moments),
        rejections=adaptation.rejections + (1 - swap_probs),
        sweeps=adaptation.sweeps + 1,
    )


def next_round(powers: jax.Array, seen: RungTuning) -> tuple[jax.Array, RungTuning]:
    """The ladder of equal rejection, with metrics and step sizes for its rungs."""
    new = equalized(powers, seen.rejections / seen.sweeps).astype(powers.dtype)
    share = seen.sweeps / (seen.sweeps + _METRIC_WEIGHT)
    _, squares, count = seen.moments
    variance = squares / jnp.maximum(count - 1, 1)[:, None]
    metric = share * variance + (1 - share) * seen.inverse_mass_matrix
    metric = jnp.where(jnp.isfinite(metric) & (metric > 0), metric, seen.inverse_mass_matrix)
    # One array for metric and step size, because interpolation is slow to compile.
    columns = jnp.column_stack([metric, seen.averaging[1]])
    columns = carried_over(columns, powers[1:], new[1:])
    metric, log_step = columns[:, :-1], columns[:, -1]
    return new, begin_round(
        jnp.exp(log_step).astype(seen.step_size.dtype),
        metric.astype(seen.inverse_mass_matrix.dtype),
    )


def ends_round(swept: jax.Array, num_warmup: jax.Array) -> jax.Array:
    """Whether ladder and metric are set anew after so many sweeps; each round is twice as long."""
    # The second half of warm-up keeps both and tunes the step sizes: a rung must have visited
    # all its modes for that, since one of them may need much shorter steps than the others.
    ends = jnp.maximum(1, num_warmup // 2) >> jnp.arange(31)
    return jnp.any((ends >= _SHORTEST_ROUND).at[0].set(True) & (swept == ends))


# A state travels only if its likelihood changes on the way. Where its log likelihood after a move is nearly
# that before it, a ladder makes far fewer round trips than 1 / (2 + 2Λ) a sweep (Syed et al. 2022).
def moments_of_moves(rungs: int) -> PyTree:
    """Running means and squares of no pairs of numbers yet, and their count, for so many rungs."""
    return jax.vmap(lambda _: _begin_pairs(2))(jnp.arange(rungs))


def after_moves(moments: PyTree, before: jax.Array, after: jax.Array) -> PyTree:
    """The moments with one more pair for each rung; pairs that are not finite do not count."""

    def add(pair: jax.Array, moments: PyTree) -> PyTree:
        finite = jnp.isfinite(pair).all()
        return jax.tree.map(partial(jnp.where, finite), _add_pair(pair, moments), moments)

    return jax.vmap(add)(jnp.stack([before, after], 1), moments)


def correlation_of_moves(moments: PyTree) -> jax.Array:
    """The correlation of the numbers of a pair (rung - 1,); NaN where one of them is constant."""
    _, squares, _ = moments
    return squares[:, 0, 1] / jnp.sqrt(squares[:, 0, 0] * squares[:, 1, 1])


class TemperingState(NamedTuple):
    """State of one replica of the ladder."""

    i: jax.Array  # Sweeps so far, warm-up included
    num_warmup: jax.Array  # Sweeps that are warm-up
    z: Values  # Position on the posterior's rung, unconstrained, by site
    potential_energy: jax.Array  # U there, in nats
    # Mean acceptance probability, whether any trajectory diverged, and gradients, of the last sweep on
    # that rung
    accept_prob: jax.Array
    diverging: jax.Array
    num_steps: jax.Array
    rungs: Values  # Positions on all rungs, the prior's first: leaves (rung, …)
    # Log p(y | θ) on each rung before the last swaps (rung,); with integrated weights its mean over
    # them, between the power of the rung and of the next
    log_likelihoods: jax.Array
    likelihood_powers: jax.Array  # Power of the likelihood on each rung, 0 to 1 (rung,)
    swap_probs: jax.Array  # Acceptance probability of each pair's swap (rung - 1,)
    # Round trips from the prior to the posterior and back, since warm-up or since the run began
    round_trips: jax.Array
    # Correlation of the log likelihood before and after a move, since then, of each rung but the first
    # (rung - 1,)
    move_correlations: jax.Array
    move_moments: PyTree  # The running moments that it is computed from
    # Which end of the ladder the state on each rung visited last, see `round_trips`
    heading: jax.Array
    adaptation: RungTuning  # Step sizes and metrics, with the statistics that tune them
    rng_key: jax.Array  # For the next sweep

    def without_counts(self) -> "TemperingState":
        """The state at the start of another run, to which round trips and moves so far do not belong."""
        return self._replace(
            num_warmup=jnp.minimum(self.num_warmup, self.i),
            round_trips=jnp.zeros_like(self.round_trips),
            move_correlations=jnp.full_like(self.move_correlations, jnp.nan),
            move_moments=jax.tree.map(jnp.zeros_like, self.move_moments),
            heading=jnp.zeros_like(self.heading),
        )
