"""Posterior approximations from the iterates of stochastic gradient descent at a constant rate.

Stochastic gradient descent on U with independent minibatches and rate r takes steps z ← z - r g, where g
is the gradient of U on B of N rows, with mean ∇U and covariance C near the optimum. It does not settle:
where U is
quadratic with Hessian H its stationary covariance Σ solves, for small r,

    H Σ + Σ H = r C          (Mandt, Hoffman and Blei 2017, eq. 13, in units of U),

which is the posterior covariance 1/H only where C is proportional to H. :func:`constant_sgd` takes
the iterates for posterior draws; :func:`swag` fits a Gaussian to some of them.

Both start at optimised members, and both may be given their rate. ``"auto"`` is the rate that
minimises the Kullback-Leibler divergence to the posterior, r = 2 D / tr C for D parameters (their
theorem 1), lowered, where it must be, until r H has no eigenvalue above 1: beyond 2 the descent
diverges.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from tqdm.auto import tqdm

from numpyro_bnn._checks import check_positive, check_whole
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer, trains
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.potential.flat_position import normal_like
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.tuning import largest_curvature

Rate = float | Literal["auto"]
# Minibatch gradients that the noise is estimated from.
_PILOT = 200


@trains
def constant_sgd(
    model: Callable,
    key: jax.Array,
    *args: object,
    batch_size: int,
    num_samples: int = 1000,
    num_members: int = 1,
    rate: Rate = "auto",
    num_warmup: int = 1000,
    thinning: int = 100,
    **kwargs: Any,
) -> Draws:
    """Iterates of stochastic gradient descent at a constant rate, as posterior draws.

    Members are optimised first; descent at the constant rate then starts from each, with rows
    drawn independently for every step. Hierarchical precisions are integrated out of the energy,
    and drawn for each iterate from their conditional given the weights. One minibatch gradient a
    step. Not for exact spreads: what comes out has the covariance of the gradient noise in it.

    Source: Mandt, Hoffman and Blei, *Stochastic gradient descent as approximate Bayesian
    inference* (2017), eq. 7; the rate here is theirs over N.

    :param model: a NumPyro model with a data plate.
    :param batch_size: rows a step, in the optimisation as well.
    :param num_samples: draws of each member.
    :param num_members: independent runs.
    :param rate: learning rate for the energy in nats (N times it for the mean loss over N rows), or
        ``"auto"``, which the head of this module describes.
    :param num_warmup: steps at the constant rate before the first draw.
    :param thinning: steps to a draw.
    :return: a chain for each member; ``info["rate"]`` has the rate of each.
    :raises ValueError: if a number is out of range or no member stays finite.
    """
    num_samples = check_whole("constant_sgd", "num_samples", num_samples)
    kwargs["batch_size"] = check_whole("constant_sgd", "batch_size", batch_size)
    plan = num_members, num_samples, num_warmup, thinning, rate
    keys, member_optimizer, iterates, rates = _iterate(
        "constant_sgd", model, key, args, kwargs, *plan
    )
    return member_optimizer.draws(iterates, keys, rate=rates)


@trains
def swag(
    model: Callable,
    key: jax.Array,
    *args: object,
    batch_size: int,
    num_samples: int = 100,
    num_members: int = 1,
    num_snapshots: int = 40,
    rank: int = 20,
    rate: Rate = "auto",
    num_warmup: int = 1000,
    thinning: int = 100,
    **kwargs: Any,
) -> Draws:
    """Gaussians around averaged weights: SWAG, and with several members multi-SWAG.

    From K snapshots of :func:`constant_sgd` with mean m and variances S, and the deviations
    D (parameters, rank) of the last of them,

        w = m + √(S / 2) ξ + D ζ / √(2 (rank - 1)),    ξ, ζ standard normal,

    so that half of the covariance is diagonal and half of low rank. Deviations are from the mean
    of all snapshots, where the paper takes the mean so far. Hierarchical precisions are drawn
    from their conditional given each w.

    Source: Maddox, Garipov, Izmailov, Vetrov and Wilson, *A simple baseline for Bayesian
    uncertainty in deep learning* (2019), eq. 1; several members: Wilson and Izmailov, *Bayesian
    deep learning and a probabilistic perspective of generalization* (2020).

    :param model: a NumPyro model with a data plate.
    :param batch_size: rows a step, in the optimisation as well.
    :param num_samples: draws from each member's Gaussian.
    :param num_members: optimisations, each with a Gaussian of its own.
    :param num_snapshots: iterates that a Gaussian is fitted to, K.
    :param rank: rank of the low-rank half; of fewer snapshots, their number.
    :param rate: as in :func:`constant_sgd`.
    :param num_warmup: steps between the optimum and the first snapshot.
    :param thinning: steps to a snapshot.
    :return: a chain for each member.
    :raises ValueError: if a number is out of range or no member stays finite.
    """
    num_samples = check_whole("swag", "num_samples", num_samples)
    num_snapshots = check_whole("swag", "num_snapshots", num_snapshots, least=2)
    rank = min(num_snapshots, check_whole("swag", "rank", rank, least=2))
    kwargs["batch_size"] = check_whole("swag", "batch_size", batch_size)
    plan = num_members, num_snapshots, num_warmup, thinning, rate
    keys, member_optimizer, iterates, rates = _iterate("swag", model, key, args, kwargs, *plan)
    key_draws, key_precisions = jax.random.split(keys)

    def draw(key: jax.Array, snapshots: Values) -> Values:
        ours = jax.random.split(key, num_samples)
        return jax.vmap(lambda k: gaussian_of_snapshots(k, snapshots, rank))(ours)

    drawn = Program(jax.vmap(draw))(jax.random.split(key_draws, num_members), iterates)
    return member_optimizer.draws(drawn, key_precisions, rate=rates)


def gaussian_of_snapshots(key: jax.Array, snapshots: Values, rank: int) -> Values:
    """One draw from SWAG's Gaussian; see :func:`swag`."""
    means = {name: values.mean(0) for name, values in snapshots.items()}
    low, noise = normal_like(key, (jnp.zeros(rank), means))
    low /= jnp.sqrt(2 * (rank - 1))
    drawn = {}
    for name, values in snapshots.items():
        diagonal = jnp.sqrt(values.var(0) / 2) * noise[name]
        drawn[name] = means[name] + diagonal + jnp.tensordot(low, values[-rank:] - means[name], 1)
    return drawn


