"""`predict(…, reduce=)`: some rows at a time, and the same result as of all together."""

from functools import partial

import few_draws
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.posterior import predictions

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 2)).astype(np.float32)
DRAWS = {"w": RNG.normal(size=(2, 4, 2)), "s": np.full((2, 4), 0.5)}


@pytest.fixture(autouse=True, scope="module")
def few_rows_at_a_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictions, "_REDUCED", 1)
        yield


def linear(x, y=None, offset=0.0, mean=None):
    w = numpyro.sample("w", dist.Normal().expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal())
    x = x if mean is None else x - x.mean(0)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w + offset, s), obs=y)


def counted(parts):
    def reduce(made):
        parts.append(made.mean.shape[2])
        return bnn.average(made)

    return reduce


OFFSET = np.arange(23.0)
CALLS = {
    "own": (linear, {}),
    "by name": (linear, {"offset": OFFSET}),
    "bound": (partial(linear, offset=OFFSET), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_parts_are_put_together(call):
    model, by_row = CALLS[call]
    parts = []
    found = bnn.predict(model, DRAWS, X, batch_size=5, reduce=counted(parts), **by_row)
    whole = bnn.average(bnn.predict(model, DRAWS, X, **by_row))
    assert parts == [5, 5, 5, 5, 3]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), found, whole)


def test_a_ready_model_gives_probabilities():
    model = bnn.classification(
        bnn.MLP((3,), 2), bnn.priors.Normal(1.0), X, (X[:, 0] > 0).astype(int)
    )
    draws = bnn.prior_predictive(model, jax.random.key(0), X, num_samples=6)
    draws = {name: value for name, value in draws.items() if name.startswith("net/")}
    found = bnn.predict(model, draws, X, batch_size=8, reduce=bnn.average)
    np.testing.assert_allclose(found, bnn.average(bnn.predict(model, draws, X)), atol=1e-6)
    assert found.shape == (23, 2)


def test_rows_that_depend_on_one_another_are_predicted_together():
    parts, model = [], partial(linear, mean="of all rows")
    x = np.linspace(0, 1, 2200).reshape(1100, 2)
    found = bnn.predict(model, DRAWS, x, reduce=counted(parts))
    assert parts == [1100]
    whole = bnn.average(bnn.predict(model, DRAWS, x))
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-6)


def test_rows_of_nan_have_their_numbers_among_all_rows():
    holes = X.copy()
    holes[[7, 19]] = np.nan
    with pytest.raises(ValueError, match=r"NaN under every draw \(rows 7\)"):
        bnn.predict(linear, DRAWS, holes, batch_size=5, reduce=bnn.average)


@pytest.mark.parametrize("reduce", [lambda made: made.mean, lambda made: made.mean.mean()])
def test_what_has_no_rows_first_is_refused(reduce):
    with pytest.raises(ValueError, match=r"for 5 rows\. Return arrays with a value for each row"):
        bnn.predict(linear, DRAWS, X, batch_size=5, reduce=reduce)


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_estimators_use_it(kind):
    made, y = {
        "regressor": (bnn.BNNRegressor, few_draws.Y),
        "classifier": (bnn.BNNClassifier, few_draws.TEXT),
    }[kind]
    with pytest.warns(UserWarning, match="too short"):
        made = made(**few_draws.SETTINGS).fit(few_draws.X, y)
    new = RNG.normal(size=(600, 2))
    shapes = []
    evaluate = predictions.Predictor.__call__

    def seen(self, *args):
        shapes.append(self.size)
        return evaluate(self, *args)

    whole = bnn.average(made.predictions(new))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictions.Predictor, "__call__", seen)
        if kind == "regressor":
            close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
            jax.tree.map(close, tuple(whole), made.predict(new, return_std=True))
            quantiles = made.predictions(new).quantiles((0.1, 0.9))
            close(made.predict_quantiles(new, (0.1, 0.9)), quantiles.T)
        else:
            np.testing.assert_allclose(made.predict_proba(new), whole, rtol=1e-6)
    assert shapes[:3] == [256, 256, 256]
