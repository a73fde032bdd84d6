"""The table of a comparison: how good each method is, and how far from the reference."""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn import scores
from numpyro_bnn._text import text_table
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictive_draws import Predictions

if TYPE_CHECKING:
    import pandas as pd


class Compared(NamedTuple):
    """One method, judged on test rows.

    - **method** - its name
    - **log_score**, **log_score_error** - mean log predictive density, nats, and its standard
      error over rows
    - **difference**, **difference_error** - log score minus that of the reference, mean over rows, and
      standard error of this mean of paired differences
    - **error** - share of wrong classes, or root mean squared error
    - **calibration** - expected calibration error, or coverage of the central 90 % interval
    - **agreement** - share of rows at which it predicts the same class as the reference; NaN for a
      regression
    - **total_variation** - distance of its class probabilities from the reference's; for a regression
      the 1-Wasserstein distance of the posterior of the mean, in units of the target
    - **max_rhat** - largest R-hat of its predictions; NaN for a single chain
    - **gradients** - passes over all rows that its gradients took, warm-up included; NaN if unknown
    - **seconds** - wall clock, compilation included; NaN for a run that was finished before
    - **suspect** - its chains that never moved or mostly diverged, in words; empty for none
    """

    method: str
    log_score: float
    log_score_error: float
    difference: float
    difference_error: float
    error: float
    calibration: float
    agreement: float
    total_variation: float
    max_rhat: float
    gradients: float
    seconds: float
    suspect: str = ""


# Heading and format of each column, for classes and for a regression.
_CLASSES = {
    "log_score": ("log score", ".4f"),
    "log_score_error": ("± s.e.", ".4f"),
    "difference": ("– reference", "+.4f"),
    "difference_error": ("± s.e.", ".4f"),
    "error": ("error", ".4f"),
    "calibration": ("calibration", ".4f"),
    "agreement": ("agreement", ".4f"),
    "total_variation": ("tot. var.", ".4f"),
    "max_rhat": ("R-hat", ".3f"),
    "gradients": ("gradients", ",.0f"),
    "seconds": ("seconds", ",.0f"),
}
_REGRESSION = {
    **_CLASSES,
    "error": ("RMSE", ".4g"),
    "calibration": ("cover 90 %", ".3f"),
    "total_variation": ("distance", ".4g"),
}


@dataclass(frozen=True)
class Comparison:
    """Several methods on one model, scored on the same test rows; printing it shows the table.

    :param rows: one a method, in the order asked for.
    :param reference: the method that the others are compared with.
    :param regression: whether the target is continuous.
    :param predictions: predictions of the test rows, by method.
    :param draws: by method, to predict at other rows with.
    """

    rows: tuple[Compared, ...]
    reference: str
    regression: bool
    predictions: dict[str, Predictions]
    draws: dict[str, Draws]

    def __getitem__(self, method: str) -> Compared:
        for row in self.rows:
            if row.method == method:
                return row
        raise KeyError(f"no method {method!r}; compared were {[r.method for r in self.rows]}")

    def _cells(self) -> Iterator[list[str]]:
        columns = dict(_REGRESSION if self.regression else _CLASSES)
        if self.regression:
            del columns["agreement"]
        yield ["method", *(heading for heading, _ in columns.values())]
        for row in self.rows:
            name = f"{row.method} *" if row.method == self.reference else row.method
            name += " (suspect)" if row.suspect else ""
            values = [(getattr(row, field), spec) for field, (_, spec) in columns.items()]
            yield [name, *("–" if np.isnan(v) else format(v, spec) for v, spec in values)]

    def __str__(self) -> str:
        head, *rows = self._cells()
        return "\n".join([*text_table(head, rows), f"* the reference. {_NOTE}", *self._suspects()])

    def _suspects(self) -> list[str]:
        """A line for each method with suspect chains, which count like all others in its numbers."""
        return [f"{row.method}, suspect: {row.suspect}." for row in self.rows if row.suspect]

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        head, *body = self._cells()
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
            for line in body
        )
        heads = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self._suspects())
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{notes}"

    def to_dataframe(self) -> "pd.DataFrame":
        """The numbers as a pandas data frame, a row a method."""
        import pandas as pd

        return pd.DataFrame(self.rows).set_index("method")


_NOTE = (
    "Gradients are passes over all training rows; the measures of Izmailov et al. 2021 compare "
    "with the reference."
)


def error_and_calibration(predictions: Predictions, y: ArrayLike) -> tuple[float, float]:
    """Share of wrong classes and calibration error; of a continuous target RMSE and coverage of 90 %."""
    if "probs" in predictions.values:
        error = 1 - float(scores.accuracy(predictions, y))
        return error, float(scores.expected_calibration_error(predictions, y))
    return float(scores.rmse(predictions, y)), float(scores.coverage(predictions, y, level=0.9))


def judged(
    method: str,
    predictions: Predictions,
    reference: Predictions,
    y: ArrayLike,
    max_rhat: float,
    gradients: float,
    seconds: float,
    suspect: str = "",
) -> Compared:
    """Score a method against test targets and against the reference: a row of the table."""
    mine = np.asarray(scores.lppd(predictions, y, pointwise=True))
    theirs = np.asarray(scores.lppd(reference, y, pointwise=True))
    gap = scores.paired_difference(mine, theirs)
    if "probs" in predictions.values:
        agreement = float(scores.agreement(predictions, reference))
        distance = float(scores.total_variation(predictions, reference))
    else:
        agreement = float("nan")
        distance = float(scores.wasserstein(predictions, reference))
    return Compared(
        method,
        float(mine.mean()),
        scores.standard_error(mine),
        gap.difference,
        gap.standard_error,
        *error_and_calibration(predictions, y),
        agreement,
        distance,
        max_rhat,
        gradients,
        seconds,
        suspect,
    )
