"""Tables for the command line: two that ship with scikit-learn, and the user's own CSV."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from numpyro_bnn.cli.csv_columns import columns_of, read_text
from numpyro_bnn.data.units import Column, moments

Task = Literal["classification", "regression"]

# A text column with more levels than this is an identifier rather than a feature.
_MAX_LEVELS = 50
# An integer target with at most this many values is taken for classes.
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
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    task: Task
    columns: tuple[str, ...]
    target: str
    classes: tuple[str, ...]


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
    )


def diabetes() -> Table:
    """Progression of diabetes in 442 patients, 10 measurements each (scikit-learn)."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    columns = tuple(data.feature_names)
    return Table("diabetes", data.data, data.target, "regression", columns, "progression", ())


def read_csv(path: str | Path, target: str | None, task: Task | None = None) -> Table:
    """Read a table with a header; text columns become one column a level.

    :param path: the file.
    :param target: name of the column to predict.
    :param task: inferred where None: text, or at most 20 different whole numbers, are classes.
    :raises ValueError: for a file that is no table, a target that is missing or constant, values
        that are missing or of another kind than the rest of their column (by row and column), a
        text column that looks like an identifier, or a quantity that float32 cannot tell apart.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"There is no file {path}. Give `digits`, `diabetes` or the path of a CSV."
        )
    text = read_text(path)
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
    inputs = _numeric(path, frame.drop(columns=target))
    x = inputs.to_numpy(np.float64)
    moments(str(path), Column("the inputs", inputs), x)
    if task == "regression":
        moments(str(path), Column(f"the target '{target}'"), y)
    return Table(path.stem, x, y, task, tuple(map(str, inputs.columns)), target, classes)


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


def _numeric(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """Texts as one column a level."""
    text = [c for c in frame.columns if not pd.api.types.is_numeric_dtype(frame[c])]
    for column in text:
        levels = frame[column].nunique()
        if levels > _MAX_LEVELS:
            raise ValueError(
                f"The column '{column}' has {levels} different texts (for example "
                f"{frame[column].iloc[0]!r}), more than {_MAX_LEVELS}. Drop it if it names the row; "
                "correct it if it should be numeric."
            )
    made = pd.get_dummies(frame, columns=text, dtype=np.float64) if text else frame
    twice = sorted(made.columns[made.columns.duplicated()])
    if twice:
        raise ValueError(
            f"{path}: a level of a text column would be called {twice[0]!r}, as another column is. "
            "Rename that column."
        )
    return made
