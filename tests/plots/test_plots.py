"""Plots by structure: what is drawn, where, under which labels; and on which axes."""

import inspect
from collections.abc import Callable
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
from sklearn.dummy import DummyClassifier

import numpyro_bnn as bnn
from numpyro_bnn import plots
from numpyro_bnn.plots.style import PALETTE_ON_DARK, color_at, marker_at

rng = np.random.default_rng(0)
X2 = rng.normal(size=(30, 2)).astype(np.float32)
Y2 = np.arange(30) % 3
PROBS = rng.dirichlet(np.ones(4) * 0.3, size=(2, 5, 200))
LABELS = rng.integers(0, 4, 200)


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
    "plot_trace": lambda ax: plots.plot_trace(rng.normal(size=(3, 20)), ax=ax),
    "plot_intervals": lambda ax: plots.plot_intervals(Regressor(), np.arange(9), ax=ax),
    "plot_pit": lambda ax: plots.plot_pit(np.linspace(0.01, 0.99, 30), ax=ax),
}


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def line(ax: Axes, label: str) -> Any:
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
        return line(CALLS["plot_predictive_band"](None), "posterior average").get_color()

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
        {"a": [1.5, 2.0, 1.005], "b": np.nan}, np.array([0.999, 1.001]), limit=1.02
    )
    assert labels(ax) == [
        "weights (4; 67% above 1.02; 1 undefined)",
        "predictions (2; 0% above 1.02)",
        "limit 1.02",
    ]
    (limit,) = ax.get_lines()
    np.testing.assert_allclose(limit.get_xdata(), 0.02)
    assert ax.get_xscale() == "log"
    # A value below 1 is counted at the left end, and nothing is lost.
    top = [patch.get_xy()[:, 1].max() for patch in ax.patches]
    np.testing.assert_allclose(top, [1 / 3, 1 / 3, 0.5, 0.5])
    ticks = [text.get_text() for text in ax.get_xticklabels()]
    assert ticks == ["1.0001", "1.001", "1.01", "1.1", "2"]


def test_intervals_are_drawn_in_the_order_of_what_is_predicted() -> None:
    ax = plots.intervals(Regressor(), np.array([3, 1, 2]), np.array([30, 12, 20.5]), coverage=0.8)
    np.testing.assert_array_equal(line(ax, "mean").get_ydata(), [10, 20, 30])
    assert labels(ax) == ["80% interval", "mean", "observed (67% inside)"]
    bars, points = ax.collections
    np.testing.assert_array_equal(
        [s[:, 1] for s in bars.get_segments()], [[9, 11], [19, 21], [29, 31]]
    )
    np.testing.assert_array_equal(points.get_offsets()[:, 1], [12, 20.5, 30])
    many = plots.intervals(Regressor(), np.arange(1000))
    assert len(line(many, "mean").get_ydata()) == 300


def test_surface_has_its_samples_at_their_distances() -> None:
    ax = plots.plot_density_surface(density, POINTS, resolution=20)
    (marks,) = [c for c in ax.collections if len(c.get_offsets()) == 3]
    np.testing.assert_allclose(marks.get_offsets(), [[0, 0], [3, 0], [1, 2]], atol=1e-6)
    np.testing.assert_allclose(ax.get_xlim(), (-1.2, 4.2))
    np.testing.assert_allclose(ax.get_ylim(), (-0.8, 2.8))
    assert [text.get_text() for text in ax.texts] == ["A", "B", "C"]
    bar = ax.figure.axes[-1]
    assert bar.get_ylabel() == "log density below the highest (nats)"


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


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plots.intervals(Regressor(), np.ones(3), np.ones(4)),
            r"y has shape \(4,\) and the predictions \(3,\)",
        ),
        (
            lambda: plots.plot_predictive_band(np.ones(3), np.ones((2, 3)), np.ones(2)),
            "could not be broadcast",
        ),
        (
            lambda: plots.plot_predictive_band(np.ones(3), np.ones(3), data=([1.0], [1.0, 2.0])),
            "must be the same size",
        ),
        (
            lambda: plots.plot_decision_boundary(
                centers, X2, Y2, point=centers, ax=plt.subplots()[1]
            ),
            "argument 2 is longer than argument 1",
        ),
        (
            lambda: plots.plot_decision_boundary(
                lambda z: np.full((len(z), 2), 0.5), np.eye(3, 2), [1, 2, 1], resolution=3
            ),
            "y has the class 2, and the predictions are probabilities of 2 classes",
        ),
        (lambda: plots.plot_score_against_time({"NUTS": ([1, 2], [1])}), "same first dimension"),
        (lambda: plots.plot_intervals(DummyClassifier(), POINTS), "classes have no intervals"),
        (
            lambda: plots.plot_density_surface(density, [POINTS[0], POINTS[1], 2 * POINTS[1]]),
            "lie on one line",
        ),
    ],
)
def test_errors(call: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
