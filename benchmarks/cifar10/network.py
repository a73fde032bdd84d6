"""ResNet-20 with filter response normalisation and swish, and its posterior as a NumPyro model.

He et al., *Deep residual learning* (2016), section 4.2, with batch normalisation and ReLU replaced
as in Izmailov et al. (2021): batch normalisation makes the likelihood of a row depend on the rows
beside it, and ReLU has kinks. Normalisation: Singh and Krishnan, *Filter response normalization
layer* (2020).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from jax import lax

import numpyro_bnn as bnn
from benchmarks.cifar10.data import CLASSES, standardized

# Variance of every parameter a priori.
PRIOR_VARIANCE = 1 / 5
# Images that go through the network at once where a pass over all of them is asked for.
CHUNK = 1024


class FilterResponseNorm(nn.Module):
    """y = max(γ x / √(ν² + 1e-6) + β, τ), ν² the mean square over space; γ, β, τ by channel."""

    @nn.compact
    def __call__(self, x):
        shape = x.shape[-1:]
        gamma = self.param("gamma", nn.initializers.ones, shape)
        beta = self.param("beta", nn.initializers.zeros, shape)
        tau = self.param("tau", nn.initializers.zeros, shape)
        mean_square = jnp.mean(x**2, axis=(1, 2), keepdims=True)
        return jnp.maximum(gamma * x * lax.rsqrt(mean_square + 1e-6) + beta, tau)


class Layer(nn.Module):
    """Convolution with bias, normalisation, and swish where asked for."""

    filters: int
    size: int = 3
    stride: int = 1
    swish: bool = True

    @nn.compact
    def __call__(self, x):
        window, stride = (self.size, self.size), (self.stride, self.stride)
        x = nn.Conv(self.filters, window, stride, padding="SAME")(x)
        x = FilterResponseNorm()(x)
        return nn.swish(x) if self.swish else x


class ResNet(nn.Module):
    """The network; 20 layers with weights at the defaults."""

    filters: tuple[int, ...] = (16, 32, 64)  # of each stage
    blocks: int = 3  # in each stage, two layers a block

    @nn.compact
    def __call__(self, x):
        x = Layer(self.filters[0])(x)
        for stage, filters in enumerate(self.filters):
            for block in range(self.blocks):
                stride = 2 if stage and not block else 1
                y = Layer(filters, stride=stride)(x)
                y = Layer(filters, swish=False)(y)
                if x.shape != y.shape:
                    x = Layer(filters, 1, stride, swish=False)(x)
                x = nn.swish(x + y)
        x = nn.avg_pool(x, (8, 8), (8, 8))
        return nn.Dense(CLASSES)(x.reshape(x.shape[0], -1))


def in_chunks(network: Callable, x: jax.Array) -> jax.Array:
    """Logits of many images in the memory of :data:`CHUNK`, their gradient included.

    A chunk's activations are computed again for its gradient: kept, those of 40,960 images
    would fill 50 GB.
    """
    whole, rest = divmod(len(x), CHUNK)
    if not whole:
        return network(standardized(x))

    @jax.checkpoint
    def chunk(x):
        return network(standardized(x))

    chunks = x[: whole * CHUNK].reshape(whole, CHUNK, *x.shape[1:])
    logits = lax.map(chunk, chunks).reshape(whole * CHUNK, CLASSES)
    return jnp.concatenate([logits, chunk(x[whole * CHUNK :])]) if rest else logits


def posterior_of(network: nn.Module) -> Callable:
    """``model(x, y=None, x_test=None)`` of images as uint8: normal weights, classes from logits.

    `x_test` adds the site ``"probs"``, which no energy depends on, so that a sampler can record it.
    """

    def model(x, y=None, x_test=None):
        net = bnn.random_module("net", network, bnn.priors.Normal(PRIOR_VARIANCE**0.5), x[:1])
        if x_test is not None:
            numpyro.deterministic("probs", jax.nn.softmax(in_chunks(net, x_test)))
        with numpyro.plate("data", x.shape[0]):
            rows = numpyro.subsample(x, event_dim=3)
            target = None if y is None else numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Categorical(logits=in_chunks(net, rows)), obs=target)

    return model
