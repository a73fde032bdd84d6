"""Tells whether rows that should be new are those that a run was fitted to."""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import betabinom, binom

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import as_arrays
from numpyro_bnn.data.fingerprints import KNOWN_ROWS, SeenRows, row_hashes, seen_rows
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.fitted import held_by, model_of
from numpyro_bnn.posterior.training_data import as_observed, training_data

# Equal rows are put down to chance only where that is likelier than this.
_CHANCE = 1e-4


def refuse_training_rows(owner: str, fitted: Any, x: PyTree, y: ArrayLike) -> None:
    """Refuse rows of inputs and targets of which too many equal a training row."""
    for rows in _compared(owner, fitted, x, y):
        distinct, counts = np.unique(np.array(rows.fitted), return_counts=True)
        seen = int(np.isin(np.array(rows.given), distinct).sum())
        if _chance_of(seen, len(rows.given), counts) < _CHANCE:
            few = "" if rows.share == 1 else f", of which {rows.share:.2g} are known"
            raise ValueError(
                f"{owner}: {seen} of {len(rows.given)} calibration rows are training rows of this run{few}, "
                "which fits them better than it fits new rows. Give rows that were held out before the fit."
            )


def _chance_of(seen: int, given: int, counts: np.ndarray) -> float:
    """Probability that `seen` or more new rows equal a training row, where rows repeat as in training."""
    # The share of rows that repeat is known from the training rows alone, as the share of those that equal
    # another one: a beta distribution, and pairs, of which both rows count, tell half as much.
    alone = counts[counts == 1].sum()
    repeated, in_pairs = counts[counts > 1].sum(), counts[counts == 2].sum()
    weight = (alone + 1) / (alone + in_pairs + 1)
    return float(betabinom.sf(seen - 1, given, (repeated + 1) * weight, (alone + 1) * weight))


def refuse_new_rows(owner: str, fitted: Any, x: Any, y: Any, site: str | None = None) -> None:
    """Refuse rows of inputs and targets that are not among the training rows."""
    found = [
        (rows, np.isin(np.array(rows.given), np.array(rows.fitted)))
        for rows in _compared(owner, fitted, x, y, site)
    ]
    if not found:
        return
    # The candidate for the target that agrees with most rows.
    rows, known = max(found, key=lambda pair: pair[1].sum())
    new = np.flatnonzero(~known)
    if rows.share == 1:
        told = f"{new.size} of {len(known)} rows, such as row {new[0]}, are" if new.size else ""
    else:
        unlikely = binom.cdf(known.sum(), len(known), rows.share) < _CHANCE
        told = f"most of these {len(known)} rows are" if unlikely else ""
    if told:
        raise ValueError(
            f"{owner}: {told} no training rows of this run, and leave-one-out is about the rows that were "
            "fitted. Leave x and y out, or score new rows by `bnn.scores.lppd`."
        )


def _compared(owner: str, fitted: Any, x: Any, y: Any, site: str | None = None) -> list[SeenRows]:
    """Fingerprints of training rows and of the rows given; none where they cannot be compared."""
    model = model_of(fitted)
    data = training_data(owner, model, fitted)
    if data.x is None:
        return _noted_with_draws(held_by(fitted, "draws") or fitted, x, y)
    targets = [value for name, value in data.observed.items() if site in (None, name)]
    if len(targets) == 1:
        y = as_observed(owner, fitted, model, x, y, site)
    # If the given target is one of several, only inputs are compared.
    known = (data.x, *targets) if len(targets) == 1 else (data.x,)
    leaves = [
        jax.tree.leaves(as_arrays(model, values, {})[0]) for values in (known, (x, y)[: len(known)])
    ]
    if not _are_comparable(*leaves):
        return []
    trained, given = row_hashes(*leaves)
    return [SeenRows(trained, given)]


def _noted_with_draws(draws: Any, x: Any, y: Any) -> list[SeenRows]:
    if not isinstance(draws, Draws) or KNOWN_ROWS not in draws.info:
        return []
    given = (jax.tree.leaves(one) for one in as_arrays(draws.model, (x, y), {})[0])
    return seen_rows(draws.info[KNOWN_ROWS], *given)


def _are_comparable(fitted: list[Any], new: list[Any]) -> bool:
    """Whether both are arrays in memory with rows of the same shapes; `predict` tells of other columns."""
    arrays = all(isinstance(leaf, (np.ndarray, jax.Array)) and leaf.ndim for leaf in fitted + new)
    return arrays and [np.shape(f)[1:] for f in fitted] == [np.shape(n)[1:] for n in new]
