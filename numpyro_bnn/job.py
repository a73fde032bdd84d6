"""The main job: fit a network to a table, and judge it against plain training.

Ensemble starts are optimised, a sampler runs from each, and the test rows score three things:
the best of the starts (MAP), their average (a deep ensemble with as many members as chains),
and the posterior average.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import HMC, NUTS

from numpyro_bnn import scores
from numpyro_bnn.comparison import Comparison
from numpyro_bnn.diagnostics import diagnose
from numpyro_bnn.draws import Draws, draws_of
from numpyro_bnn.mcmc import MCMC
from numpyro_bnn.modules import MLP
from numpyro_bnn.optimization import optimize
from numpyro_bnn.pipeline import compare, default_methods
from numpyro_bnn.potential import Potential
from numpyro_bnn.predictions import Predictions, predict
from numpyro_bnn.priors import FanIn, Hierarchical, Horseshoe, Laplace, Normal, StudentT
from numpyro_bnn.ready import ReadyModel, classification, regression
from numpyro_bnn.sgmcmc.algorithms import BAOAB, GGMC
from numpyro_bnn.tables import Table

PRIORS: dict[str, Callable] = {
    "hierarchical": Hierarchical,
    "fan-in": FanIn,
    "normal": Normal,
    "student-t": StudentT,
    "laplace": Laplace,
    "horseshoe": Horseshoe,
}


# Steps of an unadjusted sampler to a draw that is kept.
_BAOAB_THINNING = 50


class Options(NamedTuple):
    """How to fit.

    - **hidden** - units of each hidden layer
    - **prior** - a key of :data:`PRIORS`
    - **kernel** - a key of :data:`KERNELS`
    - **num_chains**, **num_warmup**, **num_samples** - of the sampler
    - **max_tree_depth** - at most ``2**max_tree_depth - 1`` gradients a draw
    - **target_accept_prob** - of NUTS and HMC
    - **test_fraction** - share of rows kept for testing
    - **seed** - of everything random
    """

    hidden: tuple[int, ...] = (16,)
    prior: str = "hierarchical"
    kernel: str = "nuts"
    num_chains: int = 4
    num_warmup: int = 200
    num_samples: int = 300
    max_tree_depth: int = 8
    target_accept_prob: float = 0.9
    test_fraction: float = 0.25
    seed: int = 0


def _nuts(model: Callable, options: Options) -> NUTS:
    depth, target = options.max_tree_depth, options.target_accept_prob
    return NUTS(model, max_tree_depth=depth, target_accept_prob=target)


def _hmc(model: Callable, options: Options) -> HMC:
    # A quarter of NUTS's longest trajectory, in fixed number.
    steps = max(1, 2**options.max_tree_depth // 4)
    target = options.target_accept_prob
    return HMC(model, num_steps=steps, trajectory_length=None, target_accept_prob=target)


KERNELS: dict[str, Callable] = {
    "nuts": _nuts,
    "hmc": _hmc,
    "ggmc": lambda model, options: GGMC(
        model, step_size="auto", num_steps=max(1, 2**options.max_tree_depth // 4)
    ),
    "baoab": lambda model, options: BAOAB(model, step_size="auto"),
}


class Score(NamedTuple):
    """One row of the table.

    - **method** - what predicts
    - **log_score**, **log_score_error** - mean log predictive density of the test rows, nats,
      and its standard error
    - **error** - share of wrong classes, or root mean squared error
    - **calibration** - expected calibration error, or coverage of the central 90 % interval
    - **seconds** - to fit
    """

    method: str
    log_score: float
    log_score_error: float
    error: float
    calibration: float
    seconds: float


class Outcome(NamedTuple):
    """What the job found.

    - **table**, **options** - what was asked
    - **train**, **test** - row numbers
    - **model**, **mcmc** - the fitted model and its run
    - **scores** - of MAP, deep ensemble and posterior average
    - **predictions** - of the test rows, by method
    - **report** - diagnosis of weights and predictions
    """

    table: Table
    options: Options
    train: np.ndarray
    test: np.ndarray
    model: ReadyModel
    mcmc: MCMC
    scores: list[Score]
    predictions: dict[str, Predictions]
    report: Any


def run(table: Table, options: Options, progress_bar: bool = True) -> Outcome:
    """Fit, predict, score and diagnose.

    :param table: the data.
    :param options: how.
    :param progress_bar: show progress.
    :return: everything that the report needs.
    """
    train, test = split(table, options)
    model = model_of(table, options)
    x, y = table.x[train], table.y[train]

    key_starts, key_chains = jax.random.split(jax.random.key(options.seed))
    clock = time.perf_counter()
    starts = optimize(
        model, key_starts, x, y, num_chains=options.num_chains, progress_bar=progress_bar
    )
    seconds_starts = time.perf_counter() - clock
    thinning = _BAOAB_THINNING if options.kernel == "baoab" else 1
    mcmc = MCMC(
        KERNELS[options.kernel](model, options),
        num_warmup=options.num_warmup * thinning,
        num_samples=options.num_samples * thinning,
        num_chains=options.num_chains,
        thinning=thinning,
        progress_bar=progress_bar,
    )
    mcmc.run(key_chains, x, y, init_params=starts)
    seconds = time.perf_counter() - clock

    members = ensemble_of(model, starts, x, y)
    energy = jax.vmap(Potential(model, (x, y)))(starts)
    best = Draws({k: v[:, [int(jnp.argmin(energy))]] for k, v in members.items()}, model)
    x_test, y_test = table.x[test], table.y[test]
    methods = {
        "MAP": (best, seconds_starts / options.num_chains),
        f"deep ensemble of {options.num_chains}": (members, seconds_starts),
        "posterior average": (draws_of(mcmc), seconds),
    }
    predictions = {name: predict(None, draws, x_test) for name, (draws, _) in methods.items()}
    rows = [
        score(name, predictions[name], y_test, table.task, spent)
        for name, (_, spent) in methods.items()
    ]
    report = diagnose(mcmc, x_test)
    return Outcome(table, options, train, test, model, mcmc, rows, predictions, report)


def split(table: Table, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for testing; classes keep their shares in both."""
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(
        np.arange(len(table.y)),
        test_size=options.test_fraction,
        random_state=options.seed,
        stratify=table.y if table.task == "classification" else None,
    )
    return train, test


