"""What makes states travel along a ladder: moves that change the likelihood, told by rung."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from ladders import check_evidence, errors_of, hierarchical, hierarchy, hmc, sampler
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn.samplers.tempering.evidence import doubts, tempering_of
from numpyro_bnn.samplers.tempering.rung_kernels import prior_draw

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
    np.testing.assert_allclose(found.round_trips_at_best, 1 / (2 + 2 * found.barrier))
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


def test_an_integrated_layer_has_the_evidence_and_the_posterior_of_the_model():
    """All weights are integrated out here; what is left are two precisions."""
    data, evidence, mean, slope = hierarchy()
    model = bnn.integrate_output(hierarchical)
    mcmc = sampler(bnn.ParallelTempering(model, hmc(model, 4), num_rungs=5))
    mcmc.run(jax.random.key(2), *data)
    check_evidence(mcmc, evidence)
    draws = mcmc.get_samples(group_by_chain=True)
    precision = draws["net/Dense_0.kernel.precision"]
    assert errors_of(np.log(precision), mean) < 4
    # Weights are drawn back on the posterior's rung.
    assert errors_of(draws["net/Dense_0.kernel"][..., 0, 0], slope) < 4


def test_moves_on_every_rung_keep_evidence_and_posterior():
    """Of the model as it is: new weights and steps along the ridge at the power of each rung."""
    data, evidence, mean, slope = hierarchy()
    more = [
        bnn.moves.UnitRefresh("net/Dense_0.kernel", ["net/Dense_0.bias"]),
        bnn.moves.RidgeScaling(),
    ]
    mcmc = sampler(bnn.ParallelTempering(hierarchical, hmc(hierarchical, 3), 7, moves=more))
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
