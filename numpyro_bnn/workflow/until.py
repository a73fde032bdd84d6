"""The stopping rule of ``run_until``: Monte Carlo errors are within tolerance, or more draws cannot help.

A run in stages (:mod:`numpyro_bnn.run.sampling`) is evaluated here. Each evaluation predicts from the new
draws, drops a first part of the run while the halves of the rest differ, and asks for the verdict
(:mod:`numpyro_bnn.diagnostics`). The run ends only when two evaluations in a row are in favour: a rule that
stops at the first good verdict would often stop too early by chance.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_bnn._checks import check_positive
from numpyro_bnn._sentences import say
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import as_arrays, by_name, is_ready, num_rows
from numpyro_bnn.data.columns import Columns, about_inputs, check_columns, check_row_shapes
from numpyro_bnn.data.not_finite import first_bad_draws
from numpyro_bnn.diagnostics.diagnose import diagnose_draws
from numpyro_bnn.diagnostics.evidence import predictions_not_finite
from numpyro_bnn.diagnostics.monte_carlo.agreement import draws_to_drop
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance, checked_tolerance
from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.posterior.draws import limits_of, stats_by_site
from numpyro_bnn.posterior.fitted import inputs_of
from numpyro_bnn.posterior.predictions import Predictor
from numpyro_bnn.posterior.training_data import as_observed, others_at, training_data
from numpyro_bnn.run.chain_states import GROWTH
from numpyro_bnn.run.compiled_runs import CompiledRuns
from numpyro_bnn.run.sampling import DrawsSoFar
from numpyro_bnn.samplers.suspects import exploded_chains
from numpyro_bnn.storage.checkpoints import Start

WITHIN_TOLERANCE = "within_tolerance"
WITHIN, MODES = "within tolerance", "modes: temper"
STUCK, FAILED = "chains that do not move", "no chain stayed finite"
NOT_FINITE = "predictions are not finite"


class StoppingCheck(NamedTuple):
    """One evaluation of the stopping rule.

    - **draws** - draws of each chain so far
    - **dropped** - number of them at the beginning that did not count
    - **report** - report on the other draws; None where no chain was finite
    - **seconds** - seconds since the run began in this process
    - **seconds_left** - estimated seconds until the rule is met; NaN where there is no estimate
    """

    draws: int
    dropped: int
    report: Report | None
    seconds: float
    seconds_left: float


class StopReason(NamedTuple):
    """How a run in stages ended.

    - **reason** - ``"within tolerance"``, ``"modes: temper"``, ``"chains that do not move"``,
      ``"no chain stayed finite"``, ``"predictions are not finite"``, ``"max_minutes"`` or
      ``"interrupted"``
    - **draws** - draws of each chain that were sampled
    - **dropped** - number of them at the beginning that are not among the samples
    - **looks** - all evaluations of the stopping rule; of several processes only the first has them
    - **why_not_finite** - which predictions are not finite and why; empty where all are

    Its text says how far the run is from its tolerance, as the last evaluation had it.
    """

    reason: str
    draws: int
    dropped: int
    looks: tuple[StoppingCheck, ...]
    why_not_finite: str = ""

    @property
    def is_warned_of(self) -> bool:
        """Whether a warning is due: no time limit, and nothing that every run warns of anyway."""
        return self.reason in (MODES, NOT_FINITE, "interrupted")

    @property
    def report(self) -> Report | None:
        """The report of the last evaluation, without weights; None where there was none."""
        return self.looks[-1].report if self.looks else None

    def __str__(self) -> str:
        alone = self.report is not None and self.report.num_chains == 1
        who = "halves of the one chain" if alone else "the chains"
        said = [say("stopped", draws=self.draws, reason=self.reason), self.why_not_finite]
        said.append(say(f"stopped: {self.reason}", chains=who))
        if self.dropped:
            said.append(say("dropped", draws=self.dropped))
        left = self.looks[-1].seconds_left if self.looks else float("nan")
        if self.reason in ("max_minutes", "interrupted"):
            if self.report is not None and self.report.verdict == WITHIN_TOLERANCE:
                said.append(say("not confirmed"))
            elif left > 0:
                said.append(say("time left", time=duration(left)))
        return " ".join(filter(None, said))


class UntilKnown:
    """Stops a run when Monte Carlo errors of predictions of `test_data` are within the tolerance `until`."""

    def __init__(
        self,
        mcmc: CompiledRuns,
        until: Tolerance | None,
        test_data: tuple[Any, ...] | None,
        max_minutes: float | None,
    ) -> None:
        kernel: Any = mcmc.sampler
        model = kernel.model
        self.tolerance = check_until(until, max_minutes)
        self.max_seconds = None if max_minutes is None else 60.0 * max_minutes
        self.at = _checked_test_data(model, test_data, mcmc.columns)
        (x, y, own), fitted = self.at, inputs_of(mcmc)
        if fitted is not None and not is_ready(model):
            others = by_name(model, training_data("run_until", model, mcmc).others)
            size = num_rows("run_until: x", fitted)
            model = partial(model, **others_at("run_until", "test_data", others, size, own))
        # A ready model has not learned its units yet, and its targets stay as they are.
        self._y = None if y is None else as_observed("run_until", None, model, x, y, None)
        check_row_shapes("run_until", "x of test_data", about_inputs(fitted), x)
        self._predictor = Predictor(model, x, about={"fitted_rows": fitted}, owner="run_until")
        self._sample_field = kernel.sample_field
        self._limits = limits_of(kernel)
        self._parts: list[dict[str, dict[str, np.ndarray]]] = []
        self._known = 0
        self._bad: dict[int, int] = {}
        self._began = time.monotonic()
        self.looks: list[StoppingCheck] = []
        self._modes: list[bool] = []
        self.reason: str | None = None
        self.dropped = 0
        self._why_not_finite = ""
        self.line = "before the first look"

    @property
    def settings(self) -> dict[str, object]:
        """Settings by name, from which an equal stopping rule can be made with the same `at`."""
        minutes = None if self.max_seconds is None else self.max_seconds / 60.0
        return {**asdict(self.tolerance), "max_minutes": minutes}

    def prepare(self, like: dict[str, PyTree], chunk: int) -> None:
        """Predict from draws of zeros, so that errors are raised and programs compiled before the run."""

        def zeros(leaf: Any) -> np.ndarray:
            return np.zeros((leaf.shape[0], chunk, *leaf.shape[2:]), leaf.dtype)

        with np.errstate(all="ignore"):
            predicted = self._predicted(jax.tree.map(zeros, like), 0)
        accepted = self.tolerance
        parts = {
            "total variation": accepted.total_variation if "probs" in predicted["values"] else None,
            "error in predictive sd": None if "probs" in predicted["values"] else accepted.relative,
            "error of the log score": None if self._y is None else accepted.log_score,
        }
        asked = ", ".join(f"{name} {limit:g}" for name, limit in parts.items() if limit is not None)
        self.line = f"until {asked}"

    def _predicted(self, draws: Mapping[str, Any], first: int) -> dict[str, dict[str, Any]]:
        """Predictions, log likelihood, parameters and statistics of a block of draws."""
        predictions = self._predictor(draws[self._sample_field], first)
        stats = {k: v for k, v in draws.items() if k != self._sample_field}
        scored = {} if self._y is None else {"": predictions.log_prob(self._y)}
        sites = draws[self._sample_field]
        names = self._predictor.structure.parameters_in(sites)
        own = {name: np.asarray(sites[name]) for name in names}
        found = {"values": predictions.values, "scored": scored, "parameters": own}
        return {**found, "stats": stats_by_site(stats)}

    def is_late(self) -> bool:
        """Whether the time limit is over, counted from when this rule was made."""
        return self.max_seconds is not None and time.monotonic() - self._began > self.max_seconds

    def evaluate(self, drawn: DrawsSoFar) -> None:
        """Predict from the new draws, judge all draws that count, and decide whether to stop."""
        for begin in range(self._known, drawn.num_draws, drawn.chunk):
            draws = drawn.between(begin, min(begin + drawn.chunk, drawn.num_draws))
            for chain, draw in first_bad_draws(draws[self._sample_field]).items():
                self._bad.setdefault(chain, begin + draw)
            self._parts.append(self._predicted(draws, begin))
        self._known = drawn.num_draws
        failed = {*exploded_chains(drawn.states, drawn.step), *self._bad}
        values, scored, own, stats = (self._joined(kind, failed) for kind in self._parts[0])
        seconds = time.monotonic() - self._began
        if not len(next(iter(values.values()))):
            self.looks.append(StoppingCheck(drawn.num_draws, 0, None, seconds, float("nan")))
            self.reason, self.line = FAILED, say("stop", reason=FAILED)
            return
        # The weights of these chains are finite.
        self._why_not_finite = predictions_not_finite(values)
        self.dropped = 0 if self._why_not_finite else draws_to_drop(values, self.tolerance)
        values, scored, own, stats = (
            {name: x[:, self.dropped :] for name, x in kind.items()}
            for kind in (values, scored, own, stats)
        )
        report = diagnose_draws(
            None,
            values,
            parameters=own,
            log_likelihood=scored.get(""),
            tolerance=self.tolerance,
            sample_stats={**stats, **self._limits},
        )
        left = self._seconds_left(drawn, report)
        self._modes.append(_separate_modes(report, values, scored.get("")))
        self.looks.append(StoppingCheck(drawn.num_draws, self.dropped, report, seconds, left))
        self.reason = NOT_FINITE if self._why_not_finite else self._decided()
        self.line = self._message()

    def _joined(self, kind: str, failed: set[int]) -> dict[str, np.ndarray]:
        """One kind of array over all draws so far, of the chains that are finite."""
        parts = [part[kind] for part in self._parts]
        joined = {name: np.concatenate([p[name] for p in parts], 1) for name in parts[0]}
        if not failed:
            return joined
        return {
            name: x[np.setdiff1d(np.arange(len(x)), list(failed))] for name, x in joined.items()
        }

    def _seconds_left(self, drawn: DrawsSoFar, report: Report) -> float:
        """Seconds until two evaluations in a row are within tolerance, if errors fall as 1/√draws."""
        needed = report.needed
        # Below the least number of draws no error is known yet, and how it will fall cannot be said.
        is_open = report.monte_carlo_error is None or not np.isfinite(needed)
        if is_open or report.verdict.startswith("chains"):
            return float("nan")
        kept = drawn.num_draws - self.dropped
        first: float = drawn.num_draws
        if report.verdict != WITHIN_TOLERANCE:
            first = max(first, self.dropped + needed * kept)
        return (GROWTH * first - drawn.num_draws) * drawn.seconds_a_draw

    def _decided(self) -> str | None:
        """The reason to stop, if the last two evaluations agree on it."""
        last = [look.report for look in self.looks[-2:]]
        if len(last) < 2 or any(report is None for report in last):
            return None
        if all(report.verdict == WITHIN_TOLERANCE for report in last if report):
            return WITHIN
        if all(self._modes[-2:]):
            return MODES
        if all(report.stuck for report in last if report):
            return STUCK
        return None

    def _message(self) -> str:
        """How far the run is, as a line of text."""
        draws, _, report, seconds, left = self.looks[-1]
        assert report is not None
        text = say("look", draws=draws, verdict=report.verdict.words, headline=report.headline)
        if self.reason is not None:
            return f"{text}; {say('stop', reason=self.reason)}"
        if not np.isfinite(left):
            return text
        over = (np.inf if self.max_seconds is None else self.max_seconds) - seconds
        key, times = "allowed" if over < left else "left", (left, max(0.0, over))
        return f"{text}; {say(key, **dict(zip(('time', 'over'), map(duration, times))))}"

    def stopped(self, draws: int) -> StopReason:
        """How a run of so many draws a chain ended."""
        assert self.reason is not None
        return StopReason(self.reason, draws, self.dropped, tuple(self.looks), self._why_not_finite)


def stored_judge(mcmc: CompiledRuns, start: Start) -> UntilKnown:
    """The stopping rule of a stored run."""
    assert start.until is not None
    numbers = dict(start.until)
    minutes = numbers.pop("max_minutes")
    return UntilKnown(mcmc, Tolerance(**numbers), start.at, minutes)


def check_until(until: object, max_minutes: object) -> Tolerance:
    """Check the arguments of a stopping rule, and return the tolerance."""
    if max_minutes is not None:
        check_positive("run_until", max_minutes=max_minutes)
    return checked_tolerance("run_until: until", until)


def _checked_test_data(model: Callable, test_data: Any, columns: Columns) -> tuple[Any, Any, dict]:
    """Check inputs, targets and other arguments at which a run is judged; returned on the host."""
    parts = test_data if isinstance(test_data, (tuple, list)) else ()
    if len(parts) not in (2, 3) or not all(isinstance(part, Mapping) for part in parts[2:]):
        of = f" of {len(parts)}" if parts else ""
        raise TypeError(
            "run_until: expected the inputs and targets at which predictions are to be known, "
            "`test_data=(x_test, y_test)` or `test_data=(x_test, None)`, and as a third part further "
            f"arguments by name, got {type(test_data).__name__}{of}."
        )
    check_columns("run_until", "x of test_data", columns, test_data[0])
    (x, y), others = as_arrays(model, tuple(parts[:2]), dict(*parts[2:]))
    advice = " Give a target for every input, or `test_data=(x_test, None)`."
    num_rows("run_until: x and y of test_data", (x, y), advice)
    return jax.tree.map(np.asarray, (x, y, others))


def _separate_modes(
    report: Report, values: Mapping[str, np.ndarray], scored: np.ndarray | None
) -> bool:
    """Whether chains disagree although each of them by itself is within tolerance."""
    chains = len(next(iter(values.values())))
    # Tempered chains may cross later.
    crossing = report.sampler.tempering is not None
    if not report.verdict.startswith("chains") or chains < 2 or report.stuck or crossing:
        return False
    return all(
        monte_carlo_error(
            {name: x[c : c + 1] for name, x in values.items()},
            log_likelihood=None if scored is None else scored[c : c + 1],
        ).within(report.tolerance)
        for c in range(chains)
    )


def duration(seconds: float) -> str:
    """A time for people: ``about 40 s``, ``about 3 min``."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
