"""The ladder by itself: swaps, round trips, equal rejection, stepping stones; when there is no verdict."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from ladders import check_evidence, errors_of, hierarchical, hierarchy, hmc, sampler
from scipy import stats
from scipy.signal import lfilter

import numpyro_bnn as bnn
from numpyro_bnn.samplers.tempering import ladder
from numpyro_bnn.samplers.tempering.evidence import doubts, log_evidence_of, tempering_of
from numpyro_bnn.samplers.tempering.rung_kernels import prior_draw
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
    assert all(np.isnan(log_evidence_of(draws[:n], powers)[1]) for n in (1, 39))
    assert log_evidence_of(np.full((40, 4), -np.inf), powers)[0] == -np.inf
    # So have a hundred that stay where they are for ten each.
    stays = -rng.exponential(1 / (1 + powers), size=(200, 10, 4)).repeat(10, axis=1)
    values, errors = np.array([log_evidence_of(each, powers) for each in stays]).T
    assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.2)
    # NumPyro 0.22 gives draws that alternate a negative effective size.
    turns = lfilter([1], [1, 0.95], rng.normal(size=(20, 300, 2)), axis=1)
    assert np.isfinite([log_evidence_of(each, [0.0, 1.0])[1] for each in turns]).all()


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
    assert judged([3.0, 3.1], [5, 5], stats_of([3.2, 3.0], [5, 5])).verdict == "within_tolerance"
    other = judged([3.0, 3.1], [5, 5], stats_of([5.0, 5.1], [5, 5]))
    assert other.verdict == "run_longer"
    draws[1] += 1
    for given, told in (({}, True), (stats_of([3.0, 3.1], [5, 5], 2000), False)):
        report = bnn.diagnostics.diagnose_draws({"w": draws}, draws, sample_stats=given)
        assert report.verdict == "chains_disagree"
        assert ("ParallelTempering" in report.explanation) == told
        assert until._separate_modes(report, {"f": draws}, None) == told
    assert "The log evidence of the two runs runs from 3.00 to 5.10" in other.explanation


CURVATURE, STEPS = 30.0, 6


def gaussian(y=0.0):
    """A standard normal x with the likelihood exp(-c (x - y)²/2): rung b has the precision 1 + b c."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.factor("likelihood", -0.5 * CURVATURE * (x - y) ** 2)


def correlation_of_a_move(precision, step, inverse_mass, rng):
    """That of x² before and after one trajectory, in NumPy: leapfrog of jittered steps, then Metropolis."""
    x = rng.normal(size=400_000) / np.sqrt(precision)
    start = x.copy()
    p = rng.normal(size=x.size) / np.sqrt(inverse_mass)
    h = step * rng.uniform(0.3, 1.2, size=x.size)
    before = precision * x**2 / 2 + inverse_mass * p**2 / 2
    for _ in range(STEPS):
        p = p - h / 2 * precision * x
        x = x + h * inverse_mass * p
        p = p - h / 2 * precision * x
    error = precision * x**2 / 2 + inverse_mass * p**2 / 2 - before
    x = np.where(rng.random(x.size) < np.exp(np.minimum(-error, 0)), x, start)
    return np.corrcoef(start**2, x**2)[0, 1]


