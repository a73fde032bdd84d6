"""Inputs are known however they were given: by position, by name, in a pytree; any digit makes others."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer import HMC
from numpyro.infer import MCMC as NumPyroMCMC
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.approximations.modes import ensemble_of
from numpyro_bnn.data.arguments import as_arrays, inputs_of_call
from numpyro_bnn.data.columns import about_inputs, check_columns, column_names
from numpyro_bnn.data.fingerprints import fingerprint, is_same
from numpyro_bnn.potential.starts import BoundModel

KEY = jax.random.key(0)
NAMES = ["age", "weight", "income"]
TABLE = pd.DataFrame(np.random.default_rng(0).normal(size=(6, 3)), columns=NAMES, dtype=np.float32)
Y = TABLE.to_numpy() @ np.array([1.0, -2.0, 0.5], np.float32)
SWAPPED = TABLE[["income", "weight", "age"]]
FEW = {"num_steps": 3, "progress_bar": False}

own = row_model(
    lambda x, w: dist.Normal(x @ w, 1.0), plate="rows", w=dist.Normal(0, 1).expand([3]).to_event(1)
)


def in_dict(x, y=None):
    own(x["t"], y)


def in_tuple(x, y=None):
    own(x[1] + 0 * x[0][:, None], y)


def by_row(x, y=None):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("rows", x.shape[0]):
        shift = numpyro.sample("shift", dist.Normal(0, 3))
        numpyro.sample("y", dist.Normal(w * x[:, 0] + shift, 1.0), obs=y)


# Of each its model, its inputs from a table, and whether they are given by name.
CALLS = {
    "by name": (own, lambda t: t, True),
    "in a dictionary": (in_dict, lambda t: {"t": t}, False),
    "in a tuple, by name": (in_tuple, lambda t: (np.zeros(len(t), np.float32), t), True),
}


@pytest.fixture(scope="module", params=CALLS)
def call(request):
    """A model, what makes its inputs of a table, and the arguments of its fit."""
    model, inputs, named = CALLS[request.param]
    given = ((), {"y": Y, "x": inputs(TABLE)}) if named else ((inputs(TABLE), Y), {})
    return model, inputs, *given


def sampled(model, *args, **kwargs):
    settings = {"num_warmup": 2, "num_samples": 5, "progress_bar": False}
    disk = {"draws": kwargs.pop("folder")} if "folder" in kwargs else {}
    mcmc = bnn.MCMC(bnn.SGLD(model, step_size=1e-3), **settings, **disk)
    arrays, named = as_arrays(model, args, kwargs)
    # Looking for a start compiles for longer than the steps.
    starts = nets.weights(partial(model, **named), *arrays)
    mcmc.run(KEY, *args, init_params=starts, **kwargs)
    return mcmc


@pytest.fixture(scope="module")
def run(call):
    model, _, args, kwargs = call
    return sampled(model, *args, **kwargs)


def check_refusals(model, draws, inputs):
    """That inputs with other columns are refused, and those of the fit are taken."""
    with pytest.raises(ValueError, match=r"predict: x.* has 'income' where the training data had"):
        bnn.predict(model, draws, inputs(SWAPPED))
    with pytest.raises(ValueError, match=r"x.* lacks column\(s\) \['age'\] and has the unknown"):
        bnn.predict(model, draws, inputs(TABLE.rename(columns={"age": "height"})))
    with pytest.raises(
        ValueError, match=r"predict: x.* has shape \(.*4\), .*fit had the shape \(3,\)"
    ):
        bnn.predict(model, draws, inputs(np.zeros((2, 4), np.float32)))
    by_name = bnn.predict(model, draws, inputs(TABLE[:4])).mean
    of_arrays = bnn.predict(model, draws, inputs(TABLE.to_numpy()[:4])).mean
    np.testing.assert_array_equal(by_name, of_arrays)


def test_a_run_refuses_other_columns(call, run):
    model, inputs, *_ = call
    check_refusals(model, run, inputs)
    for refused in (
        lambda: bnn.diagnose(run, inputs(SWAPPED)),
        lambda: bnn.check_fit(run, inputs(SWAPPED), Y),
        lambda: bnn.calibrate(run, inputs(SWAPPED), Y),
        lambda: bnn.to_inference_data(run, inputs(SWAPPED), Y),
        lambda: bnn.export(run, inputs(SWAPPED), "never.jax"),
        lambda: bnn.thin(run, 1, inputs(SWAPPED)),
        lambda: bnn.stack(run, inputs(SWAPPED), Y, key=KEY),
        lambda: bnn.compare(
            model, (inputs(SWAPPED), Y) * 2, methods={"a": run}, reference="a", progress_bar=False
        ),
    ):
        with pytest.raises(ValueError, match=r"has 'income' where the training data had 'age'"):
            refused()


def test_what_is_known_of_inputs_goes_with_stored_draws(call, run, tmp_path):
    pytest.importorskip("zarr")
    model, inputs, args, kwargs = call
    check_refusals(model, bnn.load(bnn.save(run, tmp_path / "draws"), model), inputs)
    sampled(model, *args, **kwargs, folder=tmp_path / "run.zarr")
    check_refusals(model, bnn.load(tmp_path / "run.zarr", model), inputs)
    idata = bnn.to_inference_data(run, posterior_predictive=False)
    check_refusals(model, bnn.from_inference_data(idata, model), inputs)


def test_approximations_refuse_other_columns(call):
    model, inputs, args, kwargs = call
    check_refusals(model, bnn.mean_field(model, KEY, *args, **kwargs, **FEW), inputs)
    starts = bnn.optimize(model, KEY, *args, **kwargs, **FEW)
    check_refusals(model, ensemble_of(BoundModel.of(model, args, kwargs), starts), inputs)


def test_a_run_that_is_judged_refuses_other_columns(call):
    model, inputs, args, kwargs = call
    mcmc = bnn.MCMC(
        bnn.BAOAB(model, step_size=0.01), num_warmup=2, num_samples=4, progress_bar=False
    )
    until = partial(mcmc.run_until, KEY, *args, max_minutes=0.01, **kwargs)
    with pytest.raises(ValueError, match=r"run_until: x of test_data.* has 'income' where"):
        until(at=(inputs(SWAPPED), Y))
    with pytest.raises(
        ValueError,
        match=r"run_until: x of test_data.* has shape \(.*2\), .*fit had the shape \(3,\)",
    ):
        until(at=(inputs(TABLE.to_numpy()[:, :2]), Y))


def test_a_fit_of_a_dictionary_of_tables_refuses_other_columns():
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 4, "progress_bar": False}
    fitted = bnn.fit(in_dict, {"t": TABLE}, Y, kernel="nuts", **options)
    for draws in (fitted, fitted.ensemble):
        check_refusals(in_dict, draws, lambda table: {"t": table})


def test_inputs_of_a_call_by_name_are_those_of_the_run(run):
    """Functions that take the training inputs by default find them."""
    assert bnn.thin(run, 1).num_draws == 1
    report = bnn.second_opinion(run, kernel=bnn.SGLD(run.model, step_size=1e-3), progress_bar=False)
    assert report.verdict


def test_latent_values_of_rows_are_not_those_of_other_rows(tmp_path):
    pytest.importorskip("zarr")
    x, new = TABLE.to_numpy(), TABLE.to_numpy() + 1
    of_name = sampled(by_row, y=Y, x=x)
    of_disk = sampled(by_row, x, Y, folder=tmp_path / "run.zarr")
    for draws in (
        of_name,
        bnn.load(bnn.save(of_name, tmp_path / "draws"), by_row),
        of_disk,
        bnn.load(tmp_path / "run.zarr", by_row),
        bnn.mean_field(by_row, KEY, x, Y, **FEW),
        bnn.map_estimate(by_row, KEY, y=Y, x=x, **FEW),
    ):
        assert bnn.predict(by_row, draws, x).mean.shape[2] == 6
        with pytest.raises(ValueError, match=r"\['shift'\] have a value for every row of the fit"):
            bnn.predict(by_row, draws, new)


def test_a_run_of_numpyro_knows_its_inputs_too():
    kernel = HMC(own, num_steps=1, trajectory_length=None)
    mcmc = NumPyroMCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False)
    mcmc.run(KEY, y=Y, x=TABLE.to_numpy())
    with pytest.raises(
        ValueError, match=r"predict: x has shape \(.*2\), .*fit had the shape \(3,\)"
    ):
        bnn.predict(own, mcmc, TABLE.to_numpy()[:, :2])


def test_another_model_takes_the_inputs_by_its_own_name():
    """The inputs of the model that predicts, where the run's own has its target first."""

    def target_first(y=None, x=None):
        own(x, y)

    run = sampled(target_first, x=TABLE.to_numpy(), y=Y)
    predicting = partial(target_first, None)
    assert bnn.predict(predicting, run, TABLE.to_numpy()[:2]).mean.shape[2] == 2
    with pytest.raises(
        ValueError, match=r"predict: x has shape \(.*2\), .*fit had the shape \(3,\)"
    ):
        bnn.predict(predicting, run, TABLE.to_numpy()[:, :2])


