"""Tables for the command line: two that ship with scikit-learn, and the user's own CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from numpyro_bnn.cli.csv_columns import Text, columns_of, read_text
from numpyro_bnn.data.units import Column, moments

Task = Literal["classification", "regression"]

# A text column with more levels than this is an identifier rather than a feature.
_MAX_LEVELS = 50
# An integer target with at most this many values is taken for classes.
_MAX_CLASSES = 20


class Source(NamedTuple):
    """A column of a file that became one input, or one input a level.

    - **name** - its name
    - **kind** - ``"numbers"``, ``"truth values"`` or ``"texts"``
    - **levels** - the texts of a text column, each an input; empty for other kinds
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()


class Table(NamedTuple):
    """Inputs and a target.

    - **name** - name of the data set
    - **x** - (N, D) float64
    - **y** - (N,) float64, or integer classes from 0
    - **task** - ``"classification"`` or ``"regression"``
    - **columns** - names of the inputs
    - **target** - name of the target
    - **classes** - labels of the classes; empty for regression
    - **sources** - the columns that the inputs were made from
    - **row_names** - names of the rows
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    task: Task
    columns: tuple[str, ...]
    target: str
    classes: tuple[str, ...]
    sources: tuple[Source, ...]
    row_names: tuple[str, ...]

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """The source columns, with the numbers of the inputs that each became."""
        place = {name: k for k, name in enumerate(self.columns)}
        return [(s.name, [place[name] for name in _input_names(s)]) for s in self.sources]


def digits() -> Table:
    """Handwritten digits, 1797 images of 8×8 pixels (scikit-learn)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    columns = tuple(data.feature_names)
    classes = tuple(str(c) for c in data.target_names)
    return Table(
        "digits",
        data.data,
        data.target,
        "classification",
        columns,
        "digit",
        classes,
        _numbers(columns),
        _numbered(len(data.target)),
    )


def diabetes() -> Table:
    """Progression of diabetes in 442 patients, 10 measurements each (scikit-learn)."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    columns = tuple(data.feature_names)
    return Table(
        "diabetes",
        data.data,
        data.target,
        "regression",
        columns,
        "progression",
        (),
        _numbers(columns),
        _numbered(len(data.target)),
    )


def _numbers(columns: Sequence[str]) -> tuple[Source, ...]:
    return tuple(Source(name, "numbers") for name in columns)


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"row {number}" for number in range(count))


def read_csv(
    path: str | Path,
    target: str | None,
    task: Task | None = None,
    *,
    drop: Sequence[str] = (),
    separator: str = ",",
) -> Table:
    """Read a table with a header; text columns become one column a level.

    :param path: the file.
    :param target: name of the column to predict.
    :param task: inferred where None: text, or at most 20 different whole numbers, are classes.
    :param drop: columns that are no inputs; if the first has a text of its own in each row, it names them.
    :param separator: what stands between the fields.
    :raises ValueError: for a file that is no table, a target that is missing or constant, values
        that are missing or of another kind than the rest of their column (by row and column), a
        text column that looks like an identifier, or a quantity that float32 cannot tell apart.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"There is no file {path}. Give `digits`, `diabetes` or the path of a CSV."
        )
    if target in drop:
        raise ValueError(
            f"--drop: {target!r} is the target, and cannot be left out. Drop other columns."
        )
    text = read_text(path, separator, drop)
    names = ", ".join(text.names)
    if target is None:
        raise ValueError(f"Say which column to predict with --target; {path} has: {names}.")
    if target not in text.names:
        raise ValueError(f"{path} has no column '{target}'; it has: {names}.")
    if len(text.names) < 2 or len(text.rows) < 20:
        raise ValueError(
            f"{path} has {len(text.rows)} rows and {len(text.names)} columns; at least 20 rows and one "
            "column beside the target are needed."
        )
    frame = columns_of(path, text)
    y, classes, task = _target(frame[target], task)
    sources = _sources_of(frame.drop(columns=target))
    inputs = inputs_of(path, frame, sources)
    x = inputs.to_numpy(np.float64)
    moments(str(path), Column("the inputs", inputs), x)
    if task == "regression":
        moments(str(path), Column(f"the target '{target}'"), y)
    columns = tuple(map(str, inputs.columns))
    return Table(path.stem, x, y, task, columns, target, classes, sources, row_names(text))


