"""Runs of `mnist_gibbs_verdict`: a network with four precisions, where its chains begin, and who samples it.

A 784-100-10 softmax network (or 784-100-2) with a sigmoid hidden layer. Each of its four groups of weights
(two kernels, two biases) is N(0, 1/λ) with λ ~ Gamma(α, β), α = β = 1.
"""

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.sampled_runs import sampler
from numpyro_bnn import moves, priors

CONCENTRATION = RATE = 1.0
CHAINS = 2
LAYERS = ("Dense_0.kernel", "Dense_0.bias", "Dense_1.kernel", "Dense_1.bias")
SGHMC_BATCH = 500
# What a learning rate of 0.1 for the mean loss, with a momentum coefficient of 0.9, amounts to.
LEARNING_RATE, DAMPING = 0.1, 0.1
NON_CENTRED = "HMC, non-centred, moves"
GIBBS_HMC = "Gibbs, HMC"
COLLAPSED = "HMC, collapsed"
GIBBS_SGHMC = "Gibbs, SGHMC"
METHODS = (NON_CENTRED, GIBBS_HMC, COLLAPSED, GIBBS_SGHMC)
START_KINDS = TRAINED, OPTIMIZE = "trained under N(0, 1)", "optimize"


class Task(NamedTuple):
    """Which digits, rows and test rows at most, hidden units, and how much is computed."""

    digits: tuple[int, ...]
    rows: int
    tests: int
    hidden: int
    gradients: int  # passes over the rows a chain, warm-up (a third) included
    long: int  # those of the run that methods are compared with
    leapfrogs: int  # of a trajectory
    training: int  # steps of Adam for a start


class Pace(NamedTuple):
    """Steps of the kernel in warm-up, draws that are kept, steps to a draw, and gradients a step."""

    warmup: int
    draws: int
    thinning: int
    gradients: float


class Draws(NamedTuple):
    """What is kept of a run."""

    # By name, (chain, draw, …): test probabilities, precisions, their conditional means
    found: dict[str, np.ndarray]
    # Acceptance, step size, time of a trajectory and temperatures of momenta; empty where a method has none
    facts: dict[str, Any]


def network(task: Task) -> Any:
    return bnn.MLP([task.hidden], len(task.digits), jax.nn.sigmoid)


def model_of(task: Task, prior: Any = None) -> Callable:
    """The model; by default with precisions."""
    chosen = prior or priors.Hierarchical(CONCENTRATION, RATE)

    def model(x: Any, y: Any = None) -> None:
        net = bnn.random_module("net", network(task), chosen, x[:1])
        bnn.likelihoods.categorical(net, y, x=x)

    return model


def load(task: Task, folder: Path | None) -> data_sets.Split:
    return data_sets.mnist(folder, task.rows, task.tests, digits=task.digits)


def conditional_mean(squares: Any, count: int) -> Any:
    """Mean of λ | w ~ Gamma(α + n/2, β + |w|²/2), from the sum of squares of n weights."""
    return (CONCENTRATION + count / 2) / (RATE + squares / 2)


