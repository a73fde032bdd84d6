"""Handlers of NumPyro around a hierarchical prior: one posterior in all coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import mask, scale
from numpyro.infer import Predictive

import numpyro_bnn as bnn
from numpyro_bnn import priors

pytestmark = pytest.mark.usefixtures("quick_compile")

SITE = "net/d.kernel"
WIDTH = priors.Hierarchical.width


def model(prior):
    def weights():
        w = prior.sample("net", {"d.kernel": (2, 3)})["d.kernel"]
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=0.7)

    return weights


@pytest.mark.parametrize(
    "handler", [scale(scale=3.0), mask(mask=False), mask(mask=jnp.array(False))]
)
def test_a_collapsed_precision_is_sampled_where_a_handler_changes_the_density(handler):
    def handled():
        with handler:
            model(priors.Hierarchical(2.0, 1.0))()

    values = {SITE: jnp.arange(6.0).reshape(2, 3) / 6, f"{SITE}.precision": jnp.array(0.3)}
    centered, collapsed = (
        bnn.potential_of(bnn.parameterize(handled, name)) for name in ("centered", "collapsed")
    )
    assert set(collapsed.structure.latent) == set(values)
    assert collapsed(values) == centered(values)


def test_draws_of_a_collapsed_prior_are_in_numpyros_predictive():
    """It masks the model, so that precisions are sampled and no longer drawn back: under the same names."""
    collapsed = bnn.parameterize(model(WIDTH(1.0, group=2.0, unit=3.0)), "collapsed")
    given = {SITE: jnp.ones((4, 2, 3)), f"{SITE}.unit_precision": jnp.full((4, 2), 2.0)}
    given |= {f"{SITE}.precision": jnp.full(4, 3.0)}
    drawn = Predictive(collapsed, given, return_sites=[*given])(jax.random.key(0))
    for name, values in given.items():
        np.testing.assert_array_equal(drawn[name], values)
