"""Checks the arguments of all scores: arrays with axes of draws, targets, labels.

Every score takes, as its first argument, either an array whose leading axes are draws (any
number of them: none, `(draw,)`, `(chain, draw)`) or an object of predictions. Such an object
has `values`, a mapping with `"probs"` `(chain, draw, n, class)` or with `"mean"` and `"scale"`
`(chain, draw, n)`, and a method `log_prob(y) -> (chain, draw, n)`. It is recognised by these two and not by
its class, so that this file need not import that class.

The checks are here because the mistakes they catch give numbers that look right: a target of
shape `(n, 1)` broadcasts against `(n,)` to an n by n table, logits passed as probabilities
still have an argmax, labels passed as floats still compare equal.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn.data.arguments import as_array, check_labels, targets_of
from numpyro_bnn.data.units import known_targets, rows_with_targets, with_targets

# Rounding to bfloat16 moves a sum of probabilities by up to 2^-9; logits are off by far more.
SUM_TOLERANCE = 4e-3
# Targets a row, at least, that stand for a distribution without a closed form: the score of one row errs by
# about a sixtieth of its spread, the mean over rows by less.
SAMPLES = 4000


class PredictionsLike(Protocol):
    """Predictions of each draw at each input, such as :func:`numpyro_bnn.predict` returns them."""

    @property
    def values(self) -> Mapping[str, np.ndarray]:
        """Arrays (chain, draw, row, …) by name: ``"probs"``, or ``"mean"`` and ``"scale"``."""

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density of targets `y` under each draw, (chain, draw, row), in nats."""


# What a score takes as its first argument.
Scored: TypeAlias = ArrayLike | PredictionsLike


def is_predictions(x: object) -> TypeGuard[PredictionsLike]:
    """Whether `x` is an object of predictions; a dict is not (its `values` is a method)."""
    return isinstance(getattr(x, "values", None), Mapping)


def _warn_of_suspects(predictions: PredictionsLike) -> None:
    """Warn of suspect chains among the predictions, once for each object of predictions."""
    if getattr(predictions, "suspect", None) and hasattr(predictions, "warn_of_suspects"):
        predictions.warn_of_suspects("scores")


def values_of(name: str, predictions: Scored, key: str) -> np.ndarray:
    """The array called `key` of an object of predictions, or the array that was given."""
    if is_predictions(predictions):
        _warn_of_suspects(predictions)
        if key not in predictions.values:
            raise ValueError(
                f"scores.{name}: needs predictions with {key!r}, got predictions with "
                f"{sorted(predictions.values)}. Use a score for that kind of likelihood, or "
                f"pass an array in place of the predictions."
            )
        if key in ("mean", "scale"):
            _refuse_without_mean(name, predictions)
        predictions = predictions.values[key]
    array = np.asarray(predictions)
    if array.dtype.kind not in "fiub":
        # bfloat16 and similar types have a kind of their own, but can be converted.
        try:
            array = array.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"scores.{name}: expected numbers, got an array of dtype {array.dtype}. "
                f"Pass floats, or what `bnn.predict(None, run, x)` returns for a run or a fit."
            ) from error
    return array


def _no_nan(name: str, what: str, array: np.ndarray, allow: float | None = None) -> None:
    """Refuse NaN and infinities, except for the infinity `allow`."""
    # Minimum and maximum are NaN if any value is, and need no array of flags as large as the draws.
    for extreme in (array.min(), array.max()):
        if not np.isfinite(extreme) and extreme != allow:
            bad = int(np.sum(~np.isfinite(array) & (array != (np.nan if allow is None else allow))))
            raise ValueError(
                f"scores.{name}: {what} must be finite, got {bad} of {array.size} values that are NaN or "
                "infinite. Look for a chain that exploded (diagnostics name it) and leave it out."
            )


