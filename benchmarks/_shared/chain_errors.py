"""Monte Carlo errors of scores of an average over chains, by a jackknife: what each chain changes.

An average over K independent chains scores s; without chain k it scores s_k. The squared standard error of s
is (K − 1)/K Σ (s_k − mean of s_k)². For a score that is linear in chains this is that of a mean over K
independent values. Networks of an ensemble are chains of one draw.
"""

import math

import numpy as np
from scipy.special import logsumexp


def without_each(by_chain: np.ndarray) -> np.ndarray:
    """Log score of rows by all chains but one, from that of each chain alone: both (chain, row), nats."""
    others = [np.delete(by_chain, chain, 0) for chain in range(len(by_chain))]
    return np.stack([logsumexp(rest, 0) - math.log(len(rest)) for rest in others])


def jackknife_error(without: np.ndarray) -> float:
    """Standard error of a score over chains, from the score without each chain, (chain,)."""
    chains = len(without)
    if chains < 2:
        raise ValueError(
            f"jackknife_error: got {chains} chain, expected two or more. Run more chains."
        )
    return math.sqrt((chains - 1) * np.var(without))
