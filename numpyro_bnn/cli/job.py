"""The main job: fit a network to a table, and judge it against plain training.

Ensemble starts are optimised, a sampler runs from each, and the test rows score three things: one network
whose training and weight decay held-out rows decide (plain training), the average of the starts (a deep
ensemble with as many members as chains), and the posterior average. The scores of a guess without inputs
are shown for comparison.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import norm
from sklearn.model_selection import train_test_split

from numpyro_bnn import scores
from numpyro_bnn._sentences import say
from numpyro_bnn.cli.tables import Table
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.models.random_module import MLP
from numpyro_bnn.models.ready import ReadyModel, classification, regression
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.priors.hierarchical import Hierarchical, Horseshoe
from numpyro_bnn.priors.independent import FanIn, Laplace, Normal, StudentT
from numpyro_bnn.workflow.calibration import Calibrated, Evaluation, calibrate
from numpyro_bnn.workflow.compare import (
    Comparison,
    compare,
    default_methods,
    error_and_calibration,
    plain_training,
)
from numpyro_bnn.workflow.estimator_inputs import COVERAGE, calibration_rows
from numpyro_bnn.workflow.fit import Fit, fit, kernel_named
from numpyro_bnn.workflow.mcmc import MCMC

# If one class has more than this share of the rows, the error of a classifier alone says little.
_UNEQUAL = 0.7
# Scores that differ by at most this count as equal.
_ROUNDING = 1e-9
# Members of an ensemble whose log scores differ by less, in nats a row on average, are one function.
_SAME = 0.005


def guess_name(table: Table) -> str:
    """Name of the guess without inputs in tables."""
    return "majority class" if table.task == "classification" else "mean of the target"


def guess(table: Table, train: np.ndarray, num_rows: int) -> Predictions:
    """The best guess without inputs: shares of the classes, or a normal distribution of training targets."""
    y, draw = table.y[train], (1, 1, num_rows)
    if table.task == "classification":
        # One row is added to each class, so that none has probability zero.
        counts = np.bincount(y, minlength=len(table.classes)) + 1
        probs = counts / counts.sum()
        values = {"probs": np.broadcast_to(probs, (*draw, len(probs)))}
        return Predictions(values, lambda what, y: {what: np.log(probs[y])[None, None]})
    normal = norm(0, np.std(y))
    functions = {"log_prob": normal.logpdf, "cdf": normal.cdf}
    values = {"mean": np.full(draw, np.mean(y)), "scale": np.full(draw, np.std(y))}
    return Predictions(values, lambda what, y: {what: functions[what](y)[None, None]}, np.mean(y))


class Score(NamedTuple):
    """One row of the table of scores."""

    method: str
    by_row: np.ndarray  # log predictive density of each test row, nats
    error: float  # share of wrong classes, or root mean squared error
    calibration: float  # expected calibration error, or coverage of the central 90 % interval
    seconds: float


def warnings_of(guessed: Score, own: Score, y: np.ndarray, table: Table) -> list[str]:
    """Sentences that warn a reader of misleading scores; usually none."""
    sentences = []
    difference = scores.paired_difference(own.by_row, guessed.by_row)
    if difference.difference <= 2 * difference.standard_error + _ROUNDING:
        gap, error = difference.difference, difference.standard_error
        sentences.append(say("inputs do not help", gap=gap, error=error, guess=guess_name(table)))
    if table.task != "classification":
        return sentences
    counts = np.bincount(y)
    share = float(np.max(counts) / len(y))
    if own.error >= guessed.error - _ROUNDING:
        sentences.append(say("no better than guessing", guessed=guessed.error, error=own.error))
    if share > _UNEQUAL:
        name = table.classes[int(np.argmax(counts))]
        sentences.append(say("unequal classes", share=share, name=name, error=guessed.error))
    return sentences


POSTERIOR = "posterior average"
PRIORS: dict[str, Callable] = {
    "hierarchical": Hierarchical,
    "fan-in": FanIn,
    "normal": Normal,
    "student-t": StudentT,
    "laplace": Laplace,
    "horseshoe": Horseshoe,
}


class Options(NamedTuple):
    """The settings of a fit by the command line."""

    hidden: tuple[int, ...] = (16,)
    prior: str = "hierarchical"  # a key of PRIORS
    # A key of fit.KERNELS; None: the default of `fit`, NUTS in a comparison
    kernel: str | None = None
    num_chains: int = 4
    num_warmup: int = 200
    num_samples: int = 300  # draws before a fit is first judged
    max_minutes: float = 3.0
    settings: Mapping[str, Any] = {}  # of the kernel, such as its max_tree_depth
    test_fraction: float = 0.25
    # Share of the training rows kept for calibration; None for no calibration
    calibration: float | None = None
    seed: int = 0


class Outcome(NamedTuple):
    """The results of the job."""

    table: Table
    options: Options
    train: np.ndarray  # row numbers
    test: np.ndarray
    fitted: Fit
    mcmc: MCMC
    scores: list[Score]  # of guessing, plain training, deep ensemble and posterior average
    predictions: dict[str, Predictions]  # of the test rows, by method
    # None where no rows were held out for calibration
    calibrated: Calibrated | None = None
    evaluation: Evaluation | None = None

    @property
    def posterior(self) -> Predictions:
        """Predictions of the posterior average for the test rows."""
        return self.predictions[POSTERIOR]

    @property
    def one_function(self) -> bool:
        """Whether the members of the deep ensemble predict the test rows alike."""
        y = self.table.y[self.test]
        ensemble = self.predictions[ensemble_name(self.options)]
        by_member = ensemble.log_likelihood(y)[:, 0]
        apart = by_member - scores.lppd(ensemble, y, pointwise=True)
        return len(by_member) > 1 and float(np.abs(apart).mean()) < _SAME

    @property
    def warnings(self) -> list[str]:
        """Warnings for readers of the scores."""
        return warnings_of(self.scores[0], self.scores[-1], self.table.y[self.test], self.table)


def ensemble_name(options: Options) -> str:
    """Name of the deep ensemble in tables."""
    return f"deep ensemble of {options.num_chains}"


def run(
    table: Table,
    options: Options,
    progress_bar: bool = True,
    on_scores: Callable[[list[Score]], None] | None = None,
) -> Outcome:
    """Fit, predict, score and diagnose; `on_scores` gets the scores of other methods before sampling."""
    train, test = split(table, options)
    train, held = held_out(table, train, options)
    table = table.imputed(train)
    model = model_of(table, options)
    x, y = table.x[train], table.y[train]
    x_test, y_test = table.x[test], table.y[test]
    rows = [score(guess_name(table), guess(table, train, len(test)), y_test, 0.0)]
    predictions: dict[str, Predictions] = {}
    began = time.perf_counter()

    def add(name: str, draws: Draws, seconds: float) -> None:
        predictions[name] = predict(None, draws, x_test)
        rows.append(score(name, predictions[name], y_test, seconds))

    def score_ensemble(members: Draws) -> None:
        optimised = time.perf_counter()
        spent, own = optimised - began, model_of(table, options)
        one = plain_training(own, jax.random.key(options.seed), x, y, progress_bar=progress_bar)
        add("plain training", one, time.perf_counter() - optimised)
        add(ensemble_name(options), members, spent)
        if on_scores is not None:
            on_scores(rows)

    fitted = fit(
        model,
        x,
        y,
        key=jax.random.key(options.seed),
        kernel=options.kernel,
        num_chains=options.num_chains,
        num_warmup=options.num_warmup,
        num_samples=options.num_samples,
        # Each look at a run pays for its draws: fewer of them, with more steps each, are known sooner.
        thinning=100 if options.kernel is None else None,
        x_test=x_test,
        y_test=y_test,
        until=Tolerance(),
        max_minutes=options.max_minutes,
        on_ensemble=score_ensemble,
        progress_bar=progress_bar,
        **options.settings,
    )
    if fitted.mcmc is None:
        # `fit` has warned of it, and said what there is.
        raise ValueError(
            f"--minutes {options.max_minutes:g} is too little for more than these scores: optimising took "
            f"{fitted.seconds['optimise']:.0f} s of it. Give a minute more."
        )
    add(POSTERIOR, fitted.draws, fitted.seconds["optimise"] + fitted.seconds["sample"])
    calibrated = evaluation = None
    if held.size:
        calibrated = calibrate(fitted, table.x[held], table.y[held], COVERAGE)
        evaluation = calibrated.evaluate(x_test, y_test)
    own = fitted, fitted.mcmc, rows, predictions, calibrated, evaluation
    return Outcome(table, options, train, test, *own)


def split(table: Table, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for testing; classes keep their shares in both."""
    kept, held = train_test_split(
        np.arange(len(table.y)),
        test_size=options.test_fraction,
        random_state=options.seed,
        stratify=table.y if table.task == "classification" else None,
    )
    return kept, held