def test_correlations_of_moves_are_those_of_a_gaussian():
    """Before a move is after the swaps of the sweep before, and after it is before the swaps."""
    mcmc = sampler(bnn.ParallelTempering(gaussian, hmc(gaussian, STEPS), num_rungs=4))
    mcmc.run(jax.random.key(0))
    found = mcmc.tempering
    assert found.move_correlations.shape == (2, 3)
    tuned, rng = mcmc.last_state.adaptation, np.random.default_rng(0)
    expected = [
        [
            correlation_of_a_move(
                1 + CURVATURE * float(found.likelihood_powers[chain, k + 1]),
                float(tuned.step_size[chain, k]),
                float(tuned.inverse_mass_matrix[chain, k, 0]),
                rng,
            )
            for k in range(3)
        ]
        for chain in range(2)
    ]
    # Over three keys one correlation of 2000 pairs was off by 0.04 (standard deviation); pairs taken on the
    # wrong side of the swaps are off by -0.1 to -0.26.
    off = found.move_correlations - expected
    assert np.abs(off).max() < 0.16
    assert abs(off.mean()) < 4 * 0.04 / np.sqrt(off.size)
    assert "log likelihood before and after a move correlated" in str(found)
    # A run that was stored before they were recorded.
    fields = mcmc.get_extra_fields(group_by_chain=True)
    earlier = tempering_of({k: v for k, v in fields.items() if k != "move_correlations"})
    assert np.isnan(earlier.move_correlations).all()
    assert "correlated" not in str(earlier)
    np.testing.assert_array_equal(earlier.log_evidence, found.log_evidence)


@pytest.mark.parametrize("y", [0.0, 1000.0])
def test_a_run_from_a_given_state_counts_what_it_does_itself(y):
    kernel = bnn.ParallelTempering(gaussian, hmc(gaussian, STEPS), num_rungs=3)
    mcmc = sampler(kernel, num_warmup=50, num_samples=200)
    mcmc.run(jax.random.key(0), 0.0)
    state = mcmc.last_state
    assert (mcmc.tempering.round_trips > 0).all()
    mcmc.post_warmup_state = state
    mcmc.run(jax.random.key(1), y)
    trips = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["round_trips"])
    # It takes two sweeps at least to come from the prior to the posterior and back.
    assert (trips[:, :2] == 0).all()
    assert (mcmc.last_state.move_moments[2] == 200).all()
    # A likelihood a thousand prior standard deviations away lets no state of the prior pass.
    assert (mcmc.tempering.round_trips == 0).all() == (y > 0)
    assert any("made no round trip" in said for said in doubts(mcmc.tempering)) == (y > 0)
    # A state that was given is left as it is.
    assert (state.round_trips > 0).all()


INTEGRATED = bnn.integrate_output(hierarchical)
MOVES = [
    bnn.moves.UnitRefresh("net/Dense_0.kernel", ["net/Dense_0.bias"]),
    bnn.moves.RidgeScaling(),
]
LADDERS = {
    # All weights are integrated out; what is left are two precisions.
    "an integrated layer": lambda: bnn.ParallelTempering(INTEGRATED, hmc(INTEGRATED, 4), 5),
    # New weights and steps along the ridge at the power of each rung.
    "moves on every rung": lambda: bnn.ParallelTempering(
        hierarchical, hmc(hierarchical, 3), 7, moves=MOVES
    ),
}


@pytest.mark.parametrize("name", LADDERS)
def test_ladders_have_the_evidence_and_the_posterior_of_the_model(name):
    data, evidence, mean, slope = hierarchy()
    mcmc = sampler(LADDERS[name]())
    mcmc.run(jax.random.key(2), *data)
    check_evidence(mcmc, evidence)
    draws = mcmc.get_samples(group_by_chain=True)
    assert errors_of(np.log(draws["net/Dense_0.kernel.precision"]), mean) < 4
    assert errors_of(draws["net/Dense_0.kernel"][..., 0, 0], slope) < 4


def network(x, y=None):
    """Precisions of groups and, below them, of units; those of a group govern weights in one array alone."""
    width = bnn.priors.Hierarchical.width
    prior = bnn.priors.ByPath(
        {"*Dense_0.kernel": width(2.0, group=3.0, unit=4.0), "*": bnn.priors.Hierarchical(2.0, 0.5)}
    )
    net = bnn.random_module("net", bnn.MLP([2], 1), prior, x[:1])
    bnn.likelihoods.gaussian(net, y, x=x, noise=0.5)


