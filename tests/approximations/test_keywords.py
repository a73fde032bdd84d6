"""A keyword that nobody takes is refused by the call of the model."""

import linear_gaussian as linear
import pytest
from linear_gaussian import key

import numpyro_bnn as bnn

BATCHES = {"batch_size": 4}
FUNCTIONS = {
    "optimize": {},
    "map_estimate": {},
    "deep_ensemble": {},
    "randomized_map": {},
    "laplace": {},
    "mean_field": {},
    "swag": BATCHES,
    "constant_sgd": BATCHES,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_named(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_step'"):
        getattr(bnn, name)(linear.model, key(), *linear.data(), num_step=3, **FUNCTIONS[name])


def test_a_ready_model_refuses_it_too():
    model = bnn.likelihoods.regression(bnn.MLP([2], 1), bnn.priors.Normal(1.0))
    with pytest.raises(TypeError, match="tolerence"):
        bnn.map_estimate(model, key(), *linear.data(), tolerence=0.1)
