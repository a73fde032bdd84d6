"""Split conformal prediction: scores of calibration rows, their threshold, and temperature scaling.

A conformal score says how badly a target fits a prediction. With n calibration rows that are exchangeable
with a new row, the score of the new row is at most the k-th smallest of theirs, k = ceil((n + 1) coverage),
with probability k / (n + 1), whatever the model (Vovk, Gammerman & Shafer 2005; Lei et al. 2018). All
targets with a score up to that threshold form the predicted set. The methods differ in the score:

- distributional conformal, `|F(y) - 1/2|` (Chernozhukov, Wüthrich & Zhu 2021);
- conformalised quantile regression, `max(low - y, y - high)` (Romano, Patterson & Candès 2019);
- adaptive sets, the probability of all classes above the label (Romano, Sesia & Candès 2020, *APS*), with a
  penalty on long sets (Angelopoulos et al. 2021, *RAPS*).
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

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
    cdf: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray, width: np.ndarray
) -> np.ndarray:
    """Distance of F(y) from its middle: |F(y) - 1/2|, and beyond that in widths."""
    beyond = np.maximum(np.maximum(low - y, y - high), 0) / width
    inside = np.minimum(np.abs(cdf - 0.5), 0.5 - TAIL)
    return np.where(beyond > 0, 0.5 - TAIL + beyond, inside)


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
    powers: np.ndarray = softmax(_logs(probs) / temperature, axis=1)
    return powers


def temperature_of(probs: np.ndarray, labels: np.ndarray) -> float:
    """The temperature with the smallest log loss (Guo et al. 2017); above 1 for overconfident predictions."""
    logs, rows = _logs(probs), np.arange(len(labels))

    def log_loss(log_temperature: float) -> float:
        scaled = log_softmax(logs / np.exp(log_temperature), axis=1)
        return -float(scaled[rows, labels].mean())

    minimum = minimize_scalar(log_loss, bounds=_LOG_TEMPERATURES, method="bounded")
    return float(np.exp(minimum.x))


def _logs(probs: np.ndarray) -> np.ndarray:
    """Logarithms; a probability that was rounded to zero is the smallest that float32 holds."""
    logs: np.ndarray = np.log(np.maximum(probs, np.finfo(np.float32).tiny))
    return logs
