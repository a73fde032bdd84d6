"""Scores of all results on CIFAR-10, and how far the methods are from each other."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.cifar10.setup import Result
from numpyro_bnn import scores

# Probabilities below the smallest that float16 holds were stored as 0.
_SMALLEST = float(np.finfo(np.float16).smallest_subnormal)
HEAD = (
    *("method", "epochs", "draws", "seconds", "accuracy", "accuracy_exact", "log_score"),
    *("calibration_error", "median_rhat", "rhat_below_1.1"),
)


class Judgement(NamedTuple):
    """What the results say.

    - **table** - a row a method, see :data:`HEAD`; `accuracy_exact` leaves out the test images
      that are known as JPEG copies only, and the calibration error has 15 bins
    - **names** - of the methods
    - **agreement** - share of test images to which two methods give the same class
    - **total_variation** - mean distance of their probabilities
    """

    table: list[list]
    names: list[str]
    agreement: np.ndarray
    total_variation: np.ndarray

    def __str__(self) -> str:
        lines = ["  ".join(f"{cell:>{_width(k)}}" for k, cell in enumerate(HEAD))]
        for row in self.table:
            lines.append("  ".join(f"{_text(cell):>{_width(k)}}" for k, cell in enumerate(row)))
        for title, matrix in (
            ("agreement", self.agreement),
            ("total variation", self.total_variation),
        ):
            lines += ["", title]
            for name, row in zip(self.names, matrix):
                lines.append(f"{name:>{_width(0)}}  " + "  ".join(f"{v:.3f}" for v in row))
        return "\n".join(lines)

    def save(self, folder: Path) -> None:
        """Write ``judge.csv`` and ``pairs.csv``."""
        with (folder / "judge.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEAD, *self.table])
        pairs = [
            (a, b, round(self.agreement[i, j], 4), round(self.total_variation[i, j], 4))
            for i, a in enumerate(self.names)
            for j, b in enumerate(self.names)
            if i < j
        ]
        with (folder / "pairs.csv").open("w", newline="") as file:
            head = ("method", "other", "agreement", "total_variation")
            csv.writer(file).writerows([head, *pairs])


def _width(column: int) -> int:
    return 32 if column == 0 else max(9, len(HEAD[column]))


def _text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def probabilities(stored: np.ndarray) -> np.ndarray:
    """Probabilities that sum to one and are never 0, from what is stored in half precision."""
    probs = np.maximum(stored.astype(np.float64), _SMALLEST)
    return probs / probs.sum(-1, keepdims=True)


def judge(folder: Path, y: np.ndarray, exact: np.ndarray) -> Judgement:
    """Judge every result in a folder.

    :param folder: of files that :meth:`benchmarks.cifar10.setup.Result.save` wrote.
    :param y: test labels.
    :param exact: test images whose pixels are the original ones.
    :raises FileNotFoundError: if there is no result.
    :raises ValueError: for a result of other test images.
    """
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise FileNotFoundError(
            f"cifar10: {folder} holds no results (<method>.npz). Run methods first: "
            "`python -m benchmarks.cifar10 run sgd`."
        )
    found = {path.stem: Result.load(path) for path in paths}
    for name, result in found.items():
        if len(result.probs) != len(y):
            raise ValueError(
                f"cifar10: {name} predicts {len(result.probs)} test images, there are {len(y)}. "
                "Judge results at toy size with --toy, and keep them in a folder of their own."
            )
    probs = {name: probabilities(result.probs) for name, result in found.items()}
    table = [_row(name, found[name], p, y, exact) for name, p in probs.items()]
    both = list(probs.values())
    return Judgement(
        table,
        list(found),
        np.array([[scores.agreement(p, q) for q in both] for p in both]),
        np.array([[scores.total_variation(p, q) for q in both] for p in both]),
    )


def _row(name: str, result: Result, probs: np.ndarray, y: np.ndarray, exact: np.ndarray) -> list:
    right = scores.accuracy(probs, y, pointwise=True)
    log_prob = np.log(probs[np.arange(len(y)), y])
    # A probability that never moves, such as one that rounds to 0, has no R-hat.
    rhat = result.rhat[np.isfinite(result.rhat)]
    return [
        name,
        round(result.epochs, 2),
        result.num_draws,
        round(result.seconds),
        round(float(np.mean(right)), 4),
        round(float(np.mean(right[exact])), 4),
        round(scores.lppd(log_prob[None]), 4),
        round(scores.expected_calibration_error(probs, y), 4),
        round(float(np.median(rhat)), 3) if rhat.size else math.nan,
        round(float((rhat < 1.1).mean()), 3) if rhat.size else math.nan,
    ]
