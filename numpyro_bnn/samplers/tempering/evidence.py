"""Statistics of parallel tempering: swaps, communication barrier, round trips, moves, log evidence.

All are computed from arrays that the sampler records with its draws, so that they are the same for a run
that was stored and loaded.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from numpyro.diagnostics import effective_sample_size

from numpyro_bnn._sentences import say
from numpyro_bnn._types import Values

# Fewer draws than this do not show how long they remember.
_FEWEST = 40
# State fields of parallel tempering that its statistics are computed from.
FIELDS = ("log_likelihoods", "likelihood_powers", "swap_probs", "round_trips")
# Log evidences differ if by more than so many nats and so many joint standard errors.
_NATS = 1.0
_ERRORS = 2.0


class Tempering(NamedTuple):
    """Statistics of a run of parallel tempering, by chain.

    - **likelihood_powers** - power of the likelihood on each rung, 0 (prior) to 1 (posterior), (chain, rung)
    - **swap_rates** - mean acceptance of the swaps of each pair, (chain, rung - 1)
    - **barrier** - communication barrier Λ: the rejection rates summed, (chain,)
    - **round_trips** - number of round trips of states from the prior to the posterior and back, (chain,)
    - **log_evidence** - log p(y) in nats by stepping stones, (chain,)
    - **log_evidence_error** - its Monte Carlo standard error, (chain,)
    - **move_correlations** - correlation of the log likelihood before and after the moves of a sweep, on each
      rung but the first, whose state is drawn anew, (chain, rung - 1); NaN where it was not recorded
    """

    likelihood_powers: np.ndarray
    swap_rates: np.ndarray
    barrier: np.ndarray
    round_trips: np.ndarray
    log_evidence: np.ndarray
    log_evidence_error: np.ndarray
    move_correlations: np.ndarray

    def facts(self) -> list[str]:
        """The most important statistics, in a few words each."""
        value = float(self.log_evidence.mean())
        error = float(np.linalg.norm(self.log_evidence_error) / len(self.log_evidence_error))
        return [
            f"log evidence {value:.2f} ± {error:.2f}",
            f"{int(self.round_trips.sum())} round trips",
            f"barrier {self.barrier.mean():.1f}",
        ]

    def __str__(self) -> str:
        lines = [f"{self.likelihood_powers.shape[1]} rungs from prior to posterior"]
        for chain, rates in enumerate(self.swap_rates):
            lines.append(
                f"chain {chain}: log evidence {self.log_evidence[chain]:.2f} ± "
                f"{self.log_evidence_error[chain]:.2f}, {self.round_trips[chain]} round trips, "
                f"barrier {self.barrier[chain]:.1f}, swaps accepted {rates.min():.2f} to "
                f"{rates.max():.2f}{_in_words(self.move_correlations[chain])}"
            )
        return "\n".join(lines)


def _in_words(correlations: np.ndarray) -> str:
    """How much of the log likelihood moves keep, in words; empty for a run that did not record it."""
    known = correlations[np.isfinite(correlations)]
    if not known.size:
        return ""
    low, middle, high = np.quantile(known, [0.0, 0.5, 1.0])
    return (
        f", log likelihood before and after a move correlated {low:.2f} to {high:.2f} (median "
        f"{middle:.2f})"
    )


def log_evidence_of(log_likelihoods: Values, likelihood_powers: Values) -> tuple[float, float]:
    """log p(y) and its error, in nats, from log likelihoods (draw, rung); NaN for less than 40 draws."""
    # Stepping stones (Xie, Lewis, Fan, Kuo and Chen 2011, *Systematic Biology* 60(2), eq. 14): log p(y) =
    # Σ_k log E_k[p(y | θ)^(b_{k+1} - b_k)], the expectation over rung k. The error is that of the
    # linearised sum over time, because rungs exchange their states.
    terms = np.asarray(log_likelihoods, np.float64)[:, :-1]
    terms = terms * np.diff(np.asarray(likelihood_powers, np.float64))
    highest = terms.max(0)
    # A rung none of whose draws has any likelihood: the estimate of the evidence is 0.
    weights = np.exp(terms - np.where(np.isfinite(highest), highest, 0.0))
    means = weights.mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(np.sum(np.log(means) + highest))
        relative = (weights / means).sum(1)
        if len(relative) < _FEWEST:
            return value, float("nan")
        # NumPyro's size may be negative where draws alternate; ArviZ bounds it so.
        count, size = len(relative), effective_sample_size(relative[None])
        error = np.sqrt(relative.var(ddof=1) / count * max(count / size, 1 / np.log10(count)))
    return value, float(error) if relative.std() else 0.0


def tempering_of(stats: Mapping[str, ArrayLike]) -> Tempering | None:
    """Statistics of parallel tempering from fields (chain, draw, …); None for samplers without a ladder."""
    if not set(FIELDS) <= set(stats):
        return None
    likelihoods, powers, swaps, trips = (np.asarray(stats[name]) for name in FIELDS)
    if not likelihoods.shape[1]:
        return None
    found = [log_evidence_of(one, ladder[-1]) for one, ladder in zip(likelihoods, powers)]
    evidence, error = np.array(found).T
    rates = swaps.mean(1, dtype=np.float64)
    # Runs that were stored before it was recorded do not have it.
    moves = stats.get("move_correlations")
    kept = np.full(rates.shape, np.nan) if moves is None else np.asarray(moves)[:, -1]
    return Tempering(powers[:, -1], rates, (1 - rates).sum(1), trips[:, -1], evidence, error, kept)


def doubts(found: Tempering, second: Tempering | None = None) -> list[str]:
    """Reasons why a run of parallel tempering cannot be trusted yet, a sentence for each."""
    said = []
    idle = np.flatnonzero(found.round_trips == 0)
    if idle.size:
        chains = f"Chain {idle[0]}" if idle.size == 1 else f"{idle.size} chains"
        said.append(say("no round trip", chains=chains))
    values, errors = found.log_evidence, found.log_evidence_error
    said += _parted(values, errors, "its replicas")
    if second is not None and not said:
        values = np.concatenate([values, second.log_evidence])
        errors = np.concatenate([errors, second.log_evidence_error])
        said += _parted(values, errors, "the two runs")
    return said


def _parted(values: np.ndarray, errors: np.ndarray, whose: str) -> list[str]:
    """A sentence if log evidences differ by more than a nat beyond their errors."""
    gaps = np.abs(values[:, None] - values) - _ERRORS * np.hypot(errors[:, None], errors)
    if not (gaps > _NATS).any():
        return []
    return [say("evidence differs", whose=whose, low=values.min(), high=values.max())]
