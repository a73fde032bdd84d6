"""Tables with other columns than the training data are refused by every door, and arrays are not."""

import re
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.data.columns import (
    about_inputs,
    check_columns,
    check_row_shapes,
    column_names,
    noted_inputs,
    probe_inputs,
    with_tables,
)
from numpyro_bnn.data.host_rows import OnHost

NAMES = ["age", "weight", "income"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(20, 3)).astype(np.float32), columns=NAMES)


@pytest.fixture(scope="module")
def target(table):
    return table.to_numpy() @ np.array([1.0, -2.0, 0.5], np.float32)


own = row_model(
    lambda x, w: dist.Normal(x @ w, 1.0), plate="rows", w=dist.Normal(0, 1).expand([3]).to_event(1)
)


def ready():
    return bnn.regression(bnn.MLP((2,), 1), bnn.priors.Normal(1.0), noise=0.1)


def key():
    return jax.random.key(0)


def sampled(model, *data):
    kernel = bnn.RandomWalk(model, step_size=1e-3)
    mcmc = bnn.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
    # Looking for a start compiles for longer than the steps.
    mcmc.run(key(), *data, init_params=nets.weights(model, *data))
    return mcmc


@pytest.fixture(scope="module", params=["own", "ready"])
def fitted(request, table, target):
    """A model, and its draws from a table."""
    model = own if request.param == "own" else ready()
    return model, sampled(model, table, target)