def _iterate(
    owner: str,
    model: Callable,
    key: jax.Array,
    args: tuple,
    kwargs: dict[str, object],
    num_members: int,
    num_iterates: int,
    num_warmup: int,
    thinning: int,
    rate: Rate,
) -> tuple[jax.Array, MemberOptimizer, Values, list[float]]:
    """An unused key, the optimiser of members, and iterates of each at a constant rate with these rates."""
    num_members = check_whole(owner, "num_members", num_members)
    num_warmup = check_whole(owner, "num_warmup", num_warmup, least=0)
    thinning = check_whole(owner, "thinning", thinning)
    if rate != "auto":
        check_positive(owner, rate=rate)
    # Independent minibatches: those of one epoch cancel each other's noise.
    member_optimizer, options = MemberOptimizer.taking(
        owner, model, key, args, kwargs, "replacement"
    )
    key_fit, key_rate, key_steps, key_left = jax.random.split(key, 4)
    z, energy = member_optimizer.fit(key_fit, num_members, options)
    member_optimizer.name_far(energy, options)
    rates = _rates(member_optimizer, z, key_rate, rate)
    members = member_optimizer.members(key_steps, z, rates)
    advance = member_optimizer.advance(_SCALED)
    if num_warmup:
        members, *_ = advance(members, num_warmup, None, member_optimizer.arrays)
    kept = []
    with tqdm(total=num_iterates, desc=owner, disable=not options.progress_bar) as bar:
        for _ in range(num_iterates):
            members, *_ = advance(members, thinning, None, member_optimizer.arrays)
            kept.append(members.z)
            bar.update()
    iterates = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *kept)
    return key_left, member_optimizer, iterates, [float(r) for r in rates]


# Plain gradient descent as an optax optimiser, whose state is the learning rate.
_SCALED = optax.GradientTransformation(
    lambda z: jnp.ones(()),
    lambda gradient, rate, z=None: (jax.tree.map(lambda g: -rate * g, gradient), rate),
)


def _rates(member_optimizer: MemberOptimizer, z: Values, key: jax.Array, rate: Rate) -> jax.Array:
    """The rate of every member."""
    num_members = len(next(iter(z.values())))
    if not isinstance(rate, str):
        return jnp.full(num_members, rate, jnp.result_type(float))

    def program(z: Values, keys: jax.Array, arrays: list[Any]) -> jax.Array:
        def one(z: Values, key: jax.Array) -> jax.Array:
            rows = member_optimizer.rows(arrays)
            key_noise, key_power = jax.random.split(key)
            count = sum(leaf.size for leaf in z.values())
            best = 2 * count / _noise_trace(member_optimizer.estimator, rows, z, key_noise)
            start = normal_like(key_power, z)
            return jnp.minimum(best, 1 / largest_curvature(rows, z, 1.0, start)[0])

        return jax.vmap(one)(z, keys)

    keys = jax.random.split(key, num_members)
    return member_optimizer.compiled(program)(z, keys, member_optimizer.arrays)


def _noise_trace(estimator: Estimator, rows: Rows, z: Values, key: jax.Array) -> jax.Array:
    """tr C: variance of the minibatch gradient around the full one, summed over components."""
    exact = rows.full(z)[1]

    def add(carry: tuple, _: None) -> tuple[tuple, None]:
        state, total = carry
        estimate = estimator.estimate(rows, z, state)
        error = jax.tree.map(jnp.subtract, estimate.gradient, exact)
        return (estimate.state, total + _square(error)), None

    start: tuple = (estimator.init(rows, z, key), jnp.zeros_like(_square(exact)))
    return lax.scan(add, start, None, _PILOT)[0][1] / _PILOT


def _square(v: Values) -> jax.Array:
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda leaf: jnp.sum(leaf**2), v))
