"""What a CSV file may hold: a table as it says, or a sentence that names row, column and remedy."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numpyro_bnn as bnn
from numpyro_bnn.cli import tables
from numpyro_bnn.posterior.draws import Draws

ROWS = 40
RNG = np.random.default_rng(0)
WIDTH = [f"{v:.3f}" for v in RNG.normal(size=ROWS)]
WEIGHT = [f"{v:.3f}" for v in RNG.normal(10, 3, size=ROWS)]
COLOUR = (["red", "green", "blue"] * ROWS)[:ROWS]


def lines(header="width,colour,weight", *, width=WIDTH, colour=COLOUR, weight=WEIGHT):
    return [header, *(",".join(row) for row in zip(width, colour, weight))]


def at(fields, **changes):
    """A column with other fields in some rows, counted as a spreadsheet does (header row 1)."""
    return [changes.get(f"row{i}", field) for i, field in enumerate(fields, 2)]


def quoted(fields):
    return [f'"{field}"' for field in fields]


@pytest.fixture
def read(tmp_path):
    def read(content, target="weight", **options):
        path = tmp_path / "table.csv"
        text = "\n".join(content) + "\n" if isinstance(content, list) else content
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tables.read_table(path, target, **options)

    return read


SAME = {
    "byte order mark": lambda: "\ufeff" + "\n".join(lines()),
    "windows lines": lambda: "\r\n".join(lines()),
    "blanks": lambda: [line.replace(",", " ,  ") + " " for line in lines()],
    "quotes": lambda: lines(width=quoted(WIDTH), colour=quoted(COLOUR)),
    "blank lines": lambda: [*lines()[:5], "", " ", ",,", *lines()[5:], ""],
    "no last line end": lambda: "\n".join(lines()),
    "plus signs": lambda: lines(weight=[f"+{field}" for field in WEIGHT]),
    "minus signs of typesetting": lambda: lines(width=[f.replace("-", "−") for f in WIDTH]),
    "semicolons": lambda: [line.replace(",", ";") for line in lines()],
    "tabs": lambda: [line.replace(",", "\t") for line in lines()],
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_table_in_another_guise(case, read):
    expected, found = read(lines()), read(SAME[case]())
    assert found.columns == expected.columns
    assert found.columns == ("width", "colour_blue", "colour_green", "colour_red")
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    assert found.x.dtype == found.y.dtype == np.float64


def test_texts_with_commas_and_truth_values(read):
    colour = quoted((["red, dark", "blue"] * ROWS)[:ROWS])
    assert read(lines(colour=colour)).columns == ("width", "colour_blue", "colour_red, dark")
    truth = (["True", "FALSE"] * ROWS)[:ROWS]
    found = read(lines(colour=truth))
    assert found.columns == ("width", "colour")
    np.testing.assert_array_equal(found.x[:4, 1], [1, 0, 1, 0])


def test_seconds_and_large_numbers_keep_their_digits(read):
    seconds = [f"{1.7e9 + 60 * i:.1f}" for i in range(ROWS)]
    np.testing.assert_array_equal(np.diff(read(lines(width=seconds)).x[:, 0]), 60)
    assert read(lines(weight=seconds)).y[1] == 1.7e9 + 60


def test_numbers_with_leading_zeros_stay_numbers_where_none_is_written_in_two_ways(read):
    months = [f"{1 + i % 12:02d}" for i in range(ROWS)]
    np.testing.assert_array_equal(read(lines(width=months)).x[:13, 0], [*range(1, 13), 1])
    signs = at(PLAIN, row3="+5", row4="5", row5="-0", row6="0", row7="5.0")
    np.testing.assert_array_equal(read(lines(width=signs)).x[1:6, 0], [5, 5, 0, 0, 5])


def test_few_numbers_with_letters_are_categories(read):
    for levels in (
        ["1st", "2nd", "3rd"],
        ["4wd", "2wd", "fwd"],
        ["2", "4", "low", "high", "none at all"],
    ):
        colour = (levels * ROWS)[:ROWS]
        assert len(read(lines(colour=colour)).columns) == 1 + len(levels)


PLAIN = [str(i * 37 % 101) for i in range(ROWS)]
UNITS = [f"{field} kg" for field in PLAIN]
BAD = {
    "a question mark": (
        lambda: lines(width=at(WIDTH, row7="?")),
        r"the column 'width' holds numbers, and 1 value\(s\) that are none: '\?' in row 7\..*drop",
    ),
    "a question mark in the target": (
        lambda: lines(weight=at(WEIGHT, row7="?")),
        r"the column 'weight' holds numbers.* '\?' in row 7",
    ),
    "words for missing values": (
        lambda: lines(width=at(WIDTH, row3="missing", row4="unknown", row9="-")),
        "3 value.*'missing' in row 3; 'unknown' in row 4; '-' in row 9",
    ),
    "thousands": (
        lambda: lines(width=at(PLAIN, row3='"1,000"')),
        "'1,000' in row 3.*1000 for 1,000",
    ),
    "thousands all over": (
        lambda: lines(width=[f'"{1 + i},{100 + 7 * i}"' for i in range(ROWS)]),
        "the column 'width' holds numbers.*1000 for 1,000",
    ),
    "thousands by blanks": (lambda: lines(width=at(PLAIN, row3="12 000")), "'12 000' in row 3.*1000"),
    "decimal commas": (
        lambda: lines(width=[f'"{field.replace(".", ",")}"' for field in WIDTH]), "1.5 for 1,5"
    ),
    "one unit": (lambda: lines(width=at(PLAIN, row2="12 kg")), "'12 kg' in row 2"),
    "units all over": (
        lambda: lines(width=UNITS), r"'width' holds numbers.*'0 kg' in row 2.*a unit into the name"
    ),
    "prices": (lambda: lines(width=[f"${f}" for f in PLAIN]), r"'\$0' in row 2.*a unit into the name"),
    "per cent": (lambda: lines(width=[f"{f}%" for f in PLAIN]), r"'0%' in row 2.*a unit into the name"),
    "underscores": (lambda: lines(width=at(PLAIN, row3="1_000")), "'1_000' in row 3"),
    "a field too many": (
        lambda: [line + ("" if i == 0 else ",7") for i, line in enumerate(lines())],
        r"row 2 has 4 fields and the header 3, more than",
    ),
    "a comma at the end": (
        lambda: [line + ("" if i == 0 else ",") for i, line in enumerate(lines())],
        "row 2 has 4 fields and the header 3.*leave out commas at the end",
    ),
    "one row too long": (
        lambda: [*lines()[:8], lines()[8] + ",1", *lines()[9:]], "row 9 has 4 fields and the header 3"
    ),
    "one row too short": (
        lambda: [*lines()[:8], "1.0,red", *lines()[9:]], "row 9 has 2 fields.*fewer than"
    ),
    "thousands without quotes": (
        lambda: lines(weight=at(PLAIN, row5="1,000")), "row 5 has 4 fields.*write 1000 for 1,000"
    ),
    "a name twice": (lambda: lines("weight,colour,weight"), "several columns are called 'weight'"),
    "a name twice but for blanks": (lambda: lines("width, width ,weight"), "are called 'width'"),
    "no name": (lambda: lines(",colour,weight"), r"column 1 of 3 has no name.*index=False"),
    "a level that is called as a column": (
        lambda: lines("colour_red,colour,weight"), "would be called 'colour_red', as another column"
    ),
    "an open quote": (lambda: lines(width=at(WIDTH, row4='"1.0')), "not a CSV table.*close every quote"),
    "infinity": (lambda: lines(width=at(WIDTH, row4="-Inf")), "missing or infinite.*row 4, column 'width'"),
    "too large": (lambda: lines(width=at(WIDTH, row4="1e400")), "infinite.*row 4, column 'width'"),
    "NaN": (lambda: lines(width=at(WIDTH, row4="NaN", row5="n/a")), "2 missing.*row 4.*row 5"),
    "an infinite target": (lambda: lines(weight=at(WEIGHT, row4="inf")), "infinite.*row 4, column 'weight'"),
    "nothing": (lambda: lines(width=at(WIDTH, row4="")), "1 missing .*row 4, column 'width'"),
    "blank targets": (lambda: lines(weight=[" "] * ROWS), "0 rows with a target"),
    "missing after blank lines": (
        lambda: [*lines()[:3], "", *lines(colour=at(COLOUR, row4="NA"))[3:]], "row 5, column 'colour'"
    ),
    "an empty file": (lambda: "", "not a CSV table with a header: it is empty"),
    "blank lines only": (lambda: "\n \n", "it is empty"),
    "a header only": (lambda: lines()[:1], "0 rows with a target and 3 columns"),
    "no such target": (lambda: lines("a,b,c"), "no column 'weight'; it has: a, b, c"),
    "a constant target": (lambda: lines(weight=["2.5"] * ROWS), "one value only; there is nothing"),
    "a class called none": (lambda: lines(weight=["mild", "none"] * (ROWS // 2)), "without it .'none'."),
    "another encoding": (lambda: "\n".join(lines()).encode("utf-16"), "not a CSV table.*UTF-8"),
    "a spread below rounding": (
        lambda: lines(width=[f"{10**17 + 16 * (i % 2)}" for i in range(ROWS)]),
        "column 'width' of the inputs lies around 1e\\+17",
    ),
    "a number for missing values": (
        lambda: lines(width=at(WIDTH, row4="1e12")), "most values of column 'width' of the inputs"
    ),
    "labels beyond rounding": (
        lambda: lines(weight=[f"{2**53 + i % 2}" for i in range(ROWS)]),
        "'weight' has 9007199254740992 in row 2 and 9007199254740993 in row 3, which are the same",
    ),
    "codes that differ in leading zeros": (
        lambda: lines(width=at(PLAIN, row5="0010", row9="10", row11="+010")),
        "'width' has 0010 in row 5 and 10 in row 9, which are the same number.*--text 'width'",
    ),
    "labels that differ in leading zeros": (
        lambda: lines(weight=[["1", "01"][i % 2] for i in range(ROWS)]),
        "'weight' has 1 in row 2 and 01 in row 3, which are the same number",
    ),
    "a target beyond rounding": (
        lambda: lines(weight=[f"{10**18 + 128 * (i % 30)}" for i in range(ROWS)]),
        "the target 'weight' lies around",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_no_clean_table_is_refused_by_row_and_column(case, read):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        read(make())


OTHERWISE = {
    "thousands by points": (lambda i: f"{1 + i}.{i:03d}.{997 - i}", "1000 for 1,000"),
    "thousands by apostrophes": (lambda i: f"{1 + i}'{100 + i}", "1000 for 1,000"),
    "thousands by narrow blanks": (lambda i: f"{1 + i}\u202f{100 + i}", "1000 for 1,000"),
    "underscores": (lambda i: f"{1 + i}_{100 + i}", "1000 for 1,000"),
    "German numbers": (lambda i: f'"{1 + i}.{100 + i},5"', "1.5 for 1,5"),
    "day first": (lambda i: f"{1 + i % 28:02d}/06/2021", "2024-01-31"),
    "day first with points": (lambda i: f"{1 + i % 28}.6.2021", "2024-01-31"),
    "short years": (lambda i: f"{1 + i % 12:02d}/02/24", "2024-01-31"),
    "two kinds of dates": (
        lambda i: f"2024-01-{1 + i % 28:02d}" if i % 2 else f"{1 + i % 28:02d}/02/2024", "2024-01-31"
    ),
    "dates that there are not": (lambda i: f"2023-02-{1 + i % 30:02d}", "2024-01-31"),
    "years first with slashes": (lambda i: f"2024/01/{1 + i % 28:02d}", "2024-01-31"),
    "day first with times": (lambda i: f"{1 + i % 28:02d}/06/2021 10:30", "2024-01-31"),
    "durations": (lambda i: f"{i // 4:02d}:{15 * (i % 4):02d}", "90 for 01:30"),
    "durations with seconds": (lambda i: f"{i // 4}:{15 * (i % 4):02d}:07.5", "90 for 01:30"),
    "few durations": (lambda i: f"01:{15 * (i % 4):02d}", "90 for 01:30"),
    "few dates": (lambda i: f"{1 + i % 3:02d}/02/2024", "2024-01-31"),
    "lists": (lambda i: f'"[{i}, {i + 1}]"', "list a column of its own"),
    "tuples": (lambda i: f'"({i}; 2.5)"', "list a column of its own"),
    "units": (lambda i: f"{i % 20} kg", "unit into the name"),
    "several units": (lambda i: f"{i % 20} {('kg', 'g')[i % 2]}", "unit into the name"),
    "hours and minutes": (lambda i: f"{i % 20}h30", "unit into the name"),
    "prices": (lambda i: f"€ {i % 20}.50", "unit into the name"),
    "per cent": (lambda i: f"{i % 20} %", "unit into the name"),
    "months by name": (lambda i: f'"Jan {1 + i % 28}, 2024"', "unit into the name"),
    "weekdays by name": (lambda i: f"Mon {1 + i % 28} June 24", "unit into the name"),
    "days before months": (lambda i: f"{1 + i % 28} Jan 2024", "unit into the name"),
    "durations of ISO 8601": (lambda i: f"PT{i % 20}H30M", "unit into the name"),
    "bounds": (lambda i: f"<{i % 20}", "unit into the name"),
    "negative in brackets": (lambda i: f"({i % 20})", "unit into the name"),
}  # fmt: skip


@pytest.mark.parametrize("repeated", [1, 8], ids=["short table", "long table"])
@pytest.mark.parametrize("name", OTHERWISE)
def test_quantities_written_in_another_way_are_no_categories(name, repeated, read):
    write, advice = OTHERWISE[name]
    fields = [write(i) for i in range(ROWS)] * repeated
    content = lines(width=fields, colour=COLOUR * repeated, weight=WEIGHT * repeated)
    with pytest.raises(ValueError, match=r"the column 'width' holds .* in row") as refused:
        read(content)
    assert advice in str(refused.value)
    # A column of few names is one, if the user says so.
    few = [write(i % 4) for i in range(ROWS)]
    assert len(read(lines(width=few), text=["width"]).columns) == 3 + len(set(few))


DATES = {
    "zones": [f"2024-01-{1 + i % 28:02d}T02:00+02:00" for i in range(ROWS)],
    "Z": [f"2024-01-{1 + i % 28:02d}T00:00:00Z" for i in range(ROWS)],
    "parts of seconds": [f"2024-01-{1 + i % 28:02d} 00:00:00.000" for i in range(ROWS)],
    "mixed": [f"2024-01-{1 + i % 28:02d}{('', 'T00:00Z')[i % 2]}" for i in range(ROWS)],
}


@pytest.mark.parametrize("name", DATES)
def test_all_iso_dates_are_dates_in_utc(name, read):
    table = read(lines(width=DATES[name]))
    assert table.columns[0] == "width days"
    np.testing.assert_array_equal(table.x[:, 0], 19723 + np.arange(ROWS) % 28)


def test_names_with_numbers_in_them_stay_categories(read):
    for write in (
        lambda i: f"shop {i % 12}",
        lambda i: f"id{i % 3}",
        lambda i: f"{i % 9}-{i % 9 + 1}",
    ):
        assert len(read(lines(colour=[write(i) for i in range(ROWS)])).columns) == 1 + len(
            {write(i) for i in range(ROWS)}
        )


def test_a_text_column_with_nearly_as_many_levels_as_rows_is_refused(read):
    # Words without any digit; 40 rows, and 8 times as many.
    words = [f"{'abcdefgh'[i % 8]}{'vwxyz'[i // 8]}" for i in range(ROWS)]
    with pytest.raises(ValueError, match=r"'colour' has 40 different texts in 40 rows.*--drop"):
        read(lines(colour=words))
    half = [words[i // 2] for i in range(ROWS)]
    assert len(read(lines(colour=half)).columns) == 21
    with pytest.raises(ValueError, match="'colour' has 21 different texts in 40 rows"):
        read(lines(colour=[*half[:-1], "another"]))


def test_names_of_things_keep_their_zeros(read):
    codes = [("010", "10", "7")[i % 3] for i in range(ROWS)]
    table = read(lines(width=codes), text=["width"])
    assert {"width_010", "width_10", "width_7"} < set(table.columns)
    assert read(lines(weight=codes), text=["weight"]).classes == ("010", "10", "7")


def test_all_problems_of_a_file_come_at_once(read):
    content = lines(
        width=at(WIDTH, row7="?"),
        colour=[f"c{i}" for i in range(ROWS)],
        weight=at(WEIGHT, row4="inf"),
    )
    with pytest.raises(ValueError, match=r"3 problems") as refused:
        read(content)
    for words in ("row 4, column 'weight'", "'?' in row 7", "'colour' has 40 different texts"):
        assert words in str(refused.value)
    with pytest.raises(ValueError, match=r"3 problems") as refused:
        read(content, target="wieght", drop=["WIDTH"], text=["color"])
    for name in ("weight", "width", "colour"):
        assert f"Did you mean '{name}'?" in str(refused.value)


def test_the_summary_says_what_became_of_each_column(read):
    dates = [f"2024-01-{1 + i % 28:02d}" for i in range(ROWS)]
    header = "when,one,colour,weight"
    content = [header, *(",".join(row) for row in zip(dates, WIDTH, COLOUR, PLAIN))]
    assert list(read(content).summary) == [
        ("weight (target)", "numbers", "", "0 to 100"),
        ("when", "dates", "", "2024-01-01 to 2024-01-28"),
        ("colour", "texts", "", "3: blue, green, red"),
        ("one", "numbers", "", f"{min(map(float, WIDTH))} to {max(map(float, WIDTH))}"),
    ]
    goal, *_ = read(content, target="colour").summary
    assert goal == ("colour (target)", "classes", "", "blue (13), green (13), red (14)")


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "width": rng.normal(size=30),
            "colour": np.resize(["red", "green", "blue"], 30),
            "weight": rng.normal(size=30),
            "kind": np.resize(["b", "a"], 30),
        }
    )


@pytest.fixture
def csv(tmp_path):
    def write(frame):
        path = tmp_path / "table.csv"
        frame.to_csv(path, index=False)
        return path

    return write


def test_columns_levels_and_inferred_tasks(frame, csv):
    path = csv(frame)
    quantity = tables.read_table(path, "weight")
    assert quantity.task == "regression"
    assert quantity.columns == (
        "width", "colour_blue", "colour_green", "colour_red", "kind_a", "kind_b"
    )  # fmt: skip
    np.testing.assert_allclose(quantity.x[:, 0], frame["width"], rtol=1e-6)
    np.testing.assert_array_equal(quantity.x[:3, 1:4], [[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(quantity.y, frame["weight"], rtol=1e-6)
    kinds = tables.read_table(path, "kind")
    assert (kinds.task, kinds.classes) == ("classification", ("a", "b"))
    np.testing.assert_array_equal(kinds.y[:4], [1, 0, 1, 0])


def test_whole_numbers_are_classes_unless_told(frame, csv):
    path = csv(frame.assign(count=np.resize([3, 5, 8], 30)))
    assert tables.read_table(path, "count").classes == ("3", "5", "8")
    assert tables.read_table(path, "count", "regression").y.max() == 8


BAD_FRAMES = {
    "text for regression": (lambda f: f, "kind", "regression", "not numeric .*'b'"),
    "too few rows": (lambda f: f[:5], "weight", None, "5 rows with a target and 4 columns"),
    "lonely class": (
        lambda f: f.assign(kind=["rare"] + ["a", "b"] * 14 + ["a"]), "kind", None, "occur once only"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_bad_tables(case, frame, csv):
    change, target, task, message = BAD_FRAMES[case]
    with pytest.raises(ValueError, match=message):
        tables.read_table(csv(change(frame)), target, task)


def test_built_in_tables():
    digits, diabetes = tables.built_in("digits"), tables.built_in("diabetes")
    assert digits.x.shape == (1797, 64)
    assert len(digits.classes) == 10
    assert diabetes.x.shape == (442, 10)
    assert diabetes.task == "regression"


def test_columns_are_dropped_and_the_first_names_the_rows(frame, csv):
    frame["name"] = [f"box {i}" for i in range(30)]
    frame["broken"] = np.nan
    path = csv(frame)
    table = tables.read_table(path, "weight", drop=("name", "broken"))
    assert table.row_names[:2] == ("box 0", "box 1")
    assert table.named_by == "name"
    assert "broken" not in table.columns
    assert table.groups == [("width", [0]), ("colour", [1, 2, 3]), ("kind", [4, 5])]
    # Two rows of one name would be taken for each other.
    frame.loc[1, "name"] = "box 0"
    assert tables.read_table(csv(frame), "weight", drop=("name", "broken")).row_names[0] == "row 2"
    with pytest.raises(ValueError, match="'weight' is the target, and cannot be left out"):
        tables.read_table(path, "weight", drop=("weight",))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators(frame, tmp_path, separator):
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False, sep=separator)
    table = tables.read_table(path, "weight", separator=separator)
    np.testing.assert_allclose(table.x[:, 0], frame["width"], rtol=1e-6)
    # Not given, it is what the header has most of.
    np.testing.assert_array_equal(tables.read_table(path, "weight").x, table.x)
    with pytest.raises(ValueError, match=r"no column 'weight'; it has: width.colour"):
        tables.read_table(path, "weight", separator="/")


FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NUMBERS = ("1", "-2.5", "1e400", "nan", "inf", "1_000", "0x1", "9999999999999999999999", "1,2")
OTHERS = ("", " ", "a", '"', '""', "'", "é", "True", "2020-01-01", "-", ";", "\x00", "\n")
CELLS = st.sampled_from(NUMBERS + OTHERS)


def model(x, y=None):
    """Of the draws below; never run."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    draws = Draws({"w": np.zeros((2, 3, 2))}, model, {"diverging": np.zeros((2, 3), bool)})
    return bnn.save(draws, tmp_path_factory.mktemp("fuzz") / "run").read_bytes()


