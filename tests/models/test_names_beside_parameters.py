"""Names of sites beside parameters, and starts of several chains from the weights of one network."""

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

PARAMS = {
    "Conv_0": {"kernel": np.full((3, 3), 2.0), "bias": np.zeros(4000)},
    "Dense_0": {"kernel": np.linspace(-3.0, 3.0, 5000), "bias": np.ones(2)},
}


def test_one_start_a_chain():
    starts = bnn.from_params(PARAMS, num_chains=3)
    assert {name: v.shape[0] for name, v in starts.items()} == dict.fromkeys(starts, 3)
    for name, value in bnn.from_params(PARAMS).items():
        np.testing.assert_array_equal(starts[name], np.stack([value] * 3))


def test_jitter_is_in_units_of_each_array():
    starts = bnn.from_params(PARAMS, "f", num_chains=4, jitter=0.1, key=jax.random.key(1))
    kernel = np.asarray(starts["f/Dense_0.kernel"])
    size = np.sqrt(np.mean(np.square(PARAMS["Dense_0"]["kernel"])))
    noise = kernel - np.asarray(PARAMS["Dense_0"]["kernel"])
    # 20,000 normal numbers: a standard error of half a percent.
    assert noise.std() == pytest.approx(0.1 * size, rel=0.02)
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.06
    # An array of zeros has no size of its own.
    assert np.asarray(starts["f/Conv_0.bias"]).std() == pytest.approx(0.1, rel=0.03)
    again = bnn.from_params(PARAMS, "f", num_chains=4, jitter=0.1, key=jax.random.key(1))
    np.testing.assert_array_equal(again["f/Dense_0.kernel"], kernel)


@pytest.mark.parametrize("fixed", [("Conv_0",), ("Conv_0.kernel", "Conv_0.bias")])
def test_parameters_that_are_not_random_are_left_out(fixed):
    assert set(bnn.from_params(PARAMS, fixed=fixed)) == {"net/Dense_0.kernel", "net/Dense_0.bias"}


def test_starts_of_a_last_layer_are_taken_by_a_run():
    x, y = np.linspace(-1, 1, 6)[:, None], np.linspace(0, 1, 6)
    network = nets.MLP(1)
    params = network.init(jax.random.key(0), x)["params"]
    first, last = sorted(params)
    prior = bnn.priors.ByPath({f"{first}.*": None, "*": bnn.priors.Normal(1.0)})

    def model(x, y=None):
        net = bnn.random_module("net", network, prior, x, params=params)
        bnn.likelihoods.gaussian(net(x).squeeze(-1), y, noise=0.5)

    starts = bnn.from_params(params, num_chains=2, jitter=0.1, fixed=(first,))
    assert {name.split("/")[1].split(".")[0] for name in starts} == {last}
    kernel = bnn.BAOAB(model, step_size=1e-3)
    mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=2, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y, init_params=starts)
    for name, value in starts.items():
        begun = np.asarray(mcmc.get_samples(group_by_chain=True)[name])[:, 0]
        np.testing.assert_allclose(begun, value, atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chains": 0}, "num_chains must be a positive integer, got 0"),
        ({"fixed": ("Conv",)}, "fixed='Conv' is no path of these parameters; there are"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bnn.from_params(PARAMS, **options)


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
