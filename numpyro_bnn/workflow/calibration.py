"""Calibration on held-out rows: intervals and sets that hold what they say, converged or not.

:func:`calibrate` is split conformal prediction on the predictive distribution of a posterior. It asks
nothing of model, prior or sampler; a bad fit gives wide intervals and not wrong ones.

MAPIE, crepes and netcal are not used: they wrap scikit-learn estimators of points, quantiles or
probabilities, and take no predictive distribution function. What is left without that are the order
statistic and the scores below.

A conformal score says how badly a target fits a prediction. With n calibration rows that are exchangeable
with a new row, the score of the new row is at most the k-th smallest of theirs, k = ceil((n + 1) coverage),
with probability k / (n + 1), whatever the model (Vovk, Gammerman & Shafer 2005; Lei et al. 2018). All
targets with a score up to that threshold form the predicted set. The methods differ in the score:

- distributional conformal, `|F(y) - 1/2|` (Chernozhukov, Wüthrich & Zhu 2021), of counts to their step of F;
- conformalised quantile regression, `max(low - y, y - high)` (Romano, Patterson & Candès 2019);
- adaptive sets, the probability of all classes above the label (Romano, Sesia & Candès 2020, *APS*), with a
  penalty on long sets (Angelopoulos et al. 2021, *RAPS*).
"""

import copy
import math
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from numpyro_bnn._checks import check_share
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import as_arrays, refuse_text_columns, targets_of
from numpyro_bnn.data.fingerprints import hashes_of
from numpyro_bnn.data.units import taken, with_targets
from numpyro_bnn.likelihoods.observe import check_finite
from numpyro_bnn.posterior.draws import Draws, Run, draws_of
from numpyro_bnn.posterior.fitted import held_by
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.predictive_draws import Predictions, average, mean_over_draws
from numpyro_bnn.posterior.training_data import as_observed
from numpyro_bnn.scores.against_targets import standard_error
from numpyro_bnn.workflow.check_fit import refuse_training_rows, share_error

# Probability of each tail in which the score is a distance, because float32 cannot represent F(y) there.
TAIL = 1e-4
# The penalty of RAPS for each class of a set beyond the free ones. Both are fixed beforehand, so that no
# calibration rows are spent on their choice.
PENALTY, FREE_CLASSES = 0.1, 2
# Temperatures that are tried, as natural logarithms: 1/150 to 150.
_LOG_TEMPERATURES = (-5.0, 5.0)


def rank(coverage: float, num_rows: int) -> int:
    """The rank, from 1, of the score that is the threshold: ceil((n + 1) coverage)."""
    # Rounded, because 100 * 0.55 is a little above 55 in floating point.
    return math.ceil(round((num_rows + 1) * coverage, 9))


def rows_needed(coverage: float) -> int:
    """The least number of calibration rows with which an interval of this coverage is finite."""
    rows = max(1, math.floor(coverage / (1 - coverage)) - 1)
    while rank(coverage, rows) > rows:
        rows += 1
    return rows


def threshold(scores: np.ndarray, coverage: float) -> float:
    """The score that a new row exceeds with probability at most 1 - `coverage`."""
    k = rank(coverage, len(scores))
    if k > len(scores):
        raise ValueError(
            f"calibrate: {len(scores)} calibration rows are too few for coverage={coverage}, whose "
            f"intervals would be infinite. Give at least {rows_needed(coverage)} rows."
        )
    return float(np.partition(scores, k - 1)[k - 1])


def cdf_scores(
    inside: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray, width: np.ndarray
) -> np.ndarray:
    """Distance of F(y) from 1/2 inside of the interval, and beyond that in widths."""
    beyond = np.maximum(np.maximum(low - y, y - high), 0) / width
    return np.where(beyond > 0, 0.5 - TAIL + beyond, np.clip(inside, 0, 0.5 - TAIL))


