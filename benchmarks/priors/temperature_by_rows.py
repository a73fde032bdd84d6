"""For which number of rows and which prior is the posterior best at T = 1?

- Full-batch HMC (`common_step_hmc`) samples every posterior; for one number of rows all cells have as many
  trajectories, and what they cost in gradients is stored.
- With shifts U = -log p(w) - Σ_i mean_s log p(y_i | shift_s x_i, w), a bound of the invariant likelihood and
  the usual meaning of augmentation (Nabarro et al. 2022).
- Some are sampled by minibatch BAOAB with SVRG too, what noise is left taken off.

Differences of log scores are paired by test row, which all subsets share.

    python -m benchmarks.priors.temperature_by_rows [--quick]

Sources: Wenzel et al., *How good is the Bayes posterior in deep neural networks really?* (2020); Izmailov et
al., *What are Bayesian neural network posteriors really like?* (2021), section 7; Nabarro et al., *Data
augmentation in Bayesian neural networks and the cold posterior effect* (2022).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import convergence, sampler
from benchmarks._shared.study import Results, Row, begin
from benchmarks.priors import common_step_hmc as hmc
from benchmarks.priors import tempered_network as network
from benchmarks.priors.average_scores import Scored, against, against_ensemble, scored
from benchmarks.priors.temperature_verdicts import (
    ENSEMBLE,
    FULL_BATCH,
    LONG,
    MINIBATCH,
    PRIORS,
    SHIFTED,
    UNMOVED,
    averaged,
    beside_hmc,
    findings,
    picture,
)
from benchmarks.priors.tempered_network import HIERARCHICAL
from numpyro_bnn import gradients

TEMPERATURES = (0.03, 0.1, 0.3, 1.0, 3.0)
KEYS = ("rows", "subset", "shifts", "prior", "temperature", "method")
# Where chains of the hierarchical prior begin: networks trained with this α, precisions at 1/α².
HIERARCHICAL_START = 0.3
# Step size in standard coordinates that adaptation begins with.
FIRST_STEP = 0.02
# Steps of a long run of BAOAB by those of a short one.
LONGER = 10
# Test rows whose class probabilities are judged for convergence.
JUDGED = 500
# Columns that not every row has.
NOTHING: Row = {
    f"{name}{error}": ""
    for name in ("gain", "over ensemble", "from HMC")
    for error in ("", " rows", " chains")
} | dict.fromkeys(("worst R-hat", "median R-hat", "least ESS", "converged", "decay"), "")
NOTHING |= dict.fromkeys(("kinetic", "along gradients", "accepted", "step size"), "")
NOTHING |= dict.fromkeys(("leapfrogs", "gradients", "draws"), "")


class Subset(NamedTuple):
    """Training rows, which subset of the data they are, and what is sampled with them by HMC."""

    rows: int
    subset: int
    priors: tuple[float | str, ...] = PRIORS
    temperatures: tuple[float, ...] = TEMPERATURES
    shifts: str = UNMOVED

    @property
    def where(self) -> tuple[int, int, str]:
        """What its rows are: how many, which, and whether moved."""
        return self.rows, self.subset, self.shifts


class Size(NamedTuple):
    """What is run."""

    subsets: tuple[Subset, ...]  # in the order in which they are computed
    # (rows, subset, prior, temperatures, method) that are also sampled with minibatches
    both: tuple[tuple[int, int, float | str, tuple[float, ...], str], ...]
    test: int  # test rows
    chains: int  # chains, and networks of an ensemble
    # Of HMC: (most rows, short ones, warm-up, draws), the last two of a quarter turn
    trajectories: tuple[tuple[int, int, int, int], ...]
    # The same of the hierarchical prior, whose step size takes longer to find
    hierarchical: tuple[tuple[int, int, int, int], ...]
    steps: int  # of BAOAB, a third of them warm-up; :data:`LONGER` times as many of a long run
    kept: int  # draws of BAOAB
    batch: int  # rows of a minibatch
    training: int  # steps of Adam
    decays: tuple[float, ...]  # α of weight decays 1/α² among which the ensemble chooses


DECAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
FIXED = PRIORS[:4]
COLD = (0.1, 1.0)
SIZES = {
    "full": Size(
        (
            Subset(1000, 0),
            Subset(300, 0),
            Subset(3000, 0, FIXED),
            Subset(300, 1),
            Subset(1000, 1),
            Subset(10_000, 0, FIXED),
            Subset(3000, 1, FIXED),
            Subset(3000, 0, (HIERARCHICAL,), TEMPERATURES[1:]),
            Subset(10_000, 1, FIXED, COLD),
            Subset(10_000, 0, (HIERARCHICAL,), (1.0,)),
            Subset(3000, 1, (HIERARCHICAL,), ()),
            Subset(10_000, 1, (HIERARCHICAL,), ()),
            Subset(300, 0, FIXED, TEMPERATURES, SHIFTED),
            Subset(1000, 0, PRIORS[:3], TEMPERATURES, SHIFTED),
            Subset(1000, 0, (2.0,), COLD, SHIFTED),
            Subset(3000, 0, PRIORS[:2], TEMPERATURES, SHIFTED),
            Subset(3000, 0, (1.0,), TEMPERATURES[1:], SHIFTED),
            Subset(3000, 0, (2.0,), COLD, SHIFTED),
            Subset(300, 1, FIXED, TEMPERATURES, SHIFTED),
            Subset(1000, 1, PRIORS[:3], TEMPERATURES, SHIFTED),
            Subset(3000, 1, PRIORS[:3], TEMPERATURES, SHIFTED),
            Subset(10_000, 0, (0.3,), TEMPERATURES, SHIFTED),
            Subset(10_000, 0, (0.1, 1.0, 2.0), COLD, SHIFTED),
            Subset(300, 0, (HIERARCHICAL,), COLD, SHIFTED),
        ),
        (
            (1000, 0, 0.3, COLD, MINIBATCH),
            (3000, 0, 1.0, COLD, MINIBATCH),
            *((n, 0, HIERARCHICAL, COLD, LONG) for n in (3000, 10_000)),
            *((n, 1, HIERARCHICAL, (1.0,), LONG) for n in (3000, 10_000)),
        ),
        *(5000, 8, ((1000, 80, 20, 50), (10_000, 80, 10, 30))),
        ((1000, 80, 20, 50), (10_000, 80, 30, 30)),
        *(6000, 50, 100, 2000, DECAYS),
    ),
    "quick": Size(
        (Subset(300, 0, (0.3, 1.0), COLD),),
        (),
        *(500, 4, ((300, 60, 10, 20),), ((300, 60, 10, 20),), 300, 20, 100, 500, DECAYS),
    ),
    "toy": Size(
        (Subset(40, 0, (HIERARCHICAL,), COLD),),
        ((40, 0, HIERARCHICAL, (1.0,), MINIBATCH), (40, 0, HIERARCHICAL, (1.0,), LONG)),
        *(60, 2, ((40, 10, 4, 6),), ((40, 10, 4, 6),), 60, 6, 10, 30, (0.2, 0.8)),
    ),
}


@cache
def minibatch_run(size: Size, steps: int, hierarchical: bool) -> bnn.MCMC:
    """A run of BAOAB, of which α and T are arguments of the model."""
    model = network.tempered(hierarchical)
    kernel = bnn.BAOAB(
        model,
        step_size="auto",
        gradient=gradients.svrg(size.batch, order="replacement"),
        gradient_noise="auto",
    )
    thinning = steps * 2 // 3 // size.kept
    return sampler(kernel, size.chains, steps // 3, size.kept, thinning)


@cache
def full_batch_run(lengths: tuple[int, int, int], hierarchical: bool) -> Callable:
    """A run of HMC, a function of a key, starts and arguments of the model: one program for all α and T."""
    model = network.tempered(hierarchical)

    def run(key, begin, x, y, alpha, temperature, share):
        energy = bnn.potential_of(model, x, y, alpha, temperature, share)
        return hmc.sample(energy, key, begin, *lengths, FIRST_STEP)

    return jax.jit(run)


def placed(x: np.ndarray, y: np.ndarray, shifts: str) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Training rows, with a row for each place of an image where there are shifts; what each row counts."""
    if shifts == UNMOVED:
        return x, y, np.float32(1)
    return *network.with_shifts(x, y), np.float32(1 / len(network.PLACES))


