"""Extreme parameters in single precision, by the table of a page.

Seen with NumPyro 0.22, JAX 0.12, SciPy 1.18 and mpmath 1.4.
"""

import extremes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from scipy import stats
from scipy.special import digamma

import numpyro_bnn as bnn
from numpyro_bnn.distributions.stable_densities import NegativeBinomial, Poisson, StudentT
from numpyro_bnn.priors.precision_conditionals import Array, GammaScaleMixture


@pytest.mark.parametrize("name", [name for name in extremes.FAMILIES if extremes.FAMILIES[name][1]])
def test_our_densities_keep_their_digits(name):
    """NumPyro's lose them from parameters of 1e4 on, as its column of the table says."""
    assert (
        extremes.cell(name, "density, ours") == "all" == extremes.on_page()[name]["density, ours"]
    )


@pytest.mark.parametrize("what", ["density, predicted", "distribution function", "quantiles"])
def test_a_normal_target_far_above_its_mean_is_predicted(what):
    """NumPyro 0.22: above 15 standard deviations the density is infinite, above 8 its integral is NaN."""
    assert extremes.cell("TruncatedNormal(low)", what) == "all"


@pytest.mark.parametrize("a", [1e-3, 1.0, 1e4, 1e8])
def test_weights_with_an_integrated_precision_keep_their_digits(a):
    """They have a multivariate t distribution, whose normaliser is a ratio of Γ functions of `a`."""
    w = np.array([0.1, -1.0, 0.5, 2.0], np.float32)
    made = GammaScaleMixture(np.float32(a), np.float32(2 * a), (4,), Array("w"))
    right = stats.multivariate_t(shape=2 * np.eye(4), df=2 * a).logpdf(w)
    np.testing.assert_allclose(jax.jit(made.log_prob)(w), right, rtol=1e-5)
    each = bnn.priors.StudentT(2 * a, 1.5)("w", (4,)).log_prob(w)
    np.testing.assert_allclose(each, stats.t(2 * a, 0, 1.5).logpdf(w), rtol=1e-5)


@pytest.mark.parametrize("what", extremes.FUNCTIONS)
@pytest.mark.parametrize("name", extremes.FAMILIES)
def test_the_table_is_that_of_the_page(name, what):
    assert extremes.cell(name, what) == extremes.on_page()[name][what]


BY_A = jax.jit(jax.vmap(jax.grad(lambda a, k: NegativeBinomial(3.0, a).log_prob(k)), (None, 0)))


@pytest.mark.parametrize("a", [1e-6, 1e-3, 0.3, 1.0, 9.9, 10.1, 1e2])
def test_a_negative_binomial_has_its_derivative_by_the_concentration(a):
    mean, k = 3.0, np.array([0, 1, 4, 20])
    found = BY_A(jnp.float32(a), jnp.asarray(k))
    expected = digamma(a + k) - digamma(a) + np.log(a / (a + mean)) + (mean - k) / (a + mean)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_the_likelihood_takes_it():
    y = np.array([0, 2, 5])

    def model():
        bnn.likelihoods.negative_binomial(np.zeros(3), y, concentration=1e8)

    density = handlers.trace(model).get_trace()["y"]["fn"].log_prob(y)
    np.testing.assert_allclose(density, stats.poisson(1.0).logpmf(y), atol=1e-5)


@pytest.mark.parametrize("df", [0.3, 4.0, 19.0, 21.0, 200.0, 1e5])
def test_student_t_has_its_derivative(df):
    y = 1.7
    found = jax.jit(jax.grad(lambda df: StudentT(df).log_prob(y)))(jnp.float32(df))
    terms = digamma((df + 1) / 2) - digamma(df / 2) - 1 / df - np.log1p(y**2 / df)
    expected = 0.5 * (terms + (df + 1) / df * y**2 / (df + y**2))
    assert float(found) == pytest.approx(expected, rel=1e-3, abs=2e-7)


def test_large_counts_have_their_derivative():
    mean, k = jnp.float32([1e-6, 20.0, 1e6, 1e-6]), jnp.float32([0, 30, 1e6 + 64, 1000])
    found = jax.jit(jax.vmap(jax.grad(lambda m, k: Poisson(m).log_prob(k))))(mean, k)
    np.testing.assert_allclose(found, k / mean - 1, rtol=1e-4, atol=1e-8)
