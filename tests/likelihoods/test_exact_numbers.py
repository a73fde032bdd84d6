"""Moments, densities and distribution functions against mpmath, over many orders of magnitude."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.likelihoods.survival import PiecewiseHazard

mpmath = pytest.importorskip("mpmath", reason="mpmath, of the extra `test`, computes exact numbers")
mp, mpf = mpmath.mp, mpmath.mpf
X = np.zeros((1, 1), np.float32)


@pytest.fixture(autouse=True)
def many_digits():
    with mpmath.workdps(60):
        yield


def predicted(distribution, parameters):
    """Predictions under one draw, of a row for each parameter: one program serves them all."""

    def model(x, y=None):
        numpyro.sample("unused", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", distribution(x[:, 0]), obs=y)

    x = np.array(parameters, np.float32)[:, None]
    return bnn.predict(model, {"unused": np.zeros(1, np.float32)}, x)


def exact(value):
    """The number that single precision has."""
    return mpf(float(np.float32(value)))


def times(log_hazards, breaks):
    """Mean, standard deviation and survivor at the end of every piece."""
    rates = [mp.exp(exact(v)) for v in log_hazards]
    begins = [mpf(0), *map(exact, breaks)]
    mean, square, lives, survivors = mpf(0), mpf(0), mpf(1), []
    for k, rate in enumerate(rates):
        end = mp.exp(-rate * (begins[k + 1] - begins[k])) if k + 1 < len(begins) else mpf(0)
        first = (1 - end) / rate
        second = (1 - end * (1 - mp.log(end) if end else 1)) / rate**2
        mean += lives * first
        square += 2 * lives * (begins[k] * first + second)
        lives *= end
        survivors.append(lives)
    return float(mean), float(mp.sqrt(square - mean**2)), survivors[:-1]


@partial(jax.jit, static_argnums=1)
def moments(hazards, breaks):
    """Mean, standard deviation, and the share of times before each break."""
    times = PiecewiseHazard(hazards, breaks)
    below = [times.cdf(jnp.array([end, 1.0]))[0] for end in breaks]
    return times.mean[0], jnp.sqrt(times.variance[0]), below


@pytest.mark.parametrize("seed", range(3))
def test_times_of_hazards_over_twelve_orders_of_magnitude(seed):
    rng, found, expected = np.random.default_rng(seed), [], []
    for pieces in (1, 2, 3, 5):
        hazards = rng.uniform(-14, 14, pieces).astype(np.float32)
        breaks = np.cumsum(10 ** rng.uniform(-6, 6, pieces - 1)).astype(np.float32)
        mean, sd, below = moments(hazards, tuple(breaks.tolist()))
        found.append((mean, sd))
        *known, lives = times(hazards, breaks)
        expected.append(known)
        np.testing.assert_allclose(below, [float(1 - left) for left in lives], rtol=1e-4)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("hazards", "breaks"), [((1e-4, 1.0), [1.0]), ((1e-7, 1e-2), [365.0]), ((1e-9, 0.5), [1e3])]
)
def test_predicted_times_after_a_piece_without_events(hazards, breaks):
    logs = np.log(hazards).astype(np.float32)

    def model(x, y=None):
        numpyro.sample("unused", dist.Normal(0.0, 1.0))
        bnn.likelihoods.survival(jnp.asarray(logs) * jnp.ones((len(x), 2)), y, breaks=breaks)

    found = bnn.average(bnn.predict(model, {"unused": np.zeros(2, np.float32)}, X))
    mean, sd, _ = times(logs, breaks)
    np.testing.assert_allclose([found.mean[0, 0], found.sd[0, 0]], [mean, sd], rtol=1e-5)


def poisson(mean, y):
    mean = exact(mean)
    log_prob = y * mp.log(mean) - mp.loggamma(y + 1) - mean
    return log_prob, mp.gammainc(y + 1, mean, regularized=True)


def binomial(share, y, n=1_000_000):
    p = exact(share)
    ways = mp.loggamma(n + 1) - mp.loggamma(y + 1) - mp.loggamma(n - y + 1)
    log_prob = ways + y * mp.log(p) + (n - y) * mp.log1p(-p)
    term = below = mp.exp(log_prob)
    while y > 0 and term > below * mpf(10) ** -12:
        term *= y * (1 - p) / ((n - y + 1) * p)
        y, below = y - 1, below + term
    return log_prob, below


def pinball(level, z):
    """The asymmetric Laplace distribution around 0 with scale 1."""
    level, z = mpf(level), exact(z)
    log_prob = mp.log(level * (1 - level)) - z * (level if z > 0 else level - 1)
    below = level * mp.exp((1 - level) * z) if z < 0 else 1 - (1 - level) * mp.exp(-level * z)
    return log_prob, below


NUMBERS = {
    "poisson": (dist.Poisson, poisson, (1e-6, 3.0, 1e3, 3e5, 1e6), None),
    "binomial": (lambda p: dist.Binomial(1_000_000, p), binomial, (1e-6, 0.01, 0.4), None),
    "quantile": (
        lambda level: dist.AsymmetricLaplaceQuantile(0 * level, 1.0, level),
        pinball,
        (1e-4, 0.1, 0.5, 0.99),
        (-2.0, 0.7),
    ),
}
WRAPPERS = {
    "zero-inflated": lambda distribution: dist.ZeroInflatedDistribution(
        distribution, gate=jnp.full(distribution.batch_shape, 0.25)
    ),
    "hurdle": lambda distribution: dist.HurdleDistribution(
        distribution, gate=jnp.full(distribution.batch_shape, 0.25)
    ),
    "mixture": lambda distribution: dist.MixtureGeneral(
        dist.Categorical(probs=jnp.tile(jnp.array([0.25, 0.75]), (*distribution.batch_shape, 1))),
        [distribution, distribution],
        support=distribution.support,
    ),
    "masked": lambda distribution: distribution.mask(jnp.ones(distribution.batch_shape, bool)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_densities_and_distribution_functions(name):
    distribution, reference, parameters, places = NUMBERS[name]
    made = predicted(distribution, parameters)
    if places is None:
        mean, spread = made.mean.ravel(), made.scale.ravel()
        places = np.round([mean, np.maximum(0, mean - 2 * spread), mean + spread]).astype(int)
    else:
        places = [np.full(len(parameters), place, np.float32) for place in places]
    for at in places:
        log_probs, below = made.log_prob(at).ravel(), made.cdf(at).ravel()
        for k, parameter in enumerate(parameters):
            log_prob, cdf = (float(v) for v in reference(parameter, at[k].item()))
            assert log_probs[k] == pytest.approx(log_prob, rel=1e-6, abs=2e-4)
            assert below[k] == pytest.approx(cdf, abs=2e-5)


@pytest.mark.parametrize("name", ["zero-inflated", "hurdle", "mixture", "masked"])
def test_counts_inside_of_other_distributions(name):
    if name == "hurdle" and not hasattr(jax.nn, "log1mexp"):
        pytest.skip("NumPyro's hurdle distributions need a newer JAX")
    means = 3.0, 1e6
    made = predicted(lambda mean: WRAPPERS[name](dist.Poisson(mean)), means)
    at = np.round(means).astype(int) + 1
    log_probs, below = made.log_prob(at).ravel(), made.cdf(at).ravel()
    share = 0.75 if name in ("zero-inflated", "hurdle") else 1.0
    for k, mean in enumerate(means):
        log_prob, cdf = poisson(mean, at[k].item())
        zero = float(mp.exp(-exact(mean)))
        if name == "hurdle":
            log_prob, cdf = log_prob - mp.log1p(-zero), (cdf - zero) / (1 - zero)
        assert log_probs[k] == pytest.approx(float(log_prob) + np.log(share), abs=2e-4)
        assert below[k] == pytest.approx(float(cdf) * share + 1 - share, abs=2e-5)
        # A sum of squares less the square of a sum: in single precision nothing would be left of it.
        kept = 1 - zero * (name == "hurdle")
        first, second = mean / kept, (mean + mean**2) / kept
        variance = share * second - (share * first) ** 2
        np.testing.assert_allclose(made.mean.ravel()[k], share * first, rtol=1e-5)
        np.testing.assert_allclose(made.scale.ravel()[k], np.sqrt(variance), rtol=1e-5)


def test_a_zero_inflated_count_without_zeros_keeps_its_spread():
    means = 1e6, 1e7
    made = predicted(lambda mean: dist.ZeroInflatedPoisson(0 * mean + 1e-12, mean), means)
    np.testing.assert_allclose(made.scale.ravel(), np.sqrt(means), rtol=1e-4)


SPREADS = {
    "log-normal": (
        lambda s: dist.LogNormal(0.0, s),
        lambda s: mp.exp(s**2 / 2) * mp.sqrt(mp.expm1(s**2)),
        (1e-4, 0.5, 7.0),
    ),
    "weibull": (
        lambda k: dist.Weibull(1.0, k),
        lambda k: mp.sqrt(mp.gamma(1 + 2 / k) - mp.gamma(1 + 1 / k) ** 2),
        (0.07, 1.0, 35.0, 100.0, 1e4),
    ),
}


@pytest.mark.parametrize("name", SPREADS)
def test_standard_deviations_whose_squares_overflow_or_cancel(name):
    distribution, spread, parameters = SPREADS[name]
    found = bnn.average(predicted(distribution, parameters)).sd
    expected = [float(spread(exact(parameter))) for parameter in parameters]
    np.testing.assert_allclose(found.ravel(), expected, rtol=2e-4)


def test_counts_without_bound_are_refused_or_have_their_limit():
    def model(x, y=None):
        f = numpyro.sample("f", dist.Normal(0.0, 20.0))
        bnn.likelihoods.poisson(f * jnp.ones(len(x)), y)

    made = bnn.predict(model, {"f": np.full(2, 100.0, np.float32)}, X)
    y = np.array([3])
    assert bnn.scores.lppd(made, y) == -np.inf
    assert bnn.scores.pit(made, y) == 0.0
    for call in (
        lambda: made.quantiles(0.5),
        lambda: made.sample(jax.random.key(0)),
        lambda: bnn.scores.crps(made, y),
    ):
        with pytest.raises(ValueError, match="a mean of inf were predicted, expected at most"):
            call()
    with pytest.raises(ValueError, match="NaN or infinite in 1 of 1 rows"):
        bnn.average(made)
