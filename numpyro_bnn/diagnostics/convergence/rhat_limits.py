"""The limit that R-hat of stationary chains stays below; it depends on the number of scalars.

R-hat of chains that agree is above 1 because chains are finite. With m half-chains and S effective
draws of all, `R-hat**2 - 1` of one scalar is about `(m/S) chi2 / (m - 1)` with m - 1 degrees of
freedom; the worst of K scalars stays below the quantile that belongs to K (Bonferroni). A fixed
limit of 1.01 rejects such chains: with 4500 scalars it takes 2080 effective draws to pass.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2, f

from numpyro_bnn._checks import check_positive


def _checked(
    owner: str, num_scalars: Any, groups: str, num_groups: Any, ess: Any, alpha: Any
) -> Any:
    check_positive(owner, num_scalars=num_scalars, alpha=alpha)
    size = np.asarray(ess, np.float64)
    if num_groups < 1 or not (size > 0).all() or alpha >= 1:
        raise ValueError(
            f"{owner}: expected {groups} of at least 1, positive effective sizes and alpha below 1, "
            f"got {groups}={num_groups}, ess={ess} and alpha={alpha}."
        )
    return size


def rhat_limit(
    num_scalars: int, num_chains: int, ess: ArrayLike, *, alpha: float = 0.05
) -> np.ndarray:
    """The limit that the largest R-hat of stationary chains exceeds with probability at most `alpha`.

    `sqrt(1 + (m/S) q / (m - 1))`, q the chi-squared quantile at `1 - alpha / 2K` with m - 1
    degrees of freedom: 2K because each scalar has a bulk and a folded R-hat.

    :param num_scalars: K, of which the worst R-hat is compared.
    :param num_chains: whole chains; R-hat splits them in m = 2 `num_chains` halves.
    :param ess: S, effective draws of all chains together, of one scalar or of each, from within
        chains (`mean_errors(x).ess`): the usual ESS falls where chains differ, which raises the
        limit and hides the difference.
    :param alpha: chance that any of them exceeds it.
    :return: of the shape of `ess`.
    :raises ValueError: for numbers that are not positive.

    >>> round(float(rhat_limit(1, 4, 910)), 3), round(float(rhat_limit(4500, 4, 2080)), 3)
    (1.01, 1.01)
    """
    size = _checked("diagnostics.rhat_limit", num_scalars, "num_chains", num_chains, ess, alpha)
    m = 2 * num_chains
    return np.sqrt(1 + m / size * chi2.isf(alpha / (2 * num_scalars), m - 1) / (m - 1))


def nested_rhat_limit(
    num_scalars: int,
    num_superchains: int,
    num_chains: int,
    ess: ArrayLike,
    *,
    alpha: float = 0.05,
) -> np.ndarray:
    """The limit that the largest nested R-hat exceeds with probability at most `alpha`.

    It holds for chains that have forgotten their starts.

    `sqrt(1 + (k/S) q)` with k superchains, q the F quantile at `1 - alpha / 2K` with k - 1 and
    `num_chains - k` degrees of freedom. With one draw a chain S is the number of chains and the
    mean of `R-hat**2` is `1 + k / num_chains`: Margossian et al. 2024 (arXiv:2110.13017).

    :param num_scalars: K, of which the worst is compared.
    :param num_superchains: k, at least 2.
    :param num_chains: all chains of all superchains, more than `num_superchains`.
    :param ess: S, effective draws of all chains together; at least one a chain.
    :param alpha: chance that any scalar exceeds it.
    :return: of the shape of `ess`.
    :raises ValueError: for numbers that are not positive, or superchains of one chain.
    """
    owner = "diagnostics.nested_rhat_limit"
    size = _checked(owner, num_scalars, "num_superchains", num_superchains, ess, alpha)
    if num_superchains < 2 or num_chains <= num_superchains:
        raise ValueError(
            f"{owner}: expected two superchains or more, of several chains each, got "
            f"num_superchains={num_superchains} and num_chains={num_chains}. Superchains of one "
            f"chain have plain R-hat and rhat_limit."
        )
    degrees = (num_superchains - 1, num_chains - num_superchains)
    return np.sqrt(1 + num_superchains / size * f.isf(alpha / (2 * num_scalars), *degrees))
