"""Plots: curves, bands, bars and limits are the numbers given, under which labels, and on which axes."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from scipy.stats import kstest
from sklearn.dummy import DummyClassifier

import numpyro_bnn as bnn
from numpyro_bnn import plots
from numpyro_bnn.plots import style
from numpyro_bnn.plots.style import PALETTE_ON_DARK, color_at, marker_at

RNG = np.random.default_rng(0)
X2 = RNG.normal(size=(30, 2)).astype(np.float32)
Y2 = np.arange(30) % 3
PROBS = RNG.dirichlet(np.ones(4) * 0.3, size=(2, 5, 200))
LABELS = RNG.integers(0, 4, 200)


def centers(x: np.ndarray) -> np.ndarray:
    """Probabilities that fall off from three centres."""
    places = np.array([[1.0, 0.0], [-0.6, 0.9], [-0.6, -0.9]])
    weight = np.exp(-((x[:, None] - places) ** 2).sum(-1))
    return weight / weight.sum(1, keepdims=True)


def density(z: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(z**2)


POINTS = [np.array([0.0, 0.0, 0.0]), np.array([3.0, 0.0, 0.0]), np.array([1.0, 2.0, 0.0])]


class Regressor:
    """Predicts ten times the input, within one."""

    def predict(self, X: Any) -> np.ndarray:
        return 10.0 * np.asarray(X)

    def predict_interval(self, X: Any, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        return self.predict(X) - 1, self.predict(X) + 1


CALLS: dict[str, Callable[..., Any]] = {
    "plot_predictive_band": lambda ax: plots.plot_predictive_band(
        np.arange(4.0), np.ones((2, 3, 4)), 0.1, ax=ax
    ),
    "plot_decision_boundary": lambda ax: plots.plot_decision_boundary(
        centers, X2, Y2, resolution=12, ax=ax
    ),
    "plot_rhat": lambda ax: plots.plot_rhat([1.5, 2.0], [1.001, 1.002], ax=ax),
    "plot_reliability": lambda ax: plots.plot_reliability(PROBS, LABELS, ax=ax),
    "plot_density_surface": lambda ax: plots.plot_density_surface(
        density, POINTS, resolution=8, ax=ax
    ),
    "plot_temperature": lambda ax: plots.plot_temperature(np.ones((2, 40)), ax=ax),
    "plot_layer_temperature": lambda ax: plots.plot_layer_temperature(
        {"kinetic": {"a": 1.0, "b": (1.1, 0.1)}}, ax=ax
    ),
    "plot_score_against_time": lambda ax: plots.plot_score_against_time(
        {"NUTS": ([1, 2, 3], [-3, -2, -1])}, ax=ax
    ),
    "plot_trace": lambda ax: plots.plot_trace(RNG.normal(size=(3, 20)), ax=ax),
    "plot_intervals": lambda ax: plots.plot_intervals(Regressor(), np.arange(9), ax=ax),
    "plot_pit": lambda ax: plots.plot_pit(np.linspace(0.01, 0.99, 30), ax=ax),
}


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def named(ax: Axes, label: str) -> Any:
    (found,) = [each for each in ax.get_lines() if each.get_label() == label]
    return found


def test_every_plot_is_in_the_catalogue() -> None:
    assert set(CALLS) == {name for name in plots.__all__ if name.startswith("plot_")}
    assert all("ax" in inspect.signature(getattr(plots, name)).parameters for name in CALLS)


STYLES = ("default", "dark_background")


@pytest.mark.parametrize(
    ("name", "style"),
    [
        pytest.param(name, style, marks=() if style == STYLES[i % 2] else pytest.mark.slow)
        for i, name in enumerate(CALLS)
        for style in STYLES
    ],
)
def test_axes_in_axes_out(name: str, style: str) -> None:
    with plt.style.context(style):
        figure, (left, right) = plt.subplots(1, 2)
        assert CALLS[name](right) is right
        # Nothing on the axes beside it.
        assert not left.has_data()
        assert right.get_xlabel()
        assert right.get_ylabel()
        figure.canvas.draw()
        known = plt.get_fignums()
        new = CALLS[name](None)
        assert len(plt.get_fignums()) == len(known) + 1
        assert new.figure is not figure
        new.figure.canvas.draw()


def contrast(color: str, background: str) -> float:
    def luminance(value: str) -> float:
        rgb = np.array(to_rgba(value)[:3])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(color), luminance(background)])
    return (high + 0.05) / (low + 0.05)


def test_colors_follow_the_background() -> None:
    def color() -> str:
        return named(CALLS["plot_predictive_band"](None), "posterior average").get_color()

    assert color() == plots.PALETTE[0]
    with plt.style.context("dark_background"):
        assert color() == PALETTE_ON_DARK[0]
    # WCAG asks graphics for a contrast of 3; the first four carry nearly every plot.
    assert all(contrast(c, "white") > 2.9 for c in plots.PALETTE[:3])
    assert all(contrast(c, "black") > 5 for c in PALETTE_ON_DARK)


def test_boundary_beside_that_of_a_point_estimate() -> None:
    many = lambda x: np.stack([centers(x), centers(x)])  # noqa: E731
    axes = plots.plot_decision_boundary(
        many, X2, Y2, point=centers, resolution=15, class_names=["a", "b", "c"]
    )
    assert [ax.get_title() for ax in axes] == ["MAP", "posterior average"]
    assert labels(axes[1]) == ["a", "b", "c", "boundary"]
    left, right = (ax.get_images()[0].get_array() for ax in axes)
    np.testing.assert_allclose(left, right)
    low, high = X2[:, 0].min(), X2[:, 0].max()
    margin = 0.25 * (high - low)
    np.testing.assert_allclose(axes[0].get_xlim(), (low - margin, high + margin), rtol=1e-5)
    pair = plt.subplots(1, 2)[1]
    same = plots.plot_decision_boundary(centers, X2, Y2, point=centers, resolution=5, ax=pair)
    assert same is pair


def test_boundary_is_drawn_where_the_classes_meet() -> None:
    def right_of(x: np.ndarray) -> np.ndarray:
        p = 1 / (1 + np.exp(-4 * (x[:, 0] - 0.25)))
        return np.stack([1 - p, p], -1)

    ax = plots.plot_decision_boundary(right_of, X2, Y2 % 2, resolution=40)
    paths = [path for c in ax.collections if len(c.get_offsets()) <= 1 for path in c.get_paths()]
    vertices = np.concatenate([path.vertices for path in paths if len(path.vertices)])
    np.testing.assert_allclose(vertices[:, 0], 0.25, atol=0.05)
    # The shade fades out there: alpha of the image.
    alpha = np.asarray(ax.get_images()[0].get_array())[20, :, 3]
    assert alpha.min() < 0.1 < 0.7 < alpha.max()


def test_rhat_counts_shares_and_what_is_undefined() -> None:
    ax = plots.plot_rhat(
        {"a": [1.5, 2.0, 1.005, np.inf], "b": np.nan}, np.array([0.999, 1.001]), limit=1.02
    )
    assert labels(plots.plot_rhat([np.nan] * 3))[0] == "weights (3; 0% above 1.01; 3 undefined)"
    assert labels(ax) == [
        "weights (5; 75% above 1.02; 1 undefined)",
        "predictions (2; 0% above 1.02)",
        "limit 1.02",
    ]
    (limit,) = ax.get_lines()
    np.testing.assert_allclose(limit.get_xdata(), 0.02)
    assert ax.get_xscale() == "log"
    # A value below 1 is counted at the left end, and nothing is lost.
    top = [patch.get_xy()[:, 1].max() for patch in ax.patches]
    np.testing.assert_allclose(top, [1 / 4, 0.5])
    ticks = [text.get_text() for text in ax.get_xticklabels()]
    assert ticks == ["1.0001", "1.001", "1.01", "1.1", "2"]


def test_intervals_are_drawn_in_the_order_of_what_is_predicted() -> None:
    ax = plots.intervals(Regressor(), np.array([3, 1, 2]), np.array([30, 12, 20.5]), coverage=0.8)
    np.testing.assert_array_equal(named(ax, "mean").get_ydata(), [10, 20, 30])
    assert labels(ax) == ["80% interval", "mean", "observed (67% inside)"]
    ax = plots.intervals(Regressor(), np.array([3, 1, 2]), np.array([30, np.nan, 50]), coverage=0.8)
    assert labels(ax)[-1] == "observed (50% inside)"
    ax = plots.intervals(Regressor(), np.array([3, 1, 2]), np.array([30, 12, 20.5]), coverage=0.8)
    bars, points = ax.collections
    np.testing.assert_array_equal(
        [s[:, 1] for s in bars.get_segments()], [[9, 11], [19, 21], [29, 31]]
    )
    np.testing.assert_array_equal(points.get_offsets()[:, 1], [12, 20.5, 30])
    many = plots.intervals(Regressor(), np.arange(1000))
    assert len(named(many, "mean").get_ydata()) == 300


def test_surface_has_its_samples_at_their_distances() -> None:
    ax = plots.plot_density_surface(density, POINTS, resolution=20)
    (marks,) = [c for c in ax.collections if len(c.get_offsets()) == 3]
    np.testing.assert_allclose(marks.get_offsets(), [[0, 0], [3, 0], [1, 2]], atol=1e-6)
    np.testing.assert_allclose(ax.get_xlim(), (-1.2, 4.2))
    np.testing.assert_allclose(ax.get_ylim(), (-0.8, 2.8))
    assert [text.get_text() for text in ax.texts] == ["A", "B", "C"]
    assert ax.figure.axes[-1].get_ylabel() == "log density below the highest (nats)"


def test_surface_of_a_potential_and_draws_by_site() -> None:
    def model(y: Any) -> None:
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(w.sum(), scale), obs=y)

    potential = bnn.potential_of(model, jnp.array([0.5]))
    samples = [
        {"scale": np.exp(a), "w": np.array([a, b]), "other": 3.0}
        for a, b in ((0.0, 0.0), (1.0, 0.0), (0.0, 2.0))
    ]
    ax = plots.plot_density_surface(potential, samples, resolution=6)
    (marks,) = [c for c in ax.collections if len(c.get_offsets()) == 3]
    # In unconstrained coordinates: log scale and w both move from A to B.
    np.testing.assert_allclose(marks.get_offsets()[1], [np.sqrt(2), 0.0], atol=1e-6)


def test_temperatures_of_chains_and_their_mean() -> None:
    values = np.stack([np.full(50, 0.8), np.full(50, 1.2)])
    ax = plots.plot_temperature(
        {"kinetic": values, "configurational": values + 1}, target=np.linspace(0, 1, 50), window=10
    )
    assert labels(ax) == ["kinetic", "configurational", "target"]
    assert len(ax.get_lines()) == 2 * 2 + 2 + 1
    assert "10 draws" in ax.get_xlabel()


def test_many_lines_stay_apart() -> None:
    curves = {f"method {i}": ([1, 2], [i, i]) for i in range(9)}
    ax = plots.plot_score_against_time(curves)
    styles = {(each.get_color(), each.get_linestyle()) for each in ax.get_lines()}
    assert len(styles) == 9
    points = {(color_at(ax, i), marker_at(i)) for i in range(36)}
    assert len(points) == 36


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plots.intervals(Regressor(), np.ones(3), np.ones(4)),
            r"y has shape \(4,\) and the predictions \(3,\)",
        ),
        (
            lambda: plots.plot_decision_boundary(
                lambda z: np.full((len(z), 2), 0.5), np.eye(3, 2), [1, 2, 1], resolution=3
            ),
            "y has the class 2, and the predictions are probabilities of 2 classes",
        ),
        (lambda: plots.plot_intervals(DummyClassifier(), POINTS), "classes have no intervals"),
        (
            lambda: plots.plot_density_surface(density, [POINTS[0], POINTS[1], 2 * POINTS[1]]),
            "lie on one line",
        ),
        (
            lambda: plots.plot_predictive_band(np.arange(4.0), np.zeros((3, 4, 2))),
            r"x has shape \(4,\) and the means \(3, 4, 2\)",
        ),
        (lambda: plots.plot_predictive_band(np.arange(4.0), np.zeros((3, 8))), "the means"),
    ],
)
def test_errors(call: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def band(collection: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper edge of a filled band at each x, read from its outline."""
    corners = collection.get_paths()[0].vertices
    at = [corners[np.isclose(corners[:, 0], each), 1] for each in x]
    return np.array([each.min() for each in at]), np.array([each.max() for each in at])


