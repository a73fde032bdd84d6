"""Networks on data sets, runs of all their chains at once, and how such a run is judged."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.infer import HMC
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.study import Row, Study

RHAT_LIMIT, ESS_LIMIT = 1.01, 400
NOT_JUDGED = dict.fromkeys(("worst R-hat", "median R-hat", "least ESS", "converged"), "")


def sampler(
    kernel: Any,
    num_chains: int,
    num_warmup: int,
    num_samples: int,
    thinning: int = 1,
    **options: Any,
) -> bnn.MCMC:
    """A run to come; `num_samples` draws a chain are kept, each after `thinning` steps."""
    options = {"chain_method": "vectorized", "progress_bar": False} | options
    steps = {"num_warmup": num_warmup, "num_samples": num_samples * thinning, "thinning": thinning}
    return bnn.MCMC(kernel, num_chains=num_chains, **steps, **options)


def sampled(kernel: Any, key: jax.Array, *args: Any, starts: Any, **settings: Any) -> bnn.MCMC:
    """A finished run from what ``bnn.optimize`` gives, a chain each, with settings of :func:`sampler`."""
    mcmc = sampler(kernel, len(next(iter(starts.values()))), **settings)
    mcmc.run(key, *args, init_params=starts)
    jax.block_until_ready(mcmc.last_state)
    return mcmc


def convergence(values: Any) -> Row:
    """R-hat and ESS of function values (chain, draw, …), constants left out, and a word.

    Modes of an ensemble are no chain: one draw each has no R-hat, and the cells stay empty.
    """
    named = values if isinstance(values, Mapping) else {"functions": np.asarray(values)}
    chains, draws = next(iter(named.values())).shape[:2]
    if chains < 2 or draws < 4:
        return dict(NOT_JUDGED)
    space = bnn.diagnostics.diagnose_draws(predictions=named).predictions
    return {
        "worst R-hat": space.max_rhat,
        "median R-hat": space.median_rhat,
        "least ESS": space.min_ess,
        "converged": "yes" if space.within(RHAT_LIMIT, ESS_LIMIT) else "no",
    }


class Problem(NamedTuple):
    """A network, its prior and its data."""

    model: Callable
    split: data_sets.Split

    @property
    def has_classes(self) -> bool:
        return self.split.y.dtype.kind == "i"


def network(name: str, hidden: list[int], prior: Any, activation: Callable) -> Callable:
    """The model of ten classes (``"mnist"``) or of a regression with a half-normal noise.

    Pixels stay in 0 .. 1: standardising would blow up those that hardly ever have ink. Regressions
    take standardised data, so that one model serves all splits.
    """
    module = bnn.MLP(hidden, 10 if name == "mnist" else 1, activation)

    def model(x, y=None):
        net = bnn.random_module("net", module, prior, x[:1])
        if name == "mnist":
            bnn.likelihoods.categorical(net, y, x=x)
        else:
            noise = dist.HalfNormal(1.0)
            bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=noise)

    return model


def load(
    folder: Path | None, name: str, num_rows: int = 0, num_test: int = 0, split: int = 0
) -> data_sets.Split:
    """`num_rows` random images of MNIST, or the first rows of a split of a UCI table (0: all)."""
    if name == "mnist":
        return data_sets.mnist(folder, num_rows, num_test, seed=split)
    data = data_sets.uci(folder, name, split)
    rows = slice(0, num_rows or None)
    return data._replace(x=data.x[rows], y=data.y[rows])


def problem(
    folder: Path | None,
    name: str,
    hidden: list[int],
    prior: Any,
    *,
    num_rows: int = 0,
    num_test: int = 0,
    activation: Callable = jax.nn.relu,
) -> Problem:
    """A network on a data set."""
    split = load(folder, name, num_rows, num_test)
    return Problem(network(name, hidden, prior, activation), split)


def starts(
    model: Callable, data: data_sets.Split, seed: int, num_chains: int, num_steps: int
) -> Any:
    """Where chains begin: one optimum each."""
    return bnn.optimize(
        model,
        jax.random.key(seed),
        data.x,
        data.y,
        num_chains=num_chains,
        num_steps=num_steps,
        progress_bar=False,
    )


def hmc(model: Callable, step_size: float, trajectory: float) -> HMC:
    """Full-batch HMC with unit mass and a fixed trajectory length; warm-up begins with `step_size`."""
    return HMC(model, step_size=step_size, trajectory_length=trajectory, adapt_mass_matrix=False)


def leapfrogs(mcmc: bnn.MCMC) -> float:
    """Gradients a kept trajectory of HMC, mean over chains, whose steps differ."""
    return float(np.mean(mcmc.get_extra_fields()["num_steps"]))


def estimator(
    hidden: tuple[int, ...], split: data_sets.Split, seed: int, draws: int
) -> bnn.BNNRegressor:
    """A fitted regressor with one noise, as many draws of warm-up as are kept; its verdict is no warning."""
    network = bnn.BNNRegressor(
        hidden, likelihood="gaussian", random_state=seed, num_warmup=draws, num_samples=draws
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return network.fit(split.x, split.y)


def score(predictions: Any, y: np.ndarray) -> tuple[Row, np.ndarray]:
    """Scores of a posterior average, and its log score of every row in nats."""
    rows = np.asarray(bnn.scores.lppd(predictions, y, pointwise=True))
    if "probs" in predictions.values:
        error = 1 - float(bnn.scores.accuracy(predictions, y))
        calibration = float(bnn.scores.expected_calibration_error(predictions, y))
    else:
        error = float(bnn.scores.rmse(predictions, y))
        calibration = float(bnn.scores.coverage(predictions, y, level=0.9))
    found = {
        "log_score": float(rows.mean()),
        "log_score_se": bnn.scores.standard_error(rows),
        "error": error,
        "calibration": calibration,
    }
    return found, rows


def scores_of_chains(log_prob: np.ndarray) -> np.ndarray:
    """Log score of every row by the average of each chain alone: (chain, draw, row) to (chain, row), nats."""
    return logsumexp(np.asarray(log_prob, np.float64), 1) - math.log(log_prob.shape[1])


def paired(rows: np.ndarray, base: np.ndarray) -> Row:
    """How much better than a base, with the standard error of the differences row by row."""
    gap = bnn.scores.paired_difference(rows, base)
    return {"difference": gap.difference, "difference_se": gap.standard_error}


def select(rows: Sequence[Row], /, **wanted: Any) -> list[Row]:
    """The rows with these values; a column may be called `rows`."""
    return [row for row in rows if all(row[k] == v for k, v in wanted.items())]


def means(rows: list[Row], *keys: str) -> Iterator[tuple[list[Row], Row]]:
    """Rows that agree in `keys`, and the means of their numbers; text is that of the first."""
    for values in dict.fromkeys(tuple(row[k] for k in keys) for row in rows):
        same = select(rows, **dict(zip(keys, values)))
        mean = {
            k: v if isinstance(v, str) else float(np.mean([r[k] for r in same]))
            for k, v in same[0].items()
        }
        yield same, mean


def columns(rows: list[Row], names: Mapping[str, str]) -> list[Row]:
    """Rows of a table: some of the columns, under other names."""
    return [{title: row[name] for name, title in names.items()} for row in rows]


def publish(
    study: Study,
    rows: list[Row],
    names: Mapping[str, str],
    findings: Iterable[str],
    figure: Callable[[], Any],
) -> None:
    """Publish some of the columns, under other names."""
    study.publish(columns(rows, names), findings, figure)
