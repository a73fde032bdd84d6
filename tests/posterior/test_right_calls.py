"""Arguments of `predict` and `diagnose` that are missing or in another order: errors show the right call."""

import inspect

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS
from small_models import row_model

import numpyro_bnn as bnn

X = np.zeros((3, 2), np.float32)

model = row_model(
    lambda x, w: dist.Normal(x @ w, 1.0), plate="rows", w=dist.Normal(0, 1).expand([2]).to_event(1)
)

DRAWS = bnn.Draws({"w": np.zeros((1, 5, 2))}, model)
MCMC = bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1)
EXPECTED = "expected an MCMC after `run`, what `fit` returned, a fitted estimator, or draws"
CALLS = {
    "predict without x": (lambda: bnn.predict(model, DRAWS), "argument: 'x'"),
    "predict without a model": (lambda: bnn.predict(DRAWS, X), "argument: 'x'"),
    "the run before the model": (
        lambda: bnn.predict(MCMC, model, X),
        f"predict: {EXPECTED} by site name, got function",
    ),
    "x before the draws": (
        lambda: bnn.predict(model, X, DRAWS),
        f"predict: {EXPECTED} by site name, got ndarray",
    ),
    "an unknown keyword": (
        lambda: bnn.predict(model, DRAWS, X, rows=2),
        "unexpected keyword argument 'rows'",
    ),
    "diagnose without x": (lambda: bnn.diagnose(DRAWS), "argument: 'x'"),
    "the model before the run": (
        lambda: bnn.diagnose(model, DRAWS, X),
        f"diagnose: {EXPECTED} by site name, got function",
    ),
    "x before the run": (
        lambda: bnn.diagnose(X, DRAWS),
        f"diagnose: {EXPECTED} by site name, got ndarray",
    ),
    "draws inside of jit": (
        lambda: jax.jit(lambda w: bnn.predict(model, {"w": w}, X).mean)(DRAWS["w"]),
        "traced array",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_right_call_is_shown(call):
    function, said = CALLS[call]
    with pytest.raises(TypeError, match=said):
        function()


def test_right_calls_and_signatures_stay_as_they_are():
    assert list(inspect.signature(bnn.predict).parameters)[:3] == ["model", "samples", "x"]
    assert list(inspect.signature(bnn.diagnose).parameters)[:3] == ["run", "x", "y"]
    found = bnn.predict(None, DRAWS, X)
    np.testing.assert_array_equal(found.mean, bnn.predict(model, dict(DRAWS), X).mean)
    assert bnn.diagnose(DRAWS, X).verdict == "too_short"


def test_an_error_inside_is_not_mistaken_for_a_wrong_call():
    def needs_more(x, z):
        model(x)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'z'"):
        bnn.predict(needs_more, {"w": np.zeros((1, 5, 2))}, X)
    with pytest.raises(ValueError, match="call `run` first"):
        bnn.predict(None, bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1), X)


def test_a_run_without_a_model_is_sent_to_the_diagnosis_of_draws():
    run = bnn.Draws({"w": np.zeros((1, 5, 2))})
    with pytest.raises(ValueError, match=r"are for `bnn.diagnostics.diagnose_draws`"):
        bnn.diagnose(run, X)