def starts_at(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Unconstrained values of all sites: weights (chain, …), precisions at their conditional means."""
    made = {}
    for name, value in weights.items():
        squares = (value**2).reshape(len(value), -1).sum(1)
        precision = conditional_mean(squares, value[0].size)
        made[f"{name}.precision"] = jnp.log(precision)
        shape = (-1,) + (1,) * (value.ndim - 1)
        made[f"{name}.base"] = value * jnp.sqrt(precision).reshape(shape)
    return made


@functools.cache
def trained(
    task: Task, folder: Path | None, start: str = TRAINED, chains: int = CHAINS
) -> dict[str, Any]:
    """Weights at which chains begin: a mode under N(0, 1), or what `bnn.optimize` makes of precisions."""
    data = load(task, folder)
    prior = priors.Normal(1.0) if start == TRAINED else None
    model = model_of(task, prior)
    found = bnn.optimize(
        model,
        jax.random.key(0),
        data.x,
        data.y,
        num_chains=chains,
        num_steps=task.training,
        tolerance=0.0,
        progress_bar=False,
    )
    potential = bnn.potential_of(model, data.x, data.y)
    values = jax.vmap(lambda z: potential.constrain(z, deterministic=True))(found)
    return {f"net/{layer}": values[f"net/{layer}"] for layer in LAYERS}


def kernel(method: str, task: Task, rows: int) -> Any:
    """The kernel of a method."""
    model = model_of(task)
    hmc = {"step_size": "auto", "num_steps": task.leapfrogs, "window": 1}
    if method == NON_CENTRED:
        inner = bnn.WindowedHMC(bnn.parameterize(model, "noncentered"), **hmc)
        return moves.Interleaved(inner, [moves.RidgeScaling(), moves.PrecisionRedraw()])
    if method == COLLAPSED:
        return bnn.WindowedHMC(bnn.parameterize(model, "collapsed"), **hmc)
    if method == GIBBS_HMC:
        return bnn.neal(model, **hmc)
    step = math.sqrt(LEARNING_RATE / rows)
    batch = min(SGHMC_BATCH, rows)
    friction = DAMPING / step
    return bnn.neal(model, bnn.SGHMC, step_size=step, friction=friction, batch_size=batch)


def pace(method: str, task: Task, rows: int) -> Pace:
    """How long a method runs: trajectories with what they cost beside leapfrogs, or steps of minibatches."""
    if method == GIBBS_SGHMC:
        # Two gradients a step; stored rows are of one, from before a step ended with its own half kick.
        each = 2 * min(SGHMC_BATCH, rows) / rows
    else:
        # Precisions or moves change the gradient; five energies of moves cost about two gradients.
        beside = {COLLAPSED: 0, GIBBS_HMC: 1}.get(method, 3)
        each = float(task.leapfrogs + beside)
    steps = int(task.gradients / each)
    warmup = steps // 3
    # As many draws as trajectories of a run on all rows.
    thinning = 1 if each >= 1 else max(1, round(task.leapfrogs / each))
    return Pace(warmup, (steps - warmup) // thinning, thinning, each)


def recorder(task: Task, x_test: np.ndarray) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What is kept of a draw: test probabilities, precisions and their conditional means."""
    net = network(task)

    def record(sites: Mapping[str, Any]) -> dict[str, Any]:
        weights = {f"net/{layer}": sites[f"net/{layer}"] for layer in LAYERS}
        logits = net.apply({"params": bnn.to_params(weights)}, x_test)
        kept = {"probs": jax.nn.softmax(logits)}
        for layer in LAYERS:
            site = sites[f"net/{layer}"]
            if f"net/{layer}.precision" in sites:
                kept[f"λ {layer}"] = sites[f"net/{layer}.precision"]
            kept[f"mean {layer}"] = conditional_mean((site**2).sum(), site.size)
        return kept

    return record


FIELDS = ("accept_prob", "step_size", "kinetic_temperature", "gradient_temperature")
# A run of which nothing is known but its draws.
NO_FACTS = {name.replace("_", " "): "" for name in FIELDS} | {"time": ""}


def facts_of(mcmc: bnn.MCMC, method: str, task: Task) -> dict[str, Any]:
    """Means of what a kernel tells of its steps; empty where it does not."""
    extra: Mapping[str, Any] = mcmc.get_extra_fields()
    if "block_states" in extra:
        state = extra["block_states"][1]
        extra = {name: getattr(state, name) for name in FIELDS}
    found: dict[str, Any] = dict.fromkeys(FIELDS, "")
    for name in FIELDS:
        if name in extra and np.isfinite(mean := float(np.mean(extra[name]))):
            found[name] = mean
    length: Any = ""
    if method == GIBBS_SGHMC:
        found["accept_prob"] = ""
    else:
        length = task.leapfrogs * found["step_size"]
    return {name.replace("_", " "): value for name, value in found.items()} | {"time": length}


def run(task: Task, method: str, data: data_sets.Split, weights: Mapping[str, Any]) -> Draws:
    """One method from given weights, a chain each."""
    rows = len(data.x)
    chosen = pace(method, task, rows)
    start = starts_at({name: jnp.asarray(value) for name, value in weights.items()})
    mcmc = sampler(
        kernel(method, task, rows),
        CHAINS,
        *chosen[:3],
        chain_method="sequential",
        record=recorder(task, data.x_test),
    )
    gibbs = method in (GIBBS_HMC, GIBBS_SGHMC)
    fields = ("block_states",) if gibbs else FIELDS
    mcmc.run(jax.random.key(1), data.x, data.y, init_params=start, extra_fields=fields)
    found = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    return Draws(found, facts_of(mcmc, method, task))


def start_alone(
    task: Task, data: data_sets.Split, weights: Mapping[str, Any]
) -> tuple[Draws, Pace]:
    """Starts as chains of one draw."""
    record = recorder(task, data.x_test)
    kept = jax.vmap(record)({name: jnp.asarray(value) for name, value in weights.items()})
    found = {k: np.asarray(v)[:, None] for k, v in kept.items()}
    return Draws(found, dict(NO_FACTS)), Pace(task.training, 1, 0, 1.0)
