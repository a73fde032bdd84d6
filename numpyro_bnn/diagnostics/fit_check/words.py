"""What a check of the fit says in words: whether its numbers may be believed, and what follows from them."""

import math

from numpyro_bnn.diagnostics.fit_check.calibration import Calibration
from numpyro_bnn.diagnostics.fit_check.loo import LeaveOneOut
from numpyro_bnn.diagnostics.fit_check.quantities import Quantity

_MOST_ROWS = 8
NO_CALIBRATION = "The test of calibration is made for one target a row, and here are several."


def on_weights(loo: LeaveOneOut, names: tuple[str, ...]) -> list[str]:
    """What Pareto k̂ says against the estimate; empty where all rows are good."""
    bad = loo.bad_rows
    if not bad.size:
        return []
    worst = ", ".join(f"{names[i]} ({loo.pareto_k[i]:.2f})" for i in bad[:_MOST_ROWS])
    more = f" and {bad.size - _MOST_ROWS} more" if bad.size > _MOST_ROWS else ""
    rows = f"row {worst} has" if bad.size == 1 else f"rows {worst}{more} have"
    said = [
        f"{bad.size} of {loo.pareto_k.size} rows: {rows} Pareto k̂ above {loo.good_k:.2f}. These draws do "
        "not reach the posterior without them: its density there is not known, nor is the sum, which is "
        "mostly too high."
    ]
    if not (loo.pareto_k[bad] > 0.7).any():
        return [*said, "More draws do: from 2200 on, 0.7 is good enough."]
    return [
        *said,
        "Fit again without these rows and score them (`bnn.scores.lppd`), or leave out folds of rows "
        "(cross-validation with `BNNRegressor` or `BNNClassifier`). Where they are outliers, noise with "
        'heavier tails is another model: `likelihood="student_t"`.',
    ]


def on_loo(loo: LeaveOneOut, doubts: tuple[str, ...]) -> str:
    """The estimate, and whether it may be believed."""
    rows = loo.by_row.size
    lead = (
        f"Predicting each row from the others: elpd {loo.elpd:.1f} ± {loo.se:.1f} nats "
        f"({loo.elpd / rows:.3f} ± {loo.se / rows:.3f} a row; Monte Carlo error {_error(loo.error)}). "
    )
    if doubts:
        return lead + "This number is not to be believed. " + " ".join(doubts)
    share = f"{loo.p_loo:.1f} effective parameters for {rows} rows"
    return lead + f"All Pareto k̂ are good: the number may be believed. p_loo: {share}."


def _error(error: float) -> str:
    return f"{error:.2g}" if math.isfinite(error) else "not known"


def on_calibration(calibration: Calibration) -> str:
    """Whether rows are where the posterior without them expects them."""
    p = f"p = {calibration.p:.2g}"
    if calibration.kind == "pit":
        rare = (
            "are not uniform" if calibration.is_rare else "are as uniform as those of a right model"
        )
        return (
            f"The probabilities of targets up to the observed ones, each without its row (LOO-PIT), {rare} "
            f"({p}; largest distance {calibration.distance:.3f} ± {calibration.error:.2g})."
        )
    gap = abs(100 * calibration.distance)
    sure = "too sure" if calibration.distance > 0 else "not sure enough"
    said = (
        f"the classes that are most probable without the row are right {gap:.1f} % of rows "
        f"{'less' if calibration.distance > 0 else 'more'} often than their probabilities say ({p})"
    )
    if calibration.is_rare:
        return f"The model is {sure}: {said}."
    return f"As calibrated as a right model: {said}."


def on_quantities(quantities: tuple[Quantity, ...]) -> str:
    """Which quantities of the data the model does not make."""
    rare = [q for q in quantities if q.is_rare]
    if not rare:
        return (
            f"The model makes data like these: none of {len(quantities)} quantities of the data is rare. "
            "It was fitted to these rows, so that this proves little."
        )
    told = ", ".join(
        f"{q.name} (too {'large' if q.p < 0.5 else 'small'}, p = {q.p:.2g})" for q in rare
    )
    return f"The model seldom makes data like these: {told}."
