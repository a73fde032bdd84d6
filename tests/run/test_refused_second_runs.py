"""An object whose second run or fit is refused or interrupted is left as its first one made it."""

import few_draws
import jax
import nets
import numpy as np
import pandas as pd
import pytest
from numpyro.infer import HMC
from sklearn.base import clone

import numpyro_bnn as bnn
from numpyro_bnn.run.sampling import Sampling
from numpyro_bnn.workflow import estimators

pytestmark = [pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2)).astype(np.float32)
Y = (X @ [1.0, -0.5]).astype(np.float32)
SETTINGS = {"num_warmup": 4, "num_samples": 6, "num_chains": 2, "progress_bar": False}


def model(x, y=None):
    nets.linear_regression(x, y, scale=1.0, noise=0.5)


def run(mcmc, x=X, y=Y, **options):
    starts = nets.starts(2, model, X, Y)
    mcmc.run(jax.random.key(0), x, y, **({"init_params": starts} | options))


def interrupted(*_, **__):
    raise KeyboardInterrupt


def unknown_start(mcmc, patch):
    with pytest.raises(ValueError, match="z"):
        run(mcmc, X[:5], -Y[:5], init_params={"z": np.zeros(2)})


def other_shapes(mcmc, patch):
    with pytest.raises(ValueError):
        run(mcmc, X, np.stack([Y, Y, Y], 1))


def refused_warmup(mcmc, patch):
    with pytest.raises(ValueError, match="z"):
        mcmc.warmup(jax.random.key(0), X[:5], -Y[:5], init_params={"z": np.zeros(2)})


def interrupted_run(mcmc, patch):
    patch.setattr(Sampling, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(mcmc, X[:5], -Y[:5])


def interrupted_warmup(mcmc, patch):
    patch.setattr(Sampling, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mcmc.warmup(jax.random.key(0), X[:5], -Y[:5])


def refused_run_until(mcmc, patch):
    with pytest.raises(ValueError):
        mcmc.run_until(jax.random.key(0), X[:5], -Y[:5], at=(X[:, :1], None))


def refused_resume(mcmc, patch):
    with pytest.raises(ValueError, match="nothing to continue from"):
        mcmc.resume(X[:5], -Y[:5])


SPOILT = [
    unknown_start,
    other_shapes,
    refused_warmup,
    interrupted_run,
    interrupted_warmup,
    refused_run_until,
    refused_resume,
]
KERNELS = {
    "BAOAB": lambda: bnn.BAOAB(model, step_size=0.01),
    "HMC": lambda: HMC(
        model, step_size=0.1, num_steps=2, trajectory_length=None, adapt_step_size=False
    ),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("spoil", SPOILT)
def test_a_run_keeps_its_state_when_the_next_is_refused(spoil, kernel):
    mcmc = bnn.MCMC(KERNELS[kernel](), **SETTINGS)
    run(mcmc)
    before = vars(mcmc) | {"_collection_params": dict(mcmc._collection_params)}
    predicted = bnn.average(bnn.predict(None, mcmc, X))
    with pytest.MonkeyPatch.context() as patch:
        spoil(mcmc, patch)
    left = vars(mcmc)
    assert left.keys() == before.keys()
    changed = [
        name
        for name in left
        if left[name] is not before[name] and name not in ("_collection_params", "_states_flat")
    ]
    assert not changed
    assert mcmc._collection_params == before["_collection_params"]
    np.testing.assert_array_equal(bnn.average(bnn.predict(None, mcmc, X)).mean, predicted.mean)
    draws = mcmc.get_samples()
    run(mcmc)
    jax.tree.map(np.testing.assert_array_equal, mcmc.get_samples(), draws)


@pytest.mark.parametrize("stop", ["refused", "interrupted", "in its last step"])
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (bnn.BNNClassifier, few_draws.TEXT, few_draws.TEXT == "low"),
        (bnn.BNNRegressor, few_draws.Y, -few_draws.Y),
    ],
    ids=["classifier", "regressor"],
)
def test_an_estimator_keeps_its_fit_when_the_next_is_refused(stop, kind, first, second):
    x = few_draws.X
    fitted = kind(**few_draws.SETTINGS).fit(x, first)
    before, predicted = dict(vars(fitted)), fitted.predict(x)
    others = pd.DataFrame(-x, columns=list("ab"))
    with pytest.MonkeyPatch.context() as patch:
        if stop == "refused":
            fitted.set_params(num_chains=0)
        elif stop == "interrupted":
            patch.setattr(estimators, "fit_model", interrupted)
        else:
            patch.setattr(estimators.BNNEstimator, "_warn_of_verdict", interrupted)
        with pytest.raises((ValueError, KeyboardInterrupt)):
            fitted.fit(others, second)
    fitted.set_params(num_chains=1)
    assert vars(fitted) == before
    assert not hasattr(fitted, "feature_names_in_")
    np.testing.assert_array_equal(fitted.predict(x), predicted)
    if stop == "refused":
        assert fitted.fit(others, second) is fitted
        assert list(fitted.feature_names_in_) == list("ab")
        assert not hasattr(clone(fitted), "draws_")