def probabilities(name: str, predictions: Scored) -> np.ndarray:
    """Checked class probabilities with all draw axes made one."""
    probs = values_of(name, predictions, "probs")
    if is_predictions(predictions) and probs.ndim > 4:
        raise ValueError(
            f"scores.{name}: expected predictions of one label a row, got probabilities of shape "
            f"{probs.shape}, (chain, draw, row, label, class). Take the label with number k by itself, "
            "`predictions.probs[..., k, :]`, or score all together by `scores.lppd`."
        )
    if probs.ndim < 2 or probs.shape[-1] < 2 or probs.size == 0:
        raise ValueError(
            f"scores.{name}: expected probabilities of shape (..., n, classes) with two or more "
            f"classes, got shape {probs.shape}. For a binary model whose p is the probability "
            f"of class 1 pass np.stack([1 - p, p], axis=-1)."
        )
    _no_nan(name, "probabilities", probs)
    lowest = float(probs.min())
    if lowest < -SUM_TOLERANCE:
        raise ValueError(
            f"scores.{name}: probabilities must not be negative, got {lowest:.6g}. If these are "
            f"logits, apply a softmax over the last axis first."
        )
    total = probs.sum(axis=-1, dtype=np.float64)
    worst = float(total.flat[np.argmax(np.abs(total - 1.0))])
    if abs(worst - 1.0) > SUM_TOLERANCE:
        raise ValueError(
            f"scores.{name}: probabilities must sum to one over the last axis, got a sum of "
            f"{worst:.6g} for shape {probs.shape}. If these are logits, apply a softmax; for a "
            f"binary model pass np.stack([1 - p, p], axis=-1)."
        )
    return probs.reshape(-1, *probs.shape[-2:])


def mean_probabilities(name: str, predictions: Scored) -> np.ndarray:
    """Class probabilities averaged over all draws, `(n, class)`: the model average."""
    return probabilities(name, predictions).mean(axis=0, dtype=np.float64)


def labels(name: str, y: ArrayLike, num_rows: int, num_classes: int) -> np.ndarray:
    """Checked class labels."""
    y = np.asarray(as_array(f"scores.{name}", "y", y))
    check_labels(f"scores.{name}: y", y, num_classes)
    if len(y) != num_rows:
        raise ValueError(
            f"scores.{name}: y has {len(y)} labels for predictions of {num_rows} rows. Give one for each."
        )
    return y.astype(np.int64)


