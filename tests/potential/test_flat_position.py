"""The position of a chain as one vector, and normals of its shape: their distribution and independence."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from numpyro_bnn.potential.flat_position import (
    FlatPosition,
    by_site,
    flat_like,
    flattened,
    hashed_bits,
    normal,
    normals_like,
)

SITES = {
    "b": jnp.asarray(np.arange(6.0).reshape(2, 3), jnp.float32),
    "a": jnp.asarray(np.float32(-1.0)),
    "c": jnp.asarray(np.arange(2.0) + 10, jnp.float32),
}


def test_sites_come_back_in_their_shapes():
    flat = flattened(SITES)
    np.testing.assert_array_equal(flat.vector, [-1, 0, 1, 2, 3, 4, 5, 10, 11])
    assert list(flat) == ["a", "b", "c"]
    assert len(flat) == 3
    for name, value in SITES.items():
        np.testing.assert_array_equal(flat[name], value)
    assert "'b': (2, 3)" in repr(flat)


def test_chains_lead():
    scaled = jax.vmap(lambda k: flattened(jax.tree.map(lambda v: k * v, SITES)))
    chains = jax.jit(scaled)(np.arange(4.0, dtype=np.float32))
    assert chains.vector.shape == (4, 9)
    for name, value in by_site(chains).items():
        np.testing.assert_array_equal(value[3], 3 * SITES[name])
    more = {name: np.asarray(value) + 1 for name, value in by_site(chains).items()}
    np.testing.assert_array_equal(chains.like(more).vector, np.asarray(chains.vector) + 1)


def test_one_leaf_of_a_tree():
    flat = flattened(SITES)
    ((path, leaf),) = jax.tree_util.tree_leaves_with_path(flat)
    assert jax.tree_util.keystr(path) == ".vector"
    assert leaf is flat.vector
    np.testing.assert_array_equal(jax.tree.map(jnp.negative, flat)["c"], [-10, -11])
    assert jax.tree.structure(flat) == jax.tree.structure(flat.like(SITES))
    again = pickle.loads(pickle.dumps(flat))
    np.testing.assert_array_equal(again.vector, flat.vector)


def test_a_gradient_is_that_of_the_sites():
    def energy(z):
        return jnp.sum(z["b"] ** 2) + z["a"] * z["c"][0]

    gradient = jax.jit(jax.grad(lambda flat: energy(flat.sites())))(flattened(SITES))
    expected = jax.jit(jax.grad(energy))(SITES)
    for name, value in gradient.sites().items():
        np.testing.assert_array_equal(value, expected[name])


def test_values_broadcast_to_their_sites():
    flat = flat_like(flattened(SITES), {"a": 1.0, "b": jnp.arange(3.0), "c": 2.0})
    np.testing.assert_array_equal(flat.vector, [1, 0, 1, 2, 0, 1, 2, 2, 2])


@pytest.mark.parametrize(
    "position",
    [
        pytest.param({"a": jnp.ones(2)}, id="one site"),
        pytest.param({"a": jnp.ones(2), "b": jnp.ones(2, jnp.bfloat16)}, id="two dtypes"),
        pytest.param({"a": jnp.ones(2), "b": np.ones(2)}, id="not of JAX"),
        pytest.param((jnp.ones(2), jnp.ones(2)), id="not by name"),
        pytest.param({"a": jnp.ones(2), "b": jnp.ones(1 << 14)}, id="large"),
    ],
)
def test_others_stay_as_they_are(position):
    assert flattened(position) is position
    assert by_site(position) is position


def test_values_of_other_sites_stay_as_they_are():
    other = {"a": 1.0}
    assert flat_like(flattened(SITES), other) is other
    assert flat_like(SITES, other) is other
    assert isinstance(flat_like(flattened(SITES), dict(SITES)), FlatPosition)


KEYS = jax.random.split(jax.random.key(20), 400)


def bits_of(key, size):
    return hashed_bits(jax.random.bits(key, (2,), jnp.uint32), (size,))


@pytest.fixture(scope="module")
def draws():
    """400 vectors of 10,000, as a sampler draws them: a key each."""
    return np.asarray(jax.jit(jax.vmap(lambda key: normal(key, (10_000,), jnp.float32)))(KEYS))


def test_moments_are_those_of_a_standard_normal(draws):
    number = draws.size
    x = draws.astype(np.float64)
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)]:
        assert abs((x**power).mean() - moment) < 5 * np.sqrt(variance / number)


def test_distribution_of_all_and_of_single_places(draws):
    assert stats.kstest(draws[:40].ravel(), "norm").pvalue > 1e-4
    by_place = [stats.kstest(draws[:, place], "norm").pvalue for place in range(0, 10_000, 97)]
    assert stats.kstest(by_place, "uniform").pvalue > 1e-4


def test_neighbours_in_place_and_in_time_are_independent(draws):
    x = draws.astype(np.float64)
    for power in (1, 2):
        y = x**power - (x**power).mean()
        variance = (y**2).mean()
        for lag in (1, 2, 3, 16, 64, 256, 784):
            for product in (y[:, lag:] * y[:, :-lag], y[lag % 7 + 1 :] * y[: -(lag % 7 + 1)]):
                assert abs(product.mean()) < 5 * variance / np.sqrt(product.size)


def test_every_bit_is_fair_and_independent_of_the_others():
    bits = np.asarray(jax.jit(jax.vmap(lambda key: bits_of(key, 500)))(KEYS)).ravel()
    each = ((bits[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float64) - 0.5
    assert np.abs(each.mean(0)).max() < 5 * 0.5 / np.sqrt(len(bits))
    correlation = each.T @ each / len(bits) * 4 - np.eye(32)
    assert np.abs(correlation).max() < 6 / np.sqrt(len(bits))


def test_keys_that_differ_in_one_bit_give_unrelated_bits():
    data = np.array([[0, 0], [0, 1], [1, 0], [0, 1 << 31]], np.uint32)
    each = jax.vmap(lambda d: bits_of(jax.random.wrap_key_data(d), 20_000))
    bits = np.asarray(jax.jit(each)(data))
    for other in bits[1:]:
        flipped = np.unpackbits((bits[0] ^ other).view(np.uint8)).mean()
        assert abs(flipped - 0.5) < 5 * 0.5 / np.sqrt(32 * 20_000)


def test_leaves_and_vectors_have_normals_of_their_own():
    tree = {"a": jnp.zeros((300, 10)), "b": jnp.zeros((300, 10)), "large": jnp.zeros(1 << 17)}
    drawn = jax.jit(lambda key: normals_like(key, 2, tree))(jax.random.key(3))
    assert all(noise["a"].shape == (300, 10) for noise in drawn)
    leaves = [np.ravel(leaf)[:3000] for noise in drawn for leaf in noise.values()]
    assert (np.abs(np.corrcoef(leaves) - np.eye(6)) < 5 / np.sqrt(3000)).all()
