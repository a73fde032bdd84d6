"""The scores of a guess that ignores all inputs, and warnings that follow from them."""

import numpy as np

from numpyro_bnn import scores
from numpyro_bnn.cli.tables import Table
from numpyro_bnn.posterior.predictive_draws import Predictions, mean_over_draws

# If one class has more than this share of the rows, the error of a classifier alone says little.
_UNEQUAL = 0.7
# Scores that differ by at most this count as equal.
_ROUNDING = 1e-9


class Guess:
    """The best guess without inputs: the shares of the classes, or a normal law of the training targets."""

    def __init__(self, table: Table, train: np.ndarray) -> None:
        y = table.y[train]
        if table.task == "classification":
            # One row is added to each class, so that none has probability zero.
            counts = np.bincount(y, minlength=len(table.classes)) + 1
            self.name = "majority class"
            self.values = {"probs": counts / counts.sum()}
        else:
            self.name = "mean of the target"
            self.values = {"mean": np.mean(y), "scale": np.std(y)}

    def log_score(self, y: np.ndarray) -> np.ndarray:
        """Log density or probability of each target, (row,), nats."""
        if "probs" in self.values:
            return np.log(self.values["probs"][y])
        z = (y - self.values["mean"]) / self.values["scale"]
        return -0.5 * z**2 - np.log(self.values["scale"] * np.sqrt(2 * np.pi))

    def error(self, y: np.ndarray) -> float:
        """Share of wrong classes, or root mean squared error."""
        if "probs" in self.values:
            return float(np.mean(y != np.argmax(self.values["probs"])))
        return float(np.sqrt(np.mean((y - self.values["mean"]) ** 2)))

    def calibration(self, y: np.ndarray) -> float:
        """Expected calibration error, or coverage of the central 90 % interval."""
        if "probs" in self.values:
            probs = np.tile(self.values["probs"], (1, len(y), 1))
            return float(scores.expected_calibration_error(probs, y))
        return float(np.mean(np.abs(y - self.values["mean"]) < 1.6448536 * self.values["scale"]))


def warnings_of(guess: Guess, predictions: Predictions, y: np.ndarray, table: Table) -> list[str]:
    """Sentences that warn a reader of misleading scores; in most cases there are none.

    :param guess: the guess without inputs.
    :param predictions: those of the posterior average for the test rows.
    :param y: test targets.
    :param table: the data.
    """
    sentences = []
    difference = scores.paired_difference(
        scores.lppd(predictions, y, pointwise=True), guess.log_score(y)
    )
    if difference.difference <= 2 * difference.standard_error + _ROUNDING:
        sentences.append(
            f"The inputs help little or not at all: the log score is {difference.difference:+.3f} ± "
            f"{difference.standard_error:.3f} nats a row from that of guessing without them ({guess.name})."
        )
    if table.task != "classification":
        return sentences
    counts = np.bincount(y)
    share = float(np.max(counts) / len(y))
    error, guessed = float(1 - scores.accuracy(predictions, y)), guess.error(y)
    if error >= guessed - _ROUNDING:
        sentences.append(
            f"Always answering the majority class is wrong on {guessed:.1%} of the test rows, the "
            f"posterior average on {error:.1%}. Judge it by its probabilities (log score), not by its error."
        )
    if share > _UNEQUAL:
        name = table.classes[int(np.argmax(counts))]
        sentences.append(
            f"Classes are unequal: {share:.1%} of the test rows are {name!r}, so that an error of "
            f"{guessed:.1%} is what guessing gives. Look at the recall of each class."
        )
    return sentences


def recalls(
    predictions: Predictions, y: np.ndarray, table: Table
) -> list[tuple[str, int, float, float]]:
    """For each class its name, test rows, share of them classified correctly, and mean probability of it.

    :param predictions: class probabilities of the test rows.
    :param y: their classes.
    :param table: the data.
    """
    mean = mean_over_draws(predictions.probs)
    chosen = mean.argmax(-1)
    found = []
    for k, name in enumerate(table.classes):
        rows = y == k
        if rows.any():
            hit, probability = float(np.mean(chosen[rows] == k)), float(mean[rows, k].mean())
            found.append((name, int(rows.sum()), hit, probability))
    return found
