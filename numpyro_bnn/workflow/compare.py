"""Several methods on one model: a second sampler to check a first, and a table of many."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import ArrayLike
from numpyro.infer import HMC, NUTS
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn import scores
from numpyro_bnn._checks import check_whole, warn
from numpyro_bnn._html import Grid, html_of
from numpyro_bnn._text import text_table
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.approximations.finish import NoMode
from numpyro_bnn.approximations.laplace import laplace
from numpyro_bnn.approximations.mean_field import mean_field
from numpyro_bnn.approximations.modes import deep_ensemble, map_estimate, optimize
from numpyro_bnn.approximations.sgd_iterates import swag
from numpyro_bnn.approximations.stopping import num_held
from numpyro_bnn.data.arguments import as_arrays, by_name, num_rows
from numpyro_bnn.data.columns import check_columns, column_names, with_tables
from numpyro_bnn.diagnostics.diagnose import diagnose
from numpyro_bnn.diagnostics.evidence import RhatTable
from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.posterior.draws import Draws, Run, draws_of
from numpyro_bnn.posterior.fitted import arguments_of, inputs_of, is_finished, run_of
from numpyro_bnn.posterior.predictions import predict, predictor_of
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.training_data import as_observed, training_data
from numpyro_bnn.samplers.kernels import fields_of, temperatures_of
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.named import BAOAB, SGLD
from numpyro_bnn.samplers.suspects import named, named_elsewhere
from numpyro_bnn.workflow.mcmc import MCMC


class Compared(NamedTuple):
    """One method, judged on test rows.

    - **method** - its name
    - **log_score**, **log_score_error** - mean log predictive density, nats, and its standard
      error over rows
    - **difference**, **difference_error** - log score minus that of the reference, mean over rows, and
      standard error of this mean of paired differences
    - **error** - share of wrong classes, or root mean squared error
    - **calibration** - expected calibration error, or coverage of the central 90 % interval
    - **agreement** - share of rows at which it predicts the same class as the reference; NaN for a
      regression
    - **total_variation** - distance of its class probabilities from the reference's; for a regression
      the 1-Wasserstein distance of the posterior of the mean, in units of the target
    - **max_rhat** - largest R-hat of its predictions; NaN for a single chain
    - **gradients** - passes over all rows that its gradients took, warm-up included; NaN if unknown
    - **seconds** - wall clock, compilation included; NaN for a run that was finished before
    - **suspect** - its chains that never moved or mostly diverged, in words; empty for none
    """

    method: str
    log_score: float
    log_score_error: float
    difference: float
    difference_error: float
    error: float
    calibration: float
    agreement: float
    total_variation: float
    max_rhat: float
    gradients: float
    seconds: float
    suspect: str = ""


# Heading and format of each column, for classes and for a regression.
_CLASSES = {
    "log_score": ("log score", ".4f"),
    "log_score_error": ("± s.e.", ".4f"),
    "difference": ("– reference", "+.4f"),
    "difference_error": ("± s.e.", ".4f"),
    "error": ("error", ".4f"),
    "calibration": ("calibration", ".4f"),
    "agreement": ("agreement", ".4f"),
    "total_variation": ("tot. var.", ".4f"),
    "max_rhat": ("R-hat", ".3f"),
    "gradients": ("gradients", ",.0f"),
    "seconds": ("seconds", ",.0f"),
}
_REGRESSION = {
    **{field: column for field, column in _CLASSES.items() if field != "agreement"},
    "error": ("RMSE", ".4g"),
    "calibration": ("cover 90 %", ".3f"),
    "total_variation": ("distance", ".4g"),
}


@dataclass(frozen=True)
class Comparison:
    """Several methods on one model, scored on the same test rows; printing it shows the table.

    :param rows: one a method, in the order asked for.
    :param reference: the method that the others are compared with.
    :param regression: whether the target is continuous.
    :param predictions: predictions of the test rows, by method.
    :param draws: by method, to predict at other rows with.
    """

    rows: tuple[Compared, ...]
    reference: str
    regression: bool
    predictions: dict[str, Predictions]
    draws: dict[str, Draws]

    def __getitem__(self, method: str) -> Compared:
        return {row.method: row for row in self.rows}[method]

    def _cells(self) -> Iterator[list[str]]:
        columns = _REGRESSION if self.regression else _CLASSES
        yield ["method", *(heading for heading, _ in columns.values())]
        for row in self.rows:
            name = f"{row.method} *" if row.method == self.reference else row.method
            name += " (suspect)" if row.suspect else ""
            values = [(getattr(row, field), spec) for field, (_, spec) in columns.items()]
            yield [name, *("–" if np.isnan(v) else format(v, spec) for v, spec in values)]

    def __str__(self) -> str:
        head, *rows = self._cells()
        note = (
            "* the reference. Gradients are passes over all training rows; the measures of Izmailov et al. "
            "2021 compare with the reference."
        )
        return "\n".join([*text_table(head, rows), note, *self._suspects()])

    def _suspects(self) -> list[str]:
        """A line for each method with suspect chains, which count like all others in its numbers."""
        return [f"{row.method}, suspect: {row.suspect}." for row in self.rows if row.suspect]

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        head, *rows = self._cells()
        return html_of(Grid(head, rows), *self._suspects())


def error_and_calibration(predictions: Predictions, y: ArrayLike) -> tuple[float, float]:
    """Share of wrong classes and calibration error; of a continuous target RMSE and coverage of 90 %."""
    if "probs" in predictions.values:
        error = 1 - float(scores.accuracy(predictions, y))
        return error, float(scores.expected_calibration_error(predictions, y))
    return float(scores.rmse(predictions, y)), float(scores.coverage(predictions, y, level=0.9))


def scored_row(
    method: str,
    predictions: Predictions,
    reference: Predictions,
    y: ArrayLike,
    max_rhat: float,
    gradients: float,
    seconds: float,
    suspect: str = "",
) -> Compared:
    """Score a method against test targets and against the reference: a row of the table."""
    mine = np.asarray(scores.lppd(predictions, y, pointwise=True))
    gap = scores.paired_difference(mine, scores.lppd(reference, y, pointwise=True))
    if "probs" in predictions.values:
        agreement = float(scores.agreement(predictions, reference))
        distance = float(scores.total_variation(predictions, reference))
    else:
        agreement = float("nan")
        distance = float(scores.wasserstein(predictions, reference))
    return Compared(
        method,
        float(np.nanmean(mine)),
        scores.standard_error(mine),
        gap.difference,
        gap.standard_error,
        *error_and_calibration(predictions, y),
        agreement,
        distance,
        max_rhat,
        gradients,
        seconds,
        suspect,
    )


class Data(NamedTuple):
    """Training rows and test rows."""

    x: PyTree
    y: Array
    x_test: PyTree
    y_test: Array


# A kernel over the model, a function that returns draws, or a finished run.
Method: TypeAlias = MCMCKernel | Callable[..., Run] | Run


class Fitted(NamedTuple):
    """Draws of one method, with the passes over all rows that its gradients took, and the seconds."""

    draws: Draws
    gradients: float = float("nan")
    seconds: float = float("nan")


def compare(
    model: Callable,
    data: Sequence[PyTree] | Mapping[str, PyTree],
    methods: Mapping[str, Method | None] | None = None,
    reference: str = "hmc",
    *,
    key: jax.Array | None = None,
    num_chains: int = 4,
    num_warmup: int = 500,
    num_samples: int = 500,
    progress_bar: bool = True,
) -> Comparison:
    """Score several methods on test rows, and measure how far their predictions are from a reference's.

    The table of Izmailov et al. 2021 (*What are Bayesian neural network posteriors really
    like?*, table 4) for the user's own model and data. A method that finds no mode, because the density
    grows without bound, is left out with a warning.

    :param model: a NumPyro model, called as ``model(x, y)``.
    :param data: ``(x, y, x_test, y_test)``, or a mapping with these keys; scores and errors are about what
        the model observes of the targets, such as their logarithm.
    :param methods: name to a kernel over the model, to a function ``f(model, key, x, y)`` that
        returns draws (:func:`~numpyro_bnn.deep_ensemble`, …), or to a finished run: an ``MCMC`` after
        `run`, what :func:`~numpyro_bnn.fit` returned, a fitted estimator, draws, or a mapping (chain,
        draw, …), each under the model that it was fitted to, if it has one. The value None stands
        for the method that :func:`default_methods` has under this name. Default: all of these.
    :param reference: the method that the others are compared with; ``"hmc"`` is NUTS where
        `methods` do not say otherwise.
    :param key: random key; default ``jax.random.key(0)``.
    :param num_chains: chains of a kernel and members of an ensemble.
    :param num_warmup: warm-up steps of a kernel.
    :param num_samples: draws a chain of a kernel; kernels with one gradient a step take ten steps a draw.
    :param progress_bar: show progress.
    :return: the table; print it.
    :raises KeyError: for an unknown name.
    :raises ValueError: for data that lack a part, or a method without draws.
    """
    rows = _data(model, data)
    known = default_methods(model, num_chains, len(rows.y))
    asked: dict[str, Method | None] = dict(known if methods is None else methods)
    asked.setdefault(reference, None)
    asked = {name: known[name] if method is None else method for name, method in asked.items()}
    key = jax.random.key(0) if key is None else key
    key_start, key = jax.random.split(key)
    settings = {
        "progress_bar": progress_bar,
        "num_chains": check_whole("compare", "num_chains", num_chains),
        "num_warmup": check_whole("compare", "num_warmup", num_warmup, least=0),
        "num_samples": check_whole("compare", "num_samples", num_samples),
    }
    starts = None
    found = {}
    for name, method in asked.items():
        if isinstance(method, MCMCKernel) and starts is None:
            starts = optimize(
                model, key_start, rows.x, rows.y, num_chains=num_chains, progress_bar=progress_bar
            )
        key, key_fit = jax.random.split(key)
        try:
            found[name] = _fitted(name, method, model, rows, key_fit, starts, settings)
        except NoMode as error:
            if name == reference:
                raise
            warn(f"compare: left out {name!r}. {error}")
    with named_elsewhere():
        predictions = {name: predict(None, f.draws, rows.x_test) for name, f in found.items()}
        table = [
            scored_row(
                name,
                predictions[name],
                predictions[reference],
                as_observed("compare", None, fitted.draws.model, rows.x_test, rows.y_test, None),
                _worst(predictions[name].values),
                fitted.gradients,
                fitted.seconds,
                named(fitted.draws.suspect),
            )
            for name, fitted in found.items()
        ]
    regression = "probs" not in predictions[reference].values
    draws = {name: fitted.draws for name, fitted in found.items()}
    return Comparison(tuple(table), reference, regression, predictions, draws)


def default_methods(model: Callable, num_chains: int, num_rows: int) -> dict[str, Method]:
    """The methods that :func:`compare` has by name; SWAG takes a tenth of the rows at a time, at most 100."""
    batch_size = min(100, max(1, num_rows // 10))
    return {
        "plain training": plain_training,
        "map": map_estimate,
        "deep ensemble": partial(deep_ensemble, num_members=num_chains),
        "mean field": mean_field,
        "laplace": laplace,
        "swag": partial(swag, num_members=num_chains, batch_size=batch_size),
        "sgld": SGLD(model, step_size="auto"),
        "baoab": BAOAB(model, step_size="auto"),
        "hmc": NUTS(model, target_accept_prob=0.9, max_tree_depth=8),
    }


# Weight decays of plain training, each a share of the weights that a learning rate of 1 takes away at a step.
DECAYS = (0.0, 0.03, 0.1, 0.3, 1.0)
_RATE = 0.01


def _decayed() -> optax.GradientTransformation:
    """Adam with a decay of arrays, not of single numbers such as a noise; each member has its own."""
    adam = optax.flatten(optax.adam(_RATE))

    def init(z: PyTree) -> tuple:
        return jnp.asarray(DECAYS)[lax.axis_index("members")], adam.init(z)

    def update(gradient: PyTree, state: tuple, z: PyTree) -> tuple[PyTree, tuple]:
        decay, inner = state
        step, inner = adam.update(gradient, inner, z)
        less = lambda s, w: s - _RATE * decay * w if jnp.ndim(w) else s  # noqa: E731
        return jax.tree.map(less, step, z), (decay, inner)

    return optax.GradientTransformation(init, update)


# One object, so that its programs are compiled once for all data of a shape.
_DECAYED = _decayed()


def _without_units(model: Any) -> Any:
    """A copy, handlers included, without the units that a ready model keeps of the rows it was fitted to."""
    made = copy.copy(model)
    if getattr(made, "fn", None) is not None:
        made.fn = _without_units(made.fn)
    elif hasattr(made, "forget"):
        made.forget()
    return made


def plain_training(
    model: Callable, key: jax.Array, x: PyTree, y: Array, *, progress_bar: bool = True
) -> Draws:
    """One network, stopped by a fifth of the rows and under the weight decay at which these are likeliest."""
    (x, y), _ = as_arrays(model, (x, y), {})
    key, key_rows = jax.random.split(key)
    order = np.asarray(jax.random.permutation(key_rows, len(y)))

    def some(rows: np.ndarray) -> tuple:
        return jax.tree.map(lambda leaf: leaf[rows], (x, y))

    held, rest = np.split(order, [num_held(len(y))])
    validation = some(held)
    members = deep_ensemble(
        _without_units(model),
        key,
        *some(rest),
        num_members=len(DECAYS),
        optimizer=_DECAYED,
        validation=validation,
        progress_bar=progress_bar,
    )
    likely = predict(None, members, validation[0]).log_prob(validation[1]).mean((1, 2))
    best = slice(int(np.argmax(likely)), int(np.argmax(likely)) + 1)
    stats = {name: value[best] for name, value in members.stats.items()}
    values = {name: value[best] for name, value in members.items()}
    return Draws(values, members.model, stats, members.info)


# Every tenth step is kept of a kernel that takes one gradient a step.
_THINNING = 10


def _data(model: Callable, data: Any) -> Data:
    try:
        given = Data(**data) if isinstance(data, Mapping) else Data(*data)
    except TypeError as error:
        raise ValueError("compare: expected data=(x, y, x_test, y_test), or by name.") from error
    check_columns("compare", "x_test", column_names(given.x), given.x_test)
    (x, y), _ = as_arrays(model, (given.x, given.y), {})
    (x_test, y_test), _ = as_arrays(model, (given.x_test, given.y_test), {})
    for names, pair in (("x and y", (x, y)), ("x_test and y_test", (x_test, y_test))):
        num_rows(f"compare: {names}", pair, " Give a target for every input.")
    # Names of columns are compared with those of finished runs.
    return Data(with_tables(given.x, x), y, with_tables(given.x_test, x_test), y_test)


def _fitted(
    name: str,
    method: Any,
    model: Callable,
    data: Data,
    key: jax.Array,
    starts: Any,
    settings: dict[str, int],
) -> Fitted:
    """Run a method, or take the draws of a finished run."""
    if is_finished(method):
        _check_rows(name, method, data)
        draws = draws_of(method, None, f"compare: {name}")
        return Fitted(draws_of(draws, model) if draws.model is None else draws)
    begin = time.perf_counter()
    if isinstance(method, MCMCKernel):
        draws, gradients = _sampled(method, data, key, starts, settings)
    else:
        made = method(model, key, data.x, data.y, progress_bar=bool(settings["progress_bar"]))
        draws = draws_of(made, model, f"compare: {name}")
        gradients = float(draws.info.get("gradients", float("nan")))
    return Fitted(draws, gradients, time.perf_counter() - begin)


def _check_rows(name: str, run: Any, data: Data) -> None:
    """Refuse a finished run over another number of rows, or other labels, than the other methods have."""
    fitted, given = (
        [np.shape(leaf)[:1] for leaf in jax.tree.leaves(x)][:1] for x in (inputs_of(run), data.x)
    )
    classes = getattr(run, "classes_", None)
    if classes is not None and list(classes) != list(range(len(classes))):
        raise ValueError(
            f"compare: {name!r} was fitted to the labels {classes.tolist()}, and targets of a model are "
            "class numbers from 0. Fit it to `np.searchsorted(classes, y)`, and give such y here."
        )
    if fitted and fitted != given:
        raise ValueError(
            f"compare: {name!r} was fitted to {fitted[0][0] if fitted[0] else 0} rows, and x has "
            f"{given[0][0]}. Compare methods that have seen the same rows: give x and y of that run."
        )


def _sampled(
    kernel: MCMCKernel, data: Data, key: jax.Array, starts: Any, settings: dict[str, int]
) -> tuple[Draws, float]:
    """Draws of a kernel and the passes over all rows that its gradients took."""
    thinning = _THINNING if isinstance(kernel, SGMCMC) and kernel.num_steps == 1 else 1
    mcmc = MCMC(
        kernel,
        num_warmup=settings["num_warmup"] * thinning,
        num_samples=settings["num_samples"] * thinning,
        num_chains=settings["num_chains"],
        thinning=thinning,
        progress_bar=bool(settings["progress_bar"]),
    )
    if "num_steps" in fields_of(kernel):
        mcmc.warmup(key, data.x, data.y, init_params=starts, collect_warmup=True)
        steps = float(np.sum(mcmc.get_extra_fields()["num_steps"]))
        mcmc.run(mcmc.post_warmup_state.rng_key, data.x, data.y)
        steps += float(np.sum(mcmc.get_extra_fields()["num_steps"]))
        return draws_of(mcmc), steps
    mcmc.run(key, data.x, data.y, init_params=starts)
    if not isinstance(kernel, SGMCMC):
        return draws_of(mcmc), float("nan")
    # A cyclical schedule takes many steps to a draw; warm-up takes one.
    moves = mcmc.num_chains * mcmc.num_warmup + int(np.sum(mcmc.last_state.count))
    steps = moves * kernel.num_steps
    batch = kernel.gradient.batch_size or len(data.y)
    return draws_of(mcmc), steps * kernel.gradient.evaluations * batch / len(data.y)


def _worst(values: Mapping[str, np.ndarray]) -> float:
    """Largest R-hat of the predictions, constants left out; NaN for one chain or too few draws."""
    one_chain = len(next(iter(values.values()))) < 2
    return float("nan") if one_chain else RhatTable.from_draws("", values).max_rhat


def second_opinion(
    mcmc: Run,
    x: PyTree | None = None,
    *,
    kernel: MCMCKernel | None = None,
    key: jax.Array | None = None,
    num_warmup: int | None = None,
    num_samples: int | None = None,
    progress_bar: bool = True,
    **by_row: PyTree,
) -> Report:
    """Sample the same model again in another way, and report where the two runs differ.

    R-hat cannot see what every chain of a run misses. The second run starts from other
    optimised weights and, where none is given, uses NUTS with a higher `target_accept_prob`
    (0.95; 0.99 after a run that had as much): smaller steps, which enter narrow regions. Means and
    quantiles of precisions and predictions are compared in joint Monte Carlo errors.

    :param mcmc: an ``MCMC`` after `run`, what :func:`numpyro_bnn.fit` returned, or an estimator that was
        fitted in this process: its run knows model and data, which draws by themselves do not.
    :param x: inputs at which predictions are compared; default: the first argument of the run.
    :param kernel: another sampler of the same model.
    :param key: random key of the second run; default ``jax.random.key(1)``.
    :param num_warmup: default: that of the first run, at most 500.
    :param num_samples: default: that of the first run, at most 500.
    :param progress_bar: show one progress bar a chain.
    :param by_row: further arguments of the model by name, such as an offset of each row of x; default: those
        of the run.
    :return: the report on the first run, with the comparison in its `second`.
    :raises ValueError: for a run without draws, without a model to sample again, or at another temperature
        than `kernel`.
    """
    run = run_of(mcmc)
    if not isinstance(run, MCMC) or run.last_state is None:
        raise ValueError(
            f"second_opinion: expected a numpyro_bnn.MCMC after `run`, or what keeps one, got "
            f"{type(mcmc).__name__}{' before it' if isinstance(run, MCMC) else ''}. To compare finished "
            "runs use diagnose(run, x, second=other)."
        )
    model = (kernel or run.sampler).model
    kernel = NUTS(model, target_accept_prob=_higher(run.sampler)) if kernel is None else kernel
    _refuse_another_temperature(run, kernel)
    args, kwargs = arguments_of(run)
    draws = draws_of(run, owner="second_opinion")
    if x is None:
        others = training_data("second_opinion", draws.model, run).others
        x, by_row = inputs_of(run), by_name(draws.model, others) | by_row
    draws = draws.bound_to(by_row)
    # What cannot be predicted is refused before the second run.
    predictor_of(draws, x, owner="second_opinion")
    key_start, key_run = jax.random.split(jax.random.key(1) if key is None else key)
    other = MCMC(
        kernel,
        num_warmup=min(run.num_warmup, 500) if num_warmup is None else num_warmup,
        num_samples=min(run.num_samples, 500) if num_samples is None else num_samples,
        num_chains=run.num_chains,
        chain_method=run.chain_method,
        progress_bar=progress_bar,
    )
    starts = optimize(
        model, key_start, *args, num_chains=run.num_chains, progress_bar=progress_bar, **kwargs
    )
    other.run(key_run, *args, init_params=starts, **kwargs)
    return diagnose(draws, x, second=other)


def _refuse_another_temperature(run: MCMC, kernel: MCMCKernel) -> None:
    """Refuse a second run at another temperature: the two cannot be compared."""
    recorded = run.get_extra_fields().get("temperature")
    # The draws do not show how a schedule began.
    first = temperatures_of(run.sampler) if recorded is None else set(np.unique(recorded).tolist())
    second = temperatures_of(kernel)
    its = ", ".join(f"{t:.3g}" for t in sorted(second))
    if strange := [t for t in first if not np.isclose(t, list(second), rtol=1e-4).any()]:
        raise ValueError(
            f"second_opinion: the run is at temperature {min(strange):.3g}, and the second one, by "
            f"{type(kernel).__name__}, at {its}. Runs at different temperatures cannot be compared. "
            "Give a kernel at the temperature of the run, such as "
            f"kernel=BAOAB(model, step_size=…, temperature={min(strange):.3g}), or run at temperature 1."
        )


def _higher(sampler: Any) -> float:
    """A target acceptance probability above that of the first run's sampler."""
    aimed = sampler._target_accept_prob if isinstance(sampler, HMC) else 0.0
    return 0.95 if aimed < 0.95 else 0.99
