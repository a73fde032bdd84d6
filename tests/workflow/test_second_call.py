"""A second call on an equal model compiles nothing, whatever is called."""

import jax
import nets
import numpy as np
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.storage.shared_programs import forget_programs

X = np.linspace(-2.0, 2.0, 12).reshape(6, 2)
Y = X.sum(1)
pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(autouse=True)
def no_programs():
    forget_programs()


def model_of(y):
    return bnn.regression(nets.MLP(1), bnn.priors.FanIn(), X, y)


def fitted(y, seed):
    return bnn.fit(
        *(model_of(y), X, y),
        key=jax.random.key(seed),
        kernel="baoab",
        num_chains=2,
        num_warmup=4,
        num_samples=6,
        thinning=1,
        progress_bar=False,
    )


def test_a_second_fit_compiles_nothing():
    """Of a new model object, and of targets in other units, as in another fold of a cross-validation."""
    first = fitted(Y, 0)
    with nets.compilations() as compiled:
        second = fitted(100 * Y[::-1] + 7, 1)
    assert not compiled
    spread = float(first.predict(X).scale.mean()), float(second.predict(X).scale.mean())
    assert 30 < spread[1] / spread[0] < 300


CALLS = {
    "optimize": lambda model, key: bnn.optimize(
        model, key, X, Y, num_chains=2, num_steps=3, progress_bar=False
    ),
    "prior_predictive": lambda model, key: bnn.prior_predictive(model, key, X, 3),
    "map_estimate": lambda model, key: bnn.map_estimate(
        model, key, X, Y, num_steps=3, progress_bar=False
    ),
    "deep_ensemble": lambda model, key: bnn.deep_ensemble(
        model, key, X, Y, num_members=2, num_steps=3, progress_bar=False
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_compiles_nothing(name):
    CALLS[name](model_of(Y), jax.random.key(0))
    with nets.compilations() as compiled:
        CALLS[name](model_of(Y), jax.random.key(1))
    assert not compiled


def test_what_is_made_of_a_run_compiles_nothing_again():
    runs = [fitted(Y, seed) for seed in (0, 1)]

    def all_of(run):
        bnn.predict(None, run, X).log_prob(Y)
        bnn.diagnose(run.mcmc, X, Y)
        bnn.to_inference_data(run.mcmc)

    all_of(runs[0])
    with nets.compilations() as compiled:
        all_of(runs[1])
    assert not compiled
