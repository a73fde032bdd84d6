"""Tells whether rows that should be new are those that a run was fitted to."""

from hashlib import blake2b
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import as_arrays
from numpyro_bnn.posterior.draws import Run
from numpyro_bnn.posterior.training_data import training_data

# So many equal rows are put down to chance only where that is likelier than this.
_CHANCE = 1e-4


def refuse_training_rows(owner: str, run: Run | None, x: PyTree, y: ArrayLike) -> None:
    """Refuse rows of inputs and targets of which too many equal a training row.

    Tables of few distinct values repeat rows. A new row may equal a training row as often as training rows
    equal each other; the rows are refused where there are more than that explains.

    :param owner: the function that was called, for the error.
    :param run: an ``MCMC`` after `run`; anything else knows no training rows, and nothing is compared.
    :param x: inputs, as the model takes them.
    :param y: targets.
    :raises ValueError: naming how many rows were seen in training.
    """
    found = _fitted_and_given(owner, run, x, y)
    if found is None:
        return
    fitted, new = found
    distinct, counts = np.unique(np.array(fitted), return_counts=True)
    seen = int(np.isin(np.array(new), distinct).sum())
    by_chance = (counts[counts > 1].sum() + 1) / (len(fitted) + 1)
    if binom.sf(seen - 1, len(new), by_chance) < _CHANCE:
        raise ValueError(
            f"{owner}: {seen} of {len(new)} calibration rows are training rows of this run, which fits them "
            "better than it fits new rows. Give rows that were held out before the fit."
        )


def refuse_new_rows(owner: str, run: Run, x: Any, y: Any, site: str | None = None) -> None:
    """Refuse rows of inputs and targets that are not among the training rows.

    :param owner: the function that was called, for the error.
    :param run: an ``MCMC`` after `run`.
    :param x: inputs, as the model takes them.
    :param y: targets.
    :param site: the observed site that they belong to, where there are several.
    :raises ValueError: naming how many rows are new.
    """
    found = _fitted_and_given(owner, run, x, y, site)
    if found is None:
        return
    fitted, given = found
    new = np.flatnonzero(~np.isin(np.array(given), np.array(fitted)))
    if new.size:
        raise ValueError(
            f"{owner}: {new.size} of {len(given)} rows, such as row {new[0]}, are no training rows of this "
            "run, and leave-one-out is about the rows that were fitted. Leave x and y out, or score new rows "
            "by `bnn.scores.lppd`."
        )


def _fitted_and_given(
    owner: str, run: Any, x: Any, y: Any, site: str | None = None
) -> tuple[list[bytes], list[bytes]] | None:
    """Fingerprints of the training rows and of the rows given; None where they cannot be compared."""
    model = getattr(getattr(run, "sampler", None), "model", None)
    data = training_data(owner, model, run)
    if data.x is None:
        return None
    targets = [value for name, value in data.observed.items() if site in (None, name)]
    # Where it is not known which of several targets was given, inputs are compared by themselves.
    known = (data.x, *targets) if len(targets) == 1 else (data.x,)
    leaves = [
        jax.tree.leaves(as_arrays(model, values, {})[0]) for values in (known, (x, y)[: len(known)])
    ]
    if not _are_comparable(*leaves):
        return None
    fitted, given = digests(*leaves)
    return fitted, given


def _are_comparable(fitted: list[Any], new: list[Any]) -> bool:
    """Whether both are arrays in memory with rows of the same shapes; `predict` tells of other columns."""
    arrays = all(isinstance(leaf, (np.ndarray, jax.Array)) and leaf.ndim for leaf in fitted + new)
    return arrays and [np.shape(f)[1:] for f in fitted] == [np.shape(n)[1:] for n in new]


def digests(*tables: list[PyTree]) -> list[list[bytes]]:
    """A fingerprint of each row of some tables, the same where all their numbers are equal.

    :param tables: of each its arrays, with rows first.
    """
    # One of them may have gone through the device, which rounds to float32.
    kinds = [
        min((np.dtype(leaf.dtype) for leaf in column), key=_significance) for column in zip(*tables)
    ]
    return [_of_rows(table, kinds) for table in tables]


def _significance(kind: np.dtype) -> int:
    """Bytes of a type of real numbers; whole numbers are exact in the widest."""
    return kind.itemsize if kind.kind == "f" else np.dtype(np.float64).itemsize


def _of_rows(table: list[Any], kinds: list[np.dtype]) -> list[bytes]:
    columns = [
        # Zero has two signs.
        np.asarray(leaf).reshape(len(leaf), -1).astype(kind if kind.kind == "f" else np.float64)
        + 0.0
        for leaf, kind in zip(table, kinds)
    ]
    return [
        blake2b(b"".join(part.tobytes() for part in row), digest_size=16).digest()
        for row in zip(*columns)
    ]
