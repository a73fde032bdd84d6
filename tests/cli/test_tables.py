"""Tables: what is read from a CSV, and the message that each bad one gives."""

import numpy as np
import pandas as pd
import pytest

from numpyro_bnn.cli import tables


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


def _missing(frame):
    frame.loc[3, "width"] = np.nan
    frame.loc[7, "colour"] = None
    return frame


BAD = {
    "missing values": (
        _missing, "weight", None, "2 missing .*row 5, column 'width'; row 9, column 'colour'"
    ),
    "infinite value": (lambda f: f.assign(width=np.inf), "weight", None, "30 missing or infinite"),
    "constant target": (lambda f: f.assign(weight=1.0), "weight", None, "one value only"),
    "text for regression": (lambda f: f, "kind", "regression", "not numeric .*'b'"),
    "too few rows": (lambda f: f[:5], "weight", None, "5 rows with a target and 4 columns"),
    "lonely class": (
        lambda f: f.assign(kind=["rare"] + ["a", "b"] * 14 + ["a"]), "kind", None, "occur once only"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(case, frame, csv):
    change, target, task, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        tables.read_table(csv(change(frame)), target, task)


def test_files_that_are_no_tables(tmp_path):
    for content in (b"", bytes(range(128, 256)) * 10):
        (tmp_path / "table.csv").write_bytes(content)
        with pytest.raises(ValueError, match="not a CSV table"):
            tables.read_table(tmp_path / "table.csv", "y")


def test_built_in_tables():
    digits, diabetes = tables.digits(), tables.diabetes()
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