def labelled(
    name: str, predictions: Scored, y: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Averaged probabilities and labels of the rows that have a label, and which rows these are, (row,)."""
    p = mean_probabilities(name, predictions)
    y, known = targets_of(predictions, y, f"scores.{name}"), np.zeros(len(p), bool)
    rows, y = with_targets(f"scores.{name}", y) if y.shape == known.shape else (slice(None), y)
    known[rows] = True
    return p[rows], labels(name, y, *p[rows].shape), known


def target(name: str, y: ArrayLike) -> np.ndarray:
    """A regression target as a double precision array `(n, ...)`, NaN where it is missing; else finite."""
    array = np.asarray(as_array(f"scores.{name}", "y", y), np.float64)
    if (known := known_targets(array)) is not None:
        rows_with_targets(f"scores.{name}", known)
    _no_nan(name, "the target y", array if known is None else array[known])
    return array


def mean_of_known(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Mean over the last axis of the values whose target is known; NaN where none is."""
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(-1) / known.sum(-1)


def mean_of_targets(values: np.ndarray, y: np.ndarray, pointwise: bool) -> Any:
    """Scores `(..., *y.shape)` averaged over the known targets of each row, and over the rows with any."""
    known = ~np.isnan(y).reshape(len(y), -1)
    rows = mean_of_known(values.reshape(*values.shape[: -y.ndim], *known.shape), known)
    mean = rows if pointwise else mean_of_known(rows, known.any(1))
    return mean if np.ndim(mean) else float(mean)


def draws_like(name: str, what: str, draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Flatten the draw axes of `draws`, whose last axes must be exactly those of `y`."""
    if draws.ndim < y.ndim or draws.shape[draws.ndim - y.ndim :] != y.shape or draws.size == 0:
        advice = "Give both the same rows and outputs."
        if y.ndim > 1 and y.shape[-1] == 1 and draws.shape[-1:] == y.shape[:1]:
            advice = "Pass y[:, 0]."
        elif draws.ndim > 1 and draws.shape[-1] == 1 and draws.shape[-2] == y.shape[0]:
            advice = f"Drop the last axis of the {what}."
        raise ValueError(
            f"scores.{name}: the {what} must end in the shape of y, {y.shape}, got shape {draws.shape}; "
            f"nothing is broadcast, since (n, 1) against (n,) gives n by n. {advice}"
        )
    _no_nan(name, f"the {what}", draws)
    return draws.reshape(-1, *y.shape)


def mixture(
    name: str, predictions: Scored, y: np.ndarray, scale: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Means (or samples) and scales of a Gaussian mixture over draws."""
    if is_predictions(predictions):
        # Draws of the mean are not draws of y: without a scale they would score too narrow.
        scale = values_of(name, predictions, "scale")
        if hasattr(predictions, "targets") and not getattr(predictions, "gaussian", True):
            return draws_like(name, "samples", predictions.targets(SAMPLES), y), None
    values = values_of(name, predictions, "mean")
    if scale is None:
        return draws_like(name, "samples", values, y), None
    scale = scale_like(name, scale, values)
    return draws_like(name, "mean", values, y), draws_like(name, "scale", scale, y)


def _refuse_without_mean(name: str, predictions: PredictionsLike) -> None:
    """Refuse directions, and times that may not have been seen to end, for scores that need a number."""
    if getattr(predictions, "directions", False) and name != "pit":
        raise ValueError(
            f"scores.{name}: targets are directions, which have neither a mean nor an interval on a line. "
            "Use scores.lppd, or angles to `bnn.average(predictions).mean`, modulo 2π."
        )
    if getattr(predictions, "may_be_censored", False):
        raise ValueError(
            f"scores.{name}: targets are times that may be censored, of which only a bound is known, so that "
            "neither a distance nor a share of times can be told. Use scores.lppd, which takes both kinds."
        )


def scale_like(name: str, scale: ArrayLike, means: np.ndarray) -> np.ndarray:
    """Checked standard deviations of the shape of `means`."""
    scale = values_of(name, scale, "scale")
    fits = scale.ndim == means.ndim and all(a in (1, b) for a, b in zip(scale.shape, means.shape))
    if scale.ndim > 0 and not fits:
        raise ValueError(
            f"scores.{name}: scale must be one number or have the axes of the mean, {means.shape}, got shape "
            f"{scale.shape}. Give a scale for each draw a last axis of length 1: scale[..., None]."
        )
    if not scale.min() > 0:
        raise ValueError(
            f"scores.{name}: scale must be positive, got {scale.min():.6g}. Pass standard "
            f"deviations, not logarithms; for a point forecast use rmse."
        )
    return np.broadcast_to(scale, means.shape)


def log_density(name: str, log_prob: Scored, y: ArrayLike | None) -> np.ndarray:
    """Checked log densities with all draw axes made one; NaN for rows without any target."""
    rows: np.ndarray | slice = slice(None)
    if is_predictions(log_prob):
        y = targets_of(log_prob, y, f"scores.{name}")
        _warn_of_suspects(log_prob)
        if hasattr(log_prob, "at_rows"):
            rows, y = with_targets(f"scores.{name}", y)
            log_prob = log_prob.at_rows(rows)
            # Labels are numbers of classes now.
            log_prob.classes_ = None
        log_prob = np.asarray(log_prob.log_prob(y))
        if log_prob.ndim != 3 or log_prob.shape[-1:] != np.shape(y)[:1]:
            raise ValueError(
                f"scores.{name}: the predictions gave log densities of shape {log_prob.shape} "
                f"for a target of shape {np.shape(y)}, expected (chain, draw, row). Give y "
                f"the shape that the model's observed site has."
            )
    elif y is not None:
        raise ValueError(
            f"scores.{name}: y is for predictions, and log densities are those of targets already. Leave it "
            "out; of probabilities of classes p give `np.log(p[..., np.arange(len(y)), y])`."
        )
    array = values_of(name, log_prob, "log_prob")
    _no_nan(name, "log densities", array, allow=-np.inf)
    array = array.reshape(-1, array.shape[-1])
    if isinstance(rows, slice):
        return array
    whole = np.full((len(array), len(rows)), np.nan)
    whole[:, rows] = array
    return whole
