"""ArviZ objects: what is in them, that ArviZ reads them, and the way back."""

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from flax import linen as nn
from numpyro.infer import HMC, NUTS

with warnings.catch_warnings():
    # Matplotlib 3.9 asks pyparsing for names that newer releases of it deprecate.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="matplotlib")
    import arviz as az
    import matplotlib.pyplot as plt

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.posterior.arviz_export import from_inference_data, to_inference_data
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.storage.axis_names import dims_of

pytestmark = pytest.mark.usefixtures("quick_compile")

IS_TREE = "InferenceData" not in vars(az)
CLASSES = 3


class Net(nn.Module):
    """As many hidden units as classes, so that sizes cannot tell the layers apart."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        hidden = nn.Dense(CLASSES, name="hidden")(x)
        return nn.Dense(CLASSES, name="head")(nn.tanh(hidden))


def model(x: Any, y: Any = None) -> None:
    # One precision, beside weights that have none.
    prior = bnn.priors.ByPath(
        {"hidden.kernel": bnn.priors.Hierarchical(), "*": bnn.priors.Normal(1.0)}
    )
    net = bnn.random_module("net", Net(), prior, x[:1])
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        targets = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Categorical(logits=net(rows)), obs=targets)


rng = np.random.default_rng(0)
X = rng.normal(size=(30, 2)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32) + (X[:, 0] > 1)
X_TEST = rng.normal(size=(4, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def mcmc() -> bnn.MCMC:
    run = bnn.MCMC(
        NUTS(model, max_tree_depth=4),
        num_warmup=60,
        num_samples=50,
        num_chains=2,
        progress_bar=False,
    )
    run.run(jax.random.key(0), X, Y)
    return run


def short_run(over: Any) -> bnn.MCMC:
    """Four draws by a kernel that compiles fast."""
    steps: Any = {"step_size": 0.01, "num_steps": 2, "trajectory_length": None}
    kernel = HMC(over, **steps, adapt_step_size=False, adapt_mass_matrix=False)
    return bnn.MCMC(kernel, num_warmup=0, num_samples=4, progress_bar=False)


@pytest.fixture(scope="module")
def idata(mcmc: bnn.MCMC) -> Any:
    return bnn.to_inference_data(
        mcmc, predict={"test": X_TEST}, coords={"class": ["low", "mid", "high"]}
    )


def make_draws(num_draws: int = 5, **extra: Any) -> Draws:
    """Draws of a linear model that need no sampler."""
    values = np.random.default_rng(1).normal(size=(2, num_draws, 2)).astype(np.float32)
    return Draws({"w": values}, extra.pop("model", linear), **extra)


def linear(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def test_groups_and_generation(idata: Any) -> None:
    assert type(idata).__name__ == ("DataTree" if IS_TREE else "InferenceData")
    groups = set(idata.children) if IS_TREE else set(idata.groups())
    assert groups == {
        "posterior",
        "sample_stats",
        "log_likelihood",
        "observed_data",
        "constant_data",
        "posterior_predictive",
        "predictions",
        "predictions_constant_data",
    }


def test_weights_have_named_axes(idata: Any) -> None:
    posterior = idata["posterior"]
    hidden, head = posterior["net.hidden.kernel"], posterior["net.head.kernel"]
    assert hidden.dims == ("chain", "draw", "net.hidden.unit_in", "net.hidden.unit_out")
    # The same sizes, and yet only the outputs of the last layer are classes.
    assert head.dims == ("chain", "draw", "net.head.unit_in", "class")
    assert posterior["net.head.bias"].dims == ("chain", "draw", "class")
    assert list(posterior["class"].values) == ["low", "mid", "high"]
    assert hidden.attrs == {"site": "net/hidden.kernel", "layer": "net.hidden"}


def test_precisions_are_kept_and_standardized_values_are_not(mcmc: bnn.MCMC, idata: Any) -> None:
    names = set(idata["posterior"].data_vars)
    assert "net.hidden.kernel.precision" in names
    assert not [name for name in names if name.endswith(".base")]
    kept = to_inference_data(
        mcmc, log_likelihood=False, posterior_predictive=False, base_sites=True
    )
    base = kept["posterior"]["net.hidden.kernel.base"]
    assert base.dims == kept["posterior"]["net.hidden.kernel"].dims


def test_values_are_those_of_the_run(mcmc: bnn.MCMC, idata: Any) -> None:
    samples = mcmc.get_samples(group_by_chain=True)
    np.testing.assert_array_equal(
        idata["posterior"]["net.head.kernel"].values, samples["net/head.kernel"]
    )
    np.testing.assert_array_equal(idata["observed_data"]["y"].values, Y)
    np.testing.assert_array_equal(idata["constant_data"]["x"].values, X)
    np.testing.assert_array_equal(idata["predictions_constant_data"]["test.x"].values, X_TEST)


def test_sample_stats_have_the_names_that_arviz_knows(mcmc: bnn.MCMC, idata: Any) -> None:
    stats, fields = idata["sample_stats"], mcmc.get_extra_fields(group_by_chain=True)
    np.testing.assert_array_equal(stats["lp"].values, -fields["potential_energy"])
    np.testing.assert_array_equal(stats["acceptance_rate"].values, fields["accept_prob"])
    np.testing.assert_array_equal(stats["step_size"].values, fields["adapt_state.step_size"])
    steps = np.asarray(fields["num_steps"])
    np.testing.assert_array_equal(stats["n_steps"].values, steps)
    np.testing.assert_array_equal(stats["reached_max_treedepth"].values, steps == 15)
    depth = stats["tree_depth"].values
    assert np.all((2 ** (depth - 1) <= steps) & (steps <= 2**depth - 1))
    assert {"diverging", "energy"} <= set(stats.data_vars)


def test_other_statistics_pass_through() -> None:
    temperature = np.full((2, 5), 0.9)
    draws = make_draws(stats={"temperature": temperature, "grad": {"net/a": np.ones((2, 5, 3))}})
    stats = to_inference_data(draws, log_likelihood=False)["sample_stats"]
    np.testing.assert_array_equal(stats["temperature"].values, temperature)
    assert stats["grad.net.a"].shape == (2, 5, 3)


def test_log_likelihood_against_the_formula(idata: Any) -> None:
    probs = idata["posterior_predictive"]["probs"]
    assert probs.dims == ("chain", "draw", "row", "class")
    expected = np.log(np.take_along_axis(probs.values, Y[None, None, :, None], -1)[..., 0])
    log_likelihood = idata["log_likelihood"]["y"]
    assert log_likelihood.dims == ("chain", "draw", "row")
    np.testing.assert_allclose(log_likelihood.values, expected, rtol=1e-4, atol=1e-5)


def test_log_likelihood_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, x = make_draws(), X
    y = np.asarray(x @ np.ones(2), np.float32)
    whole = to_inference_data(draws, x, y)["log_likelihood"]["y"].values
    monkeypatch.setattr("numpyro_bnn.posterior.arviz_groups._BLOCK", 1)
    alone = to_inference_data(draws, x, y, posterior_predictive=False, batch_size=7)
    np.testing.assert_allclose(alone["log_likelihood"]["y"].values, whole, rtol=1e-5)
    mean = np.einsum("cdk,rk->cdr", draws["w"], x)
    expected = -0.5 * ((y - mean) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(whole, expected, rtol=1e-4)


def test_predictions_of_each_name(mcmc: bnn.MCMC, idata: Any) -> None:
    predictions = idata["predictions"]
    assert predictions["test.y"].dims == ("chain", "draw", "test.row")
    assert set(np.unique(predictions["test.y"])) <= set(range(CLASSES))
    expected = predict(None, mcmc, X_TEST).probs
    np.testing.assert_allclose(predictions["test.probs"].values, expected, rtol=1e-6)


def test_continuous_targets_give_mean_and_scale() -> None:
    draws = make_draws()
    idata = to_inference_data(draws, log_likelihood=False, predict={"a": X, "b": X_TEST})
    assert set(idata["predictions"].data_vars) == {
        *("a.y", "a.mean", "a.scale"),
        *("b.y", "b.mean", "b.scale"),
    }
    mean = np.einsum("cdk,rk->cdr", draws["w"], X)
    np.testing.assert_allclose(idata["predictions"]["a.mean"].values, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(idata["predictions"]["a.scale"].values, 0.5, rtol=1e-6)


def test_draws_of_the_target_follow_the_key() -> None:
    def drawn(**how: Any) -> np.ndarray:
        made = to_inference_data(
            make_draws(), log_likelihood=False, predict={"a": X, "b": X}, **how
        )
        return made["predictions"]

    first, again, other = drawn(), drawn(), drawn(rng_key=jax.random.key(1))
    np.testing.assert_array_equal(first["a.y"], again["a.y"])
    assert not np.any(first["a.y"].values == first["b.y"].values)
    assert not np.any(first["a.y"].values == other["a.y"].values)


def test_run_with_keyword_data_and_inputs_in_a_tree() -> None:
    def tree_model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", x["image"].shape[0]):
            numpyro.sample("y", dist.Normal(x["image"] @ w + x["age"], 1.0), obs=y)

    inputs = {"image": X, "age": X[:, 0]}
    run = short_run(tree_model)
    run.run(jax.random.key(0), x=inputs, y=jnp.asarray(X[:, 1]))
    idata = to_inference_data(run)
    np.testing.assert_array_equal(idata["observed_data"]["y"].values, X[:, 1])
    np.testing.assert_array_equal(idata["constant_data"]["x.age"].values, X[:, 0])
    assert idata["constant_data"]["x.image"].dims == ("row", "x.image.axis_1")
    assert idata["log_likelihood"]["y"].shape == (1, 4, 30)


def test_chains_keep_their_numbers_when_one_is_left_out(mcmc: bnn.MCMC) -> None:
    class Run(type(mcmc)):  # type: ignore[misc]
        """A run that lost its first chain."""

    run = object.__new__(Run)
    run.__dict__.update(mcmc.__dict__)
    run._states = jax.tree.map(lambda leaf: leaf[1:], mcmc._states)
    run._states_flat = None
    run.num_chains, run.left_out = 1, {0: "draw 3 is not finite"}
    idata = to_inference_data(run, log_likelihood=False, posterior_predictive=False)
    assert list(idata["posterior"]["chain"].values) == [1]


def test_back_to_draws(mcmc: bnn.MCMC, idata: Any) -> None:
    draws = from_inference_data(idata, model)
    # Standardised values are gone, so that the weights are read and not computed again: rounding.
    np.testing.assert_allclose(
        predict(None, draws, X).probs, predict(None, mcmc, X).probs, rtol=1e-4, atol=1e-6
    )
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert set(draws.stats) == set(fields)
    np.testing.assert_array_equal(draws.stats["potential_energy"], fields["potential_energy"])
    assert draws.info["kernel"] == "NUTS"
    assert draws.info["max_num_steps"] == 15
    again = to_inference_data(draws, X, Y, predict={"test": X_TEST})
    np.testing.assert_array_equal(
        again["sample_stats"]["tree_depth"].values, idata["sample_stats"]["tree_depth"].values
    )


def test_ready_model_gets_its_units_back(tmp_path: Any) -> None:
    def make() -> Any:
        return bnn.regression(nn.Dense(1), bnn.priors.Normal(1.0), noise=0.1)

    y = 100 + 10 * X[:, 0]
    run = short_run(make())
    run.run(jax.random.key(0), X, y)
    idata = to_inference_data(run)
    # The module is the layer.
    assert idata["posterior"]["net.kernel"].dims[2:] == ("net.unit_in", "net.unit_out")
    idata.to_netcdf(str(tmp_path / "run.nc"), engine="h5netcdf")
    draws = from_inference_data(read_netcdf(tmp_path / "run.nc"), make())
    expected = predict(None, run, X_TEST)
    np.testing.assert_allclose(predict(None, draws, X_TEST).mean, expected.mean, rtol=1e-5)


def judged_draws(chains: int = 4) -> tuple[Draws, Any]:
    """Draws of one weight, and a report on predictions whose third chain is far off."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(chains, 300, 6))
    y[2 % chains] += 3.0
    draws = Draws({"w": rng.normal(size=(chains, 300))})
    return draws, diagnose_draws(None, y)


