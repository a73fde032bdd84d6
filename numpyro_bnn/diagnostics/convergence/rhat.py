"""R-hat and effective sample size of many scalars at once, one block of them at a time, on threads.

The estimators are those of Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021,
"Rank-normalization, folding, and localization: an improved R-hat for assessing convergence of
MCMC" (arXiv:1903.08008), with the conventions of ArviZ, whose numbers they reproduce. ArviZ computes one
scalar after the other; here blocks of scalars, `(b, m, n)` with half chains and draws, are computed as
arrays, in bounded memory. Draws are ranked by their values and by their distances from the median; normal
scores come from a table. Geyer's sum of autocorrelations mostly ends within a few lags, and then only the
products of these lags are computed. Where it does not, autocovariances of all lags come from Fourier
transforms.

Conventions, the same in every function:

- `x` has shape `(chain, draw, ...)`; every statistic has the shape `...`.
- A chain is split in halves; with an odd number of draws the middle one is left out.
- A scalar with any NaN or infinity gives NaN (ArviZ ranks infinities).
- A constant scalar gives R-hat NaN, since nothing can be compared, and an ESS of all draws.
- Chains that are each constant at different values give R-hat infinity.
- Fewer than four draws a chain give NaN. One chain is allowed: R-hat then compares its halves,
  where ArviZ gives NaN.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri
from scipy.stats import chi2, f

from numpyro_bnn._checks import num_cpus

# Numbers in one block, draws times scalars: with fewer, calls of NumPy cost more than the numbers; arrays of
# more than 2 MiB leave the cache and are new to the system each time (page faults).
BLOCK_SIZE = 1 << 18
# Chains whose normal scores have less variance within are constant: scores of N draws lie at least 1/N apart,
# so that a true variance is far above it, and rounding far below.
_CONSTANT_SHARE = 1e-20
# Probability that the worst scalar of stationary chains exceeds the limit of R-hat.
_CHANCE = 0.05
# Number of lags that are computed by products first; a transform costs about as much.
_MOST_LAGS = 64


def checked(name: str, x: ArrayLike) -> np.ndarray:
    """Draws as an array (chain, draw, …) of single or double precision."""
    array = np.asarray(x)
    if array.ndim < 2 or 0 in array.shape[:2]:
        raise ValueError(
            f"{name}: expected draws of shape (chain, draw, ...), got shape {array.shape}. Use "
            f"mcmc.get_samples(group_by_chain=True)."
        )
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    # Sums of a thousand numbers in half precision or bfloat16 need more digits.
    return array.astype(np.float32)


def powers_of(x: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """The power of two of the largest number of each scalar; 0 for zeros, and for NaN or infinities."""
    # Draws that are divided by it have squares that neither overflow nor vanish, and lose no digit.
    largest = np.maximum(x.max(axis=axis), -x.min(axis=axis))
    return np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]


def finite_split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halves `(b, 2 chain, half)` of `x (chain, draw, b)`, and which scalars are not finite: zeros there."""
    chains, draws, b = x.shape
    half = draws // 2
    split = np.empty((b, 2 * chains, half), x.dtype)
    for chain in range(chains):
        # One half chain at a time: strided reads of a whole chain do not stay in the cache.
        split[:, 2 * chain] = x[chain, :half].T
        split[:, 2 * chain + 1] = x[chain, draws - half :].T
    # With an odd number of draws the middle one is in neither half.
    bad = ~(np.isfinite(split).all(axis=(1, 2)) & np.isfinite(x[:, draws // 2]).all(axis=0))
    split[bad] = 0
    return split, bad


@lru_cache(maxsize=8)
def _score_table(size: int) -> np.ndarray:
    """Normal scores `Phi^-1((r - 3/8) / (N + 1/4))` of ranks 0, 1/2, 1 … `size`, at twice the rank."""
    # Blom 1958, as in Vehtari et al. 2021, section 4.1. Averages over ties are whole or half ranks, so the
    # table holds every rank that occurs.
    rank = np.arange(2, 2 * size + 1) / 2.0
    return np.concatenate([[np.nan, np.nan], ndtri((rank - 0.375) / (size + 0.25))])


def _in_order(values: np.ndarray, kind: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows `(b, size)` in increasing order, and the index in all rows that each number had."""
    place = np.argsort(values, axis=1, kind=kind)
    place += values.shape[1] * np.arange(len(values))[:, None]
    return values.ravel()[place], place


def _folded(ordered: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances from the median of ordered rows, in order; in the precision of the draws, as in ArviZ."""
    middle = ordered.shape[1] // 2
    median = (ordered[:, middle - 1] + ordered[:, middle]) / 2
    # They fall and then rise, so that a stable sort only has to merge two parts.
    folded, again = _in_order(np.abs(ordered - median[:, None]), "stable")
    return folded, place.ravel()[again]


def _scores(ordered: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Normal scores of rows in order, put where the draws were; ties get the score of their mean rank."""
    b, size = ordered.shape
    table = _score_table(size)
    of_rank = np.tile(table[2::2], b)
    ties = np.zeros((b, size), bool)
    np.equal(ordered[:, 1:], ordered[:, :-1], out=ties[:, 1:])
    # Draws that equal the one before; successive ones are of one group, which no row shares with the next.
    tied = np.flatnonzero(ties)
    is_first = np.diff(tied, prepend=-1) != 1
    first = tied[is_first] - 1
    others = np.diff(np.flatnonzero(is_first), append=tied.size)
    of_group = table[2 * (first % size) + others + 2]
    of_rank[first], of_rank[tied] = of_group, np.repeat(of_group, others)
    scores = np.empty(b * size)
    scores[place.ravel()] = of_rank
    return scores.reshape(b, size)


def rank_scores(split: np.ndarray, folded: bool = False) -> np.ndarray:
    """Normal scores of each scalar of `(b, m, n)`, or of the distances of its draws from their median."""
    ranked = _in_order(split.reshape(len(split), -1))
    return _scores(*(_folded(*ranked) if folded else ranked)).reshape(split.shape)


def _rhat_from(means: np.ndarray, within: np.ndarray, n: int) -> np.ndarray:
    """R-hat of half chains of n draws: `sqrt((B/W + n - 1) / n)`, Vehtari et al. 2021, section 3.1."""
    between = n * means.var(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def _rhat_of_deviations(deviation: np.ndarray, means: np.ndarray) -> np.ndarray:
    """R-hat of normal scores `(b, m, n)`, from their deviations from the means of half chains."""
    b, m, n = deviation.shape
    within = np.vecdot(deviation.reshape(b, -1), deviation.reshape(b, -1)) / (m * n)
    within = np.where(within > _CONSTANT_SHARE, within, 0.0)
    return _rhat_from(means, within * n / (n - 1), n)


def summarize_block(x: np.ndarray, tail: bool) -> tuple[np.ndarray, ...]:
    """R-hat, bulk ESS and tail ESS (NaN unless `tail`) of one block `x (chain, draw, b)`."""
    split, bad = finite_split(x)
    ordered, place = _in_order(split.reshape(len(split), -1))
    constant = ordered[:, 0] == ordered[:, -1]
    scores = _scores(ordered, place).reshape(split.shape)
    folded = _scores(*_folded(ordered, place)).reshape(split.shape)
    means = centre(scores)
    ess = ess_of(scores, means, constant)
    rhat = _rhat_of_deviations(scores, means)
    rhat = np.fmax(rhat, _rhat_of_deviations(folded, centre(folded)))
    ess_tail = np.full(len(split), np.nan)
    if tail:
        # A quantile interpolates between two order statistics with no draw between them, so the lower one
        # separates the draws in the same way, without rounding. With an odd number of draws the middle ones
        # belong to neither half, but to the quantile.
        both = np.sort(x.reshape(-1, x.shape[2]).T, axis=1) if x.shape[1] % 2 else ordered
        limits = [both[:, int((both.shape[1] - 1) * q), None, None] for q in (0.05, 0.95)]
        happened = np.concatenate([split <= limit for limit in limits]).astype(np.float64)
        same = np.ptp(happened, axis=(1, 2)) == 0
        ess_tail = np.minimum(*np.split(ess_of(happened, centre(happened), same), 2))
    for values in (rhat, ess, ess_tail):
        values[bad] = np.nan
    return rhat, ess, ess_tail


def centre(split: np.ndarray) -> np.ndarray:
    """Subtract the means of half chains from `(b, m, n)`, in place, and return them, `(b, m)`."""
    means = split.mean(axis=2)
    split -= means[:, :, None]
    return means


def ess_of(deviation: np.ndarray, means: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """ESS of `(b, m, n)` by Geyer's initial monotone sequence; Vehtari et al. 2021, section 3.2."""
    m, n = deviation.shape[1:]
    between = means.var(axis=1, ddof=1)

    def time_of(covariance: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return geyer(covariance, between[rows], m, n)

    time = by_first_lags(deviation, time_of, min(_MOST_LAGS, n))
    rest = np.flatnonzero(np.isnan(time) & ~constant)
    if rest.size:
        time[rest] = time_of(_all_lags(deviation[rest]), rest)
    return np.where(constant, float(m * n), m * n / time)


def by_first_lags(deviation: np.ndarray, function: Callable, most: int) -> np.ndarray:
    """A function `(b,)` of as many autocovariances as it needs; NaN where more than `most` are needed."""
    # `function` takes autocovariances (row, lag), mean over chains, and the numbers of these rows; it returns
    # NaN where they are too few.
    b, m, n = deviation.shape
    values, rows, covariance, lags = np.full(b, np.nan), np.arange(b), np.empty((b, 0)), 4
    while rows.size and covariance.shape[1] < most:
        known = range(covariance.shape[1], min(lags, most))
        # Sums over one chain are in the precision of the draws, which has enough digits for them.
        new = [np.vecdot(deviation[..., : n - k], deviation[..., k:]).sum(1, float) for k in known]
        covariance = np.concatenate([covariance, np.stack(new, axis=1) / (n * m)], axis=1)
        values[rows] = function(covariance, rows)
        rest = np.isnan(values[rows])
        rows, covariance, deviation, lags = rows[rest], covariance[rest], deviation[rest], 2 * lags
    return values


def geyer(covariance: np.ndarray, between: np.ndarray, m: int, n: int) -> np.ndarray:
    """Integrated autocorrelation times, or NaN where the sequence does not end within the lags."""
    # Vehtari et al. 2021, section 3.2. With `S_k = rho_2k + rho_2k+1` for each pair of lags: pairs are added,
    # each reduced to the one before where it is larger, up to the first that is not positive (pair j). Then
    # half of `rho_2j` is added if it is positive, which lowers the variance for antithetic chains.
    last = max((n - 1) // 2 - 1, 0)
    count = min(last + 1, covariance.shape[1] // 2)
    total = covariance[:, :1] + between[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (covariance[:, :1] * (n / (n - 1.0)) - covariance[:, : 2 * count]) / total
    rho[:, 0] = 1.0
    pairs = rho[:, ::2] + rho[:, 1::2]
    ends = pairs <= 0.0
    if count == last + 1:
        ends[:, last] = True
    end = ends.argmax(axis=1)[:, None]
    even, pair = (np.take_along_axis(each, end, 1)[:, 0] for each in (rho[:, ::2], pairs))
    added = (np.minimum.accumulate(pairs, axis=1) * (np.arange(count) < end)).sum(axis=1)
    tail = np.where((even > 0.0) | (pair >= 0.0), even, 0.0)
    time = np.maximum(2.0 * added - 1.0 + tail, 1.0 / np.log10(m * n))
    return np.where(ends.any(axis=1), time, np.nan)


def _all_lags(deviation: np.ndarray) -> np.ndarray:
    """Autocovariances at all lags `(b, n)`, mean over half chains, by Fourier transforms."""
    m, n = deviation.shape[1:]
    size = next_fast_len(2 * n, real=True)
    # One half chain at a time: its transform fits the cache, the transform of all does not.
    power = sum(np.square(np.abs(rfft(deviation[:, k], n=size, axis=1))) for k in range(m))
    return irfft(power, n=size, axis=1)[:, :n] / (n * m)


def by_block(x: np.ndarray, function: Callable, num_outputs: int) -> list[np.ndarray]:
    """Apply `function` to blocks of the scalars of `x` on threads; outputs shaped `x.shape[2:]`."""
    scalars = x.shape[2:]
    # Reshaping copies nothing where draws are in C order, also for draws on disk (memory-mapped).
    flat = x.reshape(*x.shape[:2], -1)
    outputs = [np.empty(flat.shape[2]) for _ in range(num_outputs)]

    def work(block: slice) -> None:
        for output, values in zip(outputs, function(flat[:, :, block])):
            output[block] = values

    # Sorting, transforms and array arithmetic all release the interpreter's lock.
    with ThreadPoolExecutor(min(8, num_cpus())) as pool:
        step = max(1, BLOCK_SIZE // (flat.shape[0] * flat.shape[1]))
        list(pool.map(work, (slice(i, i + step) for i in range(0, flat.shape[2], step))))
    return [output.reshape(scalars) for output in outputs]


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
    :raises ValueError: without an axis of chains and one of draws, or for another method.

    >>> x = np.random.default_rng(0).normal(size=(2, 100)) + [[0.0], [5.0]]
    >>> bool(rhat(x) > 1.5)
    True
    """
    if method not in (known := ["rank", *_TRANSFORMS]):
        raise ValueError(f"diagnostics.rhat: method must be in {known}, got {method!r}.")
    if method == "rank":
        return summarize(x, tail=False).rhat
    x = checked("diagnostics.rhat", x)
    if x.shape[1] < 4:
        return np.full(x.shape[2:], np.nan)

    def block_rhat(block: np.ndarray) -> list[np.ndarray]:
        split, bad = finite_split(block)
        values = _TRANSFORMS[method](split)
        within = values.var(axis=2, ddof=1).mean(axis=1)
        result = _rhat_from(values.mean(axis=2), within, values.shape[2])
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
    :raises ValueError: without an axis of chains and one of draws, or for another method.
    """
    if method not in (known := ["bulk", "tail", "mean"]):
        raise ValueError(f"diagnostics.ess: method must be in {known}, got {method!r}.")
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
        # Squares of single precision fit into double precision.
        block = block.astype(np.float64)
        split, bad = finite_split(block)
        constant = split.max(axis=(1, 2)) == split.min(axis=(1, 2))
        means = centre(split)
        result = ess_of(split, means, constant)
        result[bad] = np.nan
        with np.errstate(invalid="ignore", over="ignore"):
            # The standard deviation of a constant is exactly 0 about its first draw.
            away = block - block[:1, :1]
            return [result, block.mean(axis=(0, 1)), away.std(axis=(0, 1), ddof=1)]

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
    b, _, n = values.shape
    # All superchains have as many chains: (b, superchain, chain, n).
    values = values[:, np.argsort(labels, kind="stable")].reshape(b, np.unique(labels).size, -1, n)
    means = values.mean(axis=3)
    within = values.var(axis=3, ddof=1).mean(axis=(1, 2)) if n > 1 else np.zeros(b)
    if means.shape[2] > 1:
        within += means.var(axis=2, ddof=1).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(1.0 + means.mean(axis=2).var(axis=1, ddof=1) / within)


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
        folded = _nested(rank_scores(split, True), halves)
        result = np.fmax(_nested(rank_scores(split), halves), folded)
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


def rhat_limit(num_scalars: int, num_chains: int, ess: ArrayLike) -> np.ndarray:
    """The limit that the largest R-hat of stationary chains exceeds with probability at most 5 %.

    R-hat of chains that agree is above 1 because chains are finite: `R-hat**2 - 1` of one scalar is about
    `(m/S) chi2 / (m - 1)` with m - 1 degrees of freedom, m half chains and S effective draws of all. A fixed
    limit of 1.01 rejects such chains: with 4500 scalars it takes 2080 effective draws to pass. The limit is
    `sqrt(1 + (m/S) q / (m - 1))`, q the chi-squared quantile at `1 - 0.05 / 2K` with m - 1
    degrees of freedom: 2K because each scalar has a bulk and a folded R-hat.

    :param num_scalars: K, of which the worst R-hat is compared.
    :param num_chains: whole chains; R-hat splits them in m = 2 `num_chains` halves.
    :param ess: S, effective draws of all chains, of one scalar or of each, from within chains
        (`mean_errors(x).ess`): the usual ESS falls where chains differ, which raises the limit.
    :return: of the shape of `ess`.

    >>> round(float(rhat_limit(1, 4, 910)), 3), round(float(rhat_limit(4500, 4, 2080)), 3)
    (1.01, 1.01)
    """
    m = 2 * num_chains
    return np.sqrt(1 + m / np.asarray(ess) * chi2.isf(_CHANCE / (2 * num_scalars), m - 1) / (m - 1))


def nested_rhat_limit(
    num_scalars: int, num_superchains: int, num_chains: int, ess: ArrayLike
) -> np.ndarray:
    """The limit that the largest nested R-hat exceeds in at most 5 % of runs that forgot their starts.

    `sqrt(1 + (k/S) q)` with k superchains, q the F quantile at `1 - 0.05 / 2K` with k - 1 and
    `num_chains - k` degrees of freedom. With one draw a chain S is the number of chains and the
    mean of `R-hat**2` is `1 + k / num_chains`: Margossian et al. 2024 (arXiv:2110.13017).

    :param num_scalars: K, of which the worst is compared.
    :param num_superchains: k, at least 2.
    :param num_chains: all chains of all superchains, more than `num_superchains`.
    :param ess: S, effective draws of all chains together; at least one a chain.
    :return: of the shape of `ess`; NaN for superchains of one chain.
    """
    degrees = (num_superchains - 1, num_chains - num_superchains)
    largest = f.isf(_CHANCE / (2 * num_scalars), *degrees)
    return np.sqrt(1 + num_superchains / np.asarray(ess) * largest)
