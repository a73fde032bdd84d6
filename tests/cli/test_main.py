"""The command line from end to end, on small data and few draws."""

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import arviz
import jax
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from short_jobs import main_in_short

import numpyro_bnn
import numpyro_bnn as bnn
from numpyro_bnn import Draws, from_inference_data
from numpyro_bnn.cli import job, saved_fit, tables
from numpyro_bnn.cli.job_report import _checked
from numpyro_bnn.cli.main import main
from numpyro_bnn.cli.saved_fit import frame_of
from numpyro_bnn.cli.tables import Table
from numpyro_bnn.posterior.predictive_draws import Predictions

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SHORT = ["--hidden", "3", "--chains", "2", "--warmup", "20", "--samples", "20", "--quiet"]
# What compiles the fastest, for every change; the defaults and other kernels come weekly.
LIGHT = ["--kernel", "baoab", "--prior", "normal"]


def _table(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    kind = np.where(x[:, 0] + 0.3 * rng.normal(size=60) > 0, "yes", "no")
    path = tmp_path / "shop.csv"
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "price": x.sum(1), "sold": kind})
    frame.to_csv(path, index=False)
    return str(path)


def _report(folder, target, *options):
    """The folder that the command writes for a small table, and what it prints."""
    output, printed = folder / "report", io.StringIO()
    arguments = [_table(folder), "--target", target, "--output", str(output), *SHORT, *options]
    with contextlib.redirect_stdout(printed):
        assert main_in_short(arguments) == 0
    return output, printed.getvalue()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(LIGHT, id="light"),
        pytest.param([], id="defaults", marks=pytest.mark.slow),
    ],
)
def regression(request, tmp_path_factory):
    """Options of a regression, the folder that was written, and what was printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = tmp_path_factory.mktemp("price")
        return request.param, *_report(folder, "price", *request.param)


def _assert_reported(output, printed, *headings):
    for words in ("deep ensemble of 2", "posterior average", "15 test rows", "(max_minutes)"):
        assert words in printed
    # Twenty draws are too few, and where a temperature shows that chains have not arrived that comes first.
    verdict = re.search("Verdict: (too short|not converged)", printed)
    assert verdict
    report = (output / "report.html").read_text(encoding="utf-8")
    assert "<b>posterior average</b>" in report
    assert f"<strong>{verdict[1].capitalize()}:</strong>" in report
    for heading in headings:
        assert f"<h2>{heading}</h2>" in report
    names = {path.name for path in output.iterdir() if not path.name.startswith(".")}
    assert names == {"report.html", "predictions.csv", "posterior.nc", "model.json"}
    frame = pd.read_csv(output / "predictions.csv")
    assert len(frame) == 15
    return frame


def test_a_table_becomes_a_report(regression):
    _, output, printed = regression
    _assert_reported(output, printed, "Predicted and observed test rows")


def test_the_first_table_comes_before_sampling(regression):
    _, _, printed = regression
    first, last = printed.split("before sampling")[1].split("15 test rows")
    for name in ("mean of the target", "plain training", "deep ensemble of 2"):
        (score,) = re.findall(rf"{name} (-?[\d.]+)", first)
        assert re.search(rf"{name} +{score}", last)
    assert "posterior average" not in first
    assert "posterior average" in last


def test_a_fit_that_cannot_be_checked_is_reported_all_the_same():
    few = SimpleNamespace(check=Mock(side_effect=ValueError("too few draws")))
    (said,) = _checked(few, ["a"]).parts
    few.check.assert_called_once_with(names=["a"], classes=())
    assert said.text == "too few draws"


def test_the_page_stands_by_itself_and_tells_the_scores_first(regression):
    _, output, printed = regression
    page = (output / "report.html").read_text(encoding="utf-8")
    for tag in ("section", "table", "tr", "th", "td", "details", "p", "figure", "strong", "b"):
        assert len(re.findall(rf"<{tag}\b", page)) == page.count(f"</{tag}>")
    assert printed.count("\n") <= 30
    assert "<script" not in page
    addresses = re.findall(r'(?:src|srcset|href)="(.{22})', page)
    assert set(addresses) == {"data:image/png;base64,"}
    headings = re.findall(r"<(?:h1|h2|summary)>(.*?)<", page)
    assert headings[:2] == ["shop: price", "How good are the predictions?"]


def test_new_rows_are_predicted_from_the_folder(regression, tmp_path, capsys):
    _, output, _ = regression
    told = pd.read_csv(output / "predictions.csv")
    shop = pd.read_csv(output.parent / "shop.csv")
    # A spreadsheet counts rows from 1, and the header is the first.
    rows = [int(name.removeprefix("row ")) - 2 for name in told["row"]]
    new = tmp_path / "new.csv"
    shop.iloc[rows][["sold", "b", "a"]].assign(more="x").to_csv(new, index=False)
    assert main(["predict", str(output), str(new)]) == 0
    assert "Rows predicted: 15, in" in capsys.readouterr().out
    made = pd.read_csv(tmp_path / "new_predictions.csv")
    for column in ("mean", "sd", "5 %", "95 %"):
        np.testing.assert_allclose(made[column], told[column], rtol=1e-4, atol=1e-4)
    assert ((made["5 %"] < made["mean"]) & (made["mean"] < made["95 %"])).all()


def test_new_rows_are_named_by_the_column_that_named_those_of_the_fit(regression):
    _, output, _ = regression
    fit = saved_fit.read(output)
    fit = fit._replace(table=fit.table._replace(named_by="shop"))
    every = tables.read_fields(output.parent / "shop.csv", None)[:3].assign(shop=["x", "y", "z"])
    made, _ = saved_fit.predict_fields(fit, output, every)
    assert list(made["row"]) == ["x", "y", "z"]


def test_rows_of_a_new_kind_are_left_out_where_that_is_asked_for(regression, tmp_path, capsys):
    _, output, _ = regression
    shop = pd.read_csv(output.parent / "shop.csv").drop(columns="price").astype(object)
    shop.loc[[1, 4], "sold"] = ["perhaps", "never"]
    shop.loc[2, "a"] = np.nan
    new = tmp_path / "new.csv"
    shop.to_csv(new, index=False)
    assert main(["predict", str(output), str(new)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "2 problems" in said
    assert "'sold' holds 'perhaps', 'never', which no row that was fitted had" in said
    assert "leave such rows out by --unknown skip" in said
    assert main(["predict", str(output), str(new), "--unknown", "skip"]) == 0
    printed = capsys.readouterr().out
    assert "Left out rows 3, 6: the column 'sold' holds 'perhaps', 'never'" in printed
    assert "Left out rows 4: the column 'a' has missing values" in printed
    made = pd.read_csv(tmp_path / "new_predictions.csv")
    assert list(made["row"][:4]) == ["row 2", "row 5", "row 7", "row 8"]
    assert len(made) == 57
    shop.assign(sold="perhaps").to_csv(new, index=False)
    assert main(["predict", str(output), str(new), "--unknown", "skip"]) == 2
    assert "no row is left" in capsys.readouterr().err


@pytest.mark.parametrize(("center", "sd"), [(0.0, 0.37), (1e6, 2.5), (1e6, 3e5), (2.0, 1e-4)])
def test_predictions_have_the_digits_that_tell_rows_apart(center, sd):
    table = Table("t", None, None, "regression", (), "y", (), (), ())
    mean = center + sd * np.array([0.123456789, 1.23456789]) + np.array([0, 4 * (center > 0)])
    scale = np.full(2, sd)
    values = {"mean": mean[None, None], "scale": scale[None, None]}
    drawn = Predictions(values, lambda what, y: {what: norm(mean, scale).cdf(y)[None, None]})
    made = frame_of(table, "ab", drawn)
    np.testing.assert_allclose(made["mean"], mean, rtol=0, atol=max(1e-4 * sd, 0.5 * (sd > 1e4)))
    assert made["mean"].nunique() == 2
    if center == 0:
        shown = made[["mean", "sd"]].to_numpy().ravel()
        assert max(len(str(value).lstrip("-0.")) for value in shown) <= 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="b"), "no column 'b'; it has: a, price, sold"),
        (lambda t: t.assign(a="low"), "'a' holds 'low', and in the table that was fitted numbers"),
        (lambda t: t.assign(a=np.nan), "'a' has missing values, and no row that was fitted"),
        (lambda t: t.iloc[:0], "has a header and no rows"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused(regression, change, message, tmp_path, capsys):
    _, output, _ = regression
    new = tmp_path / "new.csv"
    change(pd.read_csv(output.parent / "shop.csv")).to_csv(new, index=False)
    assert main(["predict", str(output), str(new)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_without_a_fit_or_with_a_damaged_one_is_refused(regression, tmp_path, capsys):
    _, output, _ = regression
    table = str(output.parent / "shop.csv")
    assert main(["predict", str(tmp_path), table]) == 2
    assert "holds no fit: model.json is missing" in " ".join(capsys.readouterr().err.split())
    shutil.copytree(output, tmp_path / "run")
    (tmp_path / "run" / "model.json").write_text('{"format": "another"}')
    assert main(["predict", str(tmp_path / "run"), table]) == 2
    assert "its format is 'another'" in " ".join(capsys.readouterr().err.split())
    assert main(["predict", str(output), table, "--output", table]) == 2
    assert "is the file of the new rows" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["posterior.nc", "model.json"])
def test_a_fit_with_a_flipped_bit_is_refused(name, regression, tmp_path):
    _, output, _ = regression
    for part in ("posterior.nc", "model.json"):
        shutil.copy(output / part, tmp_path)
    assert saved_fit.read(tmp_path).draws.num_chains == 2
    content = (tmp_path / name).read_bytes()
    for place in np.linspace(0, len(content) - 2, 25).astype(int):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(place) % 8
        (tmp_path / name).write_bytes(flipped)
        if name == "model.json" and _is_equal(flipped, content):
            continue
        with pytest.raises(ValueError, match=r"model\.json is damaged.*Fit again"):
            saved_fit.read(tmp_path)


def _is_equal(flipped, content):
    """Whether two texts hold the same, as where one kind of space became another."""
    try:
        return json.loads(flipped) == json.loads(content)
    except ValueError:
        return False


@pytest.mark.slow
def test_the_page_in_a_browser(regression):
    """At the widths of a telephone and of a desk, in light and dark; nothing sticks out."""
    playwright = pytest.importorskip("playwright.sync_api")
    _, output, _ = regression
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=os.environ.get("CHROMIUM"))
        except playwright.Error as error:
            pytest.skip(f"no Chromium can be started: {str(error).splitlines()[0]}")
        for scheme, width in itertools.product(("light", "dark"), (400, 1400)):
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
            page.goto((output / "report.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 29)")
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["nuts", "ggmc"])
def test_a_table_of_classes_becomes_a_report(kernel, tmp_path):
    short = ["--kernel", kernel, "--max-tree-depth", "3", "--calibration", "0.3"]
    written = _report(tmp_path, "sold", *short, "--prior", "fan-in")
    frame = _assert_reported(*written, "Class by class", "Telling yes from no")
    np.testing.assert_allclose(frame[["p(no)", "p(yes)"]].sum(axis=1), 1, atol=1e-5)
    assert set(frame["predicted"]) <= {"yes", "no"}


def test_the_posterior_is_readable_by_arviz(regression):
    options, output, _ = regression
    draws = from_inference_data(arviz.from_netcdf(output / "posterior.nc"))
    assert isinstance(draws, Draws)
    assert draws.num_chains == 2
    assert 1 <= draws.num_draws <= 20
    assert draws["net/Dense_0.kernel"].shape == (2, draws.num_draws, 4, 3)
    assert ("net/Dense_0.kernel.precision" in draws) == ("normal" not in options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--drop", "y"], "and so do --drop and --text"),
        (["compare", "digits", "--calibration", ".2"], "--calibration belongs to a fit"),
        (["digits", "--target", "y"], "--target and --task belong to a CSV"),
        (["--max-tree-depth", "3"], "settings ['energy_variance'], and not ['max_tree_depth']"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chains", "0"], "--chains must be a whole number of at least 1, got '0'"),
        (["--hidden", "3", "2.5"], "--hidden must be a whole number of at least 1, got '2.5'"),
        (["--minutes", "soon"], "--minutes must be a positive number, got 'soon'"),
        (["--chain", "3"], "there is no option '--chain', did you mean --chains?"),
        (["--test-fraction", "1.5"], "must be between 0 and 1, got '1.5'"),
        (["--minutes", "nan"], "must be a positive number, got 'nan'"),
        (["--prior", "flat"], "--prior must be one of hierarchical, fan-in"),
        (["--sep", "::"], "must be one character, or 'tab', got '::'"),
    ],
)
def test_bad_options(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_all_bad_options_come_at_once(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["x.csv", "--chains", "x", "--seed", "-1", "--kernel", "gibbs", "--targt", "y"])
    said = capsys.readouterr().err
    for words in ("--chains must be", "--seed must be a whole number", "--kernel must be one of"):
        assert f"error: {words}" in said
    assert "no option '--targt', did you mean --target?" in said
    assert "'y'" not in said


MISSPELT = (
    (["shp.csv", "--target", "price"], "no file shp.csv. Did you mean shop.csv?"),
    (["digit"], "no file digit. Did you mean digits?"),
    (["predict", "absent", "shop.csv"], "absent holds no fit"),
    (["predict", ".", "shp.csv"], "no file shp.csv. Did you mean shop.csv?"),
    (["shop.csv", "--target", "prise"], "no column 'prise'; it has: a, b, price, sold. Did you"),
    (["compare", "shop.csv"], "say which column to predict with --target; it has: a, b, price"),
)
# As after `python -m numpyro_bnn`.
_EACH = """
import sys
sys.orig_argv[1:] = ["-m", "numpyro_bnn"]
from numpyro_bnn.__main__ import main
for arguments in CASES:
    print("ended with", main(arguments), {"jax", "pandas"} & {*sys.modules}, file=sys.stderr)
