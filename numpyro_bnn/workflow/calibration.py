"""Intervals and sets that cover as often as they say, also where the posterior has not converged.

Split conformal prediction on the predictive distribution of the posterior: rows that were held out say how
far its quantiles are off. The libraries for it (MAPIE, crepes) wrap estimators with point predictions or
quantiles of their own; a predictive distribution with its own distribution function needs none of that.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from numpyro_bnn.data.arguments import as_array
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.predictive_draws import Predictions, average
from numpyro_bnn.scores.conformal import (
    central_scores,
    quantile_scores,
    set_scores,
    threshold,
)

# Temperatures within these factors of 1 are tried.
_COLDEST, _HOTTEST = 0.05, 20.0
# Penalty a class beyond the first two of RAPS.
_PENALTY, _FREE = 0.05, 2


class Evaluation(NamedTuple):
    """Coverage on rows that were neither trained on nor calibrated with.

    - **before**, **after** - share of targets covered, without and with calibration
    - **error** - standard error of a share at the coverage asked for
    - **size_before**, **size_after** - mean width of intervals, or mean number of classes of sets
    """

    before: float
    after: float
    error: float
    size_before: float
    size_after: float


class CalibratedRegression:
    """What :func:`calibrate` returns for a continuous target.

    - **coverage** - coverage that was asked for
    - **num_rows** - calibration rows
    - **method** - ``"cdf"`` or ``"cqr"``
    """

    def __init__(
        self,
        predictions: Callable[[Any], Predictions],
        x: Any,
        y: np.ndarray,
        coverage: float,
        method: str,
    ) -> None:
        self._predictions = predictions
        self.coverage, self.method, self.num_rows = coverage, method, len(y)
        made = predictions(x)
        if method == "cdf":
            self._scores = central_scores(made.cdf(y).astype(np.float64).mean((0, 1)))
        else:
            low, high = made.quantiles(_ends(coverage))
            self._scores = quantile_scores(low, high, y)
        self.threshold = threshold(self._scores, coverage)

    def __repr__(self) -> str:
        return (
            f"CalibratedRegression(coverage={self.coverage:g}, method={self.method!r}, "
            f"num_rows={self.num_rows}, threshold={self.threshold:.4g})"
        )

    def predict_interval(self, x: Any, coverage: float | None = None) -> np.ndarray:
        """Intervals that hold a new target with probability `coverage`, on average over rows.

        :param x: inputs.
        :param coverage: another coverage than that of the calibration; ``method="cdf"`` alone has others.
        :return: (N, 2), lower and upper ends; infinite where the calibration rows allow no end.
        :raises ValueError: for a coverage that the calibration cannot give.
        """
        return self._intervals(
            self._predictions(x), self.coverage if coverage is None else coverage
        )

    def _intervals(self, made: Predictions, coverage: float) -> np.ndarray:
        if self.method == "cqr":
            if coverage != self.coverage:
                raise ValueError(
                    f"predict_interval: quantiles were calibrated for coverage={self.coverage}, got "
                    f"{coverage}. Calibrate again, or with method='cdf', which serves any coverage."
                )
            low, high = made.quantiles(_ends(coverage))
            return np.stack([low - self.threshold, high + self.threshold], 1)
        reach = threshold(self._scores, coverage)
        if reach >= 0.5:
            return np.tile([-np.inf, np.inf], (made.mean.shape[2], 1))
        return made.quantiles((0.5 - reach, 0.5 + reach)).T

    def evaluate(self, x: Any, y: Any) -> Evaluation:
        """Coverage and mean width on other rows, without and with calibration.

        :param x: inputs.
        :param y: targets.
        """
        y, made = np.asarray(y, np.float64), self._predictions(x)
        plain = made.quantiles(_ends(self.coverage)).T
        both = (plain, self._intervals(made, self.coverage))
        before, after = (float(np.mean((y >= e[:, 0]) & (y <= e[:, 1]))) for e in both)
        widths = [float(np.mean(e[:, 1] - e[:, 0])) for e in both]
        return Evaluation(before, after, _error(self.coverage, len(y)), widths[0], widths[1])


class CalibratedClassification:
    """What :func:`calibrate` returns for classes.

    - **coverage** - coverage that was asked for
    - **num_rows** - calibration rows
    - **method** - ``"aps"`` or ``"raps"``
    - **temperature** - by which log probabilities are divided in :meth:`predict_proba`; above 1 where the
      posterior was too sure
    """

    def __init__(
        self,
        predictions: Callable[[Any], Predictions],
        x: Any,
        y: np.ndarray,
        coverage: float,
        method: str,
        seed: int,
    ) -> None:
        self._predictions = predictions
        self.coverage, self.method, self.num_rows = coverage, method, len(y)
        self._random = np.random.default_rng(seed)
        probs = _averaged(predictions(x))
        self.temperature = best_temperature(probs, y)
        self._scores = self._set_scores(probs)[np.arange(len(y)), y]
        self.threshold = threshold(self._scores, coverage)

    def __repr__(self) -> str:
        return (
            f"CalibratedClassification(coverage={self.coverage:g}, method={self.method!r}, "
            f"num_rows={self.num_rows}, threshold={self.threshold:.4g}, "
            f"temperature={self.temperature:.4g})"
        )

    def _set_scores(self, probs: np.ndarray) -> np.ndarray:
        penalty = _PENALTY if self.method == "raps" else 0.0
        return set_scores(probs, self._random.uniform(size=len(probs)), penalty, _FREE)

    def predict_set(self, x: Any, coverage: float | None = None) -> np.ndarray:
        """Sets of classes that hold the label with probability `coverage`, on average over rows.

        Exact coverage is bought with a random number a row: a set may be empty where the best class is
        sure to be right more often than was asked for.

        :param x: inputs.
        :param coverage: another coverage than that of the calibration.
        :return: (N, classes) of booleans.
        """
        limit = self.threshold if coverage is None else threshold(self._scores, coverage)
        return self._set_scores(_averaged(self._predictions(x))) <= limit

    def predict_proba(self, x: Any) -> np.ndarray:
        """Posterior predictive probabilities at the temperature of the calibration, (N, classes).

        :param x: inputs.
        """
        return at_temperature(_averaged(self._predictions(x)), self.temperature)

    def evaluate(self, x: Any, y: Any) -> Evaluation:
        """Coverage and mean size of sets on other rows, without and with calibration.

        :param x: inputs.
        :param y: labels, whole numbers from 0.
        """
        y, probs = np.asarray(y), _averaged(self._predictions(x))
        scores = self._set_scores(probs)
        both = [scores <= limit for limit in (self.coverage, self.threshold)]
        before, after = (float(inside[np.arange(len(y)), y].mean()) for inside in both)
        sizes = [float(inside.sum(1).mean()) for inside in both]
        return Evaluation(before, after, _error(self.coverage, len(y)), sizes[0], sizes[1])


def calibrate(
    fitted: Any,
    x_cal: Any,
    y_cal: Any,
    *,
    coverage: float = 0.9,
    method: Literal["cdf", "cqr", "aps", "raps"] | None = None,
    seed: int = 0,
) -> CalibratedRegression | CalibratedClassification:
    """Calibrate predictions on rows that were not trained on.

    Intervals or sets then hold the target of a new row with probability `coverage`, if it comes from the same
    source as the calibration rows: on average over such rows, for any model and however far its chains are
    from agreement. It is no promise for a single row or group, and none after a shift of the data.

    :param fitted: what :func:`numpyro_bnn.fit` returned, an ``MCMC`` after `run`, draws with their model, or
        a fitted estimator.
    :param x_cal: inputs of the calibration rows.
    :param y_cal: their targets; labels as the model takes them, of an estimator its own labels.
    :param coverage: strictly between 0 and 1.
    :param method: ``"cdf"`` (default for numbers): the distance from the predictive median in probability;
        ``"cqr"``: predictive quantiles moved outwards or inwards; ``"aps"`` (default for classes): classes by
        falling probability until enough is covered; ``"raps"``: with a penalty for large sets.
    :param seed: of the random numbers that make the coverage of sets exact.
    :return: intervals, or sets and probabilities.
    :raises ValueError: if most calibration rows were trained on (where the training rows are known: not for
        draws from a file), for too few rows, or a method that does not go with the target.

    >>> calibrated = bnn.calibrate(fitted, x_cal, y_cal)                    # doctest: +SKIP
    >>> low, high = calibrated.predict_interval(x_new).T                    # doctest: +SKIP
    """
    classes = getattr(fitted, "classes_", None)
    x_cal, y = _arrays(x_cal, y_cal, classes)
    _refuse_training_rows(fitted, x_cal, y)
    predictions = _predictions_of(fitted)
    head = predictions(x_cal[:1])
    of_classes = "probs" in head.values
    known = ("aps", "raps") if of_classes else ("cdf", "cqr")
    chosen = known[0] if method is None else method
    if chosen not in known:
        raise ValueError(
            f"calibrate: method must be one of {known} for this target, got {method!r}. Leave it out for "
            f"{known[0]!r}."
        )
    if of_classes:
        return CalibratedClassification(predictions, x_cal, y, coverage, chosen, seed)
    return CalibratedRegression(predictions, x_cal, y, coverage, chosen)


def best_temperature(probs: np.ndarray, y: np.ndarray) -> float:
    """The temperature at which probabilities have the highest log score.

    Source: Guo, Pleiss, Sun and Weinberger, *On calibration of modern neural networks* (2017), §4.2.

    :param probs: (n, classes).
    :param y: labels from 0, (n,).
    """

    def loss(log_temperature: float) -> float:
        scaled = at_temperature(probs, float(np.exp(log_temperature)))
        return -float(np.mean(np.log(np.maximum(scaled[np.arange(len(y)), y], 1e-300))))

    found = minimize_scalar(loss, bounds=(np.log(_COLDEST), np.log(_HOTTEST)), method="bounded")
    return float(np.exp(found.x))


def at_temperature(probs: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities proportional to p^(1 / temperature), (n, classes)."""
    logits = np.log(np.maximum(probs, 1e-300)) / temperature
    raised = np.exp(logits - logits.max(1, keepdims=True))
    scaled: np.ndarray = raised / raised.sum(1, keepdims=True)
    return scaled


