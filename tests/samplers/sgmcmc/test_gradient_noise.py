"""The noise of minibatches: its estimate has the right mean, taken off it leaves the exact distribution.

The kinetic temperature along gradients shows heat in one direction, which a mean over weights hides.
"""

from functools import cache

import jax
import jax.numpy as jnp
import linear_gaussian as linear
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from quiet import together
from scipy.linalg import solve_discrete_lyapunov

import numpyro_bnn as bnn
from numpyro_bnn import gradients
from numpyro_bnn.diagnostics.sampler_stats import read, warnings_of
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import temperature_along
from numpyro_bnn.samplers.sgmcmc.gradients import (
    NoiseEstimate,
    begin_noise,
    learned_noise,
    quiet_step,
)
from numpyro_bnn.samplers.sgmcmc.kernel import rows_of

DATA = linear.data(rows=100)
BATCH = 5


def rows():
    return rows_of(linear.model, DATA, {}, True, None)


def exact_variance(slopes, bias):
    """Of the gradient of N/B times the loss of B rows with replacement: N²/B times that of one row."""
    x, y = DATA
    residuals = x @ slopes + bias - y
    one = np.c_[x, np.ones(len(x))] * residuals[:, None] / linear.NOISE**2
    return len(x) ** 2 / BATCH * one.var(0)


def test_the_estimate_is_unbiased_and_stops_with_warm_up():
    potential = rows()
    estimator = gradients.minibatch(BATCH, "replacement")
    slopes, bias = np.array([0.2, -0.3, 0.5]), 0.1
    z = {linear.KERNEL: jnp.asarray(slopes)[:, None], linear.BIAS: jnp.asarray([bias])}

    def step(carry, count):
        known, state = carry
        first = estimator.estimate(potential, z, state)
        known = learned_noise(known, estimator, potential, z, first, count, num_warmup=8000)
        return (known, first.state), known.variance

    def run(key):
        begin = begin_noise(z), estimator.init(potential, z, key)
        return jax.lax.scan(step, begin, jnp.arange(8010))

    (known, _), path = jax.jit(run)(jax.random.key(0))
    found = np.r_[known.variance[linear.KERNEL][:, 0], known.variance[linear.BIAS]]
    # A mean over 2000 pairs, with decaying weights as good as 4000, whose squares have about twice the
    # relative variance of a normal's.
    np.testing.assert_allclose(found, exact_variance(slopes, bias), rtol=5 * np.sqrt(4 / 4000))
    assert int(known.pairs) == 8000
    last = path[linear.BIAS][7999:]
    np.testing.assert_array_equal(last, np.broadcast_to(last[:1], last.shape))


def test_a_quiet_step_adds_eight_hundredths_of_the_energy_of_a_momentum():
    variance = {"a": jnp.array([1.0, 3.0]), "b": jnp.array([8.0])}
    metric = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([0.5])}
    known = NoiseEstimate(variance, jnp.asarray(1))
    h = quiet_step(known, metric, 0.5, has_momentum=True)
    assert float(h**2) * (1 + 6 + 4) / 3 == pytest.approx(0.08 * 0.5, rel=1e-5)
    epsilon = quiet_step(known, metric, 0.5, has_momentum=False)
    assert float(epsilon) / 4 * (1 + 6 + 4) / 3 == pytest.approx(0.08 * 0.5, rel=1e-5)
    for nothing in ((known, metric, 0.0), (begin_noise(variance), metric, 1.0)):
        assert quiet_step(*nothing, has_momentum=True) == jnp.inf


def heat_of(kind=bnn.BAOAB, **options):
    """Mean over weights of their variance beside the exact one, by chain, and the temperature of momenta."""
    chains, temperature = 200, options.get("temperature", 1.0)
    kernel = kind(linear.model, step_size="auto", **options)
    run = together(kernel, 600, 600, chains, thinning=10)
    mean, precision = linear.posterior(*DATA)
    start = {
        linear.KERNEL: jnp.tile(mean[:3, None], (chains, 1, 1)),
        linear.BIAS: jnp.tile(mean[3:], (chains, 1)),
    }
    run.run(jax.random.key(0), *DATA, init_params=start, extra_fields=("kinetic_temperature",))
    draws = linear.weights(run.get_samples(group_by_chain=True))
    white = (draws - mean) @ np.linalg.cholesky(precision)
    momenta = np.asarray(run.get_extra_fields(group_by_chain=True)["kinetic_temperature"])
    return (white**2).mean((1, 2)) / temperature, momenta.mean(1) / temperature