def test_the_report_travels_with_the_draws(tmp_path: Any) -> None:
    draws, report = judged_draws()
    idata = bnn.to_inference_data(draws, log_likelihood=False, report=report)
    idata.to_netcdf(tmp_path / "run.nc")
    for given in (idata, read_netcdf(tmp_path / "run.nc")):
        group = given["report"]
        rows = report.monte_carlo_error.by_row["relative"]
        np.testing.assert_allclose(group["relative"].values, rows)
        assert group["relative"].dims == ("judged_row",)
        assert group["chain_group"].values.tolist() == [0, 0, 1, 0]
        said = group.attrs
        assert said["verdict"] == given["posterior"].attrs["verdict"] == "chains_disagree"
        assert said["headline"] == report.headline
        assert said["monte_carlo_error_relative"] == report.monte_carlo_error.relative
        assert said["agreement_p_max"] == report.agreement.p_max
        assert (said["agreement_groups"], said["tolerance_relative"]) == (2, 0.1)
        assert "monte_carlo_error_total_variation" not in said
    without = bnn.to_inference_data(draws, log_likelihood=False)
    assert "report" not in (without.children if IS_TREE else without.groups())
    assert "verdict" not in without["posterior"].attrs


def test_a_report_without_errors_travels_too() -> None:
    draws, _ = judged_draws(1)
    short = diagnose_draws(None, np.random.default_rng(0).normal(size=(1, 20, 3)))
    idata = bnn.to_inference_data(draws, log_likelihood=False, report=short)
    assert idata["report"].attrs["verdict"] == "too_short"
    assert list(idata["report"].data_vars) == ["needed"]
    assert float(idata["report"]["needed"]) == short.needed
    # The halves of one chain stand for chains, and are none.
    halves = judged_draws(1)[1]
    idata = bnn.to_inference_data(draws, log_likelihood=False, report=halves)
    assert list(idata["report"].data_vars) == ["relative", "needed"]


