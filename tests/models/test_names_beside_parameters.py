"""Names of sites that priors add to a parameter, and those that modules and models give themselves."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro import handlers

import numpyro_bnn as bnn
from numpyro_bnn.priors.paths import AUXILIARY, is_auxiliary

X = np.linspace(-1.0, 1.0, 5)[:, None]


class Named(nn.Module):
    """A layer whose one parameter is called as a site of a prior may be."""

    leaf: str

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x) * self.param(self.leaf, nn.initializers.ones, ())


class NamedNNX(nnx.Module):
    def __init__(self):
        self.base = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return x * self.base


def bound(module, prior, *init_args):
    with handlers.seed(rng_seed=0):
        return bnn.random_module("net", module, prior, *init_args)


@pytest.mark.parametrize("leaf", AUXILIARY)
@pytest.mark.parametrize("prior", [bnn.priors.Normal(1.0), bnn.priors.Hierarchical(1.0, 1.0)])
def test_parameters_called_as_sites_of_priors_are_refused(leaf, prior):
    with pytest.raises(ValueError, match=rf"Named has parameters that are called \['{leaf}'\]"):
        bound(Named(leaf), prior, X)
    bound(Named(f"my_{leaf}"), prior, X)


def test_parameters_of_nnx_are_refused_too():
    with pytest.raises(ValueError, match=r"NamedNNX has parameters that are called \['base'\]"):
        bound(NamedNNX(), bnn.priors.Normal(1.0))


@pytest.mark.parametrize("groups", ["array", "layer", lambda path: "all"])
@pytest.mark.parametrize("parameterization", ["noncentered", "centered", "collapsed"])
def test_precisions_of_any_group_are_no_parameters(groups, parameterization):
    prior = bnn.priors.Hierarchical(1.0, 1.0, parameterization, groups)
    module = nets.MLP(1)
    with handlers.seed(rng_seed=0), handlers.trace() as sites:
        net = bnn.random_module("net", module, prior, X)
    draws = {name: site["value"] for name, site in sites.items() if name.startswith("net/")}
    assert any(map(is_auxiliary, draws))
    found, expected = bnn.to_params(draws), net.params
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    np.testing.assert_array_equal(module.apply({"params": found}, X), net(X))


@pytest.mark.parametrize("own", ["base", "global_scale", "group.base"])
def test_sites_that_a_model_names_so_itself_are_kept(own):
    def model(x, y=None):
        shift = numpyro.sample(own, dist.Normal(0.0, 1.0))
        bnn.likelihoods.gaussian(shift * x[:, 0], y, noise=0.5)

    kernel = bnn.BAOAB(model, step_size=0.1)
    mcmc = bnn.MCMC(kernel, num_warmup=20, num_samples=40, progress_bar=False)
    mcmc.run(jax.random.key(0), X, X[:, 0])
    assert own in bnn.to_inference_data(mcmc, X, X[:, 0])["posterior"]
    assert [group.name for group in bnn.diagnose(mcmc, X).weights.groups] == [own]