def model_of(table: Table, options: Options) -> ReadyModel:
    """The network and prior that the options ask for."""
    make = classification if table.task == "classification" else regression
    return make(MLP(options.hidden, len(table.classes) or 1), PRIORS[options.prior]())


def compare_methods(
    table: Table, options: Options, methods: list[str] | None = None, progress_bar: bool = True
) -> Comparison:
    """Several methods on a table, against the sampler that the options name.

    :param table: the data.
    :param options: how.
    :param methods: names of :func:`~numpyro_bnn.pipeline.default_methods`; all where None.
    :param progress_bar: show progress.
    :raises ValueError: for an unknown name.
    """
    train, test = split(table, options)
    model = model_of(table, options)
    chosen: dict[str, Any] = {
        name: None
        for name in (methods or default_methods(model, options.num_chains, len(train)))
        if name != "hmc"
    }
    chosen["hmc"] = KERNELS[options.kernel](model, options)
    return compare(
        model,
        (table.x[train], table.y[train], table.x[test], table.y[test]),
        chosen,
        key=jax.random.key(options.seed),
        num_chains=options.num_chains,
        num_warmup=options.num_warmup,
        num_samples=options.num_samples,
        progress_bar=progress_bar,
    )


def ensemble_of(model: Callable, starts: dict[str, jax.Array], *args: Any) -> Draws:
    """Optimised starts as draws of one chain, one draw a member."""
    values = jax.vmap(Potential(model, args).constrain)(starts)
    return Draws({name: value[None] for name, value in values.items()}, model)


def score(method: str, predictions: Predictions, y: np.ndarray, task: str, seconds: float) -> Score:
    """Score predictions of test rows.

    :param method: name of what predicts.
    :param predictions: of the test rows.
    :param y: test targets.
    :param task: ``"classification"`` or ``"regression"``.
    :param seconds: to fit.
    """
    by_row = scores.lppd(predictions, y, pointwise=True)
    if task == "classification":
        error = float(1 - scores.accuracy(predictions, y))
        calibration = float(scores.expected_calibration_error(predictions, y))
    else:
        error = float(scores.rmse(predictions, y))
        calibration = float(scores.coverage(predictions, y, level=0.9))
    return Score(
        method,
        float(np.mean(by_row)),
        scores.standard_error(by_row),
        error,
        calibration,
        seconds,
    )
