"""How chains and runs differ: variance between chains, chains that do not move, differences beyond chance."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from numpyro_bnn.diagnostics.checked_draws import counted_once
from numpyro_bnn.diagnostics.convergence.rhat import checked, moments, powers_of

# A difference of this many Monte Carlo errors is significant: chance reaches it once in 16,000.
_ERRORS = 4.0
# A chain whose standard deviation is below this share of the others' does not move.
_STUCK = 0.01
# Constants that differ by less than this share of their sum are equal; in a run they vary by last digits.
_ROUNDING, _LAST_DIGITS = 1e-6, 2e-7
# Draws a chain without which there is no effective sample size, and so no error.
_LEAST_DRAWS = 4
_SCALARS_IN_BLOCK = 512
# Quantiles that are compared beside the mean.
_LEVELS = (0.05, 0.5, 0.95)
# Most scalars of a site by which chains are found that do not move; they are evenly spaced.
_MOST_SCALARS = 200


def stuck_chains(draws: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """Chains that do not move, or a hundred times less than the others, by finite draws (chain, draw, …)."""
    # A chain is stuck if most scalars of any one site stand still: a noise scale may move while the function
    # does not.
    still = np.zeros(len(next(iter(draws.values()))), bool)
    sds = []
    for array in draws.values():
        flat = array.reshape(*array.shape[:2], -1)
        some = flat[:, :, :: -(-flat.shape[2] // _MOST_SCALARS)]
        # A chain of one value has a standard deviation of exactly 0 about it. Units do not matter here.
        away = some - some[:, :1]
        sd = np.ldexp(away, -powers_of(away, (0, 1))).std(axis=1, dtype=np.float64)
        sds.append(sd)
        typical = np.median(sd, axis=0) if len(sd) > 2 else sd.max(axis=0)
        alive = typical > 0
        if alive.any():
            still |= (sd[:, alive] < _STUCK * typical[alive]).mean(axis=1) > 0.5
    if not any(sd.any() for sd in sds):
        still[:] = True
    return tuple(np.flatnonzero(still).tolist())


class QuantileDifference(NamedTuple):
    """A quantity in which two runs differ.

    - **site** - which scalar.
    - **quantity** - `"mean"`, or `"P(below the 5 % quantile)"`, the quantile of both runs together.
    - **first** - value of the quantity in the run that is judged.
    - **second** - its value in the other run.
    - **errors** - the difference in joint Monte Carlo errors.
    """

    site: str
    quantity: str
    first: float
    second: float
    errors: float


class SecondOpinion(NamedTuple):
    """Comparison of a run with another one.

    - **num_compared** - number of means and quantiles compared.
    - **num_parted** - number of those that differ by more than `limit` joint Monte Carlo errors.
    - **limit** - errors allowed, by Bonferroni at 1 % for all comparisons together, at least 4.
    - **worst** - up to five of these quantities, the largest difference first.
    - **too_short** - whether a run has too few draws a chain for any error; nothing is compared then.
    """

    num_compared: int
    num_parted: int
    limit: float
    worst: tuple[QuantileDifference, ...]
    too_short: bool = False

    @property
    def agrees(self) -> bool:
        """Whether nothing differs beyond Monte Carlo error."""
        return self.num_parted == 0 and not self.too_short


def limit_of_errors(count: int) -> float:
    """Largest of `count` differences by chance, in Monte Carlo errors; at least 4 (Bonferroni, 1 %)."""
    return max(_ERRORS, float(norm.isf(0.005 / max(1, count))))


def label_of(name: str, index: tuple[int | np.integer, ...]) -> str:
    """`name[i, j]`, or the name alone for a scalar."""
    return f"{name}[{', '.join(str(int(i)) for i in index)}]" if index else name


@np.errstate(divide="ignore", invalid="ignore")
def _compare_block(a: np.ndarray, b: np.ndarray) -> dict[str, tuple[np.ndarray, ...]]:
    """By quantity its values in both runs, and their difference in joint errors; `(scalar,)` each."""
    pooled = np.concatenate([a.reshape(-1, a.shape[2]), b.reshape(-1, b.shape[2])])
    low, high = pooled.min(axis=0), pooled.max(axis=0)
    size = np.abs(low) + np.abs(high)
    own = np.maximum(np.ptp(a, (0, 1)), np.ptp(b, (0, 1)))
    # Constants that differ by rounding do not differ.
    constant = (high - low < _ROUNDING * size) & (own <= _LAST_DIGITS * size)
    found = {"mean": _compare(a, b, constant)}
    # A quantile is compared by the share of each run below the pooled quantile: the error of a quantile
    # needs the density there, the error of a share only the effective sample size.
    for q, level in zip(_LEVELS, np.quantile(pooled, _LEVELS, axis=0)):
        share = f"P(below the {100 * q:.0f} % quantile)"
        found[share] = _compare(a <= level, b <= level, constant)
    return found


def _compare(a: np.ndarray, b: np.ndarray, constant: np.ndarray) -> tuple[np.ndarray, ...]:
    """Means of both runs, and their difference in joint errors, 0 for constants; `(scalar,)` each."""
    size_a, mean_a, sd_a = moments("diagnostics", a)
    size_b, mean_b, sd_b = moments("diagnostics", b)
    if a.dtype == bool:
        # A run with all draws on one side of the level has no variance: that of the pooled share is used.
        p = 0.5 * (mean_a + mean_b)
        sd_a = sd_b = np.sqrt(p * (1 - p))
    error = np.hypot(sd_a / np.sqrt(size_a), sd_b / np.sqrt(size_b))
    gap = np.abs(mean_a - mean_b)
    return mean_a, mean_b, np.where(constant | (gap == 0), 0.0, gap / error)


def compare_draws(first: Mapping[str, ArrayLike], second: Mapping[str, ArrayLike]) -> SecondOpinion:
    """Compare means and 5, 50 and 95 % quantiles of two runs in joint Monte Carlo errors.

    R-hat cannot see a region that every chain of a run misses; another sampler may find it. Each error
    comes from the run's own effective sample size.

    :param first: name to array `(chain, draw, ...)`.
    :param second: the other run, with the same names and scalars; its numbers of chains and draws may differ.
    :return: how many quantities differ, and the worst; nothing is compared for fewer than four draws a chain.
        Draws that are NaN or infinite differ.
    :raises ValueError: for other shapes beyond chains and draws.
    """
    found: list[QuantileDifference] = []
    ours, theirs = (
        counted_once({n: checked("diagnostics.compare_draws", v) for n, v in run.items()})
        for run in (first, second)
    )
    for name in first:
        a, b = ours[name], theirs[name]
        if min(a.shape[1], b.shape[1]) < _LEAST_DRAWS:
            return SecondOpinion(0, 0, limit_of_errors(0), (), too_short=True)
        scalars = a.shape[2:]
        a, b = a.reshape(*a.shape[:2], -1), b.reshape(*b.shape[:2], -1)
        for start in range(0, a.shape[2], _SCALARS_IN_BLOCK):
            block = slice(start, start + _SCALARS_IN_BLOCK)
            for quantity, values in _compare_block(a[:, :, block], b[:, :, block]).items():
                for k, numbers in enumerate(zip(*values)):
                    site = label_of(name, np.unravel_index(start + k, scalars))
                    found.append(QuantileDifference(site, quantity, *map(float, numbers)))
    limit = limit_of_errors(len(found))
    parted = sorted((p for p in found if not p.errors <= limit), key=lambda p: -p.errors)
    return SecondOpinion(len(found), len(parted), limit, tuple(parted[:5]))


class VarianceParts(NamedTuple):
    """Variance of each scalar, `total = within + between` exactly.

    - **within** - mean variance inside a chain.
    - **between** - variance of the chains' means; it includes their Monte Carlo error, about
      `within / ESS` of a chain, so it is above zero for chains that agree.
    - **share** - `between / (within + between)`, NaN for constants.
    """

    within: np.ndarray
    between: np.ndarray
    share: np.ndarray


def variance_parts(x: ArrayLike) -> VarianceParts:
    """Split the variance over all draws into parts within and between chains.

    :param x: draws `(chain, draw, ...)`.
    :return: arrays of shape `...`, in squared units of `x`.
    :raises ValueError: without axes of chains and draws.

    >>> parts = variance_parts([[0.0, 2.0], [4.0, 6.0]])
    >>> float(parts.within), float(parts.between)
    (1.0, 4.0)
    """
    x = checked("diagnostics.variance_parts", x)
    within = x.var(axis=1, dtype=np.float64).mean(axis=0)
    between = x.mean(axis=1, dtype=np.float64).var(axis=0)
    with np.errstate(invalid="ignore"):
        return VarianceParts(within, between, between / (within + between))