@pytest.mark.parametrize("scale", [None, 0.4, "by draw", "by row"])
def test_bands_are_moments_of_the_mixture_at_every_input(rng, scale):
    x, mean = np.linspace(-1, 1, 6), rng.normal(size=(2, 5, 6))
    given = {"by draw": rng.uniform(1, 2, (2, 5, 1)), "by row": rng.uniform(1, 2, 6)}.get(
        scale, scale
    )
    order = rng.permutation(6)
    shuffled = given[order] if np.shape(given) == (6,) else given
    ax = plots.plot_predictive_band(x[order], mean[..., order], shuffled)
    noise = 0.0 if given is None else np.broadcast_to(given, mean.shape) ** 2
    center = mean.mean((0, 1))
    sd = np.sqrt(np.mean((mean - center) ** 2 + noise, axis=(0, 1)))
    np.testing.assert_allclose(named(ax, "posterior average").get_xdata(), x)
    np.testing.assert_allclose(named(ax, "posterior average").get_ydata(), center)
    for collection, factor in zip(ax.collections, (2, 0.5)):
        low, high = band(collection, x)
        np.testing.assert_allclose(low, center - factor * sd)
        np.testing.assert_allclose(high, center + factor * sd)


@pytest.mark.parametrize(("num_draws", "chosen"), [(1, [0]), (3, [0, 4, 9]), (50, range(10))])
def test_lines_of_the_function_are_draws_spread_over_all_of_them(rng, num_draws, chosen):
    mean = rng.normal(size=(10, 4))
    ax = plots.plot_predictive_band(np.arange(4.0), mean, num_draws=num_draws)
    thin = [line.get_ydata() for line in ax.get_lines()[:-1]]
    np.testing.assert_array_equal(thin, mean[list(chosen)])


