"""The likelihood in chunks: the same energy, gradient and draws, in less memory."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.potential.potential import Chunked


def model(x, y=None):
    net = bnn.random_module("net", nets.Linear(), priors.Normal(1.0), x[:1])
    numpyro.deterministic("first", net(x)[0])
    bnn.likelihoods.gaussian(net, y, x=x, noise=dist.HalfNormal(1.0))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(23, 2)).astype(np.float32)
    return x, x @ np.array([1.0, -0.5], np.float32) + 0.3


# One row at a time, a rest, a divisor of the rows, and more than there are.
@pytest.mark.parametrize("chunk_size", [pytest.param(1, marks=pytest.mark.slow), 5, 23, 30])
def test_energy_and_gradient_are_those_of_all_rows(chunk_size, data):
    with nets.double():
        x, y = (jnp.asarray(v, float) for v in data)
        z = jax.tree.map(lambda v: v.astype(float), nets.weights(model, x, y))
        whole = jax.jit(jax.value_and_grad(bnn.potential_of(model, x, y)))
        parts = jax.jit(jax.value_and_grad(bnn.potential_of(Chunked(model, chunk_size), x, y)))
        for direction in (0.0, 0.3):
            at = jax.tree.map(lambda v, direction=direction: v + direction, z)
            (expected, gradient), (value, found) = whole(at), parts(at)
            np.testing.assert_allclose(value, expected, rtol=1e-12)
            for site, slope in gradient.items():
                np.testing.assert_allclose(found[site], slope, rtol=1e-9, atol=1e-12)


def test_single_precision_weights_may_meet_rows_in_double_precision(data):
    with nets.double():
        x, y = (jnp.asarray(v, float) for v in data)
        z = nets.weights(model, x, y)
        assert {leaf.dtype for leaf in jax.tree.leaves(z)} == {jnp.dtype("float32")}
        whole, parts = (
            jax.jit(jax.value_and_grad(bnn.potential_of(m, x, y)))
            for m in (model, Chunked(model, 5))
        )
        (expected, gradient), (value, found) = whole(z), parts(z)
        assert value.dtype == expected.dtype == jnp.float64
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        for site, slope in gradient.items():
            assert found[site].dtype == slope.dtype
            np.testing.assert_allclose(found[site], slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "chain_method",
    ["sequential", *(pytest.param(m, marks=pytest.mark.slow) for m in ("parallel", "vectorized"))],
)
def test_draws_are_those_of_all_rows_and_predict_as_ever(chain_method, data):
    x, _ = data
    made = []
    for chunk_size in (None, 5):
        kernel = HMC(model, step_size=0.02, trajectory_length=0.1, adapt_step_size=False)
        mcmc = quiet(kernel, 2, 4, 2, chain_method=chain_method, chunk_size=chunk_size)
        mcmc.run(jax.random.key(0), *data)
        made.append(mcmc)
    whole, parts = (mcmc.get_samples(group_by_chain=True) for mcmc in made)
    assert whole.keys() == parts.keys()
    for site, draws in whole.items():
        assert np.std(draws) > 0
        np.testing.assert_allclose(parts[site], draws, rtol=2e-3, atol=2e-4)
    assert bnn.predict(None, made[1], x).mean.shape == (2, 4, 23)
    assert "log_likelihood" in str(bnn.to_inference_data(made[1]))


@pytest.mark.slow
def test_mams_has_the_draws_of_all_rows(data):
    made = []
    for gradient in (None, bnn.gradients.full(chunk_size=5)):
        kernel = bnn.MAMS(model, step_size=0.01, trajectory_length=0.1, gradient=gradient)
        mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=4, progress_bar=False)
        mcmc.run(jax.random.key(0), *data)
        made.append(mcmc.get_samples())
    for site, draws in made[0].items():
        assert np.std(draws) > 0
        np.testing.assert_allclose(made[1][site], draws, rtol=2e-3, atol=2e-4)


def test_peak_memory_falls():
    """Temporary memory of the compiled gradient, as the compiler counts it."""

    def wide(x, y):
        net = bnn.random_module("net", bnn.MLP([64], 1), priors.Normal(1.0), x[:1])
        bnn.likelihoods.gaussian(lambda x: net(x)[:, 0], y, x=x, noise=1.0)

    x, y = jnp.ones((20_000, 4)), jnp.ones(20_000)
    z = nets.weights(wide, x, y)

    def temporary(model):
        def gradient(z, x, y):
            return jax.grad(bnn.potential_of(model, x, y))(z)

        return jax.jit(gradient).lower(z, x, y).compile().memory_analysis().temp_size_in_bytes

    whole, parts = temporary(wide), temporary(Chunked(wide, 500))
    assert whole > 20_000 * 64 * 4  # at least one hidden layer of all rows
    assert parts < whole / 8


def test_what_cannot_be_chunked_is_refused(data):
    with pytest.raises(ValueError, match=r"chunk_size=5 is for HMC or NUTS .* got SGLD"):
        bnn.MCMC(bnn.SGLD(model, step_size=0.1), num_warmup=1, num_samples=1, chunk_size=5)
    with pytest.raises(ValueError, match="chunk_size must be a positive integer, got 0"):
        bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1, chunk_size=0)

    def outside(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(w, 1).expand([23]), obs=y * 1.0)

    mcmc = bnn.MCMC(NUTS(outside), num_warmup=1, num_samples=1, chunk_size=5, progress_bar=False)
    with pytest.raises(ValueError, match="needs a plate around the observed sites"):
        mcmc.run(jax.random.key(0), *data)
