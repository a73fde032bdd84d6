"""ArviZ objects of draws that need no run: targets, reports, axes, chosen chains, 16 bits, refusals."""

from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro import handlers
from numpyro.infer import HMC
from small_models import row_model
from test_arviz import IS_TREE, X_TEST, X, Y, arviz_figures, az

import numpyro_bnn as bnn
from numpyro_bnn.posterior.arviz_export import from_inference_data, to_inference_data
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.priors.paths import dims_of

__all__ = ["arviz_figures"]  # a fixture

linear = row_model(
    lambda x, w: dist.Normal(x @ w, 0.5), w=dist.Normal(0.0, 1.0).expand([2]).to_event(1)
)


def make_draws(num_draws: int = 5, **extra: Any) -> Draws:
    """Draws of a linear model that need no sampler."""
    values = np.random.default_rng(1).normal(size=(2, num_draws, 2)).astype(np.float32)
    return Draws({"w": values}, extra.pop("model", linear), **extra)


def test_other_statistics_pass_through() -> None:
    temperature = np.full((2, 5), 0.9)
    draws = make_draws(stats={"temperature": temperature, "grad": {"net/a": np.ones((2, 5, 3))}})
    stats = to_inference_data(draws, log_likelihood=False)["sample_stats"]
    np.testing.assert_array_equal(stats["temperature"].values, temperature)
    assert stats["grad.net.a"].shape == (2, 5, 3)


def test_log_likelihood_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, x = make_draws(), X
    y = np.asarray(x @ np.ones(2), np.float32)
    whole = to_inference_data(draws, x, y)["log_likelihood"]["y"].values
    monkeypatch.setattr("numpyro_bnn.posterior.arviz_export._BLOCK", 1)
    alone = to_inference_data(draws, x, y, posterior_predictive=False, batch_size=7)
    np.testing.assert_allclose(alone["log_likelihood"]["y"].values, whole, rtol=1e-5)
    mean = np.einsum("cdk,rk->cdr", draws["w"], x)
    expected = -0.5 * ((y - mean) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(whole, expected, rtol=1e-4)


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

    first, again, other = drawn(), drawn(), drawn(key=jax.random.key(1))
    np.testing.assert_array_equal(first["a.y"], again["a.y"])
    assert not np.any(first["a.y"].values == first["b.y"].values)
    assert not np.any(first["a.y"].values == other["a.y"].values)


@pytest.mark.usefixtures("arviz_figures")
def test_loo_and_compare_of_arviz() -> None:
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
        ({"run": 3}, TypeError, "expected an MCMC after `run`, .*got int"),
        (
            {"log_likelihood": False, "dims": {"w": ["a", "b"]}},
            ValueError,
            "number of data dimensions",
        ),
        ({"log_likelihood": False, "coords": {"w.axis_0": [1]}}, ValueError, "conflicting sizes"),
    ],
)
def test_errors(how: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**how)


def test_errors_of_the_way_back() -> None:
    with pytest.raises(KeyError, match="posterior"):
        from_inference_data({"prior": None})
    idata = to_inference_data(make_draws(), log_likelihood=False)
    posterior = idata["posterior"]
    other = posterior["w"].assign_attrs(site="w")
    twice = posterior.assign(v=other) if not IS_TREE else posterior.to_dataset().assign(v=other)
    with pytest.raises(ValueError, match="two variables stand for the site 'w'"):
        from_inference_data({"posterior": twice})