def test_the_inputs_of_a_call():
    ready = bnn.regression(bnn.MLP((2,), 1), bnn.priors.Normal(1.0))
    for model in (own, ready, handlers.mask(own, mask=True), partial(own), lambda x, y: None):
        assert inputs_of_call(model, (1, 2), {}) == 1
        assert inputs_of_call(model, (1,), {"y": 2}) == 1
        assert inputs_of_call(model, (), {"y": 2, "x": 1}) == 1
    assert inputs_of_call(partial(own, 0), (), {"y": 2}) == 2
    assert inputs_of_call(own, (), {"y": 2}) is None
    assert inputs_of_call(lambda: None, (), {}) is None
    # A kernel over a potential energy has no model, and some callables have no signature.
    assert inputs_of_call(None, (1,), {"y": 2}) == 1
    assert inputs_of_call(None, (), {"x": 1}) is None
    assert inputs_of_call(dict, (), {"x": 1}) is None


def test_names_of_columns_are_kept_by_table():
    x = {"a": TABLE, "b": (TABLE[["age"]], np.zeros(6)), "c": TABLE["age"]}
    names = {"['a']": NAMES, "['b'][0]": ["age"]}
    assert column_names(x) == names
    assert column_names(TABLE) == NAMES
    assert column_names({"a": TABLE.to_numpy()}) == column_names(None) == []
    assert about_inputs({"a": TABLE})["columns"] == {"['a']": NAMES}
    assert about_inputs({"a": TABLE.to_numpy()}, {"['a']": NAMES})["columns"] == {"['a']": NAMES}
    check = partial(check_columns, "predict", "x", names)
    # A table that was an array in training, or is one now, has nothing to be compared with.
    for same in (x, x | {"c": TABLE}, x | {"a": TABLE.to_numpy()}, TABLE):
        check(same)
    with pytest.raises(ValueError, match=r"x\['a'\] has 'income' .* `x\['a'\]\[\['age', 'weight"):
        check(x | {"a": SWAPPED})
    with pytest.raises(ValueError, match=r"x\['b'\]\[0\] has the unknown column\(s\) \['weight'"):
        check(x | {"b": (TABLE, np.zeros(6))})


