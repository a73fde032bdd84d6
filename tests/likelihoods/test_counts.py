"""Likelihoods of counts and of quantiles against SciPy's densities, and what a posterior makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats
from site_densities import log_prob

from numpyro_bnn import likelihoods

F = np.array([-1.0, 0.0, 0.7, 2.0, 3.0])
COUNTS = np.array([0, 2, 1, 9, 20])


def test_a_prior_on_the_concentration_is_a_site():
    prior = dist.Gamma(2.0, 1.0)
    found = log_prob(
        lambda: likelihoods.negative_binomial(jnp.asarray(F), COUNTS, concentration=prior),
        values={"y.concentration": 1.5},
    )
    assert found["y.concentration"] == pytest.approx(stats.gamma(2.0).logpdf(1.5), rel=1e-5)
    distribution = stats.nbinom(1.5, 1.5 / (1.5 + np.exp(F)))
    np.testing.assert_allclose(found["y"], distribution.logpmf(COUNTS), rtol=1e-4)


def test_the_pinball_loss_over_the_scale():
    y, level, scale = np.array([-2.0, 0.5, 0.7, 1.0, 5.0]), 0.9, 0.3
    found = log_prob(lambda: likelihoods.quantile(jnp.asarray(F), y, level=level, scale=scale))["y"]
    loss = np.where(y > F, level * (y - F), (1 - level) * (F - y))
    np.testing.assert_allclose(found, np.log(level * (1 - level) / scale) - loss / scale, rtol=1e-4)


def test_the_mode_is_the_quantile():
    y = np.random.default_rng(0).gamma(2.0, size=400)

    def model(x, y=None):
        f = numpyro.sample("f", dist.Normal(0.0, 100.0))
        likelihoods.quantile(jnp.full(jnp.shape(x)[0], f), y, level=0.8, scale=0.1)

    grid = np.linspace(1.0, 6.0, 2001)
    with handlers.block():
        joint = jax.jit(
            jax.vmap(
                lambda f: numpyro.infer.util.log_density(model, (y[:, None], y), {}, {"f": f})[0]
            )
        )
    best = grid[np.argmax(joint(jnp.asarray(grid)))]
    assert best == pytest.approx(np.quantile(y, 0.8), abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": COUNTS - 1}, "whole numbers from 0, got -1 in row 0"),
        ({"y": COUNTS + 0.5}, "whole numbers from 0, got 0.5 in row 0"),
        ({"y": np.where(COUNTS == 9, np.nan, COUNTS)}, "whole numbers from 0, got nan in row 3"),
        ({"y": COUNTS[:, None]}, "f has shape|with a row for every target"),
        ({"f": F[:, None]}, "one prediction a row"),
    ],
)
@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_what_is_no_count_is_refused(name, change, message):
    given = {"f": jnp.asarray(F), "y": COUNTS} | change
    options = {"concentration": 1.0} if name == "negative_binomial" else {}
    with handlers.seed(rng_seed=0), pytest.raises(ValueError, match=message):
        getattr(likelihoods, name)(jnp.asarray(given["f"]), given["y"], **options)


@pytest.mark.parametrize("level", [0, 1, -0.1, True, "0.9"])
def test_levels_that_are_no_probability_are_refused(level):
    with (
        handlers.seed(rng_seed=0),
        pytest.raises(ValueError, match="strictly between 0 and 1, got"),
    ):
        likelihoods.quantile(jnp.asarray(F), F, level=level, scale=1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf")])
def test_scales_and_concentrations_must_be_positive(value):
    with handlers.seed(rng_seed=0):
        with pytest.raises(ValueError, match="scale must be one positive number"):
            likelihoods.quantile(jnp.asarray(F), F, level=0.5, scale=value)
        with pytest.raises(ValueError, match="concentration must be one positive number"):
            likelihoods.negative_binomial(jnp.asarray(F), COUNTS, concentration=value)
