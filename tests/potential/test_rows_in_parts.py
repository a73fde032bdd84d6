"""Whether each row of a result is computed from one row, seen in numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from numpyro_bnn.potential.compiled_arguments import map_in_blocks
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
