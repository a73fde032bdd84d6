"""The prior scale at which full-batch HMC is best calibrated on images that no score of `against_hmc` is of.

The 196-32-10 network on 1000 images with weights N(0, s²), by s: `common_step_hmc`, chains from trained
networks. Held-out images are training images of MNIST that the network does not see. The calibration error
(expected, 15 bins) has a standard error over these images, by a bootstrap; "too sure" is the mean probability
of the predicted class minus the share that is right, below zero where probabilities are too flat.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import convergence
from benchmarks._shared.study import Row
from benchmarks.mixing.against_hmc_methods import Size
from benchmarks.priors import tempered_network as network
from benchmarks.priors.average_scores import scored
from benchmarks.priors.temperature_by_rows import full_batch_run

KEYS = ("scale",)
# Test images whose class probabilities are judged for convergence; resampled sets of a bootstrap.
JUDGED, RESAMPLED = 500, 200
# Steps of Adam that make a network to begin with.
TRAINING = 1000


@cache
def held_out(folder: Path | None, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Images of the training set of MNIST that no network sees, and their classes."""
    rows, held, _ = size.images
    # The first images of a larger subset are those of the smaller one.
    x, y, *_ = network.images(folder, rows + held, 1, 0)
    return x[rows:], y[rows:]


def cell(scale: float, *, size: Size, folder: Path | None) -> Iterator[Row]:
    """Scores of HMC under one prior scale, on held-out and on test images."""
    rows, _, test = size.images
    x, y, x_test, y_test = network.images(folder, rows, test, 0)
    x_held, y_held = held_out(folder, size)
    # Every row counts as one, at a temperature of one.
    one = np.float32(1)
    starts = network.trained(x, y, one, scale, size.chains, TRAINING, jax.random.key(0))
    begin = network.start(starts, scale, 1.0, False)
    args = x, y, np.float32(scale), one, one
    run = full_batch_run(size.grid, False)(jax.random.key(1), begin, *args)
    u = {name: np.swapaxes(np.asarray(v), 0, 1) for name, v in run.draws.items()}
    w = network.weights(u, scale)
    row: Row = {"scale": scale, "leapfrogs": float(run.leapfrogs), "accepted": float(run.accept)}
    for where, inputs, classes in (("held out", x_held, y_held), ("test", x_test, y_test)):
        probs = network.probabilities(w, inputs)
        row |= {f"{name}, {where}": v for name, v in calibration(probs, classes).items()}
    yield row | convergence(probs[:, :, :JUDGED])


def calibration(probs: np.ndarray, y: np.ndarray) -> Row:
    """Scores of the average over draws of class probabilities (chain, draw, row, class)."""
    found = scored(probs, y)
    mean = probs.astype(np.float64).mean((0, 1))
    rng = np.random.default_rng(0)
    again = [
        float(bnn.scores.expected_calibration_error(mean[None, some], y[some]))
        for some in (rng.integers(len(y), size=len(y)) for _ in range(RESAMPLED))
    ]
    return {
        "calibration": found.calibration,
        "its error": float(np.std(again, ddof=1)),
        "too sure": float(mean.max(-1).mean() - (1 - found.error)),
        "log score": float(found.rows.mean()),
        "over rows": bnn.scores.standard_error(found.rows),
        "over chains": found.monte_carlo,
        "wrong": found.error,
    }


def chosen(rows: Sequence[Row]) -> float:
    """The smallest scale whose calibration error, held out, is within one standard error of the least."""
    least = min(rows, key=lambda row: row["calibration, held out"])
    limit = least["calibration, held out"] + least["its error, held out"]
    return min(row["scale"] for row in rows if row["calibration, held out"] <= limit)


TABLE = {
    "scale": "prior scale",
    "calibration, held out": "calibration error, held out",
    "its error, held out": "± s.e.",
    "too sure, held out": "too sure, held out",
    "log score, held out": "log score, held out",
    "calibration, test": "calibration error, test",
    "its error, test": "± s.e. (test)",
    "log score, test": "log score, test",
    "over rows, test": "± over images",
    "over chains, test": "± over chains",
    "leapfrogs": "gradients a trajectory",
    "median R-hat": "median R-hat",
    "worst R-hat": "worst R-hat",
    "least ESS": "least ESS",
    "converged": "predictions converged",
}


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Which scale is taken, in a sentence."""
    scale = chosen(rows)
    row = next(r for r in rows if r["scale"] == scale)
    yield (
        f"Prior scale {scale:g}: calibration error {row['calibration, held out']:.3f} ± "
        f"{row['its error, held out']:.3f} on held-out images, {row['calibration, test']:.3f} on test "
        f"images; too sure by {row['too sure, held out']:+.3f}."
    )