def read_netcdf(path: Any) -> Any:
    return az.from_netcdf(str(path), engine="h5netcdf")


def test_netcdf_round_trip(idata: Any, tmp_path: Any) -> None:
    idata.to_netcdf(str(tmp_path / "run.nc"), engine="h5netcdf")
    check_same(read_netcdf(tmp_path / "run.nc"), idata)


def test_zarr_round_trip(idata: Any, tmp_path: Any) -> None:
    pytest.importorskip("zarr", reason="zarr is an optional dependency")
    path = str(tmp_path / "run.zarr")
    with warnings.catch_warnings():
        # zarr 3 says that consolidated metadata and strings are not in its specification yet.
        warnings.filterwarnings("ignore", category=UserWarning, module="zarr")
        warnings.filterwarnings("ignore", message=".*does not have a Zarr V3 specification")
        if IS_TREE:
            idata.to_zarr(path)
            read = az.from_zarr(path)
        else:
            # The own method of ArviZ 0.23 knows zarr 2 only, and points to this way.
            idata.to_datatree().to_zarr(path)
            read = az.from_datatree(xr.open_datatree(path, engine="zarr"))
        check_same(read, idata)


def check_same(read: Any, idata: Any) -> None:
    for group in ("posterior", "sample_stats", "log_likelihood", "predictions", "observed_data"):
        assert set(read[group].data_vars) == set(idata[group].data_vars)
        for name, variable in idata[group].data_vars.items():
            assert read[group][name].dims == variable.dims
            np.testing.assert_array_equal(read[group][name].values, variable.values)
    assert list(read["posterior"]["class"].values) == ["low", "mid", "high"]
    back, direct = from_inference_data(read, model), from_inference_data(idata, model)
    assert back.info == direct.info
    np.testing.assert_array_equal(
        predict(None, back, X_TEST).probs, predict(None, direct, X_TEST).probs
    )


