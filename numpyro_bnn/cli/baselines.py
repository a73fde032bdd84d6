"""The scores of a guess that ignores all inputs, and warnings that follow from them."""

import numpy as np
from scipy.stats import norm

from numpyro_bnn import scores
from numpyro_bnn._sentences import say
from numpyro_bnn.cli.tables import Table
from numpyro_bnn.posterior.predictive_draws import Predictions, mean_over_draws

# If one class has more than this share of the rows, the error of a classifier alone says little.
_UNEQUAL = 0.7
# Scores that differ by at most this count as equal.
_ROUNDING = 1e-9


def guess_name(table: Table) -> str:
    """Name of the guess without inputs in tables."""
    return "majority class" if table.task == "classification" else "mean of the target"


def guess(table: Table, train: np.ndarray, num_rows: int) -> Predictions:
    """The best guess without inputs: shares of the classes, or a normal distribution of training targets."""
    y, draw = table.y[train], (1, 1, num_rows)
    if table.task == "classification":
        # One row is added to each class, so that none has probability zero.
        counts = np.bincount(y, minlength=len(table.classes)) + 1
        probs = counts / counts.sum()
        values = {"probs": np.broadcast_to(probs, (*draw, len(probs)))}
        return Predictions(values, lambda what, y: {what: np.log(probs[y])[None, None]})
    normal = norm(0, np.std(y))
    functions = {"log_prob": normal.logpdf, "cdf": normal.cdf}
    values = {"mean": np.full(draw, np.mean(y)), "scale": np.full(draw, np.std(y))}
    evaluate = lambda what, y: {what: functions[what](y)[None, None]}  # noqa: E731
    return Predictions(values, evaluate, np.mean(y))


def warnings_of(
    guessed: Predictions, predictions: Predictions, y: np.ndarray, table: Table
) -> list[str]:
    """Sentences that warn a reader of misleading scores; usually none."""
    sentences = []
    difference = scores.paired_difference(
        scores.lppd(predictions, y, pointwise=True), scores.lppd(guessed, y, pointwise=True)
    )
    if difference.difference <= 2 * difference.standard_error + _ROUNDING:
        gap, error = difference.difference, difference.standard_error
        sentences.append(say("inputs do not help", gap=gap, error=error, guess=guess_name(table)))
    if table.task != "classification":
        return sentences
    counts = np.bincount(y)
    share = float(np.max(counts) / len(y))
    error, without = (float(1 - scores.accuracy(p, y)) for p in (predictions, guessed))
    if error >= without - _ROUNDING:
        sentences.append(say("no better than guessing", guessed=without, error=error))
    if share > _UNEQUAL:
        name = table.classes[int(np.argmax(counts))]
        sentences.append(say("unequal classes", share=share, name=name, error=without))
    return sentences


def recalls(
    predictions: Predictions, y: np.ndarray, table: Table
) -> list[tuple[str, int, float, float]]:
    """For each class: name, test rows, share of them classified correctly, mean probability of it."""
    mean = mean_over_draws(predictions.probs)
    chosen = mean.argmax(-1)
    found = []
    for k, name in enumerate(table.classes):
        rows = y == k
        if rows.any():
            hit, probability = float(np.mean(chosen[rows] == k)), float(mean[rows, k].mean())
            found.append((name, int(rows.sum()), hit, probability))
    return found
