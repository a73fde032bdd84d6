"""The figures of a report, as functions that draw on an empty Matplotlib figure."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numpyro_bnn import plots
from numpyro_bnn.cli.job import Outcome
from numpyro_bnn.posterior.predictive_draws import average

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawing(NamedTuple):
    """One figure: title, file name, how to read it, size in inches, and what draws it on an empty figure."""

    title: str
    name: str
    caption: str
    size: tuple[float, float]
    draw: "Callable[[Figure], object]"


def drawings(outcome: Outcome) -> list[Drawing]:
    """The figures of a report, the most important first."""
    classes = outcome.table.task == "classification"
    found = [_reliability(outcome) if classes else _band(outcome)]
    # An interrupted run may hold too few draws for any R-hat.
    spaces = (outcome.report.weights.rhat, outcome.report.predictions.rhat)
    if all(np.isfinite(rhat).any() for rhat in spaces):
        found.append(
            Drawing(
                "R-hat of weights and of predictions",
                "rhat.png",
                "Hidden units can exchange their weights, so that only the predictions must be near 1.",
                (7, 3.6),
                lambda figure: plots.plot_rhat(*spaces, ax=figure.subplots()),
            )
        )
    found.append(
        Drawing(
            "Log joint density of each chain",
            "trace.png",
            "Chains that have arrived look alike, and do not climb.",
            (7, 3.2),
            lambda figure: plots.plot_trace(outcome.mcmc, ax=figure.subplots()),
        )
    )
    return found


def _reliability(outcome: Outcome) -> Drawing:
    y = outcome.table.y[outcome.test]
    return Drawing(
        "Reliability of the posterior average",
        "reliability.png",
        "How often rows are right, by how sure the prediction is; on the line where that is so.",
        (6, 4.6),
        lambda figure: plots.plot_reliability(outcome.posterior.probs, y, ax=figure.subplots()),
    )


def _band(outcome: Outcome) -> Drawing:
    y = outcome.table.y[outcome.test]
    order = np.argsort(average(outcome.posterior).mean)

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        plots.plot_predictive_band(
            np.arange(len(y)),
            outcome.posterior.mean[:, :, order],
            outcome.posterior.scale[:, :, order],
            data=(np.arange(len(y)), y[order]),
            ax=ax,
        )
        ax.set_xlabel("test rows, in the order of their predicted mean")
        ax.set_ylabel(outcome.table.target)

    caption = "The wide band should hold 95 % of the test rows."
    return Drawing("Predictive band over the test rows", "band.png", caption, (6, 4), draw)
