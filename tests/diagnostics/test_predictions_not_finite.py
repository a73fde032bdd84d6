"""Targets without moments, and rows that are not finite: the report says so, and a run in stages stops."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws

X = np.linspace(-1.0, 1.0, 6).astype(np.float32)
HOLED = np.where(np.arange(6) == 2, np.nan, X).astype(np.float32)


def student(df):
    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        bnn.likelihoods.student_t(b * x, y, noise=0.3, df=df)

    return model


cauchy = row_model(lambda x, b: dist.Cauchy(b * x, 0.3), b=dist.Normal(0.0, 1.0))
normal = row_model(lambda x, b: dist.Normal(b * x, 0.3), b=dist.Normal(0.0, 1.0))
huge = row_model(
    lambda x, b: dist.Normal(jnp.exp(100 * b) * jnp.ones(len(x)), 0.3), b=dist.Normal(0.0, 1.0)
)

# The model, the inputs, the chains that are bad, and what the report says.
CASES = {
    "no variance": (student(2.0), X, "(scale) are NaN or infinite in every draw, at all rows"),
    "no mean": (student(1.0), X, "no finite mean (Student's t with df up to 1, Cauchy)"),
    "cauchy": (cauchy, X, "(mean, scale) are NaN or infinite in every draw, at all rows"),
    "a prior of df": (
        student(dist.Gamma(2.0, 1.0)),
        X,
        "(scale) are NaN or infinite in 25 % of draws",
    ),
    "a row": (normal, HOLED, "(mean) are NaN or infinite in every draw, at 1 of 6 rows (2)"),
    "overflow": (huge, X, "weights are so large that predictions overflow"),
}


def draws_of(model):
    rng = np.random.default_rng(0)
    # A quarter of the degrees of freedom has no variance.
    df = np.where(np.arange(120) % 4, 3.0, 1.5) * np.ones((2, 1))
    return bnn.Draws({"b": 1 + rng.normal(size=(2, 120)), "y.df": df}, model)


@pytest.mark.parametrize("case", CASES)
def test_the_report_says_why_predictions_are_not_finite(case):
    model, x, said = CASES[case]
    report = bnn.diagnose(draws_of(model), x)
    assert report.verdict == "invalid"
    assert report.headline == "NaN or infinite predictions in 2 of 2 chains"
    assert report.needed_by == "finite predictions"
    assert said in report.sentences[0]
    assert "while the weights are finite" in report.sentences[0]
    assert "lower the step size" not in report.explanation


def test_weights_that_are_not_finite_are_what_is_wrong():
    rng = np.random.default_rng(0)
    weights, predictions = rng.normal(size=(2, 120, 3)), rng.normal(size=(2, 120, 4))
    weights[:, 5:], predictions[:, 5:] = np.nan, np.nan
    report = diagnose_draws({"w": weights}, predictions)
    assert report.headline == "NaN or infinite draws in 2 of 2 chains"
    assert "No chain is left: lower the step size" in report.explanation
    # Whether weights were finite is not known.
    alone = diagnose_draws(None, predictions)
    assert "while the weights are finite" not in alone.explanation


@pytest.mark.parametrize(
    ("df", "x", "said"), [(2.0, X, "no finite variance"), (9.0, HOLED, "rows (2)")]
)
def test_a_run_in_stages_stops_at_once_and_says_why(df, x, said):
    model = student(df)
    kernel = HMC(model, step_size=0.1, num_steps=2, adapt_step_size=False, trajectory_length=None)
    mcmc = bnn.MCMC(kernel, num_warmup=5, num_samples=20, num_chains=2, progress_bar=False)
    with pytest.warns(UserWarning, match="while the weights are finite"):
        stopped = mcmc.run_until(jax.random.key(0), X, X, at=(x, None), max_minutes=1.0)
    assert stopped.reason == "predictions are not finite"
    assert len(stopped.looks) == 1
    assert said in str(stopped)
    assert "More draws will not change that." in str(stopped)
    assert mcmc.get_samples()["b"].size == 2 * stopped.draws


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_chain_with_an_infinite_log_density_is_named(value):
    x = np.random.default_rng(0).normal(size=(4, 200, 5))
    scored = -(x**2)
    scored[1, 7, 2] = value
    report = diagnose_draws({"w": x}, x, log_likelihood=scored)
    assert report.verdict == "invalid"
    assert (
        "Chain 1 holds NaN or infinite values from draw 7 on (log likelihood)" in report.explanation
    )
    # No probability at all is no fault of a chain.
    scored[1, 7, 2] = -np.inf
    assert diagnose_draws({"w": x}, x, log_likelihood=scored).verdict != "invalid"


def test_probabilities_of_a_single_class_are_refused():
    with pytest.raises(
        ValueError, match=r"two or more classes on their last axis, got shape \(2, 20, 5, 1\)"
    ):
        diagnose_draws(None, {"probs": np.ones((2, 20, 5, 1))})