"""


def test_misspelt_names_are_told_before_libraries_are_loaded(tmp_path):
    _table(tmp_path)
    place = os.path.dirname(os.path.dirname(numpyro_bnn.__file__))
    done = subprocess.run(
        [sys.executable, "-c", _EACH.replace("CASES", str([case for case, _ in MISSPELT]))],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": place}, capture_output=True, text=True,
    )  # fmt: skip
    *parts, rest = re.split(r"ended with 2 (.*)\n", done.stderr)
    assert (parts[1::2], rest) == (["set()"] * 4 + ["{'pandas'}"] * 2, "")
    for said, (_, message) in zip(parts[::2], MISSPELT):
        assert message in " ".join(said.split())


@pytest.mark.parametrize(
    ("terminal", "quiet", "shown"), [(1, 0, True), (0, 0, False), (1, 1, False)]
)
def test_progress_is_shown_in_terminals_alone(terminal, quiet, shown, tmp_path, monkeypatch):
    asked = Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr("numpyro_bnn.cli.job.run", asked)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: bool(terminal), raising=False)
    arguments = [_table(tmp_path), "--target", "price", "--output", str(tmp_path / "report")]
    assert main([*arguments, *["--quiet"] * quiet]) == 2
    assert asked.call_args.kwargs["progress_bar"] == shown


def test_a_warning_is_one_line_without_its_place_in_the_source(monkeypatch, capsys):
    def run(*_, **__):
        warnings.simplefilter("always")
        warnings.warn("look at [0]", UserWarning, stacklevel=1)
        raise ValueError("enough")

    monkeypatch.setattr("numpyro_bnn.cli.job.run", run)
    shown = warnings.showwarning
    assert main(["digits"]) == 2
    assert capsys.readouterr().err.splitlines() == ["warning: look at [0]", "error: enough"]
    assert warnings.showwarning is shown


@pytest.mark.parametrize("width", [60, 80])
def test_the_summary_of_a_wide_table_is_folded(width, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("numpyro_bnn.cli.job.run", Mock(side_effect=ValueError("enough")))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 50)), columns=[f"x{i} [/s]" for i in range(50)])
    frame["[b]"] = np.resize(["[red]", "blue"], 40)
    frame["long " * 20] = np.resize([True, False], 40)
    frame.to_csv(tmp_path / "wide.csv", index=False)
    main([str(tmp_path / "wide.csv"), "--target", "x0 [/s]", "--output", str(tmp_path / "report")])
    printed = capsys.readouterr().out.rstrip().split("\n")
    assert len(printed) == 10
    assert printed[0] == "wide: regression of 'x0 [/s]', 40 rows, 52 inputs"
    assert max(map(len, printed)) <= width
    # What a column was taken for is never cut.
    assert re.fullmatch("long .*… +truth values +50% true *", printed[4])
    assert printed[3].split() == ["[b]", "texts", "2:", "[red],", "blue"]
    assert printed[-1] == "more: 45 of numbers"


def test_help_is_for_people(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    for words in ("wine.csv --target quality", "Ctrl-C", "--max-tree-depth", "default: one of 16"):
        assert words in text


def test_what_is_compared_is_what_the_options_say(tmp_path, capsys, monkeypatch):
    """Without the comparison itself, which the weekly test below makes."""
    asked = []

    def compared(model, data, methods, **settings):
        asked.append((len(data[0]), len(data[2]), methods, settings))
        return "a table"

    monkeypatch.setattr("numpyro_bnn.cli.job.compare", compared)
    arguments = [_table(tmp_path), "--target", "price", *SHORT, "--kernel", "hmc"]
    arguments += ["--max-tree-depth", "4", "--seed", "3"]
    assert main(["compare", *arguments, "--methods", "map"]) == 0
    assert capsys.readouterr().out.endswith("a table\n")
    ((num_train, num_test, methods, settings),) = asked
    assert (num_train, num_test) == (45, 15)
    assert list(methods) == ["map", "hmc"]
    assert methods["map"] is None
    assert methods["hmc"]._num_steps == 4
    assert [settings[f"num_{name}"] for name in ("chains", "warmup", "samples")] == [2, 20, 20]
    assert settings["key"] == jax.random.key(3)
    assert not settings["progress_bar"]
    assert main([*arguments, "--methods", "map"]) == 2
    assert "--methods belongs to `compare`" in capsys.readouterr().err


@pytest.mark.slow
def test_methods_are_compared_from_the_terminal(tmp_path, capsys):
    arguments = [_table(tmp_path), "--target", "price", *SHORT, "--kernel", "hmc"]
    assert main(["compare", *arguments, "--max-tree-depth", "3", "--methods", "map"]) == 0
    printed = capsys.readouterr().out
    assert "hmc *" in printed
    assert "map" in printed
    assert "RMSE" in printed


# -- `python -m numpyro_bnn update` --------------------------------------------------------------


ROWS = 58


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A folder with a table, and draws near the posterior of its first rows as the fit `run`."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "price": x.sum(1) + rng.normal(size=60)})
    frame.to_csv(folder / "shop.csv", index=False)
    table = tables.read_table(folder / "shop.csv", "price").imputed(np.arange(ROWS))
    options = job.Options(hidden=())
    data, model = (table.x[:ROWS], table.y[:ROWS]), job.model_of(table, options)
    model.learn(*data)
    sites = {"y.scale": rng.normal(0.6, 0.04, (2, 100))}
    for part, center, shape in (("kernel", 0.7, (2, 1)), ("bias", 0.0, (1,))):
        name, base = f"net/Dense_0.{part}", rng.normal(center, 0.1, (2, 100, *shape))
        precision = rng.uniform(2.0, 3.0, (2, 100))
        own = base / np.sqrt(precision).reshape(2, 100, *[1] * len(shape))
        sites |= {name: own, f"{name}.base": base, f"{name}.precision": precision}
    draws = bnn.Draws({name: np.float32(value) for name, value in sites.items()}, model)
    draws._args = data
    (folder / "run").mkdir()
    saved_fit.write(table, options, folder / "run", draws)
    return folder


def test_new_rows_update_the_fit_in_a_folder_of_its_own(shop, tmp_path, capsys):
    frame = pd.read_csv(shop / "shop.csv", float_precision="round_trip")
    new, output = tmp_path / "new.csv", tmp_path / "more"
    # The first of them is known already.
    rows = frame.iloc[[*range(ROWS - 1, 60), 0, 1]][["price", "b", "a"]].assign(more="x")
    rows.iloc[3:, 0] = np.nan
    rows.to_csv(new, index=False)
    before = [(path.name, path.read_bytes()) for path in sorted((shop / "run").iterdir())]
    arguments = ["update", str(shop / "run"), str(new), "--output", str(output)]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 12
    assert lines.pop(0) == "Left out rows 5, 6: no value of 'price'"
    assert lines[0] == f"3 new rows of 'price' beside {ROWS} that were fitted."
    assert lines[1].startswith("Beware: 1 of them equal rows that were fitted.")
    assert lines[2].startswith("Log score of the new rows before they were used: ")
    assert lines[4].startswith("By resampling alone: Pareto k̂ ")
    assert re.match("[A-Z][a-z ]+: ", lines[-2])
    assert lines[-1].endswith(str(output))
    assert before == [(path.name, path.read_bytes()) for path in sorted((shop / "run").iterdir())]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["more", "new.csv"]
    updated = saved_fit.read(output).draws
    np.testing.assert_array_equal(updated._args[0][:ROWS], frame[["a", "b"]][:ROWS])
    np.testing.assert_allclose(updated._args[1], frame["price"].iloc[[*range(ROWS), 57, 58, 59]])
    known = updated.info["updated"]["log_evidence"]
    assert float(re.search(r"before: (\S+)", lines[3])[1]) == pytest.approx(known, abs=0.006)
    assert main(arguments) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is there already, and an update replaces nothing" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="price"), "no column 'price'"),
        (lambda t: t.drop(columns="b"), "no column 'b'"),
        (lambda t: t.assign(price="dear"), "'price' holds 'dear', and in the table that was"),
        (lambda t: t.assign(price=np.nan), "no value of 'price' - no row is left"),
    ],
)
def test_new_rows_that_cannot_be_added_are_refused(shop, change, message, tmp_path, capsys):
    new, output = tmp_path / "new.csv", tmp_path / "more"
    change(pd.read_csv(shop / "shop.csv").iloc[:2]).to_csv(new, index=False)
    assert main(["update", str(shop / "run"), str(new), "--output", str(output)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not output.exists()


def test_a_fit_without_its_rows_is_not_updated(shop, tmp_path, capsys):
    fit = saved_fit.read(shop / "run")
    bare = bnn.Draws(fit.draws, fit.draws.model, info=fit.draws.info)
    (tmp_path / "run").mkdir()
    saved_fit.write(fit.table, fit.options, tmp_path / "run", bare, log_likelihood=False)
    assert main(["update", str(tmp_path / "run"), str(shop / "shop.csv")]) == 2
    assert "does not hold the rows of its fit" in " ".join(capsys.readouterr().err.split())


def test_classes_are_recognised_as_they_were_written():
    classes = tables._target(pd.Series([1.0, 1.0, 2.5, 2.5]), "classification", "")[1]
    classes += ("True", "yes")
    fields = pd.Series(["1.0", "1", "2.50", "TRUE", "yes", "no"], dtype=object)
    made = saved_fit._as_classes(fields, classes)
    assert list(made) == ["1", "1", "2.5", "True", "yes", "no"]


def test_calibrated_intervals_are_written_and_kept_with_the_fit(shop, tmp_path):
    fit, rng = saved_fit.read(shop / "run"), np.random.default_rng(0)
    x = rng.normal(size=(20, 2))
    calibrated = bnn.calibrate(fit.draws, x, x.sum(1) + rng.normal(size=20))
    saved_fit.write(fit.table, fit.options, tmp_path, fit.draws, calibrated=calibrated)
    fields, path = tables.read_fields(shop / "shop.csv", None), shop / "shop.csv"
    frame, _ = saved_fit.predict_fields(saved_fit.read(tmp_path), path, fields)
    ends = frame[["calibrated 90 % low", "calibrated 90 % high"]].to_numpy().T
    inputs = pd.read_csv(path)[["a", "b"]].to_numpy()
    np.testing.assert_allclose(ends, calibrated.predict_interval(inputs), atol=1e-4)
    plain, _ = saved_fit.predict_fields(fit, path, fields)
    assert "calibrated 90 % low" not in plain


def test_calibrated_sets_name_their_classes():
    inside = np.array([[True, False], [True, True], [False, False]])
    known = SimpleNamespace(coverage=0.9, sets_of=lambda predictions, x: inside)
    frame, table = pd.DataFrame({"row": [1, 2, 3]}), SimpleNamespace(classes=("no", "yes"))
    made = saved_fit.with_calibrated(frame, table, known, None, None)
    assert made["calibrated 90 % set"].tolist() == ["no", "no | yes", ""]
