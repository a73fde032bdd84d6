"""Arguments with a value for each row: by name, bound by ``functools.partial``, or held by a closure."""

from functools import cache, partial
from unittest.mock import Mock

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import condition
from numpyro.infer import MCMC as NumPyroMCMC

import numpyro_bnn as bnn
from numpyro_bnn.posterior import training_data
from numpyro_bnn.workflow import compare

SIZE = 1001
X = np.linspace(-1, 1, SIZE, dtype="f4")[:, None]
EXPOSURE = np.linspace(1, 3, SIZE, dtype="f4")
DRAWS = {"b": np.array([[0.5, 0.3]])}
WANT = EXPOSURE * np.mean([np.exp(b * X[:, 0]) for b in (0.5, 0.3)], 0)


def scaled(x, y=None, exposure=None):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(exposure * jnp.exp(b * x[:, 0]), exposure), obs=y)


def widths(x, widths, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(widths * jnp.exp(b * x[:, 0]), widths), obs=y)


def closure(x, y=None):
    return scaled(x, y, exposure=EXPOSURE)


def mean(predictions):
    return np.asarray(bnn.average(predictions).mean)


@pytest.mark.parametrize("batch_size", [None, 300])
@pytest.mark.parametrize(
    ("model", "named"),
    [
        (scaled, {"exposure": EXPOSURE}),
        (partial(scaled, exposure=EXPOSURE), {}),
        (condition(partial(scaled, exposure=EXPOSURE), {"unused": 1.0}), {}),
        (partial(condition(scaled, {"unused": 1.0}), exposure=EXPOSURE), {}),
        (partial(scaled, exposure=EXPOSURE + 1), {"exposure": EXPOSURE}),
        (widths, {"widths": EXPOSURE}),
        (partial(widths, widths=EXPOSURE), {}),
    ],
)
def test_predict_takes_them_by_name_and_bound_to_the_model(model, named, batch_size):
    found = bnn.predict(model, DRAWS, X, batch_size=batch_size, **named)
    assert np.allclose(mean(found), WANT, rtol=1e-5)


def test_rows_that_a_closure_holds_are_predicted_together():
    assert np.allclose(mean(bnn.predict(closure, DRAWS, X)), WANT, rtol=1e-5)


def test_other_numbers_of_rows_and_unknown_names_are_refused():
    with pytest.raises((TypeError, ValueError), match="1001"):
        bnn.predict(scaled, DRAWS, X[:5], exposure=EXPOSURE)
    with pytest.raises((TypeError, ValueError), match="1001"):
        bnn.predict(partial(scaled, exposure=EXPOSURE), DRAWS, X[:5])
    with pytest.raises(TypeError, match="keyword argument 'exposures'"):
        bnn.predict(scaled, DRAWS, X, exposures=EXPOSURE)


Y = EXPOSURE * (np.exp(0.4 * X[:, 0]) + np.random.default_rng(0).normal(size=SIZE))
# Runs of one model, the exposures given in three ways.
CALLS = {
    "by name": (scaled, (X, Y), {"exposure": EXPOSURE}),
    "by place": (scaled, (X, Y, EXPOSURE), {}),
    "bound": (partial(scaled, exposure=EXPOSURE), (X, Y), {}),
}
START = {"b": jnp.array(0.4)}


@cache
def run_of(name):
    model, args, kwargs = CALLS[name]
    kernel = bnn.RandomWalk(model, step_size=0.1)
    run = bnn.MCMC(kernel, num_warmup=50, num_samples=1000, thinning=10, progress_bar=False)
    run.run(jax.random.key(0), *args, **kwargs, init_params=START)
    return run


@pytest.mark.parametrize("name", CALLS)
def test_diagnose_and_check_fit_take_them(name):
    run = run_of(name)
    given = {} if name == "bound" else {"exposure": EXPOSURE}
    assert bnn.diagnose(run, X, Y, **given).monte_carlo_error.log_score > 0
    whole, rows = bnn.check_fit(run), slice(0, 900)
    few = bnn.check_fit(run, X[rows], Y[rows], exposure=EXPOSURE[rows])
    assert np.allclose(few.loo.by_row, whole.loo.by_row[rows], atol=0.01)


@pytest.mark.parametrize("name", CALLS)
def test_held_out_rows_have_their_own(name):
    run, y = run_of(name), Y[:99]
    check = partial(bnn.check_fit, run, X[:99], y, exposure=EXPOSURE[:99])
    new, more = X[:99] + 0.001, {"exposure": EXPOSURE[:99] + 1}
    own = bnn.predict(scaled, run.get_samples(True), new, **more)
    held = check(held_out=(new, y, more)).held_out
    assert held.score == pytest.approx(bnn.scores.lppd(own, y), rel=1e-4)
    with pytest.raises(ValueError, match=r"\['exposure'\].*held_out=\(x, y, \{'exposure': …\}\)"):
        check(held_out=(new, y))
    with pytest.raises(ValueError, match="check_fit: 99 of 99 held-out rows are training rows"):
        check(held_out=(X[:99], y, more))


def logs(x, y=None, offset=None, sd=1.0):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        log_y = None if y is None else jnp.log(y)
        numpyro.sample("y", dist.Normal(b * x[:, 0] + offset, sd), obs=log_y)


