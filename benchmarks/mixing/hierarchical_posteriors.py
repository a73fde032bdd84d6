"""Hierarchical posteriors that are hard to sample, and ways to sample them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer import HMC, NUTS
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks._shared.sampled_runs import starts
from benchmarks.neal import posteriors, tempering
from numpyro_bnn import moves
from numpyro_bnn.diagnostics import summarize

CHAINS = 4
# Of hidden layers, in the name of a table.
FOUR_LAYERS = ", four layers"
# The output layer integrated out, everything else non-centred as it is: for Gaussian noise.
INTEGRATED = "output layer integrated out"


class Method(NamedTuple):
    """How to sample: coordinates, a kernel, moves between its steps, and its gradients a step."""

    coordinates: str
    # Of the model in those coordinates and of the steps of a long trajectory
    kernel: Callable[[Callable, int], Any]
    moves: bool = False
    # Gradients a step as a share of those; None where the run counts them
    fixed: float | None = None
    apart: int = 1  # trajectories between draws, in runs that are judged piece by piece


def nuts(target: float, depth: int = 8) -> Callable:
    return lambda model, steps: NUTS(model, max_tree_depth=depth, target_accept_prob=target)


def hmc(model: Callable, steps: int) -> HMC:
    return HMC(model, num_steps=steps, trajectory_length=None, target_accept_prob=0.9)


def ladder(model: Callable, steps: int) -> bnn.ParallelTempering:
    return bnn.ParallelTempering(model, hmc(model, steps), num_rungs=max(4, steps // 3))


def long_hmc(model: Callable, steps: int) -> HMC:
    return HMC(model, num_steps=5 * steps, trajectory_length=None)


def neal(model: Callable, steps: int) -> Any:
    return bnn.neal(model, num_steps=steps, window=max(1, min(10, steps // 2)))


METHODS = {
    "NUTS, non-centred": Method("noncentered", nuts(0.95)),
    "Gibbs, HMC": Method("centered", neal, fixed=1.0),
    "MAMS, non-centred": Method("noncentered", lambda model, _: bnn.MAMS(model)),
    "NUTS, non-centred, accepting 0.8": Method("noncentered", nuts(0.8)),
    "NUTS, non-centred, moves": Method("noncentered", nuts(0.95), moves=True),
    "NUTS, centred": Method("centered", nuts(0.95)),
    "NUTS, collapsed": Method("collapsed", nuts(0.95)),
    "HMC, non-centred": Method("noncentered", hmc, fixed=1.0),
    "HMC, non-centred, moves": Method("noncentered", hmc, moves=True, fixed=1.0),
    "NUTS, non-centred, depth 10, moves": Method("noncentered", nuts(0.9, 10), moves=True),
    "HMC, non-centred, long, moves": Method("noncentered", long_hmc, moves=True, fixed=5.0),
    "HMC, collapsed, long": Method("collapsed", long_hmc, fixed=5.0),
    "Gibbs, HMC, moves": Method("centered", neal, moves=True, fixed=1.0),
    "MAMS, collapsed": Method("collapsed", lambda model, _: bnn.MAMS(model)),
    "MCLMC, non-centred": Method("noncentered", lambda model, _: bnn.MCLMC(model), fixed=0.0),
    "MCLMC, collapsed": Method("collapsed", lambda model, _: bnn.MCLMC(model), fixed=0.0),
    "MCLMC, non-centred, small steps": Method(
        "noncentered", lambda model, _: bnn.MCLMC(model, energy_variance=1e-5), fixed=0.0
    ),
    "tempering, HMC, non-centred": Method("noncentered", ladder),
    "MCLMC, output integrated out": Method(
        INTEGRATED, lambda model, _: bnn.MCLMC(model), fixed=0.0
    ),
    "MAMS, output integrated out": Method(INTEGRATED, lambda model, _: bnn.MAMS(model), apart=5),
    "MALA, non-centred": Method(
        "noncentered", lambda model, _: bnn.MALA(model, step_size="auto"), fixed=0.0
    ),
}


class Posterior(NamedTuple):
    """A model, its data and the layers whose relu units can be rescaled."""

    model: Callable
    split: data_sets.Split
    relu_layers: int


@functools.cache
def posterior(folder: Any, name: str, rows: int, split: int = 0) -> Posterior:
    """One of the posteriors, with at most so many rows (0: all); tables have two hidden layers, or four."""
    if name == "rdata":
        parts = posteriors.data_of("rdata", posteriors.SHARED)
        return Posterior(posteriors.model_of("rdata", MLPByFeatures), data_sets.Split(*parts), 0)
    if name == "digits":
        digits = load_digits()
        x = (digits.data / 16).astype(np.float32)
        given = train_test_split(x, digits.target, test_size=0.2, random_state=0)
        x, x_test, y, y_test = given
        model = bnn.classification(
            MLPByFeatures((16,), 10), bnn.priors.Hierarchical(1.0, 1.0), x, y
        )
        return Posterior(model, data_sets.Split(x, y, x_test, y_test), 0)
    of_table = name.removesuffix(FOUR_LAYERS)
    layers = 2 if name == of_table else 4
    source = "uci" if of_table == "boston" else "mile"
    width = functools.partial(bnn.priors.Hierarchical.width, 1.0, group=0.5)
    prior = bnn.priors.ByPath({"*.bias": width(), "*.kernel": width(scale_by_fan_in=True)})
    noise = bnn.likelihoods.Precision.width(0.1, common=0.5)

    def model(x: Any, y: Any = None) -> None:
        network = MLPByFeatures((16,) * layers, 1, jax.nn.relu)
        net = bnn.random_module("net", network, prior, x[:1])
        bnn.likelihoods.gaussian(lambda some: net(some).squeeze(-1), y, x=x, noise=noise)

    values = data_sets.table(folder, of_table, source)
    return Posterior(model, standardised(*values, rows, split), layers)


def standardised(x: np.ndarray, y: np.ndarray, rows: int, split: int) -> data_sets.Split:
    """Four fifths of a table, or `rows` of them, to learn from, in units of their own."""
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=split)
    x, y = x[: rows or None], y[: rows or None]
    units = [(part.mean(0), np.where(part.std(0) > 0, part.std(0), 1.0)) for part in (x, y)]
    parts = ((x, 0), (y, 1), (x_test, 0), (y_test, 1))
    return data_sets.Split(*(np.float32((p - units[i][0]) / units[i][1]) for p, i in parts))


def in_coordinates(model: Callable, coordinates: str) -> Callable:
    """The model in coordinates of `parameterize`, or with its output layer integrated out."""
    if coordinates == INTEGRATED:
        return bnn.integrate_output(model)
    return bnn.parameterize(model, coordinates)


def begin_at(
    given: Posterior, coordinates: str, seed: int, num_steps: int, num_chains: int = CHAINS
) -> dict[str, Any]:
    """Starts of all chains at optima; an integrated layer has none, it is drawn."""
    found = starts(given.model, given.split, seed, num_chains, num_steps)
    if coordinates != INTEGRATED:
        return found
    model = in_coordinates(given.model, coordinates)
    latent = bnn.potential_of(model, given.split.x, given.split.y).structure.latent
    return {name: value for name, value in found.items() if name in latent}


def kernel_of(method: Method, given: Posterior, steps: int) -> Any:
    """The kernel, with moves after each of its steps where the method has them."""
    kernel = method.kernel(in_coordinates(given.model, method.coordinates), steps)
    if not method.moves:
        return kernel
    layer = "net/Dense_{}.{}".format
    rescalings = [
        moves.UnitRescaling(layer(i, "kernel"), layer(i + 1, "kernel"), [layer(i, "bias")])
        for i in range(given.relu_layers)
    ]
    between = [moves.RidgeScaling(), moves.PrecisionRedraw(), *rescalings]
    return moves.Interleaved(kernel, between)


def gradients_of(mcmc: bnn.MCMC) -> float:
    """Gradients a step of a chain, by what a run kept; of all rungs where there is a ladder."""
    if isinstance(mcmc.sampler, bnn.ParallelTempering):
        return float(tempering.steps_of(mcmc).sum(1).mean())
    return float(np.mean(mcmc.get_extra_fields()["num_steps"]))


LADDER = ("barrier", "round_trips", "round_trips_at_best", "move_correlations")


def numbers(values: Any) -> str:
    """Several numbers in one cell of a table."""
    return " ".join(f"{v:.4g}" for v in values)


def ladder_columns(found: Any, sweeps: int) -> dict[str, Any]:
    """What moves and swaps of all replicas of a ladder did in so many sweeps."""
    return {
        "barrier": float(found.barrier.mean()),
        "round_trips": int(found.round_trips.sum()),
        # If every move drew a new state of its rung: Syed et al. 2022, *JRSS B* 84(2).
        "round_trips_at_best": float((1 / (2 + 2 * found.barrier)).sum() * sweeps),
        "move_correlations": numbers(found.move_correlations.mean(0)),
    }


def rhat_columns(functions: np.ndarray, precisions: np.ndarray) -> dict[str, float]:
    """Worst and median R-hat of functions and worst of log precisions, each (chain, draw, scalar)."""
    of_functions = summarize(functions, tail=False).rhat
    return {
        "functions_max_rhat": float(np.nanmax(of_functions)),
        "functions_median_rhat": float(np.nanmedian(of_functions)),
        "precisions_max_rhat": float(np.nanmax(summarize(precisions, tail=False).rhat)),
    }


def functions(values: Any) -> np.ndarray:
    """Log probabilities or means, (chain, draw, scalar)."""
    if "probs" in values:
        shown = np.log(np.maximum(np.asarray(values["probs"], np.float64), 1e-30))
    else:
        shown = np.asarray(values["mean"], np.float64)
    return shown.reshape(*shown.shape[:2], -1)


def log_precisions(draws: dict[str, Any]) -> np.ndarray:
    """Of all groups and levels, (chain, draw, scalar)."""
    found = [np.asarray(v, np.float64) for name, v in draws.items() if name.endswith("precision")]
    return np.log(np.concatenate([v.reshape(*v.shape[:2], -1) for v in found], -1))
