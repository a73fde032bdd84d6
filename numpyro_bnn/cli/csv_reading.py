"""Reads a CSV file into columns of one kind each: numbers, truth values, dates or categories.

Some readers guess: they turn a column of numbers with one ``?`` into as many categories as there are numbers,
and shift the columns of rows that have a field too many. This reader refuses such files, and names row,
column and what to do.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import pandas as pd

from numpyro_bnn.cli.columns_to_inputs import Source, missing_values

# Texts that stand for a missing value, as in pandas.
_MISSING = {
    "", "#n/a", "#na", "-nan", "1.#ind", "1.#qnan", "-1.#ind", "-1.#qnan", "<na>", "n/a", "na",
    "nan", "none", "null",
}  # fmt: skip
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_GROUPED = re.compile(r"[+-]?\d{1,3}([ ,'\u00a0\u202f]\d{3})+(\.\d+)?|[+-]?\d+,\d+")
_WITH_UNIT = re.compile(r"[$€£¥]\s?(?P<paid>[\d.,]+)|[+-]?[\d.,]*\d\s?(?P<unit>[^\d\s.,+-]\S{0,5})")
# The level of texts and truth values that are missing.
MISSING = "(missing)"
# Texts that are numbers with a unit may be categories if there are at most so many different ones.
_FEW = 10
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


class Text(NamedTuple):
    """The fields of a file as text.

    - **names** - names of the columns
    - **rows** - fields of each row, without surrounding blanks
    - **numbers** - row numbers as in a spreadsheet: the header is row 1
    - **dropped** - fields of the columns that were left out, of each row
    """

    names: list[str]
    rows: list[list[str]]
    numbers: list[int]
    dropped: list[list[str]]


def read_text(path: Path, separator: str = ",", drop: Sequence[str] = ()) -> Text:
    """The header and rows of a file.

    :param path: path of a CSV file with a header, in UTF-8 with or without a byte order mark.
    :param separator: what stands between the fields, one character.
    :param drop: names of columns to leave out, unread.
    :raises ValueError: for a file that is no table: empty, of another encoding or separator, with
        columns that have no name or share one, or rows that do not have a field for each column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            read = list(csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        advice = "Save it as UTF-8, and close every quote."
        raise ValueError(f"{path} is not a CSV table with a header: {error}. {advice}") from error
    rows = [[field.strip() for field in row] for row in read]
    kept = [(number, row) for number, row in enumerate(rows, 1) if any(row)]
    if not kept:
        raise ValueError(f"{path} is not a CSV table with a header: it is empty.")
    (_, names), *body = kept
    _check_names(path, names, separator)
    for number, row in body:
        if len(row) != len(names):
            more = "more" if len(row) > len(names) else "fewer"
            raise ValueError(
                f"{path}: row {number} has {len(row)} fields and the header {len(names)}, {more} than "
                f"there are columns ({', '.join(row[:6])}{', …' if len(row) > 6 else ''}). Put texts "
                "that hold a comma in quotes, write 1000 for 1,000, and leave out commas at the end."
            )
    absent = sorted(set(drop) - set(names))
    if absent:
        raise ValueError(
            f"--drop: {path} has no column {absent[0]!r}; it has: {', '.join(names)}. Correct the name."
        )
    kept_columns = [k for k, name in enumerate(names) if name not in drop]
    return Text(
        [names[k] for k in kept_columns],
        [[row[k] for k in kept_columns] for _, row in body],
        [number for number, _ in body],
        [[row[k] for k in range(len(names)) if k not in kept_columns] for _, row in body],
    )


def _check_names(path: Path, names: list[str], given: str) -> None:
    if len(names) == 1:
        for separator, name in _SEPARATORS.items():
            if separator in names[0] and separator != given:
                raise ValueError(
                    f"{path} is separated by {name}, expected {_told(given)}: its header is "
                    f"{names[0]!r}. Give --sep {separator!r}, or save it with commas between the "
                    "fields and points in the numbers."
                )
    blank = [i for i, name in enumerate(names, 1) if not name]
    if blank:
        raise ValueError(
            f"{path}: column {blank[0]} of {len(names)} has no name. Name it, or drop it where it "
            "holds row numbers, which pandas leaves out with `to_csv(…, index=False)`."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"{path}: several columns are called {', '.join(map(repr, repeated))}. Give each a name of "
            "its own, or drop the copies."
        )


def _told(separator: str) -> str:
    return _SEPARATORS.get(separator, repr(separator))


def columns_of(
    path: Path,
    text: Text,
    complete: str | None = None,
    target: str | None = None,
    known: Sequence[Source] = (),
) -> pd.DataFrame:
    """The columns as numbers (float64), truth values, dates or categories (text).

    :param path: path of the file, for the error.
    :param text: its fields.
    :param complete: the one column without missing values: in others a missing value is NaN, and for texts
        and truth values the text ``"(missing)"``. None if no column may have missing values.
    :param target: the column that is predicted, for the error; None where no target is read.
    :param known: columns whose kind is known from another file: a file of few rows may have numbers alone in
        a column of texts, or no value at all. The values of others tell.
    :raises ValueError: naming row and column of values that are missing or infinite, or that are
        not of the kind of the rest of their column.
    """
    fields = {name: [row[k] for row in text.rows] for k, name in enumerate(text.names)}
    _refuse_missing(path, text, fields, complete, target)
    sources = {source.name: source for source in known}
    return pd.DataFrame(
        {
            name: _read_column(path, name, own, text, sources.get(name))
            for name, own in fields.items()
        }
    )


def _read_column(
    path: Path, name: str, fields: list[str], text: Text, known: Source | None
) -> pd.Series:
    """A column by the values that are there, or by its kind where that is known."""
    present = [k for k, field in enumerate(fields) if field.lower() not in _MISSING]
    if known is not None and known.kind == "texts":
        return pd.Series([_level(field, known.levels) for field in fields], dtype=object)
    if len(present) == len(fields):
        return _column(path, name, fields, text)
    if known is not None and known.kind == "truth values":
        raise missing_values(path, name)
    if not present and known is not None:
        nothing = pd.NaT if known.kind == "dates" else np.nan
        return pd.Series([nothing] * len(fields))
    if not present:
        raise ValueError(
            f"{path}: the column '{name}' holds no value at all. Leave it out with --drop."
        )
    known_rows = text._replace(numbers=[text.numbers[k] for k in present])
    column = _column(path, name, [fields[k] for k in present], known_rows)
    column.index = pd.Index(present)
    if column.dtype == bool:
        column = column.map({True: "true", False: "false"})
    whole = column.reindex(range(len(fields)))
    return whole if column.dtype.kind in "fM" else whole.astype(object).fillna(MISSING)


def _level(field: str, levels: Sequence[str]) -> str:
    """The text of a field: truth values beside missing ones were made small letters."""
    if field.lower() in _MISSING and field not in levels:
        return MISSING
    small = field.lower()
    return small if field not in levels and small in ("true", "false") else field


def _refuse_missing(
    path: Path,
    text: Text,
    fields: dict[str, list[str]],
    complete: str | None,
    target: str | None,
) -> None:
    places = [
        (number, name)
        for k, number in enumerate(text.numbers)
        for name, own in fields.items()
        if _is_infinite(own[k]) or (complete in (None, name) and own[k].lower() in _MISSING)
    ]
    if not places:
        return
    shown = "; ".join(f"row {row}, column '{name}'" for row, name in places[:10])
    more = f"; and {len(places) - 10} more" if len(places) > 10 else ""
    advice = []
    if any(name != target for _, name in places):
        advice.append(
            "Fill them in or drop those rows; --missing impute allows missing inputs."
            if complete is None
            else "Correct the infinite inputs."
        )
    if any(name == target for _, name in places):
        advice.append(
            f"Rows without a target '{target}' cannot be learned from: drop them, or put them into a "
            "file of their own and predict them after the fit, with `python -m numpyro_bnn predict`."
        )
    raise ValueError(
        f"{path} has {len(places)} missing or infinite value(s): {shown}{more}. {' '.join(advice)}"
    )


def _is_infinite(field: str) -> bool:
    if _INFINITE.fullmatch(field):
        return True
    return bool(_NUMBER.fullmatch(field)) and not np.isfinite(float(field))


def _column(path: Path, name: str, fields: list[str], text: Text) -> pd.Series:
    numeric = [bool(_NUMBER.fullmatch(field)) for field in fields]
    if all(numeric):
        _refuse_merged(path, name, fields, text)
        return pd.Series([float(field) for field in fields], dtype=np.float64)
    if {field.lower() for field in fields} <= {"true", "false"}:
        return pd.Series([field.lower() == "true" for field in fields], dtype=bool)
    if all(_DATE.fullmatch(field) for field in fields):
        return _dates(path, name, fields, text)
    looks = [ok or bool(_GROUPED.fullmatch(field)) for ok, field in zip(numeric, fields)]
    levels = {field for field, ok in zip(fields, looks) if ok}
    if sum(looks) >= len(fields) / 2 or len(levels) > _FEW:
        _refuse_mixed(path, name, fields, numeric, text)
    _refuse_units(path, name, fields, text)
    return pd.Series(fields, dtype=object)


def _refuse_merged(path: Path, name: str, fields: list[str], text: Text) -> None:
    """Refuse whole numbers that differ and become one: beyond double precision, or codes as 010 beside 10."""
    first: dict[float, tuple[str, str, int]] = {}
    for number, field in zip(text.numbers, fields):
        if not _WHOLE.fullmatch(field):
            continue
        # A sign makes no other name, and -0 is 0.
        digits = field.lstrip("+-") if float(field) >= 0 else field
        same, other, row = first.setdefault(float(field), (digits, field, number))
        if digits != same:
            raise ValueError(
                f"{path}: column '{name}' has {other} in row {row} and {field} in row {number}, which are "
                "the same number (in double precision). Names of things, such as identifiers, become texts "
                "with a letter before them; or leave the column out with --drop."
            )


def _dates(path: Path, name: str, fields: list[str], text: Text) -> pd.Series:
    dates = pd.to_datetime(pd.Series(fields), format="ISO8601", errors="coerce")
    wrong = np.flatnonzero(dates.isna())
    if wrong.size:
        k = int(wrong[0])
        raise ValueError(
            f"{path}: the column '{name}' holds dates, and {fields[k]!r} in row {text.numbers[k]} is none. "
            "Correct it."
        )
    return dates


def _refuse_mixed(
    path: Path, name: str, fields: list[str], numeric: list[bool], text: Text
) -> NoReturn:
    bad = [(text.numbers[k], fields[k]) for k, ok in enumerate(numeric) if not ok]
    shown = "; ".join(f"{field!r} in row {row}" for row, field in bad[:5])
    more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
    grouped = any(_GROUPED.fullmatch(field) for _, field in bad)
    advice = (
        "Write numbers without separators of thousands and with a point, 1000 for 1,000 and 1.5 for 1,5."
        if grouped
        else "Correct them, or drop those rows where they stand for missing values; if the column "
        "holds categories, write all of them as text, such as 'level 3'."
    )
    raise ValueError(
        f"{path}: the column '{name}' holds numbers, and {len(bad)} value(s) that are none: "
        f"{shown}{more}. {advice}"
    )


def _refuse_units(path: Path, name: str, fields: list[str], text: Text) -> None:
    """Refuse a quantity whose values all carry a unit; few different ones may be categories."""
    if len(set(fields)) <= _FEW:
        return
    found = [_WITH_UNIT.fullmatch(field) for field in fields]
    matched = [m for m in found if m is not None]
    bare = sum(bool(_NUMBER.fullmatch(field)) for field in fields)
    units = {m["unit"] for m in matched}
    if len(matched) + bare == len(fields) and len(units) == 1:
        raise ValueError(
            f"{path}: the values of the column '{name}' carry a unit ({fields[0]!r} in row "
            f"{text.numbers[0]}). Write the numbers alone, and the unit into the name of the column."
        )
