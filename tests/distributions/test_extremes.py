"""Extreme parameters in single precision, by the table of a page.

Seen with NumPyro 0.22, JAX 0.12, SciPy 1.18 and mpmath 1.4.
"""

import extremes
import jax
import numpy as np
import pytest
from scipy import stats

import numpyro_bnn as bnn
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
