"""ArviZ objects: what is in them, that ArviZ reads them, and the way back."""

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from flax import linen as nn
from numpyro.infer import HMC
from quiet import quiet

with warnings.catch_warnings():
    # Matplotlib 3.9 asks pyparsing for names that newer releases of it deprecate.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="matplotlib")
    import arviz as az
    import matplotlib.pyplot as plt

import numpyro_bnn as bnn
from numpyro_bnn.posterior.arviz_export import from_inference_data, to_inference_data
from numpyro_bnn.posterior.predictions import predict

IS_TREE = "InferenceData" not in vars(az)
CLASSES = 3


class Net(nn.Module):
    """As many hidden units as classes, so that sizes cannot tell the layers apart."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(CLASSES, name="head")(nn.tanh(nn.Dense(CLASSES, name="hidden")(x)))


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


def kernel_of(over: Any) -> HMC:
    """What adapts compiles for longer than the steps."""
    steps: Any = {"step_size": 0.01, "num_steps": 2, "trajectory_length": None}
    return HMC(over, **steps, adapt_step_size=False, adapt_mass_matrix=False)


@pytest.fixture(scope="module")
def mcmc() -> bnn.MCMC:
    run = quiet(kernel_of(model), 0, 50, 2)
    run.run(jax.random.key(0), X, Y, init_params=nets.starts(2, model, X, Y))
    return run


def short_run(over: Any) -> bnn.MCMC:
    """Four draws by a kernel that compiles fast."""
    return quiet(kernel_of(over), 0, 4)


@pytest.fixture(scope="module")
def idata(mcmc: bnn.MCMC) -> Any:
    dims = {"net/head.kernel": ["net.head.unit_in", "class"], "net/head.bias": ["class"]}
    labels = {"class": ["low", "mid", "high"]}
    return bnn.to_inference_data(mcmc, predict={"test": X_TEST}, dims=dims, coords=labels)


def test_groups_and_generation(idata: Any) -> None:
    assert type(idata).__name__ == ("DataTree" if IS_TREE else "InferenceData")
    groups = set(idata.children) if IS_TREE else set(idata.groups())
    of_predictions = {"posterior_predictive", "predictions", "predictions_constant_data"}
    data = {"log_likelihood", "log_prior", "observed_data", "constant_data"}
    assert groups == {"posterior", "sample_stats", *data, *of_predictions}


def test_weights_have_named_axes(idata: Any) -> None:
    posterior = idata["posterior"]
    hidden, head = posterior["net.hidden.kernel"], posterior["net.head.kernel"]
    assert hidden.dims == ("chain", "draw", "net.hidden.unit_in", "net.hidden.unit_out")
    # As they were named.
    assert head.dims == ("chain", "draw", "net.head.unit_in", "class")
    assert posterior["net.head.bias"].dims == ("chain", "draw", "class")
    assert list(posterior["class"].values) == ["low", "mid", "high"]
    names = '["net.hidden.unit_in", "net.hidden.unit_out"]'
    assert hidden.attrs == {"site": "net/hidden.kernel", "layer": "net.hidden", "axes": names}


def test_axes_and_places_come_back_in_the_order_of_the_site(idata: Any) -> None:
    """Whatever order they were put in; joined chains and a chain by itself come back too."""
    expected = bnn.from_inference_data(idata)
    posterior = idata["posterior"]
    posterior = posterior.to_dataset() if IS_TREE else posterior
    order = [*reversed([name for name in posterior.dims if name not in ("chain", "draw")])]
    turned = posterior.transpose("draw", *order, "chain").sortby(
        "net.hidden.unit_in", ascending=False
    )
    for changed in (turned, posterior.stack(sample=("chain", "draw"))):
        found = bnn.from_inference_data({"posterior": changed})
        for site, value in expected.items():
            np.testing.assert_array_equal(found[site], value)
    one = bnn.from_inference_data({"posterior": posterior.isel(chain=1)})
    for site, value in expected.items():
        np.testing.assert_array_equal(one[site], value[1:2])
    with pytest.raises(ValueError, match="'draw'"):
        bnn.from_inference_data({"posterior": posterior.isel(draw=0)})


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
    np.testing.assert_array_equal(stats["n_steps"].values, fields["num_steps"])
    assert {"diverging", "energy"} <= set(stats.data_vars)


def test_the_depth_of_a_tree_comes_and_goes(mcmc: bnn.MCMC) -> None:
    """By the record of a run of NUTS, which compiles for longer."""
    steps = np.resize(np.arange(1, 16), (2, 50))
    draws = bnn.Draws(mcmc.get_samples(True), model, {"num_steps": steps})
    draws.info |= {"kernel": "NUTS", "max_num_steps": 15}
    for _ in range(2):
        idata = to_inference_data(draws, X, Y, log_likelihood=False, posterior_predictive=False)
        stats = idata["sample_stats"]
        np.testing.assert_array_equal(stats["n_steps"].values, steps)
        np.testing.assert_array_equal(stats["reached_max_treedepth"].values, steps == 15)
        depth = stats["tree_depth"].values
        assert np.all((2 ** (depth - 1) <= steps) & (steps <= 2**depth - 1))
        draws = from_inference_data(idata, model)
        assert (draws.info["kernel"], draws.info["max_num_steps"]) == ("NUTS", 15)


def test_log_likelihood_against_the_formula(idata: Any) -> None:
    probs = idata["posterior_predictive"]["probs"]
    assert probs.dims == ("chain", "draw", "row", "class")
    expected = np.log(np.take_along_axis(probs.values, Y[None, None, :, None], -1)[..., 0])
    log_likelihood = idata["log_likelihood"]["y"]
    assert log_likelihood.dims == ("chain", "draw", "row")
    np.testing.assert_allclose(log_likelihood.values, expected, rtol=1e-4, atol=1e-5)


def test_predictions_of_each_name(mcmc: bnn.MCMC, idata: Any) -> None:
    predictions = idata["predictions"]
    assert predictions["test.y"].dims == ("chain", "draw", "test.row")
    assert set(np.unique(predictions["test.y"])) <= set(range(CLASSES))
    expected = predict(None, mcmc, X_TEST).probs
    np.testing.assert_allclose(predictions["test.probs"].values, expected, rtol=1e-6)


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
        predict(None, draws, X_TEST).probs, predict(None, mcmc, X_TEST).probs, rtol=1e-4, atol=1e-6
    )
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert set(draws.stats) == set(fields)
    np.testing.assert_array_equal(draws.stats["potential_energy"], fields["potential_energy"])
    assert draws.info["kernel"] == "HMC"


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
        for module in (r"arviz.*", r"xarray.*", r"matplotlib.*"):
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