def weighted(x: Any, y: Any = None, weights: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = handlers.scale(scale=1.0 if weights is None else weights)
    with numpyro.plate("data", x.shape[0]), scale:
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


HALF = partial(weighted, weights=0.5 * np.ones(30, np.float32))
MISREAD = {
    "weights": (make_draws(model=HALF), "the log density of 'y' is multiplied by them"),
    "temperature": (make_draws(stats={"temperature": np.full((2, 5), 0.1)}), "temperature 0.1"),
    "cold at the end": (
        make_draws(stats={"temperature": np.array([[1.0, 1, 1, 1, 0.5]] * 2)}),
        "temperature 0.5",
    ),
    "stacked": (make_draws(info={"weights": [0.3, 0.7]}), "a stacked mixture of chains"),
    "thinned": (make_draws(info={"thinned": {"draws": 100}}), "5 draws chosen by `thin`"),
}


@pytest.mark.parametrize("name", MISREAD)
def test_a_log_likelihood_that_arviz_would_misread_warns(name: str) -> None:
    draws, reason = MISREAD[name]
    y = np.asarray(X @ np.ones(2), np.float32)
    message = f"(?s)`az.loo`.*`check_fit` refuses.*{reason}.*`log_likelihood=False`"
    with pytest.warns(UserWarning, match=message):
        made = to_inference_data(draws, X, y, posterior_predictive=False)
    # Each row counts once, as the docstring says.
    once = to_inference_data(make_draws(), X, y, posterior_predictive=False)
    np.testing.assert_allclose(
        made["log_likelihood"]["y"].values, once["log_likelihood"]["y"].values, rtol=1e-6
    )
    # The words are those of `check_fit`, and without a log likelihood there is nothing to warn of.
    with pytest.raises(ValueError, match=f"check_fit: .*{reason}"):
        bnn.check_fit(draws, X, y)
    to_inference_data(draws, X, y, posterior_predictive=False, log_likelihood=False)


def test_weights_of_one_do_not_warn() -> None:
    ones = partial(weighted, weights=np.ones(30, np.float32))
    draws = make_draws(model=ones, stats={"temperature": np.ones((2, 5))})
    to_inference_data(draws, X, X[:, 0], posterior_predictive=False)


THREE = Draws(
    {"w": np.arange(3.0)[:, None, None] * np.ones((3, 5, 2))},
    info={"left_out": {1: "draw 3 is not finite"}, "suspect": {0: "never moved", 3: "diverged"}},
)


def posterior_of(draws: Draws, **how: Any) -> xr.Dataset:
    """The exported posterior as a dataset."""
    group = to_inference_data(draws, log_likelihood=False, **how)["posterior"]
    return group.to_dataset() if IS_TREE else group


def read(posterior: xr.Dataset) -> Draws:
    return from_inference_data({"posterior": posterior})


LETTERS = {"coords": {"chain": ["a", "b", "c"]}}


@pytest.mark.filterwarnings("ignore:.*suspect")
@pytest.mark.parametrize("how", [{}, LETTERS])
@pytest.mark.parametrize(
    ("places", "values", "suspect", "left_out"),
    [
        ([0, 1, 2], [0, 1, 2], {0, 3}, {1}),
        ([1, 2], [1, 2], {3}, {0, 1}),
        ([2, 0], [0, 2], {0, 3}, {1, 2}),
        ([0, 1], [0, 1], {0}, {1, 3}),
        (1, [1], set(), {0, 1, 3}),
    ],
)
def test_chosen_chains_keep_their_numbers(
    how: dict, places: Any, values: list, suspect: set, left_out: set
) -> None:
    found = read(posterior_of(THREE, **how).isel(chain=places))
    np.testing.assert_array_equal(found["w"][:, 0, 0], values)
    assert set(found.suspect) == suspect
    assert set(found.left_out) == left_out
    numbers = posterior_of(found)["chain"].values
    assert numbers.tolist() == [(0, 2, 3)[value] for value in values]
    # Once more: nothing moves.
    assert read(posterior_of(found)).left_out == found.left_out


def test_statistics_stay_with_their_chains() -> None:
    draws = Draws(THREE, stats={"temperature": np.asarray(THREE["w"])[..., 0]})
    idata = to_inference_data(draws, log_likelihood=False)
    turned = {name: idata[name].isel(chain=[2, 0]) for name in ("posterior", "sample_stats")}
    found = from_inference_data(turned)
    np.testing.assert_array_equal(found.stats["temperature"], found["w"][..., 0])


@pytest.mark.filterwarnings("ignore:.*suspect")
def test_labels_that_are_not_those_of_the_export_say_nothing_of_numbers() -> None:
    posterior = posterior_of(THREE)
    for labels in ([5, 6, 7], [0, 0, 2]):
        found = read(posterior.assign_coords(chain=labels))
        np.testing.assert_array_equal(found["w"][:, 0, 0], [0, 1, 2])
        assert (set(found.suspect), set(found.left_out)) == ({0, 3}, {1})
    # Chains of another program may be numbered from 1, and none of these is lost.
    assert not read(posterior.assign_coords(chain=[1, 2, 3]).drop_attrs()).left_out


@pytest.mark.filterwarnings("ignore:.*suspect")
def test_some_samples_are_one_chain_without_gaps() -> None:
    values = np.arange(30.0).reshape(3, 5, 2)
    posterior = posterior_of(Draws({"w": values}, info=THREE.info))
    joined = posterior.stack(sample=("chain", "draw"))
    taken = [1, 13, 4, 2]  # draws of the first chain and of the third
    found = read(joined.isel(sample=taken))
    np.testing.assert_array_equal(found["w"], values.reshape(1, 15, 2)[:, taken])
    assert (set(found.suspect), set(found.left_out)) == ({0, 3}, {1, 2})
    again = read(posterior_of(found))
    assert (again.suspect, again.left_out) == (found.suspect, found.left_out)
    # Draws of one chain are that chain, and one that is taken twice is there twice.
    single = read(joined.isel(sample=[6, 8, 8]))
    np.testing.assert_array_equal(single["w"], values.reshape(1, 15, 2)[:, [6, 8, 8]])
    assert posterior_of(single)["chain"].values.tolist() == [2]
    # As ArviZ takes them.
    idata = to_inference_data(Draws({"w": values}), log_likelihood=False)
    drawn = read(az.extract(idata, combined=True, num_samples=7))
    assert drawn["w"].shape == (1, 7, 2)
    assert np.isin(drawn["w"], values).all()


def test_draws_in_16_bits_are_written_as_float32(tmp_path):
    def model():
        numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))

    settings = {"num_warmup": 2, "num_samples": 12, "progress_bar": False}
    run = bnn.MCMC(
        bnn.BAOAB(model, step_size=0.1), draws=tmp_path / "d", draws_dtype="float16", **settings
    )
    run.run(jax.random.key(0))
    draws = run.get_samples(group_by_chain=True)["w"]
    idata = bnn.to_inference_data(run, log_likelihood=False)
    assert idata["posterior"]["w"].dtype == np.float32
    idata.to_netcdf(tmp_path / "draws.nc")
    with xr.open_dataset(tmp_path / "draws.nc", group="posterior") as read:
        np.testing.assert_array_equal(read["w"], np.asarray(draws, np.float32))


