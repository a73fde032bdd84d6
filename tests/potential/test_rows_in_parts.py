"""Rows computed apart may be subsampled; the likelihood in chunks has the same energy, in less memory."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from numpyro.infer import HMC, NUTS
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.potential.compiled_arguments import map_in_blocks
from numpyro_bnn.potential.potential import Chunked
from numpyro_bnn.potential.rows_in_parts import same_in_parts

W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
TABLE = jnp.arange(20.0).reshape(10, 2)
KEY = jax.random.key(0)


def labels(x):
    return jnp.abs(x[:, 0]).astype(int)


def along(x):
    """A recurrent cell along the rows."""
    return jax.lax.scan(lambda h, v: ((0.9 * h + v),) * 2, 0.0, x[:, 0])[1]


def within(x):
    """A recurrent cell along the columns of each row."""
    return jax.lax.scan(lambda h, v: ((jnp.tanh(h) + v),) * 2, jnp.zeros(len(x)), x.T)[1].T


class Block(nn.Module):
    """Layers that networks on images are made of."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(3, (3, 3))(x.reshape(-1, 2, 2, 1))
        x = nn.BatchNorm(use_running_average=True)(x)
        x = nn.GroupNorm(1)(nn.relu(x))
        x = nn.max_pool(x, (2, 2)) + nn.avg_pool(x, (2, 2))
        return nn.Dense(2)(x.reshape(len(x), -1))


class Sequence(nn.Module):
    """Layers on sequences, one a row."""

    @nn.compact
    def __call__(self, x):
        x = nn.Embed(10, 4)(jnp.abs(x).astype(int) % 10)
        x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(2)(x, x))
        return nn.RNN(nn.LSTMCell(3))(x)[:, -1]


def network(module):
    weights = module.init(KEY, jnp.ones((3, 4)))
    return lambda x: module.apply(weights, x)


SEPARATE = {
    "products": lambda x: jax.nn.gelu(x @ W) @ W.T,
    "products from the left": lambda x: (W.T @ x.T).T,
    "turned": lambda x: W.T @ x.T,
    "pairs within a row": lambda x: jnp.einsum("ni,nj->nij", x, x),
    "softmax of classes": lambda x: jax.nn.softmax(x @ W),
    "sorted within": lambda x: jnp.sort(x, 1)[:, ::-1],
    "sums within": lambda x: jnp.cumsum(x, 1) + x.max(1, keepdims=True),
    "one hot": lambda x: jax.nn.one_hot(labels(x), 5),
    "looked up": lambda x: TABLE[labels(x)] + jnp.take(TABLE[:, 0], labels(x))[:, None],
    "columns": lambda x: jnp.concatenate([x[:, jnp.array([0, 2])], x[:, 1:3] ** 2], 1),
    "columns of each row": lambda x: jnp.take_along_axis(x, labels(x)[:, None] % 4, 1),
    "mask": lambda x: jnp.where(x > 0, x, jnp.zeros_like(x)),
    "two axes for one": lambda x: x.reshape(-1, 2, 2).transpose(1, 0, 2).sum(0),
    "constant": lambda x: jnp.ones(len(x)) * 2.0,
    "recurrent within": within,
    "mapped": jax.vmap(lambda row: jnp.tanh(row @ W).sum()),
    "checkpointed": jax.checkpoint(lambda x: jnp.tanh(x @ W)),
    "a sum that is not used": lambda x: (x.mean(0), x @ W)[1],
}
DEPENDENT = {
    "standardised": lambda x: (x - x.mean(0)) / x.std(0),
    "summed along": lambda x: jnp.cumsum(x, 0),
    "recurrent": along,
    "lag": lambda x: x - jnp.roll(x, 1, 0),
    "lag by a slice": lambda x: x.at[1:].add(x[:-1]),
    "later rows": lambda x: jnp.cumsum(x[::-1], 0)[::-1],
    "first row": lambda x: x - x[:1],
    "place": lambda x: x[:, 0] + jnp.arange(len(x)),
    "looked up by place": lambda x: TABLE[jnp.arange(len(x)) % 10],
    "number of rows": lambda x: x / len(x),
    "power of it": lambda x: (1 + x**2) ** -len(x),
    "attention": lambda x: jax.nn.softmax(x @ x.T) @ x,
    "classes of the wrong axis": lambda x: jax.nn.softmax(x @ W, 0),
    "order": lambda x: jnp.argsort(x[:, 0]),
    "one number": lambda x: (x[:, 0], x.std()),
    "convolution along": lambda x: jnp.convolve(x[:, 0], jnp.ones(3), mode="same"),
}


