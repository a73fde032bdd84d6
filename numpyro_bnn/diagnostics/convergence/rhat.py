"""R-hat and effective sample size of many scalars at once.

The estimators are those of Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021,
"Rank-normalization, folding, and localization: an improved R-hat for assessing convergence of
MCMC" (arXiv:1903.08008), with the conventions of ArviZ, whose numbers they reproduce. ArviZ computes one
scalar after the other; here blocks of scalars are computed as arrays, in bounded memory
(:mod:`numpyro_bnn.diagnostics.convergence.blocks`).

Conventions, the same in every function:

- `x` has shape `(chain, draw, ...)`; every statistic has the shape `...`.
- A chain is split in halves; with an odd number of draws the middle one is left out.
- A scalar with any NaN or infinity gives NaN (ArviZ ranks infinities).
- A constant scalar gives R-hat NaN, since nothing can be compared, and an ESS of all draws.
- Chains that are each constant at different values give R-hat infinity.
- Fewer than four draws a chain give NaN. One chain is allowed: R-hat then compares its halves,
  where ArviZ gives NaN.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2, f

from numpyro_bnn.diagnostics.convergence.blocks import (
    by_block,
    centre,
    checked,
    ess_of,
    finite_split,
    powers_of,
    rank_scores,
    rhat_of,
    summarize_block,
)


class Summary(NamedTuple):
    """Convergence of each scalar; every field has the shape of the scalars.

    - **rhat** - the larger of the bulk and the folded rank-normalised split R-hat.
    - **ess_bulk** - effective draws, all chains together, for the centre.
    - **ess_tail** - effective draws for the 5 % or the 95 % quantile, whichever has fewer; NaN where not
      asked for.
    """

    rhat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray


def summarize(x: ArrayLike, *, tail: bool = True) -> Summary:
    """R-hat, bulk and tail ESS of all scalars, each draw sorted once.

    :param x: draws `(chain, draw, ...)`.
    :param tail: also the tail ESS, about a quarter of the work.
    :return: arrays of shape `...`; equal to `arviz.rhat`, `arviz.ess(method="bulk")` and
        `arviz.ess(method="tail", prob=(0.05, 0.95))`.
    :raises ValueError: without an axis of chains and one of draws.

    >>> x = np.random.default_rng(0).normal(size=(4, 1000, 2))
    >>> bool((summarize(x).rhat < 1.01).all())
    True
    """
    x = checked("diagnostics.summarize", x)
    if x.shape[1] < 4:
        nan = np.full(x.shape[2:], np.nan)
        return Summary(nan, nan.copy(), nan.copy())
    return Summary(*by_block(x, lambda block: summarize_block(block, tail), 3))


# Draws between 2^-400 and 2^400 have squares in double precision, and sums of them.
_MOST_POWER = 400
_TRANSFORMS = {
    "split": lambda split: split.astype(np.float64),
    "z_scale": rank_scores,
    "folded": lambda split: rank_scores(split, folded=True),
}


def rhat(x: ArrayLike, *, method: str = "rank") -> np.ndarray:
    """Split R-hat of every scalar.

    `sqrt((B/W + n - 1)/n)` over half chains of n draws: `"split"` on the values, `"z_scale"` on
    their normal scores, `"folded"` on the normal scores of `|x - median|` (sees differences of
    scale), `"rank"` the larger of the last two. Vehtari et al. 2021, sections 4.1 and 4.2.

    :param x: draws `(chain, draw, ...)`.
    :param method: as in ArviZ; above 1.01 the chains disagree or one drifts.
    :return: array `...`; NaN and constants as in the notes of this file.
    :raises ValueError: without an axis of chains and one of draws.

    >>> x = np.random.default_rng(0).normal(size=(2, 100)) + [[0.0], [5.0]]
    >>> bool(rhat(x) > 1.5)
    True
    """
    if method == "rank":
        return summarize(x, tail=False).rhat
    x = checked("diagnostics.rhat", x)
    if x.shape[1] < 4:
        return np.full(x.shape[2:], np.nan)

    def block_rhat(block: np.ndarray) -> list[np.ndarray]:
        split, bad = finite_split(block)
        result = rhat_of(_TRANSFORMS[method](split))
        result[bad] = np.nan
        return [result]

    return by_block(x, block_rhat, 1)[0]


def ess(x: ArrayLike, *, method: str = "bulk") -> np.ndarray:
    """Effective sample size of every scalar, all chains together.

    `"bulk"`: of the normal scores; `"tail"`: the smaller of those for the 5 % and 95 % quantiles;
    `"mean"`: of the values, the one that gives the Monte Carlo error of their mean.

    :param x: draws `(chain, draw, ...)`.
    :param method: `"bulk"`, `"tail"` or `"mean"`, as in ArviZ.
    :return: array `...`; NaN and constants as in the notes of this file.
    :raises ValueError: without an axis of chains and one of draws.
    """
    if method == "mean":
        return moments("diagnostics.ess", x)[0]
    summary = summarize(x, tail=method == "tail")
    return {"tail": summary.ess_tail, "bulk": summary.ess_bulk}[method]


def moments(name: str, x: ArrayLike) -> list[np.ndarray]:
    """ESS of the mean, mean and standard deviation (n - 1) of every scalar of draws (chain, draw, …)."""
    x = checked(name, x)
    if x.shape[1] < 4:
        return [np.full(x.shape[2:], np.nan) for _ in range(3)]

    def block_moments(block: np.ndarray) -> list[np.ndarray]:
        power = powers_of(block, (0, 1))
        # Squares of single precision fit into double precision.
        power = np.where(np.abs(power) > _MOST_POWER, power, 0)
        block = np.ldexp(block, -power) if power.any() else block
        split, bad = finite_split(block)
        split = split.astype(np.float64)
        constant = split.max(axis=(1, 2)) == split.min(axis=(1, 2))
        means = centre(split)
        result = ess_of(split, means, constant)
        result[bad] = np.nan
        with np.errstate(invalid="ignore", over="ignore"):
            mean = block.mean(axis=(0, 1), dtype=np.float64)
            sd = block.std(axis=(0, 1), ddof=1, dtype=np.float64)
        return [result, np.ldexp(mean, power), np.ldexp(sd, power)]

    return by_block(x, block_moments, 3)


def mcse_mean(x: ArrayLike) -> np.ndarray:
    """Monte Carlo standard error of every mean: `sd / sqrt(ess(x, method="mean"))`.

    :param x: draws `(chain, draw, ...)`.
    :return: array `...` in the units of `x`; 0 for constants.
    :raises ValueError: without an axis of chains and one of draws.
    """
    size, _, sd = moments("diagnostics.mcse_mean", x)
    return sd / np.sqrt(size)


def _nested(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Nested R-hat of `(b, m, n)` with `labels (m,)` of the superchains."""
    means = values.mean(axis=2)
    n = values.shape[2]
    within_chains = values.var(axis=2, ddof=1) if n > 1 else np.zeros(means.shape)
    centres, within = [], []
    for label in np.unique(labels):
        members = labels == label
        centres.append(means[:, members].mean(axis=1))
        between = means[:, members].var(axis=1, ddof=1) if members.sum() > 1 else 0.0
        within.append(between + within_chains[:, members].mean(axis=1))
    between_superchains = np.var(centres, axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(1.0 + between_superchains / np.mean(within, axis=0))


def superchain_labels(superchains: int | ArrayLike, num_chains: int) -> np.ndarray:
    """The label of the superchain of each chain, from labels or a number of superchains in order."""
    labels = np.asarray(superchains)
    if labels.ndim == 0 and labels > 0 and num_chains % int(labels) == 0:
        labels = np.repeat(np.arange(int(labels)), num_chains // int(labels))
    if labels.shape != (num_chains,) or not _are_comparable(labels):
        raise ValueError(
            f"diagnostics.nested_rhat: superchains must cut the {num_chains} chains into two or "
            f"more groups of equal size, got {superchains}. Pass a number that divides them, or "
            f"one label for each chain."
        )
    return labels


def labels_of_rest(labels: np.ndarray, kept: ArrayLike) -> np.ndarray | None:
    """Labels of the chains that are left; None where their superchains cannot be compared any more."""
    rest = labels[np.asarray(kept, int)]
    return rest if _are_comparable(rest) and np.unique(rest).size < rest.size else None


def _are_comparable(labels: np.ndarray) -> bool:
    """Whether there are two superchains or more, of equal size."""
    sizes = np.unique(labels, return_counts=True)[1]
    return bool(sizes.size >= 2 and np.ptp(sizes) == 0)


def nested_rhat(x: ArrayLike, superchains: int | ArrayLike, *, method: str = "rank") -> np.ndarray:
    """Nested R-hat for many short chains.

    `sqrt(1 + B/W)`: B the variance of the means of superchains, W the mean over superchains of
    the variance between their chains' means plus that within chains. Margossian et al. 2024,
    "Nested R-hat: assessing the convergence of Markov chain Monte Carlo when running many short
    chains" (arXiv:2110.13017), eqs. 4-8. The chains of a superchain must start from the same
    point: only then does the variance between superchains show how much chains remember of it.

    :param x: draws `(chain, draw, ...)`; one draw is enough for `"identity"`.
    :param superchains: number of superchains of consecutive chains, or a label for each chain.
    :param method: `"identity"`: the values of whole chains, as in the paper; `"rank"`: the larger
        of the bulk and folded normal scores of half chains, as ArviZ does.
    :return: array `...`; NaN for NaN or constant scalars.
    :raises ValueError: for fewer than two superchains, superchains of unequal size, or an unknown method.
    """
    x = checked("diagnostics.nested_rhat", x)
    labels = superchain_labels(superchains, x.shape[0])
    if method not in ("identity", "rank"):
        raise ValueError(
            f"diagnostics.nested_rhat: method must be 'identity' or 'rank', got {method!r}. Use "
            f"'identity' for very short chains."
        )

    def block_nested(block: np.ndarray) -> list[np.ndarray]:
        if method == "identity":
            values = block.astype(np.float64).transpose(2, 0, 1)
            result = _nested(values, labels)
            result[~np.isfinite(values).all(axis=(1, 2))] = np.nan
            return [result]
        split, bad = finite_split(block)
        halves = np.repeat(labels, 2)
        result = np.fmax(
            _nested(rank_scores(split), halves), _nested(rank_scores(split, True), halves)
        )
        result[bad] = np.nan
        return [result]

    return by_block(x, block_nested, 1)[0]


def ebfmi(energy: ArrayLike) -> np.ndarray:
    """Energy Bayesian fraction of missing information of each chain, for HMC.

    `mean (E_t - E_t-1)^2 / Var E`; Betancourt 2016 (arXiv:1604.00695). Below 0.3 the
    momentum refreshes too little of the energy to reach the tails.

    :param energy: total energies `(chain, draw)` in nats.
    :return: `(chain,)`; NaN for a constant energy.
    """
    energy = checked("diagnostics.ebfmi", energy).astype(np.float64)
    if energy.shape[1] < 2:
        return np.full(len(energy), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.square(np.diff(energy, axis=1)).mean(axis=1) / energy.var(axis=1, ddof=1)


def rhat_limit(
    num_scalars: int, num_chains: int, ess: ArrayLike, *, alpha: float = 0.05
) -> np.ndarray:
    """The limit that the largest R-hat of stationary chains exceeds with probability at most `alpha`.

    R-hat of chains that agree is above 1 because chains are finite: `R-hat**2 - 1` of one scalar is about
    `(m/S) chi2 / (m - 1)` with m - 1 degrees of freedom, m half chains and S effective draws of all. A fixed
    limit of 1.01 rejects such chains: with 4500 scalars it takes 2080 effective draws to pass. The limit is
    `sqrt(1 + (m/S) q / (m - 1))`, q the chi-squared quantile at `1 - alpha / 2K` with m - 1
    degrees of freedom: 2K because each scalar has a bulk and a folded R-hat.

    :param num_scalars: K, of which the worst R-hat is compared.
    :param num_chains: whole chains; R-hat splits them in m = 2 `num_chains` halves.
    :param ess: S, effective draws of all chains together, of one scalar or of each, from within
        chains (`mean_errors(x).ess`): the usual ESS falls where chains differ, which raises the
        limit and hides the difference.
    :param alpha: chance that any of them exceeds it.
    :return: of the shape of `ess`.

    >>> round(float(rhat_limit(1, 4, 910)), 3), round(float(rhat_limit(4500, 4, 2080)), 3)
    (1.01, 1.01)
    """
    m = 2 * num_chains
    return np.sqrt(1 + m / np.asarray(ess) * chi2.isf(alpha / (2 * num_scalars), m - 1) / (m - 1))


def nested_rhat_limit(
    num_scalars: int, num_superchains: int, num_chains: int, ess: ArrayLike, *, alpha: float = 0.05
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
    :return: of the shape of `ess`; NaN for superchains of one chain.
    """
    degrees = (num_superchains - 1, num_chains - num_superchains)
    return np.sqrt(
        1 + num_superchains / np.asarray(ess) * f.isf(alpha / (2 * num_scalars), *degrees)
    )
