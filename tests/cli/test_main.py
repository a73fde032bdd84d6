"""The command line from end to end, on small data and few draws."""

import contextlib
import io
import re
import warnings

import jax
import numpy as np
import pandas as pd
import pytest

from numpyro_bnn import Draws, from_inference_data
from numpyro_bnn.cli.main import main

pytestmark = [
    pytest.mark.usefixtures("quick_compile"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SHORT = ["--hidden", "3", "--chains", "2", "--warmup", "20", "--samples", "20", "--quiet"]
# Over before the first look: a fit ends with its first few draws.
SHORT += ["--minutes", "0.001"]
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
        assert main(arguments) == 0
    return output, printed.getvalue()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(LIGHT, id="light"),
        pytest.param([], id="defaults", marks=pytest.mark.slow),
    ],
)
def regression(request, quick_compile, tmp_path_factory):
    """Options of a regression, the folder that was written, and what was printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = tmp_path_factory.mktemp("price")
        return request.param, *_report(folder, "price", *request.param)


def _assert_reported(output, printed, figure):
    for words in (
        "MAP",
        "deep ensemble of 2",
        "posterior average",
        "15 test rows",
        "(max_minutes)",
    ):
        assert words in printed
    # Twenty draws are too few, and where a temperature shows that chains have not arrived that comes first.
    verdict = re.search("Verdict: (too short|not converged)", printed)
    assert verdict
    report = (output / "report.md").read_text(encoding="utf-8")
    assert "| posterior average |" in report
    assert f"**Verdict: {verdict[1].replace(' ', '_')}.**" in report
    for name in (figure, "rhat.png", "trace.png"):
        assert f"({name})" in report
        assert (output / name).stat().st_size > 5_000
    frame = pd.read_csv(output / "predictions.csv")
    assert len(frame) == 15
    return frame


def test_a_table_becomes_a_report(regression):
    _, output, printed = regression
    _assert_reported(output, printed, "band.png")


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["nuts", "ggmc"])
def test_a_table_of_classes_becomes_a_report(kernel, tmp_path):
    short = ["--kernel", kernel, "--max-tree-depth", "3"]
    written = _report(tmp_path, "sold", *short, "--prior", "fan-in")
    frame = _assert_reported(*written, "reliability.png")
    np.testing.assert_allclose(frame[["p(no)", "p(yes)"]].sum(axis=1), 1, atol=1e-5)
    assert set(frame["predicted"]) <= {"yes", "no"}


def test_the_posterior_is_readable_by_arviz(regression):
    arviz = pytest.importorskip("arviz")
    options, output, _ = regression
    idata = arviz.from_netcdf(output / "posterior.nc")
    draws = from_inference_data(idata)
    assert isinstance(draws, Draws)
    assert draws.num_chains == 2
    assert 1 <= draws.num_draws <= 20
    assert draws["net/Dense_0.kernel"].shape == (2, draws.num_draws, 4, 3)
    assert ("net/Dense_0.kernel.precision" in draws) == ("normal" not in options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.csv", "--target", "y"], "There is no file absent.csv"),
        (["digits", "--target", "y"], "--target and --task belong to a CSV"),
        (["--max-tree-depth", "3"], "max_tree_depth is not a setting of the kernel 'mclmc'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chains", "0"], "must be at least 1, got 0"),
        (["--test-fraction", "1.5"], "must be between 0 and 1, got 1.5"),
        (["--minutes", "-1"], "must be positive, got -1"),
        (["--minutes", "nan"], "must be positive, got nan"),
        (["--prior", "flat"], "invalid choice"),
    ],
)
def test_bad_options(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_help_is_for_people(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    for words in ("wine.csv --target quality", "Ctrl-C", "--max-tree-depth", "default: 16"):
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
    lengths = [settings[f"num_{name}"] for name in ("chains", "warmup", "samples")]
    assert lengths == [2, 20, 20]
    assert settings["key"] == jax.random.key(3)
    assert not settings["progress_bar"]
    assert main([*arguments, "--methods", "map"]) == 2
    assert "--methods belongs to `compare`" in capsys.readouterr().err


def test_a_method_that_nobody_knows_is_refused(tmp_path, capsys):
    arguments = [_table(tmp_path), "--target", "price", *SHORT, "--methods", "gibbs"]
    assert main(["compare", *arguments]) == 2
    assert "no method is called 'gibbs'" in capsys.readouterr().err


@pytest.mark.slow
def test_methods_are_compared_from_the_terminal(tmp_path, capsys):
    arguments = [_table(tmp_path), "--target", "price", *SHORT, "--kernel", "hmc"]
    assert main(["compare", *arguments, "--max-tree-depth", "3", "--methods", "map"]) == 0
    printed = capsys.readouterr().out
    assert "hmc *" in printed
    assert "map" in printed
    assert "RMSE" in printed