@lru_cache(maxsize=8)
def trained(
    folder: Path | None, size: Size, rows: int, subset: int, shifts: str, alpha: float
) -> Any:
    """Networks trained on a subset, one for each chain."""
    x, y, *_ = network.images(folder, rows, size.test, subset)
    key = jax.random.key(100 + subset)
    return network.trained(*placed(x, y, shifts), alpha, size.chains, size.training, key)


def described(found: Scored) -> Row:
    """The columns that every row has."""
    return NOTHING | {
        "log_score": float(found.rows.mean()),
        "log_score_se": bnn.scores.standard_error(found.rows),
        "log_score chains": found.monte_carlo,
        "of the posterior": float(found.of_the_posterior.mean()),
        "error": found.error,
        "calibration": found.calibration,
    }


@cache
def ensemble(
    folder: Path | None, size: Size, rows: int, subset: int, shifts: str
) -> tuple[Scored, float]:
    """A deep ensemble, and the α of its weight decay, best on a held-out fifth of the training rows."""
    x, y, x_test, y_test = network.images(folder, rows, size.test, subset)
    held = len(x) // 5
    held_out = {}
    for alpha in size.decays:
        key = jax.random.key(200 + subset)
        rest = placed(x[held:], y[held:], shifts)
        members = network.trained(*rest, alpha, size.chains, size.training, key)
        probs = network.probabilities(_as_chains(members), x[:held])
        held_out[alpha] = scored(probs, y[:held]).rows.mean()
    best = max(held_out, key=held_out.get)
    members = trained(folder, size, rows, subset, shifts, best)
    return scored(network.probabilities(_as_chains(members), x_test), y_test), best


