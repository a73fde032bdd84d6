"""Log scores of averages over few draws, and of what they are draws of: a jackknife over chains."""

import math
from typing import NamedTuple

import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.sampled_runs import paired
from benchmarks._shared.study import Row


class Scored(NamedTuple):
    """Log scores of an average over draws."""

    rows: np.ndarray  # of each test row, nats
    without: np.ndarray  # of each test row by the average without each chain, (chain, row)
    error: float  # share of wrong classes
    calibration: float  # expected calibration error

    @property
    def monte_carlo(self) -> float:
        """Jackknife standard error of the mean log score over chains."""
        return jackknife_error(self.without.mean(1))

    @property
    def of_the_posterior(self) -> np.ndarray:
        """Log score of each test row, nats, by an average over draws without end.

        An average over few draws scores less, the more they differ: by a relative variance over twice their
        number. The jackknife over chains takes this off. It is not meant for an ensemble.
        """
        chains = len(self.without)
        return chains * self.rows - (chains - 1) * self.without.mean(0)


def scored(probs: np.ndarray, y: np.ndarray) -> Scored:
    """Scores of class probabilities (chain, draw, row, class)."""
    by_chain = probs.astype(np.float64).mean(1)
    mean = by_chain.mean(0)
    every = np.arange(len(y))
    right = np.log(np.maximum(by_chain[:, every, y], 1e-300))
    return Scored(
        np.log(np.maximum(mean[every, y], 1e-300)),
        without_each(right),
        1 - float(bnn.scores.accuracy(mean[None], y)),
        float(bnn.scores.expected_calibration_error(mean[None], y)),
    )


def against(one: Scored, other: Scored, name: str) -> Row:
    """Log score of a posterior over that of another, its error over test rows, and that over chains."""
    return _gap(one.of_the_posterior, other.of_the_posterior, one, other, name)


def against_ensemble(one: Scored, other: Scored, name: str = "over ensemble") -> Row:
    """Log score of a posterior over that of an ensemble, which is no better than its few networks."""
    return _gap(one.of_the_posterior, other.rows, one, other, name)


def _gap(rows: np.ndarray, base: np.ndarray, one: Scored, other: Scored, name: str) -> Row:
    gap = paired(rows, base)
    chains = math.hypot(one.monte_carlo, other.monte_carlo)
    return {name: gap["difference"], f"{name} rows": gap["difference_se"], f"{name} chains": chains}
