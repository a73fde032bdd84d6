"""Pólya-Gamma draws against their moments, their Laplace transform and their distribution function."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from numpyro_bnn.distributions.polya_gamma import PolyaGamma

# Of a correct sampler, one run in 10^4 has a smaller p-value; the draws are those of a fixed key.
LEAST_P_VALUE = 1e-4
# On both sides of 2/0.64 = 3.125, where the proposal below the meeting point of the series changes.
TILTS = [0.0, 0.7, 3.1, -3.15, 60.0, 600.0]
N = 20_000


def laplace(t, count, tilt):
    """E exp(-t ω): each of the Gamma variables of the sum contributes a factor, whose product is this."""
    inner = np.sqrt((tilt**2 / 2 + t) / 2)
    log_cosh = [np.logaddexp(v, -v) for v in (abs(tilt) / 2, inner)]
    return np.exp(count * (log_cosh[0] - log_cosh[1]))


def within(draws, expected, errors=4.0):
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - expected) < errors * error, (np.mean(draws), expected, error)


@partial(jax.jit, static_argnums=1)
def _drawn_with_moments(key, count, tilt):
    distribution = PolyaGamma(count, tilt)
    return distribution.sample(key, (N,)), distribution.mean, distribution.variance


@pytest.mark.parametrize(("count", "tilt"), [(1, c) for c in TILTS] + [(3, 0.7)])
def test_moments_and_laplace_transform(tilt, count):
    drawn, mean, variance = _drawn_with_moments(jax.random.key(0), count, tilt)
    drawn, mean, variance = np.asarray(drawn, float), float(mean), float(variance)
    assert (drawn > 0).all()
    # Mean and variance are held against the defining sum below.
    within(drawn, mean)
    within((drawn - mean) ** 2, variance, 4.5)
    for t in (1 / mean, 5 / mean):
        within(np.exp(-t * drawn), laplace(t, count, tilt))


def distribution_function(tilt):
    """Of PG(1, c): its density, by the one series with 60 terms, integrated on a fine grid."""
    z = abs(tilt) / 2
    # Below the first point, a 25th of the meeting point, is less than 1e-7 of all mass.
    x = np.linspace(0.025, 12, 12_001)
    n = np.arange(60)[:, None] + 0.5
    terms = np.where(np.arange(60)[:, None] % 2, -1, 1) * np.pi * n
    density = np.concatenate(
        [(terms * np.exp(-(n**2) * np.pi**2 * part / 2)).sum(0) for part in np.array_split(x, 50)]
    )
    density *= np.cosh(z) * np.exp(-(z**2) * x / 2)
    below = integrate.cumulative_simpson(density, x=x, initial=0)
    assert abs(below[-1] - 1) < 1e-6
    return lambda omega: np.interp(4 * omega, x, below)


@pytest.mark.parametrize("tilt", [0.0, 3.1, 3.15])
def test_draws_follow_the_distribution_also_where_the_proposals_meet(tilt):
    drawn = np.asarray(_drawn_with_moments(jax.random.key(1), 1, tilt)[0], float)
    below = distribution_function(tilt)
    assert stats.kstest(drawn, below).pvalue > LEAST_P_VALUE
    for end in 0.64 / 4 * np.array([[0.9, 1.0], [1.0, 1.1]]):
        share = np.diff(below(end))[0]
        within(((drawn > end[0]) & (drawn < end[1])).astype(float), share)


def test_mean_and_variance_are_right_in_single_precision_at_every_tilt():
    tilts = np.array([0.0, 1e-3, 0.09, 0.11, 0.29, 0.31, 1.0, 20.0, 300.0, 1e4])
    distribution = PolyaGamma(2, jnp.asarray(tilts, jnp.float32))
    # The defining sum: mean and variance of each Gamma variable, and the rest as an integral.
    k = np.arange(1, 100_001)[:, None]
    rates = 2 * np.pi**2 * ((k - 0.5) ** 2 + tilts**2 / (4 * np.pi**2))
    rest = (np.pi / 2 - np.arctan(2 * np.pi * len(k) / np.maximum(tilts, 1e-9))) / np.pi
    rest = np.where(tilts > 0, rest / np.maximum(tilts, 1e-9), 1 / (2 * np.pi**2 * len(k)))
    mean, variance = jax.jit(lambda: (distribution.mean, distribution.variance))()
    np.testing.assert_allclose(mean, 2 * ((1 / rates).sum(0) + rest), rtol=2e-6)
    np.testing.assert_allclose(variance, 2 * (1 / rates**2).sum(0), rtol=3e-5)


def test_entries_have_their_own_count_and_tilt_and_are_independent():
    distribution = PolyaGamma(jnp.array([0, 1, 4]), jnp.array([1.0, 9.0, 0.0]), validate_args=False)
    drawn, mean = jax.jit(lambda key: (distribution.sample(key, (N // 2,)), distribution.mean))(
        jax.random.key(2)
    )
    drawn = np.asarray(drawn, float)
    assert (drawn[:, 0] == 0).all()
    for column in (1, 2):
        within(drawn[:, column], float(mean[column]))
    assert abs(np.corrcoef(drawn[:, 1:], rowvar=False)[0, 1]) < 4 / np.sqrt(N // 2)


def test_a_mapped_draw_is_the_same_and_an_infinite_tilt_has_no_distribution():
    distribution = PolyaGamma(1, np.float32([0.5, np.nan, 7.0, np.inf]), validate_args=False)

    keys, draw = jax.random.split(jax.random.key(3), 3), jax.jit(distribution.sample)
    mapped = np.asarray(jax.jit(jax.vmap(distribution.sample))(keys))
    single = np.stack([draw(key) for key in keys])
    np.testing.assert_allclose(mapped, single, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(mapped[0]), [False, True, False, True])


def test_a_count_that_is_no_number_of_trials_and_the_density_are_refused():
    with pytest.raises(ValueError, match="count"):
        PolyaGamma(jnp.array(0), 1.0, validate_args=True)
    with pytest.raises(NotImplementedError):
        PolyaGamma().log_prob(0.2)
