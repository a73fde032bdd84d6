"""On the splits of `bde`: the estimator, its variants, boosted trees and a Gaussian process.

Splits and scaling are those of the published figures (the season, one of the published inputs of bikesharing,
is not in our file). Validation rows, where a method has them, come out of the training rows.

Cells with `held` above 0 leave so large a share of the training rows out of the fit, and calibrate the 90 %
interval on it (split conformal; the score of conformalised quantile regression, for all methods).

    python -m benchmarks.predictions.against_boosting [--quick] [--bde-python PYTHON]
"""

from functools import partial

import jax
import numpy as np
from scipy.stats import norm
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import table as stored_table
from benchmarks._shared.study import Results, Study, every_cell, parser
from benchmarks.predictions.against_boosting_report import (
    TABLES,
    findings,
    on_other_splits,
    picture,
    summary,
)
from benchmarks.predictions.other_regressors import BDE, ENDS, OTHERS, Forecast, bde, held_out
from benchmarks.predictions.tabular import BATCH, cpu_seconds, network, scored
from numpyro_bnn.workflow.calibration import interval_scores, threshold

COVERAGE = ENDS[1] - ENDS[0]


def rough(network, prior, likelihood):
    """Options with the error of a step that `bde` accepts, 10,000 times that of the estimator."""
    options = {"network": network, "prior": prior, "likelihood": likelihood}
    return options | {"energy_variance": 0.1}


# Network and prior of `bde`.
DEEP = bnn.MLP((16,) * 4, 2, jax.nn.relu), bnn.priors.Normal(1.0), "heteroscedastic"
# What the estimator was shipped with before it was compared here.
SMALL = {"hidden": (16, 16), "likelihood": "gaussian"}
# The estimator at 100 steps a draw, twice its default of today; what differs from that or from the smaller
# one, and the network of `bde`; `energy_variance` is a setting of `bnn.fit`.
OURS = {
    "100 steps a draw": {},
    "half the draws": {"num_warmup": 150, "num_samples": 150},
    "one noise": {"likelihood": "gaussian"},
    "one noise, half the draws": {"likelihood": "gaussian", "num_warmup": 150, "num_samples": 150},
    "two layers": {"hidden": (16, 16)},
    "two layers, one noise": SMALL,
    "two layers, one noise, rough": rough(
        bnn.MLP((16, 16), 1), bnn.priors.Hierarchical(), "gaussian"
    ),
    "two layers, one noise, N(0, 1)": SMALL | {"prior": bnn.priors.Normal(1.0)},
    "two layers, one noise, fan-in": SMALL | {"prior": bnn.priors.FanIn()},
    "32-32, one noise": {"hidden": (32, 32), "likelihood": "gaussian"},
    "baoab": {"kernel": "baoab"},
    "nuts": {"kernel": "nuts", "thinning": 1},
    "minibatches": {"batch_size": BATCH},
    "relu, N(0, 1), rough": rough(*DEEP),
}
ENSEMBLE = "deep ensemble, four layers"
MEMBERS = 8
# What short forms run, and how long chains are there.
SHORT = {
    "quick": ("100 steps a draw", "relu, N(0, 1), rough", ENSEMBLE, "bde", *OTHERS),
    "toy": ("100 steps a draw", "relu, N(0, 1), rough", "histogram boosting", "Gaussian process"),
}
FEW = {
    "quick": {"num_warmup": 100, "num_samples": 100, "thinning": 10},
    "toy": {"num_warmup": 20, "num_samples": 20, "thinning": 2, "num_chains": 2},
}
MOST = {"full": None, "quick": 400, "toy": 80}


def standardised(folder, name, seed, most=None):
    """Rows to learn from and rows to test, (x, y) each, as the script of the published figures has them."""
    x, y = stored_table(folder, name)
    if name == "bikesharing":
        x = x[:, 1:]
    x, x_test, y, y_test = train_test_split(x[:most], y[:most], test_size=0.2, random_state=seed)
    inputs, target = StandardScaler().fit(x), StandardScaler().fit(y[:, None])
    return [
        (inputs.transform(rows), target.transform(values[:, None])[:, 0])
        for rows, values in ((x, y), (x_test, y_test))
    ]


