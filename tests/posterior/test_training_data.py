"""Arguments of a model beside inputs and target: predictions at the rows of a fit need them too."""

from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import mask
from scipy.stats import norm

import numpyro_bnn as bnn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 1)).astype(np.float32)
OFFSET = np.linspace(5.0, 8.0, 7, dtype=np.float32)
Y = (X[:, 0] + OFFSET).astype(np.float32)
B = np.asarray([[0.5, 1.0, 1.5]], np.float32)
MEAN = B[..., None] * X[:, 0] + OFFSET
EXACT = norm.logpdf(Y, MEAN, 0.5)


def fitted(model, *args, **kwargs):
    """What a finished run has: draws and the arguments of its model."""
    mcmc = SimpleNamespace(_args=args, _kwargs=kwargs, sampler=SimpleNamespace(model=model))
    return SimpleNamespace(draws=bnn.Draws({"b": B}, model, info={"kernel": "NUTS"}), mcmc=mcmc)


def offset_second(x, offset=None, y=None, *, width=1.0):
    b = numpyro.sample("b", dist.Normal(0.0, width))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample(
            "y", dist.Normal(b * x[:, 0] + (0.0 if offset is None else offset), 0.5), obs=y
        )


def offset_last(x, y=None, offset=None):
    offset_second(x, offset, y)


def column_of_table(x, offset, table=None):
    offset_second(x, offset, None if table is None else table[:, 1])


CALLS = {
    "by position": fitted(offset_second, X, OFFSET, Y),
    "target by name": fitted(offset_second, X, OFFSET, y=Y),
    "offset by name": fitted(offset_last, X, Y, offset=OFFSET),
    "all by name": fitted(offset_last, y=Y, x=X, offset=OFFSET),
    "target in a column": fitted(column_of_table, X, OFFSET, np.stack([OFFSET, Y], 1)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("block", [2**26, 1])
def test_other_arguments_reach_the_export(call, block, monkeypatch):
    monkeypatch.setattr("numpyro_bnn.posterior.arviz_export._BLOCK", block)
    predicted = block > 1
    idata = bnn.to_inference_data(CALLS[call], posterior_predictive=predicted, batch_size=4)
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values, EXACT, rtol=1e-4)
    np.testing.assert_array_equal(idata["observed_data"]["y"].values, Y)
    if predicted:
        mean = idata["posterior_predictive"]["mean"].values
        np.testing.assert_allclose(mean, MEAN, rtol=1e-5)


def test_log_priors_are_those_of_the_run():
    run = fitted(offset_second, X, OFFSET, y=Y, width=3.0)
    found = bnn.to_inference_data(run)["log_prior"]["b"].values
    np.testing.assert_allclose(found, norm.logpdf(B, 0, 3), rtol=1e-5)


def test_a_row_that_is_masked_is_not_in_the_log_likelihood():
    def masked(x, y=None, seen=None):
        b = numpyro.sample("b", dist.Normal())
        seen = True if seen is None else seen
        y = None if y is None else jnp.where(seen, y, 0.0)
        with numpyro.plate("data", x.shape[0]), mask(mask=seen):
            numpyro.sample("y", dist.Normal(b * x[:, 0], 0.5), obs=y)

    seen = np.arange(7) != 2
    target = np.where(seen, Y, np.nan)
    idata = bnn.to_inference_data(fitted(masked, X, target, seen))
    exact = norm.logpdf(np.where(seen, Y, 0), MEAN - OFFSET, 0.5)
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values, exact[..., seen], rtol=1e-4)
    np.testing.assert_array_equal(idata["log_likelihood"]["row"].values, np.flatnonzero(seen))
    # As a new row it has a density, as it has a mean.
    made = bnn.predict(partial(masked, seen=seen), {"b": B}, X)
    np.testing.assert_allclose(made.log_prob(np.where(seen, Y, 0)), exact, rtol=1e-4)


def test_rows_whose_other_arguments_are_not_known_are_refused():
    run = CALLS["target by name"]
    same = bnn.to_inference_data(run, X, Y)["log_likelihood"]["y"].values
    np.testing.assert_allclose(same, EXACT, rtol=1e-4)
    with pytest.raises(ValueError, match="a value for every row in its argument number 2"):
        bnn.to_inference_data(run, X[:3], Y[:3])


def looked_up(x, y=None, table=None):
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(b * table[x], 1.0), obs=y)


def test_a_table_with_as_many_entries_as_rows_is_not_cut_with_them():
    """Rows of a block would be looked up in a part of it, at other entries."""
    rng = np.random.default_rng(3)
    table, x = rng.normal(size=12), rng.permutation(12)
    y = 2 * table[x]
    run = fitted(looked_up, x, y, table=table)
    exact = norm.logpdf(y, B[..., None] * table[x])
    for size in (12, 1000):
        found = bnn.to_inference_data(run, batch_size=size, posterior_predictive=False)
        np.testing.assert_allclose(found["log_likelihood"]["y"].values, exact, rtol=1e-4)
    for call in (
        lambda: bnn.to_inference_data(run, batch_size=5),
        lambda: bnn.to_inference_data(run, batch_size=5, posterior_predictive=False),
    ):
        with pytest.raises(
            ValueError, match="argument 'table', which is as long as x, is not by row"
        ):
            call()
    # An entry more than rows, and it stays whole.
    longer = fitted(looked_up, x, y, table=np.append(table, 0.0))
    found = bnn.to_inference_data(longer, batch_size=5, posterior_predictive=False)
    np.testing.assert_allclose(found["log_likelihood"]["y"].values, exact, rtol=1e-4)


def centred(x, y=None, group=None):
    """All rows are centred together: no argument is to blame."""
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    shift = 0.0 if group is None else 0.1 * group
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(b * (x - x.mean()) + shift, 1.0), obs=y)


@pytest.mark.parametrize("predicted", [True, False])
def test_rows_that_are_centred_together_are_exported_together(predicted):
    x, group = np.linspace(0.0, 1.0, 12), np.arange(12) % 3
    run = fitted(centred, x, 2 * x, group)
    exact = norm.logpdf(2 * x, B[..., None] * (x - x.mean()) + 0.1 * group)
    found = bnn.to_inference_data(run, posterior_predictive=predicted)
    np.testing.assert_allclose(found["log_likelihood"]["y"].values, exact, rtol=1e-4)
    with pytest.raises(ValueError, match=r"among 6 rows .* relates rows.*batch_size=12"):
        bnn.to_inference_data(run, batch_size=6, posterior_predictive=predicted)