def held_out(table: Table, train: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """The training rows to fit to, and those that are held out for calibration; classes keep their shares."""
    option, is_class = f"--calibration {options.calibration}", table.task == "classification"
    y, share = table.y[train], options.calibration
    kept, held = calibration_rows(option, y, share, options.seed, is_class)
    return train[kept], train[held]


def model_of(table: Table, options: Options) -> ReadyModel:
    """The model with the network and prior of the options."""
    make = classification if table.task == "classification" else regression
    return make(MLP(options.hidden, len(table.classes) or 1), PRIORS[options.prior]())


def compare_methods(
    table: Table, options: Options, methods: list[str] | None = None, progress_bar: bool = True
) -> Comparison:
    """Compare several methods (all where None) on a table with the sampler that the options name."""
    train, test = split(table, options)
    table = table.imputed(train)
    model = model_of(table, options)
    names = methods or default_methods(model, options.num_chains, len(train))
    chosen: dict[str, Any] = {name: None for name in names if name != "hmc"}
    chosen["hmc"], _ = kernel_named(options.kernel or "nuts", model, **options.settings)
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


def score(method: str, predictions: Predictions, y: np.ndarray, seconds: float) -> Score:
    """Score predictions of test rows."""
    by_row = np.asarray(scores.lppd(predictions, y, pointwise=True))
    return Score(method, by_row, *error_and_calibration(predictions, y), seconds)
