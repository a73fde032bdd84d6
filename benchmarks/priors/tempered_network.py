"""A 196-32-10 relu network on small images: its tempered posterior, its draws, its trained copies.

Density proportional to exp(-U/T), with U = -log p(y | x, w) - log p(w). Sampled are standard coordinates u,
normal with variance 1 under the prior at every temperature:

- prior N(0, α²): w = α √T u, and the likelihood counts 1/T.
- hierarchical, a precision τ ~ Gamma(1, 1) for each of the four arrays: w = √(T/τ) u. The density over
  (log τ, √T u) to the power 1/T gives τ ~ Gamma(1/T, 1/T). These are the non-centred coordinates: in others
  the power means another posterior, because their volumes differ by a power of τ.

So a quarter turn of the prior, π α √T / 2 in w, is π/2 in u for every cell, and one program serves all α
and T.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.handlers import scale

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import mnist

HIDDEN, CLASSES = 32, 10
SHAPES = {
    "Dense_0.kernel": (196, HIDDEN),
    "Dense_0.bias": (HIDDEN,),
    "Dense_1.kernel": (HIDDEN, CLASSES),
    "Dense_1.bias": (CLASSES,),
}
HIERARCHICAL = "hierarchical"
# Where an image may be with shifts, by the corner of its cut from a frame of one pixel more: as it is, and
# moved by one pixel down, up, right and left.
PLACES = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
MODULE = bnn.MLP([HIDDEN], CLASSES, jax.nn.relu)


class Rows(NamedTuple):
    """Images averaged two by two, (rows, 196), and their classes; test rows are those of all subsets."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def pooled(images: Any) -> jax.Array:
    """Means of two by two pixels: (rows, 784) to (rows, 196)."""
    return jnp.asarray(images).reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)


@cache
def images(folder: Path | None, num_rows: int, num_test: int, subset: int) -> Rows:
    """A subset of MNIST; smaller subsets of the same number are part of larger ones."""
    train, test = mnist(folder, num_rows, 1, seed=subset), mnist(folder, 1, num_test, seed=0)
    x, x_test = np.asarray(pooled(train.x)), np.asarray(pooled(test.x_test))
    return Rows(x, train.y, x_test, test.y_test)


def with_shifts(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images (rows, 196) at one of :data:`PLACES` after the other, zeros coming in, and their classes."""
    wide = np.pad(x.reshape(-1, 14, 14), ((0, 0), (1, 1), (1, 1)))
    moved = [wide[:, i : i + 14, j : j + 14].reshape(len(x), -1) for i, j in PLACES]
    return np.concatenate(moved), np.tile(y, len(PLACES))


def weights(u: Mapping[str, Any], spread: Any) -> dict[str, Any]:
    """Weights by path from standard coordinates; `spread` is α √T, or √T, which precisions divide."""
    found = {}
    for path, shape in SHAPES.items():
        value, precision = u[f"net/{path}"], u.get(f"net/{path}.precision")
        if precision is not None:
            spread_here = spread / jnp.sqrt(precision)
            value = value * spread_here.reshape(spread_here.shape + (1,) * len(shape))
        else:
            value = value * spread
        found[path] = value
    return found


def logits(w: Mapping[str, Any], x: Any) -> jax.Array:
    """Logits of rows (rows, 196) under one set of weights: (rows, class)."""
    hidden = jax.nn.relu(x @ w["Dense_0.kernel"] + w["Dense_0.bias"])
    return hidden @ w["Dense_1.kernel"] + w["Dense_1.bias"]


def tempered(hierarchical: bool) -> Callable:
    """The posterior at a temperature, of which a row counts a share of one; see the module."""

    def model(x, y=None, alpha=1.0, temperature=1.0, share=1.0):
        u = {}
        for path, shape in SHAPES.items():
            site = f"net/{path}"
            if hierarchical:
                power = jnp.asarray(1 / temperature)
                u[f"{site}.precision"] = numpyro.sample(
                    f"{site}.precision", dist.Gamma(power, power)
                )
            u[site] = numpyro.sample(site, dist.Normal().expand(shape).to_event(len(shape)))
        spread = jnp.sqrt(temperature) * (1.0 if hierarchical else alpha)
        with numpyro.plate("data", len(x)) as rows, scale(scale=share / temperature):
            given = None if y is None else jnp.asarray(y)[rows]
            here = logits(weights(u, spread), jnp.asarray(x)[rows])
            numpyro.sample("y", dist.Categorical(logits=here), obs=given)

    return model


def trainable(x, y=None, alpha=1.0, share=1.0):
    """The posterior at T = 1 with prior N(0, α²), in weights: its modes are networks with weight decay."""
    net = bnn.random_module("net", MODULE, bnn.priors.Normal(alpha), x[:1])
    with scale(scale=share):
        bnn.likelihoods.categorical(net, y, x=x)


def trained(
    x: np.ndarray, y: np.ndarray, share: float, alpha: float, num: int, steps: int, key: Any
) -> Any:
    """Weights (member, …) by path of networks trained with weight decay 1/α², by Adam with falling steps."""
    found = bnn.optimize(
        trainable,
        key,
        x,
        y,
        jnp.float32(alpha),
        jnp.float32(share),
        num_chains=num,
        num_steps=steps,
        optimizer=_optimizer(steps),
        batch_size=min(200, len(x)),
        tolerance=0.0,
        progress_bar=False,
    )
    return {path: found[f"net/{path}"] for path in SHAPES}


@cache
def _optimizer(steps: int) -> optax.GradientTransformation:
    """The optimiser, one object for all trainings of this length, so that they share a program."""
    return optax.adam(optax.cosine_decay_schedule(0.01, steps))


def start(w: Mapping[str, Any], alpha: float, temperature: float, hierarchical: bool) -> Any:
    """Unconstrained standard coordinates of trained networks (chain, …); precisions begin at 1/α²."""
    u = {f"net/{path}": value / (alpha * math.sqrt(temperature)) for path, value in w.items()}
    if hierarchical:
        chains = len(next(iter(w.values())))
        u |= {f"net/{path}.precision": jnp.full(chains, -2 * math.log(alpha)) for path in w}
    return u


@jax.jit
def _log_prob(w, x):
    return jax.vmap(lambda one: jax.nn.log_softmax(logits(one, x)))(w)


def probabilities(w: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """Class probabilities by chain and draw: weights (chain, draw, …) to (chain, draw, row, class)."""
    by_chain = ({k: v[c] for k, v in w.items()} for c in range(_chains(w)))
    # In double precision, in which no probability of a saturated network is zero.
    return np.stack([np.exp(np.asarray(_log_prob(one, x), np.float64)) for one in by_chain])


def _chains(w: Mapping[str, Any]) -> int:
    return len(next(iter(w.values())))