@pytest.mark.parametrize("place", [("offset", "sd"), (2, 3)])
def test_a_logarithm_is_observed_of_rows_with_arguments_of_their_own(place):
    rng = np.random.default_rng(0)
    x, offset = rng.normal(size=(60, 1)), rng.normal(size=60)
    y = np.exp(0.4 * x[:, 0] + offset + 0.5 * rng.normal(size=60))
    draws = bnn.Draws({"b": 0.4 + 0.1 * rng.normal(size=(2, 100))}, logs)
    fit, new = slice(40), slice(40, 60)
    more = dict(zip(place, (offset[fit], 0.5)))
    draws._args, draws._kwargs = training_data.call_with({0: x[fit], 1: y[fit]} | more)
    own, held = {"offset": offset[fit]}, (x[new], y[new], {"offset": offset[new]})
    check = bnn.check_fit(draws, x[fit], y[fit], held_out=held, **own)
    expected = bnn.predict(None, draws, x[new], offset=offset[new], sd=0.5)
    density = expected.log_prob(np.log(y[new]))
    assert check.held_out.score == pytest.approx(
        bnn.scores.lppd(expected, np.log(y[new])), abs=1e-4
    )
    with pytest.raises(ValueError, match="40 of 40 held-out rows are training rows"):
        bnn.check_fit(draws, held_out=(x[fit], y[fit], own))
    options = {"key": jax.random.key(0), "offset": offset[new], "sd": 0.5}
    stacked = bnn.stack(draws, x[new], y[new], **options)
    assert np.allclose(stacked.info["weights"], bnn.stacking_weights(density), atol=1e-4)


@pytest.mark.parametrize("name", CALLS)
def test_thin_takes_those_of_the_run_or_others(name):
    run = run_of(name)
    expected = bnn.thin(bnn.Draws(run.get_samples(True), partial(scaled, exposure=EXPOSURE)), 3, X)
    assert np.array_equal(bnn.thin(run, 3)["b"], expected["b"])
    few = bnn.thin(run, 3, X[:100], exposure=EXPOSURE[:100])
    assert few.info["thinned"]["total_variation"] < 0.1


@pytest.mark.parametrize("name", ["by name", "by place"])
def test_a_second_opinion_takes_those_of_the_run_or_others(name):
    run, first, given = run_of(name), slice(0, 9), {"exposure": EXPOSURE[:9]}
    # The programs of the first run serve the second, and its optimised starts compile for longer.
    few = {"num_warmup": 50, "num_samples": 100, "progress_bar": False, "kernel": run.sampler}
    starts = Mock(return_value=START)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "optimize", starts)
        whole = bnn.second_opinion(run, **few)
        assert whole.second.num_compared == 8 * SIZE
        assert bnn.second_opinion(run, X[first], **given, **few).second.num_compared == 8 * 9
        patch.setattr(bnn.MCMC, "run", lambda *args, **kwargs: pytest.fail("it has run"))
        with pytest.raises(TypeError, match="NoneType"):
            bnn.second_opinion(run, X[first], **few)
    alone = bnn.diagnose(run, X, exposure=EXPOSURE)
    np.testing.assert_array_equal(whole.predictions.rhat, alone.predictions.rhat)
    _, args, kwargs = CALLS[name]
    for call in starts.call_args_list:
        assert call.args[2:] == args
        assert kwargs.items() <= call.kwargs.items()


@pytest.mark.parametrize("model", [scaled, partial(scaled, exposure=EXPOSURE)])
def test_a_file_takes_them_by_name(model, tmp_path):
    given = {"exposure": EXPOSURE} if model is scaled else {}
    path = bnn.export(bnn.Draws(DRAWS, model), X, tmp_path / "f.jax", platforms=["cpu"], **given)
    load = jax.export.deserialize(bytearray(path.read_bytes()))
    found = load.call(X[:7], exposure=EXPOSURE[:7])["mean"]
    assert np.allclose(found, WANT[:7], rtol=1e-5)


def gaussian(x, y=None, sd=1.0, noisy=False):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x[:, 0], jnp.where(noisy, 9.0, sd)), obs=y)


NUMBERS = pytest.mark.parametrize("args", [((), {"sd": 0.25}), ((jnp.float32(0.25),), {})])


def short_run(make, args, **disk):
    """Two draws, the width given by name or by its place."""
    more, named = args
    kernel = bnn.RandomWalk(gaussian, step_size=0.1)
    run = make(kernel, num_warmup=0, num_samples=2, progress_bar=False, **disk)
    data = X[:5], X[:5, 0], *more
    run.run(jax.random.key(0), *data, **named, noisy=False, init_params=START)
    return run


@NUMBERS
def test_a_number_of_the_run_is_that_of_its_predictions(args, tmp_path):
    run = short_run(bnn.MCMC, args, draws=tmp_path / "draws")
    bnn.save(run, tmp_path / "draws.npz")
    (more, named), x, y = args, X[:5], X[:5, 0]
    quick = {"num_members": 1, "num_steps": 0, "progress_bar": False}
    members = bnn.deep_ensemble(gaussian, jax.random.key(0), x, y, *more, **named, **quick)
    loaded = [bnn.load(tmp_path / name, gaussian) for name in ("draws", "draws.npz")]
    for known in (run, members, *loaded):
        assert np.all(bnn.predict(None, known, x).scale == 0.25)
    assert np.all(bnn.predict(gaussian, loaded[0], x).scale == 0.25)
    assert np.all(bnn.predict(None, loaded[0], x, sd=2.0).scale == 2)
    assert np.all(bnn.predict(partial(gaussian, sd=3.0), loaded[0], x).scale == 3)


@NUMBERS
def test_a_number_of_a_run_of_numpyro_is_that_of_its_predictions(args):
    assert np.all(bnn.predict(None, short_run(NumPyroMCMC, args), X[:5]).scale == 0.25)