def _averaged(made: Predictions) -> np.ndarray:
    return np.asarray(average(made), np.float64)


def _ends(coverage: float) -> tuple[float, float]:
    return (1 - coverage) / 2, (1 + coverage) / 2


def _error(coverage: float, count: int) -> float:
    return float(np.sqrt(coverage * (1 - coverage) / count))


def _predictions_of(fitted: Any) -> Callable[[Any], Predictions]:
    """The function from inputs to predictions of every draw."""
    if hasattr(fitted, "predictions"):
        own: Callable[[Any], Predictions] = fitted.predictions
        return own
    return lambda x: predict(None, getattr(fitted, "draws", fitted), x)


def _arrays(x_cal: Any, y_cal: Any, classes: np.ndarray | None) -> tuple[Any, np.ndarray]:
    """Calibration rows as arrays, labels of an estimator as numbers."""
    if classes is not None:
        labels = np.asarray(y_cal)
        unknown = np.setdiff1d(labels, classes)
        if unknown.size:
            raise ValueError(
                f"calibrate: y_cal holds the labels {unknown[:3].tolist()}, which the estimator was not "
                f"trained on; it knows {classes[:8].tolist()}. Leave those rows out."
            )
        y_cal = np.searchsorted(classes, labels)
    y = np.asarray(as_array("calibrate", "y_cal", y_cal))
    if len(x_cal) != len(y) or not len(y):
        raise ValueError(
            f"calibrate: x_cal has {len(x_cal)} rows and y_cal {len(y)}, expected equal numbers of at "
            "least 1. Give a target for every input."
        )
    return x_cal, y


def _refuse_training_rows(fitted: Any, x_cal: Any, y: np.ndarray) -> None:
    """Refuse rows that were trained on: a network knows them too well to judge itself on them."""
    run = getattr(fitted, "mcmc_", None) or getattr(fitted, "mcmc", fitted)
    arguments = getattr(run, "_args", None)
    if not arguments or len(arguments) < 2:
        return
    trained = {_row(x, t) for x, t in zip(np.asarray(arguments[0]), np.asarray(arguments[1]))}
    again = sum(_row(x, t) in trained for x, t in zip(np.asarray(x_cal), y))
    if 2 * again > len(y):
        raise ValueError(
            f"calibrate: {again} of the {len(y)} rows of x_cal and y_cal were trained on, where errors "
            "are smaller than on new rows. Hold rows out before the fit, and calibrate with those."
        )


def _row(x: Any, y: Any) -> bytes:
    return np.asarray(x, np.float32).tobytes() + np.asarray(y, np.float32).tobytes()