def test_names_and_colors_of_a_band_are_those_asked_for(rng):
    predictions = SimpleNamespace(mean=np.ones((2, 3)), scale=np.full((2, 3), 3.0))
    ax = plots.plot_predictive_band(
        np.arange(3.0)[:, None],
        predictions,
        label="SGHMC",
        color="#123456",
        data=([[0], [1]], [5, 6]),
        num_draws=2,
    )
    assert labels(ax) == ["± 2 sd", "± ½ sd", "draws of the function", "SGHMC", "data"]
    assert ax.collections[0].get_paths()[0].get_extents().ymax == 7.0
    assert named(ax, "SGHMC").get_color() == "#123456"
    np.testing.assert_array_equal(ax.collections[2].get_offsets(), [[0, 5], [1, 6]])


def test_reliability_shows_gaps_errors_and_counts_of_its_bins(rng):
    confidence = rng.uniform(0.5, 1.0, 120)
    right = rng.uniform(size=120) < confidence
    probs = np.stack([confidence, 1 - confidence], -1)
    ax = plots.plot_reliability(probs, (~right).astype(int), num_bins=4)
    edges = np.arange(5) / 4
    inside = [(confidence > a) & (confidence <= b) for a, b in pairwise(edges)]
    full = [each for each in inside if each.any()]
    share = np.array([right[each].mean() for each in full])
    middle = np.array([confidence[each].mean() for each in full])
    count = np.array([each.sum() for each in full])
    (marks,) = ax.containers
    np.testing.assert_allclose(marks[0].get_xdata(), middle)
    np.testing.assert_allclose(marks[0].get_ydata(), share)
    # One success and one failure more in each bin.
    smoothed = (share * count + 1) / (count + 2)
    bars = [segment[:, 1] for segment in marks[2][0].get_segments()]
    half = np.sqrt(smoothed * (1 - smoothed) / count)
    np.testing.assert_allclose(bars, np.stack([share - half, share + half], -1))
    (gaps,) = [each for each in ax.collections if each.get_label() == "gap"]
    drawn = [segment[:, 1] for segment in gaps.get_segments()]
    np.testing.assert_allclose(drawn, np.stack([middle, share], -1))
    patches = ax.child_axes[0].patches
    assert [patch.get_height() for patch in patches] == [each.sum() for each in inside]
    np.testing.assert_allclose([patch.get_x() for patch in patches], edges[:-1])
    error = np.abs(share - middle) @ count / len(right)
    assert ax.get_legend().get_title().get_text() == f"calibration error {error:.3f}"


