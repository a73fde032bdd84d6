"""Pictures of verdicts: the numbers in them are those of the report."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

import numpyro_bnn as bnn
from numpyro_bnn import plots
from numpyro_bnn.diagnostics import diagnose_draws, monte_carlo_error


def probabilities(x: np.ndarray) -> dict[str, np.ndarray]:
    p = 1 / (1 + np.exp(-x))
    return {"probs": np.stack([p, 1 - p], axis=-1)}


def lines(ax: Axes, label: str) -> list[Any]:
    return [line for line in ax.get_lines() if str(line.get_label()).startswith(label)]


def test_errors_fall_to_those_of_the_report_and_on_to_the_tolerance(rng: Any) -> None:
    values = probabilities(3 * rng.normal(size=(4, 200, 30)))
    report = diagnose_draws(None, values)
    ax = plots.monte_carlo_error(values)
    error = report.monte_carlo_error
    for label, last in (("mean", error.total_variation), ("99 %", error.total_variation_99)):
        (line,) = lines(ax, label)
        draws, found = line.get_data()
        assert (draws[-1], found[-1]) == (200, last)
        half = {"probs": values["probs"][:, : draws[-3]]}
        field = "total_variation" + "_99" * (label == "99 %")
        assert found[-3] == getattr(monte_carlo_error(half), field)
        assert found[-1] < found[0]
    accepted = [line.get_ydata()[0] for line in lines(ax, "accepted")]
    assert accepted == [0.01, 0.03]
    (end,) = lines(ax, "all within: ")
    assert end.get_xdata()[0] == pytest.approx(200 * report.needed)
    # The dotted forecasts end there, and the one that sets it ends at its limit.
    ends = [line.get_data() for line in ax.get_lines() if len(line.get_xdata()) == 2][1::2]
    forecasts = [pair for pair in ends if pair[0][0] == 200]
    reached = [pair[1][1] / limit for pair, limit in zip(forecasts, accepted)]
    assert max(reached) == pytest.approx(1)
    assert ax.get_ylabel() == "Monte Carlo error (total variation)"


def test_what_is_within_needs_no_forecast(rng: Any) -> None:
    ax = plots.plot_monte_carlo_error(rng.normal(size=(4, 2000, 5)), tolerance=bnn.Tolerance())
    assert not lines(ax, "all within")
    assert [line.get_ydata()[0] for line in lines(ax, "accepted")] == [0.05, 0.1]


def test_errors_that_nobody_knows_are_refused(rng: Any) -> None:
    walk = np.cumsum(rng.normal(size=(2, 100, 3)), axis=1)
    with pytest.raises(ValueError, match=r"of 100 draws a chain are not known.*Run longer"):
        plots.plot_monte_carlo_error(walk)


def test_chains_that_agree_stand_side_by_side(rng: Any) -> None:
    x = rng.normal(size=(4, 300, 20))
    x[[1, 3]] += 1.0
    ax = plots.agreement({"mean": x, "scale": np.ones_like(x)})
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2", "1", "3"]
    assert ax.get_title().startswith("chains disagree: 2 groups (p = 0.0005")
    (image,) = ax.get_images()
    shown = np.asarray(image.get_array())
    # In predictive standard deviations, of a variance 1 of the noise and 1.25 between draws.
    np.testing.assert_allclose(shown[:2, 2:], 1 / 2.25**0.5, rtol=0.1)
    assert shown[0, 1] < 0.1
    # A line on both axes between the groups, and a number in every field but the diagonal.
    assert [line.get_xdata()[0] for line in ax.get_lines() if len(set(line.get_xdata())) == 1] == [
        1.5
    ]
    assert len(ax.texts) == 12
    accepted, chance = (line.get_ydata()[0] for line in ax.figure.axes[1].get_lines())
    assert accepted == 0.05
    assert chance == pytest.approx(0.05, rel=0.4)


def test_what_chance_does_is_marked(rng: Any) -> None:
    """Averages of chains of one distribution differ by the dotted mark, on average."""
    ax = plots.plot_agreement(probabilities(rng.normal(size=(6, 400, 300))))
    shown = np.asarray(ax.get_images()[0].get_array())
    chance = ax.figure.axes[1].get_lines()[1].get_ydata()[0]
    # Errors of independent draws are stated a few per cent too large.
    assert shown[~np.eye(6, dtype=bool)].mean() == pytest.approx(chance, rel=0.1)
    assert ax.get_title().startswith("chains agree (p = ")


def test_halves_and_chains_that_are_too_short(rng: Any) -> None:
    ax = plots.plot_agreement(rng.normal(size=(1, 400, 5)))
    assert ax.get_xlabel() == "half of the chain"
    assert ax.get_title().startswith("halves agree")
    walk = np.cumsum(rng.normal(size=(2, 100, 3)), axis=1)
    assert plots.plot_agreement(walk).get_title() == "too few draws to test whether chains agree"
