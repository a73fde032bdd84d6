"""Under which prior does the posterior average fail under covariate shift, and is its reason the one given?

The reason given is that weights that see no data keep the spread of the prior in the posterior and are zero
at MAP: stored are weights of dead pixels, of others and along null components, over their spread under the
prior.

    python -m benchmarks.predictions.shift_by_prior [--quick | --toy]

Minutes on a GPU (with ``JAX_DEFAULT_MATMUL_PRECISION=highest``), hours on a processor. Source: Izmailov,
Nicholson, Lotfi and Wilson (2021, *Dangers of Bayesian model averaging under covariate shift*).
"""

from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.mnist_posteriors import component_root, convergence
from benchmarks._shared.study import Results, Row, Study, parser
from benchmarks.predictions import shift_by_prior_words as words
from benchmarks.predictions.corruptions import null_and_first, shifts
from benchmarks.predictions.shift_by_prior_words import (
    EMPCOV,
    ENSEMBLE,
    KEYS,
    MAP,
    POSTERIOR,
    TEN,
    ByImage,
)
from benchmarks.priors import common_step_hmc as hmc
from numpyro_bnn import priors

HIDDEN, CLASSES = 50, 10
# The scale of N(0, α²) whose functions vary as much as those of EmpCov.
EMPCOV_SCALE = 0.3
FIRST_STEP = 0.01
# Test images whose class probabilities are judged for convergence.
JUDGED = 500


class Size(NamedTuple):
    """What is run."""

    subsets: tuple[tuple[int, int], ...]  # numbers of training images, and how many subsets of each
    priors: tuple[float | str, ...]  # α of N(0, α²), or EmpCov
    tests: int  # test images
    chains: int  # of HMC, and networks of the ensemble
    trajectories: tuple[int, int, int]  # of HMC: short ones, warm-up and draws of a quarter turn
    training: int  # steps of Adam


ALL_PRIORS = (0.1, 0.3, 1.0, EMPCOV)
SIZES = {
    "full": Size(((3000, 2), (10_000, 1)), ALL_PRIORS, 2000, 10, (80, 15, 40), 2000),
    "quick": Size(((300, 1),), (0.1, EMPCOV), 200, 4, (40, 5, 10), 300),
    "toy": Size(((40, 1),), (0.3, EMPCOV), 20, 2, (10, 2, 4), 20),
}


class Inputs(NamedTuple):
    """What the first layer sees of images: ``(images - shift) @ root``, its weights N(0, 1)."""

    shift: np.ndarray
    root: np.ndarray

    def of(self, images: np.ndarray) -> np.ndarray:
        return (images - self.shift).astype(np.float32) @ self.root.astype(np.float32)


def inputs_under(prior: float | str, x: np.ndarray) -> Inputs:
    """The prior of the weights of the pixels, as a root of its covariance."""
    pixels = x.shape[1]
    if prior != EMPCOV:
        return Inputs(np.zeros(pixels), float(prior) * np.eye(pixels))
    shift = x.mean(0, dtype=np.float64)
    return Inputs(shift, component_root(x - shift, EMPCOV_SCALE))


PRIOR = priors.ByPath({"Dense_1.kernel": priors.FanIn(2.0), "*": priors.Normal(1.0)})


@cache
def module_of(units: int) -> Any:
    return bnn.MLP([units], CLASSES, jax.nn.relu)


@cache
def model_of(units: int) -> Callable:
    """The model of a network with that many hidden units."""

    def model(x: Any, y: Any = None) -> None:
        net = bnn.random_module("net", module_of(units), PRIOR, x[:1])
        bnn.likelihoods.categorical(net, y, x=x)

    return model


@cache
def full_batch(lengths: tuple[int, int, int], units: int) -> Callable:
    """A run of HMC, a function of a key, starts and data."""

    def run(key: Any, begin: Any, x: Any, y: Any) -> hmc.Found:
        energy = bnn.potential_of(model_of(units), x, y)
        return hmc.sample(energy, key, begin, *lengths, FIRST_STEP)

    return jax.jit(run)


@jax.jit
def log_probs(w: Any, x: Any) -> jax.Array:
    """Log class probabilities of draws (chain, draw, …), (chain, draw, image, class)."""
    module = module_of(w["net/Dense_0.bias"].shape[-1])

    def one(w: Any) -> jax.Array:
        return jax.nn.log_softmax(module.apply({"params": bnn.to_params(w)}, x))

    return jax.vmap(jax.vmap(one))(w)


@jax.jit
def log_averages(w: Any, x: Any) -> jax.Array:
    """Log of the class probabilities averaged over the draws of each chain, (chain, image, class)."""
    logs = log_probs(w, x)
    return logsumexp(logs, 1) - jnp.log(logs.shape[1])