@pytest.mark.parametrize(("rows", "half"), [(10, 0.40925), (100, 0.13403)])
def test_the_band_of_pit_is_that_of_the_distance_of_kolmogorov(rng, rows, half):
    """Half widths from tables of the two-sided Kolmogorov statistic at 5 %."""
    u = rng.uniform(size=rows)
    ax = plots.plot_pit(np.append(u, np.nan))  # a target that is missing
    low, high = band(ax.collections[0], np.array([0.5]))
    np.testing.assert_allclose([low[0], high[0]], [-half, half], atol=2e-4)
    curve = named(ax, "rows")
    assert (curve.get_xdata()[0], curve.get_ydata()[0], curve.get_ydata()[-1]) == (0.0, 0.0, 0.0)
    assert max(np.abs(curve.get_ydata())) == pytest.approx(kstest(u, "uniform").statistic)


@pytest.mark.parametrize("window", [None, 1, 7, 1000])
def test_the_thick_line_is_a_moving_average_over_chains_and_draws(rng, window):
    values = rng.normal(1.0, 0.3, size=(3, 60))
    values[2, 20:] = np.inf  # a chain that is lost there
    ax = plots.plot_temperature(values, window=window)
    width = min(window or 3, 60)
    starts = range(60 - width + 1)
    each = np.append(values[:, :20].mean(0), values[:2, 20:].mean(0))
    expected = [each[s : s + width].mean() for s in starts]
    smooth = named(ax, "kinetic")
    np.testing.assert_allclose(smooth.get_ydata(), expected)
    np.testing.assert_allclose(smooth.get_xdata(), [s + (width - 1) / 2 for s in starts])
    for chain, line in enumerate(ax.get_lines()[:3]):
        np.testing.assert_array_equal(np.ma.filled(line.get_ydata(), np.inf), values[chain])
    assert (named(ax, "target").get_ydata() == 1.0).all()


