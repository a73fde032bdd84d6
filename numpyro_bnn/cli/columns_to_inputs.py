"""Turns columns of a table (numbers, truth values, texts and dates) into inputs of a network.

A text column becomes one input for each level. A date becomes its days since 1970, and its places on the
circles of the year and of the week. A column with missing values gets an input that says where they are
missing; the missing values themselves stay NaN until :func:`filled` puts medians of training rows in their
place.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

# Largest number of levels of a text column; one with more is an identifier rather than a feature.
_MAX_LEVELS = 50
_DATE_PARTS = ("days", "year cos", "year sin", "week cos", "week sin")
_DAYS_OF_A_YEAR = 365.2425


class Source(NamedTuple):
    """A column of a file that became one input or several.

    - **name** - its name
    - **kind** - ``"numbers"``, ``"truth values"``, ``"texts"`` or ``"dates"``
    - **levels** - the texts of a text column, each an input; empty for other kinds
    - **missing** - whether numbers or dates are missing in some rows
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    missing: bool = False


def sources_of(frame: pd.DataFrame) -> tuple[Source, ...]:
    """The kinds, levels and missing values of the columns of a table.

    :param frame: columns of one kind each.
    :raises ValueError: for a text column that looks like an identifier.
    """
    return tuple(_source_of(str(name), frame[name]) for name in frame.columns)


def _source_of(name: str, column: pd.Series) -> Source:
    missing = bool(column.isna().any())
    if pd.api.types.is_bool_dtype(column):
        return Source(name, "truth values")
    if pd.api.types.is_datetime64_any_dtype(column):
        return Source(name, "dates", missing=missing)
    if pd.api.types.is_numeric_dtype(column):
        return Source(name, "numbers", missing=missing)
    levels = tuple(sorted(set(column)))
    if len(levels) > _MAX_LEVELS:
        raise ValueError(
            f"The column '{name}' has {len(levels)} different texts (for example "
            f"{column.iloc[0]!r}), more than {_MAX_LEVELS}. Drop it with --drop if it names the "
            "row; correct it if it should be numeric."
        )
    return Source(name, "texts", levels)


def input_names(source: Source) -> list[str]:
    """Names of the inputs that a column becomes."""
    if source.levels:
        return [f"{source.name}_{level}" for level in source.levels]
    parts = [f"{source.name} {part}" for part in _DATE_PARTS]
    names = parts if source.kind == "dates" else [source.name]
    return [*names, f"{source.name} missing"] if source.missing else names


def inputs_of(path: Path, frame: pd.DataFrame, sources: Sequence[Source]) -> pd.DataFrame:
    """Columns of a file as inputs of a network: texts become one column a level, after all others.

    :param path: path of the file, for errors.
    :param frame: columns of one kind each.
    :param sources: the columns to take, of their kinds and levels.
    :return: a column for each input; NaN where a number or a date is missing.
    :raises ValueError: for two inputs of one name, and for other kinds or levels than those of the sources.
    """
    made: dict[str, np.ndarray] = {}
    for source in sorted(sources, key=lambda s: bool(s.levels)):
        column = _of_kind(path, frame, source)
        for name, value in zip(input_names(source), _values(column, source)):
            if name in made:
                raise ValueError(
                    f"{path}: a level of a text column would be called {name!r}, as another column is. "
                    "Rename that column."
                )
            made[name] = np.asarray(value, np.float64)
    return pd.DataFrame(made)


def _values(column: pd.Series, source: Source) -> list:
    if source.levels:
        return [column == level for level in source.levels]
    values: list = [column]
    if source.kind == "dates":
        days = (column - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        turns = [2 * np.pi * days / length for length in (_DAYS_OF_A_YEAR, 7.0)]
        # Rounding makes places of equal days of the week equal in the last bit too.
        places = [np.round(part(turn), 6) for turn in turns for part in (np.cos, np.sin)]
        values = [days, *places]
    return [*values, column.isna()] if source.missing else values


def _of_kind(path: Path, frame: pd.DataFrame, source: Source) -> pd.Series:
    column = frame[source.name]
    (found,) = sources_of(column.to_frame())
    if found.kind != source.kind:
        # A truth value as Python writes it.
        example = column.astype(object).iloc[0]
        raise ValueError(
            f"{path}: the column {source.name!r} holds {found.kind} (such as {example!r}), and in the table "
            f"that was fitted {source.kind}. Give values of that kind."
        )
    if found.missing and not source.missing:
        raise missing_values(path, source.name)
    unknown = sorted(set(found.levels) - set(source.levels))
    if unknown:
        known = ", ".join(map(repr, source.levels))
        raise ValueError(
            f"{path}: the column {source.name!r} holds {unknown[0]!r}, which no row that was fitted had; "
            f"known are {known}. Correct it, leave these rows out, or fit again with rows of that kind."
        )
    return column


def missing_values(path: Path, name: str) -> ValueError:
    """The error for new rows with a missing value in a column that had none where it was fitted."""
    return ValueError(
        f"{path}: the column {name!r} has missing values, and no row that was fitted had one. Fill them in "
        "or leave these rows out."
    )


def filled(
    x: np.ndarray, columns: Sequence[str], train: np.ndarray
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Inputs with a median in place of each missing value.

    :param x: inputs (N, columns).
    :param columns: their names, for the error.
    :param train: numbers of the rows that the medians are taken over.
    :return: complete inputs, and the medians.
    :raises ValueError: for a column without a value in these rows.
    """
    empty = np.isnan(x[train]).all(0)
    if empty.any():
        raise ValueError(
            f"No training row has a value of {columns[int(np.argmax(empty))]!r}. Leave the column out with "
            "--drop."
        )
    fill = np.nanmedian(x[train], 0)
    return np.where(np.isnan(x), fill, x), tuple(map(float, fill))