@FUZZ
@given(data=st.data())
def test_mutated_archives_load_or_are_refused(data, archive, tmp_path):
    content = bytearray(archive)
    places = st.integers(0, len(content) - 1)
    for at, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        content[at] = byte
    path = tmp_path / "run.npz"
    path.write_bytes(content[: data.draw(st.one_of(st.just(len(content)), places))])
    try:
        loaded = bnn.load(path, model)
    except ValueError as error:
        said = str(error)
    else:
        said = ""
        assert all(np.asarray(v).dtype != object for v in loaded.values())
    assert not said or "does not hold draws" in said or "leading axes" in said


@FUZZ
@given(
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=4), min_size=18, max_size=24),
    header=st.booleans(),
)
def test_any_text_is_a_table_or_refused(rows, header, tmp_path):
    path = tmp_path / "table.csv"
    lines = ["a,b,c,d"] * header + [",".join(row) for row in rows]
    path.write_text("\n".join(lines))
    try:
        table = tables.read_table(path, "a")
    except ValueError:
        return
    assert np.isfinite(table.x).all()
    assert np.isfinite(table.y).all()
    assert len(table.x) == len(table.y) >= 20


@FUZZ
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused(content, tmp_path):
    for name, read in (
        ("run.npz", lambda path: bnn.load(path, model)),
        ("table.csv", lambda path: tables.read_table(path, "a")),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=name):
            read(path)