def estimator(x, y, x_new, seed, *, options, few):
    """Predictions of the estimator with some options, or of `bnn.fit` where one is not the estimator's."""
    options = {"thinning": 100} | options | few
    if "energy_variance" not in options:
        made = bnn.BNNRegressor(random_state=seed, **options).fit(x, y)
        return Forecast(made.predictions(x_new))
    module, prior, likelihood = (options.pop(k) for k in ("network", "prior", "likelihood"))
    model = bnn.regression(module, prior, likelihood=likelihood)
    fitted = bnn.fit(model, x, y, key=jax.random.key(seed), progress_bar=False, **options)
    return Forecast(fitted.predict(x_new))


def ensemble(x, y, x_new, seed):
    """Eight networks of four layers, stopped by validation rows."""
    fitted, validation = held_out(np.float32(x), np.float32(y), seed)
    draws = bnn.deep_ensemble(
        network(bnn.priors.Normal(1.0), 4),
        jax.random.key(seed),
        *fitted,
        validation=validation,
        num_members=MEMBERS,
        progress_bar=False,
    )
    return Forecast(bnn.predict(None, draws, np.float32(x_new)))


def methods(bde_python=None, few=None):
    """Name to a function of training rows, new rows and a seed."""
    found = {
        name: partial(estimator, options=options, few=few or {}) for name, options in OURS.items()
    }
    found |= {ENSEMBLE: ensemble} | OTHERS
    if bde_python:

        def rival(x, y, x_new, seed, *, settings):
            return Forecast(bde(bde_python, settings | {"seed": seed}, x, y, x_new))

        found |= {name: partial(rival, settings=settings) for name, settings in BDE.items()}
    return found


def ends_of(forecast):
    """The central 90 % interval of each row, (row, 2)."""
    return forecast.predictions.quantiles(ENDS).T if forecast.ends is None else forecast.ends


def of_intervals(ends, y, when):
    """Coverage and mean width."""
    low, high = ends.T
    inside = (low <= y) & (y <= high)
    return {f"coverage {when}": float(inside.mean()), f"width {when}": float((high - low).mean())}


def calibrated(ends, ends_held, y_held):
    """Ends moved by one number, so that the held-out rows are covered as asked; crossed ones meet."""
    by = threshold(interval_scores(y_held, *ends_held.T), COVERAGE)
    low, high = ends.T
    by = np.maximum(by, (low - high) / 2)
    return np.stack([low - by, high + by], 1)


def judged(forecast, y_test, y_held):
    """Scores of the first rows, the test; the interval calibrated by the others, where there are any."""
    count = len(y_test)
    predictions = forecast.predictions.at_rows(slice(count))
    found = scored(predictions, y_test)
    # Published figures are of one Gaussian a row, with the mean and the variance of the mixture.
    found["lppd of moments"] = float(norm(*bnn.average(predictions)).logpdf(y_test).mean())
    ends = ends_of(forecast)
    found |= of_intervals(ends[:count], y_test, "before")
    after = {"coverage after": "", "width after": ""}
    if len(y_held):
        after = of_intervals(calibrated(ends[:count], ends[count:], y_held), y_test, "after")
    # What is no chain has no R-hat.
    return {k: "" if np.isnan(value) else value for k, value in found.items()} | after


def compute(given, most):
    """The function that a study calls for a cell."""
    known = methods(given.bde_python, FEW.get(given.size))

    def one(table, seed, method, held):
        (x, y), (x_test, y_test) = standardised(given.data, table, seed, most)
        x_held, y_held = x[:0], y[:0]
        if held:
            x, x_held, y, y_held = train_test_split(x, y, test_size=held, random_state=seed)
        begin = cpu_seconds()
        forecast = known[method](x, y, np.concatenate([x_test, x_held]), seed)
        found = judged(forecast, y_test, y_held)
        yield found | {"rows": len(y), "CPU seconds": cpu_seconds() - begin}

    return one


def main(argv=None):
    made = parser(__doc__)
    made.add_argument("--bde-python", help="an interpreter with sklearn-contrib-bde")
    given = made.parse_args(argv)
    full = given.size == "full"
    known = list(methods(given.bde_python))
    names = known if full else [name for name in SHORT[given.size] if name in known]
    tables, seeds, held = (TABLES, range(10), (0.0, 0.2)) if full else (TABLES[:1], (0, 1), (0.25,))
    study = Study(__file__, ("table", "seed", "method", "held"), given)
    cells = every_cell(table=tables, seed=seeds, method=names, held=held)
    study.run(cells, compute(given, MOST[given.size]))
    every = summary(study.rows)
    others = list(on_other_splits(study.rows)) or every
    study.publish(others, findings(study.rows), lambda: picture(study.rows))
    Results(__file__, given, "all_splits").report(every)


if __name__ == "__main__":
    main()
