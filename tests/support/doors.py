"""Doors of the package that rows go through, each a function from rows to numbers; one model, few programs.

``python tests/support/doors.py`` makes the table of `inputs.md`: a row a container, a column a quick door.
"""

import functools
import importlib.util
import tempfile
import traceback
import warnings
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from containers import CONTAINERS, X, Y
from documents import PAGES

import numpyro_bnn as bnn
from numpyro_bnn import scores
from numpyro_bnn.cli import tables
from numpyro_bnn.data.arguments import as_arrays
from numpyro_bnn.workflow.estimator_inputs import validated

KEY = jax.random.key(0)
NEW = X[::-1] + 0.25
WEIGHTS = np.linspace(-1, 1, 8).reshape(1, 4, 2)


def model(x, y=None):
    """A linear regression on all rows or some."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", len(X)):
        rows = numpyro.subsample(x, event_dim=1)
        target = y if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(rows @ w, 1.0), obs=target)


DRAWS = bnn.Draws({"w": WEIGHTS}, model)


def _run(kernel, x, y):
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=4, progress_bar=False)
    mcmc.run(
        KEY, x, y, init_params={"w": np.ones(2, np.float32)}, extra_fields=("potential_energy",)
    )
    return mcmc


_ALL = bnn.BAOAB(model, step_size=0.01)
_SOME = bnn.SGLD(model, step_size=0.01, batch_size=4)


def run(x, y, folder):
    return _run(_ALL, x, y).get_extra_fields()["potential_energy"]


def minibatch(x, y, folder):
    return _run(_SOME, x, y).get_samples()["w"]


def on_host(x, y, folder):
    return _run(_SOME, bnn.OnHost(x), bnn.OnHost(y)).get_samples()["w"]


def predict(x, y, folder):
    return bnn.predict(None, DRAWS, x).mean


def score(x, y, folder):
    found = bnn.predict(None, DRAWS, X)
    return np.array([scores.lppd(found, y), scores.crps(found, y), scores.rmse(found, y)])


def estimator(x, y, folder):
    made = bnn.BNNRegressor(
        (2,), prior=bnn.priors.Normal(1.0), num_chains=1, num_warmup=2, num_samples=2, thinning=1,
        random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return made.fit(x, y).predict(x)


def calibrate(x, y, folder):
    return np.array(bnn.calibrate(DRAWS, x, y).predict_interval(x))


def save_load(x, y, folder):
    path = bnn.save(_run(_ALL, x, y), folder / "draws.npz")
    return bnn.predict(None, bnn.load(path, model), x).mean


def arviz(x, y, folder):
    found = bnn.to_inference_data(_run(_ALL, x, y), x, y, posterior_predictive=False)
    inputs = np.asarray(found["constant_data"]["x"].values, float)
    return np.column_stack([inputs, np.asarray(found["observed_data"]["y"].values, float)])


def command_line(x, y, folder):
    """The table that the command line reads from the file that the library writes of it."""
    path = folder / "rows.csv"
    if hasattr(x, "to_csv"):
        x.to_csv(path, index=False)
    elif hasattr(x, "write_csv"):
        x.write_csv(path)
    elif type(x).__module__.startswith("pyarrow"):
        from pyarrow import csv

        csv.write_csv(x, path)
    else:
        return None
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    # With a target, and each row twice: tables of the command line have at least 20.
    rows = [f"{line},{i}" for i, line in enumerate([*lines, *lines])]
    path.write_text("\n".join([f"{head},target", *rows]), encoding="utf-8")
    return tables.read_table(path, target="target").x[: len(lines)]


def arrays(x, y, folder):
    """What a model gets."""
    (rows, target), _ = as_arrays(model, (x, y), {})
    return np.column_stack([rows, target]).astype(float)


def rows_on_host(x, y, folder):
    sources = bnn.OnHost(x), bnn.OnHost(y)
    for source in sources:
        source.check_fits("model", "x")
    return np.column_stack([source.read(np.array([7, 3, 11])) for source in sources])


def features(x, y, folder):
    """What an estimator makes of its arguments."""
    return np.column_stack(validated(bnn.BNNRegressor(), x, y, reset=True, y_numeric=True))


DOORS = {
    "run": run,
    "minibatches": minibatch,
    "OnHost": on_host,
    "predict": predict,
    "scores": score,
    "estimator": estimator,
    "calibrate": calibrate,
    "save, load": save_load,
    "ArviZ": arviz,
    "command line": command_line,
}

# Without a program to compile.
CONVERSIONS = {
    "a model": arrays,
    "`OnHost`": rows_on_host,
    "an estimator": features,
    "command line, by CSV": command_line,
}


@functools.cache
def expected(door, *rows):
    """What a door gives of float64 rows of NumPy."""
    x, y = (np.array(values) for values in rows)
    if door.startswith("command line"):
        return x
    with tempfile.TemporaryDirectory() as folder:
        return (DOORS | CONVERSIONS)[door](x, y, Path(folder))


def installed(name):
    """Whether the libraries of a container are installed."""
    return all(importlib.util.find_spec(needed) for needed in CONTAINERS[name].needs)


def cell(name, door, folder):
    """What a door does with a container: "equal", "refused", or "–" where the container has no such file.

    Scores leave rows without a target out and say so, which is equal to the score of the other rows.
    """
    container = CONTAINERS[name]
    x, y = (container.make(values, folder) for values in (X, Y))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.filterwarnings("always", "(scores|calibrate).* no target and are left out")
            found = (DOORS | CONVERSIONS)[door](x, y, folder)
    except (TypeError, ValueError, RuntimeError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        ours = Path(bnn.__file__).parent in Path(last).parents
        # What scikit-learn and xarray say of an estimator's table is as good.
        theirs = door in ("estimator", "an estimator") and ("sklearn" in last or "xarray" in last)
        if (ours or theirs) and str(error):
            return "refused"
        return "error of a library below"
    if found is None:
        return "–"
    if said:
        known = np.flatnonzero(~np.isnan(np.asarray(y, float)))
        predictions = bnn.predict(None, DRAWS, X).at_rows(known)
        right = [
            of(predictions, np.asarray(Y)[known]) for of in (scores.lppd, scores.crps, scores.rmse)
        ]
        np.testing.assert_allclose(found, right, rtol=1e-5)
        return "equal"
    if container.rows(X) is None and np.isnan(found).any():
        return "NaN, which a run refuses"
    assert container.rows(X) is not None, "rows that are missing or no numbers were taken"
    rows = (container.rows(values).tolist() for values in (X, Y))
    right = expected(door, *(tuple(map(tuple, r)) if np.ndim(r) > 1 else tuple(r) for r in rows))
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
    return "equal"


PAGE = PAGES / "inputs.md"


def made_page():
    """The page with its table made anew."""
    table = {}
    for name in filter(installed, CONTAINERS):
        with tempfile.TemporaryDirectory() as folder:
            table[name] = {door: cell(name, door, Path(folder)) for door in CONVERSIONS}
    cells = [value for row in table.values() for value in row.values()]
    lines = [" | ".join(["rows in", *CONVERSIONS]), " | ".join(["---"] * (1 + len(CONVERSIONS)))]
    lines += [" | ".join([name, *row.values()]) for name, row in table.items()]
    counts = f"{cells.count('equal')} cells are equal, {cells.count('refused')} are refused."
    text = PAGE.read_text(encoding="utf-8").split("<!-- table -->")[0]
    return f"{text}<!-- table -->\n{counts}\n\n" + "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(made_page(), encoding="utf-8")