def test_outliers_of_a_temperature_do_not_set_the_limits(rng):
    values = rng.normal(1.0, 0.05, size=(2, 1000))
    values[0, 10] = 1e6
    low, high = plots.plot_temperature(values).get_ylim()
    assert low < 1.0 < high < 3.0


@pytest.mark.parametrize("error", [None, 0.15])
def test_a_layer_has_its_temperature_and_two_standard_errors(error):
    layers = {"a": 1.1, "b": 0.9, "c": 1.4}
    given = {k: v if error is None else (v, error) for k, v in layers.items()}
    ax = plots.plot_layer_temperature({"kinetic": given}, target=1.05)
    (marks,) = ax.containers
    np.testing.assert_allclose(marks[0].get_xdata(), list(layers.values()))
    np.testing.assert_allclose(marks[0].get_ydata(), [0, 1, 2])
    spans = np.array([segment[:, 0] for segment in marks[2][0].get_segments()])
    np.testing.assert_allclose(np.ptp(spans, axis=1), 4 * (error or 0.0), atol=1e-12)
    assert named(ax, "target").get_xdata()[0] == 1.05


def test_two_kinds_of_temperature_stand_above_and_below_their_layer():
    kinds = {"kinetic": {"a": 1.0, "b": 1.0}, "configurational": {"b": 2.0}}
    ax = plots.plot_layer_temperature(kinds, target=0.9)
    first, second = ax.containers
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    assert labels(ax) == ["target", "kinetic", "configurational"]
    low, high = ax.get_ylim()
    assert low > high, "the first layer is on top"
    np.testing.assert_allclose(first[0].get_ydata(), [-0.12, 0.88])
    # A layer that one kind lacks keeps the place of the other.
    np.testing.assert_allclose(second[0].get_ydata(), [1.12])


@pytest.mark.parametrize("chains", [1, 2, 8, 9])
def test_traces_have_a_legend_while_it_can_be_read(rng, chains):
    values = rng.normal(size=(chains, 12))
    ax = plots.plot_trace(values[0] if chains == 1 else values, label="kinetic energy (nats)")
    for line, expected in zip(ax.get_lines(), values, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), expected)
    assert (ax.get_legend() is not None) == (chains <= 8)
    assert ax.get_ylabel() == "kinetic energy (nats)"
    assert ax.get_xlim() == (0, 11)


