"""R-hat and ESS of all scalars of one kind: weights, predictions, precisions or the log joint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numpyro_bnn.diagnostics.compare_runs import label_of
from numpyro_bnn.diagnostics.convergence.rhat import summarize


class Worst(NamedTuple):
    """One of the scalars of largest R-hat: `site` with its index, its R-hat and its bulk ESS."""

    site: str
    rhat: float
    ess: float


def _summary(function: Any, values: np.ndarray) -> float:
    """`function` of the values that are not NaN; NaN when there are none."""
    values = values[~np.isnan(values)]
    return float(function(values)) if values.size else float("nan")


@dataclass(frozen=True)
class Numbers:
    """R-hat and ESS of a set of scalars, and their summaries, which leave out constant and bad scalars."""

    name: str
    rhat: np.ndarray
    ess: np.ndarray
    ess_tail: np.ndarray

    @property
    def num_scalars(self) -> int:
        """Scalars, constant and bad ones included."""
        return self.rhat.size

    @property
    def num_constant(self) -> int:
        """Scalars that have one value in all chains and draws."""
        return int((np.isnan(self.rhat) & ~np.isnan(self.ess)).sum())

    @property
    def num_bad(self) -> int:
        """Scalars with NaN or infinities, or too few draws for an ESS."""
        return int(np.isnan(self.ess).sum())

    @property
    def max_rhat(self) -> float:
        """Largest R-hat."""
        return _summary(np.max, self.rhat)

    @property
    def median_rhat(self) -> float:
        """Median R-hat."""
        return _summary(np.median, self.rhat)

    @property
    def min_ess(self) -> float:
        """Smallest bulk ESS, all chains together."""
        return _summary(np.min, self._moving(self.ess))

    @property
    def median_ess(self) -> float:
        """Median bulk ESS."""
        return _summary(np.median, self._moving(self.ess))

    @property
    def min_tail_ess(self) -> float:
        """Smallest tail ESS."""
        return _summary(np.min, self._moving(self.ess_tail))

    def _moving(self, values: np.ndarray) -> np.ndarray:
        """Values of the scalars that have an R-hat: those that are neither constant nor bad."""
        return values[~np.isnan(self.rhat)]

    def row(self) -> tuple[float, ...]:
        """A row of the report's table: numbers of scalars, R-hat, bulk ESS and tail ESS."""
        return (
            self.num_scalars,
            self.max_rhat,
            self.median_rhat,
            self.min_ess,
            self.median_ess,
            self.min_tail_ess,
        )


@dataclass(frozen=True)
class RhatTable(Numbers):
    """R-hat and ESS of all scalars of one kind: weights, predictions, precisions or the log joint.

    :param groups: R-hat and ESS of each site, shaped as the site.
    """

    groups: tuple[Numbers, ...] = ()

    @classmethod
    def of(cls, name: str, groups: list[Numbers]) -> "RhatTable":
        """All scalars of one kind, joined from R-hat and ESS of each site."""

        def joined(values: list[np.ndarray]) -> np.ndarray:
            return np.concatenate([v.reshape(-1) for v in values]) if values else np.empty(0)

        return cls(
            name,
            joined([g.rhat for g in groups]),
            joined([g.ess for g in groups]),
            joined([g.ess_tail for g in groups]),
            tuple(groups),
        )

    @classmethod
    def from_draws(cls, name: str, arrays: Mapping[str, np.ndarray]) -> "RhatTable":
        """Compute R-hat and ESS of all scalars of one kind.

        :param name: the kind, such as `"predictions"`.
        :param arrays: draws `(chain, draw, ...)` by site.
        """
        return cls.of(name, [Numbers(site, *summarize(array)) for site, array in arrays.items()])

    def __bool__(self) -> bool:
        return bool(self.groups)

    def within(self, rhat_limit: float, ess_limit: float) -> bool:
        """Whether every scalar is within both limits; False if all are constant."""
        return bool(self.max_rhat <= rhat_limit and self.min_ess >= ess_limit)

    def worst(self, num: int = 5) -> list[Worst]:
        """The scalars of largest R-hat.

        :param num: how many.
        :return: site with index, R-hat and bulk ESS, the worst first.
        """
        # NaN (constant or bad) sorts last.
        order = np.argsort(-np.where(np.isnan(self.rhat), -1.0, self.rhat), kind="stable")
        starts = np.cumsum([0, *(g.num_scalars for g in self.groups)])
        found = []
        for flat in order[:num]:
            k = int(np.searchsorted(starts, flat, side="right")) - 1
            group = self.groups[k]
            index = np.unravel_index(int(flat - starts[k]), group.rhat.shape)
            site = label_of(group.name, index)
            found.append(Worst(site, float(self.rhat[flat]), float(self.ess[flat])))
        return found
