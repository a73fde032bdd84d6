"""NaN in the data of a model of one's own: named where a run or an optimisation fails, taken elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn.data.not_finite import advice_on_data

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
Y = X @ np.array([1.0, -1.0], np.float32)
BAD = X.copy()
BAD[3, 1] = np.nan
SAID = r"x has 1 NaN, the first at \(3, 1\): fill them in or leave those rows out.*\. [UST]"
QUIET = {"progress_bar": False}


def own(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        y = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(rows @ w, 1.0), obs=y)


def allows(x, y=None):
    """A model that takes a missing value for 0."""
    own(jnp.where(jnp.isnan(x), 0.0, x), y)


def run(kernel, x, num_chains=1):
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=4, num_chains=num_chains, **QUIET)
    mcmc.run(KEY, x, Y)


CALLS = {
    "a start": (lambda: run(bnn.BAOAB(own, step_size=0.01), BAD), ValueError),
    # The first minibatch, of one row, does not have it.
    "a chain": (lambda: run(bnn.BAOAB(own, step_size=0.01, batch_size=1), BAD), RuntimeError),
    "NUTS": (lambda: run(NUTS(own), BAD), ValueError),
    "optimize": (lambda: bnn.optimize(own, KEY, BAD, Y, num_steps=3, **QUIET), ValueError),
    "an ensemble": (lambda: bnn.deep_ensemble(own, KEY, BAD, Y, num_steps=3, **QUIET), ValueError),
    "mean field": (lambda: bnn.mean_field(own, KEY, BAD, Y, num_steps=3, **QUIET), ValueError),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_value_is_named_before_other_advice(call):
    function, error = CALLS[call]
    with pytest.raises(error, match=f"(?s){SAID}"):
        function()


def test_data_on_the_host_are_looked_at_too(monkeypatch):
    monkeypatch.setattr(bnn.OnHost, "rows_a_pass", 2)
    assert advice_on_data(own, (bnn.OnHost(BAD), Y), {}).startswith(
        "x has 1 NaN, the first at (3, 1): fill them in"
    )
    assert advice_on_data(own, (bnn.OnHost(X), bnn.OnHost(np.arange(6))), {}) == ""
    two = np.where(np.arange(6) > 3, np.inf, np.where(np.arange(6) == 1, np.nan, 0.0))
    assert "has 1 NaN and 2 infinite values, the first at 1:" in advice_on_data(
        own, (bnn.OnHost(two),), {}
    )


def test_a_model_that_allows_for_it_is_optimised():
    starts = bnn.optimize(allows, KEY, BAD, Y, num_steps=3, **QUIET)
    assert np.isfinite(starts["w"]).all()


def test_every_argument_is_looked_at():
    def model(x, y, scale=1.0, groups=None):
        pass

    y = np.array([1.0, np.inf, -np.inf, np.nan])
    said = advice_on_data(model, ({"a": X, "b": BAD}, y), {"scale": float("nan"), "groups": [1]})
    assert said.startswith(
        "x['b'] has 1 NaN, the first at (3, 1); y has 1 NaN and 2 infinite values, the first at 1; "
        "scale has 1 NaN: fill them in"
    )
    assert advice_on_data(model, (X, y[:1]), {"groups": np.arange(3)}) == ""
    assert advice_on_data(None, (jnp.asarray(BAD),), {}).startswith("argument 1 has 1 NaN")