@lru_cache(maxsize=1)
def images_of(
    folder: Path | None, rows: int, tests: int, subset: int
) -> tuple[data_sets.Split, dict[str, list[np.ndarray]]]:
    """A subset of the training images, and the test images, which all share, by kind at each severity."""
    train, test = (
        data_sets.mnist(folder, n, m, seed=s) for n, m, s in ((rows, 1, subset), (1, tests, 0))
    )
    data = data_sets.Split(train.x, train.y, test.x_test, test.y_test)
    return data, {"none": [data.x_test]} | dict(shifts(data))


def sizes_of(w: Any, inputs: Inputs, dead: np.ndarray, null: np.ndarray) -> Row:
    """Root mean square weights of dead and of live pixels and along null components, over the prior's."""
    kernels = np.asarray(w["net/Dense_0.kernel"], np.float64)
    kernels = kernels.reshape(-1, *kernels.shape[-2:])
    weights = inputs.root @ kernels
    spread = np.sqrt((inputs.root**2).sum(1))[None, :, None]
    along = null @ weights / np.sqrt(((null @ inputs.root) ** 2).sum(1))[None, :, None]

    def size(values: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0

    scaled = weights / spread
    return {
        "dead weights": size(scaled[:, dead]),
        "live weights": size(scaled[:, ~dead]),
        "null weights": size(along),
    }


class Fitted(NamedTuple):
    """What came of one training set and prior."""

    inputs: Inputs  # what the first layer sees
    networks: dict[str, Any]  # by method, weights by site, (chain, draw, …)
    facts: Row  # of the run of HMC


def fitted(
    data: data_sets.Split, subset: int, prior: float | str, *, size: Size, units: int = HIDDEN
) -> Fitted:
    """MAP, the ensemble and the posterior."""
    inputs = inputs_under(prior, data.x)
    x = inputs.of(data.x)
    begin = bnn.optimize(
        model_of(units),
        jax.random.key(subset),
        x,
        data.y,
        num_chains=size.chains,
        num_steps=size.training,
        # Weights without data must have the time to reach their mode.
        tolerance=0.0,
        progress_bar=False,
    )
    run = full_batch(size.trajectories, units)(jax.random.key(1000 + subset), begin, x, data.y)
    draws = {name: jnp.swapaxes(v, 0, 1) for name, v in run.draws.items()}
    members = {name: v[:, None] for name, v in begin.items()}
    networks = {
        MAP: {name: v[:1] for name, v in members.items()},
        ENSEMBLE: members,
        POSTERIOR: draws,
        TEN: {name: v[:, -1:] for name, v in draws.items()},
    }
    shown = np.exp(log_probs(draws, inputs.of(data.x_test[:JUDGED])))
    facts = {
        "accepted": float(run.accept),
        "step size": float(run.step_size),
        "leapfrogs": float(run.leapfrogs),
        "gradients": int(run.spent),
        **convergence(shown),
    }
    return Fitted(inputs, networks, facts)


def scores_of(found: Fitted, severities: list[np.ndarray], y: np.ndarray) -> dict[str, ByImage]:
    """Of each method, means over severities of the same images."""
    seen = [found.inputs.of(one) for one in severities]
    return {
        method: words.by_image([np.asarray(log_averages(w, one), np.float64) for one in seen], y)
        for method, w in found.networks.items()
    }


def cell(
    rows: int, subset: int, prior: float | str, *, size: Size, folder: Path | None
) -> Iterator[Row]:
    """MAP, the ensemble and the posterior on every shift, a row each for the mean over severities."""
    data, images = images_of(folder, rows, size.tests, subset)
    inputs, networks, facts = run = fitted(data, subset, prior, size=size)
    unseen = data.x.max(0) == 0, null_and_first(data.x)[0]
    sizes = {method: sizes_of(w, inputs, *unseen) for method, w in networks.items()}
    for kind, severities in images.items():
        found = scores_of(run, severities, data.y_test)
        for method, own in found.items():
            yield {
                "method": method,
                "kind": kind,
                "error": float(own.wrong.mean()),
                "log score": float(own.scores.mean()),
                **words.beyond(own, found[MAP], "MAP"),
                **words.beyond(own, found[ENSEMBLE], "ensemble"),
                **sizes[method],
                **facts,
            }


def main(argv: list[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    size = SIZES[given.size]
    study = Study(__file__, KEYS, given)
    cells = [
        {"rows": rows, "subset": subset, "prior": prior}
        for rows, subsets in size.subsets
        for subset in range(subsets)
        for prior in size.priors
    ]
    study.run(cells, partial(cell, size=size, folder=given.data))
    beyond_map = words.beside(study.rows, words.MAP)
    study.publish(beyond_map, words.findings(study.rows), lambda: words.picture(study.rows))
    for name, method in (("ensemble", words.POSTERIOR), ("ten_draws", words.TEN)):
        table = words.beside(study.rows, words.ENSEMBLE, method)
        Results(__file__, given, name).report(table)


if __name__ == "__main__":
    main()
