"""`python -m numpyro_bnn update`: a fit of the command line given new rows too, in a folder of its own."""

import re

import jax
import nets
import numpy as np
import pandas as pd
import pytest
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn.cli import job, saved_fit, tables
from numpyro_bnn.cli.main import main

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ROWS = 58


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A folder with a table, and the fit `run` of its first rows."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "price": x.sum(1) + rng.normal(size=60)})
    frame.to_csv(folder / "shop.csv", index=False)
    table = tables.read_table(folder / "shop.csv", "price").imputed(np.arange(ROWS))
    options = job.Options(hidden=())
    data, model = (table.x[:ROWS], table.y[:ROWS]), job.model_of(table, options)
    mcmc = quiet(bnn.MALA(model, step_size=0.1), 200, 500, 2, thinning=5)
    mcmc.run(jax.random.key(0), *data, init_params=nets.starts(2, model, *data))
    (folder / "run").mkdir()
    saved_fit.write(table, options, folder / "run", mcmc)
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
    assert "Pareto k̂" in lines[4]
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
    classes = ("1", "2.5", "True", "yes")
    fields = pd.Series(["1.0", "1", "2.50", "TRUE", "yes", "no"], dtype=object)
    made = saved_fit._as_classes(fields, classes)
    assert list(made) == ["1", "1", "2.5", "True", "yes", "no"]
