"""Differences between methods, means over subsets of the training rows that share their test rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Gap(NamedTuple):
    """A difference, of log scores in nats or of errors, and its standard error."""

    value: float
    error: float

    @classmethod
    def over_subsets(
        cls, found: Sequence[float], by_row: Sequence[float], by_chain: Sequence[float] = ()
    ) -> "Gap":
        """The mean of differences over subsets, which share the test rows (their errors) but no chains."""
        count = len(found)
        between = float(np.std(found, ddof=1)) / math.sqrt(count) if count > 1 else 0.0
        chains = math.sqrt(np.mean(np.square(by_chain)) / count) if len(by_chain) else 0.0
        error = math.hypot(between, float(np.mean(by_row)), chains)
        return cls(float(np.mean(found)), error)

    @property
    def is_sure(self) -> bool:
        """More than two standard errors from zero."""
        return abs(self.value) > 2 * self.error

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}".replace("-", "−")
