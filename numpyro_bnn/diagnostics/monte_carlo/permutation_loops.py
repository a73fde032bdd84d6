"""The loop of a permutation test of many scalars at once, compiled."""

import numpy as np

from numpyro_bnn.diagnostics.convergence.compiled_loops import compiled


@compiled
def permuted_rows(
    batches: np.ndarray,
    order: np.ndarray,
    sums: np.ndarray,
    largest: np.ndarray,
    shares: np.ndarray,
) -> None:
    """Share of the variance of batch means that lies between chains, for shuffled batches.

    All scalars are shuffled alike, which keeps their dependence. The share grows with the
    F statistic, in the same way for every scalar.

    :param batches: `(chain * batch, b)`; each column has mean zero and sum of squares `batch`,
        the number of batches a chain.
    :param order: `(permutation, chain, batch)`, rows of `batches`.
    :param sums: `(3, b)` for work, in the precision of `batches`.
    :param largest: `(permutation,)`, raised to the largest share of these scalars.
    :param shares: `(permutation, b')`, receives those of the first b' scalars.
    """
    num, chains, length = order.shape
    scalars = batches.shape[1]
    total, others, squares = sums[0], sums[1], sums[2]
    scale = batches.dtype.type(1.0 / (length * length))
    for k in range(num):
        for j in range(scalars):
            others[j] = squares[j] = 0
        # The sums of all chains add up to zero: the last one follows from the others.
        for chain in range(chains - 1):
            for j in range(scalars):
                total[j] = 0
            for i in range(0, length - 3, 4):
                a, b = batches[order[k, chain, i]], batches[order[k, chain, i + 1]]
                c, d = batches[order[k, chain, i + 2]], batches[order[k, chain, i + 3]]
                for j in range(scalars):
                    total[j] += (a[j] + b[j]) + (c[j] + d[j])
            for i in range(length - length % 4, length):
                a = batches[order[k, chain, i]]
                for j in range(scalars):
                    total[j] += a[j]
            for j in range(scalars):
                others[j] += total[j]
                squares[j] += total[j] * total[j]
        most = largest[k]
        for j in range(scalars):
            squares[j] = (squares[j] + others[j] * others[j]) * scale
            most = max(most, squares[j])
        largest[k] = most
        for j in range(shares.shape[1]):
            shares[k, j] = squares[j]
