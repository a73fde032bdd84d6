"""The ladder by itself: swaps, round trips, equal rejection, stepping stones; when there is no verdict."""

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_bnn as bnn
from numpyro_bnn.samplers.tempering import ladder
from numpyro_bnn.samplers.tempering.evidence import log_evidence_of
from numpyro_bnn.workflow import until


def test_swaps_leave_the_product_of_all_rungs_as_it_is():
    """Densities of both orders give the acceptance; a state without likelihood stays up."""
    powers, log_likelihoods = jnp.array([0.0, 0.25, 1.0]), jnp.array([-3.0, -5.0, -1.0])
    before = np.exp(powers[1:] * log_likelihoods[1:] + powers[:-1] * log_likelihoods[:-1])
    after = np.exp(powers[:-1] * log_likelihoods[1:] + powers[1:] * log_likelihoods[:-1])
    swapped = jax.jit(
        lambda powers, energies: ladder.swap_probabilities(powers, energies, energies)
    )
    probs = swapped(powers, -log_likelihoods)
    np.testing.assert_allclose(probs, np.minimum(1, after / before), rtol=1e-5)
    inf = jnp.inf
    np.testing.assert_array_equal(swapped(powers, jnp.array([inf, 1.0, 1.0]))[0], 0)
    np.testing.assert_array_equal(swapped(powers, jnp.array([1.0, inf, 1.0])), [1, 0])
    np.testing.assert_array_equal(swapped(powers, jnp.array([inf, inf, 1.0]))[0], 0)
    key, always, order = jax.random.key(0), jnp.ones(4), jax.jit(ladder.swap_order)
    np.testing.assert_array_equal(order(always, key, 0), [1, 0, 3, 2, 4])
    np.testing.assert_array_equal(order(always, key, 1), [0, 2, 1, 4, 3])
    np.testing.assert_array_equal(order(0 * always, key, 1), range(5))


def test_swaps_of_states_whose_likelihood_is_no_power():
    """Densities f_k(θ) that are any function of the power: the acceptance is that of both orders."""
    rng = np.random.default_rng(0)
    powers, energies = np.array([0.0, 0.2, 1.0]), rng.normal(size=(3, 3))  # (state, rung)

    def rise(k, low, high):
        return (energies[k, high] - energies[k, low]) / (powers[high] - powers[low])

    up, down = [rise(0, 0, 1), rise(1, 1, 2), np.nan], [np.nan, rise(1, 0, 1), rise(2, 1, 2)]
    probs = jax.jit(ladder.swap_probabilities)(powers, jnp.array(up), jnp.array(down))
    for k in (0, 1):
        own, swapped = (
            energies[k, k] + energies[k + 1, k + 1],
            energies[k, k + 1] + energies[k + 1, k],
        )
        np.testing.assert_allclose(probs[k], min(1, np.exp(own - swapped)), rtol=1e-5)


def test_running_moments_of_moves_are_those_of_all_pairs():
    """Pairs that are not finite do not count, in any place; large means cancel."""
    rng = np.random.default_rng(0)
    before = 1000 + rng.normal(size=(60, 3))
    after = 0.8 * before + rng.normal(size=(60, 3))
    before[5, 0], after[0, 1], after[7:, 2] = -np.inf, np.nan, np.inf

    def add(moments, pair):
        return ladder.after_moves(moments, *pair), None

    pairs = (jnp.array(before), jnp.array(after))
    moments, _ = jax.jit(lambda p: jax.lax.scan(add, ladder.moments_of_moves(3), p))(pairs)
    means, _, count = moments
    correlations = ladder.correlation_of_moves(moments)
    fine = np.isfinite(before) & np.isfinite(after)
    assert count.tolist() == fine.sum(0).tolist() == [59, 59, 7]
    for k in range(3):
        kept = before[fine[:, k], k], after[fine[:, k], k]
        np.testing.assert_allclose(correlations[k], np.corrcoef(*kept)[0, 1], atol=1e-3)
        np.testing.assert_allclose(means[k, 1], kept[1].mean(), rtol=1e-5)
    assert np.isnan(ladder.correlation_of_moves(ladder.moments_of_moves(1))).all()


