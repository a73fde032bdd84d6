"""Small networks that several test files put into models."""

import logging
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from flax import nnx

from numpyro_bnn import likelihoods, priors, random_module
from numpyro_bnn.potential.structure import structure_of

# Before Flax 0.12 a list of submodules is a plain list.
ModuleList = getattr(nnx, "List", list)


class Linear(nn.Module):
    """A linear model with one output, as vector (N,)."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x).squeeze(-1)


def linear_regression(x, y=None, *, scale, noise):
    """Sites and distribution of :class:`Linear` under Gaussian weights; without Flax it traces faster."""
    shapes = {"bias": (1,), "kernel": (x.shape[1], 1)}
    bias, kernel = (
        numpyro.sample(f"net/Dense_0.{part}", dist.Normal(0.0, scale).expand(shape).to_event())
        for part, shape in shapes.items()
    )
    likelihoods.gaussian(lambda rows: (rows @ kernel + bias)[:, 0], y, x=x, noise=noise)


class MLP(nn.Module):
    """Compact style."""

    outputs: int = 2

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(nn.tanh(nn.Dense(4)(x)))


class SetupMLP(nn.Module):
    """`setup` style, with a list of submodules."""

    def setup(self):
        self.layers = [nn.Dense(4), nn.Dense(2)]

    def __call__(self, x):
        return self.layers[1](nn.tanh(self.layers[0](x)))


class Shared(nn.Module):
    """One layer called twice."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(3)
        return layer(nn.tanh(layer(x)))


class Conv(nn.Module):
    """Convolution with both normalisations that need no statistics."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.GroupNorm(num_groups=2)(nn.Conv(4, (3, 2))(x)))
        return nn.Dense(2)(nn.LayerNorm()(x.mean((1, 2))))


class Attention(nn.Module):
    """Token embedding and one block of self-attention."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(5, 4)(tokens)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=6)(nn.LayerNorm()(x))
        return nn.Dense(2)(x.mean(-2))


class Recurrent(nn.Module):
    """LSTM cell run over a sequence."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.RNN(nn.LSTMCell(3))(x)[..., -1, :])


class BatchNorm(nn.Module):
    """Keeps running statistics."""

    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(1)(nn.BatchNorm(use_running_average=not train)(x))


class Dropout(nn.Module):
    """Says that it drops, whoever calls it."""

    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(8)(x))


class NNXMLP(nnx.Module):
    """Multilayer perceptron with its layers in a list."""

    def __init__(self, rngs, outputs=2):
        self.layers = ModuleList([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, outputs, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](nnx.tanh(self.layers[0](x)))


class NNXShared(nnx.Module):
    """The same layer under two names."""

    def __init__(self, rngs):
        self.first = nnx.Linear(3, 3, rngs=rngs)
        self.second = self.first

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))


class NNXConv(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 2), rngs=rngs)
        self.group = nnx.GroupNorm(4, num_groups=2, rngs=rngs)
        self.layer = nnx.LayerNorm(4, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.layer(nnx.relu(self.group(self.conv(x))).mean((1, 2))))


class NNXAttention(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(5, 4, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, 6, decode=False, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        return self.head((x + self.attention(x)).mean(-2))


class NNXRecurrent(nnx.Module):
    def __init__(self, rngs):
        self.cell = nnx.LSTMCell(2, 3, rngs=rngs)
        self.head = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        carry = (jnp.zeros((x.shape[0], 3)), jnp.zeros((x.shape[0], 3)))
        for t in range(x.shape[1]):
            carry, out = self.cell(carry, x[:, t])
        return self.head(out)


class NNXBatchNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.head = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x, train=None):
        return self.head(self.norm(x, use_running_average=None if train is None else not train))


class NNXDropout(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, deterministic=None):
        return self.drop(self.layer(x), deterministic=deterministic)


class NNXTable(nnx.Module):
    """A parameter that is a whole number: which input columns are used."""

    def __init__(self, rngs):
        self.columns = nnx.Param(jnp.array([2, 0]))
        self.layer = nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x):
        return self.layer(x[:, jnp.asarray(self.columns[...])])


def inputs(kind, rows=3):
    """Example inputs of a network: plain rows, images, tokens or sequences."""
    rng = np.random.default_rng(7)
    shapes = {"rows": (rows, 3), "image": (rows, 5, 4, 1), "sequence": (rows, 4, 2)}
    if kind == "tokens":
        return jnp.asarray(rng.integers(0, 5, (rows, 4)))
    return jnp.asarray(rng.normal(size=shapes[kind]), jnp.float32)


def weights(model, *args, seed=0):
    """Values of every latent site, without the cost of compiling what draws them."""
    rng = np.random.default_rng(seed)
    structure = structure_of(model, args, {})
    return {
        name: jnp.asarray(0.5 * rng.normal(size=structure.sites[name].shape), jnp.float32)
        for name in structure.latent
    }


def shapes_of(module, *example, prior=None):
    """What `random_module` gives a prior of a network."""
    asked, prior = {}, prior or priors.Normal(1.0)

    class Spy(priors.Prior):
        def sample(self, name, shapes):
            asked.update(shapes)
            return prior.sample(name, shapes)

    def model():
        random_module("net", module, Spy(), *example)

    jax.eval_shape(lambda key: numpyro.handlers.seed(model, key)(), jax.random.key(0))
    return asked


def starts(num_chains, model, *args):
    """Starts of some chains: a run that looks for its own compiles a long program to find them."""
    values = [weights(model, *args, seed=chain) for chain in range(num_chains)]
    return values[0] if num_chains == 1 else jax.tree.map(lambda *z: jnp.stack(z), *values)


@contextmanager
def double():
    """Float64 inside the block only."""
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


@contextmanager
def compilations():
    """Programs that are compiled inside."""
    found = []

    class Heard(logging.Handler):
        def emit(self, record):
            if "Finished XLA compilation" in record.getMessage():
                found.append(record.getMessage())

    logger, handler = logging.getLogger("jax._src.dispatch"), Heard(logging.DEBUG)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