def interval_scores(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How far a target is outside its interval; negative inside (Romano et al. 2019, eq. 6)."""
    return np.maximum(low - y, y - high)


def set_scores(probs: np.ndarray, u: np.ndarray, penalty: float = 0.0) -> np.ndarray:
    """The score of every class: probability of the classes before it, and a share `u` of its own."""
    order = np.argsort(-probs, axis=1, kind="stable")
    ranked = np.take_along_axis(probs, order, axis=1)
    places = np.arange(1, probs.shape[1] + 1)
    scores = ranked.cumsum(1) - ranked + u[:, None] * ranked
    scores += penalty * np.maximum(places - FREE_CLASSES, 0)
    made = np.empty_like(scores)
    np.put_along_axis(made, order, scores, axis=1)
    return made


def tempered(probs: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities to the power 1 / temperature, made to add up to 1 again, (n, classes)."""
    return softmax(_logs(probs) / temperature, axis=1)


def temperature_of(probs: np.ndarray, labels: np.ndarray) -> float:
    """The temperature with the smallest log loss (Guo et al. 2017); above 1 for overconfident predictions."""
    logs, rows = _logs(probs), np.arange(len(labels))

    def log_loss(log_temperature: float) -> float:
        scaled = log_softmax(logs / np.exp(log_temperature), axis=1)
        return -float(scaled[rows, labels].mean())

    return float(np.exp(minimize_scalar(log_loss, bounds=_LOG_TEMPERATURES, method="bounded").x))


def _logs(probs: np.ndarray) -> np.ndarray:
    """Logarithms; a probability that was rounded to zero is the smallest that float32 holds."""
    return np.log(np.maximum(probs, np.finfo(np.float32).tiny))


Method = Literal["cdf", "cqr", "aps", "raps"]
# Probabilities and shares of a width closer than this are the same: they come from single precision and from
# bisection. A target that occurs in many rows is an end of many intervals, and belongs to them.
_ROUNDING = 1e-5
METHODS: dict[str, tuple[Method, ...]] = {"mean": ("cdf", "cqr"), "probs": ("aps", "raps")}


class FittedEstimator(Protocol):
    """An estimator after `fit`, such as :class:`numpyro_bnn.BNNRegressor`."""

    def predictions(self, X: PyTree) -> Predictions:
        """Predictions of every draw at inputs, N rows."""


class MeasuredCoverage(NamedTuple):
    """What intervals or sets are on rows of a test.

    - **coverage** - share of targets inside, with its standard error **coverage_error**
    - **size** - mean width of an interval in units of the target, or mean number of classes in a set, with
      its standard error **size_error**
    """

    coverage: float
    coverage_error: float
    size: float
    size_error: float

    def __str__(self) -> str:
        return (
            f"coverage {self.coverage:.3f} ± {self.coverage_error:.3f}, "
            f"size {self.size:.4g} ± {self.size_error:.2g}"
        )


class Evaluation(NamedTuple):
    """Intervals or sets of the model itself (**before**) and calibrated ones (**after**), same rows."""

    before: MeasuredCoverage
    after: MeasuredCoverage

    def __str__(self) -> str:
        return f"before: {self.before}; after: {self.after}"


class Calibrated:
    """A posterior whose intervals or sets were calibrated on rows that it has not seen.

    - **coverage** - the share of new targets that intervals or sets hold
    - **num_rows** - calibration rows
    - **scores** - how badly their targets fit the predictions, (num_rows,)
    - **method** - ``"cdf"`` or ``"cqr"`` of regression, ``"aps"`` or ``"raps"`` of classes
    - **threshold** - targets with a score up to this are inside. The model's own value is coverage / 2 of
      ``"cdf"``, 0 of ``"cqr"`` and the coverage of ``"aps"``; a larger one means that it is overconfident
    - **temperature** - of the class probabilities, above 1 for an overconfident model; None for regression
    """

    def __init__(
        self,
        source: Draws | FittedEstimator,
        method: Method,
        coverage: float,
        scores: np.ndarray,
        temperature: float | None,
    ) -> None:
        self.method: Method = method
        self.coverage = coverage
        self.temperature = temperature
        self.num_rows = len(scores)
        self.threshold = threshold(scores, coverage)
        self._source = source
        self.scores = scores

    def at(self, coverage: float) -> "Calibrated":
        """The same calibration rows for another coverage.

        :param coverage: a probability strictly between 0 and 1.
        :raises ValueError: for ``"cqr"``, whose scores are of one coverage; too few rows for this coverage.
        """
        check_share("calibrate", "coverage", coverage)
        if self.method == "cqr" and coverage != self.coverage:
            raise ValueError(
                f"calibrate: scores of method 'cqr' are of coverage {self.coverage} alone, and coverage="
                f"{coverage} was asked. Call `calibrate` with that coverage, or take method 'cdf'."
            )
        return Calibrated(self._source, self.method, coverage, self.scores, self.temperature)

    def predict_interval(self, x: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Intervals that hold new targets with probability `coverage`, on average over rows.

        :param x: inputs, N rows.
        :return: lower and upper ends in units of the target, (N,) each.
        :raises TypeError: for classes.
        """
        self._check_kind("predict_interval", "mean", "Use `predict_set` for classes.")
        low, high = self.intervals_of(predictions_of(self._source, x)).T
        return low, high

    def intervals_of(self, predictions: Predictions) -> np.ndarray:
        """Lower and upper ends of all targets with a score up to the threshold, at predicted rows, (N, 2)."""
        limit = self.threshold
        if self.method == "cqr":
            low, high = predictions.quantiles(((1 - self.coverage) / 2, (1 + self.coverage) / 2))
            # Ends that would cross meet in the middle.
            by = np.maximum(limit, (low - high) / 2)
        else:
            beyond = limit - (0.5 - TAIL)
            half = min(limit, 0.5 - TAIL)
            # The quantile of a count is exact, that of a real number near to what bisection finds.
            half += (0.1 if predictions.discrete else 1) * _ROUNDING
            low, high = predictions.quantiles((0.5 - half, 0.5 + half))
            by = beyond * _width(predictions, low, high) if beyond > 0 else 0.0
        low, high = low - by, high + by
        if not predictions.discrete:
            rounding = _ROUNDING * (high - low)
            low, high = low - predictions.rounding_of(low), high + predictions.rounding_of(high)
            return np.stack([low - rounding, high + rounding], 1)
        first, last = np.ceil(low - _ROUNDING), np.floor(high + _ROUNDING)
        whole = first <= last
        return np.stack([np.where(whole, first, low), np.where(whole, last, high)], 1)

    def predict_set(self, x: PyTree) -> np.ndarray:
        """Sets of classes that hold new labels with probability `coverage`, on average over rows.

        A set is empty where the model is right more often than `coverage`: there is no other way to miss
        the share that was asked for. Ask for a higher coverage then.

        :param x: inputs, N rows.
        :return: (N, classes), True for the classes of the set.
        :raises TypeError: for regression.
        """
        self._check_kind("predict_set", "probs", "Use `predict_interval` for regression.")
        return self.sets_of(predictions_of(self._source, x), _inputs(self._source, x))

    def sets_of(self, predictions: Predictions, inputs: PyTree) -> np.ndarray:
        """Sets of classes, (N, classes), at inputs that are arrays and predicted already."""
        penalty = PENALTY if self.method == "raps" else 0.0
        return class_scores(predictions, inputs, penalty) <= self.threshold + _ROUNDING

    def predict_proba(self, x: PyTree) -> np.ndarray:
        """Probabilities of the classes, averaged over draws and scaled by `temperature`.

        The most probable class stays the same.

        :param x: inputs, N rows.
        :return: (N, classes).
        :raises TypeError: for regression.
        """
        self._check_kind("predict_proba", "probs", "Use `predict_interval` for regression.")
        assert self.temperature is not None
        return tempered(probabilities(predictions_of(self._source, x)), self.temperature)

    def evaluate(self, x_test: PyTree, y_test: ArrayLike) -> Evaluation:
        """Coverage and size on other held-out rows, of the model's own intervals or sets and of these.

        Standard errors are over the test rows, of this calibration.

        :param x_test: inputs, N rows, neither of the fit nor of the calibration.
        :param y_test: their targets, (N,); rows of NaN are left out.
        :return: the two, before and after.
        """
        rows, y = with_targets("evaluate", targets_of(self._source, y_test, "evaluate"))
        inputs = taken(_inputs(self._source, x_test), rows)
        predictions = predictions_of(self._source, x_test).at_rows(rows)
        y = _observed("evaluate", self._source, inputs, y)
        _check_targets("evaluate", predictions, y)
        if self.temperature is None:
            tail = (1 - self.coverage) / 2
            own = predictions.quantiles((tail, 1 - tail)).T
            made = self.intervals_of(predictions)
            before, after = (
                _measured((low <= y) & (y <= high), high - low) for low, high in (own.T, made.T)
            )
            return Evaluation(before, after)
        made = self.sets_of(predictions, inputs)
        own = class_scores(predictions, inputs) <= self.coverage
        return Evaluation(*(_measured(held[range(len(y)), y], held.sum(1)) for held in (own, made)))

    def _check_kind(self, name: str, kind: str, advice: str) -> None:
        if self.method not in METHODS[kind]:
            raise TypeError(f"{name}: this was calibrated by method {self.method!r}. {advice}")

    def __repr__(self) -> str:
        own = {"cdf": self.coverage / 2, "cqr": 0.0}.get(self.method, self.coverage)
        scaled = "" if self.temperature is None else f", temperature {self.temperature:.3g}"
        return (
            f"Calibrated({self.method}: coverage {self.coverage:g} from {self.num_rows} rows, threshold "
            f"{self.threshold:.4g} where {own:g} is the model's own{scaled})"
        )


def calibrate(
    fitted: Run | FittedEstimator,
    x_cal: PyTree,
    y_cal: ArrayLike,
    coverage: float = 0.9,
    method: Method | None = None,
) -> Calibrated:
    """Make intervals, or sets of classes, hold the share of new targets that they say.

    Split conformal prediction: the calibration rows are scored by how badly their targets fit, and the
    score of rank ceil((n + 1) coverage) among the n is the limit for new targets. This holds for any model,
    and for a run that has not converged.

    What is promised: of many new rows, each predicted after a calibration on n rows of the same source, a
    share of at least `coverage` is inside, and of continuous targets at most coverage + 1 / (n + 1). This is
    *marginal*: an average over rows, so that easy rows may be covered more often and hard ones less; it is no
    promise about a single row or a group of rows. For one set of n calibration rows the share is off by about
    √(coverage (1 - coverage) / n), 3 % at 100 rows. It needs *exchangeability*: calibration rows and new rows
    could have come in any order. Rows of a later time or of another place are not promised anything.

    Calibration rows must not have been fitted. They are compared with the training rows, which a run of
    ``MCMC`` keeps. Draws by themselves, loaded estimators, data on the host (:class:`numpyro_bnn.OnHost`)
    and the validation rows of stacking are not known here: hold rows out for them yourself.

    :param fitted: what :func:`numpyro_bnn.fit` returned, an ``MCMC`` after `run`, :class:`numpyro_bnn.Draws`
        with a model, or a fitted estimator.
    :param x_cal: inputs of the calibration rows; other arguments by row belong into them, as a dictionary.
    :param y_cal: their targets, as the model takes them; rows of NaN are left out. Intervals are about what
        it observes, as predictions are, such as their logarithm.
    :param coverage: a probability strictly between 0 and 1.
    :param method: of regression ``"cdf"`` (default; interval between two quantiles of the predictive
        distribution, wider where that is wide) or ``"cqr"`` (ends of its central interval moved by one
        number); of classes ``"aps"`` (default) or ``"raps"``, which has shorter sets for many classes.
    :return: an object with ``predict_interval``, or ``predict_set`` and ``predict_proba``, and ``evaluate``.
        It keeps the posterior as it is now, whatever the estimator is fitted to later.
    :raises ValueError: for training rows, too few rows for the coverage, another method or coverage, or
        targets that do not fit the predictions.
    :raises TypeError: for something that is not fitted.

    >>> calibrated = bnn.calibrate(fitted, x_cal, y_cal, coverage=0.9)      # doctest: +SKIP
    >>> low, high = calibrated.predict_interval(x_new)                      # doctest: +SKIP
    >>> print(calibrated.evaluate(x_test, y_test))                          # doctest: +SKIP
    """
    check_share("calibrate", "coverage", coverage)
    source = _source_of(fitted)
    known, labels = with_targets("calibrate", targets_of(source, y_cal, "calibrate"))
    inputs = taken(_inputs(source, x_cal), known)
    refuse_training_rows("calibrate", fitted, inputs, labels)
    predictions = predictions_of(source, x_cal).at_rows(known)
    labels = _observed("calibrate", source, inputs, labels)
    kind = "probs" if "probs" in predictions.values else "mean"
    chosen = METHODS[kind][0] if method is None else method
    if chosen not in METHODS[kind]:
        what = "classes" if kind == "probs" else "regression"
        raise ValueError(
            f"calibrate: method={method!r} does not fit a target of {what}. Take one of {METHODS[kind]}."
        )
    if predictions.values[kind].ndim != (4 if kind == "probs" else 3):
        raise ValueError(
            f"calibrate: predictions have shape {predictions.values[kind].shape}, expected one target a "
            "row. Calibrate outputs one by one, each with a model of its own."
        )
    _check_targets("calibrate", predictions, labels)
    if kind == "mean":
        scores = _scores(predictions, np.asarray(labels), chosen, coverage)
        return Calibrated(source, chosen, coverage, scores, None)
    every = class_scores(predictions, inputs, PENALTY if chosen == "raps" else 0.0)
    labels = np.asarray(labels, int)
    temperature = temperature_of(probabilities(predictions), labels)
    return Calibrated(source, chosen, coverage, every[range(len(labels)), labels], temperature)


def _check_targets(owner: str, predictions: Predictions, y: Any) -> None:
    """Refuse targets of other shapes or kinds, as every function of targets does."""
    if "probs" in predictions.values:
        predictions.log_prob(y)
        return
    predictions.cdf(y)
    check_finite(owner, "y", np.asarray(y, np.float64))


def _source_of(fitted: Run | FittedEstimator) -> Any:
    """What predicts, an estimator or draws."""
    if hasattr(fitted, "predictions") and hasattr(fitted, "get_params"):
        # An estimator predicts in blocks, and takes tables as scikit-learn does.
        held_by(fitted, "draws")
        # A copy: another `fit` gives the estimator other draws, to which the threshold does not belong. `fit`
        # replaces attributes and changes none in place. The run is not copied, as pickle does not keep it.
        return copy.copy(fitted)
    return draws_of(fitted, owner="calibrate")


def predictions_of(source: Draws | FittedEstimator, x: PyTree) -> Predictions:
    """Predictions of an estimator or of draws, for numbers of classes."""
    made = predict(None, source, x) if isinstance(source, Draws) else source.predictions(x)
    made.classes_ = None
    return made


def probabilities(predictions: Predictions) -> np.ndarray:
    """Class probabilities averaged over draws, in double precision, (N, classes)."""
    probs = np.asarray(average(predictions), np.float64)
    return probs / probs.sum(1, keepdims=True)


def _observed(owner: str, source: Draws | FittedEstimator, x: PyTree, y: ArrayLike) -> np.ndarray:
    """Targets as the model observes them, from those with numbers of classes."""
    model = source.model if isinstance(source, Draws) else None
    return as_observed(owner, source, model, x, y, None)


def _inputs(source: Draws | FittedEstimator, x: PyTree) -> Any:
    """Inputs as arrays, in the form that the model takes."""
    if isinstance(source, Draws):
        return as_arrays(source.model, (x,), {})[0][0]
    refuse_text_columns("calibrate", "x_cal", x, convertible=True)
    return np.asarray(x, np.float64)


def class_scores(predictions: Predictions, inputs: PyTree, penalty: float = 0.0) -> np.ndarray:
    """The score of each class, (N, classes), at inputs that decide the uniform numbers of their rows."""
    return set_scores(probabilities(predictions), uniforms(inputs), penalty)


def uniforms(x: PyTree) -> np.ndarray:
    """A number between 0 and 1 a row, by a hash of its inputs: the same row gets the same set anywhere."""
    # A score that depends on the inputs alone, and not on a generator, is exchangeable when rows are.
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x) if np.ndim(leaf)]
    hashes = hashes_of(leaves, [np.dtype(np.float64)] * len(leaves), 6)
    return (np.array([*map(int.from_bytes, hashes)], np.float64) + 0.5) / 2.0**48


def nominal_sets(source: Draws | FittedEstimator, x: PyTree, coverage: float) -> np.ndarray:
    """Sets that hold `coverage` of the model's own probability, (N, classes)."""
    check_share("predict_set", "coverage", coverage)
    return class_scores(predictions_of(source, x), _inputs(source, x)) <= coverage


def _scores(predictions: Predictions, y: np.ndarray, method: str, coverage: float) -> np.ndarray:
    """Scores of regression, (N,)."""
    if method == "cqr":
        low, high = predictions.quantiles(((1 - coverage) / 2, (1 + coverage) / 2))
        return interval_scores(y, low, high)
    low, high = predictions.quantiles((TAIL, 1 - TAIL))
    width = _width(predictions, low, high)
    cdf = mean_over_draws(predictions.cdf(y))
    before = mean_over_draws(predictions.cdf(y - 1)) if predictions.discrete else cdf
    return cdf_scores(np.maximum(0.5 - cdf, before - 0.5), y, low, high, width)


def _width(predictions: Predictions, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The unit of distances beyond an interval: its width, of counts at least a step."""
    width = np.maximum(high - low, 1) if predictions.discrete else high - low
    if not (width > 0).all():
        raise ValueError(
            f"calibrate: the predictions of {np.count_nonzero(~(width > 0))} rows are single numbers without "
            'any spread, which have no distribution to calibrate. Use `method="cqr"`, whose intervals reach '
            "equally far at all rows."
        )
    return width


def _measured(inside: np.ndarray, size: np.ndarray) -> MeasuredCoverage:
    inside, size = inside.astype(np.float64), size.astype(np.float64)
    return MeasuredCoverage(
        float(inside.mean()), share_error(inside), float(size.mean()), standard_error(size)
    )
