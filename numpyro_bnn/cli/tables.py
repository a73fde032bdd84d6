"""Tables for the command line: two that ship with scikit-learn, and the user's own CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from numpyro_bnn.cli.columns_to_inputs import Source, filled, input_names, inputs_of, sources_of
from numpyro_bnn.cli.csv_reading import Text, columns_of, read_text
from numpyro_bnn.data.units import Column, moments

Task = Literal["classification", "regression"]

# An integer target with at most this many different values is taken for classes.
_MAX_CLASSES = 20


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
    - **fill** - what stands for a missing value of each input; empty before :meth:`imputed`
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
    fill: tuple[float, ...] = ()

    def imputed(self, train: np.ndarray) -> "Table":
        """This table with medians of the training rows in place of missing numbers and dates.

        :param train: numbers of the training rows; medians are taken over these only.
        :raises ValueError: for a column that is missing in all training rows.
        """
        x, fill = filled(self.x, self.columns, train)
        return self._replace(x=x, fill=fill)

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """The source columns, with the numbers of the inputs that each became."""
        place = {name: k for k, name in enumerate(self.columns)}
        return [(s.name, [place[name] for name in input_names(s)]) for s in self.sources]


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
    impute: bool = False,
) -> Table:
    """Read a table with a header; text columns become one column a level, dates days and seasons.

    :param path: the file.
    :param target: name of the column to predict.
    :param task: inferred where None: text, or at most 20 different whole numbers, are classes.
    :param drop: columns that are no inputs; if the first has a text of its own in each row, it names them.
    :param separator: what stands between the fields.
    :param impute: whether missing values are allowed: numbers and dates then get an input that says where
        they are missing, and :meth:`Table.imputed` a value; texts a level of their own.
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
    frame = columns_of(path, text, target if impute else None, target)
    y, classes, task = _target(frame[target], task)
    sources = sources_of(frame.drop(columns=target))
    inputs = inputs_of(path, frame, sources)
    x = inputs.to_numpy(np.float64)
    complete, _ = filled(x, tuple(map(str, inputs.columns)), np.arange(len(x)))
    moments(str(path), Column("the inputs", inputs), complete)
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
    if pd.api.types.is_datetime64_any_dtype(column):
        raise ValueError(
            f"The target '{column.name}' holds dates (for example {column.iloc[0]}), expected numbers or "
            "classes. Give the days from a fixed date instead."
        )
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
        column = column.astype(np.int64)  # a class is then called 3 and not 3.0
    codes, labels = pd.factorize(column, sort=True)
    rare = column.value_counts().min()
    if rare < 2:
        raise ValueError(
            f"The target '{column.name}' has {levels} classes, and some occur once only. If it is a "
            "quantity, use --task regression."
        )
    return codes.astype(np.int32), tuple(str(label) for label in labels), task
