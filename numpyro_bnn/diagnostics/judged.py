"""How precisely averages are known and whether chains agree: both measured once, and the verdict on them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from numpyro_bnn.diagnostics.convergence.rhat_limits import rhat_limit
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement, agreement
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import MeanErrors, mean_errors
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError, monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.prediction_units import row_distances, units_of
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.spaces import Space
from numpyro_bnn.diagnostics.verdict_names import Verdict

Arrays = dict[str, np.ndarray]
# Without predictions weights are judged, of many so many, evenly spaced over their sites.
_MOST_WEIGHTS = 10_000


class Judged(NamedTuple):
    """What the verdict rests on.

    - **error** - Monte Carlo errors of the averages
    - **agreement** - whether the chains differ by more than their errors
    - **tolerance** - what is accepted
    - **num_scalars** - scalars that were looked at
    - **rhat_limit** - what the worst R-hat of so many scalars stays below, at their median effective size
    - **num_above** - scalars above the limit of their own effective size; None for weights
    - **scores** - mean log score of each group of chains in nats, where targets were given and chains
      disagree
    - **num_impossible** - rows to whose targets no draw gives any probability; that log score has no
      error and is left out
    - **apart** - distance to the averages of a second run: `"total_variation"` or `"relative"` to the
      mean and 99 % quantile over rows
    """

    error: MonteCarloError
    agreement: Agreement
    tolerance: Tolerance
    num_scalars: int
    rhat_limit: float
    num_above: int | None
    scores: tuple[float, ...]
    num_impossible: int
    apart: Mapping[str, tuple[float, float]]

    @property
    def nothing_moves(self) -> bool:
        """Whether all draws of all chains are the same."""
        return not self.agreement.tested and self.agreement.needed <= 1

    @property
    def verdict(self) -> Verdict:
        """Disagreement before tolerance; what could not be tested is no agreement."""
        if self.agreement.disagree(self.tolerance):
            return Verdict("chains_disagree")
        if self.agreement.tested and self.error.within(self.tolerance):
            return Verdict("within_tolerance")
        if self.agreement.tested and self.error.within_on_average(self.tolerance):
            return Verdict("within_tolerance_on_average")
        return Verdict("run_longer")

    @property
    def needed(self) -> tuple[float, str]:
        """How many times as many draws bring all within tolerance, and what asks for most."""
        if self.nothing_moves:
            return float("inf"), "nothing moves"
        error, what = self.error.needed(self.tolerance)
        if self.agreement.needed > max(1.0, error):
            return float(self.agreement.needed), "the test of chains"
        return float(error), what.removesuffix(" (unknown)")


def judged(
    functions: Arrays,
    log_likelihood: np.ndarray | None,
    tolerance: Tolerance,
    *,
    space: Space | None = None,
    second: Mapping[str, np.ndarray] | None = None,
) -> Judged:
    """Measure finite draws.

    :param functions: name to `(chain, draw, input, ...)`, what is the same at all inputs with one.
    :param log_likelihood: `(chain, draw, input)` in nats.
    :param tolerance: what is accepted.
    :param space: R-hat of the same scalars.
    :param second: draws of another run, under the same names.
    """
    impossible = 0
    if log_likelihood is not None:
        impossible = int(np.isneginf(log_likelihood.max(axis=(0, 1))).sum())
        log_likelihood = None if impossible else log_likelihood
    errors = {name: mean_errors(x) for name, x in functions.items()}
    error = monte_carlo_error(functions, log_likelihood=log_likelihood, errors=errors)
    agrees = agreement(functions, errors=errors, tolerance=tolerance)
    size = np.concatenate([each.ess[each.sd > 0] for each in errors.values()])
    chains = len(next(iter(functions.values())))
    limit, above = float("nan"), None
    if size.size:
        limit = float(rhat_limit(size.size, chains, float(np.median(size))))
    if space is not None:
        above = 0
        for group in space.groups if size.size else ():
            own = rhat_limit(size.size, chains, errors[group.name].ess)
            above += int((group.rhat > own).sum())
    scores: tuple[float, ...] = ()
    if log_likelihood is not None and agrees.groups > 1 and not agrees.halves:
        scores = _scores(log_likelihood, agrees.members)
    return Judged(
        error,
        agrees,
        tolerance,
        sum(each.mean.size for each in errors.values()),
        limit,
        above,
        scores,
        impossible,
        {} if second is None else _apart(functions, errors, second),
    )


def _scores(log_likelihood: np.ndarray, members: np.ndarray) -> tuple[float, ...]:
    """Mean log score of the average over each group of chains."""
    found = []
    for group in range(int(members.max()) + 1):
        own = log_likelihood[members == group].reshape(-1, log_likelihood.shape[2])
        found.append(float((logsumexp(own, axis=0) - np.log(len(own))).mean()))
    return tuple(found)


def _apart(
    functions: Arrays, errors: Mapping[str, MeanErrors], second: Mapping[str, np.ndarray]
) -> dict[str, tuple[float, float]]:
    differences = {}
    for name, each in errors.items():
        theirs = second[name].mean(axis=(0, 1), dtype=np.float64)
        differences[name] = theirs[: len(each.mean)] - each.mean
    rows = row_distances(differences, units_of(functions, errors))
    return {
        unit: (float(each.mean()), float(np.quantile(each, 0.99, method="higher")))
        for unit, each in rows.items()
    }


def weights_to_judge(weights: Mapping[str, Any]) -> Arrays:
    """Draws `(chain, draw, scalar)` of all sites side by side, at most 10,000 scalars."""
    total = sum(int(np.prod(x.shape[2:])) for x in weights.values())
    every = -(-total // _MOST_WEIGHTS)
    flat = [x.reshape(*x.shape[:2], -1)[:, :, ::every] for x in weights.values()]
    return {"weights": np.concatenate(flat, axis=2)}