def row_names(text: Text) -> tuple[str, ...]:
    """Names of the rows of a file: the first column that was dropped, if all differ, else their numbers."""
    first = [fields[0] for fields in text.dropped if fields]
    if first and len(set(first)) == len(text.rows):
        return tuple(first)
    return tuple(f"row {number}" for number in text.numbers)


def _target(column: pd.Series, task: Task | None) -> tuple[np.ndarray, tuple[str, ...], Task]:
    levels = column.nunique()
    if levels < 2:
        raise ValueError(
            f"The target '{column.name}' has one value only; there is nothing to learn."
        )
    numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    whole = numeric and bool((column == column.round()).all())
    if task is None:
        task = (
            "classification" if not numeric or (whole and levels <= _MAX_CLASSES) else "regression"
        )
    if task == "regression":
        if not numeric:
            raise ValueError(
                f"The target '{column.name}' is not numeric (for example {column.iloc[0]!r}); regression "
                "needs numbers. Use --task classification."
            )
        return column.to_numpy(np.float64), (), task
    if whole and column.abs().max() < 2**53:
        column = column.astype(np.int64)  # so that classes are called 3 rather than 3.0
    codes, labels = pd.factorize(column, sort=True)
    rare = column.value_counts().min()
    if rare < 2:
        raise ValueError(
            f"The target '{column.name}' has {levels} classes, and some occur once only. If it is a "
            "quantity, use --task regression."
        )
    return codes.astype(np.int32), tuple(str(label) for label in labels), task


def _sources_of(frame: pd.DataFrame) -> tuple[Source, ...]:
    sources = []
    for name in map(str, frame.columns):
        column = frame[name]
        if pd.api.types.is_bool_dtype(column):
            sources.append(Source(name, "truth values"))
        elif pd.api.types.is_numeric_dtype(column):
            sources.append(Source(name, "numbers"))
        else:
            levels = tuple(sorted(set(column)))
            if len(levels) > _MAX_LEVELS:
                raise ValueError(
                    f"The column '{name}' has {len(levels)} different texts (for example "
                    f"{column.iloc[0]!r}), more than {_MAX_LEVELS}. Drop it with --drop if it names the "
                    "row; correct it if it should be numeric."
                )
            sources.append(Source(name, "texts", levels))
    return tuple(sources)


def _input_names(source: Source) -> list[str]:
    return [f"{source.name}_{level}" for level in source.levels] or [source.name]


def inputs_of(path: Path, frame: pd.DataFrame, sources: Sequence[Source]) -> pd.DataFrame:
    """Columns of a file as inputs of a network: texts become one column a level, after all others.

    :param path: path of the file, for errors.
    :param frame: columns of one kind each.
    :param sources: the columns to take, of their kinds and levels.
    :raises ValueError: for two inputs of one name, and for other kinds or levels than those of the sources.
    """
    made: dict[str, np.ndarray] = {}
    for source in sorted(sources, key=lambda s: bool(s.levels)):
        column = _of_kind(path, frame, source)
        for name, level in zip(_input_names(source), source.levels or (None,)):
            if name in made:
                raise ValueError(
                    f"{path}: a level of a text column would be called {name!r}, as another column is. "
                    "Rename that column."
                )
            value = column if level is None else column == level
            made[name] = np.asarray(value, np.float64)
    return pd.DataFrame(made)


def _of_kind(path: Path, frame: pd.DataFrame, source: Source) -> pd.Series:
    column = frame[source.name]
    (found,) = _sources_of(column.to_frame())
    if found.kind != source.kind:
        raise ValueError(
            f"{path}: the column {source.name!r} holds {found.kind} (such as {column.iloc[0]!r}), and in "
            f"the table that was fitted {source.kind}. Give values of that kind."
        )
    unknown = sorted(set(found.levels) - set(source.levels))
    if unknown:
        known = ", ".join(map(repr, source.levels))
        raise ValueError(
            f"{path}: the column {source.name!r} holds {unknown[0]!r}, which no row that was fitted had; "
            f"known are {known}. Correct it, leave these rows out, or fit again with rows of that kind."
        )
    return column