def test_bars_of_rhat_are_shares_of_each_group(rng):
    weights, predictions = 1 + rng.uniform(0.001, 0.5, 300), 1 + rng.uniform(0.001, 0.02, 40)
    ax = plots.plot_rhat(weights, predictions, limit=1.05)
    top = max(weights.max() - 1, 0) * 1.3
    assert ax.get_xlim() == pytest.approx((1e-4, top))
    edges = np.geomspace(1e-4, top, 41)
    for patch, values in zip(ax.patches, (weights, predictions), strict=True):
        expected = np.histogram(values - 1, edges)[0] / values.size
        assert patch.get_xy()[:, 1].max() == pytest.approx(expected.max())
        bars = np.unique(patch.get_xy()[:, 1].round(9))
        np.testing.assert_allclose(bars, np.unique([0, *expected.round(9)]))
    share = np.mean(weights > 1.05)
    assert f"weights (300; {share:.0%} above 1.05)" in ax.get_legend_handles_labels()[1]


@pytest.mark.parametrize("log", [True, False])
def test_a_band_of_scores_is_one_standard_error(log):
    cost, score, error = [1.0, 10.0, 100.0], [-3.0, -2.0, -1.5], [0.3, 0.2, 0.1]
    ax = plots.plot_score_against_time({"NUTS": (cost, score, error)}, log=log)
    assert ax.get_xscale() == ("log" if log else "linear")
    line = named(ax, "NUTS")
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([cost, score]))
    low, high = band(ax.collections[0], np.array(cost))
    np.testing.assert_allclose(low, np.subtract(score, error))
    np.testing.assert_allclose(high, np.add(score, error))


def test_a_method_that_ends_at_once_has_a_bar_for_its_error():
    curves = {"MAP": (3.0, -4.0, 0.2), "BAOAB": ([1, 2], [-2, -1])}
    ax = plots.plot_score_against_time(curves, reference=-1.0, against="draws", log=False)
    assert (labels(ax), ax.get_xlabel()) == (["MAP", "BAOAB", "reference"], "draws")
    assert named(ax, "MAP").get_marker() != named(ax, "BAOAB").get_marker()
    (bar,) = ax.collections
    np.testing.assert_allclose(bar.get_segments()[0], [[3.0, -4.2], [3.0, -3.8]])
    np.testing.assert_array_equal(named(ax, "reference").get_ydata(), [-1.0, -1.0])


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_where_all_classes_are_equally_likely_there_is_no_colour(classes):
    x = np.random.default_rng(0).normal(size=(10, 2))

    def sure(inputs: np.ndarray) -> np.ndarray:
        return np.tile(np.eye(classes)[1], (len(inputs), 1))

    def unsure(inputs: np.ndarray) -> np.ndarray:
        return np.full((len(inputs), classes), 1 / classes)

    y = np.arange(10) % classes
    for probs, alpha in ((sure, 0.75), (unsure, 0.0)):
        ax = plots.plot_decision_boundary(probs, x, y, resolution=4)
        shown = np.asarray(ax.get_images()[0].get_array())
        assert shown.shape == (4, 4, 4)
        np.testing.assert_allclose(shown[..., 3], alpha, atol=1e-12)
    # Halfway between sure and unsure the shade is half as deep.
    ax = plots.plot_decision_boundary(lambda z: (sure(z) + unsure(z)) / 2, x, y, resolution=4)
    shown = np.asarray(ax.get_images()[0].get_array())
    np.testing.assert_allclose(shown[..., 3], 0.375)


def test_points_of_each_class_are_where_the_data_are(rng):
    x, y = rng.normal(size=(12, 2)), np.repeat([0, 2], 6)
    ax = plots.plot_decision_boundary(
        lambda z: np.full((len(z), 3), 1 / 3), x, y, resolution=3, class_names="abc"
    )
    drawn = {c.get_label(): np.asarray(c.get_offsets()) for c in ax.collections}
    np.testing.assert_allclose(drawn["a"], x[:6])
    assert len(drawn["b"]) == 0
    np.testing.assert_allclose(drawn["c"], x[6:])


@pytest.mark.parametrize("background", ["white", "black", "none"])
def test_a_see_through_background_takes_the_palette_of_the_page(background):
    figure, ax = plt.subplots(facecolor="black")
    ax.set_facecolor(background)
    expected = style.PALETTE if background == "white" else style.PALETTE_ON_DARK
    assert style.palette(ax) == expected
    assert figure.get_facecolor()[:3] == (0.0, 0.0, 0.0)