@pytest.fixture
def arviz_figures() -> Iterator[None]:
    """Run ArviZ's plots; what they and their dependencies deprecate is not ours to fix."""
    with warnings.catch_warnings():
        for module in (r"arviz.*", r"xarray.*", r"matplotlib.*", r"numba.*"):
            for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
                warnings.filterwarnings("ignore", category=category, module=module)
        yield
    plt.close("all")


KERNEL = ["net.head.kernel"]


@pytest.mark.usefixtures("arviz_figures")
@pytest.mark.parametrize("plot", ["plot_trace", "plot_trace_dist", "plot_rank", "plot_forest"])
def test_plots_of_arviz(idata: Any, plot: str) -> None:
    if not hasattr(az, plot):
        pytest.skip(f"this ArviZ has no {plot}")
    getattr(az, plot)(idata, var_names=KERNEL)
    texts = [t.get_text() for t in plt.gcf().findobj(plt.Text)]
    # A weight is labelled by its unit and its class.
    if plot in ("plot_forest", "plot_rank"):
        assert any("high" in text for text in texts)
        assert any("net.head.kernel" in text for text in texts)


@pytest.mark.usefixtures("arviz_figures")
def test_summary_of_arviz(idata: Any) -> None:
    table = az.summary(idata, var_names=KERNEL)
    assert list(table.index)[:2] == ["net.head.kernel[0, low]", "net.head.kernel[0, mid]"]
    assert len(az.summary(idata)) == 2 * 3 + 3 + 3 * 3 + 3 + 1


