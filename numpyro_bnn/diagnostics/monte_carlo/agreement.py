"""Whether chains differ by more than their own errors: one permutation test of all scalars.

Each chain is cut into batches so long that their averages are nearly independent. If all chains sample one
distribution, it does not matter to which chain a batch belongs. So batches are shuffled between chains, in
the same way for all scalars, and the F statistic between chains (errors from within chains) is computed for
each shuffling. The largest F over scalars detects a few scalars that differ, the median F many scalars that
differ a little. The p-value is the share of shufflings that reach the values of the chains themselves; it
accounts for the number of scalars and their dependence. Westfall and Young 1993, *Resampling-based multiple
testing*.
"""

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import pdist

from numpyro_bnn.diagnostics.convergence.rhat import checked, powers_of
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import (
    MeanErrors,
    as_chains,
    mean_errors,
    row_distances,
    units_of,
)
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

# Length of a batch in autocorrelation times of the scalar that is slower than nine in ten.
BATCH_TIMES = 10.0
SLOW_QUANTILE = 0.9
# Variance of the logarithm of an estimated time, times its effective draws: 5 to 16 for AR(1) chains.
_NOISE_OF_TIME = 8.0
# A scalar with fewer autocorrelation times in a batch is left out: its batches depend on each other.
LEAST_TIMES = 5.0
_LEAST_BATCHES = 4
# More batches cost more and add little power.
_MOST_BATCHES = 128
# As many permutations make 2 / 201 possible, below SIGNIFICANT; see `least_batches`.
_LEAST_PERMUTATIONS = 200
# Two chains of few batches can be dealt out in so few ways that all are tried, in place of random ones.
_ALL_WAYS = 2000
# Sums of shuffled batches that are in memory at a time, and scalars over which the median is taken.
_SUMS = 1 << 21
_MEDIAN_OF = 1024
# Relative rounding error of single precision, with a margin.
_ROUNDING = 1 - 1e-5
# The p-value below which chains do not agree, and below which halves differ: to drop draws of a run that has
# arrived costs time alone.
SIGNIFICANT, _SIGNIFICANT_OF_HALVES = 0.01, 0.02
# Number of scalars used, evenly spaced; and of shufflings, which show how far apart chance puts chains.
_MOST_SCALARS = 200
_SHUFFLES = 200
# The dropped part grows by tenths of all draws, up to half of them.
_PARTS, _MOST_DROPPED = 10, 5
# Permutations of the test: enough for p < 0.01, at a seventh of the cost of a verdict.
_FEW_PERMUTATIONS = 299


class Agreement(NamedTuple):
    """Whether the chains of a run have the same averages of predictions.

    - **members** - the group of each chain, `(chain,)`
    - **batch_length** - draws in a batch
    - **left_out** - by name, scalars too slow for the batches
    - **halves** - whether the halves of a single chain stood for chains
    - **needed** - factor by which to lengthen the run for enough batches a chain; at most 1 if tested, and
      0 where no scalar moves
    - **differs** - by name, which scalars differ on their own (at 5 % for all of them together); empty
      without a test
    - **tested** - whether there were enough batches a chain (:func:`least_batches`); without them all p
      are NaN
    - **p** - p-value: probability of such a difference for chains that agree, from both statistics
    - **p_max** - p-value of the largest F over scalars, which sees a few scalars that differ
    - **p_median** - p-value of the median F, which sees many scalars that differ a little
    - **groups** - number of groups of chains that agree with each other; 1 unless `p` < 0.01
    - **total_variation**, **total_variation_99** - mean and 99 % quantile over rows of the total
      variation between the averages of two chains, of the two that are farthest apart; None
      without class probabilities
    - **relative**, **relative_99** - for other predictions, mean and 99 % quantile over rows of the
      distance of these averages in standard deviations
    - **correlation** - lag-one correlation of batch averages, for which F is divided by 1 + 2 r
    - **nested_rhat**, **nested_rhat_limit** - the largest nested R-hat of superchains, and the limit that
      it stays below if chains have forgotten their starts; None without superchains
    """

    members: np.ndarray
    batch_length: int
    left_out: Mapping[str, np.ndarray]
    halves: bool
    needed: float
    differs: Mapping[str, np.ndarray]
    tested: bool = False
    p: float = float("nan")
    p_max: float = float("nan")
    p_median: float = float("nan")
    groups: int = 1
    total_variation: float | None = None
    total_variation_99: float | None = None
    relative: float | None = None
    relative_99: float | None = None
    correlation: float = 0.0
    nested_rhat: float | None = None
    nested_rhat_limit: float | None = None

    @property
    def remember_starts(self) -> bool:
        """Whether superchains differ by more than chance explains: chains have not forgotten their starts."""
        if self.nested_rhat is None or self.nested_rhat_limit is None:
            return False
        return self.nested_rhat > self.nested_rhat_limit

    def beyond(self, tolerance: Tolerance) -> bool:
        """Whether averages of chains are farther apart than the tolerance, whether significantly or not."""
        found = self._asdict()
        pairs = ((found[u], found[f"{u}_99"], *limits) for u, limits in tolerance.limits.items())
        return any(mean is not None and (mean > m or worst > w) for mean, worst, m, w in pairs)

    def disagree(self, tolerance: Tolerance) -> bool:
        """Whether chains differ by more than their errors, and by more than the tolerance."""
        return self.tested and self.p < SIGNIFICANT and self.beyond(tolerance)