def by_numbers(function, size=24, part=8):
    x = np.random.default_rng(1).normal(size=(size, 4)).astype(np.float32)
    return same_in_parts(function, lambda rows: (jnp.asarray(x[rows]),), size, part, size)


@pytest.fixture(autouse=True)
def _(recwarn):
    """float is float32 here, of which JAX warns."""


@pytest.mark.parametrize("name", SEPARATE)
def test_separate_rows_have_the_same_results_in_parts(name):
    assert by_numbers(SEPARATE[name])


@pytest.mark.parametrize("module", [Block(), Sequence(), nn.Dense(2)])
def test_layers_of_networks_are_seen_to_be_separate(module):
    assert by_numbers(network(module))


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_depend_on_one_another_are_not(name):
    assert not by_numbers(DEPENDENT[name])


def test_a_model_that_relates_rows_at_some_numbers_of_them_is_not():
    """One row of each pair, where all rows make pairs."""

    def pairs(x):
        return x * 0 if len(x) % 2 else x.reshape(-1, 8)[:, :4].repeat(2, 0)

    assert not by_numbers(pairs, 64, 31)


@pytest.mark.parametrize("count", [1, 32, 33, 95, 1201])
def test_a_function_of_entries_is_traced_once_whatever_their_number(count):
    traced = []

    def one(entry):
        traced.append(entry)
        return 2 * entry[0], jax.random.normal(entry[1])

    entries = jnp.arange(3.0 * count).reshape(count, 3), jax.random.split(jax.random.key(0), count)
    found = jax.jit(lambda entries: map_in_blocks(one, entries, 32))(entries)
    assert len(traced) == 1
    jax.tree.map(np.testing.assert_array_equal, found, jax.vmap(one)(entries))


rng = np.random.default_rng(0)
X = rng.normal(size=(30, 2)).astype(np.float32)
Y = rng.normal(size=30).astype(np.float32)
MESSAGE = r"rows of plate 'd' depend on one another.*`chunk_size=`"


