"""Exact draws from densities p(τ) ∝ τ^(shape-1) exp(-up τ - down/τ), of any shape at once.

With l = log τ the density is log-concave,

    log p(l) = shape l - up e^l - down e^(-l) + constant,

the generalised inverse Gaussian distribution. The conditional of every precision in a hierarchy has this
form (down = 0 is the Gamma distribution), and so has the scale in a rescaling of hidden units.

Draws are made by rejection from a flat middle with two exponential tails, tangents of log p at
two points around its mode. Tangents of a concave function lie above it, so that the draws are
exact wherever the two points are; with points near log p = maximum - 1 more than half of all proposals are
accepted. All draws of a batch are proposed together, until each has one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_bnn._types import Array

# Bisections that find a tangent point; they affect the acceptance rate only.
_HALVINGS = 16


class _Centred(NamedTuple):
    """log p around its mode: x = l - mode, and log p(0) = 0."""

    # up e^mode and down e^(-mode) of the uncentred density.
    up: jax.Array
    down: jax.Array

    def log_density(self, x: jax.Array) -> jax.Array:
        right, left = _both_expm1(x)
        # A term with a zero factor is 0, even if the other factor overflows.
        rise = jnp.where(self.up > 0, self.up * (right - x), 0.0)
        return -rise - jnp.where(self.down > 0, self.down * (left + x), 0.0)

    def slope(self, x: jax.Array) -> jax.Array:
        right, left = _both_expm1(x)
        rise = jnp.where(self.up > 0, self.up * right, 0.0)
        return jnp.where(self.down > 0, self.down * left, 0.0) - rise


def _both_expm1(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """e^x - 1 and e^(-x) - 1, without overflow."""
    # The second is made from the first: on a CPU, XLA returned expm1(x) for expm1(-x) in programs with both
    # (jaxlib 0.12.0, a batch of 2000). Beyond e^80 the density is 0 in effect.
    right = jnp.expm1(jnp.clip(x, -80.0, 80.0))
    return right, -right * jnp.exp(-jnp.clip(x, -80.0, 80.0))


def mode_of_log(shape: Array | float, up: Array | float, down: Array | float) -> jax.Array:
    """The most probable value of log τ; arguments as in :func:`sample_log`."""
    root = jnp.sqrt(jnp.square(shape) + 4 * up * down)
    # Two forms of the root of up τ² - shape τ - down = 0, for shapes of either sign.
    positive = shape > 0
    large = jnp.where(positive, shape + root, 1.0) / (2 * up)
    small = 2 * down / jnp.where(positive, 1.0, root - shape)
    return jnp.log(jnp.where(positive, large, small))


def sample_log(
    key: jax.Array, shape: Array | float, up: Array | float, down: Array | float
) -> jax.Array:
    """Exact draws of log τ, for `up` > 0 and `down` >= 0, and `shape` > 0 where `down` is 0."""
    # Source: L. Devroye, *Random variate generation for the generalized inverse Gaussian distribution*,
    # Statistics and Computing 24 (2014), whose tangents are chosen by bisection here.
    shape, up, down = jnp.broadcast_arrays(
        *(jnp.asarray(a, jnp.result_type(float)) for a in (shape, up, down))
    )
    mode = mode_of_log(shape, up, down)
    distribution = _Centred(up * jnp.exp(mode), down * jnp.exp(-mode))
    right = _tangent_point(distribution, distribution.up, distribution.down, 1.0)
    left = -_tangent_point(distribution, distribution.down, distribution.up, -1.0)
    high, low = distribution.slope(right), distribution.slope(left)  # negative, positive
    end = right - distribution.log_density(right) / high
    begin = left - distribution.log_density(left) / low
    areas = jnp.stack([end - begin, -1 / high, 1 / low])

    def propose(carry: tuple) -> tuple:
        key, x, done = carry
        key, key_where, key_piece, key_accept = jax.random.split(key, 4)
        u = jax.random.uniform(key_where, shape.shape) * areas.sum(0)
        tail = jax.random.exponential(key_piece, shape.shape)
        in_middle, in_right = u < areas[0], u < areas[0] + areas[1]
        new = jnp.where(
            in_middle,
            begin + u,
            jnp.where(in_right, end + tail * areas[1], begin - tail * areas[2]),
        )
        envelope = jnp.where(in_middle, 0.0, -tail)
        accepted = -jax.random.exponential(key_accept, shape.shape) <= (
            distribution.log_density(new) - envelope
        )
        return key, jnp.where(accepted & ~done, new, x), done | accepted

    start = (key, jnp.zeros(shape.shape, mode.dtype), jnp.zeros(shape.shape, bool))
    _, x, _ = lax.while_loop(lambda carry: ~carry[2].all(), propose, start)
    return mode + x


def _tangent_point(
    distribution: _Centred, near: jax.Array, far: jax.Array, side: float
) -> jax.Array:
    """Distance from the mode to where log p has fallen by about 1."""
    # near (e^x - 1 - x) >= near x²/2, and far (e^(-x) - 1 + x) >= far (x - 1).
    by_near = jnp.where(near > 0, jnp.sqrt(2 / jnp.where(near > 0, near, 1.0)), jnp.inf)
    by_far = jnp.where(far > 0, 1 + 1 / jnp.where(far > 0, far, 1.0), jnp.inf)
    highest = jnp.minimum(by_near, by_far)
    below, above = jnp.zeros_like(highest), highest
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        too_far = distribution.log_density(side * middle) < -1.0
        below, above = jnp.where(too_far, below, middle), jnp.where(too_far, middle, above)
    return above
