"""A whole analysis in one call: optimise an ensemble, run a chain from each member, diagnose, combine.

Members of an ensemble are good starts, one for each chain: warm-up then tunes metric and step size
inside a mode, and need not find one (Sommer et al. 2024, *Connecting the dots: is mode-
connectedness the key to feasible sample-based inference in Bayesian neural networks?*, and 2025,
*Microcanonical Langevin ensembles*).

The kernels that :func:`fit` takes by name, as the command line does, were chosen with their settings by
benchmarks.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike
from numpyro.infer import HMC, NUTS
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._checks import check_key, check_whole, warn
from numpyro_bnn._handler_stack import separate_threads
from numpyro_bnn._sentences import say
from numpyro_bnn._types import PyTree
from numpyro_bnn.approximations.member_optimizer import TrainingOptions
from numpyro_bnn.approximations.modes import ensemble_of, optimized
from numpyro_bnn.data.arguments import as_arrays, is_ready, names_of, num_rows
from numpyro_bnn.data.columns import with_tables
from numpyro_bnn.data.fingerprints import KNOWN_ROWS
from numpyro_bnn.data.units import known_targets, taken, with_targets
from numpyro_bnn.diagnostics.diagnose import diagnose
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.fit_check.record import FitCheck
from numpyro_bnn.posterior.draws import Draws, draws_of
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.stacking import stack
from numpyro_bnn.potential.starts import BoundModel, start_shapes
from numpyro_bnn.run.chain_states import ChainStates
from numpyro_bnn.samplers.sgmcmc import gradients
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.named import BAOAB, GGMC, MAMS, MCLMC
from numpyro_bnn.samplers.tempering.kernel import ParallelTempering
from numpyro_bnn.workflow.check_fit import check_fit
from numpyro_bnn.workflow.mcmc import MCMC
from numpyro_bnn.workflow.until import check_until

# Shares of the limit for optimising, and for judging the run at its end, which takes some seconds more.
_OPTIMISING, _JUDGING, _MORE = 1 / 3, 0.02, 4.0
# With a limit below so many seconds the optimisation has all cores.
_LONG = 30.0
# Fewer draws of a chain than these are worth less than the optimised networks alone.
_FEWEST = 10
# Every fiftieth step is kept of samplers that take one gradient a step.
_STEPS_A_DRAW = 50
# With more rows than this, minibatches are the default: full gradients cost more than they gain.
MANY_ROWS = 20_000
BATCH = 500
# By the median of its runs it mixes better than NUTS and MAMS in benchmarks/mixing/which_sampler.py, and it
# predicted best in benchmarks/predictions/tabular.py.
DEFAULT = "mclmc"


class Recipe(NamedTuple):
    """How to make the kernel of a name: defaults of its settings, steps to a draw that is kept."""

    make: Callable[..., MCMCKernel]
    settings: dict[str, object]
    thinning: int = 1


# Most training inputs at which predictions are judged by default.
MOST_JUDGED = 1000
# About half the step size of MCLMC's own default, which biased a log precision by 0.28 sd on the digits.
_ENERGY_VARIANCE_OF_FIT = 1e-5
_DEPTH: dict[str, Any] = {"max_tree_depth": 8}
_BOTH = {**_DEPTH, "target_accept_prob": 0.9}
# The command line names them too, before it loads JAX (`cli/main.py`).
KERNELS: dict[str, Recipe] = {
    "nuts": Recipe(NUTS, _BOTH),
    # A fixed number of steps, a quarter of NUTS's longest trajectory.
    "hmc": Recipe(
        lambda model, max_tree_depth, target_accept_prob: HMC(
            model,
            num_steps=max(1, 2**max_tree_depth // 4),
            trajectory_length=None,
            target_accept_prob=target_accept_prob,
        ),
        _BOTH,
    ),
    "mams": Recipe(
        lambda model, max_tree_depth, target_accept_prob: MAMS(
            model, max_num_steps=2**max_tree_depth - 1, target_accept_prob=target_accept_prob
        ),
        _BOTH,
    ),
    "ggmc": Recipe(
        lambda model, max_tree_depth: GGMC(
            model, step_size="auto", num_steps=max(1, 2**max_tree_depth // 4)
        ),
        _DEPTH,
    ),
    "mclmc": Recipe(MCLMC, {"energy_variance": _ENERGY_VARIANCE_OF_FIT}, _STEPS_A_DRAW),
    "baoab": Recipe(lambda model: BAOAB(model, step_size="auto"), {}, _STEPS_A_DRAW),
    "tempering": Recipe(ParallelTempering, {}),
}


def kernel_named(name: str, model: Callable, **settings: Any) -> tuple[MCMCKernel, int]:
    """Make a kernel by name, and say how many steps it takes to a draw that is kept."""
    if name not in KERNELS:
        raise ValueError(
            f"fit: kernel must be one of {sorted(KERNELS)} or a kernel over the model, got {name!r}."
        )
    recipe = KERNELS[name]
    if unknown := sorted(set(settings) - set(recipe.settings)):
        its = sorted(recipe.settings)
        raise ValueError(f"fit: the kernel {name!r} has the settings {its}, and not {unknown}.")
    return recipe.make(model, **(recipe.settings | settings)), recipe.thinning


def kernel_for_fit(
    kernel: str | MCMCKernel | None, model: Callable, batch_size: int | None, options: dict
) -> tuple[MCMCKernel, int]:
    """The kernel that :func:`numpyro_bnn.fit` samples with, and its steps to a draw."""
    if by_row := sorted(set(options) & set(names_of(model))):
        raise ValueError(
            f"fit: {by_row} are arguments of the model, not of the kernel. Put values by row into `x`, a "
            f"dictionary, or sample by `bnn.MCMC(…).run(key, x, y, {by_row[0]}=…)`."
        )
    if isinstance(kernel, MCMCKernel):
        if options or batch_size is not None:
            given = sorted(options) + ([] if batch_size is None else ["batch_size"])
            raise ValueError(
                f"fit: {given} are for kernels by name; give them to {type(kernel).__name__} itself."
            )
        unadjusted = isinstance(kernel, SGMCMC) and kernel.num_steps == 1
        return kernel, _STEPS_A_DRAW if unadjusted else 1
    if batch_size is None:
        return kernel_named(DEFAULT if kernel is None else kernel, model, **options)
    minibatched = {"baoab": BAOAB, "mclmc": MCLMC}
    name = "baoab" if kernel is None else kernel
    kernel_named(name, model, **options)
    if name not in minibatched:
        raise ValueError(
            f"fit: batch_size={batch_size}, but {name!r} uses all rows. Take one of "
            f"{sorted(minibatched)}, or leave batch_size out."
        )
    if options:
        raise ValueError(
            f"fit: {sorted(options)} are settings of {name!r} over all rows, where batch_size="
            f"{batch_size} sets the step by the curvature. Leave one of them out."
        )
    # The noise of plain minibatches makes predictions of networks too wide
    # (benchmarks/mixing/networks_beside_full_batch.py). BAOAB takes off what is left of it.
    gradient = gradients.svrg(batch_size, order="replacement", chunk_size=batch_size)
    own = {"gradient_noise": "auto"} if name == "baoab" else {}
    return minibatched[name](model, step_size="auto", gradient=gradient, **own), _STEPS_A_DRAW


@dataclass(frozen=True)
class Fit:
    """The result of :func:`fit`: draws to predict with, the run behind them, and its report.

    - **model** - the model that was fitted
    - **ensemble** - the optimised members, one a chain
    - **mcmc** - the run that began from them; None where the time limit left no time for one
    - **draws** - the draws to predict with: all of the run, or those of the stacked mixture
    - **weights** - weight of each chain in `draws`, adding up to 1
    - **report** - diagnosis of the run; print it
    - **seconds** - wall clock of the parts ``"optimise"``, ``"sample"`` and ``"judge"``
    - **test** - the rows that were given as `x_test` and `y_test`; None without both
    """

    model: Callable
    ensemble: Draws
    mcmc: MCMC | None
    draws: Draws
    weights: np.ndarray
    report: Report
    seconds: dict[str, float]
    test: tuple[PyTree, ArrayLike] | None = None

    @property
    def run(self) -> MCMC | Draws:
        """The run, or the optimised members where the time limit left no time for one."""
        return self.ensemble if self.mcmc is None else self.mcmc

    def predict(self, x: PyTree, **options: Any) -> Predictions:
        """Predictions of every draw at inputs `x`; options are those of :func:`numpyro_bnn.predict`."""
        return predict(None, self.draws, x, **options)

    def check(self, x: Any = None, y: Any = None, **options: Any) -> FitCheck:
        """Whether the model fits its training data, see :func:`numpyro_bnn.check_fit`."""
        return check_fit(self.run, x, y, **{"held_out": self.test, **options})

    def print(self) -> None:
        """Print the report: verdict, tables and explanation."""
        print(self.report)

    def __repr__(self) -> str:
        kernel = "ensemble" if self.mcmc is None else type(self.mcmc.sampler).__name__
        spent = ", ".join(f"{name} {value:.0f} s" for name, value in self.seconds.items())
        suspects = getattr(self.mcmc, "suspect", {})
        suspect = f", {len(suspects)} suspect" if suspects else ""
        return f"Fit({kernel}, {self.report.verdict}{suspect}; {spent})"


def fit(
    model: Callable,
    x: PyTree,
    y: ArrayLike,
    *,
    key: jax.Array | None = None,
    weights: ArrayLike | None = None,
    kernel: str | MCMCKernel | None = None,
    num_chains: int = 4,
    num_warmup: int = 300,
    num_samples: int = 300,
    thinning: int | None = None,
    batch_size: int | None = None,
    combine: Literal["average", "stack"] = "average",
    validation: float = 0.1,
    x_test: PyTree | None = None,
    y_test: ArrayLike | None = None,
    until: Tolerance | None = None,
    max_minutes: float | None = None,
    on_ensemble: Callable[[Draws], None] | None = None,
    progress_bar: bool = True,
    **options: Any,
) -> Fit:
    """From a model and data to a judged posterior.

    An ensemble is optimised, one member a chain. Every chain starts at its member, and tunes its metric
    and step size in warm-up. Weights and predictions are diagnosed.

    :param model: a NumPyro model, called as ``model(x, y)``.
    :param x: inputs, an array or a pytree of arrays with rows first. Other arguments by row belong into it,
        as a dictionary, or to ``bnn.MCMC(…).run(key, x, y, offset=…)``.
    :param y: targets, one a row; NaN where a ready model has none, see :func:`numpyro_bnn.regression`.
    :param key: random key; default ``jax.random.key(0)``.
    :param weights: (N,), how often each row counts, for models that take them as ``model(x, y, weights=…)``,
        as ready models do; None for once.
    :param kernel: a key of :data:`KERNELS` or a kernel over the model; default: MCLMC, and with
        minibatches, or more than 20,000 rows, BAOAB on minibatches. Both take steps without a
        Metropolis correction, which leaves a small bias
        (:class:`~numpyro_bnn.samplers.sgmcmc.named.MCLMC` states its own); ``"nuts"``,
        ``"hmc"``, ``"mams"``, ``"ggmc"`` and ``"tempering"``, which crosses between modes, have none.
    :param num_chains: members and chains.
    :param num_warmup: length of warm-up in draws, of `thinning` steps each.
    :param num_samples: draws a chain that are kept; with `until` their number when the run is first judged.
    :param thinning: steps to a draw; default: 50 of the unadjusted samplers, 1 of all others.
    :param batch_size: rows in a minibatch, of optimisation and sampling. Chains correct their minibatch
        gradients by one over all rows every so often
        (:func:`~numpyro_bnn.samplers.sgmcmc.gradients.svrg`).
    :param combine: ``"average"``: all chains with equal weight, which is right where they mix;
        ``"stack"``: chains weighted by how well they predict rows that were held out.
    :param validation: share of the rows held out for stacking.
    :param x_test: inputs at which predictions are judged; default: the first 1000 training inputs.
    :param y_test: their targets; without them the error of the log score is not judged.
    :param until: the Monte Carlo error that is accepted: sampling goes on until the errors of
        predictions at these inputs are within it, see :meth:`numpyro_bnn.MCMC.run_until`.
    :param max_minutes: time limit of the fit, compiling and judging included, kept to a tenth or 5 s; but the
        optimisation is compiled in any case, some ten seconds the first time, and runs for up to two seconds
        then. Where `num_warmup` and `num_samples` would take longer, both become shorter in proportion, and
        `mcmc` has them. Without time to sample, draws are the optimised members, `mcmc` is None, and a
        warning says so.
    :param on_ensemble: called with the optimised members, a chain of one draw each, before sampling begins:
        to show what they predict while the chains run.
    :param progress_bar: show progress.
    :param options: settings of :func:`kernel_named`.
    :return: draws, run and report.
    :raises ValueError: for an unknown kernel, a model of several targets, rows of x and y that differ in
        number, a share out of range, or `y_test` without `x_test`.
    :raises TypeError: for an `until` that is no :class:`numpyro_bnn.Tolerance`.

    >>> fitted = bnn.fit(model, x, y)                                       # doctest: +SKIP
    >>> fitted.print()                                                      # doctest: +SKIP
    >>> fitted.predict(x_new).mean.mean((0, 1))                             # doctest: +SKIP
    """
    key = jax.random.key(0) if key is None else key
    check_key("fit", key)
    # Arguments that are used only after the optimisation are checked before it.
    if y_test is not None and x_test is None:
        raise ValueError(
            "fit: y_test was given and no x_test. Give the inputs of these targets, or leave both out to "
            "judge at training rows."
        )
    check_until(until, max_minutes)
    limit = TimeLimit(max_minutes)
    (arrays, y), _ = as_arrays(model, (x, y), {})
    x = with_tables(x, arrays)
    count = num_rows("fit: x and y", (arrays, y))
    if is_ready(model) and known_targets(np.asarray(y)) is not None:
        rows, y = with_targets("fit", np.asarray(y))
        x, count = taken(x, rows), len(y)
        weights = None if weights is None else np.asarray(weights)[rows]
    key_split, key_starts, key_run, key_stack = jax.random.split(key, 4)
    train, held = _split(combine, validation, count, key_split)
    x_train, y_train = taken(x, train), taken(y, train)
    weighted = {} if weights is None else {"weights": taken(np.asarray(weights), train)}
    if batch_size is None and kernel is None and len(train) > MANY_ROWS:
        batch_size = BATCH
    sampler, steps = kernel_for_fit(kernel, model, batch_size, options)
    bound = BoundModel.of(model, (x_train, y_train), weighted)
    if len(targets := bound.structure.targets) > 1:
        raise ValueError(
            f"fit: the model observes {targets}, and predictions of one target are judged. Observe one of "
            "them, or sample by `bnn.MCMC` and judge each by `bnn.diagnose(mcmc, x, site=…)`."
        )
    thinning = steps if thinning is None else check_whole("fit", "thinning", thinning)
    mcmc = MCMC(
        sampler,
        num_warmup=check_whole("fit", "num_warmup", num_warmup, least=0) * thinning,
        num_samples=check_whole("fit", "num_samples", num_samples) * thinning,
        num_chains=num_chains,
        thinning=thinning,
        progress_bar=progress_bar,
    )

    clock = time.perf_counter()
    training = TrainingOptions(batch_size=batch_size, progress_bar=progress_bar)
    data = (x_train, y_train)
    anywhere = {n: np.zeros((num_chains, *s)) for n, s in start_shapes(bound.structure).items()}
    # The programs of the chains compile beside the optimisation. No chain begins at these zeros.
    separate_threads()
    pool = ThreadPoolExecutor(1)
    begin = partial(pool.submit, mcmc.prepared, key_run, *data, init_params=anywhere, **weighted)
    chains = begin() if limit.seconds >= _LONG else None
    ends = limit.began + _OPTIMISING * limit.seconds
    starts = optimized(bound, key_starts, num_chains, training, ends)
    jax.block_until_ready(starts)
    optimised = time.perf_counter()
    ensemble = ensemble_of(bound, starts)
    if on_ensemble is not None:
        on_ensemble(ensemble)
    began = time.perf_counter()
    # The log score of rows that were fitted is nothing that anybody uses.
    at = (taken(x_train, slice(MOST_JUDGED)), None) if x_test is None else (x_test, y_test)
    run: MCMC | Draws = mcmc
    # They compile about as long as all of the optimisation took.
    if chains is None and limit.left > optimised - clock:
        chains = begin()
    pool.shutdown(wait=False)
    if chains is None or not limit.allows(mcmc, chains):
        run = ensemble
        warn(f"fit: {say('stopped: no time')}")
    elif until is None:
        mcmc.run(key_run, *data, init_params=starts, **weighted)
    else:
        # Never zero, so that some draws are taken.
        minutes = None if max_minutes is None else max(limit.left / 60, 1e-3)
        rule: dict[str, Any] = {"until": until, "test_data": at, "max_minutes": minutes}
        mcmc.run_until(key_run, *data, init_params=starts, **rule, **weighted)
    judged_from = time.perf_counter()
    report = diagnose(run, *at, tolerance=until)
    draws = draws_of(run)
    weights = np.full(draws.num_chains, 1 / draws.num_chains)
    if combine == "stack":
        draws = stack(run, taken(x, held), taken(y, held), key=key_stack)
        weights = np.asarray(draws.info["weights"])
    draws.info |= {n: rows for n, rows in ensemble.info.items() if n == KNOWN_ROWS}
    seconds = {
        "optimise": optimised - clock,
        "sample": judged_from - began,
        "judge": time.perf_counter() - judged_from,
    }
    test = None if x_test is None or y_test is None else (x_test, y_test)
    own = None if run is ensemble else mcmc
    return Fit(model, ensemble, own, draws, weights, report, seconds, test)


class TimeLimit:
    """Seconds from now on; without end where `minutes` is None."""

    # A run must know the length of its warm-up before it begins. So lengths are planned once, from the time
    # that a step takes when the programs have compiled; no draw depends on a clock after that.

    def __init__(self, minutes: float | None) -> None:
        self.seconds = math.inf if minutes is None else 60.0 * minutes
        self.began = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds left for sampling."""
        return self.began + (1 - _JUDGING) * self.seconds - _MORE - time.monotonic()

    def allows(self, mcmc: MCMC, chains: Future[ChainStates]) -> bool:
        """Whether there is time to sample; a run that would take longer is made shorter."""
        if self.seconds == math.inf:
            chains.result()
            return True
        try:
            seconds = chains.result(timeout=max(0.0, self.left)).seconds_a_step(mcmc.num_warmup)
        except TimeoutError:
            return False
        share = self.left / (seconds * (mcmc.num_warmup + mcmc.num_samples))
        if share < 1:
            lengths = (int(share * n) // mcmc.thinning for n in (mcmc.num_warmup, mcmc.num_samples))
            mcmc.set_lengths(*(max(0, n) * mcmc.thinning for n in lengths))
        return mcmc.num_samples >= _FEWEST * mcmc.thinning or share >= 1


def _split(
    combine: str, validation: float, num_rows: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to fit, and rows held out for stacking."""
    if combine not in ("average", "stack"):
        raise ValueError(f'fit: combine must be "average" or "stack", got {combine!r}.')
    if combine == "average":
        return np.arange(num_rows), np.arange(0)
    count = round(validation * num_rows)
    if not (0 < validation < 1 and 0 < count < num_rows):
        raise ValueError(
            f"fit: validation must be the share of rows to hold out, between 0 and 1, got "
            f"{validation!r} of {num_rows} rows."
        )
    order = np.asarray(jax.random.permutation(key, num_rows))
    return np.sort(order[count:]), np.sort(order[:count])