def test_draws_of_the_first_rung_have_the_distribution_of_the_prior():
    """Precisions that are drawn together are those of the model, and what is below follows them."""
    potential = bnn.potential_of(
        bnn.parameterize(network, "centered"), jnp.ones((3, 2)), jnp.zeros((3, 1))
    )
    keys = jax.random.split(jax.random.key(0), 2000)
    z = jax.jit(jax.vmap(lambda k: potential.constrain(prior_draw(potential, k))))(keys)
    draws = {name: np.asarray(value, np.float64) for name, value in z.items()}
    distributions = {
        "net/Dense_0.kernel.precision": stats.gamma(1.5, scale=1 / 1.5 / 4),
        "net/Dense_1.kernel.precision": stats.gamma(2.0, scale=2.0),
        "net/Dense_1.bias.precision": stats.gamma(2.0, scale=2.0),
    }
    for name, distribution in distributions.items():
        assert stats.kstest(draws[name], distribution.cdf).pvalue > 1e-4, name
    assert np.abs(
        np.corrcoef([draws[name] for name in distributions]) - np.eye(3)
    ).max() < 4 / np.sqrt(2000)
    group, units = draws["net/Dense_0.kernel.precision"], draws["net/Dense_0.kernel.unit_precision"]
    assert stats.kstest(units[:, 0] / group, stats.gamma(2.0, scale=1 / 2.0).cdf).pvalue > 1e-4
    standard = draws["net/Dense_0.kernel"][:, 0, 0] * np.sqrt(units[:, 0])
    assert stats.kstest(standard, stats.norm.cdf).pvalue > 1e-4


def test_after_a_sweep_precisions_have_their_conditional_distribution_on_every_rung():
    """Given the weights τ (rate + w²/2) is a Gamma variate, after a redraw and in a prior draw.

    Neighbours swap by their likelihoods, which say nothing of it; no state has the variate of another."""
    data = hierarchy()[0]
    potential = bnn.potential_of(hierarchical, *data)
    kernel = bnn.ParallelTempering(hierarchical, hmc(hierarchical, 1), num_rungs=3)
    state = jax.jit(lambda key: kernel.init(key, 1, None, data, {}))(jax.random.key(0))

    def variates(key):
        rungs = kernel.sample(state._replace(rng_key=key), data, {}).rungs
        values = jax.vmap(lambda z: potential.constrain(z, deterministic=True))(rungs)
        layer = "net/Dense_0.{}".format
        found = []
        for part in ("kernel", "bias"):
            squares = (values[layer(part)] ** 2).reshape(3, -1).sum(1)
            found.append(values[layer(f"{part}.precision")] * (1.0 + squares / 2))
        return jnp.concatenate(found)

    keys = jax.random.split(jax.random.key(1), 2000)
    found = np.asarray(jax.jit(jax.vmap(variates))(keys), np.float64)
    assert found.shape == (2000, 6)
    # A rate or a shape of twice the size is 20 times as far from the distribution.
    assert stats.kstest(found, stats.gamma(2.5).cdf).pvalue.min() > 1e-4
    assert np.abs(np.corrcoef(np.log(found).T) - np.eye(6)).max() < 4.5 / np.sqrt(2000)


def test_what_a_sweep_compiles_does_not_grow_with_the_number_of_precisions():
    """Calls of the generator and loops of proposals take most of the time where each site has its own."""
    counts = []
    for hidden in ([2], [2, 2]):

        def model(x, y=None, hidden=hidden):
            net = bnn.random_module("net", bnn.MLP(hidden, 1), bnn.priors.Hierarchical(), x[:1])
            noise = bnn.likelihoods.Precision()
            bnn.likelihoods.gaussian(net, y, x=x, noise=noise)

        data = (jnp.ones((3, 2)), jnp.zeros((3, 1)))
        kernel = bnn.ParallelTempering(model, hmc(model, 1), num_rungs=3)
        begin = partial(kernel.init, num_warmup=1, model_args=data, model_kwargs={})
        state = jax.eval_shape(begin, jax.random.key(0))
        program = jax.jit(lambda s: kernel.sample(s, data, {})).lower(state).as_text()  # noqa: B023
        counts.append([program.count(what) for what in ("threefry", "stablehlo.while")])
    assert counts[0] == counts[1]
