"""Targets as a model observes them: it may take their logarithm, or a mean off them.

Predictions are about what the model observes, and so are densities and errors of targets beside them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import as_array, by_place, innermost
from numpyro_bnn.posterior.fitted import arguments_of, model_of, targets_of
from numpyro_bnn.posterior.training_data import (
    TrainingData,
    data_of,
    place_by_name,
    refuse_moving,
    target_places,
)
from numpyro_bnn.potential.data_dependencies import Place


def observed_targets(
    owner: str, fitted: object, model: Callable | None, x: PyTree, y: ArrayLike, site: str | None
) -> np.ndarray:
    """Values of the observed site at some rows, which the model makes of targets as a user has them."""
    return as_observed(owner, fitted, model, x, targets_of(fitted, y, owner), site)


def as_observed(
    owner: str, fitted: object, model: Callable | None, x: PyTree, y: Any, site: str | None
) -> np.ndarray:
    """As :func:`observed_targets`, of targets with numbers of classes in place of their names."""
    y = np.asarray(as_array(owner, "y", y))
    if model is None or hasattr(innermost(model), "standardization"):
        # A ready model predicts in the units of its user.
        return y
    place, data = _at_rows(fitted, model, x, y)
    # Another site may be observed without arguments.
    names = [n for n in data.observed if site in (None, n) and place in data.targets[n]]
    if len(names) != 1:
        return y
    refuse_moving(owner, data, names[0])
    made = data.observed[names[0]]
    if made.shape[:1] != y.shape[:1]:
        return y
    made = _with_gaps(made, y)
    same = made.shape == y.shape and np.array_equal(
        made, y.astype(made.dtype), equal_nan=made.dtype.kind == "f"
    )
    return y if same else made


def _with_gaps(made: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What is observed, unknown where the target is: a model that masks missing targets fills them."""
    if y.dtype.kind != "f" or not y.ndim:
        return made
    gaps = np.isnan(y)
    if made.shape != y.shape:
        gaps = gaps.reshape(len(y), -1).any(1).reshape(-1, *(1,) * (made.ndim - 1))
    return np.where(gaps, np.nan, made) if gaps.any() else made


def _at_rows(
    fitted: object, model: Callable, x: PyTree, y: np.ndarray
) -> tuple[Place | None, TrainingData]:
    """Where the target is in the call, and what the model observes at some rows."""
    own = model_of(fitted)
    given = by_place(own, *arguments_of(fitted))
    try:
        places = target_places(own, given) if given and own is not None else frozenset()
        place = next(iter(places)) if len(places) == 1 else place_by_name(model)
        arguments = _not_by_row(given, places) | {0: x, place: y}
        return place, data_of(model, arguments)
    except Exception:  # The model may need more arguments, or raise; treat as unknown.
        return None, TrainingData()


def _not_by_row(given: Mapping[Place, PyTree], places: frozenset[Place]) -> dict[Place, PyTree]:
    """Arguments of a run but its inputs, its targets and others with a value for each of its rows."""
    size = np.shape(jax.tree.leaves(given.get(0))[0])[:1] if given.get(0) is not None else ()
    return {
        place: value
        for place, value in given.items()
        if place != 0
        and place not in places
        and not any(np.shape(leaf)[:1] == size != () for leaf in jax.tree.leaves(value))
    }
