"""The check of a fit as one record: its numbers, what they mean in words, and how it is shown.

Quantities of the data are compared with those of data that the model makes from each draw.
For a quantity T(y, θ) and each draw θ_s, new targets ỹ are drawn at the same inputs, and

    p = P(T(ỹ, θ) ≥ T(y, θ) | y),   ties counted half

(Gelman, Meng and Stern 1996, *Posterior predictive assessment of model fitness via realized discrepancies*).
Given θ, y and ỹ have one distribution where the model is right, so that for each draw the probability of a
larger T is uniform, and p, their average, is less spread out than uniform: P(p ≤ α) ≤ 2 α for data from the
model's own prior predictive distribution (Meng 1994, *Posterior predictive p-values*, section 3.1). It is
often much smaller: a p near ½ says little, one near 0 or 1 says much. With m quantities one is called rare
where twice its smaller tail, with two Monte Carlo errors added, is below 0.05 / (2 m): under a right model
that happens to any of them in at most 5 % of data sets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from numpyro_bnn._html import Grid, Note, Section, html_of, page, picture
from numpyro_bnn._sentences import say
from numpyro_bnn._text import first_of, text_table, wrapped
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean
from numpyro_bnn.fit_check.loo import RARE, Calibration, LeaveOneOut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ALARMS = 0.05
_BINS = 10


class Quantity(NamedTuple):
    """A quantity of the data beside that of data that the model makes.

    - **name** - what it is
    - **observed** - of the data, averaged over draws where it depends on them
    - **low**, **high** - 5 and 95 % quantiles of what the model makes
    - **p** - probability that the model makes a larger one
    - **error** - Monte Carlo error of `p`
    - **is_rare** - whether a right model seldom gives such a p; see above
    - **adjusted** - two-sided p-value for all quantities together, with two Monte Carlo errors
    """

    name: str
    observed: float
    low: float
    high: float
    p: float
    error: float
    is_rare: bool
    adjusted: float


def of_residuals(
    mean: np.ndarray, scale: np.ndarray | None, y: np.ndarray, made: np.ndarray
) -> tuple[Quantity, ...]:
    """Standard deviation, extremes and skewness of residuals over rows, divided by `scale` if given."""
    shape = (*mean.shape[:2], -1)
    units = 1.0 if scale is None else scale.reshape(shape).astype(np.float64)
    # A target without a mean is compared itself.
    center = np.where(np.isfinite(mean), mean, 0.0).reshape(shape).astype(np.float64)
    observed = (np.asarray(y, np.float64).reshape(-1) - center) / units
    replicated = (made.reshape(shape).astype(np.float64) - center) / units
    kind = "residuals" if scale is None else "standardised residuals"
    return _compared(
        {f"{name} of {kind}": (of(observed), of(replicated)) for name, of in _OF_RESIDUALS.items()}
    )


def of_labels(
    probs: np.ndarray, y: np.ndarray, made: np.ndarray, names: Sequence[object] | None = None
) -> tuple[Quantity, ...]:
    """Share of the rows of each class, share that is of its most probable class, and calibration error."""
    # Several labels of a row count as rows.
    y, made = y.reshape(-1), made.reshape(*probs.shape[:2], -1)
    # By JAX: NumPy takes ten times as long for many rows of few numbers.
    best = np.asarray(jnp.argmax(probs, -1)).reshape(made.shape)
    confidence = probs.max(-1).reshape(made.shape)
    found = {}
    for k, name in enumerate(names or [f"class {k}" for k in range(probs.shape[-1])]):
        share = np.full(made.shape[:2], float((y == k).mean()))
        found[f"share of {name}"] = (share, (made == k).mean(-1))
    right, right_made = (best == y), (best == made)
    found["share of the most probable class"] = (right.mean(-1), right_made.mean(-1))
    found["calibration error"] = (_ece(confidence, right), _ece(confidence, right_made))
    return _compared(found)


def _compared(pairs: dict[str, tuple[np.ndarray, np.ndarray]]) -> tuple[Quantity, ...]:
    """Quantities of the data and of what the model makes, (chain, draw) each."""
    limit = _ALARMS / (2 * len(pairs))
    return tuple(_quantity(name, *pair, limit) for name, pair in pairs.items())


def _quantity(name: str, observed: np.ndarray, made: np.ndarray, limit: float) -> Quantity:
    larger = (made > observed) + 0.5 * (made == observed)
    # One draw more on either side, so that no finite number of draws gives 0 or 1.
    p = float((larger.sum() + 1) / (larger.size + 2))
    error = float(np.nan_to_num(mcse_mean(larger), nan=np.inf))
    low, high = np.quantile(made, (0.05, 0.95))
    adjusted = min(1.0, 2 * (min(p, 1 - p) + 2 * error) * _ALARMS / limit)
    rare = adjusted < _ALARMS
    return Quantity(name, float(observed.mean()), float(low), float(high), p, error, rare, adjusted)


def _skew(r: np.ndarray) -> np.ndarray:
    """Third central moment over the cube of the standard deviation; 0 where all are equal."""
    gap = r - r.mean(-1, keepdims=True)
    cube = (gap**2).mean(-1) ** 1.5
    return np.where(cube > 0, (gap**3).mean(-1) / np.where(cube > 0, cube, 1.0), 0.0)


_OF_RESIDUALS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sd": lambda r: r.std(-1),
    "smallest": lambda r: r.min(-1),
    "largest": lambda r: r.max(-1),
    "skewness": _skew,
}


def _ece(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Expected calibration error of each draw, in ten bins of equal width."""
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gap = right - confidence.astype(np.float64)
    total = sum(np.abs((gap * (place == b)).sum(-1)) for b in range(_BINS))
    return np.asarray(total) / confidence.shape[-1]


