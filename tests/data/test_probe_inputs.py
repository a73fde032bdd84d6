"""Inputs made up of the shapes, types and ranges of others."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from numpyro_bnn.data.columns import noted_inputs, probe_inputs
from numpyro_bnn.data.host_rows import OnHost

RNG = np.random.default_rng(0)
INPUTS = {
    "columns": RNG.normal([0, 1000], [1, 5], (50, 2)).astype(np.float32),
    "one number a row": RNG.normal(size=50),
    "tokens": RNG.integers(3, 30, (50, 7)),
    "images": RNG.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8),
    "half precision": jnp.ones((5, 2), jnp.bfloat16),
    "masks": RNG.random((9, 2)) < 0.5,
    "many columns": RNG.normal(size=(5, 100)),
    "a dictionary": {"b": np.zeros((5, 2)), "a": (np.ones(5), [np.arange(5)])},
}


@pytest.mark.parametrize("name", INPUTS)
def test_they_have_the_structure_and_types_of_the_others(name):
    x = INPUTS[name]
    made = probe_inputs(noted_inputs(x))
    assert jax.tree.structure(made) == jax.tree.structure(x)
    for own, given in zip(jax.tree.leaves(made), jax.tree.leaves(x)):
        assert own.shape == (8, *np.shape(given)[1:])
        assert own.dtype == given.dtype
        assert np.min(given) <= np.min(own)
        assert np.max(own) <= np.max(given)


def test_columns_have_ranges_of_their_own():
    x = INPUTS["columns"]
    made = probe_inputs(noted_inputs(x))
    assert (x.min(0) <= made.min(0)).all()
    assert (made.max(0) <= x.max(0)).all()
    np.testing.assert_array_equal(made, probe_inputs(noted_inputs(jnp.asarray(x))))


def test_tables_and_data_on_the_host_are_noted_like_arrays():
    x = INPUTS["columns"]
    assert noted_inputs(OnHost(x)) == noted_inputs(x)
    assert noted_inputs(pd.DataFrame(x)) == noted_inputs(x)


def test_numbers_that_are_not_finite_have_no_part_in_a_range():
    made = probe_inputs(noted_inputs(np.array([[np.nan, 1.0], [np.nan, np.inf], [np.nan, 2.0]])))
    np.testing.assert_array_equal(made[:, 0], 0.0)
    assert ((made[:, 1] >= 1) & (made[:, 1] <= 2)).all()


@pytest.mark.parametrize("x", [None, 3.0, np.zeros((0, 2)), np.array(["a"]), {}, {1: np.ones(3)}])
def test_of_other_values_nothing_is_noted(x):
    assert noted_inputs(x) is None
