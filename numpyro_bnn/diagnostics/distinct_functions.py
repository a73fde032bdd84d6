"""Variance between and within chains, and the number of distinct functions among their draws.

Weights of a network do not mix: chains stay in modes. The measures here show what that means for predictions:
their variance between and within modes, and the effective number of distinct functions. Arrays have axes
`(chain, draw, input, ...)`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn.diagnostics.convergence.blocks import checked, powers_of
from numpyro_bnn.posterior.predictive_draws import Predictions

# Draws of all chains together and inputs that functions are compared by, taken evenly.
_MOST_DRAWS, _MOST_INPUTS = 512, 200


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


class DistinctFunctions(NamedTuple):
    """Effective numbers of distinct functions, `total = within * between`.

    - **total** - among all draws, from 1 to their number.
    - **within** - inside one chain (geometric mean over chains).
    - **between** - distinct chains: 1 when all hold the same functions, the number of chains
      when no two share any.
    """

    total: float
    within: float
    between: float


def _evenly(size: int, limit: int) -> np.ndarray:
    return np.unique(np.linspace(0, size - 1, min(size, limit)).round().astype(int))


def _affinity(values: Mapping[str, Any]) -> np.ndarray:
    """Mean affinity of draws as distributions of a label, `(chain, draw, chain, draw)`."""
    key = "probs" if "probs" in values else "mean"
    first = checked("diagnostics.distinct_functions", values[key])
    draws = _evenly(first.shape[1], max(1, _MOST_DRAWS // len(first)))
    inputs = _evenly(first.shape[2], _MOST_INPUTS)
    chains = len(first)

    def chosen(name: str) -> np.ndarray:
        array = checked("diagnostics.distinct_functions", values[name])
        return array[:, draws][:, :, inputs].astype(np.float64).reshape(chains * draws.size, -1)

    if key == "probs":
        root = np.sqrt(np.maximum(chosen("probs"), 0.0))
        affinity = root @ root.T / inputs.size
    else:
        mean, scale = chosen("mean").T, chosen("scale").T
        affinity = np.zeros((mean.shape[1], mean.shape[1]))
        for row in np.stack([mean, scale], axis=1):
            # The overlap does not depend on the unit; squares of very large or small numbers are lost.
            m, s = np.ldexp(row, -powers_of(row, (0, 1)))
            total = np.square(s[:, None]) + np.square(s)
            # Distributions without spread (whether an event is seen) are the same value or not.
            spread = np.where(total > 0, total, 1.0)
            gap = np.square(m[:, None] - m)
            overlap = np.sqrt(2.0 * s[:, None] * s / spread) * np.exp(-0.25 * gap / spread)
            affinity += np.where(total > 0, overlap, gap == 0)
        affinity /= len(mean)
    return affinity.reshape(chains, draws.size, chains, draws.size)


def _entropy_of(affinity: np.ndarray) -> float:
    """Entropy of the eigenvalues of a similarity matrix with a diagonal of ones."""
    eigenvalues = np.linalg.eigvalsh(affinity / np.trace(affinity))
    eigenvalues = eigenvalues[eigenvalues > 1e-15]
    return float(-(eigenvalues * np.log(eigenvalues)).sum())


def distinct_functions(predictions: Predictions | Mapping[str, ArrayLike]) -> DistinctFunctions:
    """The effective number of distinct functions among all draws, inside a chain, and between chains.

    Two draws count as one function if labels generated by them could not tell them apart. Their similarity is
    the Bhattacharyya coefficient of `p(y | x, theta_s)` and `p(y | x, theta_t)`, `sum_y sqrt(p_s p_t)`,
    averaged over inputs. For Gaussian noise it is `sqrt(2 s t / (s^2 + t^2)) exp(-(m_s - m_t)^2 / (4 (s^2 +
    t^2)))`. It is an inner product of unit vectors, so the matrix K of similarities has ones on its diagonal
    and eigenvalues >= 0, and the exponential of the entropy of the eigenvalues of `K / S` counts dissimilar
    draws: the Vendi score of Friedman & Dieng 2023 (arXiv:2210.02410).

    `within` is this number of each chain by itself, as a geometric mean, and `between = total / within`, the
    partition of Jost 2007. The mixture of C states has at most `log C` more entropy than they
    have on average, and never less (Holevo 1973): `between` lies between 1 and C. Between
    independent chains of one posterior it exceeds 1 by the sampling of finitely many draws.

    :param predictions: predictions, or a mapping with `"probs"` `(chain, draw, input, class)`
        or with `"mean"` and `"scale"` `(chain, draw, input, ...)`.
    :return: total, within and between.
    :raises KeyError: without those entries.
    """
    values: Any = getattr(predictions, "values", None)
    values = values if isinstance(values, Mapping) else predictions
    affinity = _affinity(values)
    chains, draws = affinity.shape[:2]
    total = _entropy_of(affinity.reshape(chains * draws, -1))
    within = float(np.mean([_entropy_of(affinity[c, :, c]) for c in range(chains)]))
    return DistinctFunctions(*np.exp([total, within, total - within]).tolist())
