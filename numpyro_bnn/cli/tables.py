"""Tables for the command line: two that ship with scikit-learn, and the user's own CSV, column by column.

Python's `csv` splits the file into fields, since pandas fills a row that is too short in silence; pandas
reads the columns. A column holds numbers, truth values or dates if all its values do, and texts otherwise.
Numbers and dates that are written in another way (1.234.567, 20/06/2021, 01:30, 5 kg) would become
categories: they are refused.

A text column becomes one input for each level. A date becomes its days since 1970 in UTC, and its places on
the circles of the year and of the week. A number, truth value or date that may be missing has an input that
says where it is.
"""

import csv
import re
from calendar import day_abbr, day_name, month_abbr, month_name
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

# Texts that stand for a missing value, as in pandas, in small letters.
_MISSING = {
    "", "#n/a", "#na", "-nan", "1.#ind", "1.#qnan", "-1.#ind", "-1.#qnan", "<na>", "n/a", "na",
    "nan", "none", "null",
}  # fmt: skip
_MINUS = "\u2212"  # the minus sign of typesetting
# The level of texts that are missing.
MISSING = "(missing)"
# Most different texts of a category; more than `_FEW` must have two rows each on average.
_MAX_LEVELS = 50
_FEW = 10
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE)
# The first letter or digit is a digit, but for names of months and days, and PT as in PT1H30M.
_OF_DATES = "|".join({*month_name[1:], *month_abbr[1:], *day_name, *day_abbr})
_BEGINS_AS_NUMBER = re.compile(rf"((?i:{_OF_DATES})|PT|[\W_])*\d")
# Other ways to write numbers and dates, and what to write instead.
_WRITE_DATES = "Write dates as 2024-01-31."
_OTHERWISE = {
    r"[\[({][\d\s.,;e+-]*[,;\s][\d\s.,;e+-]*[\])}]": "Give each number of a list a column of its own.",
    r"\d{1,4}([/.-])\d{1,2}\1\d{1,4}\b.*": _WRITE_DATES,
    r"[+-]?\d{1,3}([ ,'’._\u00a0\u202f]\d{3})+([.,]\d+)?|[+-]?\d+[,_]\d+": (
        "Write numbers without separators of thousands and with a point, 1000 for 1,000 and 1.5 for 1,5."
    ),
    r"[+-]?\d+:\d.*": "Write a duration as one number, 90 for 01:30.",
}
_DATE_PARTS = ("days", "year cos", "year sin", "week cos", "week sin")
_DAYS_OF_A_YEAR = 365.2425