def model_of(feature, weights=None):
    """`feature` takes the rows of a minibatch, and all rows."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("d", len(x)):
            some = numpyro.subsample(jnp.asarray(x), event_dim=1)
            target = None if y is None else numpyro.subsample(jnp.asarray(y), event_dim=0)
            times = jnp.ones(len(x)) if weights is None else weights(x)
            times = numpyro.subsample(times, event_dim=0)
            with numpyro.handlers.scale(scale=times):
                numpyro.sample("y", dist.Normal(w * feature(some, x), scale), obs=target)

    return model


RELATED = {
    "summed along": lambda some, _: jnp.cumsum(some[:, 0]),
    "standardised": lambda some, _: (some[:, 0] - some[:, 0].mean()) / some[:, 0].std(),
    "lag": lambda some, _: some[:, 0] - jnp.roll(some[:, 0], 1),
    "place": lambda some, _: some[:, 0] + jnp.arange(len(some)),
    "number of rows": lambda some, _: some[:, 0] / len(some),
}
ALONE = {
    "network": lambda some, _: jnp.tanh(some) @ jnp.ones(2),
    "standardised by all": lambda some, x: ((some - x.mean(0)) / x.std(0))[:, 0],
    "looped": lambda some, _: jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, some[:, 0])
    )[1],
    "dropout": lambda some, _: (
        some[:, 0] * jax.random.bernoulli(numpyro.prng_key(), 0.5, (len(some),))
    ),
}


@pytest.mark.parametrize("name", RELATED)
def test_rows_that_depend_on_one_another_are_refused(name):
    """Also where data are traced."""

    def plate(x, y):
        bnn.potential_of(model_of(RELATED[name]), x, y).data_plate()
        return x

    for look in (plate, jax.jit(plate)):
        with pytest.raises(ValueError, match=MESSAGE):
            look(X, Y)


@pytest.mark.parametrize("name", ALONE)
def test_rows_that_are_alone_are_taken(name):
    assert bnn.potential_of(model_of(ALONE[name]), X, Y).data_plate() == ("d", 30)


def test_a_constant_array_of_the_model_counts():
    """Programs that differ in a constant alone are two programs."""

    def less_mean(share):
        share = jnp.asarray([share])
        return model_of(lambda some, _: some[:, 0] - share * some[:, 0].mean())

    assert bnn.potential_of(less_mean(0.0), X, Y).data_plate() == ("d", 30)
    with pytest.raises(ValueError, match=MESSAGE):
        bnn.potential_of(less_mean(1.0), X, Y).data_plate()


class Normalised(nn.Module):
    """A layer that subtracts means over the rows that it gets."""

    @nn.compact
    def __call__(self, x):
        hidden = nn.Dense(3)(x)
        return nn.Dense(1)(jnp.tanh(hidden - hidden.mean(0)))[:, 0]


PRIORS = {"fan-in": bnn.priors.FanIn(), "by unit": bnn.priors.Hierarchical.width(1.0, unit=1.0)}


@pytest.mark.parametrize("prior", PRIORS)
def test_networks_that_relate_rows_are_refused_under_any_prior(prior):
    """Priors that ask for the layout of arrays made this check fail, unseen."""

    def model(x, y=None):
        net = bnn.random_module("net", Normalised(), PRIORS[prior], x[:1])
        with numpyro.plate("d", len(x)):
            mean = net(numpyro.subsample(x, event_dim=1))
            target = None if y is None else numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=target)

    with pytest.raises(ValueError, match=MESSAGE):
        bnn.potential_of(model, X, Y).data_plate()


def test_weights_of_rows_are_no_dependence():
    model = model_of(ALONE["network"], weights=lambda x: 1 + jnp.abs(x[:, 0]))
    assert bnn.potential_of(model, X, Y).data_plate() == ("d", 30)


def sampler(kind, model):
    """The `run` of a sampler."""
    once = {"num_warmup": 1, "num_samples": 1, "progress_bar": False}
    kernels = {
        "chunks": lambda: bnn.MCMC(NUTS(model), chunk_size=7, **once),
        "full in chunks": lambda: bnn.MCMC(
            bnn.SGHMC(model, step_size=0.01, friction=1.0, gradient=bnn.gradients.full(7)), **once
        ),
        "minibatches": lambda: bnn.MCMC(bnn.SGLD(model, step_size=0.01, batch_size=7), **once),
    }
    return kernels[kind]().run


DOORS = {kind: partial(sampler, kind) for kind in ("chunks", "full in chunks", "minibatches")}
DOORS["an optimiser"] = lambda model: partial(bnn.optimize, model, num_steps=2, batch_size=7)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_them(door):
    with pytest.raises(ValueError, match=MESSAGE):
        DOORS[door](model_of(RELATED["summed along"]))(jax.random.key(0), X, Y)


def test_data_on_the_host_are_refused_too():
    def on_host(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("d", x.shape[0]):
            some = numpyro.subsample(x, event_dim=1)
            target = None if y is None else numpyro.subsample(jnp.asarray(y), event_dim=0)
            numpyro.sample("y", dist.Normal(w * jnp.cumsum(some[:, 0]), 1.0), obs=target)

    with pytest.raises(ValueError, match=MESSAGE):
        DOORS["minibatches"](on_host)(jax.random.key(0), bnn.OnHost(X), Y)


def test_a_check_that_fails_is_no_sign_that_rows_are_independent(monkeypatch):
    def fails(*given):
        raise MemoryError("no room for the check")

    monkeypatch.setattr("numpyro_bnn.potential.rows_in_parts.same_in_parts", fails)
    numbers = rng.normal(size=2)
    model = model_of(lambda some, _: some @ jnp.asarray(numbers))
    with pytest.raises(MemoryError, match="no room"):
        bnn.potential_of(model, X, Y).data_plate()


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