def _as_chains(members: Any) -> Any:
    """Each network as a chain of one draw."""
    return {path: value[:, None] for path, value in members.items()}


def one_run(
    folder: Path | None,
    size: Size,
    rows: int,
    subset: int,
    shifts: str,
    prior: float | str,
    temperature: float,
    method: str,
) -> tuple[Row, Scored]:
    """One posterior: what its run is worth, and its scores."""
    x, y, x_test, y_test = network.images(folder, rows, size.test, subset)
    hierarchical = prior == HIERARCHICAL
    alpha = HIERARCHICAL_START if hierarchical else float(prior)
    begin = network.start(
        trained(folder, size, rows, subset, shifts, alpha), alpha, temperature, hierarchical
    )
    key = jax.random.key(10 + subset)
    # Arrays, so that other values are not another program.
    x, y, share = placed(x, y, shifts)
    args = x, y, np.float32(alpha), np.float32(temperature), share
    if method == FULL_BATCH:
        u, cost = full_batch(size, rows, hierarchical, key, begin, args)
    else:
        steps = size.steps * (LONGER if method == LONG else 1)
        u, cost = minibatch(size, steps, rows, hierarchical, key, begin, args)
    w = network.weights(u, math.sqrt(temperature) * (1.0 if hierarchical else alpha))
    probs = network.probabilities(w, x_test)
    found = scored(probs, y_test)
    return described(found) | convergence(probs[:, :, :JUDGED]) | cost, found


def full_batch(
    size: Size, rows: int, hierarchical: bool, key: Any, begin: Any, args: tuple
) -> tuple[Any, Row]:
    """Standard coordinates (chain, draw, …) by site from HMC, and what the run took."""
    known = size.hierarchical if hierarchical else size.trajectories
    lengths = next(own for most, *own in known if rows <= most)
    run = full_batch_run(tuple(lengths), hierarchical)(key, begin, *args)
    u = {
        name: jnp.exp(v) if name.endswith("precision") else v
        for name, v in jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), run.draws).items()
    }
    return u, {
        "accepted": float(run.accept),
        "step size": float(run.step_size),
        "leapfrogs": float(run.leapfrogs),
        "gradients": int(run.spent),
        "draws": lengths[-1],
    }


def minibatch(
    size: Size, steps: int, rows: int, hierarchical: bool, key: Any, begin: Any, args: tuple
) -> tuple[Any, Row]:
    """Standard coordinates (chain, draw, …) by site from BAOAB, and what the run took."""
    mcmc = minibatch_run(size, steps, hierarchical)
    fields = ("step_size", "kinetic_temperature", "gradient_temperature")
    mcmc.run(key, *args, init_params=begin, extra_fields=fields)
    step, kinetic, along = (float(np.mean(mcmc.get_extra_fields()[name])) for name in fields)
    return mcmc.get_samples(group_by_chain=True), {
        "kinetic": kinetic,
        "along gradients": along,
        "step size": step,
        # As many as would cost the same on all rows.
        "gradients": round(3 * size.batch / rows * steps),
        "draws": size.kept,
    }


def cell(
    rows: int, subset: int, shifts: str, prior: float | str, *, size: Size, folder: Path | None
) -> Iterator[Row]:
    """All temperatures of one prior and subset beside T = 1 and the ensemble; or the ensemble itself."""
    trained_networks, decay = ensemble(folder, size, rows, subset, shifts)
    if prior == ENSEMBLE:
        yield described(trained_networks) | {"temperature": 0.0, "method": ENSEMBLE, "decay": decay}
        return
    here = rows, subset, shifts
    (asked,) = (s for s in size.subsets if s.where == here and prior in s.priors)
    run = partial(one_run, folder, size, *here, prior)
    found = {t: run(t, FULL_BATCH) for t in asked.temperatures}
    for t, (row, own) in found.items():
        yield row | {
            "temperature": t,
            "method": FULL_BATCH,
            **against(own, found[1.0][1], "gain"),
            **against_ensemble(own, trained_networks),
        }
    for *both, temperatures, method in size.both:
        if both != [rows, subset, prior] or shifts != UNMOVED:
            continue
        for t in temperatures:
            row, own = run(t, method)
            gaps = against_ensemble(own, trained_networks)
            if t in found:
                gaps |= against(own, found[t][1], "from HMC")
            yield row | {"temperature": t, "method": method} | gaps


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, KEYS, SIZES, argv)
    study.run(
        [
            dict(zip(KEYS, (*where, prior)))
            # An ensemble stands beside several entries of the same rows.
            for *where, prior in dict.fromkeys(
                (*asked.where, prior)
                for asked in size.subsets
                for prior in (ENSEMBLE, *asked.priors)
            )
        ],
        partial(cell, size=size, folder=given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))
    Results(__file__, given, "minibatches").report(beside_hmc(study.rows))


if __name__ == "__main__":
    main()