@pytest.mark.parametrize(
    "temperature", [1.0, *(pytest.param(t, marks=pytest.mark.slow) for t in (0.1, 3.0))]
)
def test_taken_off_it_leaves_positions_and_momenta_at_the_temperature(temperature):
    """Within 5 Monte Carlo errors, and 3 % for the step."""
    positions, momenta = heat_of(batch_size=BATCH, gradient_noise="auto", temperature=temperature)
    error = positions.std(ddof=1) / np.sqrt(len(positions))
    assert error < (0.02 if temperature == 1 else 0.04)
    assert abs(positions.mean() - 1) < 5 * error + 0.03
    assert abs(momenta.mean() - 1) < 0.05


@pytest.mark.slow
def test_left_in_it_makes_the_chain_several_times_too_hot():
    hot, _ = heat_of(gradient=gradients.minibatch(BATCH, "replacement"))
    assert hot.mean() > 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", [bnn.SGHMC, bnn.SGLD])
def test_other_methods_keep_the_temperature_of_positions(kind):
    """Within 5 Monte Carlo errors, and 5 % for a step whose error is of first order."""
    positions, _ = heat_of(kind, batch_size=BATCH, gradient_noise="auto")
    error = positions.std(ddof=1) / np.sqrt(len(positions))
    assert abs(positions.mean() - 1) < 5 * error + 0.05


def test_without_warm_up_there_is_no_estimate():
    kernel = bnn.BAOAB(linear.model, step_size=0.01, batch_size=BATCH, gradient_noise="auto")
    with pytest.raises(ValueError, match='gradient_noise="auto" is estimated in warm-up'):
        bnn.MCMC(kernel, num_warmup=0, num_samples=2, progress_bar=False).run(
            jax.random.key(0), *DATA
        )


def anchors(num_warmup, gradient, **options):
    """Steps between anchors, as the steps of a kernel have them."""
    kernel = bnn.BAOAB(linear.model, step_size=0.01, gradient=gradient, **options)
    jax.eval_shape(lambda key: kernel.init(key, num_warmup, model_args=DATA), jax.random.key(0))
    return kernel._ingredients(num_warmup).gradient.period_of(rows())


def test_warm_up_sees_several_anchors_where_noise_is_estimated():
    """Noise grows with the way from an anchor: with none but the first it would be underestimated."""
    auto = {"gradient_noise": "auto"}
    default = gradients.svrg(BATCH, order="replacement")
    assert anchors(1000, default, **auto) == 20
    assert anchors(40, default, **auto) == 10
    assert anchors(2, default, **auto) == 1
    assert anchors(40, default) == 20
    given = gradients.svrg(BATCH, 10, order="replacement")
    assert anchors(40, given, **auto) == 10
    with pytest.raises(ValueError, match=r"no 4 anchors .* 10 steps apart.*num_warmup=40, .* of 9"):
        anchors(39, given, **auto)


def test_all_rows_have_no_noise_to_estimate():
    kernel = bnn.BAOAB(linear.model, step_size=0.01, gradient_noise="auto")
    state = jax.eval_shape(lambda key: kernel.init(key, 10, model_args=DATA), jax.random.key(0))
    assert state.adaptation.noise is None


WEIGHTS, ROWS, STEP, FRICTION = 200, 50, 0.02, 5.0
CHAINS, DRAWS = 16, 120
# Of the prior: so wide that the gradient has hardly a part across the noise.
WIDE = 10.0
Y = 3 * np.random.default_rng(0).normal(size=ROWS).astype(np.float32)


def model(y):
    """All rows have one feature, the mean of the weights times √D: noise of minibatches has one direction."""
    weights = numpyro.sample("w", dist.Normal(0.0, WIDE).expand([WEIGHTS]).to_event(1))
    with numpyro.plate("rows", len(y)):
        y = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(weights.sum() / np.sqrt(WEIGHTS), 1.0), obs=y)


@cache
def stats_of(gradient):
    kernel = bnn.BAOAB(model, step_size=STEP, friction=FRICTION, gradient=gradient)
    run = together(kernel, 200, 10 * DRAWS, CHAINS, thinning=10)
    # From the posterior, but for the one direction that the data determine.
    start = WIDE * np.random.default_rng(2).normal(size=(CHAINS, WEIGHTS))
    start += Y.mean() / np.sqrt(WEIGHTS) - start.mean(1, keepdims=True)
    run.run(jax.random.key(0), Y, init_params={"w": jnp.asarray(start, jnp.float32)})
    return {name: np.asarray(value) for name, value in draws_of(run).stats.items()}


