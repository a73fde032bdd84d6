"""A run whose model is given again, in other units."""

import jax
import numpy as np
import pytest
import small_run

import numpyro_bnn as bnn


@pytest.fixture(scope="module")
def ensemble():
    model = small_run.regression()
    call = model, jax.random.key(0), small_run.X, small_run.Y
    return bnn.deep_ensemble(*call, num_members=2, num_steps=1, progress_bar=False)


OTHERS = {
    "another mean and scale": (small_run.X, 100 * small_run.Y + 1000),
    "another mean": (small_run.X, small_run.Y + 1000),
    "other inputs": (100 * small_run.X, small_run.Y),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_in_other_units_is_refused(ensemble, name):
    other = small_run.regression(x=OTHERS[name][0], y=OTHERS[name][1])
    x = small_run.X[:3]
    for call in (
        lambda: bnn.predict(other, ensemble, x),
        lambda: bnn.diagnose(ensemble, x, model=other),
        lambda: bnn.check_fit(ensemble, model=other),
    ):
        with pytest.raises(ValueError, match="keeps the units of other data than the model of the run"):
            call()


def test_the_same_units_of_another_object_are_taken(ensemble):
    again = small_run.regression(x=small_run.X, y=small_run.Y)
    expected = bnn.predict(None, ensemble, small_run.X).mean
    assert np.array_equal(bnn.predict(again, ensemble, small_run.X).mean, expected)