@pytest.mark.usefixtures("arviz_figures")
def test_loo_and_compare_of_arviz(idata: Any) -> None:
    # Enough draws of a wide posterior that importance sampling has nothing to complain about.
    draws = make_draws(500)
    draws = Draws({"w": 1 + 0.01 * draws["w"]}, linear)
    y = np.asarray(X @ np.ones(2), np.float32)
    idata = to_inference_data(draws, X, y)
    loo = az.loo(idata)
    expected = idata["log_likelihood"]["y"].values.mean((0, 1)).sum()
    assert abs(float(getattr(loo, "elpd_loo", None) or loo.elpd) - expected) < 0.1
    worse = to_inference_data(Draws({"w": draws["w"] + 1}, linear), X, y)
    assert list(az.compare({"worse": worse, "better": idata}).index) == ["better", "worse"]


def test_names_of_axes() -> None:
    shapes = {
        "net/Conv_0.kernel": (3, 3, 1, 8),
        "net/Conv_0.bias": (8,),
        "net/Conv_0.kernel.precision": (),
        "net/Dense_0.kernel": (4, 5),
        "net/Dense_0.kernel.unit_precision": (4,),
        "net/Dense_0.kernel.local_scale": (4, 5),
        "net/Embed_0.embedding": (10, 6),
        "net/Attention_0.query.kernel": (4, 2, 3),
        "net/Attention_0.value.bias": (2, 3),
        "net/Attention_0.out.kernel": (2, 3, 4),
        "net/first": (4,),
        "net/second": (5,),
        "net/square": (2, 2, 2),
        "y.scale": (),
        "offsets": (3,),
    }
    found = {site: " ".join(names) for site, names in dims_of(shapes).items()}
    conv, dense, attention = "net.Conv_0", "net.Dense_0", "net.Attention_0"
    assert found == {
        "net/Conv_0.kernel": f"{conv}.window_0 {conv}.window_1 {conv}.unit_in {conv}.unit_out",
        "net/Conv_0.bias": f"{conv}.unit_out",
        "net/Conv_0.kernel.precision": "",
        "net/Dense_0.kernel": f"{dense}.unit_in {dense}.unit_out",
        "net/Dense_0.kernel.unit_precision": f"{dense}.unit_in",
        "net/Dense_0.kernel.local_scale": f"{dense}.unit_in {dense}.unit_out",
        "net/Embed_0.embedding": "net.Embed_0.entry net.Embed_0.unit_out",
        "net/Attention_0.query.kernel": " ".join(
            f"{attention}.query.{axis}" for axis in ("unit_in", "head", "unit_out")
        ),
        "net/Attention_0.value.bias": f"{attention}.value.head {attention}.value.unit_out",
        "net/Attention_0.out.kernel": " ".join(
            f"{attention}.out.{axis}" for axis in ("head", "unit_in", "unit_out")
        ),
        "net/first": "net.unit_out",
        # Another size under the same name would not fit into one dataset.
        "net/second": "net.second.axis_0",
        "net/square": "net.square.axis_0 net.square.axis_1 net.square.axis_2",
        "y.scale": "",
        "offsets": "offsets.axis_0",
    }


