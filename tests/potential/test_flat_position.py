"""The position of a chain as one vector: the same values, whatever is done with them."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_bnn.potential.flat_position import FlatPosition, by_site, flat_like, flattened

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