class Source(NamedTuple):
    """A column of a file that became one input or several."""

    name: str
    kind: str  # "numbers", "truth values", "texts" or "dates"
    levels: tuple[str, ...] = ()  # the texts of a text column, each an input; empty for other kinds
    missing: bool = False  # whether a number, truth value or date is missing in some row

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that it becomes."""
        if self.levels:
            return [f"{self.name}_{level}" for level in self.levels]
        parts = [f"{self.name} {part}" for part in _DATE_PARTS]
        names = parts if self.kind == "dates" else [self.name]
        return [*names, f"{self.name} missing"] if self.missing else names


def refuse(path: Path, problems: Sequence[str]) -> None:
    """Raise one error of all problems of a file, if there are any."""
    if problems:
        many = f"{len(problems)} problems:\n- "
        raise ValueError(f"{path}: {many if len(problems) > 1 else ''}" + "\n- ".join(problems))


def absent(name: str, names: Sequence[str]) -> str:
    """Says that there is no such column, which there are, and which one may be meant."""
    by_small = {one.lower(): one for one in names}
    close = get_close_matches(name.lower(), by_small, 1)
    meant = f" Did you mean {by_small[close[0]]!r}?" if close else ""
    return f"no column {name!r}; it has: {listed(names, 20)}.{meant}"


def listed(items: Iterable[object], most: int, by: str = ", ") -> str:
    """The first few items, and how many more there are."""
    texts = [str(item) for item in items]
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return by.join([*texts[:most], *more])


def read_fields(path: Path, separator: str | None = None) -> pd.DataFrame:
    """The fields of a CSV file in UTF-8, without outer blanks; rows are numbered as in a spreadsheet."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = separator or max(",;\t|", key=text.lstrip().partition("\n")[0].count)
        lines = StringIO(text)
        read = list(csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        advice = "Save it as UTF-8, and close every quote."
        raise ValueError(f"{path} is not a CSV table with a header: {error}. {advice}") from error
    rows = {n: [field.strip() for field in row] for n, row in enumerate(read, 1)}
    rows = {n: row for n, row in rows.items() if any(row)}
    if not rows:
        raise ValueError(f"{path} is not a CSV table with a header: it is empty.")
    names = rows.pop(next(iter(rows)))
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    problems = [
        f"column {i} of {len(names)} has no name. Name it, or drop it where it holds row numbers, which "
        "pandas leaves out with `to_csv(…, index=False)`."
        for i, name in enumerate(names, 1)
        if not name
    ]
    problems += [
        f"several columns are called {name!r}. Give each a name of its own, or drop the copies."
        for name in repeated
    ]
    if uneven := [n for n, row in rows.items() if len(row) != len(names)]:
        row = rows[uneven[0]]
        more = "more" if len(row) > len(names) else "fewer"
        problems.append(
            f"row {uneven[0]} has {len(row)} fields and the header {len(names)}, {more} than there are "
            f"columns ({listed(row, 6)}); {len(uneven)} row(s) are so. Put texts that hold a comma in "
            "quotes, write 1000 for 1,000, and leave out commas at the end."
        )
    refuse(path, problems)
    return pd.DataFrame(list(rows.values()), index=list(rows), columns=names, dtype=object)


def is_missing(fields: pd.Series) -> pd.Series:
    """Which fields stand for a missing value."""
    return fields.str.lower().isin(_MISSING)


def parsed(fields: pd.Series, kind: str) -> pd.Series:
    """The values of fields as one kind; NaN, NaT or None where a field is none of that kind."""
    if kind == "numbers":
        plain = fields.str.replace(_MINUS, "-")
        return plain.where(plain.str.fullmatch(_NUMBER)).astype(np.float64)
    if kind == "truth values":
        return fields.str.lower().map({"true": True, "false": False})
    if kind == "dates":
        shaped = fields.where(fields.str.match(r"\d{4}-\d{2}-\d{2}"))
        dates = pd.to_datetime(shaped, format="ISO8601", utc=True, errors="coerce")
        return dates.dt.tz_localize(None)
    return fields.mask(is_missing(fields), MISSING)


def source_of(name: str, fields: pd.Series, as_text: bool = False) -> Source:
    """The kind of a column, texts where `as_text`; ValueError for numbers or dates among other texts."""
    values = fields[~is_missing(fields)]
    if values.empty:
        raise ValueError(f"the column '{name}' holds no value at all. Leave it out with --drop.")
    for kind in () if as_text else ("numbers", "truth values", "dates"):
        if parsed(values, kind).notna().all():
            if kind == "numbers":
                _refuse_merged(name, values)
            return Source(name, kind, missing=len(values) < len(fields))
    if not as_text:
        _refuse_quantities(name, values)
    return Source(name, "texts", tuple(sorted(set(parsed(fields, "texts")))))


def described(source: Source, fields: pd.Series) -> tuple[str, str, str, str]:
    """A column in a row of text: its name, kind, number of missing values, and levels or range."""
    values, missing = parsed(fields, source.kind), int(is_missing(fields).sum())
    if source.levels:
        said = f"{len(source.levels)}: {listed(source.levels, 6)}"
    elif source.kind == "dates":
        said = f"{values.min():%Y-%m-%d} to {values.max():%Y-%m-%d}"
    elif source.kind == "truth values":
        said = f"{values.astype(float).mean():.0%} true"
    else:
        said = f"{values.min():.7g} to {values.max():.7g}"
    return source.name, source.kind, str(missing or ""), said


def refuse_identifiers(source: Source, fields: pd.Series) -> None:
    """Refuse a text column with nearly as many levels as rows, or with very many."""
    count = len(source.levels)
    if count > _MAX_LEVELS or count > max(_FEW, len(fields) / 2):
        raise ValueError(
            f"the column '{source.name}' has {count} different texts in {len(fields)} rows (for example "
            f"{fields.iloc[0]!r}), too many for categories: at most {_MAX_LEVELS}, of two rows each on "
            "average. Leave it out with --drop, or write it as a number."
        )


def _refuse_merged(name: str, values: pd.Series) -> None:
    """Refuse whole numbers that differ and become one: beyond double precision, or codes as 010 beside 10."""
    whole = values.str.replace(_MINUS, "-")
    whole = whole[whole.str.fullmatch(r"[+-]?\d+")]
    number = parsed(whole, "numbers")
    # A sign does not make another name, and -0 is 0.
    digits = whole.str.lstrip("+-").where(number >= 0, whole)
    ways = pd.DataFrame({"field": whole, "number": number})[~digits.duplicated()]
    twice = ways[ways["number"].duplicated(keep=False)].sort_values("number", kind="stable")
    if len(twice):
        first, other = (f"{twice['field'].iloc[k]} in row {twice.index[k]}" for k in (0, 1))
        raise ValueError(
            f"column '{name}' has {first} and {other}, which are the same number (in double precision). "
            f"Give --text {name!r} if they are names of things, or leave the column out with --drop."
        )


def _refuse_quantities(name: str, values: pd.Series) -> None:
    """Refuse texts of which half are numbers or dates, or of which more than a few begin as one."""
    numbers, dates = (parsed(values, kind).notna() for kind in ("numbers", "dates"))
    ways = pd.DataFrame({said: values.str.fullmatch(way) for way, said in _OTHERWISE.items()})
    plain = numbers | dates | ways.any(axis=1)
    different = values[values.str.match(_BEGINS_AS_NUMBER)].nunique()
    if plain.mean() < 0.5 and different <= _FEW:
        return
    kind, good = ("dates", dates) if dates.sum() > numbers.sum() else ("numbers", numbers)
    bad = values[~good]
    holds = f"{kind}, and {len(bad)} value(s) that are none"
    holds = holds if good.any() else "numbers or dates in a form that is not read"
    shown = listed((f"{field!r} in row {row}" for row, field in bad.items()), 3, "; ")
    advice = " ".join(ways.columns[ways.loc[bad.index].any()])
    otherwise = "Correct them, drop these rows, or leave the field empty where it is missing."
    if bad.str.match(_BEGINS_AS_NUMBER).any():
        otherwise = "Write the numbers alone, and a unit into the name of the column."
        otherwise = _WRITE_DATES if kind == "dates" else otherwise
    raise ValueError(
        f"the column '{name}' holds {holds}: {shown}. {advice or otherwise} "
        f"Give --text {name!r} if they are names of things."
    )


def misfits(fields: pd.DataFrame, sources: Sequence[Source]) -> dict[str, list[int]]:
    """What the columns of a new file hold that no fitted row had, each with its rows."""
    found = {}
    for source in sources:
        own, name = fields[source.name], source.name
        missing, values = is_missing(own), parsed(own, source.kind)
        if source.levels:
            wrong, allowed = ~values.isin(source.levels), MISSING in source.levels
            fitted = f"which no row that was fitted had; known are {listed(map(repr, source.levels), 50)}"
        else:
            wrong, allowed = values.isna() | values.isin([np.inf, -np.inf]), source.missing
            fitted = f"and in the table that was fitted {source.kind}"
        wrong &= ~missing
        if missing.any() and not allowed:
            said = f"the column {name!r} has missing values, and no row that was fitted had one"
            found[said] = list(own.index[missing])
        if wrong.any():
            rows = own.index[wrong]
            held = listed(map(repr, own[rows].unique()), 5)
            found[f"the column {name!r} holds {held}, {fitted}"] = list(rows)
        elif source.kind == "numbers":
            _refuse_merged(name, own[~missing])
    return found


def inputs_of(path: Path, fields: pd.DataFrame, sources: Sequence[Source]) -> pd.DataFrame:
    """Columns of a file as inputs, NaN where a value is missing; texts become one column a level, last."""
    made: dict[str, np.ndarray] = {}
    for source in sorted(sources, key=lambda s: bool(s.levels)):
        values = parsed(fields[source.name], source.kind)
        for name, value in zip(source.inputs, _inputs(values, source)):
            if name in made:
                raise ValueError(
                    f"{path}: a level of a text column would be called {name!r}, as another column is. "
                    "Rename that column."
                )
            made[name] = np.asarray(value, np.float64)
    return pd.DataFrame(made)


def _inputs(values: pd.Series, source: Source) -> list:
    if source.levels:
        return [values == level for level in source.levels]
    inputs: list[Any] = [values]
    if source.kind == "dates":
        days = (values - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        turns = [2 * np.pi * days / length for length in (_DAYS_OF_A_YEAR, 7.0)]
        # Rounding makes places of equal days of the week equal in the last bit too.
        inputs = [days, *(np.round(part(turn), 6) for turn in turns for part in (np.cos, np.sin))]
    return [*inputs, values.isna()] if source.missing else inputs


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
    named_by: str = ""  # the column that names the rows

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


def built_in(name: str) -> Table:
    """``"digits"``, 1797 images of 8×8 pixels, or ``"diabetes"``, 442 patients with 10 measurements each."""
    from sklearn.datasets import load_diabetes, load_digits

    data: Any = load_digits() if name == "digits" else load_diabetes()
    target = "digit" if name == "digits" else "progression"
    classes = tuple(map(str, data.get("target_names", ())))
    columns = tuple(data.feature_names)
    sources = tuple(Source(column, "numbers") for column in columns)
    rows = tuple(f"row {number}" for number in range(len(data.target)))
    task: Task = "classification" if classes else "regression"
    return Table(name, data.data, data.target, task, columns, target, classes, sources, rows)


def read_table(
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
    every = read_fields(path, separator)
    names = list(every.columns)
    fields = every[~is_missing(every[target])] if target in names else every
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
            f"{len(kept)} rows with a target and {kept.shape[1]} columns, and at least 20 rows and one "
            "column beside the target are needed."
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
    refuse(path, [*_missing(kept, sources, impute), *problems])
    goal = next(source for source in sources if source.name == target)
    left = list(every.loc[every.index.difference(fields.index), target])
    held = listed(map(repr, filter(None, dict.fromkeys(left))), 3)
    without = f"{len(left)} rows without it{held and f' ({held})'} are left out; " if left else ""
    y, classes, task = _target(parsed(kept[target], goal.kind), task, without)
    sources.remove(goal)
    inputs = inputs_of(path, kept, sources)
    columns = tuple(map(str, inputs.columns))
    named_by = next((name for name in names if name in drop), "")
    summary = sorted(
        (described(s, kept[s.name]) for s in sources),
        key=lambda row: (not row[2], row[1] == "numbers"),
    )
    _, kind, _, said = described(goal, kept[target])
    if classes:
        sizes = [f"{label} ({count})" for label, count in zip(classes, np.bincount(y))]
        kind, said = "classes", listed(sizes, 6)
    goal_row = (f"{target} (target)", kind, str(len(left) or ""), without + said)
    found = Table(
        path.stem,
        inputs.to_numpy(),
        y,
        task,
        columns,
        str(target),
        classes,
        tuple(sources),
        row_names(fields, named_by),
        summary=(goal_row, *summary),
        named_by=named_by,
    )
    # Loading JAX takes seconds, so everything about the file is checked before.
    from numpyro_bnn.data.units import Column, moments

    moments(str(path), Column("the inputs", inputs), found.imputed(np.arange(len(y))).x)
    if task == "regression":
        moments(str(path), Column(f"the target '{target}'"), y)
    return found


def row_names(fields: pd.DataFrame, named_by: str) -> tuple[str, ...]:
    """Names of the rows of a file: their texts in a column, where each has its own, else their numbers."""
    if named_by in fields and fields[named_by].is_unique:
        return tuple(fields[named_by])
    return tuple(f"row {number}" for number in fields.index)


def _missing(fields: pd.DataFrame, sources: Sequence[Source], impute: bool) -> list[str]:
    """Says where values are missing that may not be, or infinite."""
    wrong = fields.apply(is_missing) & (not impute)
    for source in sources:
        if source.kind == "numbers":
            wrong[source.name] |= np.isinf(parsed(fields[source.name], "numbers"))
    places = [(fields.index[i], fields.columns[k]) for i, k in np.argwhere(wrong.to_numpy())]
    advice = "Fill them in or drop those rows; --missing impute allows missing inputs."
    advice = "Correct the infinite values." if impute else advice
    shown = listed((f"row {row}, column '{name}'" for row, name in places), 10, "; ")
    return [f"{len(places)} missing or infinite value(s): {shown}. {advice}"] if places else []


def class_name(label: Any) -> str:
    """The name of a class: 3 for 3.0."""
    return f"{label + 0:.0f}" if isinstance(label, float) and label % 1 == 0 else str(label)


def _target(column: pd.Series, task: Task | None, without: str) -> tuple[np.ndarray, tuple, Task]:
    if pd.api.types.is_datetime64_any_dtype(column):
        raise ValueError(
            f"The target '{column.name}' holds dates (for example {column.iloc[0]}), expected numbers or "
            "classes. Give the days from a fixed date instead."
        )
    levels = column.nunique()
    if levels < 2:
        raise ValueError(
            f"The target '{column.name}' has one value only; {without}there is nothing to learn."
        )
    numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    whole = numeric and bool((column == column.round()).all())
    if task is None:
        is_label = not numeric or (whole and levels <= _MAX_CLASSES)
        task = "classification" if is_label else "regression"
    if task == "regression":
        if not numeric:
            raise ValueError(
                f"The target '{column.name}' is not numeric (for example {column.iloc[0]!r}); regression "
                "needs numbers. Use --task classification."
            )
        return column.to_numpy(np.float64), (), task
    codes, labels = pd.factorize(column, sort=True)
    if column.value_counts().min() < 2:
        raise ValueError(
            f"The target '{column.name}' has {levels} classes, and some occur once only. If it is a "
            "quantity, use --task regression."
        )
    return codes.astype(np.int32), tuple(map(class_name, labels)), task