def exact(noise):
    """Variance of the momentum before the kick, along the feature: the chain is linear there.

    :param noise: variance of the gradient.
    """
    keep = np.exp(-FRICTION * STEP)
    curvature, half = ROWS + WIDE**-2, STEP / 2
    # The kick; then half a drift, friction, half a drift. Columns: position, momentum.
    kick = np.array([[1.0, 0.0], [-STEP * curvature, 1.0]])
    drift = np.array([[1.0, half], [0.0, 1.0]])
    friction = np.diag([1.0, keep])
    rest = drift @ friction @ drift
    kicked, damped = rest @ np.array([0.0, STEP]), drift @ np.array([0.0, np.sqrt(1 - keep**2)])
    added = noise * np.outer(kicked, kicked) + np.outer(damped, damped)
    return solve_discrete_lyapunov(rest @ kick, added)[1, 1]


@pytest.mark.parametrize(
    ("gradient", "noise"),
    [
        (gradients.minibatch(BATCH, "replacement"), ROWS**2 / BATCH * float(Y.var())),
        (gradients.svrg(BATCH, order="replacement"), 0.0),
    ],
    ids=["minibatch", "svrg"],
)
def test_it_is_that_of_the_momentum_along_the_noise(gradient, noise):
    """Within 5 Monte Carlo errors over chains; the mean over weights is right in both cases."""
    stats = stats_of(gradient)
    by_chain = stats["gradient_temperature"].mean(1)
    error = by_chain.std(ddof=1) / np.sqrt(CHAINS)
    right = exact(noise)
    assert (right > 7) == (noise > 0)
    assert error < 0.05 * right
    assert abs(by_chain.mean() - right) < 5 * error
    assert abs(stats["kinetic_temperature"].mean() - 1) < 0.1


def test_a_report_complains_of_shared_noise():
    shape = (CHAINS, DRAWS)
    said = warnings_of(read(stats_of(gradients.minibatch(BATCH, "replacement")), shape))
    assert any("Along minibatch gradients the kinetic temperature is" in s for s in said)
    assert any("gradients.svrg" in s for s in said)


@pytest.mark.slow
def test_a_report_does_not_complain_of_svrg():
    stats = stats_of(gradients.svrg(BATCH, order="replacement"))
    assert not warnings_of(read(stats, (CHAINS, DRAWS)))


def test_along_any_direction_a_momentum_has_the_temperature():
    rng = np.random.default_rng(1)
    metric = {
        "a": jnp.asarray(rng.uniform(0.1, 3, 5)),
        "b": jnp.asarray(rng.uniform(0.1, 3, (2, 2))),
    }
    direction = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), metric)
    count, temperature = 4000, 2.5
    momentum = jax.tree.map(
        lambda w: np.sqrt(temperature / w) * rng.normal(size=(count, *w.shape)), metric
    )
    along = jax.jit(jax.vmap(lambda p: temperature_along(direction, p, metric)))
    found = along(momentum)
    # The square of a normal has the relative variance 2.
    assert abs(found.mean() / temperature - 1) < 5 * np.sqrt(2 / count)
    nothing = jax.tree.map(jnp.zeros_like, direction)
    assert jnp.isnan(temperature_along(nothing, metric, 1.0))


@pytest.mark.parametrize(
    ("along", "kinetic", "complains"),
    [(3.0, 1.0, True), (1.4, 1.0, False), (3.0, 1.6, False)],
    ids=["shared", "of the step", "all weights hot"],
)
def test_the_verdict_is_limited_where_only_the_gradients_are_hot(along, kinetic, complains):
    """Not by a step near the largest; where all weights are hot, that is said in its place."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 500, 3))
    stats = {
        "temperature": np.ones((4, 500)),
        "kinetic_temperature": kinetic + 0.05 * rng.normal(size=(4, 500)),
        "gradient_temperature": along * rng.chisquare(1, size=(4, 500)),
    }
    report = bnn.diagnostics.diagnose_draws({"w": draws}, draws, sample_stats=stats)
    assert any(s.startswith("Along minibatch") for s in report.sentences) == complains
    limited = complains or kinetic != 1.0
    assert (report.needed_by == "the temperature of the sampler") == limited
