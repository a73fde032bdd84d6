"""The variance between and within chains: weights of a network do not mix, and chains stay in modes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn.diagnostics.convergence.blocks import checked


class VarianceParts(NamedTuple):
    """Variance of each scalar, `total = within + between` exactly.

    - **within** - mean variance inside a group.
    - **between** - variance of the groups' means; it includes their Monte Carlo error, about
      `within / ESS` of a group, so it is above zero for chains that agree.
    - **share** - `between / (within + between)`, NaN for constants.
    """

    within: np.ndarray
    between: np.ndarray
    share: np.ndarray


def variance_parts(x: ArrayLike, groups: ArrayLike | None = None) -> VarianceParts:
    """Split the variance over all draws into parts within and between groups of chains.

    Total variance for draws of equal weights; the weight of a group is its number of chains.

    :param x: draws `(chain, draw, ...)`.
    :param groups: a label for each chain; default: each chain its own group (mode).
    :return: arrays of shape `...`, in squared units of `x`.
    :raises ValueError: without axes of chains and draws.

    >>> parts = variance_parts([[0.0, 2.0], [4.0, 6.0]])
    >>> float(parts.within), float(parts.between)
    (1.0, 4.0)
    """
    x = checked("diagnostics.variance_parts", x)
    labels = np.arange(len(x)) if groups is None else np.asarray(groups)
    means = x.mean(axis=1, dtype=np.float64)
    variances = x.var(axis=1, dtype=np.float64)
    total_mean = means.mean(axis=0)
    between = np.zeros(x.shape[2:])
    within = variances.mean(axis=0)
    for label in np.unique(labels):
        members = labels == label
        centre = means[members].mean(axis=0)
        # Differences between chains of one group are part of the variance within it.
        within += members.mean() * means[members].var(axis=0)
        between += members.mean() * np.square(centre - total_mean)
    with np.errstate(invalid="ignore"):
        return VarianceParts(within, between, between / (within + between))
