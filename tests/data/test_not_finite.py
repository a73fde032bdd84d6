"""NaN in the data of one's own model: named where a run fails, taken elsewhere; and whole numbers."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from numpyro_bnn import gradients, schedules, scores
from numpyro_bnn._checks import check_whole, warn
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


NUMBERS = np.array([0.5, 1.0, 2.0, -1.0])


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 4):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=numpyro.subsample(y, event_dim=0))


def mcmc(**settings):
    return bnn.MCMC(HMC(model), **{"num_warmup": 2, "num_samples": 4, **settings})


def optimize(**settings):
    return bnn.optimize(model, KEY, NUMBERS, progress_bar=False, **{"num_steps": 0, **settings})


def line(x):
    w = numpyro.sample("mean", dist.Normal())
    numpyro.sample("y", dist.Normal(w * x, 1.0))


DRAWS = {"mean": np.zeros((2, 4))}

# Name: the call with that number, and one that is right.
PLACES = {
    "MCMC: num_chains": (lambda n: mcmc(num_chains=n), 2),
    "MCMC: num_warmup": (lambda n: mcmc(num_warmup=n), 2),
    "MCMC: num_samples": (lambda n: mcmc(num_samples=n), 2),
    "MCMC: thinning": (lambda n: mcmc(thinning=n), 2),
    "MCMC: progress_rate": (lambda n: mcmc(progress_rate=n), 2),
    "MCMC: chunk_size": (lambda n: mcmc(chunk_size=n), 2),
    "MCMC: checkpoint_every": (lambda n: mcmc(draws="run.zarr", checkpoint_every=n), 2),
    "gradients.full: chunk_size": (lambda n: gradients.full(chunk_size=n), 2),
    "gradients.minibatch: batch_size": (lambda n: gradients.minibatch(n), 2),
    "gradients.svrg: period": (lambda n: gradients.svrg(2, period=n), 2),
    "SGLD: batch_size": (
        lambda n: bnn.SGLD(model, step_size=0.1, batch_size=n, gradient=gradients.minibatch(2)), 2
    ),
    "GGMC: num_steps": (lambda n: bnn.GGMC(model, step_size=0.1, num_steps=n), 2),
    "MAMS: max_num_steps": (lambda n: bnn.MAMS(model, max_num_steps=n), 2),
    "WindowedHMC: num_steps": (lambda n: bnn.WindowedHMC(model, num_steps=n, window=1), 2),
    "WindowedHMC: window": (lambda n: bnn.WindowedHMC(model, num_steps=4, window=n), 2),
    "SGHMC: resample_momentum": (
        lambda n: bnn.SGHMC(model, step_size=0.1, friction=1.0, resample_momentum=n), 2
    ),
    "cyclical: cycle_length": (lambda n: schedules.cyclical(0.1, n, 0.5), 4),
    "ParallelTempering: num_rungs": (lambda n: bnn.ParallelTempering(model, num_rungs=n), 2),
    "scores.reliability: num_bins": (lambda n: scores.reliability([[0.2, 0.8]], [1], n), 2),
    "optimize: num_chains": (lambda n: optimize(num_chains=n), 2),
    "optimize: num_steps": (lambda n: optimize(num_steps=n), 0),
    "optimize: batch_size": (lambda n: optimize(batch_size=n), 2),
    "map_estimate: num_starts": (
        lambda n: bnn.map_estimate(model, KEY, NUMBERS, num_starts=n, num_steps=0, progress_bar=False), 2
    ),
    "map_estimate: patience": (
        lambda n: bnn.map_estimate(model, KEY, NUMBERS, patience=n, num_steps=0, progress_bar=False), 2
    ),
    "predict: batch_size": (
        lambda n: bnn.predict(line, DRAWS, NUMBERS, batch_size=n), 2
    ),
    "prior_predictive: num_samples": (
        lambda n: bnn.prior_predictive(lambda x: numpyro.sample("a", dist.Normal()), KEY, NUMBERS, n), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_any_type_of_whole_number_is_taken(place):
    call, right = PLACES[place]
    for number in (np.int64(right), np.array(right, np.uint8)):
        call(number)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [True, 2.0, np.float32(2), "2", -1, np.int64(-1)])
def test_what_is_no_whole_number_is_refused_by_name(place, number):
    call, _ = PLACES[place]
    owner, label = place.split(": ")
    with pytest.raises(ValueError, match=rf"{owner}: {label}.* must .*, got "):
        call(number)


def test_predictions_in_blocks_of_any_type_of_number():
    found = [
        bnn.predict(line, DRAWS, NUMBERS, batch_size=n).mean for n in (3, np.int64(3), jnp.int32(3))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_a_run_with_numpys_numbers_is_that_with_pythons():
    def draws(kind):
        run = mcmc(
            num_chains=kind(2), num_warmup=kind(2), num_samples=kind(4), thinning=kind(2),
            chunk_size=kind(3), progress_bar=False,
        )  # fmt: skip
        # Looking for starts compiles for longer than the steps.
        run.run(KEY, NUMBERS, init_params={"mean": jnp.ones(2)})
        return run.get_samples()["mean"]

    np.testing.assert_array_equal(draws(np.int64), draws(int))


def test_the_check_says_what_it_wants():
    assert type(check_whole("f", "n", np.int64(3))) is int
    with pytest.raises(ValueError, match=r"f: n must be a positive integer, got 0\."):
        check_whole("f", "n", 0)
    with pytest.raises(ValueError, match=r"f: n must not be negative, got -1\."):
        check_whole("f", "n", -1, least=0)
    with pytest.raises(ValueError, match=r"f: n must be an integer of 0 or more, got 1\.5\."):
        check_whole("f", "n", 1.5, least=0)
    with pytest.raises(ValueError, match=r"f: n must be an integer of at least 2, got 1\."):
        check_whole("f", "n", 1, least=2)


def test_warnings_point_at_the_file_of_a_project_whose_name_begins_as_this_package_does():
    place = f"{os.path.dirname(bnn.__file__)}_of_a_user/own.py"
    with pytest.warns(UserWarning, match="look") as caught:
        exec(compile("warn('look')", place, "exec"), {"warn": warn})
    assert caught[0].filename == place