CHANGES = {
    "another order": lambda t: t[["income", "weight", "age"]],
    "another name": lambda t: t.rename(columns={"weight": "height"}),
    "one more": lambda t: t.assign(sex=0.0),
    "one less": lambda t: t[["age", "income"]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_columns_are_refused_by_predict(change, fitted, table):
    model, draws = fitted
    with pytest.raises(ValueError, match=r"Expected the columns of the training data, in their"):
        bnn.predict(model, draws, CHANGES[change](table))


def test_what_differs_is_named(table):
    check = partial(check_columns, "predict", "x", NAMES)
    with pytest.raises(ValueError, match=r"has 'income' where the training data had 'age'"):
        check(CHANGES["another order"](table))
    with pytest.raises(ValueError, match=r"lacks column\(s\) \['weight'\] and has the unknown"):
        check(CHANGES["another name"](table))
    with pytest.raises(ValueError, match=r"has the unknown column\(s\) \['sex'\]\. Expected"):
        check(CHANGES["one more"](table))
    check(table.to_numpy())
    assert column_names(table["age"]) == []


def test_names_go_with_saved_draws(table, target, tmp_path):
    draws = sampled(ready(), table, target)
    found = bnn.load(bnn.save(draws, tmp_path / "draws"), again := ready())
    assert again.standardization.columns.tolist() == NAMES
    with pytest.raises(ValueError, match=r"has 'income' where the training data had 'age'"):
        bnn.predict(again, found, CHANGES["another order"](table))


def test_comparing_refuses_test_rows_with_other_columns(table, target):
    data = (table, target, CHANGES["another order"](table), target)
    with pytest.raises(ValueError, match=r"compare: x_test has 'income' where"):
        bnn.compare(ready(), data)


def test_a_fit_names_the_lost_column(table, target):
    lost = table.astype(np.float32).assign(weight=np.float32(1e9) + table["weight"])
    lost["weight"] = lost["weight"].astype(np.float32)
    with pytest.raises(ValueError, match=r"column 'weight' of x"):
        bnn.fit(ready(), lost, target)


def test_what_is_no_table_of_numbers_says_what_becomes_one(table, target):
    sparse = csr_matrix(table.to_numpy())
    with pytest.raises(TypeError, match=r"`x\.toarray\(\)`"):
        bnn.optimize(ready(), key(), sparse, target)
    with pytest.raises(TypeError, match=r"`x\.real`, `x\.imag`"):
        bnn.optimize(ready(), key(), table.to_numpy().astype(complex), target)


def test_a_model_without_a_target_has_no_log_likelihood(table, target):
    def factor(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.factor("fit", -((y - x @ w) ** 2).sum() if y is not None else 0.0)

    draws = bnn.Draws({"w": np.zeros((1, 5, 3))}, factor)
    with pytest.raises(ValueError, match="a model that observes a site"):
        bnn.to_inference_data(draws, x=table.to_numpy(), y=target)


def test_arrays_with_another_number_of_columns_are_refused(fitted, table):
    model, draws = fitted
    x = table.to_numpy()
    said = r"predict: x has shape \(.*2\), .*fit had the shape \(3,\)\. Give the columns of the training"
    with pytest.raises(ValueError, match=said):
        bnn.predict(model, draws, x[:, :2])
    with pytest.raises(
        ValueError, match=r"diagnose: x has shape \(.*4\), .*fit had the shape \(3,\)"
    ):
        bnn.diagnose(draws, np.zeros((5, 4), np.float32), model=model)
    single = r"x has shape \(3,\), .*fit had the shape \(3,\)\. .* `x\[None\]`"
    with pytest.raises(ValueError, match=single):
        bnn.predict(model, draws, x[0])
    with pytest.raises(ValueError, match=single):
        bnn.predict(model, draws, table.iloc[0])
    with pytest.raises(ValueError, match=r"x has shape \(.*2\), .*fit had the shape \(3,\)"):
        bnn.predict(model, draws, x[:, :2].tolist())
    assert bnn.predict(model, draws, x[:1]).mean.shape[-1] == 1


def test_the_columns_go_with_draws_on_disk(table, target, tmp_path):
    pytest.importorskip("zarr")
    kernel = bnn.SGLD(own, step_size=1e-3)
    settings = {"num_warmup": 5, "num_samples": 20, "progress_bar": False}
    mcmc = bnn.MCMC(kernel, **settings, draws=tmp_path / "run.zarr")
    mcmc.run(key(), table, target, init_params=nets.weights(own, table, target))
    found = bnn.load(tmp_path / "run.zarr", own)
    with pytest.raises(
        ValueError, match=r"predict: x has shape \(.*2\), .*fit had the shape \(3,\)"
    ):
        bnn.predict(own, found, table.to_numpy()[:, :2])
    with pytest.raises(ValueError, match=r"has 'income' where the training data had 'age'"):
        bnn.predict(own, found, CHANGES["another order"](table))


@pytest.mark.parametrize(
    ("x", "got"),
    [
        ({"a": np.ones((9, 2))}, r"arrays x\['a'\] \(9, 2\)"),
        (np.ones((9, 2)), r"arrays x \(9, 2\)"),
    ],
)
def test_what_a_model_got_is_said_where_it_finds_no_such_entry(x, got):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x["a"])):
            numpyro.sample("y", dist.Normal(w * x["b"], 1.0), obs=y)

    draws = bnn.Draws({"w": np.ones((1, 4))}, model)
    for call in (
        lambda: bnn.fit(model, x, np.ones(9)),
        lambda: bnn.describe(model, x),
        lambda: bnn.predict(None, draws, x),
    ):
        with pytest.raises((KeyError, TypeError)) as error:
            call()
        assert re.search(f"called the model with {got}", " ".join(error.value.__notes__))


def test_what_is_compared_of_other_inputs():
    check = partial(check_row_shapes, "predict", "x")
    about = about_inputs({"image": np.zeros((9, 8, 8, 1)), "level": np.zeros(9), "n": 3})
    assert about == {"row_shapes": [[8, 8, 1], []]}
    check(about, {"image": np.zeros((2, 4, 4, 1)), "level": np.zeros(2), "n": 3})
    check(about, np.zeros((2, 5)))
    check({}, np.zeros((2, 5)))
    assert about_inputs(None) == {}
    with pytest.raises(
        ValueError, match=r"x\['level'\] has shape \(.*1\), .*fit had the shape \(\)"
    ):
        check(about, {"image": np.zeros((2, 8, 8, 1)), "level": np.zeros((2, 1)), "n": 3})
    image = r"x\['image'\] has shape \(.*8, 1\), .*fit had the shape \(8, 8, 1\)"
    with pytest.raises(ValueError, match=image + r".* `x\['image'\]\[None\]`"):
        check(about, {"image": np.zeros((8, 8, 1)), "level": np.zeros(2), "n": 3})
    for fitted, given, had in [
        ({"a": np.zeros((9, 2))}, np.zeros((2, 2)), "ndarray, and the fit had {'a': …}"),
        (np.zeros((9, 2)), {"a": np.zeros((2, 2))}, "dict, and the fit had one array"),
        ([np.zeros(9)] * 2, np.zeros(2), "ndarray, and the fit had several arrays"),
    ]:
        with pytest.raises(TypeError, match=had):
            check(about_inputs(fitted), given)
    column = about_inputs(np.zeros((9, 1)))
    with pytest.raises(ValueError, match=r"shape \(4,\), .*shape \(1,\).*`x\[:, N"):
        check(column, np.zeros(4))


def test_a_ready_model_says_it_in_the_same_words(table, target):
    model = bnn.regression(bnn.MLP((2,), 1), bnn.priors.FanIn(), table.to_numpy(), target)
    with pytest.raises(ValueError, match=r"x has shape \(3,\), .* `x\[None\]`"):
        bnn.prior_predictive(model, key(), table.to_numpy()[0], 2)


RNG = np.random.default_rng(0)
INPUTS = {
    "columns": RNG.normal([0, 1000], [1, 5], (50, 2)).astype(np.float32),
    "one number a row": RNG.normal(size=50),
    "tokens": RNG.integers(3, 30, (50, 7)),
    "images": RNG.integers(0, 256, (20, 8, 8, 3)).astype(np.uint8),
    "half precision": jnp.ones((5, 2), jnp.bfloat16),
    "masks": RNG.random((9, 2)) < 0.5,
    "many columns": RNG.normal(size=(5, 100)),
    "a dictionary": {"b": np.zeros((5, 2)), "a": (np.ones(5), [np.arange(5)])},
}


@pytest.mark.parametrize("name", INPUTS)
def test_they_have_the_structure_and_types_of_the_others(name):
    x = INPUTS[name]
    made = probe_inputs(noted_inputs(x))
    assert jax.tree.structure(made) == jax.tree.structure(x)
    for own, given in zip(jax.tree.leaves(made), jax.tree.leaves(x)):
        assert own.shape == (8, *np.shape(given)[1:])
        assert own.dtype == given.dtype
        assert np.min(given) <= np.min(own)
        assert np.max(own) <= np.max(given)


def test_columns_have_ranges_of_their_own():
    x = INPUTS["columns"]
    made = probe_inputs(noted_inputs(x))
    assert (x.min(0) <= made.min(0)).all()
    assert (made.max(0) <= x.max(0)).all()
    np.testing.assert_array_equal(made, probe_inputs(noted_inputs(jnp.asarray(x))))


def test_tables_and_data_on_the_host_are_noted_like_arrays():
    x = INPUTS["columns"]
    assert noted_inputs(OnHost(x)) == noted_inputs(x)
    assert noted_inputs(pd.DataFrame(x)) == noted_inputs(x)


def test_tables_of_all_libraries_keep_the_names_of_their_columns(table):
    polars = SimpleNamespace(columns=NAMES, shape=table.shape)
    arrow = SimpleNamespace(columns=[[0.3], [0.1]], column_names=NAMES, shape=table.shape)
    for own in (table, polars, arrow):
        assert column_names(with_tables(own, table.to_numpy())) == column_names(own) == NAMES


def test_numbers_that_are_not_finite_have_no_part_in_a_range():
    made = probe_inputs(noted_inputs(np.array([[np.nan, 1.0], [np.nan, np.inf], [np.nan, 2.0]])))
    np.testing.assert_array_equal(made[:, 0], 0.0)
    assert ((made[:, 1] >= 1) & (made[:, 1] <= 2)).all()


@pytest.mark.parametrize("x", [None, 3.0, np.zeros((0, 2)), np.array(["a"]), {}, {1: np.ones(3)}])
def test_of_other_values_nothing_is_noted(x):
    assert noted_inputs(x) is None
