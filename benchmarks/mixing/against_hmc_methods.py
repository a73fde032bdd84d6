"""The methods that `against_hmc` compares, each with as many passes over the data as all others.

A pass is one gradient of the energy on all rows; a minibatch of B of N rows is B/N of one. The budget is
that of all chains or networks of a method together, with warm-up and with the training of the starts where a
method has any. Of what is no plain gradient:

- an energy on all rows without its gradient, which AMAGOLD has once a trajectory: a third of a pass;
- a step with SVRG: three minibatches (at the position, at the anchor, and the anchor's own gradient on all
  rows, once in N/B steps); in warm-up four more, two for a second estimate of the gradient, from which its
  noise is learned, and two for a product with the Hessian, from which the step size is;
- the first automatic step size: twenty products with the Hessian on all rows, 40 passes a chain.

A quarter of what is left after the training of starts is warm-up, for HMC as for all others.
"""

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split
from benchmarks._shared.sampled_runs import Problem, network, problem, sampled, starts
from benchmarks.priors import common_step_hmc
from benchmarks.priors.tempered_network import images
from numpyro_bnn import gradients
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.samplers.sgmcmc import preconditioners, schedules

NARROW, CHOSEN = "images, narrow prior", "images, chosen prior"
IMAGES = (NARROW, CHOSEN)


class Setting(NamedTuple):
    """Hidden units, prior scale (0: that of `against_hmc_prior`), first step over it, rows of a minibatch."""

    hidden: int
    scale: float
    step: float
    batch: int


PROBLEMS = {
    NARROW: Setting(32, 0.2, 0.02, 100),
    CHOSEN: Setting(32, 0.0, 0.02, 100),
    "boston": Setting(16, 0.5, 0.004, 50),
    "wine_red": Setting(16, 0.5, 0.004, 100),
}


class Size(NamedTuple):
    """What is run."""

    problems: tuple[str, ...]  # by name
    seeds: tuple[int, ...]  # of all methods but the reference and its repeat
    # Seeds of SGD and mean field besides, whose Monte Carlo error is the spread between seeds
    more: tuple[int, ...]
    images: tuple[int, int, int]  # training, held-out and test images
    rows: int  # rows of a table (0: all)
    chains: int  # of all samplers
    # Trajectories of HMC: short ones, of warm-up, and kept, as `common_step_hmc` has them
    reference: tuple[int, int, int]
    passes: int  # the budget
    training: int  # steps of Adam on all rows, of which each start is made
    draws: int  # kept of each chain, at most
    members: int  # networks of an ensemble
    scales: tuple[float, ...]  # prior scales that are tried
    grid: tuple[int, int, int]  # trajectories of `common_step_hmc` at each


GRID = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
SIZES = {
    "full": Size(
        tuple(PROBLEMS),
        (0, 1),
        (2, 3),
        (1000, 2000, 2000),
        0,
        4,
        (80, 100, 250),
        8000,
        200,
        100,
        10,
        GRID,
        (60, 10, 40),
    ),
    "quick": Size(
        ("boston",),
        (0,),
        (),
        (300, 300, 300),
        0,
        4,
        (60, 40, 100),
        3000,
        100,
        50,
        5,
        (0.3, 1.0),
        (40, 5, 10),
    ),
    "toy": Size(
        (CHOSEN, "boston"),
        (0,),
        (),
        (120, 60, 60),
        60,
        2,
        (10, 4, 8),
        400,
        20,
        8,
        2,
        (0.2, 0.8),
        (10, 3, 5),
    ),
}
# Trajectories that HMC has a chain, at least, where it has the budget of the others.
TRAJECTORIES = 40
WARMUP = 0.25
# Of the RMSprop metric, in units of the gradient of the mean loss.
EPS = 0.1
# Momentum of the samplers is forgotten over this share of a quarter of the prior's period.
MEMORY = 0.5
# Passes of an energy without its gradient, of the first automatic step size.
ENERGY, FIRST_STEP = 1 / 3, 40.0
# Minibatches of mean field, in those of the others: its steps cost more than their gradients.
LARGER = 5

