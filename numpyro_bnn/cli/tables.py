"""Tables for the command line: two that ship with scikit-learn, and the user's own CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from numpyro_bnn.cli.csv_columns import (
    Source,
    absent,
    described,
    inputs_of,
    is_missing,
    listed,
    parsed,
    read_fields,
    refuse,
    refuse_identifiers,
    source_of,
)

Task = Literal["classification", "regression"]

# An integer target with at most this many different values is taken for classes.
_MAX_CLASSES = 20


class Table(NamedTuple):
    """Inputs and a target."""

    name: str
    x: np.ndarray  # (N, D) float64
    y: np.ndarray  # (N,) float64, or integer classes from 0
    task: Task
    columns: tuple[str, ...]
    target: str
    classes: tuple[str, ...]  # labels; empty for regression
    sources: tuple[Source, ...]  # the columns that the inputs were made from
    row_names: tuple[str, ...]
    # What stands for a missing value of each input; empty before `imputed`
    fill: tuple[float, ...] = ()
    # What became of each column of a file, see `described`
    summary: tuple[tuple[str, str, str, str], ...] = ()

    def imputed(self, train: np.ndarray) -> "Table":
        """This table with medians of the training rows in place of missing numbers and dates."""
        empty = np.isnan(self.x[train]).all(0)
        if empty.any():
            raise ValueError(
                f"No training row has a value of {self.columns[int(np.argmax(empty))]!r}. Leave the column "
                "out with --drop."
            )
        fill = np.nanmedian(self.x[train], 0)
        x = np.where(np.isnan(self.x), fill, self.x)
        return self._replace(x=x, fill=tuple(map(float, fill)))

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """The source columns, with the numbers of the inputs that each became."""
        place = {name: k for k, name in enumerate(self.columns)}
        return [(s.name, [place[name] for name in s.inputs]) for s in self.sources]


def digits() -> Table:
    """Handwritten digits, 1797 images of 8×8 pixels (scikit-learn)."""
    from sklearn.datasets import load_digits

    return _built_in("digits", load_digits(), "digit", tuple(map(str, range(10))))


def diabetes() -> Table:
    """Progression of diabetes in 442 patients, 10 measurements each (scikit-learn)."""
    from sklearn.datasets import load_diabetes

    return _built_in("diabetes", load_diabetes(), "progression", ())


def _built_in(name: str, data: Any, target: str, classes: tuple[str, ...]) -> Table:
    columns = tuple(data.feature_names)
    sources = tuple(Source(column, "numbers") for column in columns)
    rows = tuple(f"row {number}" for number in range(len(data.target)))
    task: Task = "classification" if classes else "regression"
    return Table(name, data.data, data.target, task, columns, target, classes, sources, rows)


def read_csv(
    path: str | Path,
    target: str | None,
    task: Task | None = None,
    *,
    drop: Sequence[str] = (),
    text: Sequence[str] = (),
    separator: str | None = None,
    impute: bool = False,
) -> Table:
    """Read a table with a header; text columns become one column a level, dates days and seasons."""
    # Where the task is not given, text, or at most 20 different whole numbers, are classes. The first dropped
    # column names the rows if it has a text of its own in each. With `impute` missing numbers, truth values
    # and dates get an input that says where they are missing, and missing texts a level of their own.
    path = Path(path)
    fields = read_fields(path, separator)
    names = list(fields.columns)
    asked = [("--drop", name) for name in drop] + [("--text", name) for name in text]
    problems = [f"{by}: {absent(name, names)}" for by, name in asked if name not in names]
    if target is None:
        problems.append(f"say which column to predict with --target; it has: {listed(names, 20)}.")
    elif target not in names:
        problems.append(f"--target: {absent(target, names)}")
    elif target in drop:
        problems.append(
            f"--drop: {target!r} is the target, and cannot be left out. Drop other columns."
        )
    kept = fields.drop(columns=list(drop), errors="ignore")
    if kept.shape[1] < 2 or len(kept) < 20:
        problems.append(
            f"{len(kept)} rows and {kept.shape[1]} columns, and at least 20 rows and one column beside the "
            "target are needed."
        )
    refuse(path, problems)
    sources = []
    for name in kept.columns:
        try:
            source = source_of(name, kept[name], name in text)
            sources.append(source)
            if name != target:
                refuse_identifiers(source, kept[name])
        except ValueError as error:
            problems.append(str(error))
    refuse(path, [*_missing(kept, sources, str(target), impute), *problems])
    goal = next(source for source in sources if source.name == target)
    y, classes, task = _target(parsed(kept[target], goal.kind), task)
    sources.remove(goal)
    inputs = inputs_of(path, kept, sources)
    columns = tuple(map(str, inputs.columns))
    dropped = [fields[name] for name in names if name in drop]
    rows = dropped[0] if dropped and dropped[0].is_unique else [f"row {n}" for n in fields.index]
    summary = sorted(
        (described(s, kept[s.name]) for s in sources), key=lambda row: row[1:3] == ("numbers", "")
    )
    goal_row = (f"{target} (target)", *described(goal, kept[target])[1:])
    if classes:
        sizes = [f"{label} ({count})" for label, count in zip(classes, np.bincount(y))]
        goal_row = (goal_row[0], "classes", "", listed(sizes, 6))
    found = Table(
        path.stem,
        inputs.to_numpy(),
        y,
        task,
        columns,
        str(target),
        classes,
        tuple(sources),
        tuple(rows),
        summary=(goal_row, *summary),
    )
    # Loading JAX takes seconds, so everything about the file is checked before.
    from numpyro_bnn.data.units import Column, moments

    moments(str(path), Column("the inputs", inputs), found.imputed(np.arange(len(y))).x)
    if task == "regression":
        moments(str(path), Column(f"the target '{target}'"), y)
    return found


def _missing(
    fields: pd.DataFrame, sources: Sequence[Source], target: str, impute: bool
) -> list[str]:
    """Says where values are missing that may not be, or infinite."""
    wrong = fields.apply(is_missing)
    if impute:
        wrong.loc[:, wrong.columns != target] = False
    for source in sources:
        if source.kind == "numbers":
            wrong[source.name] |= np.isinf(parsed(fields[source.name], "numbers"))
    places = [(fields.index[i], fields.columns[k]) for i, k in np.argwhere(wrong.to_numpy())]
    if not places:
        return []
    advice = ""
    if any(name != target for _, name in places):
        advice += (
            " Correct the infinite inputs."
            if impute
            else " Fill them in or drop those rows; --missing impute allows missing inputs."
        )
    if any(name == target for _, name in places):
        advice += (
            f" Rows without a target '{target}' cannot be learned from: drop them, or put them into a "
            "file of their own and predict them after the fit, with `python -m numpyro_bnn predict`."
        )
    shown = listed((f"row {row}, column '{name}'" for row, name in places), 10, "; ")
    return [f"{len(places)} missing or infinite value(s): {shown}.{advice}"]


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
        column = column.astype(np.int64)  # Classes are then called 3 and not 3.0.
    codes, labels = pd.factorize(column, sort=True)
    rare = column.value_counts().min()
    if rare < 2:
        raise ValueError(
            f"The target '{column.name}' has {levels} classes, and some occur once only. If it is a "
            "quantity, use --task regression."
        )
    return codes.astype(np.int32), tuple(str(label) for label in labels), task
