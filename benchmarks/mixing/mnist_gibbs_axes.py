"""The posterior of `mnist_gibbs_verdict` along axes that images share with an input that is always 1.

A bias is the weight of such an input. Beside images, which have a mean, it says nearly what the weights along
the mean image say. A metric that is diagonal in pixels, or in axes of the images alone, does not see that:
then biases hardly move. Here the standardised weights of a hidden unit and its standardised bias are

    (bias, weights) √precision = R a,    a ~ N(0, I),

with R the principal axes of (ρ, image), ρ about the ratio of the scales of biases and weights. R is a
rotation, so prior and posterior are the same, whatever ρ is.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks.mixing.mnist_gibbs_methods import (
    CONCENTRATION,
    LAYERS,
    RATE,
    Draws,
    Pace,
    Task,
    conditional_mean,
)
from numpyro_bnn import moves, preconditioners

METHOD = "HMC, non-centred, moves, shared axes"
# Of biases over that of weights: 3 over 0.4.
RATIO = 7.0
# Of the metric: what a row tells of a weight along an axis in which rows have length 1.
STRENGTH = 0.02
# Standard deviation of a proposed step in the logarithm of a precision, its weights following.
STEP = 0.6
PRECISIONS = tuple(f"precision of {layer}" for layer in LAYERS)
TURNED, SECOND, LAST = "turned", "second kernel", "last bias"
FIELDS = ("accept_prob", "step_size", "kinetic_temperature")
# Trajectories of a few leapfrogs come first: a start lies hundreds of nats above the posterior, which one
# of many turns into speed along the precision of the first kernel, up to networks of steps, left slowly.
FIRST_TRAJECTORIES, FIRST_LEAPFROGS = 100, 5


class Axes(NamedTuple):
    """Axes of (ρ, image)."""

    of_bias: np.ndarray  # along the input that is always 1, (axis,)
    of_images: np.ndarray  # along pixels, (pixel, axis)
    squares: np.ndarray  # sums of squares of the rows along each axis


def axes_of(x: np.ndarray) -> Axes:
    """The principal axes of (ρ, image) for images (row, pixel)."""
    both = np.column_stack([np.full(len(x), RATIO), x.astype(np.float64)])
    basis = np.linalg.svd(both)[2].T
    return Axes(basis[0], basis[1:], ((both @ basis) ** 2).sum(0))


def logits(z: Mapping[str, Any], x: Any, of_bias: Any) -> Any:
    """Of images along the axes (row, axis)."""
    first, hidden, second, last = (z[name] ** -0.5 for name in PRECISIONS)
    units = first * (x @ z[TURNED]) + hidden * (of_bias @ z[TURNED])
    return jax.nn.sigmoid(units) @ (second * z[SECOND]) + last * z[LAST]


def squares_of(z: Mapping[str, Any], of_bias: Any) -> list[Any]:
    """Sums of squares of the standardised weights of each layer."""
    biases = ((of_bias @ z[TURNED]) ** 2).sum()
    return [(z[TURNED] ** 2).sum() - biases, biases, (z[SECOND] ** 2).sum(), (z[LAST] ** 2).sum()]


def sizes_of(z: Mapping[str, Any]) -> list[int]:
    """Numbers of weights of each layer."""
    axes, units = z[TURNED].shape
    return [(axes - 1) * units, units, z[SECOND].size, z[LAST].size]


def model_of(task: Task, axes: Axes) -> Callable:
    """The model of images along the axes."""
    shapes = {
        TURNED: (len(axes.of_bias), task.hidden),
        SECOND: (task.hidden, len(task.digits)),
        LAST: (len(task.digits),),
    }
    of_bias = axes.of_bias.astype(np.float32)

    def model(x: Any, y: Any = None) -> None:
        z = {name: numpyro.sample(name, dist.Gamma(CONCENTRATION, RATE)) for name in PRECISIONS} | {
            name: numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))
            for name, shape in shapes.items()
        }
        with numpyro.plate("images", len(x)):
            numpyro.sample("y", dist.Categorical(logits=logits(z, x, of_bias)), obs=y)

    return model


class Redraw:
    """Draw each precision from its conditional given the weights, as `PrecisionRedraw` does."""

    def __init__(self, axes: Axes) -> None:
        self.of_bias = axes.of_bias.astype(np.float32)

    def __call__(self, key: jax.Array, values: Mapping[str, Any], bound: moves.Bound) -> dict:
        made = dict(values)
        factors = []
        for key_layer, name, square, size in zip(
            jax.random.split(key, len(PRECISIONS)),
            PRECISIONS,
            squares_of(values, self.of_bias),
            sizes_of(values),
        ):
            rate = RATE + square / values[name] / 2
            made[name] = jax.random.gamma(key_layer, CONCENTRATION + size / 2) / rate
            factors.append(jnp.sqrt(made[name] / values[name]))
        first, hidden, second, last = factors
        biases = self.of_bias @ values[TURNED]
        made[TURNED] = first * values[TURNED] + (hidden - first) * jnp.outer(self.of_bias, biases)
        made[SECOND], made[LAST] = second * values[SECOND], last * values[LAST]
        return made


class Rescale:
    """A Metropolis step in the log of each precision, its weights following, as `RidgeScaling` takes."""

    def __call__(self, key: jax.Array, values: Mapping[str, Any], bound: moves.Bound) -> dict:
        now, before = dict(values), bound.log_joint(values)
        for key_layer, name in zip(jax.random.split(key, len(PRECISIONS)), PRECISIONS):
            key_step, key_accept = jax.random.split(key_layer)
            step = STEP * jax.random.normal(key_step)
            new = now | {name: now[name] * jnp.exp(step)}
            after = bound.log_joint(new)
            accepted = -jax.random.exponential(key_accept) <= after - before + step
            now[name] = jnp.where(accepted, new[name], now[name])
            before = jnp.where(accepted, after, before)
        return now


def starts_at(axes: Axes, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Unconstrained values from weights by site (chain, …), precisions at their conditional means."""
    values = [np.asarray(weights[f"net/{layer}"], np.float64) for layer in LAYERS]
    found = [conditional_mean((v**2).reshape(len(v), -1).sum(1), v[0].size) for v in values]
    kernel, bias, second, last = (
        v * np.sqrt(p).reshape(-1, *[1] * (v.ndim - 1)) for v, p in zip(values, found)
    )
    made = {name: np.log(precision) for name, precision in zip(PRECISIONS, found)} | {
        TURNED: axes.of_bias[:, None] * bias[:, None]
        + np.einsum("pa,cpu->cau", axes.of_images, kernel),
        SECOND: second,
        LAST: last,
    }
    return {name: jnp.asarray(value, jnp.float32) for name, value in made.items()}


