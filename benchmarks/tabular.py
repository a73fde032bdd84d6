"""What does sampling add on tables? Point estimates, approximations and samplers, one network each.

Six regression sets, 70 % of the rows to fit, 10 % to validate, 20 % to test, standardised with the
statistics of the rows to fit; a 16-16 relu network with a mean and a scale, N(0, 1) prior. RMSE
and mean log predictive density (lppd) of the standardised test targets, the worst R-hat and the
median over test rows of the R-hat of the predicted mean, and seconds. The share of each method's
wall clock is stated, not equalised: `--budget` scales the draws of all samplers.

Beside them: `bde` from PyPI (its own defaults for 16-16 networks; `--bde-python` names an
interpreter that has it), scikit-learn's gradient boosting, and a Gaussian process on at most 2000
rows. A line is appended to `results/tabular.csv` as soon as it is known, and lines that are there
are not computed again: data set, seed and method.

    python benchmarks/tabular.py --folder DATA [--data NAME …] [--seeds N …] [--methods NAME …]
"""

import argparse
import csv
import json
import platform
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS
from scipy.stats import norm
from stored import RESULTS

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import rhat

DATA = ("airfoil", "bikesharing", "concrete", "energy", "protein", "yacht")
FIELDS = ("data", "seed", "method", "rmse", "lppd", "worst rhat", "median rhat", "seconds", "draws")
MEMBERS = 8
# Rows of a minibatch where a table has more than a few thousand.
BATCH = 500


def network(prior):
    """The model of all methods, around one prior."""

    def model(x, y=None):
        net = bnn.random_module("net", bnn.MLP([16, 16], 2, jax.nn.relu), prior, x[:1])
        bnn.likelihoods.heteroscedastic(net, y, x=x)

    return model


def split(folder, name, seed):
    """Standardised parts: fit, validate, test, each (x, y)."""
    with np.load(Path(folder) / f"{name}.npz") as table:
        x, y = table["x"].astype(np.float64), table["y"].astype(np.float64).reshape(-1)
    order = np.random.default_rng(seed).permutation(len(y))
    ends = [round(0.7 * len(y)), round(0.8 * len(y))]
    fit = order[: ends[0]]
    spread = np.where(x[fit].std(0) > 0, x[fit].std(0), 1.0)
    x, y = (x - x[fit].mean(0)) / spread, (y - y[fit].mean()) / y[fit].std()
    return [
        (jnp.asarray(x[rows], jnp.float32), jnp.asarray(y[rows], jnp.float32))
        for rows in np.split(order, ends)
    ]


def scored(draws, x, y):
    """RMSE, lppd and R-hats of what draws predict."""
    predictions = bnn.predict(None, draws, x)
    found = {
        "rmse": float(bnn.scores.rmse(predictions, np.asarray(y))),
        "lppd": float(bnn.scores.lppd(predictions, np.asarray(y))),
        "worst rhat": float("nan"),
        "median rhat": float("nan"),
        "draws": predictions.mean.shape[0] * predictions.mean.shape[1],
    }
    if predictions.mean.shape[0] > 1 and predictions.mean.shape[1] >= 100:
        values = rhat(predictions.mean)
        found |= {"worst rhat": float(values.max()), "median rhat": float(np.median(values))}
    return found


def by_density(mean, scale, y):
    """The same of one Gaussian a row."""
    return {
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
        "lppd": float(norm(mean, scale).logpdf(y).mean()),
        "worst rhat": float("nan"),
        "median rhat": float("nan"),
        "draws": 0,
    }


