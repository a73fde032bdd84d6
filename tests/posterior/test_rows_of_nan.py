"""Rows whose predictions are NaN are named, whatever they come from."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from small_models import row_model

import numpyro_bnn as bnn

X = np.linspace(0.5, 2, 5, dtype="f4")[:, None]
DRAWS = {"b": np.array([[0.5, 1.0, -0.5]])}


def model_of(distribution):
    return row_model(lambda x, b: distribution(b * jnp.log(x[:, 0])), b=dist.Normal())


DISTRIBUTIONS = {
    "numbers": lambda f: dist.Normal(f, 1.0),
    "classes": lambda f: dist.Bernoulli(logits=f),
    "several classes": lambda f: dist.Categorical(logits=f[:, None] * jnp.arange(3.0)),
    "counts": lambda f: dist.Poisson(jnp.exp(f)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([np.nan], r"1 of 5 rows are NaN under every draw \(rows 2\), of which 1 have NaN"),
        ([-1.0], r"1 of 5 rows are NaN under every draw \(rows 2\)\. Fill"),
        ([np.nan, -1.0], r"2 of 5 rows .*\(rows 2, 3\), of which 1 have"),
        ([np.nan] * 3, r"3 of 5 rows .*\(rows 2, 3, 4\)"),
    ],
)
def test_rows_of_nan_are_named(name, values, message):
    x = X.copy()
    x[2 : 2 + len(values), 0] = values
    with pytest.raises(ValueError, match=message):
        bnn.predict(model_of(DISTRIBUTIONS[name]), DRAWS, x)


def test_a_table_of_nan_alone_is_refused_too():
    with pytest.raises(ValueError, match="5 of 5 rows are NaN"):
        bnn.predict(model_of(DISTRIBUTIONS["numbers"]), DRAWS, X * np.nan)


def test_a_distribution_without_a_mean_is_predicted():
    found = bnn.predict(model_of(lambda f: dist.Cauchy(f, 1.0)), DRAWS, X)
    assert np.isnan(found.mean).all()
    assert np.isfinite(found.log_prob(X[:, 0])).all()


def test_inputs_that_a_model_fills_in_are_predicted():
    def filled(x, y=None):
        model_of(DISTRIBUTIONS["numbers"])(jnp.where(jnp.isnan(x), 1.0, x), y)

    x = X.copy()
    x[2] = np.nan
    assert np.isfinite(bnn.predict(filled, DRAWS, x).mean).all()


@pytest.mark.parametrize("name", ["classes", "several classes"])
def test_a_draw_of_nan_gives_no_probability(name):
    """NumPyro 0.22 gives the target 0 the probability 1 where logits of a Bernoulli are NaN."""
    draws = {"b": np.array([[0.5, np.nan]])}
    predictions = bnn.predict(model_of(DISTRIBUTIONS[name]), draws, X)
    found = predictions.log_prob(np.array([0, 1, 0, 1, 0]))
    assert np.isnan(found).tolist() == [[[False] * 5, [True] * 5]]
    with pytest.raises(ValueError, match="log densities must be finite"):
        bnn.scores.lppd(predictions, np.array([0, 1, 0, 1, 0]))