def metric_of(axes: Axes, start: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Inverse masses: smaller along axes in which rows are large, 1 for all else."""
    metric = {name: np.ones(value.shape[1:], np.float32) for name, value in start.items()}
    metric[TURNED] /= (1 + STRENGTH * axes.squares)[:, None]
    return metric


def pace_of(task: Task, thinning: int = 1) -> Pace:
    """Trajectories of a run, a fifth of them warm-up; five energies of moves cost about two gradients."""
    each = float(task.leapfrogs + 3)
    steps = int(task.long / each)
    return Pace(steps // 5, (steps - steps // 5) // thinning, thinning, each)


def first_trajectories(task: Task) -> int:
    """How many long ones the short ones cost, at most half of the warm-up."""
    cost = FIRST_TRAJECTORIES * (FIRST_LEAPFROGS + 3)
    return min(round(cost / (task.leapfrogs + 3)), pace_of(task).warmup // 2)


def run(
    task: Task, data: data_sets.Split, weights: Mapping[str, Any], key: int, thinning: int = 1
) -> Draws:
    """Chains from given weights, and what `mnist_gibbs_verdict` keeps of every `thinning`-th trajectory."""
    axes = axes_of(data.x)
    of_images, of_bias = (part.astype(np.float32) for part in (axes.of_images, axes.of_bias))
    x, tests = data.x @ of_images, data.x_test @ of_images
    start = starts_at(axes, weights)
    pace = pace_of(task, thinning)

    def record(z: Mapping[str, Any]) -> dict[str, Any]:
        kept = {"probs": jax.nn.softmax(logits(z, tests, of_bias))}
        for layer, name, square, size in zip(
            LAYERS, PRECISIONS, squares_of(z, of_bias), sizes_of(z)
        ):
            kept[f"λ {layer}"] = z[name]
            kept[f"mean {layer}"] = conditional_mean(square / z[name], size)
        return kept

    metric = preconditioners.diagonal(metric_of(axes, start))

    def chains(leapfrogs: int, warmup: int, draws: int, begin: Mapping[str, Any], **options: Any):
        kernel = bnn.WindowedHMC(
            model_of(task, axes),
            step_size="auto",
            num_steps=leapfrogs,
            window=1,
            preconditioner=metric,
        )
        mcmc = bnn.MCMC(
            moves.Interleaved(kernel, [Rescale(), Redraw(axes)]),
            num_warmup=warmup,
            num_samples=draws,
            num_chains=len(start[TURNED]),
            chain_method="vectorized",
            progress_bar=False,
            **options,
        )
        mcmc.run(
            jax.random.key(2 * key + (draws > 1)), x, data.y, init_params=begin, extra_fields=FIELDS
        )
        return mcmc

    short = chains(FIRST_LEAPFROGS, FIRST_TRAJECTORIES, 1, start).get_samples(group_by_chain=True)
    begin = {n: jnp.log(v[:, -1]) if n in PRECISIONS else v[:, -1] for n, v in short.items()}
    spent = first_trajectories(task)
    mcmc = chains(
        task.leapfrogs,
        pace.warmup - spent,
        pace.draws * thinning,
        begin,
        thinning=thinning,
        record=record,
    )
    found = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    extra = mcmc.get_extra_fields()
    facts = {k.replace("_", " "): float(np.mean(extra[k])) for k in FIELDS}
    facts |= {"gradient temperature": "", "time": task.leapfrogs * facts["step size"]}
    return Draws(found, facts)