def methods(budget, num_rows):
    """Name to a function of (key, fit, validate, test) that gives a row of numbers."""
    model, hierarchical = network(bnn.priors.Normal(1.0)), network(bnn.priors.Hierarchical())
    batch = {"batch_size": BATCH} if num_rows > 5000 else {}
    quiet = {"progress_bar": False}

    def approximation(function, early=False, **options):
        def run(key, fit, validate, test):
            more = {"validation": validate} if early else {}
            draws = function(model, key, *fit, **(quiet | batch | more | options))
            return scored(draws, *test)

        return run

    def sampler(kernel, model=model, **settings):
        def run(key, fit, validate, test):
            made = kernel(model) if callable(kernel) else kernel
            fitted = bnn.fit(
                model,
                *fit,
                key=key,
                kernel=made,
                num_chains=MEMBERS,
                x_test=test[0][:2],
                **(quiet | settings),
            )
            return scored(fitted.draws, *test)

        return run

    def draws(number):
        return max(100, int(number * budget))

    nuts = partial(NUTS, target_accept_prob=0.9, max_tree_depth=8)
    short = {"num_warmup": draws(200), "num_samples": draws(200)}
    unadjusted = {"num_warmup": draws(400), "num_samples": draws(400), "thinning": 50}
    few = {"num_samples": 100}
    sgd = {"batch_size": min(BATCH, max(20, num_rows // 10))}
    return {
        "MAP": approximation(bnn.map_estimate, early=True),
        "deep ensemble": approximation(bnn.deep_ensemble, early=True, num_members=MEMBERS),
        "randomised MAP": approximation(bnn.randomized_map, num_members=MEMBERS),
        "SWAG": approximation(bnn.swag, num_members=MEMBERS, **sgd, **few),
        "Laplace": approximation(partial(bnn.laplace, linearized=True), **few),
        "mean field": approximation(bnn.mean_field, **few),
        "BAOAB": sampler("baoab", **unadjusted),
        "MCLMC": sampler("mclmc", **unadjusted),
        "MAMS": sampler(partial(bnn.MAMS, trajectory_length=3.0), **short),
        "NUTS": sampler(nuts, **short),
        "hierarchical, NUTS": sampler(nuts, hierarchical, **short),
        "gradient boosting": boosting,
        "Gaussian process": process,
    }


def boosting(key, fit, validate, test):
    """The mean by boosted trees, one scale from the validation rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(random_state=0).fit(*map(np.asarray, fit))
    x, y = map(np.asarray, validate)
    scale = np.sqrt(np.mean((trees.predict(x) - y) ** 2))
    return by_density(trees.predict(np.asarray(test[0])), scale, np.asarray(test[1]))


def process(key, fit, validate, test):
    """An anisotropic RBF kernel and noise, on at most 2000 rows."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, y = (np.asarray(part[:2000], np.float64) for part in fit)
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    gaussian = GaussianProcessRegressor(kernel, random_state=0).fit(x, y)
    mean, scale = gaussian.predict(np.asarray(test[0], np.float64), return_std=True)
    return by_density(mean, scale, np.asarray(test[1]))


_BDE = """
import json, sys, time, numpy as np
from bde import BdeRegressor
parts = np.load(sys.argv[1])
begin = time.perf_counter()
model = BdeRegressor(hidden_layers=[16, 16], n_members=8, seed=int(sys.argv[2]))
model.fit(parts["x"], parts["y"])
out = model.predict(parts["x_test"], raw=True)
print("RAW" + json.dumps({"seconds": time.perf_counter() - begin}))
np.save(sys.argv[3], np.asarray(out))
"""


def bde(python, seed, fit, validate, test):
    """`bde` in its own process; it makes its own validation split of the rows that it is given."""
    with tempfile.TemporaryDirectory() as folder:
        data, raw = Path(folder) / "data.npz", Path(folder) / "raw.npy"
        x, y = (np.concatenate([a, b]) for a, b in zip(fit, validate))
        np.savez(data, x=x, y=y, x_test=test[0])
        done = subprocess.run(
            [python, "-c", _BDE, data, str(seed), raw], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"bde failed:\n{done.stderr[-2000:]}")
        line = next(line for line in done.stdout.splitlines() if line.startswith("RAW"))
        values = np.load(raw)
    return values, json.loads(line[3:])["seconds"]


def scored_bde(values, y):
    """Members × draws × rows × (mean, transformed scale), as its own documentation has them."""
    y = np.asarray(y)
    mean, scale = values[..., 0], np.logaddexp(values[..., 1], 0) + 1e-6
    density = norm(mean, scale).logpdf(y).reshape(-1, len(y))
    found = by_density(mean.reshape(-1, len(y)).mean(0), 1.0, y)
    values = rhat(mean)
    return found | {
        "lppd": float((np.logaddexp.reduce(density) - np.log(len(density))).mean()),
        "worst rhat": float(values.max()),
        "median rhat": float(np.median(values)),
        "draws": len(density),
    }


def known(path):
    if not path.is_file():
        return set()
    with path.open(newline="") as file:
        return {(row["data"], int(row["seed"]), row["method"]) for row in csv.DictReader(file)}


def add(path, row):
    """Append a line at once: what is known survives whatever comes next."""
    new = not path.is_file()
    path.parent.mkdir(exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(
        f"{row['data']:<12}{row['seed']:>2}  {row['method']:<20}RMSE {row['rmse']:.4f}  "
        f"lppd {row['lppd']:8.4f}  R-hat {row['worst rhat']:.3f}  {row['seconds']:7.1f} s",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="where the tables are, NAME.npz each")
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--methods", nargs="+", help="default: all")
    parser.add_argument("--budget", type=float, default=1.0, help="draws of samplers, relative")
    parser.add_argument("--bde-python", help="an interpreter with bde")
    parser.add_argument("--output", type=Path, default=RESULTS / "tabular.csv")
    given = parser.parse_args()
    print(f"JAX {jax.__version__}, Python {platform.python_version()}")
    done = known(given.output)
    for name in given.data:
        for seed in given.seeds:
            fit, validate, test = split(given.folder, name, seed)
            table = dict(methods(given.budget, len(fit[1])))
            chosen = given.methods or [*table, *(["bde"] if given.bde_python else [])]
            for method in chosen:
                if (name, seed, method) in done:
                    continue
                begin = time.perf_counter()
                if method == "bde":
                    values, seconds = bde(given.bde_python, seed, fit, validate, test)
                    row = scored_bde(values, test[1])
                else:
                    row = table[method](jax.random.key(seed), fit, validate, test)
                    seconds = time.perf_counter() - begin
                row = {"data": name, "seed": seed, "method": method, "seconds": seconds} | row
                add(given.output, row)


if __name__ == "__main__":
    main()