REFERENCE, AGAIN, EQUAL = "HMC", "HMC again", "HMC, equal budget"
OPTIMISED = ("SGD", "deep ensemble", "mean field")
ALONE = ("SGD", "mean field")
SVRG = "BAOAB, SVRG, noise taken off"
SAMPLED = (EQUAL, "SGLD", "SGHMC", "cyclical SGHMC", "preconditioned cyclical SGHMC")
SAMPLED += ("BAOAB", SVRG, "AMAGOLD", "MCLMC")


class Case(NamedTuple):
    """A posterior: where the data sets are, what is run, and of which problem with which prior scale."""

    folder: Path | None
    size: Size
    name: str
    scale: float

    @property
    def setting(self) -> Setting:
        return PROBLEMS[self.name]


@functools.cache
def given(case: Case) -> Problem:
    """The network and its rows."""
    hidden, prior = [case.setting.hidden], bnn.priors.Normal(case.scale)
    rows, _, test = case.size.images
    if case.name in IMAGES:
        split = Split(*images(case.folder, rows, test, 0))
        return Problem(network("mnist", hidden, prior, jax.nn.relu), split)
    return problem(case.folder, case.name, hidden, prior, num_rows=case.size.rows)


@functools.cache
def begun(case: Case, seed: int) -> Any:
    """Starts of all samplers with one seed."""
    return starts(*given(case), 100 + seed, case.size.chains, case.size.training)


class Reference(NamedTuple):
    """Long full-batch HMC."""

    draws: Draws  # of all chains
    passes: float  # over all rows, of all chains and their starts
    step: float  # leapfrog step of all chains, in units of the weights
    leapfrogs: float  # gradients a trajectory, mean
    seconds: float  # with compilation


@functools.cache
def hmc_program(case: Case) -> Callable:
    """HMC, of a key and starts, in weights over the scale of their prior: a quarter of its period is π/2."""
    model, (x, y, *_) = given(case)
    potential = bnn.potential_of(model, x, y)
    scaled = functools.partial(jax.tree.map, lambda v: case.scale * v)
    length, first = case.size.reference, case.setting.step

    def run(key, start):
        start = jax.tree.map(lambda v: v / case.scale, start)
        found = common_step_hmc.sample(lambda u: potential(scaled(u)), key, start, *length, first)
        by_chain = jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), scaled(found.draws))
        return jax.vmap(jax.vmap(potential.constrain))(by_chain), found

    return jax.jit(run)


@functools.cache
def hmc_run(case: Case, seed: int) -> Reference:
    """Trajectories of a quarter of the prior's period, from the starts of a seed."""
    begin = time.perf_counter()
    values, found = hmc_program(case)(jax.random.key(seed), begun(case, seed))
    values = {name: np.asarray(v) for name, v in values.items()}
    return Reference(
        Draws(values, given(case).model),
        case.size.chains * (case.size.training + int(found.spent)),
        float(found.step_size) * case.scale,
        float(found.leapfrogs),
        time.perf_counter() - begin,
    )


def _short(model: Callable, step: float, leapfrogs: int) -> HMC:
    """HMC with so many leapfrogs a trajectory, whatever its step size."""
    return HMC(
        model, step_size=step, num_steps=leapfrogs, trajectory_length=None, adapt_mass_matrix=False
    )


class Cost(NamedTuple):
    """Passes over all rows of a chain: once, of a call of the kernel in warm-up, and of one after it."""

    once: float
    warmup: float
    call: float


def cost(method: str, share: float, leapfrogs: int = 0) -> Cost:
    """What a method costs, with this share of all rows in a minibatch and these leapfrogs a trajectory."""
    if method == EQUAL:
        return Cost(0, leapfrogs, leapfrogs)
    if method == "MCLMC":
        return Cost(FIRST_STEP, 1, 1)
    if method == SVRG:
        return Cost(FIRST_STEP, 7 * share, 3 * share)
    if method == "AMAGOLD":
        return Cost(FIRST_STEP, 10 * share + ENERGY, 10 * share + ENERGY)
    return Cost(0, share, share)


class Plan(NamedTuple):
    """Of a chain: calls in warm-up, draws, calls to a draw; and the passes of all chains and their starts."""

    warmup: int
    draws: int
    thinning: int
    passes: float


