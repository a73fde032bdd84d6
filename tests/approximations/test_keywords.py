"""A keyword that nobody takes is refused by the function that was called."""

from functools import partial

import linear_gaussian as linear
import numpyro
import pytest
from linear_gaussian import key
from numpyro.handlers import scope

import numpyro_bnn as bnn
from numpyro_bnn.approximations.member_optimizer import check_keywords

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
def test_it_is_named_with_what_resembles_it(name):
    with pytest.raises(
        TypeError, match=rf"{name}: unknown keyword num_step\..*num_step → num_steps"
    ):
        getattr(bnn, name)(linear.model, key(), *linear.data(), num_step=3, **FUNCTIONS[name])


OWN = {
    "optimize": "num_chains",
    "map_estimate": "num_starts",
    "deep_ensemble": "num_members",
    "laplace": "linearized",
    "swag": "num_snapshots",
}


@pytest.mark.parametrize("name", OWN)
def test_the_options_of_the_function_are_listed(name):
    own = OWN[name]
    with pytest.raises(TypeError, match=rf"options of {name} are .*{own}.*model, which takes x, y"):
        getattr(bnn, name)(linear.model, key(), *linear.data(), zzz=3, **FUNCTIONS[name])


def width(x, y=None, *, width=1):
    numpyro.sample("w", numpyro.distributions.Normal(0.0, width))


class Callable:
    def __call__(self, x, y=None):
        width(x, y)


MODELS = {
    "a function": (lambda x, y=None: None, False),
    "keyword only": (width, True),
    "partial": (partial(width, y=None), True),
    "handler": (scope(width, prefix="a"), True),
    "object": (Callable(), False),
    "any": (lambda x, **kwargs: None, True),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_model_takes_goes_to_the_model(name):
    model, takes = MODELS[name]
    if takes:
        check_keywords("optimize", ["num_steps"], model, {"width": 2})
    else:
        with pytest.raises(TypeError, match=r"optimize: unknown keyword width"):
            check_keywords("optimize", ["num_steps"], model, {"width": 2})


def test_a_ready_model_says_what_it_takes():
    model = bnn.likelihoods.regression(bnn.MLP([2], 1), bnn.priors.Normal(1.0))
    with pytest.raises(TypeError, match=r"map_estimate: unknown keyword tolerence.*tolerance"):
        bnn.map_estimate(model, key(), *linear.data(), tolerence=0.1)
