"""Gamma draws against their distribution function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from numpyro_bnn.distributions.stable_densities import Gamma, standard_gamma

# Of a correct sampler, one run in 10^4 has a smaller p-value; the draws are those of a fixed key.
LEAST_P_VALUE = 1e-4


@jax.jit
def _many(key, concentration):
    return standard_gamma(key, concentration, (100_000,))


@pytest.mark.parametrize("concentration", [0.1, 0.5, 0.999, 1.0, 1.3, 3.0, 30.0, 1e3, 1e6])
def test_draws_follow_the_distribution(concentration):
    drawn = _many(jax.random.key(0), concentration)
    distribution = stats.gamma(concentration)
    assert stats.kstest(np.asarray(drawn, float), distribution.cdf).pvalue > LEAST_P_VALUE


def test_entries_have_their_own_concentration_and_are_independent():
    concentration = np.array([0.3, 1.0, 50.0], np.float32)
    draw = jax.jit(lambda key: standard_gamma(key, concentration, (20_000, 3)))
    drawn = np.asarray(draw(jax.random.key(1)))
    error = np.sqrt(concentration / len(drawn))
    np.testing.assert_array_less(np.abs(drawn.mean(0) - concentration), 4 * error)
    correlation = np.corrcoef(np.log(drawn), rowvar=False)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 4 / np.sqrt(len(drawn))


def test_mapped_over_keys_is_the_same_draw():
    keys = jax.random.split(jax.random.key(2), 5)
    mapped = jax.vmap(lambda key: standard_gamma(key, 0.7, (4,)))(keys)
    single = np.stack([standard_gamma(key, 0.7, (4,)) for key in keys])
    np.testing.assert_allclose(mapped, single, rtol=1e-6)


def test_what_would_underflow_is_positive_and_what_has_no_distribution_is_nan():
    improper = np.array([0.0, -1.0, np.nan, np.inf, 2.0], np.float32)

    @jax.jit
    def drawn(key):
        return standard_gamma(key, 1e-3, (1000,)), standard_gamma(key, improper, (5,))

    small, without_distribution = map(np.asarray, drawn(jax.random.key(0)))
    assert (small > 0).all()
    np.testing.assert_array_equal(np.isnan(without_distribution), [True, True, True, True, False])


@pytest.mark.parametrize("rate", [0.5, 2.0, 1e6])
def test_draws_of_any_rate_are_inside_the_support(rate):
    distribution = Gamma(0.01, rate)
    drawn = np.asarray(distribution.sample(jax.random.key(0), (2000,)))
    # At this concentration a third of the draws are below the smallest number of single precision.
    assert (drawn <= 4 * jnp.finfo(drawn.dtype).tiny).mean() > 0.2
    assert (drawn > 0).all()
    assert np.isfinite(distribution.log_prob(drawn)).all()
