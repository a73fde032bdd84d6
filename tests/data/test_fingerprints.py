"""Data are told apart by all their digits, and known again after a way through single precision."""

import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.data.fingerprints import fingerprint, is_same

# Seconds since 1970: numbers that differ by less than single precision tells apart.
DAY = 1.7e9 + np.arange(6.0)
LATER = DAY + 3.0
PAIRS = {
    "the same": (DAY, DAY.copy(), True),
    "on a device": (DAY, jnp.asarray(DAY, jnp.float32), True),
    "other digits": (DAY, LATER, False),
    "other digits of single numbers": (np.float32(DAY), np.float32(LATER + 500), False),
    "another number": (np.arange(3.0), np.array([0.0, 1.0, 2.5]), False),
    "integers and reals": (np.arange(3), np.arange(3.0), True),
    "integers of many digits": (np.array([2**30 + 1]), np.array([2**30 + 3]), False),
    "whole and real": (np.arange(3.0), np.arange(3.0, dtype=np.float32), True),
    "zeros of two signs": (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), True),
    "with a missing one": (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), True),
    "one of two on a device": ([DAY, LATER], [np.float32(DAY), LATER], True),
    "the other one of two": ([DAY, LATER], [np.float32(DAY), LATER + 1], False),
    "each on a device once": ([np.float32(DAY), LATER], [DAY, np.float32(LATER)], True),
    "beyond single numbers": (np.array([1e300]), np.array([1e301]), False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_texts_say_whether_data_are_the_same(name):
    one, other, same = PAIRS[name]
    assert is_same(fingerprint(one), fingerprint(other)) == same


def test_texts_of_older_files_are_known():
    assert is_same(fingerprint(DAY), fingerprint(np.float32(DAY)).split()[0])


def test_a_model_refuses_targets_that_differ_in_late_digits():
    x = np.arange(6.0)[:, None]
    model = bnn.regression(bnn.MLP([], 1), bnn.priors.Normal(1.0))
    model.learn(x, DAY)
    assert not model.learn(x, DAY)
    with pytest.raises(ValueError, match="keeps the units of the data"):
        model.learn(x, LATER)
