"""Predictions in blocks of rows are those of the model on all rows, or the rows are predicted together."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.posterior.predictions import predict_some

N = 1200
X = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
W = {"w": np.array([[0.5, -2.0]], np.float32)}


def standardised(x):
    return (x[:, 0] - x[:, 0].mean()) / x[:, 0].std()


def recurrent(x):
    return jax.lax.scan(lambda h, v: ((0.99 * h + v),) * 2, 0.0, x[:, 0])[1]


def lagged(x):
    return jnp.concatenate([x[:1, 0], x[1:, 0] - x[:-1, 0]])


def attention(x):
    return (jax.nn.softmax(x @ x.T) @ x)[:, 0]


def by_number(x):
    return x[:, 0] / len(x)


RELATED = [standardised, recurrent, lagged, attention, by_number]


def model_of(feature, distribution=dist.Normal):
    return row_model(lambda x, w: distribution(w * feature(x), 1.0), w=dist.Normal())


@pytest.mark.parametrize("feature", RELATED)
def test_rows_that_depend_on_one_another_are_predicted_together(feature):
    model, exact = model_of(feature), W["w"][..., None] * np.asarray(feature(X))
    found = bnn.predict(model, W, X)
    np.testing.assert_allclose(found.mean, exact, rtol=1e-4, atol=1e-4)
    y = exact[0, 0]
    np.testing.assert_allclose(
        found.log_prob(y), dist.Normal(exact, 1.0).log_prob(y), rtol=1e-4, atol=1e-3
    )
    together = bnn.predict(model, W, X, batch_size=N)
    np.testing.assert_array_equal(together.mean, found.mean)
    few = X[:40]
    with pytest.raises(ValueError, match=r"among 20 rows .* relates rows.*`batch_size=40`"):
        bnn.predict(model, W, few, batch_size=20)


@pytest.mark.parametrize("feature", RELATED)
def test_some_rows_are_predicted_as_they_are_among_all(feature):
    rows = np.array([3, 30, 99])
    draws = bnn.Draws(W, model_of(feature))
    found = predict_some("thin", draws, X[:100], {}, rows)
    exact = W["w"][..., None] * np.asarray(feature(X[:100]))[rows]
    np.testing.assert_allclose(found.mean, exact, rtol=1e-4, atol=1e-5)
    y = np.array([0.1, 0.2, 0.3], np.float32)
    np.testing.assert_allclose(
        found.log_prob(y), dist.Normal(exact, 1.0).log_prob(y), rtol=1e-4, atol=1e-5
    )


def test_thin_compares_predictions_of_rows_among_all_of_them():
    """Rows number 0, 199, … of the recurrence alone would be those of a series of 200."""
    given = {"w": np.linspace(-1, 1, 8, dtype=np.float32)[None]}
    draws = bnn.Draws(given, model_of(recurrent))
    x = np.abs(X[:400])
    small = bnn.thin(draws, 2, x)
    rows = np.unique(np.linspace(0, 399, 200).round().astype(int))
    mean = np.asarray(recurrent(x))[rows]
    edges = np.arange(1, 20) / 20
    seen = bnn.predict(None, draws, x).at_rows(rows)
    np.testing.assert_allclose(seen.mean, given["w"][..., None] * mean, rtol=1e-4)
    parts = np.stack([seen.cdf_at(edge) for edge in seen.quantiles(edges)], -1)[0]
    ends = [np.zeros_like(parts[..., :1]), parts, np.ones_like(parts[..., :1])]
    shares = np.diff(np.concatenate(ends, -1), axis=-1)
    chosen = [int(np.flatnonzero(given["w"][0] == w)[0]) for w in small["w"][0]]
    distance = 0.5 * np.abs(shares[chosen].mean(0) - shares.mean(0)).sum(-1).mean()
    assert small.info["thinned"]["total_variation"] == pytest.approx(distance, rel=1e-3)


def test_a_distribution_of_all_rows_together_is_not_cut():
    def process(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        covariance = jnp.exp(-jnp.square(x[:, 0] - x[:, :1])) + jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(w * x[:, 0], covariance), obs=y)

    with pytest.raises(ValueError, match=r"among 3 rows .*`batch_size=6`"):
        bnn.predict(process, W, X[:6], batch_size=3)


def test_draws_of_zeros_do_not_settle_what_other_draws_show():
    """A run that is judged on its way compiles its predictions with zeros first."""
    from numpyro_bnn.posterior.predictions import Predictor

    predictor = Predictor(model_of(standardised), X)
    predictor({"w": np.zeros((1, 2), np.float32)})
    exact = W["w"][..., None] * standardised(X)
    np.testing.assert_allclose(predictor(W).mean, exact, rtol=1e-4, atol=1e-4)


def dropout(x):
    return x[:, 0] * jax.random.bernoulli(numpyro.prng_key(), 0.5, (len(x),))


def looped(x):
    """A loop of the traced program."""
    return jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, x[:, 0])
    )[1]


def drawn_and_looped(x):
    return looped(x) + dropout(x)


def drawn_and_related(x):
    return standardised(x) + dropout(x)


ALONE = [lambda x: jnp.tanh(x) @ jnp.ones(2), dropout, looped, drawn_and_looped]


@pytest.mark.parametrize("feature", ALONE, ids=["network", "dropout", "looped", "both"])
def test_rows_that_are_alone_are_predicted_in_blocks(feature):
    assert bnn.predict(model_of(feature), W, X[:40], batch_size=7).mean.shape == (1, 2, 40)


def test_masks_do_not_hide_that_rows_depend_on_one_another():
    with pytest.raises(ValueError, match=r"`batch_size=40`"):
        bnn.predict(model_of(drawn_and_related), W, X[:40], batch_size=7)


def test_values_of_rows_from_their_prior_are_no_dependence():
    def local(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("data", len(x)):
            shift = numpyro.sample("shift", dist.Normal())
            numpyro.sample("y", dist.Normal(w * looped(x) + shift, 1.0), obs=y)

    found = bnn.predict(local, W, X[:40], site="y", batch_size=7)
    assert np.std(found.mean) > 0


def test_a_check_that_fails_is_no_sign_that_rows_are_independent(monkeypatch):
    def fails(*given):
        raise MemoryError("no room for the check")

    monkeypatch.setattr("numpyro_bnn.posterior.prediction_sites.same_in_parts", fails)
    with pytest.raises(MemoryError, match="no room"):
        bnn.predict(model_of(standardised), W, X)
