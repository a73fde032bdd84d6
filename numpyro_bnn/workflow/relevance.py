"""How much each input matters to the predictions of a posterior, by shuffling it among the rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from numpyro_bnn import scores
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.training_data import observed_targets

# Draws used of each chain: the average of a few hundred is known well enough.
_DRAWS = 50


class Relevance(NamedTuple):
    """Fall of the log score when one input is shuffled among the rows, nats a row, and its error."""

    name: str
    drop: float
    error: float


def relevance(
    draws: Draws,
    x: np.ndarray,
    y: np.ndarray,
    groups: Sequence[tuple[str, Sequence[int]]],
    *,
    num_shuffles: int = 3,
    seed: int = 0,
) -> list[Relevance]:
    """Relevance of groups of columns to the average (Breiman, *Random forests*, 2001, section 10)."""
    # Shuffling a column breaks its tie to the target and to the other columns. Of columns that say the same
    # each alone seems irrelevant.
    few = _few(draws)
    y = observed_targets("relevance", draws, draws.model, x, y, None)
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(y)) for _ in range(num_shuffles)]
    whole = _log_scores(few, x, y)
    found = []
    for name, columns in groups:
        falls = []
        for order in orders:
            shuffled = np.array(x)
            shuffled[:, columns] = shuffled[order][:, columns]
            falls.append(whole - _log_scores(few, shuffled, y))
        by_row = np.mean(falls, 0)
        found.append(Relevance(name, float(by_row.mean()), scores.standard_error(by_row)))
    return found


def _log_scores(draws: Draws, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(scores.lppd(predict(None, draws, x), y, pointwise=True))


def _few(draws: Draws) -> Draws:
    chosen = np.unique(np.linspace(0, draws.num_draws - 1, _DRAWS).round().astype(int))
    values = {name: np.asarray(value)[:, chosen] for name, value in draws.items()}
    return Draws(values, draws.model, info=draws.info)
