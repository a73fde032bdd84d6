"""Tables, series, tensors and lists at every door; and rows that do not belong together."""

from decimal import Decimal

import doors
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import small_run
from containers import CONTAINERS
from documents import table_on
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn import scores
from numpyro_bnn.data.arguments import as_array, as_arrays

KEY = jax.random.key(0)
X, Y = small_run.X.astype(np.float32), small_run.Y.astype(np.float32)
ROWS = len(X)


def own(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([2]).to_event(1))
    with numpyro.plate("data", ROWS):
        numpyro.sample("y", dist.Normal(jnp.asarray(x) @ w, 1.0), obs=y)


class Tensor:
    """What PyTorch and its like offer: NumPy's protocol and no more."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


KINDS = {
    "table": lambda x, y: (pd.DataFrame(x, columns=["a", "b"]), pd.Series(y)),
    "mixed": lambda x, y: (pd.DataFrame({"a": x[:, 0], "b": x[:, 1].astype(object)}).astype(
        {"b": "float64"}), pd.Series(y)),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "table of big-endian": lambda x, y: (pd.DataFrame(x.astype(">f4")), pd.Series(y.astype(">f4"))),
    "tensors": lambda x, y: (Tensor(x), Tensor(y)),
}  # fmt: skip
MODELS = {"own": lambda: own, "ready": small_run.regression}


@pytest.mark.parametrize("name", MODELS)
def test_every_door_takes_what_any_container_holds(name):
    model = MODELS[name]()
    mcmc = small_run.sample(small_run.unstarted(model), X, Y)
    expected = bnn.predict(None, mcmc, X)
    report = bnn.diagnose(mcmc, X)
    start = bnn.optimize(model, KEY, X, Y, num_steps=0, progress_bar=False)
    for kind in KINDS.values():
        x, y = kind(X, Y)
        # All of these must come to the same arrays, so that nothing is compiled again.
        small_run.sample(mcmc, x, y)
        found = bnn.predict(None, mcmc, x)
        np.testing.assert_array_equal(found.mean, expected.mean)
        np.testing.assert_allclose(found.log_prob(y), expected.log_prob(Y), rtol=1e-5)
        assert scores.rmse(found, y) == pytest.approx(scores.rmse(expected, Y))
        assert scores.lppd(found, y) == pytest.approx(scores.lppd(expected, Y))
    x, y = KINDS["lists"](X, Y)
    assert bnn.diagnose(mcmc, x).predictions.max_rhat == report.predictions.max_rhat
    again = bnn.optimize(model, KEY, *KINDS["table"](X, Y), num_steps=0, progress_bar=False)
    jax.tree.map(np.testing.assert_array_equal, again, start)
    idata = bnn.to_inference_data(mcmc, *KINDS["table"](X, Y), posterior_predictive=False)
    np.testing.assert_allclose(idata["constant_data"]["x"].values, X)


def test_fit_takes_a_table_and_a_series():
    table, series = KINDS["table"](X, Y)
    fitted = bnn.fit(
        own, table, series, kernel="nuts", num_chains=1, num_warmup=2, num_samples=4,
        progress_bar=False,
    )  # fmt: skip
    assert fitted.predict(table).mean.shape == (1, 4, ROWS)


def test_lists_that_are_no_data_stay_constants():
    def model(x, y, widths, scale):
        raise NotImplementedError

    (_, y, widths, scale), _ = as_arrays(model, (X, Y.tolist(), [16, 16], (1.0, 2.0)), {})
    assert isinstance(y, np.ndarray)
    assert widths == [16, 16]
    assert scale == (1.0, 2.0)
    (weights,), named = as_arrays(model, ([X, Y],), {"y": 3.0})
    assert weights[0] is X
    assert named == {"y": 3.0}


def test_arrays_of_any_byte_order_are_those_of_native_order():
    def scaled(x, y=None, *, scale):
        raise NotImplementedError

    for kind in (">i2", ">u4", ">f2", ">i8", "<f4", "?"):
        given = np.array([[0, 1], [2, 3]], kind)
        args = ({"a": given}, given[0])
        (x, y), named = as_arrays(scaled, args, {"scale": np.longdouble(2)})
        for array, expected in ((x["a"], given), (y, given[0])):
            assert array.dtype == np.dtype(kind).newbyteorder("=")
            assert array.dtype.isnative
            np.testing.assert_array_equal(array, expected)
        assert named["scale"].dtype == np.float64
    beyond = np.array([1, np.longdouble("1e400")])
    with pytest.raises(
        ValueError, match=r"scaled: x has the finite value 1e\+400 at index 1, which f"
    ):
        as_arrays(scaled, (beyond,), {})
    with pytest.raises(
        ValueError, match=r"scaled: scale has the finite value 1e\+400, which float64"
    ):
        as_arrays(scaled, (), {"scale": beyond[1]})
    infinite = np.array([1, np.inf, np.nan], np.longdouble)
    np.testing.assert_array_equal(as_arrays(scaled, (infinite,), {})[0][0], [1, np.inf, np.nan])


def test_draws_of_any_byte_order_predict():
    w = np.array([[[1.0, 2.0], [3.0, 4.0]]])
    draws = bnn.Draws({"w": w.astype(">f8")}, own, {"potential_energy": w[..., 0].astype(">f4")})
    assert all(value.dtype.isnative for value in (draws["w"], draws.stats["potential_energy"]))
    np.testing.assert_allclose(bnn.predict(None, draws, X).mean, w @ X.T, rtol=1e-6)


BAD = {
    "a column of text": (
        pd.DataFrame(X, columns=["a", "b"]).assign(colour="red"), Y,
        r"x is a DataFrame whose columns 'colour' \(.*\) hold no numbers.*get_dummies",
    ),
    "a column of dates": (
        pd.DataFrame({"a": X[:, 0], "when": pd.date_range("2020", periods=ROWS)}), Y,
        r"x is a DataFrame whose columns 'when' \(datetime64",
    ),
    "a column of categories": (
        pd.DataFrame({"a": X[:, 0], "kind": pd.Categorical(["u", "v"] * (ROWS // 2))}), Y,
        r"x is a DataFrame whose columns 'kind' \(category\)",
    ),
    "a series of text": (X, pd.Series(["u"] * ROWS), "y is of type Series of .*expected numbers"),
    "a ragged list": ([[1.0, 2.0], [3.0]] * (ROWS // 2), Y, "x is of type list, .*rows of one length"),
    "dates": (np.arange("2020-01-01", "2020-01-13", dtype="datetime64[D]"), Y, "of datetime64"),
    "complex numbers": (X * 1j, Y, "x is of type ndarray of complex64"),
    "masked values": (np.ma.masked_less(X, 0), Y, "masked array with [0-9]+ masked"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", MODELS)
def test_what_holds_no_numbers_is_refused_the_same_way_at_every_door(name, case):
    x, y, message = BAD[case]
    model = MODELS[name]()
    with pytest.raises(TypeError, match=message):
        bnn.MCMC(HMC(model), num_warmup=1, num_samples=1).run(KEY, x, y)
    with pytest.raises(TypeError, match=message):
        bnn.optimize(model, KEY, x, y, num_steps=0, progress_bar=False)
    with pytest.raises(TypeError, match=message):
        bnn.fit(model, x, y, progress_bar=False)
    if x is not X:
        with pytest.raises(TypeError, match=message):
            bnn.predict(own, {"w": np.zeros((1, 2, 2))}, x)
        with pytest.raises(TypeError, match=message):
            bnn.diagnose(bnn.Draws({"w": np.zeros((1, 2, 2))}, own), x)


def test_missing_values_of_a_nullable_column_are_counted():
    table = pd.DataFrame({"a": pd.array([1, None] * (ROWS // 2), dtype="Int64"), "b": 1.0})
    with pytest.raises(ValueError, match="own: x has 6 missing values"):
        bnn.potential_of(own, table, Y)


def test_stacking_weights_of_other_rows_are_refused():
    for bad in ([np.zeros(3), np.zeros(4)], [np.zeros((2, 3)), np.zeros(3)], ([0.0], [0.0, 1.0])):
        with pytest.raises(ValueError, match="inhomogeneous"):
            bnn.stacking_weights(bad)


def data(**parts):
    return {"x": X, "y": Y, "x_test": X, "y_test": Y} | parts


def test_compare_refuses_rows_that_do_not_belong_together():
    for bad, message in (
        ({"y": Y[:-1]}, r"x and y must hold arrays with the same positive .* got \[11, 12\]"),
        ({"y_test": Y[:-2]}, r"x_test and y_test must hold arrays with the same .* got \[10, 12\]"),
        ({"x": X[:0], "y": Y[:0]}, r"x and y must .* got \[0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            bnn.compare(own, data(**bad))


def test_compare_refuses_a_run_over_other_rows():
    mcmc = small_run.sample(small_run.unstarted(own), X, Y)
    with pytest.raises(ValueError, match="'mine' was fitted to 12 rows, and x has 8"):
        bnn.compare(own, data(x=X[:8], y=Y[:8]), {"mine": mcmc}, reference="mine")
    found = bnn.compare(own, data(), {"mine": mcmc}, reference="mine", progress_bar=False)
    assert found["mine"].difference == 0


@pytest.mark.parametrize("door", ["optimize", "potential_of", "predict"])
def test_a_network_is_no_model(door):
    network = bnn.MLP((3,), 1)
    doors = {
        "optimize": lambda: bnn.optimize(network, KEY, X, Y),
        "potential_of": lambda: bnn.potential_of(bnn.parameterize(network, "centered"), X, Y),
        "predict": lambda: bnn.predict(network, {"w": np.zeros((2, 1))}, X),
    }
    with pytest.raises(TypeError, match=r"got the network MLP.*bnn\.regression\(MLP\(…\), prior\)"):
        doors[door]()


A = [Decimal("1.5") + i for i in range(40)]
TABLE = pd.DataFrame({"a": A, "b": A[::-1]})
NUMBERS = np.stack([np.array(A, float), np.array(A[::-1], float)], 1)


@pytest.mark.parametrize("table", [TABLE.to_numpy(), TABLE.assign(b=NUMBERS[:, 1])])
def test_decimals_are_numbers_of_a_model(table):
    np.testing.assert_array_equal(as_array("model", "x", table), NUMBERS)
    np.testing.assert_array_equal(as_array("model", "y", TABLE["a"]), NUMBERS[:, 0])


@pytest.mark.filterwarnings("ignore:BNNRegressor. the predictions are not known")
def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="expected numbers"):
        as_array("model", "x", np.array([Decimal(1), "2"], object))


def need(name):
    if not doors.installed(name):
        pytest.skip(f"{name} needs {', '.join(CONTAINERS[name].needs)}")


@pytest.mark.parametrize("name", CONTAINERS)
def test_rows_arrive_as_those_of_float64_or_are_refused(name, tmp_path):
    need(name)
    found = {door: doors.cell(name, door, tmp_path) for door in doors.CONVERSIONS}
    assert found == table_on(doors.PAGE)[name]


@pytest.mark.parametrize("door", doors.DOORS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_the_whole_way(name, door, tmp_path):
    need(name)
    assert doors.cell(name, door, tmp_path) in ("equal", "refused", "–")