# Seconds since 1970: numbers that differ by less than single precision tells apart.
DAY = 1.7e9 + np.arange(6.0)
LATER = DAY + 3.0
PAIRS = {
    "the same": (DAY, DAY.copy(), True),
    "on a device": (DAY, jnp.asarray(DAY, jnp.float32), True),
    "other digits": (DAY, LATER, False),
    "other digits of single numbers": (np.float32(DAY), np.float32(LATER + 500), False),
    "another number": (np.arange(3.0), np.array([0.0, 1.0, 2.5]), False),
    "integers and reals": (np.arange(3), np.arange(3.0), True),
    "integers of many digits": (np.array([2**30 + 1]), np.array([2**30 + 3]), False),
    "whole and real": (np.arange(3.0), np.arange(3.0, dtype=np.float32), True),
    "zeros of two signs": (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), True),
    "with a missing one": (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), True),
    "one of two on a device": ([DAY, LATER], [np.float32(DAY), LATER], True),
    "the other one of two": ([DAY, LATER], [np.float32(DAY), LATER + 1], False),
    "each on a device once": ([np.float32(DAY), LATER], [DAY, np.float32(LATER)], True),
    "beyond single numbers": (np.array([1e300]), np.array([1e301]), False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_texts_say_whether_data_are_the_same(name):
    one, other, same = PAIRS[name]
    assert is_same(fingerprint(one), fingerprint(other)) == same


def test_texts_of_older_files_are_known():
    assert is_same(fingerprint(DAY), fingerprint(np.float32(DAY)).split()[0])


def test_a_model_refuses_targets_that_differ_in_late_digits():
    x = np.arange(6.0)[:, None]
    model = bnn.regression(bnn.MLP([], 1), bnn.priors.Normal(1.0))
    model.learn(x, DAY)
    assert not model.learn(x, DAY)
    with pytest.raises(ValueError, match="keeps the units of the data"):
        model.learn(x, LATER)
