"""Pólya-Gamma draws against their moments, their Laplace transform and their distribution function."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from numpyro_bnn.distributions.polya_gamma import draw

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
def _drawn(key, count, tilt):
    return draw(key, count, jnp.full(N, tilt))


def moments(count, tilt):
    """Of the defining sum of Gamma variables; its far terms, of no tilt, as an integral."""
    rates = 2 * np.pi**2 * ((np.arange(1, 100_001) - 0.5) ** 2 + tilt**2 / (4 * np.pi**2))
    return count * ((1 / rates).sum() + 5e-6 / np.pi**2), count * (1 / rates**2).sum()


@pytest.mark.parametrize(("count", "tilt"), [(1, c) for c in TILTS] + [(3, 0.7)])
def test_moments_and_laplace_transform(tilt, count):
    drawn = np.asarray(_drawn(jax.random.key(0), count, tilt), float)
    mean, variance = moments(count, tilt)
    assert (drawn > 0).all()
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
    drawn = np.asarray(_drawn(jax.random.key(1), 1, tilt), float)
    below = distribution_function(tilt)
    assert stats.kstest(drawn, below).pvalue > LEAST_P_VALUE
    for end in 0.64 / 4 * np.array([[0.9, 1.0], [1.0, 1.1]]):
        share = np.diff(below(end))[0]
        within(((drawn > end[0]) & (drawn < end[1])).astype(float), share)


def test_entries_have_their_own_count_and_tilt_and_are_independent():
    count, tilt = np.array([0, 1, 4]), np.array([1.0, 9.0, 0.0])
    keys = jax.random.split(jax.random.key(2), N // 2)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: draw(key, count, tilt)))(keys), float)
    assert (drawn[:, 0] == 0).all()
    for column in (1, 2):
        within(drawn[:, column], moments(count[column], tilt[column])[0])
    assert abs(np.corrcoef(drawn[:, 1:], rowvar=False)[0, 1]) < 4 / np.sqrt(N // 2)


def test_a_mapped_draw_is_the_same_and_an_infinite_tilt_has_no_distribution():
    tilt = np.float32([0.5, np.nan, 7.0, np.inf])
    keys, drawn = jax.random.split(jax.random.key(3), 3), jax.jit(lambda key: draw(key, 1, tilt))
    mapped = np.asarray(jax.jit(jax.vmap(drawn))(keys))
    single = np.stack([drawn(key) for key in keys])
    np.testing.assert_allclose(mapped, single, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(mapped[0]), [False, True, False, True])
