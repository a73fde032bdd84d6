"""Log densities in single precision, against SciPy in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats
from scipy.special import digamma

import numpyro_bnn as bnn
from numpyro_bnn.distributions.stable_densities import NegativeBinomial, Poisson, StudentT

CONCENTRATIONS = [1e-6, 1e-3, 0.3, 1.0, 9.9, 10.1, 1e2, 1e4, 1e6, 1e8]
MEANS = np.array([1e-3, 0.1, 3.0, 50.0, 1000.0])
COUNTS = np.array([0, 1, 3, 20, 100, 900])


def exact(a, mean, k):
    """In the limit of a large concentration, of which SciPy has no more digits, with its first correction."""
    if a < 1e6:
        return stats.nbinom(a, a / (a + mean)).logpmf(k)
    return stats.poisson(mean).logpmf(k) + (k * (k - 1) - 2 * k * mean + mean**2) / (2 * a)


@pytest.mark.parametrize("a", CONCENTRATIONS)
def test_the_log_density_has_its_digits(a):
    mean, k = (part.ravel() for part in np.meshgrid(MEANS, COUNTS))
    found = NegativeBinomial(mean.astype(np.float32), np.float32(a)).log_prob(k)
    expected = exact(a, mean, k)
    # What a term of this size cannot tell in single precision.
    size = 1 + np.abs(expected) + k * np.abs(np.log(np.maximum(k, 1))) + mean
    assert (np.abs(found - expected) < 3e-6 * size).all()


def test_the_one_of_numpyro_has_not():
    """NumPyro 0.22: probabilities of a mean of 3 at a concentration of 1e8 add up to more than 2."""
    k = np.arange(60)
    arguments = np.float32(3.0), np.float32(1e8)
    assert np.exp(dist.NegativeBinomial2(*arguments).log_prob(k)).sum() > 2
    assert np.exp(NegativeBinomial(*arguments).log_prob(k)).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("a", CONCENTRATIONS[:-3])
def test_so_has_the_derivative_by_the_concentration(a):
    mean, k = 3.0, np.array([0, 1, 4, 20])
    found = jax.vmap(jax.grad(lambda a, k: NegativeBinomial(mean, a).log_prob(k)), (None, 0))(
        jnp.float32(a), jnp.asarray(k)
    )
    expected = digamma(a + k) - digamma(a) + np.log(a / (a + mean)) + (mean - k) / (a + mean)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_the_likelihood_takes_it():
    y = np.array([0, 2, 5])

    def model():
        bnn.likelihoods.negative_binomial(np.zeros(3), y, concentration=1e8)

    density = handlers.trace(model).get_trace()["y"]["fn"].log_prob(y)
    np.testing.assert_allclose(density, stats.poisson(1.0).logpmf(y), atol=1e-5)


@pytest.mark.parametrize("df", [0.1, 1.0, 4.0, 19.0, 21.0, 1e3, 1e5, 1e8])
def test_student_t_has_its_digits(df):
    y = np.array([0.0, 0.1, 1.0, -4.0, 30.0])
    found = StudentT(np.float32(df), 0.5, np.float32(2.0)).log_prob(y.astype(np.float32))
    expected = stats.t(df, 0.5, 2.0).logpdf(y)
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6)


def test_that_of_numpyro_has_not():
    """NumPyro 0.22."""
    found = dist.StudentT(np.float32(1e8)).log_prob(np.float32(1.0))
    assert abs(float(found) - stats.norm().logpdf(1.0)) > 0.5
    slope = jax.grad(lambda df: StudentT(df).log_prob(1.0))(jnp.float32(1e5))
    assert float(slope) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("df", [0.3, 4.0, 19.0, 21.0, 200.0])
def test_student_t_has_its_derivative(df):
    y = 1.7
    found = jax.grad(lambda df: StudentT(df).log_prob(y))(jnp.float32(df))
    terms = digamma((df + 1) / 2) - digamma(df / 2) - 1 / df - np.log1p(y**2 / df)
    expected = 0.5 * (terms + (df + 1) / df * y**2 / (df + y**2))
    assert float(found) == pytest.approx(expected, rel=1e-3, abs=2e-7)


LARGE = [1e-6, 1.0, 10.0, 1e3, 1e5, 1e6, 1e8]


@pytest.mark.parametrize("level", [1e-3, 0.5, 0.999])
@pytest.mark.parametrize("a", [0.5, 10.0, 1e3, 1e6])
def test_large_counts_have_their_digits(a, level):
    """NumPyro 0.22 gives 128 where the density of a Poisson of 1e8 is -14.9."""
    means = np.float32(LARGE)
    for made, right in (
        (Poisson(means), stats.poisson(means.astype(float))),
        (NegativeBinomial(means, np.float32(a)), stats.nbinom(a, a / (a + means.astype(float)))),
    ):
        k = right.ppf(level).astype(np.float32)
        np.testing.assert_allclose(made.log_prob(k), right.logpmf(k), rtol=2e-4, atol=1e-5)


def test_large_counts_have_their_derivative():
    mean, k = jnp.float32([1e-6, 20.0, 1e6, 1e-6]), jnp.float32([0, 30, 1e6 + 64, 1000])
    found = jax.vmap(jax.grad(lambda m, k: Poisson(m).log_prob(k)))(mean, k)
    np.testing.assert_allclose(found, k / mean - 1, rtol=1e-4, atol=1e-8)
