"""One precision for each unit that a layer reads: an entry of its input, or a channel of a convolution."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from flax import linen as nn
from flax import nnx
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.distributions.stable_densities import Gamma
from numpyro_bnn.priors.precision_conditionals import Array, GammaScaleMixture, Level

SEQUENCE = np.ones((1, 10, 6), np.float32)
PRIOR = priors.Hierarchical.width(1.0, group=1.0, unit=1.0, scale_by_fan_in=True)


@functools.cache
def scales_of(make, *example):
    """The precisions of the units of a kernel, and the scale of each of its entries."""
    inputs = (SEQUENCE,) * bool(example)
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as sites:
        bnn.random_module("net", make(), PRIOR, *inputs)
    (site,) = [s.removesuffix(".base") for s in sites if s.endswith(("kernel.base", "weight.base"))]
    scale = sites[site]["value"] / sites[f"{site}.base"]["value"]
    return np.asarray(sites[f"{site}.unit_precision"]["value"]), np.asarray(scale)


LAYERS = {
    "each channel": lambda: nn.Conv(6, (3,), feature_group_count=6),
    "two groups": lambda: nn.Conv(8, (3,), feature_group_count=2),
    "two axes": lambda: nn.DenseGeneral(5, axis=(-2, -1)),
    "einsum": lambda: nn.Einsum((10, 6, 5), "bij,ijk->bk"),
    "unshared": lambda: nn.ConvLocal(4, (3,)),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("each channel", (6, 1)),
        ("two groups", (2, 3)),
        ("two axes", (10, 6)),
        ("einsum", (10, 6)),
        ("unshared", (6,)),
    ],
)
def test_each_entry_of_the_input_that_weights_tell_apart_has_a_precision(name, shape):
    """Rescaling one unit of the input is what its precision undoes: one unit has one scale."""
    precision, scale = scales_of(LAYERS[name], "x")
    assert precision.shape == shape
    # A network of the scales themselves: the derivative by an input is made of scales of its own unit.
    layer = LAYERS[name]()
    params = {"kernel": jnp.asarray(scale)}
    if name != "einsum" or layer.use_bias:
        bias = layer.init(jax.random.key(0), SEQUENCE)["params"]["bias"]
        params["bias"] = jnp.zeros_like(bias)
    jacobian = jax.jacobian(lambda x: layer.apply({"params": params}, x).ravel())
    slopes = np.asarray(jacobian(SEQUENCE))[:, 0]
    for position in range(slopes.shape[1]):
        for channel in range(slopes.shape[2]):
            found = slopes[:, position, channel]
            own = {
                "each channel": (channel, 0),
                "two groups": (channel // 3, channel % 3),
                "unshared": (channel,),
            }.get(name, (position, channel))
            found = found[found != 0] * np.sqrt(precision[own])
            np.testing.assert_allclose(found, found[0], rtol=1e-4)


def test_layers_of_nnx_and_equinox_have_the_units_of_linen():
    grouped = functools.partial(
        nnx.Conv, 6, 8, (3,), feature_group_count=2, rngs=nnx.Rngs(0), use_bias=False
    )
    assert scales_of(grouped)[0].shape == (2, 3)
    key = jax.random.key(0)
    precision, scale = scales_of(lambda: eqx.nn.Conv1d(6, 8, 3, groups=2, use_bias=False, key=key))
    assert precision.shape == (2, 3)
    for out in range(8):
        expected = scale[0, 0, 0] * np.sqrt(precision[0, 0] / precision[out // 4])
        np.testing.assert_allclose(scale[out], np.tile(expected[:, None], 3), rtol=1e-4)


UNITS = ((3, 2), (1, 1))  # two groups of three inputs, of a kernel (2, 3, 5, 4)
GROUPED = Array("w", UNITS, 0.5)
SHAPE = (2, 3, 5, 4)


def test_precisions_of_groups_are_conjugate_and_have_the_density_of_their_integral():
    rng = np.random.default_rng(0)
    # NumPy's entries: each of JAX's would be a program.
    weights = rng.normal(size=SHAPE).astype(np.float32)
    precision = rng.gamma(2.0, size=(2, 3)).astype(np.float32)
    spread = np.broadcast_to(GROUPED.spread(jnp.asarray(precision), 4), SHAPE)
    for index in np.ndindex(SHAPE):
        assert spread[index] == precision[index[3] // 2, index[1]]
    # Bayes' rule: p(w) = p(w | t) p(t) / p(t | w), at any t.
    level = Level("t", 1.5, 0.7, None, (GROUPED,))
    given = stats.norm(scale=(0.5 * spread) ** -0.5).logpdf(weights).sum()
    prior = Gamma(1.5, 0.7).log_prob(precision).sum()
    after = level.conditional({"w": weights}).log_prob(precision).sum()
    distribution = GammaScaleMixture(1.5, 0.7, SHAPE, GROUPED)
    np.testing.assert_allclose(distribution.log_prob(weights), given + prior - after, rtol=1e-4)
    several = np.stack([weights, 2 * weights])
    np.testing.assert_allclose(
        distribution.log_prob(several), [distribution.log_prob(w) for w in several], rtol=1e-5
    )
    draws = np.asarray(distribution.sample(jax.random.key(0), (4000,)))
    assert draws.shape == (4000, *SHAPE)
    t = stats.t(3.0, scale=np.sqrt(0.7 / 0.5 / 1.5))
    assert stats.kstest(draws[:, 1, 2, 3, 2], t.cdf).pvalue > 1e-3
    # Entries of one unit are drawn with one precision: their squares go together, those of others do not.
    squares = np.log(np.square(draws.astype(float)))
    within = np.corrcoef(squares[:, 0, 1, 0, 0], squares[:, 1, 1, 4, 1])[0, 1]
    across = np.corrcoef(squares[:, 0, 1, 0, 0], squares[:, 0, 1, 0, 2])[0, 1]
    assert within > 0.1 > 0.06 > abs(across)
