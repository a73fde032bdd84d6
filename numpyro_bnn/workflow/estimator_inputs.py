"""What an estimator makes of its arguments: arrays, tables with names, blocks of rows, random keys."""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.utils import (
    _safe_indexing,
    assert_all_finite,
    check_consistent_length,
    check_random_state,
)
from sklearn.utils.validation import _check_sample_weight, validate_data

from numpyro_bnn._checks import check_share, check_whole
from numpyro_bnn.data.arguments import plain, refuse_text_columns
from numpyro_bnn.data.columns import check_columns, column_names
from numpyro_bnn.data.units import Column, known_targets, moments, rows_with_targets
from numpyro_bnn.workflow.calibration import rows_needed

# The first coverage for which held-out rows are calibrated; others use the same rows.
COVERAGE = 0.9
# Rows that are predicted together.
BLOCK = 256


def validated(
    estimator: BaseEstimator, X: Any, y: Any = None, *, reset: bool, y_numeric: bool = False
) -> Any:
    """Inputs, and targets where given, as arrays, checked as scikit-learn does it."""
    name = type(estimator).__name__
    X, y = (_wider(plain(name, label, values)) for label, values in (("X", X), ("y", y)))
    refuse_text_columns(name, "X", X, convertible=True)
    _refuse_dates(name, "X", X)
    if reset:
        estimator._columns = column_names(X)
        known = known_targets(np.asarray(y)) if is_regressor(estimator) else None
        y = y if known is None else np.where(known, y, 0.0)
        if y_numeric:
            _refuse_labels(name, y)
        arrays = _checked(
            estimator, X, y, y_numeric=y_numeric, multi_output=y_numeric, ensure_min_samples=2
        )
        arrays = arrays if known is None else (arrays[0], np.where(known, arrays[1], np.nan))
        # Rounding may have emptied a column of short floats already; the model sees float64.
        kinds = np.atleast_1d(getattr(X, "dtypes", getattr(X, "dtype", None)))
        if any(str(kind) in ("float16", "float32") for kind in kinds):
            moments(name, Column("X", X), np.asarray(arrays[0] if hasattr(X, "dtypes") else X))
        return arrays
    found = _checked(estimator, X, reset=False)
    # scikit-learn compares names that are texts alone.
    check_columns(name, "X", estimator._columns, X)
    return found


def _refuse_dates(name: str, label: str, values: Any) -> None:
    """Refuse dates and times, whose numbers depend on the unit that they are stored in."""
    kinds = np.atleast_1d(getattr(values, "dtypes", getattr(values, "dtype", None)))
    if any(getattr(kind, "kind", "") in ("m", "M") for kind in kinds):
        raise TypeError(
            f"{name}: {label} holds dates. Make them numbers, such as days since the first."
        )


def _refuse_labels(name: str, y: Any) -> None:
    """Refuse targets that are no numbers."""
    _refuse_dates(name, "y", y)
    texts = [value for value in np.ravel(np.asarray(y, object)) if isinstance(value, str)]
    try:
        np.array(texts, np.float64)
    except ValueError:
        said = f"{name}: y holds {texts[0]!r}, expected numbers. For labels take BNNClassifier."
        raise ValueError(said) from None


def _checked(estimator: BaseEstimator, *arrays: Any, **checks: Any) -> Any:
    """Arrays checked by scikit-learn; NaN among the inputs is named with its place."""
    checks |= {"ensure_all_finite": "allow-nan"}
    found = validate_data(estimator, *arrays, dtype=np.float64, **checks)
    X = found if len(arrays) == 1 else found[0]
    if len(places := np.argwhere(np.isnan(X))):
        row, column = places[0]
        column = getattr(estimator, "feature_names_in_", range(X.shape[1]))[column]
        raise ValueError(
            f"{type(estimator).__name__}: X has {len(places)} missing values (NaN), the first in row {row}, "
            f"column {column!r}. Drop such rows, or put SimpleImputer(add_indicator=True) before the "
            'estimator in a pipeline, as on the page "Mixed tables".'
        )
    return found