def agreement(
    predictions: Mapping[str, ArrayLike],
    *,
    errors: Mapping[str, MeanErrors] | None = None,
    tolerance: Tolerance | None = None,
    num_permutations: int = 2000,
    seed: int = 0,
    num_centred: int = 0,
) -> Agreement:
    """Test whether chains agree about their predictions.

    :param predictions: name to `(chain, draw, input, ...)`; one chain's halves stand for chains.
    :param errors: result of :func:`~numpyro_bnn.diagnostics.monte_carlo.mean_errors.mean_errors` for each,
        where it is known already.
    :param tolerance: chains that differ by less are one group; default `Tolerance()`.
    :param num_permutations: number of shufflings; the smallest possible p is 1 / (num_permutations + 1),
        twice that where only one of the two statistics shows a difference.
    :param seed: seed of the shuffling, so that a report made twice is the same.
    :param num_centred: number of averages, of parts of the chains, that were subtracted from `predictions`,
        so that shuffled batches vary less than chains may.
    :return: see :class:`Agreement`.
    :raises ValueError: for fewer than 200 permutations, or what `mean_errors` refuses.
    """
    if num_permutations < _LEAST_PERMUTATIONS:
        raise ValueError(
            f"agreement: expected at least {_LEAST_PERMUTATIONS} permutations, for p below 0.01 to be "
            f"possible, got num_permutations={num_permutations}. The default of 2000 takes about a "
            f"second for 10,000 scalars."
        )
    arrays = {name: checked(f"agreement: {name!r}", x) for name, x in predictions.items()}
    if errors is None:
        errors = {name: mean_errors(x) for name, x in arrays.items()}
    halves = any(len(x) == 1 for x in arrays.values())
    arrays = {name: as_chains(x) for name, x in arrays.items()}
    chains, draws = next(iter(arrays.values())).shape[:2]
    judged, left_out, length = _batch_length(errors)
    moving = any(mask.any() for mask in judged.values())
    least = least_batches(chains)
    untested = Agreement(
        left_out=left_out,
        members=np.zeros(chains, int),
        batch_length=length,
        halves=halves,
        needed=least * length / draws if moving else 0.0,
        differs={},
        **_farthest(arrays, errors),
    )
    if draws // length < least or not moving:
        return untested
    length = max(length, draws // max(8, min(32, _MOST_BATCHES // chains)))
    means = _batch_means(arrays, judged, length)
    differs, found = _permutation_test(means, num_permutations, seed, num_centred)
    result = untested._replace(
        tested=True, differs=_by_name(differs, judged), batch_length=length, **found
    )
    if not result.disagree(tolerance or Tolerance()):
        return result
    # The scalars that show the difference: those that differ on their own, or else all.
    few = result.p_max <= result.p_median and differs.any()
    looked_at = differs if few else np.ones_like(differs)
    members = chain_groups(means[:, :, looked_at], seed)
    return result._replace(members=members, groups=len(np.unique(members)))


def least_batches(num_chains: int) -> int:
    """Fewest batches a chain that can show a disagreement: 6 for two chains (462 ways), 4 for more."""
    # Where only one of the two statistics shows a difference, one way to deal out the batches in all is as
    # extreme in the other, so that the least possible p is two in the number of ways.
    enough = (k for k in itertools.count(_LEAST_BATCHES) if 2 / _ways(num_chains, k) < SIGNIFICANT)
    return next(enough)


def _ways(chains: int, batches: int) -> int:
    """Number of ways to deal out batches to chains whose order does not matter."""
    return factorial(chains * batches) // (factorial(batches) ** chains * factorial(chains))


_Flags = dict[str, np.ndarray]


def _batch_length(errors: Mapping[str, MeanErrors]) -> tuple[_Flags, _Flags, int]:
    """Scalars that are tested and scalars that are too slow, by name, and the number of draws in a batch."""
    # A scalar that is constant in every chain, with different values, is the clearest difference.
    moves = {name: each.sd > 0 for name, each in errors.items()}
    times = np.concatenate([each.time[moves[name]] for name, each in errors.items()])
    sizes = np.concatenate([each.ess[moves[name]] for name, each in errors.items()])
    length = int(np.ceil(BATCH_TIMES * (_slow_time(times, sizes) if times.size else 1.0)))
    judged = {n: moves[n] & (each.time * LEAST_TIMES <= length) for n, each in errors.items()}
    return judged, {name: moves[name] & ~judged[name] for name in errors}, length


def _slow_time(times: np.ndarray, sizes: np.ndarray) -> float:
    """Autocorrelation time of the scalar that is slower than nine in ten; `sizes`: effective draws."""
    # The slowest tenth of *estimated* times consists partly of overestimates: with 200 effective draws it
    # begins at 25 where all true times are 19. So estimates are shrunk towards their mean, by the part of
    # their spread that is noise.
    logs = np.log(times)
    spread = float(logs.var())
    real = max(0.0, 1 - float(np.mean(_NOISE_OF_TIME / sizes)) / spread) if spread > 0 else 0.0
    slow = float(np.quantile(logs, SLOW_QUANTILE, method="higher"))
    return float(np.exp(logs.mean() + np.sqrt(real) * (slow - logs.mean())))


def _farthest(arrays: Mapping[str, np.ndarray], errors: Mapping[str, MeanErrors]) -> dict[str, Any]:
    """Mean and 99 % quantile over rows of the distance between the two chains that are farthest apart."""
    units = units_of(arrays, errors)
    means = {name: errors[name].chain_means for name in arrays}
    largest: dict[str, float] = {}
    for one in range(len(next(iter(means.values()))) - 1):
        apart = row_distances({n: m[one + 1 :] - m[one] for n, m in means.items()}, units)
        for key, rows in apart.items():
            pairs: dict[str, Any] = {key: rows.mean(axis=1)}
            pairs[f"{key}_99"] = np.quantile(rows, 0.99, axis=1, method="higher")
            for name, values in pairs.items():
                largest[name] = max(largest.get(name, 0.0), float(values.max()))
    return largest


def _batch_means(
    arrays: Mapping[str, np.ndarray], judged: Mapping[str, np.ndarray], length: int
) -> np.ndarray:
    """Averages of batches `(chain, batch, scalar)` of the scalars that are judged, side by side."""
    parts = []
    for name, x in arrays.items():
        chains, draws = x.shape[:2]
        count = draws // length
        flat = x.reshape(chains, draws, -1)[:, draws - count * length :]
        means = flat.reshape(chains, count, length, -1).mean(axis=2)
        parts.append(means[:, :, judged[name].reshape(-1)])
    return np.concatenate(parts, axis=2)


def standardized(means: np.ndarray) -> np.ndarray:
    """Batch averages `(chain, batch, scalar)` with mean zero and sum of squares `batch`."""
    chains, count, num = means.shape
    flat = means.reshape(chains * count, num).astype(np.float64)
    flat -= flat.mean(axis=0)
    flat = np.ldexp(flat, -powers_of(flat, (0,)))
    size = np.sqrt(np.square(flat).sum(axis=0) / count)
    return np.divide(flat, size, out=np.zeros_like(flat), where=size > 0)


def _permutation_test(
    means: np.ndarray, num: int, seed: int, num_centred: int = 0
) -> tuple[np.ndarray, dict[str, Any]]:
    """Which scalars differ on their own, and p-values of batch averages `(chain, batch, scalar)`, by name."""
    chains, count, scalars = means.shape
    flat = standardized(means)
    observed, correlation = _observed_share(flat.reshape(means.shape), num_centred)
    order = _orders(chains, count, num, seed)
    # The median is taken over some scalars, evenly spaced, which come first.
    spaced = np.unique(np.linspace(0, scalars - 1, min(scalars, _MEDIAN_OF)).astype(int))
    arranged = np.concatenate([spaced, np.setdiff1d(np.arange(scalars), spaced)])
    largest, shares = _shuffled(flat[:, arranged], order, len(spaced))
    largest_seen, median_seen = observed.max(), np.median(observed[spaced])
    medians = np.median(shares, axis=1)
    # Each statistic is replaced by its rank among all, that of the chains themselves included: the share of
    # those at least as large, so that small is extreme. Shuffled values are in single precision, hence the
    # margin: the order of the chains themselves must not beat itself.
    both = ((largest, largest_seen * _ROUNDING), (medians, median_seen * _ROUNDING))
    all_values = [np.append(shuffled, seen) for shuffled, seen in both]
    ranks = 1.0 - np.stack([np.searchsorted(np.sort(v), v) / v.size for v in all_values])
    least = ranks.min(axis=0)
    p = float((least <= least[-1]).mean())
    differs = observed > np.quantile(largest, 0.95)
    p_max, p_median = map(float, ranks[:, -1])
    return differs, {"p": p, "p_max": p_max, "p_median": p_median, "correlation": correlation}


def _orders(chains: int, batches: int, num: int, seed: int) -> np.ndarray:
    """Ways to deal out all batches, other than the chains themselves, `(way, chain, batch)`."""
    # With few ways random ones repeat themselves, and p would be above its least possible value by chance.
    if chains == 2 and _ways(2, batches) <= _ALL_WAYS:
        # The first batch stays with the first chain: the other half are these with both chains exchanged.
        others = np.array(list(itertools.combinations(range(1, 2 * batches), batches - 1))[1:])
        first = np.pad(others, ((0, 0), (1, 0)))
        return np.stack([first, [np.setdiff1d(np.arange(2 * batches), row) for row in first]], 1)
    flat = np.tile(np.arange(chains * batches), (num, 1))
    return np.random.default_rng(seed).permuted(flat, axis=1).reshape(num, chains, batches)


def _observed_share(batches: np.ndarray, num_centred: int = 0) -> tuple[np.ndarray, float]:
    """Share of the variance that lies between chains, corrected for dependent batches, `(scalar,)`."""
    # Of n batches whose averages were subtracted k at a time, n - k vary.
    varying = 1 - num_centred / (len(batches) * batches.shape[1])
    # Consecutive batches still depend on each other a little, which raises F by 1 + 2 r; shuffled batches do
    # not. The correlation r is one number for all scalars: estimates for single scalars are mostly noise.
    count = batches.shape[1]
    centers = batches.mean(axis=1)
    # The sum of squares over all batches is the number of batches a chain.
    share = np.square(centers).sum(axis=0)
    inner = batches - centers[:, None]
    squares = np.square(inner).sum()
    lagged = (inner[:, 1:] * inner[:, :-1]).sum()
    # Deviations from an average of `count` numbers are correlated by -1 / count.
    r = float(np.clip(lagged / squares + 1 / count, 0, 0.5)) if squares > 0 else 0.0
    odds = varying * share / np.maximum(1 - share, 1e-12) / (1 + 2 * r)
    return odds / (1 + odds), r


def _shuffled(flat: np.ndarray, order: np.ndarray, num_kept: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest share of each permutation, and the shares of the first `num_kept` scalars."""
    num, chains, length = order.shape
    # Each row averages the batches of one chain of one permutation.
    weights = np.full(order.size, 1 / length, np.float32)
    deal = csr_array((weights, order.ravel(), np.arange(0, order.size + 1, length)))
    width = max(1, _SUMS // (num * chains))

    def work(start: int) -> tuple[np.ndarray, np.ndarray]:
        means = deal @ np.ascontiguousarray(flat[:, start : start + width], np.float32)
        shares = np.square(means, out=means).reshape(num, chains, -1).sum(axis=1)
        return shares.max(axis=1), shares[:, : max(0, num_kept - start)]

    with ThreadPoolExecutor() as pool:
        largest, kept = zip(*pool.map(work, range(0, flat.shape[1], width)))
    return np.max(largest, axis=0), np.concatenate(kept, axis=1)


def _by_name(flags: np.ndarray, judged: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Flags of judged scalars, in the shapes of their arrays."""
    found = {name: np.array(mask) for name, mask in judged.items()}
    ends = np.cumsum([mask.sum() for mask in judged.values()])
    for name, own in zip(judged, np.split(flags, ends[:-1])):
        found[name][judged[name]] = own
    return found


def chain_groups(means: np.ndarray, seed: int = 0) -> np.ndarray:
    """Number of the group of each chain: average linkage while chains differ by no more than chance."""
    chains, count, scalars = means.shape
    chosen = np.unique(np.linspace(0, scalars - 1, _MOST_SCALARS).astype(int))
    batches = means[:, :, chosen].astype(np.float64)
    batches = np.ldexp(batches, -powers_of(batches, (0, 1)))
    centers = batches.mean(axis=1)
    # Batches without differences between chains; subtracting the average of a chain shrinks them a little.
    inner = (batches - centers[:, None]) * np.sqrt(count / (count - 1))
    scale = np.sqrt(np.square(inner).mean(axis=(0, 1)))
    scale[scale == 0] = 1.0
    apart = pdist(centers / scale, "sqeuclidean")
    rng = np.random.default_rng(seed)
    flat = (inner / scale).reshape(chains * count, -1)
    largest = 0.0
    for _ in range(_SHUFFLES):
        dealt = flat[rng.permutation(len(flat))].reshape(chains, count, -1)
        largest = max(largest, float(pdist(dealt.mean(axis=1), "sqeuclidean").max()))
    tree = linkage(apart, "average")
    # The test has found a difference, so there is more than one group.
    cut = min(largest, float(np.nextafter(tree[-1, 2], 0)))
    labels = fcluster(tree, cut, "distance")
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def draws_to_drop(predictions: Mapping[str, np.ndarray], tolerance: Tolerance) -> int:
    """Number of draws, up to five tenths, to drop at the beginning so that halves of the rest agree."""
    count = next(iter(predictions.values())).shape[1]
    for tenth in range(_MOST_DROPPED + 1):
        drop = tenth * count // _PARTS
        if not halves_differ({n: x[:, drop:] for n, x in predictions.items()}, tolerance):
            break
    return drop


def halves_differ(predictions: Mapping[str, np.ndarray], tolerance: Tolerance) -> bool:
    """Whether halves of all chains differ by more than chance (if it can be tested) and the tolerance."""
    # Chains that still move away from their starts have different averages in their halves. Each chain's own
    # average is subtracted; the first halves of all chains form one chain, the second halves another.
    if next(iter(predictions.values())).shape[1] < 2 * _PARTS:
        return False
    halves = {name: _as_two(x) for name, x in predictions.items()}
    chains = len(next(iter(predictions.values())))
    options: dict[str, Any] = {"num_permutations": _FEW_PERMUTATIONS, "num_centred": chains}
    result = agreement(halves, tolerance=tolerance, **options)
    # Drifting draws look strongly dependent, so that a short run of them cannot be tested.
    differ = result.p < _SIGNIFICANT_OF_HALVES or not result.tested
    return differ and result.beyond(tolerance)


def _as_two(x: np.ndarray) -> np.ndarray:
    """Two chains: the first halves of all chains joined to one, and the second halves likewise."""
    half = x.shape[1] // 2
    centers = x.mean(axis=1, keepdims=True, dtype=np.float64)
    parts = np.stack([x[:, :half], x[:, x.shape[1] - half :]])
    # All chains get the common average: the units of predictions depend on it.
    parts -= (centers - centers.mean(axis=0)).astype(x.dtype)
    return parts.reshape(2, -1, *x.shape[2:])