def test_other_names_for_axes() -> None:
    idata = to_inference_data(
        make_draws(), log_likelihood=False, dims={"w": ["column"]}, coords={"column": ["a", "b"]}
    )
    assert idata["posterior"]["w"].dims == ("chain", "draw", "column")
    assert list(idata["posterior"]["column"].values) == ["a", "b"]


def call(**how: Any) -> Any:
    return to_inference_data(how.pop("run", None) or make_draws(), **how)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"run": {"w": np.ones((2, 5, 2))}}, ValueError, "carry no model.*Pass `model=`"),
        (
            {"run": {"w": np.ones((2, 5, 2))}, "log_likelihood": False, "predict": {"t": X}},
            ValueError,
            "carry no model",
        ),
        ({}, ValueError, "needs the training data.*Pass `x` and `y`"),
        ({"x": X}, ValueError, "needs the training data"),
        ({"y": Y}, ValueError, "`y` was given without `x`"),
        ({"predict": X}, TypeError, "predict must map names to inputs.*got ndarray"),
        ({"report": 3}, TypeError, "report must be what bnn.diagnose returned, got int"),
        ({"run": 3}, TypeError, "expected an MCMC after `run`, .*got int"),
        ({"log_likelihood": False, "dims": {"v": ["a"]}}, ValueError, r"names the sites \['v'\]"),
        (
            {"log_likelihood": False, "dims": {"w": ["a", "b"]}},
            ValueError,
            r"for the site 'w' of shape \(2,\)",
        ),
        ({"log_likelihood": False, "coords": {"class": [1]}}, ValueError, r"the axes \['class'\]"),
        (
            {"log_likelihood": False, "coords": {"w.axis_0": [1]}},
            ValueError,
            r"has \(1,\) labels for the axis 'w.axis_0' of size 2",
        ),
    ],
)
def test_errors(how: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**how)


def test_clash_of_names() -> None:
    values = np.ones((1, 2))
    draws = Draws({"net/w": values, "net.w": values}, linear)
    with pytest.raises(ValueError, match=r"group posterior would be called 'net\.w'"):
        to_inference_data(draws, log_likelihood=False)


def test_errors_of_the_way_back() -> None:
    with pytest.raises(ValueError, match="has no group `posterior`"):
        from_inference_data({"prior": None})
    idata = to_inference_data(make_draws(), log_likelihood=False)
    posterior = idata["posterior"]
    other = posterior["w"].assign_attrs(site="w")
    twice = posterior.assign(v=other) if not IS_TREE else posterior.to_dataset().assign(v=other)
    with pytest.raises(ValueError, match="two variables stand for the site 'w'"):
        from_inference_data({"posterior": twice})