def test_a_round_trip_is_to_the_posterior_and_back():
    # Where one state is, sweep by sweep, on three rungs; the others have been nowhere.
    heading, trips, round_trips = jnp.zeros(3, jnp.int32), [], jax.jit(ladder.round_trips)
    for before, now in zip([1, 2, 1, 0, 1, 0, 1, 2, 1], [2, 1, 0, 1, 0, 1, 2, 1, 0]):
        moved = np.where(np.arange(3) == now, heading[before], 0)
        heading, done = round_trips(moved)
        trips.append(int(done))
    assert trips == [0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_the_ladder_goes_to_equal_rejection():
    """Rejections that grow as the square root of the power: the barrier is shared out evenly."""
    powers = ladder.first_ladder(9)
    step = jax.jit(lambda powers: ladder.equalized(powers, jnp.diff(jnp.sqrt(powers))))
    for _ in range(8):
        powers = step(powers)
    np.testing.assert_allclose(jnp.diff(jnp.sqrt(powers)), 1 / 8, atol=0.01)
    assert powers[0] == 0
    assert powers[-1] == 1
    values = jnp.arange(27.0).reshape(9, 3)
    np.testing.assert_allclose(ladder.carried_over(values, powers, powers), values, rtol=1e-5)


def test_stepping_stones_of_a_power_that_is_known():
    """log p(y | θ) = -E with E exponential: E_b[exp(-dE)] = (1 + b) / (1 + b + d)."""
    rng = np.random.default_rng(0)
    powers = np.array([0.0, 0.1, 0.4, 1.0])
    draws = -rng.exponential(1 / (1 + powers), size=(4000, 4))
    value, error = log_evidence_of(draws, powers)
    assert abs(value - np.log(1 / 2)) < 4 * error < 0.1
    # Independent draws have a known error.
    d = np.diff(powers)
    m, s = (1 + powers[:-1]) / (1 + powers[1:]), (1 + powers[:-1]) / (1 + powers[1:] + d)
    exact = np.sqrt(((s - m**2) / m**2).sum() / 4000)
    assert 0.5 < error / exact < 1.6
    assert np.isnan(log_evidence_of(draws[:39], powers)[1])
    assert log_evidence_of(np.full((40, 4), -np.inf), powers)[0] == -np.inf


def stats_of(evidence, trips, draws=200, seed=0):
    """Records of replicas with these log evidences: two rungs, likelihoods that hardly vary."""
    rng = np.random.default_rng(seed)
    chains = len(evidence)
    log_likelihoods = np.asarray(evidence)[:, None, None] + 0.01 * rng.normal(
        size=(chains, draws, 2)
    )
    return {
        "log_likelihoods": log_likelihoods,
        "likelihood_powers": np.broadcast_to([0.0, 1.0], (chains, draws, 2)),
        "swap_probs": np.full((chains, draws, 1), 0.6),
        "round_trips": np.broadcast_to(np.asarray(trips)[:, None], (chains, draws)),
    }


def test_no_verdict_without_round_trips_or_where_evidence_parts():
    draws = np.random.default_rng(0).normal(size=(2, 2000, 3))

    def judged(evidence, trips, second=None):
        stats = stats_of(evidence, trips, 2000)
        other = None if second is None else {"predictions": draws, "sample_stats": second}
        return bnn.diagnostics.diagnose_draws({"w": draws}, draws, sample_stats=stats, second=other)

    fine = judged([3.0, 3.9], [4, 7])
    assert fine.verdict == "within_tolerance"
    assert "log evidence 3.45 ± 0.00 · 11 round trips · barrier 0.4" in fine.details()
    idle = judged([3.0, 3.0], [4, 0])
    assert idle.verdict == "run_longer"
    # How many draws mend it nobody knows.
    assert np.isnan(idle.needed)
    assert idle.needed_by == "round trips and evidence of the ladder"
    assert idle.sentences[0].startswith("Chain 1 made no round trip")
    assert judged([3.0, 3.0], [0, 0]).sentences[0].startswith("2 chains made no")
    parted = judged([3.0, 4.2], [5, 5])
    assert parted.verdict == "run_longer"
    assert "The log evidence of its replicas runs from 3.00 to 4.20" in str(parted.explanation)
    agreeing = judged([3.0, 3.1], [5, 5], stats_of([3.2, 3.0], [5, 5]))
    assert agreeing.verdict == "within_tolerance"
    other = judged([3.0, 3.1], [5, 5], stats_of([5.0, 5.1], [5, 5]))
    assert other.verdict == "run_longer"
    draws[1] += 1
    for stats, told in (({}, True), (stats_of([3.0, 3.1], [5, 5], 2000), False)):
        report = bnn.diagnostics.diagnose_draws({"w": draws}, draws, sample_stats=stats)
        assert report.verdict == "chains_disagree"
        assert ("ParallelTempering" in report.explanation) == told
        assert until._separate_modes(report, {"f": draws}, None) == told
    assert "The log evidence of the two runs runs from 3.00 to 5.10" in other.explanation