_WORST = 10
_HEAD = ("quantity", "data", "model: 5 %", "95 %", "adjusted p")
_ROW_HEAD = ("row", "Pareto k̂", "log density without it")
_MOST_ROWS = 5
# Rows with a large k̂ are let pass where leaving them all out changes the sum by less than this share of its
# standard error over rows.
_MATTERS = 0.05


class HeldOut(NamedTuple):
    """Scores of rows that were not fitted, with their standard errors over rows."""

    score: float  # The mean log score in nats
    error: float
    rows: int  # How many
    # What `share` is of: `"right"` (classes), `"inside"` (90 % intervals), `""` for none
    kind: str = ""
    share: float = float("nan")  # Share of rows that are right, or of targets inside
    share_error: float = float("nan")

    def __str__(self) -> str:
        key = "held out right" if self.kind == "right" else "held out inside"
        return " ".join(say(k, **self._asdict()) for k in ("held out", key)[: 1 + bool(self.kind)])


@dataclass(frozen=True, repr=False)
class FitCheck:
    """Whether a model fits its data, and how well it would predict other rows like them.

    :param loo: leave-one-out log predictive densities, with their Pareto k̂ and Monte Carlo errors.
    :param calibration: whether rows are where the posterior without them expects them; None of
        several targets a row.
    :param quantities: quantities of the data beside those of data that the model makes.
    :param doubts: why `loo` is not to be believed, sentence by sentence; empty where it may be.
    :param advice: what to do about the doubts, in words; empty without any.
    :param notes: what else is to be known about the numbers.
    :param names: names of the rows.
    :param targets: observed targets, (row, …).
    :param num_chains: chains.
    :param num_draws: draws a chain.
    :param held_out: the score of rows that were not fitted; None where there are none.
    """

    loo: LeaveOneOut
    calibration: Calibration | None
    quantities: tuple[Quantity, ...]
    doubts: tuple[str, ...]
    advice: str
    notes: tuple[str, ...]
    names: tuple[str, ...]
    targets: np.ndarray
    num_chains: int
    num_draws: int
    held_out: HeldOut | None = None

    @property
    def believable(self) -> bool:
        """Whether the leave-one-out estimate may be believed: nothing speaks against it."""
        return not self.doubts

    @property
    def rare(self) -> tuple[str, ...]:
        """Names of what a right model seldom gives: quantities, and ``"calibration"``; empty if none."""
        found = [quantity.name for quantity in self.quantities if quantity.is_rare]
        if self.calibration is not None and self.calibration.is_rare:
            found.append("calibration")
        return tuple(found)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, in words: scores first, then calibration and quantities."""
        own = () if self.held_out is None else (str(self.held_out),)
        found = (*self._on_loo(), self.advice, self._on_calibration(), self._on_quantities())
        return (*own, *(sentence for sentence in found if sentence), *self.notes)

    def _on_loo(self) -> tuple[str, ...]:
        """The estimate, and whether it may be believed."""
        loo, rows = self.loo, self.loo.by_row.size
        lead = say("loo", mean=loo.elpd / rows, error=loo.se / rows, elpd=loo.elpd, se=loo.se)
        if self.doubts:
            return (f"{lead} {say('loo doubted')}", *self.doubts)
        bad = loo.bad_rows.size
        good = say("loo good", count=bad, share=loo.carried) if bad else say("loo all good")
        return (f"{lead} {good}", say("loo parameters", p_loo=loo.p_loo, rows=rows))

    def _on_calibration(self) -> str:
        """Whether rows are where the posterior without them expects them."""
        found = self.calibration
        if found is None:
            return say("no calibration")
        if found.kind == "pit":
            # Two errors of LOO-PIT are taken off its distance, and those of bad rows are large.
            if self.doubts and not found.is_rare:
                return ""
            return say("not uniform" if found.is_rare else "uniform", p=found.p, limit=RARE)
        sure = "too sure" if found.distance > 0 else "not sure enough"
        less, gap = "less" if found.distance > 0 else "more", abs(found.distance)
        key = "miscalibrated" if found.is_rare else "calibrated"
        return say(key, sure=sure, gap=gap, less=less, p=found.p, limit=RARE)

    def _on_quantities(self) -> str:
        """Which quantities of the data the model does not make."""
        rare = [q for q in self.quantities if q.is_rare]
        if rare:
            listed = [f"{q.name} (too {'large' if q.p < 0.5 else 'small'})" for q in rare[:2]]
            more = [f"and {len(rare) - 2} more"] if len(rare) > 2 else []
            return say("quantities rare", listed=listed + more)
        least = min(q.adjusted for q in self.quantities)
        return say("quantities fine", count=len(self.quantities), p=least)

    def worst_rows(self, count: int = _WORST) -> list[tuple[str, float, float]]:
        """The rows that matter most: leaving one of them out changes its log density most.

        :param count: how many, at most.
        :return: name, k̂ and leave-one-out log density of each.
        """
        order = np.argsort(-np.abs(self.loo.effect), kind="stable")[:count]
        return [
            (self.names[i], float(self.loo.pareto_k[i]), float(self.loo.by_row[i])) for i in order
        ]

    def __repr__(self) -> str:
        believed = "believable" if self.believable else "not to be believed"
        rare = f"; rare: {', '.join(self.rare)}" if self.rare else ""
        return f"FitCheck(elpd {self.loo.elpd:.1f} ± {self.loo.se:.1f}, {believed}{rare})"

    def _facts(self) -> str:
        good, bad, very_bad = self.loo.counts
        return (
            f"{len(self.names)} rows · {self.num_chains} chains × {self.num_draws} draws · "
            f"Pareto k̂: {good} good (up to {self.loo.good_k:.2f}), {bad} bad (up to 1), {very_bad} very bad"
        )

    def __str__(self) -> str:
        told = [*self.sentences[: self.held_out is not None], self._on_loo()[0]]
        told += [*(first_of(doubt) for doubt in self.doubts[:1]), self.advice]
        told += [self._on_calibration(), self._on_quantities()]
        lines = [line for each in told for line in wrapped(each, most=2)]
        lines += [line for note in self.notes[:1] for line in wrapped(first_of(note), most=1)]
        return "\n".join([*lines, f"{len(self.names)} rows. The rest: check.details()"])

    def _grids(self) -> list[Grid]:
        worst = [(name, f"{k:.2f}", f"{density:.3f}") for name, k, density in self.worst_rows()]
        made = [
            (
                q.name,
                *(f"{value:.4g}" for value in q[1:4]),
                f"{q.adjusted:.2g}{' rare' * q.is_rare}",
            )
            for q in self.quantities
        ]
        beside = "Quantities of the data beside those that the model makes."
        return [Grid(_HEAD, made, beside), Grid(_ROW_HEAD, worst, "Rows that matter most.")]

    def details(self) -> str:
        """All that was found, as text: quantities and rows as tables, and the reasons in words."""
        parts = [[self._facts()], *(text_table(grid.head, grid.rows) for grid in self._grids())]
        parts.append([f"- {said}" for said in self.sentences])
        return "\n\n".join("\n".join(part) for part in parts)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_of(*self.sentences, self._facts(), self._grids()[0])

    def section(self, folded: bool = False) -> Section:
        """This check as a part of a page of HTML."""
        quantities, worst = self._grids()
        said = [Note(s, "warning") if s in self.doubts else s for s in self.sentences]
        shown = []
        if self.calibration is not None:
            by_row = self.calibration.kind == "pit"
            shown = [
                picture(
                    lambda figure: self.plot(figure.subplots()),
                    "Calibration of each row under the posterior without it",
                    f"{'Within the band' if by_row else 'On the line'} where the model is right.",
                    (6.0, 3.6) if by_row else (5.6, 4.6),
                )
            ]
        parts = [*said, quantities, *shown, worst, Note(self._facts())]
        return Section("Does the model fit?", parts, folded)

    def to_html(self, path: str | Path | None = None) -> str:
        """This check as one page of HTML, which needs neither a network nor a script.

        :param path: the file to write; none where None.
        :return: the page.
        :raises OSError: if the file cannot be written.
        """
        return page("Does the model fit?", self.section().parts, path)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """LOO-PIT beside uniform (:func:`~numpyro_bnn.plots.plot_pit`), or reliability of classes.

        :param ax: Matplotlib axes; default: a new figure.
        :return: the axes.
        :raises ValueError: where there is no test of calibration.
        """
        if self.calibration is None:
            raise ValueError(f"FitCheck.plot: nothing to draw. {say('no calibration')}")
        from numpyro_bnn import plots

        if self.calibration.pit is not None:
            return plots.plot_pit(self.calibration.pit, ax=ax)
        probabilities = self.calibration.probabilities
        return plots.plot_reliability(probabilities, self.targets, num_bins=10, ax=ax)


def on_weights(
    loo: LeaveOneOut, names: tuple[str, ...], has_tails: bool = False
) -> tuple[str, str]:
    """What Pareto k̂ says against the estimate, and what to do; both empty where it changes too little."""
    bad = loo.bad_rows
    if not abs(loo.effect[bad]).sum() > _MATTERS * loo.se:
        return "", ""
    largest = bad[np.argsort(-np.abs(loo.effect[bad]), kind="stable")]
    said = say(
        "loo rows",
        count=bad.size,
        rows=loo.pareto_k.size,
        limit=loo.good_k,
        share=loo.carried,
        names=[names[i] for i in largest[:_MOST_ROWS]],
    )
    if not (loo.pareto_k[bad] > 0.7).any():
        return said, say("loo more draws")
    return said, f"{say('loo hold out')} {say('loo tails')}" if has_tails else say("loo hold out")
