"""A model with a target that is affine in some of its weights, and the exact integral over such weights."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def by_hand(x, y=None):
    """A model without any network: the user's own features, and noise that differs by row."""
    knot = numpyro.sample("knot", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(jnp.array([1.0, -1.0]), 2.0))
    spread = numpyro.sample("spread", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        mean = jnp.cos(x + knot) @ slope
        numpyro.sample("y", dist.Normal(mean, spread * (1 + x[:, 0] ** 2)), obs=y)


def log_integral(joint, start):
    """log ∫ exp(joint(w)) dw of a quadratic `joint`: its peak + p/2 log 2π - ½ log |curvature|.

    :param start: any weights (p,).
    """

    @jax.jit
    def exact():
        curvature = -jax.hessian(joint)(start)
        best = start + jnp.linalg.solve(curvature, jax.grad(joint)(start))
        return joint(best) - jnp.linalg.slogdet(curvature / (2 * jnp.pi))[1] / 2

    return exact()
