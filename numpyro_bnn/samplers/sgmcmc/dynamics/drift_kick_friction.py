r"""The elementary movements of discretised Langevin dynamics (drift, kick, damping), as pure functions.

The target density is proportional to :math:`\exp(-U(\theta)/T)`; momenta have the distribution
:math:`N(0, T M)`, M diagonal. Each movement solves one part of the dynamics exactly for a time t:

====== ================================================================== ====================
letter movement                                                           name
====== ================================================================== ====================
``A``  :math:`\theta \leftarrow \theta + t M^{-1} p`                       :func:`drift`
``B``  :math:`p \leftarrow p - t \nabla U(\theta)`                         :func:`kick`
``O``  :math:`p \leftarrow c p + \sqrt{(1 - c^2) T M} \xi,\ c=e^{-\gamma t}` :func:`damp`
``D``  :math:`\zeta \leftarrow \zeta + t (p^\top M^{-1} p / DT - 1)/\tau^2` :func:`regulate`
====== ================================================================== ====================

With ``D``, ``O`` damps by the thermostat :math:`\zeta` in place of :math:`\gamma`. Noise is an
argument, standard normal and shaped like the position; nothing here draws a random number.

Metropolis methods need one more number, ``work``: the kinetic energy that all kicks added,
:math:`-\tfrac12 \sum t\, g^\top M^{-1}(p + p')`. For every palindrome of A, B and O, with any
gradient estimates g whose sequence is as likely read backwards, the log acceptance ratio of a
trajectory is :math:`-(U_\text{end} - U_\text{start} + \text{work})/T`, for the friction and the
noise leave their stationary distribution invariant: :func:`log_acceptance`, :func:`accept_or_reject`.

Beside them stand functions of pytrees that all ingredients share, such as :func:`where_needed`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from numpyro_bnn._types import Number, PyTree
from numpyro_bnn.potential.flat_position import FlatPosition, by_site, flat_like

# What a step takes: pytrees of standard normals, like the position.
Noises: TypeAlias = tuple[PyTree, ...]


class DynamicsState(NamedTuple):
    """Position, momentum and other variables of the dynamics; None for those a method does not use."""

    position: PyTree
    """Parameters, any pytree of floating-point arrays."""
    momentum: PyTree = None
    """Like ``position``; stationary distribution N(0, temperature * mass)."""
    thermostat: PyTree = None
    """Damping rate in 1/time: a scalar, or like ``position`` when there is one a parameter."""
    gradient: PyTree = None
    """Gradient of the potential at ``position``, kept by the words that begin with a kick and
    end with one (``reuses_gradient``)."""
    work: PyTree = None
    """Kinetic energy added by kicks since the trajectory began, in nats at temperature 1."""


class Settings(NamedTuple):
    """Step size, temperature, metric and friction of a step; numbers or arrays, which may be traced."""

    step_size: Number
    """``Langevin``: epsilon, the drift being epsilon/2. ``RandomWalkProposal``: standard
    deviation of the proposal. All others: a time step h. Learning rate lr on the mean loss of N
    rows: epsilon = 2 lr / N, h = sqrt(lr / N), so epsilon = 2 h^2."""
    temperature: Number = 1.0
    """1 is the posterior, 0 is optimisation."""
    inverse_mass_matrix: PyTree = 1.0
    """Diagonal: a scalar, or a pytree like the position whose leaves broadcast against it."""
    friction: Number = 0.0
    """Per unit time."""
    gradient_noise: PyTree = 0.0
    """Estimated variance of the gradient of U, entry by entry (scalar or pytree), which
    ``Langevin``, ``SemiImplicit`` and ``Splitting("BAOA")`` take off the noise they add."""
    divergence: PyTree = 0.0
    """Divergence of the inverse mass matrix with respect to the position (``Langevin``)."""


def spread(value: PyTree, tree: PyTree, name: str) -> PyTree:
    """A pytree with the structure of ``tree`` from one that has it, or from a scalar; others are refused."""
    structure: Any = jax.tree.structure(tree)
    value = flat_like(tree, value)
    own: Any = jax.tree.structure(value)
    if own == structure:
        return value
    if jax.tree_util.treedef_is_leaf(own) and jnp.ndim(value) == 0:
        return jax.tree.unflatten(structure, [value] * structure.num_leaves)
    raise ValueError(
        f"{name} has the structure {own}, the position has {jax.tree.structure(by_site(tree))}. "
        f"Give {name} as a scalar or as a pytree like the position."
    )


def map_like(function: Callable[..., jax.Array], tree: PyTree, *rest: PyTree) -> PyTree:
    """``function`` leaf by leaf, each result in the type of the leaf of ``tree``."""
    # The cast keeps e.g. bfloat16 parameters in their dtype when a setting is float32: a scan refuses a
    # carry that changes its dtype.
    return jax.tree.map(lambda x, *r: jnp.asarray(function(x, *r)).astype(x.dtype), tree, *rest)


def total(function: Callable[..., jax.Array], *trees: PyTree) -> jax.Array:
    """The sum of ``function`` over all entries of all leaves."""
    terms = jax.tree.leaves(jax.tree.map(lambda *x: jnp.sum(function(*x)), *trees))
    return jnp.asarray(sum(terms), jnp.result_type(float))


def size(tree: PyTree) -> int:
    """The number of scalars in a pytree."""
    return sum(int(jnp.size(x)) for x in jax.tree.leaves(tree))


def inverse_mass_like(settings: Settings, tree: PyTree) -> PyTree:
    """The inverse mass matrix, one leaf for each leaf of ``tree``."""
    return spread(settings.inverse_mass_matrix, tree, "inverse_mass_matrix")


def momentum_from(noise: PyTree, settings: Settings) -> PyTree:
    r"""A momentum from its stationary distribution, :math:`p = \sqrt{T M} \xi`."""
    scale, inverse_mass = jnp.asarray(settings.temperature), inverse_mass_like(settings, noise)
    return map_like(lambda xi, w: jnp.sqrt(scale / w) * xi, noise, inverse_mass)


def rescaled(momentum: PyTree, before: PyTree, after: PyTree) -> PyTree:
    """A momentum with distribution N(0, T M) from one with N(0, T M'), given both inverse masses."""
    return map_like(
        lambda p, w, v: p * jnp.sqrt(w / v),
        momentum,
        spread(before, momentum, "inverse_mass_matrix"),
        spread(after, momentum, "inverse_mass_matrix"),
    )


def temperature_along(
    direction: PyTree, momentum: PyTree, inverse_mass_matrix: PyTree
) -> jax.Array:
    r""":math:`(p^\top M^{-1} g)^2 / g^\top M^{-1} g`, the kinetic temperature along a direction g.

    Its mean is the temperature for every direction that is independent of the momentum: at stationarity that
    of the gradient which has not acted on the momentum yet. Most of a minibatch gradient is noise, so that it
    shows heat in the few directions of noise that many weights share, of which a mean over weights shows
    nothing.
    """
    inverse_mass = spread(inverse_mass_matrix, momentum, "inverse_mass_matrix")
    along = total(lambda p, g, w: w * p * g, momentum, direction, inverse_mass)
    norm = total(lambda g, w: w * g * g, direction, inverse_mass)
    return jnp.where(norm > 0, along**2 / jnp.where(norm > 0, norm, 1.0), jnp.nan)


def products(function: Callable[..., jax.Array], *trees: PyTree) -> PyTree:
    """``function`` of the entries of a flat position; of other trees its mean over each leaf."""
    # A step writes one vector sooner than it takes the means of its sites, which only draws need.
    values = jax.tree.map(function, *trees)
    return values if isinstance(values, FlatPosition) else jax.tree.map(_mean, values)


def means(values: PyTree) -> PyTree:
    """The means by site of what :func:`products` made; leading axes stay."""
    if not isinstance(values, FlatPosition):
        return values
    ends = {name: tuple(range(-len(shape), 0)) for name, shape in values.shapes}
    return {name: _mean(site, ends[name]) for name, site in values.sites().items()}


def mean_over(values: PyTree, tree: PyTree) -> jax.Array:
    """The mean over all entries of ``tree``, from those of its leaves or sites."""
    weighted = jax.tree.map(lambda value, x: value * jnp.size(x), values, by_site(tree))
    return jnp.asarray(sum(jax.tree.leaves(weighted)) / size(tree))


def _mean(values: jax.Array, axis: tuple[int, ...] | None = None) -> jax.Array:
    return jnp.mean(values, axis, dtype=jnp.result_type(float))


def drift(position: PyTree, momentum: PyTree, time: Number, settings: Settings) -> PyTree:
    r"""The movement A: :math:`\theta + t M^{-1} p`."""
    inverse_mass = inverse_mass_like(settings, position)
    return map_like(lambda x, p, w: x + time * w * p, position, momentum, inverse_mass)


def kick(momentum: PyTree, gradient: PyTree, time: Number) -> PyTree:
    r"""The movement B: :math:`p - t \nabla U`."""
    return map_like(lambda p, g: p - time * g, momentum, gradient)


def kick_work(
    before: PyTree, after: PyTree, gradient: PyTree, time: Number, settings: Settings
) -> jax.Array:
    r""":math:`-\tfrac12 t\, g^\top M^{-1} (p + p')`.

    For a pure kick this is the kinetic energy gained, without the cancellation of subtracting
    two energies of D/2 nats each.
    """
    trees = before, after, gradient, inverse_mass_like(settings, before)
    return total(lambda p, q, g, w: -0.5 * time * w * g * (p + q), *trees)


def damp(
    momentum: PyTree, noise: PyTree, time: Number, settings: Settings, thermostat: PyTree = None
) -> PyTree:
    r"""The movement O: the exact solution of :math:`dp = -\zeta p\,dt + \sqrt{2 \gamma T M}\,dW`.

    Without a thermostat :math:`\zeta = \gamma` and N(0, T M) is left exactly invariant; infinite
    friction draws the momentum afresh.
    """
    friction, temperature = jnp.asarray(settings.friction), jnp.asarray(settings.temperature)
    inverse_mass = inverse_mass_like(settings, momentum)
    if thermostat is None:
        keep, gain = jnp.exp(-friction * time), -jnp.expm1(-2 * friction * time)

        def with_friction(p: Any, xi: Any, w: Any) -> Any:
            return keep * p + jnp.sqrt(gain * temperature / w) * xi

        return map_like(with_friction, momentum, noise, inverse_mass)

    def with_rate(p: Any, xi: Any, w: Any, rate: Any) -> Any:
        # The rate of a thermostat can be zero, where the formula is 0/0: a series replaces it there.
        x = rate * time
        small = jnp.abs(x) < 1e-3
        safe = jnp.where(small, 1.0, x)
        gain = jnp.where(small, 1 - x + 2 * x**2 / 3, -jnp.expm1(-2 * safe) / (2 * safe))
        return jnp.exp(-x) * p + jnp.sqrt(2 * friction * time * gain * temperature / w) * xi

    rate = spread(thermostat, momentum, "thermostat")
    return map_like(with_rate, momentum, noise, inverse_mass, rate)


def damp_less_noise(momentum: PyTree, noise: PyTree, time: Number, settings: Settings) -> PyTree:
    r"""The movement O of ``BAOA``, less the noise of variance V that the gradient of the kick had.

    .. math:: p \leftarrow c p + \sqrt{(1 - c^2) T M - \tfrac14 (1 + c)^2 h^2 V}\, \xi

    On a quadratic potential of Hessian H the position has the variance T/H again, up to
    a share :math:`h^2 H / (4 M)` of the heat that was taken off; momenta are recorded where they are colder
    than T by about :math:`h^2 V / (2 M)`. Where the root would be imaginary, c is lowered, parameter by
    parameter, to :math:`(1 - r) / (1 + r)` with :math:`r = h^2 V / (4 T M)`: all noise is then that of the
    gradient. For r above 1 momenta are forgotten at once, and a part of the heat stays.

    :param time: h, the whole step.
    """
    friction, temperature = jnp.asarray(settings.friction), jnp.asarray(settings.temperature)
    inverse_mass = inverse_mass_like(settings, momentum)
    known = spread(settings.gradient_noise, momentum, "gradient_noise")

    def move(p: Any, xi: Any, w: Any, v: Any) -> Any:
        heat = 0.25 * time**2 * v * w
        # At temperature 0 there is no noise to take from: momenta keep what the friction leaves.
        warm = temperature > 0
        ratio = jnp.where(warm, heat / jnp.where(warm, temperature, 1.0), 0.0)
        keep = jnp.minimum(jnp.exp(-friction * time), jnp.maximum(1 - ratio, 0.0) / (1 + ratio))
        # (1 - c²) without cancellation where the friction is small.
        gain = jnp.maximum(-jnp.expm1(-2 * friction * time), 1 - keep**2)
        variance = jnp.maximum(gain * temperature - (1 + keep) ** 2 * heat, 0.0)
        return keep * p + jnp.sqrt(variance / w) * xi

    return map_like(move, momentum, noise, inverse_mass, known)


def regulate(
    thermostat: PyTree, momentum: PyTree, time: Number, settings: Settings, relaxation_rate: Number
) -> PyTree:
    r"""The movement D: :math:`\zeta + t (K/T - 1) / \tau^2`, :math:`1/\tau` the relaxation rate.

    K is the kinetic temperature over the D parameters (Ding et al. 2014, algorithm 1). The invariant
    distribution of :math:`\zeta` has standard deviation :math:`1/(\tau\sqrt{D})`.
    """
    # At temperature 0 (exploration) the ratio K/T is undefined, and the thermostat only cools.
    temperature = jnp.asarray(settings.temperature)
    factor = time * relaxation_rate**2 / jnp.where(temperature > 0, temperature, 1.0)
    inverse_mass = inverse_mass_like(settings, momentum)
    excess = total(lambda p, w: w * p * p, momentum, inverse_mass) / size(momentum) - temperature
    return map_like(lambda z: z + factor * excess, thermostat)


def log_acceptance(energy_error: Number, temperature: Number) -> jax.Array:
    r""":math:`\min(0, -\Delta E / T)`, the log probability to accept; NaN is never accepted."""
    error, temperature = jnp.asarray(energy_error), jnp.asarray(temperature)
    cold = jnp.where(error > 0, -jnp.inf, 0.0)
    warm = jnp.minimum(-error / jnp.where(temperature > 0, temperature, 1.0), 0.0)
    return jnp.where(jnp.isnan(error), -jnp.inf, jnp.where(temperature > 0, warm, cold))


def accept_or_reject(accept: jax.Array, end: DynamicsState, start: DynamicsState) -> DynamicsState:
    """``end`` if accepted, else ``start`` with its momentum reversed; in both ``work`` is set to 0."""
    # Without the reversal the target would not be invariant if momenta are only partly refreshed.
    if start.momentum is not None:
        start = start._replace(momentum=jax.tree.map(jnp.negative, start.momentum))
    state: DynamicsState = jax.tree.map(lambda x, y: jnp.where(accept, x, y), end, start)
    return state if state.work is None else state._replace(work=jnp.zeros_like(state.work))


def langevin_work(
    position: PyTree,
    gradient: PyTree,
    proposal: PyTree,
    proposal_gradient: PyTree,
    settings: Settings,
) -> jax.Array:
    r"""``work`` of a Langevin proposal, for the Metropolis correction of SGLD (MALA).

    .. math:: -\tfrac12 (\theta' - \theta)^\top (g + g')
              + \tfrac{\epsilon}{8} (g'^\top M^{-1} g' - g^\top M^{-1} g)

    It equals :math:`T \log q(\theta'|\theta) - T \log q(\theta|\theta')`, with
    q the Gaussian of Langevin dynamics (Roberts & Tweedie 1996, section 1.4) multiplied out, so
    that no large squares are subtracted. For a metric that does not depend on the position, and
    no ``gradient_noise``.
    """
    epsilon = settings.step_size
    return total(
        lambda x, g, y, k, w: -0.5 * (y - x) * (g + k) + 0.125 * epsilon * w * (k - g) * (k + g),
        position,
        gradient,
        proposal,
        proposal_gradient,
        inverse_mass_like(settings, position),
    )


@custom_vmap
def any_chain(flag: jax.Array) -> jax.Array:
    """Whether a flag is true in any of the chains that ``jax.vmap`` runs together."""
    return flag


@any_chain.def_vmap
def _any_chain(axis_size: int, batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    return any_chain(jnp.any(flag)), False


def where_needed(flag: jax.Array, new: Callable[[], PyTree], old: PyTree) -> PyTree:
    """``new()`` where a flag is true and `old` elsewhere; `new` is run only if some chain needs it."""
    # Under ``jax.vmap`` a ``lax.cond`` computes both branches at every step. Here `new` is skipped in steps
    # in which no chain needs it, which are most for a rare computation that chains do at the same time.

    def selected() -> Any:
        return jax.tree.map(lambda a, b: jnp.where(flag, a, b), new(), old)

    return lax.cond(any_chain(jnp.asarray(flag)), selected, lambda: old)


def chosen(flag: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Leaves of `new` where a flag is true and of `old` elsewhere; random keys always of `new`."""
    # A step has used its key even if its result is dropped.
    # Without the barrier the compiler would compute the flag, and the energy before it, in each leaf anew.
    flag = lax.optimization_barrier(flag)

    def choose(one: jax.Array, other: jax.Array) -> jax.Array:
        is_key = jnp.issubdtype(one.dtype, jax.dtypes.prng_key)
        return one if is_key else jnp.where(flag, one, other)

    return jax.tree.map(choose, new, old)
