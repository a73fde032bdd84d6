"""A second call on an equal model compiles nothing, whatever is called."""

import few_draws
import jax
import nets
import numpy as np
import pytest
from separate_programs import separate_programs

import numpyro_bnn as bnn

X = np.linspace(-2.0, 2.0, 12).reshape(6, 2)
Y = X.sum(1)
# Forty rows of two columns, as in the tests of the estimators: the compiler has met their programs.
RNG = np.random.default_rng(0)
ROWS = RNG.normal(3.0, 2.0, (40, 2))
TARGET = ROWS.sum(1) + RNG.normal(size=40)
pytestmark = [
    # Fits of a few draws, which are never known within tolerance.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
]


@pytest.fixture(autouse=True)
def no_programs():
    with separate_programs():
        yield


def model_of(y):
    return bnn.regression(nets.MLP(1), bnn.priors.FanIn(), X, y)


def all_of(y, seed):
    """A fit and everything that is made of it."""
    network = bnn.BNNRegressor(**few_draws.SETTINGS | {"random_state": seed}).fit(ROWS, y)
    spread = bnn.predict(None, network, ROWS)
    spread.log_prob(y)
    bnn.diagnose(network.mcmc_, ROWS, y)
    bnn.to_inference_data(network.mcmc_)
    return float(spread.scale.mean())


def test_a_second_fit_and_what_is_made_of_it_compile_nothing():
    """Of a new model object, and of targets in other units, as in another fold of a cross-validation."""
    first = all_of(TARGET, 0)
    with nets.compilations() as compiled:
        second = all_of(7 - 100 * TARGET, 1)
    assert not compiled
    assert 30 < second / first < 300


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
    "swag": lambda model, key: bnn.swag(
        model, key, X, Y, batch_size=2, num_steps=3, num_snapshots=2, thinning=1, progress_bar=False
    ),
    "tempering": lambda model, key: bnn.MCMC(
        bnn.ParallelTempering(model), num_warmup=4, num_samples=2, progress_bar=False
    ).run(key, X, Y),
}


@pytest.mark.parametrize(
    "name",
    [n if n == "prior_predictive" else pytest.param(n, marks=pytest.mark.slow) for n in CALLS],
)
def test_a_second_call_compiles_nothing(name):
    CALLS[name](model_of(Y), jax.random.key(0))
    with nets.compilations() as compiled:
        CALLS[name](model_of(Y), jax.random.key(1))
    assert not compiled
