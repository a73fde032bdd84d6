"""Dates and missing values: what a network gets to see of them, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from short_jobs import main_in_short

from numpyro_bnn.cli import tables
from numpyro_bnn.cli.main import main
from numpyro_bnn.cli.tables import MISSING, inputs_of, misfits, read_fields, source_of

ROWS = 40


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "width": rng.normal(size=ROWS),
            "day": pd.date_range("2024-01-01", periods=ROWS, freq="D").strftime("%Y-%m-%d"),
            "colour": np.resize(["red", "green"], ROWS),
            "open": np.resize([True, False, False], ROWS),
            "weight": rng.normal(size=ROWS),
        }
    )


def write(frame, tmp_path, name="table.csv"):
    path = tmp_path / name
    frame.to_csv(path, index=False)
    return path


def test_dates_are_days_and_places_on_two_circles(frame, tmp_path):
    table = tables.read_table(write(frame, tmp_path), "weight")
    names = [name for name in table.columns if name.startswith("day")]
    assert names == ["day days", "day year cos", "day year sin", "day week cos", "day week sin"]
    x = dict(zip(table.columns, table.x.T))
    # The first of January 2024 is 19,723 days after that of 1970.
    np.testing.assert_array_equal(x["day days"], 19723 + np.arange(ROWS))
    np.testing.assert_allclose(x["day week cos"][7:], x["day week cos"][:-7], atol=1e-9)
    for circle in ("year", "week"):
        size = x[f"day {circle} cos"] ** 2 + x[f"day {circle} sin"] ** 2
        np.testing.assert_allclose(size, 1.0, atol=1e-5)
    turned = np.arctan2(x["day year sin"][1], x["day year cos"][1]) - np.arctan2(
        x["day year sin"][0], x["day year cos"][0]
    )
    assert turned == pytest.approx(2 * np.pi / 365.2425, rel=1e-3)
    assert dict(table.groups)["day"] == [1, 2, 3, 4, 5]


def test_missing_values_get_an_input_and_the_median_of_training_rows(frame, tmp_path):
    frame.loc[[0, 5], "width"] = np.nan
    frame.loc[3, "day"] = None
    frame["open"] = frame["open"].astype(object)
    frame.loc[2, "open"] = None
    frame.loc[4, "colour"] = None
    path = write(frame, tmp_path)
    with pytest.raises(ValueError, match=r"5 missing or infinite .* --missing impute allows"):
        tables.read_table(path, "weight")
    table = tables.read_table(path, "weight", impute=True)
    x = dict(zip(table.columns, table.x.T))
    np.testing.assert_array_equal(np.flatnonzero(x["width missing"]), [0, 5])
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(x["width"])), [0, 5])
    np.testing.assert_array_equal(np.flatnonzero(x["day missing"]), [3])
    np.testing.assert_array_equal(np.flatnonzero(x["colour_(missing)"]), [4])
    np.testing.assert_array_equal(np.flatnonzero(x["open missing"]), [2])
    np.testing.assert_array_equal(x["open"][:4], [1, 0, np.nan, 1])
    kinds = {name: (kind, missing) for name, kind, missing, _ in table.summary}
    assert kinds["width"] == ("numbers", "2")
    assert kinds["day"] == ("dates", "1")
    assert kinds["open"] == ("truth values", "1")
    assert kinds["colour"] == ("texts", "1")
    assert kinds["weight (target)"] == ("numbers", "")
    train = np.arange(5, 25)
    complete = table.imputed(train)
    place = table.columns.index("width")
    # Rows that are not fitted have no part in it.
    assert complete.fill[place] == pytest.approx(frame["width"][train].median())
    np.testing.assert_array_equal(complete.x[[0, 5], place], complete.fill[place])
    assert np.isfinite(complete.x).all()
    np.testing.assert_array_equal(complete.x[6:], table.x[6:])


@pytest.mark.parametrize("target", ["weight", "colour"])
def test_rows_without_a_target_are_left_out_with_a_count(frame, tmp_path, target):
    frame["colour"] = np.resize(["red", "blue"], ROWS)
    frame.loc[[7, 9], target] = None
    frame.loc[7, "width"] = np.nan
    table = tables.read_table(write(frame, tmp_path), target)
    others = tables.read_table(write(frame.drop([7, 9]), tmp_path, "others.csv"), target)
    np.testing.assert_array_equal(table.x, others.x)
    np.testing.assert_array_equal(table.y, others.y)
    assert table.row_names == tuple(f"row {n + 2}" for n in range(ROWS) if n not in (7, 9))
    _, kind, _, said = others.summary[0]
    assert table.summary[0][1:] == (kind, "2", f"2 rows without it are left out; {said}")


def test_a_column_without_values_is_refused(frame, tmp_path):
    with pytest.raises(ValueError, match="the column 'width' holds no value at all"):
        tables.read_table(write(frame.assign(width=np.nan), tmp_path), "weight", impute=True)
    gap = frame.assign(width=frame["width"].where(np.arange(len(frame)) > 0))
    with pytest.raises(ValueError, match="No training row has a value of 'width'"):
        tables.read_table(write(gap, tmp_path), "weight", impute=True).imputed(np.array([0]))
    with pytest.raises(ValueError, match="infinite value"):
        tables.read_table(write(frame.assign(width=np.inf), tmp_path), "weight", impute=True)


@pytest.mark.parametrize(
    ("change", "target", "message"),
    [
        ({"day": "2024-02-31"}, "weight", "form that is not read: '2024-02-31' in row 2"),
        ({}, "day", "The target 'day' holds dates"),
    ],
)
def test_dates_that_are_none_and_targets_of_dates(frame, tmp_path, change, target, message):
    with pytest.raises(ValueError, match=message):
        tables.read_table(write(frame.assign(**change), tmp_path), target)


def test_times_of_a_day_are_parts_of_days(frame, tmp_path):
    frame["day"] = pd.date_range("2024-01-01 06:00", periods=ROWS, freq="12h").strftime(
        "%Y-%m-%dT%H:%M"
    )
    table = tables.read_table(write(frame, tmp_path), "weight")
    np.testing.assert_allclose(table.x[:, 1], 19723.25 + 0.5 * np.arange(ROWS))


def test_a_new_table_may_miss_only_what_was_missing_before(frame, tmp_path):
    frame.loc[0, "width"] = np.nan
    old = tables.read_table(write(frame, tmp_path), "weight", impute=True)
    new = frame.iloc[5:8].copy()
    new.loc[5, "width"] = np.nan
    path = write(new, tmp_path, "new.csv")
    fields = read_fields(path)
    assert misfits(fields, old.sources) == {}
    made = inputs_of(path, fields, old.sources)
    assert tuple(made.columns) == old.columns
    np.testing.assert_array_equal(made["width missing"], [1, 0, 0])
    new.loc[6, "day"] = None
    path = write(new, tmp_path, "new.csv")
    ((said, rows),) = misfits(read_fields(path), old.sources).items()
    assert "'day' has missing values, and no row that was fitted had one" in said
    assert rows == [3]


KINDS = {
    "truth values": (["true", "false", ""] * 4, ["TRUE", "false", ""], [1, 0, np.nan]),
    "truth values and another": (["True", "False", "unknown"] * 4, ["True", "False"], ["True", "False"]),
    "numbers among texts": (["1", "A", "B"] * 4, ["1", "A", "1"], ["1", "A", "1"]),
    "numbers alone": (["1", "A", "B"] * 4, ["1"], ["1"]),
    "gaps in texts": (["a", "", "b"] * 4, ["", "b"], [MISSING, "b"]),
    "no value": (["1.5", "", "2.5"] * 4, [""], [np.nan]),
    "no date": (["2024-01-01", "", "2024-01-03"] * 4, [""], [np.nan]),
}  # fmt: skip


def column(values):
    return pd.DataFrame({"a": values}, index=range(2, 2 + len(values)), dtype=object)


@pytest.mark.parametrize("name", KINDS)
def test_few_new_rows_are_read_as_the_kind_that_was_fitted(name):
    fitted, new, expected = KINDS[name]
    source = source_of("a", column(fitted)["a"])
    assert misfits(column(new), [source]) == {}
    made = inputs_of("new.csv", column(new), [source]).to_numpy()
    if source.levels:
        assert [source.levels[k] for k in made.argmax(1)] == expected
    else:
        np.testing.assert_array_equal(made[:, -1], np.isnan(expected))
        np.testing.assert_array_equal(made[:, 0], expected)


UNFIT = {
    "truth values": (["true", "false"], "true", ""),
    "numbers": (["1", "2.5"], "3", "low"),
    "infinity": (["1", "2.5"], "3", "inf"),
    "dates": (["2024-01-31", "2024-02-01"], "2024-03-01T10:00Z", "01/02/2024"),
    "texts": (["a", "b"], "a", "c"),
    "names of things": (["010", "10"], "10", "1e1"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_new_values_of_another_kind_are_named_with_their_rows(name):
    fitted, good, bad = UNFIT[name]
    source = source_of("a", column(fitted * 6)["a"], as_text=name == "names of things")
    assert misfits(column([good]), [source]) == {}
    ((said, rows),) = misfits(column([good, bad, good, bad]), [source]).items()
    assert ("missing" if bad == "" else repr(bad)) in said
    assert rows == [3, 5]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_fit_of_a_mixed_table_predicts_rows_with_missing_values(frame, tmp_path):
    frame.loc[[0, 5, 11], "width"] = np.nan
    frame.loc[4, "colour"] = None
    table, run = write(frame, tmp_path), tmp_path / "run"
    short = ["--hidden", "2", "--chains", "2", "--warmup", "5", "--samples", "5", "--quiet"]
    short += ["--kernel", "baoab", "--prior", "normal", "--missing", "impute"]
    assert main_in_short([str(table), "--target", "weight", "--output", str(run), *short]) == 0
    new = write(frame.drop(columns="weight"), tmp_path, "new.csv")
    assert main(["predict", str(run), str(new)]) == 0
    made = pd.read_csv(tmp_path / "new_predictions.csv")
    assert len(made) == ROWS
    assert np.isfinite(made[["mean", "sd"]].to_numpy()).all()
    told = pd.read_csv(run / "predictions.csv")
    rows = [int(name.removeprefix("row ")) - 2 for name in told["row"]]
    np.testing.assert_allclose(made["mean"].to_numpy()[rows], told["mean"], rtol=1e-4, atol=1e-5)
