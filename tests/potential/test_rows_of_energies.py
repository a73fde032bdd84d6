"""Minibatches and chunks are refused where rows depend on one another, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from numpyro.infer import NUTS

import numpyro_bnn as bnn

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
    with pytest.raises(ValueError, match=MESSAGE):
        bnn.potential_of(model_of(RELATED[name]), X, Y).data_plate()


@pytest.mark.parametrize("name", RELATED)
def test_they_are_refused_where_data_are_traced_too(name):
    def plate(x, y):
        bnn.potential_of(model_of(RELATED[name]), x, y).data_plate()
        return x

    with pytest.raises(ValueError, match=MESSAGE):
        jax.jit(plate)(X, Y)


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
    once = {"num_warmup": 1, "num_samples": 1, "progress_bar": False}
    kernels = {
        "chunks": lambda: bnn.MCMC(NUTS(model), chunk_size=7, **once),
        "full in chunks": lambda: bnn.MCMC(
            bnn.SGHMC(model, step_size=0.01, friction=1.0, gradient=bnn.gradients.full(7)), **once
        ),
        "minibatches": lambda: bnn.MCMC(bnn.SGLD(model, step_size=0.01, batch_size=7), **once),
    }
    return kernels[kind]()


@pytest.mark.parametrize("kind", ["chunks", "full in chunks", "minibatches"])
def test_samplers_refuse_them(kind):
    model = model_of(RELATED["summed along"])
    with pytest.raises(ValueError, match=MESSAGE):
        sampler(kind, model).run(jax.random.key(0), X, Y)


def test_an_optimiser_refuses_them():
    with pytest.raises(ValueError, match=MESSAGE):
        bnn.optimize(
            model_of(RELATED["standardised"]), jax.random.key(0), X, Y, num_steps=2, batch_size=7
        )


def test_data_on_the_host_are_refused_too():
    def on_host(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("d", x.shape[0]):
            some = numpyro.subsample(x, event_dim=1)
            target = None if y is None else numpyro.subsample(jnp.asarray(y), event_dim=0)
            numpyro.sample("y", dist.Normal(w * jnp.cumsum(some[:, 0]), 1.0), obs=target)

    with pytest.raises(ValueError, match=MESSAGE):
        sampler("minibatches", on_host).run(jax.random.key(0), bnn.OnHost(X), Y)


def test_a_check_that_fails_is_no_sign_that_rows_are_independent(monkeypatch):
    def fails(*given):
        raise MemoryError("no room for the check")

    monkeypatch.setattr("numpyro_bnn.potential.rows_in_parts.same_in_parts", fails)
    numbers = rng.normal(size=2)
    model = model_of(lambda some, _: some @ jnp.asarray(numbers))
    with pytest.raises(MemoryError, match="no room"):
        bnn.potential_of(model, X, Y).data_plate()