def plan(method: str, size: Size, share: float, leapfrogs: int = 0) -> Plan:
    """How a sampler spends the budget; half of the steps of a cycle explore, and give no draws."""
    trained = size.chains * size.training
    once, in_warmup, call = cost(method, share, leapfrogs)
    budget = (size.passes - trained) / size.chains
    warmup = max(1, int((WARMUP * budget - once) / in_warmup))
    call *= 2 if "cyclical" in method else 1
    calls = int((1 - WARMUP) * budget / call)
    draws = min(size.draws, calls)
    thinning = calls // draws
    spent = once + warmup * in_warmup + draws * thinning * call
    return Plan(warmup, draws, thinning, trained + size.chains * spent)


def kernels(
    model: Callable, step: float, scale: float, batch_size: int, cycle_length: int, leapfrogs: int
) -> dict[str, Any]:
    """Samplers by name, with steps that are stable where that of HMC is.

    Momentum methods take h, half the leapfrog step, and SGLD ε = 2h², as far as they go without
    momentum. The metric is at most 1 / EPS: with h √EPS it is stable as well. MCLMC, BAOAB with SVRG and
    AMAGOLD find their own steps in warm-up, HMC begins with that of the reference and adapts it.
    """
    h, friction = step / 2, 1 / (MEMORY * math.pi / 2 * scale)
    cycle = functools.partial(schedules.cyclical, cycle_length=cycle_length, exploration=0.5)
    some = {"batch_size": batch_size}
    return {
        EQUAL: _short(model, step, leapfrogs),
        "SGLD": bnn.SGLD(model, step_size=2 * h**2, **some),
        "SGHMC": bnn.SGHMC(model, step_size=h, friction=friction, **some),
        "cyclical SGHMC": bnn.SGHMC(model, step_size=cycle(2 * h), friction=friction, **some),
        "preconditioned cyclical SGHMC": bnn.SGHMC(
            model,
            step_size=cycle(2 * h * EPS**0.5),
            friction=friction / EPS**0.5,
            preconditioner=preconditioners.rmsprop(eps=EPS),
            **some,
        ),
        "BAOAB": bnn.BAOAB(model, step_size=h, friction=friction, **some),
        SVRG: bnn.BAOAB(
            model,
            step_size="auto",
            gradient=gradients.svrg(batch_size, order="replacement"),
            gradient_noise="auto",
        ),
        "AMAGOLD": bnn.AMAGOLD(model, step_size="auto", friction=friction, num_steps=10, **some),
        "MCLMC": bnn.MCLMC(model),
    }


def sampler_run(case: Case, method: str, seed: int) -> tuple[bnn.MCMC, float]:
    """Draws of a sampler, and its passes over all rows."""
    known, batch_size = hmc_run(case, 0), case.setting.batch
    model, (x, y, *_) = given(case)
    size, share = case.size, batch_size / len(y)
    chain = size.passes / size.chains - size.training
    length = max(1, min(round(known.leapfrogs), int(chain / TRAJECTORIES)))
    planned = plan(method, size, share, length)
    steps = planned.draws * planned.thinning * 2
    kernel = kernels(model, known.step, case.scale, batch_size, max(2, steps // 10), length)[method]
    mcmc = sampled(
        kernel,
        jax.random.key(10 + seed),
        x,
        y,
        starts=begun(case, seed),
        num_warmup=planned.warmup,
        num_samples=planned.draws,
        thinning=planned.thinning,
    )
    return mcmc, planned.passes


def optimised(case: Case, method: str, seed: int) -> tuple[Any, float]:
    """Draws of a method that optimises, and its passes over all rows."""
    size, batch_size = case.size, case.setting.batch
    model, (x, y, *_) = given(case)
    run = {
        "SGD": bnn.map_estimate,
        "deep ensemble": functools.partial(bnn.deep_ensemble, num_members=size.members),
        "mean field": functools.partial(bnn.mean_field, num_samples=4 * size.draws),
    }[method]
    networks = size.members if method == "deep ensemble" else 1
    if method == "mean field":
        batch_size = min(len(y), LARGER * batch_size)
    num_steps = int(size.passes / networks * len(y) / batch_size)
    options = {"num_steps": num_steps, "batch_size": batch_size, "progress_bar": False}
    if method != "mean field":
        rate = optax.cosine_decay_schedule(0.005 / len(y), num_steps)
        options |= {"optimizer": optax.sgd(rate, momentum=0.9), "tolerance": -np.inf}
    found = run(model, jax.random.key(20 + seed), x, y, **options)
    return found, found.info.get("gradients", networks * num_steps * batch_size / len(y))