@pytest.mark.parametrize(
    ("dtype", "mean", "sd", "is_coarse"),
    [
        ("float16", 1.004, 0.002, True),  # numbers 0.00098 apart above 1, 0.00049 below
        ("float16", 1000.0, 0.013, True),  # all draws become 1000
        ("float32", 1000.0, 0.013, False),
        ("float16", 1.004, 0.02, False),
    ],
)
def test_a_type_that_is_too_coarse_for_the_draws_is_warned_of(
    tmp_path, recwarn, dtype, mean, sd, is_coarse
):
    def model():
        numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("w", dist.Normal(mean, sd))
        numpyro.deterministic("constant", np.full(3, 7.0))

    settings = {"num_warmup": 0, "num_samples": 40, "num_chains": 2, "progress_bar": False}
    kernel = HMC(
        model,
        step_size=0.3,
        num_steps=5,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        inverse_mass_matrix=np.array([1.0, 1.0, sd**2], np.float32),
    )
    run = bnn.MCMC(kernel, draws=tmp_path / "d", draws_dtype=dtype, **settings)
    start = {"a": np.zeros((2, 2)), "w": np.full(2, mean)}
    run.run(jax.random.key(0), init_params=start)
    said = [str(w.message) for w in recwarn if "too coarse" in str(w.message)]
    assert len(said) == is_coarse
    assert all(f"'{dtype}'" in text and "'w'" in text for text in said)