def with_targets(estimator: BaseEstimator, X: Any, y: Any, weights: Any = None) -> tuple:
    """Inputs, targets and weights of the rows that have any target; NaN where others are missing."""
    import pandas as pd

    name = type(estimator).__name__
    y = _wider(plain(name, "y", y))
    targets = np.asarray(y, object)
    # None, NaN, and NA of pandas, which cannot be compared or sorted.
    missing = pd.isna(targets)
    if not (targets.ndim and missing.any()):
        return X, y, weights
    check_consistent_length(X, y, weights)
    rows = np.flatnonzero(rows_with_targets(name, ~missing))
    y = np.array(np.where(missing, np.nan, targets)[rows].tolist())
    X, weights = (None if v is None else _safe_indexing(v, rows) for v in (X, weights))
    return X, y, weights


def _wider(values: Any) -> Any:
    """Arrays of bfloat16, which scikit-learn does not know, as float32."""
    narrow = str(getattr(values, "dtype", "")) == "bfloat16"
    return np.asarray(values, np.float32) if narrow else values


def added(estimator: BaseEstimator, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of rows that come after a fit, as arrays."""
    X = validated(estimator, X, reset=False)
    if is_regressor(estimator):
        _refuse_labels(type(estimator).__name__, y)
        assert_all_finite(np.asarray(y, np.float64), allow_nan=True, input_name="y")
    y = np.asarray(y)
    y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
    check_consistent_length(X, y)
    return X, y


def hidden_sizes(estimator: BaseEstimator) -> tuple[int, ...]:
    """Units of each hidden layer, from the `hidden` of an estimator: a sequence, or one number."""
    hidden = estimator.hidden
    layers = hidden if np.ndim(hidden) else (hidden,)
    name = type(estimator).__name__
    return tuple(check_whole(name, "each entry of hidden, such as (16, 16),", n) for n in layers)


def table_like(estimator: BaseEstimator, X: np.ndarray) -> Any:
    """The inputs as a table, where the training inputs were one, so that columns keep their names."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=names)


def weights_of(
    X: np.ndarray, y: np.ndarray, sample_weight: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows that count, and their weights; None where each counts once."""
    if sample_weight is None:
        return X, y, None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    counts = weights > 0
    if not counts.any():
        raise ValueError(
            "sample_weight holds zeros alone, so that no row is left to learn from. Give some rows a "
            "positive weight."
        )
    X, y, weights = X[counts], y[counts], weights[counts]
    return X, y, None if (weights == 1).all() else weights


def held_out(estimator: BaseEstimator, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows to fit, and of those that its `calibration` holds out; shares of classes kept."""
    share = estimator.calibration
    if share is not None:
        check_share(type(estimator).__name__, "calibration", share)
    is_class, seed = is_classifier(estimator), estimator.random_state
    return calibration_rows(f"calibration={share}", y, share, seed, is_class)


def calibration_rows(
    option: str, y: np.ndarray, share: float | None, seed: Any, is_class: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows to fit, and of a share to calibrate on, of which each class has its part."""
    if share is None:
        return np.arange(len(y)), np.arange(0)
    count, needed = round(float(share) * len(y)), rows_needed(COVERAGE)
    order = check_random_state(seed).permutation(len(y))
    classes = y[order] if is_class else np.zeros(len(y), int)
    # Rows are sorted by class, so that evenly spaced ones keep the shares of classes.
    order = order[np.argsort(classes, kind="stable")]
    order = np.delete(order, np.unique(np.sort(classes), return_index=True)[1])
    count = min(count, len(order))
    if count < needed:
        raise ValueError(
            f"{option} of {len(y)} rows holds out {count}, too few for intervals of coverage {COVERAGE}. "
            f"Hold out at least {needed}, or give more rows."
        )
    held = np.sort(order[np.arange(count) * len(order) // count])
    return np.setdiff1d(np.arange(len(y)), held), held


def padded_to_blocks(X: np.ndarray) -> np.ndarray:
    """Rows, the last one repeated up to whole blocks of :data:`BLOCK` rows."""
    return np.concatenate([X, np.repeat(X[-1:], -len(X) % BLOCK, 0)])


def key_from(random_state: Any) -> jax.Array:
    """A random key from scikit-learn's `random_state`."""
    return jax.random.key(check_random_state(random_state).randint(2**31 - 1))
