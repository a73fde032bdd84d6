"""Inputs that were measured with a known error: latent inputs with a prior, whose measurements are data."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints
from numpyro.primitives import Messenger
from numpyro.util import not_jax_tracer

from numpyro_bnn._types import Array
from numpyro_bnn.likelihoods.observe import check_array, check_finite

# Candidates for a draw given a measurement: so many from the prior, and as many from around the measurement.
_PAIRS = 128


class Measured(dist.Distribution):
    """The posterior of a value with a prior, given its measurement with a Gaussian error: draws, no density.

    Draws are exact for a Gaussian prior, and by importance resampling of 256 candidates for others.
    """

    arg_constraints: ClassVar = {"scale": constraints.positive}
    pytree_data_fields = ("prior", "measured", "scale")

    def __init__(
        self, prior: dist.Distribution, measured: Array, scale: Array, *, validate_args: Any = None
    ) -> None:
        self.prior, self.measured, self.scale = prior, measured, scale
        shape = lax.broadcast_shapes(prior.batch_shape, jnp.shape(measured), jnp.shape(scale))
        super().__init__(shape, (), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return self.prior.support

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        assert key is not None
        shape = sample_shape + self.batch_shape
        base = self.prior
        while isinstance(base, dist.ExpandedDistribution):
            base = base.base_dist
        if type(base) is dist.Normal:
            gain = base.scale**2 / (base.scale**2 + self.scale**2)
            at = base.loc + gain * (self.measured - base.loc)
            return at + jnp.sqrt(gain) * self.scale * jax.random.normal(key, shape)
        return self._resampled(key, shape)

    def _resampled(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """One of many candidates, half of them from the prior and half from around the measurement."""
        prior = self.prior.expand(shape)

        def pair(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            keys = jax.random.split(jax.random.fold_in(key, i), 3)
            around = self.measured + self.scale * jax.random.normal(keys[0], shape)
            drawn, inside = prior.sample(keys[1]), prior.support(around)
            values = jnp.stack([drawn, jnp.where(inside, around, drawn)])
            from_prior = prior.log_prob(values)
            error = dist.Normal(values, self.scale).log_prob(self.measured)
            weights = from_prior + error - jnp.logaddexp(from_prior, error)
            counts = jnp.stack([jnp.ones_like(inside), inside])
            # The largest of log weights with Gumbel noise is at an index of the weights' distribution.
            noisy = jnp.where(counts, weights + jax.random.gumbel(keys[2], weights.shape), -jnp.inf)
            largest = jnp.concatenate([noisy, carry[0][None]])
            at = jnp.argmax(largest, 0)[None]
            chosen = jnp.take_along_axis(jnp.concatenate([values, carry[1][None]]), at, 0)[0]
            return largest.max(0), chosen

        start = prior.sample(key)
        return lax.fori_loop(0, _PAIRS, pair, (jnp.full_like(start, -jnp.inf), start))[1]


class given_measurements(Messenger):
    """Handler under which inputs that have no value yet are drawn given their measurements."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Draw from the posterior of an input in place of its prior."""
        if msg["type"] == "sample" and not msg["is_observed"]:
            msg["fn"] = msg["infer"].get("measured", msg["fn"])


def noisy_inputs(
    x: Array, sd: Array, *, prior: dist.Distribution, name: str = "x_true"
) -> jax.Array:
    """Latent inputs x* with a prior, of which x ~ Normal(x*, sd²) was measured; call it inside a model.

    A fit samples x* with everything else, as one site of the shape of `x`, and observes x at another one,
    ``"{name}.measured"``: measurements are data, of which log evidences are too. Predictions at new
    measurements draw x* from its posterior given the measurement, anew for each draw; those at the rows of
    the fit use the draws of the fit. NumPyro's own ``Predictive`` would draw x* from its prior.

    :param x: measured inputs (N, …).
    :param sd: standard deviation of the error, which broadcasts against `x`: a number, one a column, or one
        for each measurement. Columns without an error do not belong here: join them to the result.
    :param prior: distribution of the latent inputs, one number each, which broadcasts against `x`; its
        parameters may be sampled before.
    :param name: name of the site.
    :return: latent inputs of the shape of `x`.
    :raises TypeError: if `prior` is no distribution.
    :raises ValueError: if an error is not positive, a measurement not finite, or the prior not one of real
        numbers that broadcasts against `x`.
    :source: Carroll et al., *Measurement error in nonlinear models* (2006), chapter 9.

    >>> import jax.numpy as jnp, numpyro.distributions as dist, numpyro_bnn as bnn
    >>> from numpyro.handlers import seed
    >>> with seed(rng_seed=0):
    ...     bnn.noisy_inputs(jnp.ones((5, 2)), 0.1, prior=dist.Normal(0.0, 1.0)).shape
    (5, 2)
    """
    check_array("noisy_inputs", "x", x)
    check_finite("noisy_inputs", "x", x)
    if prior.event_shape or prior.support.is_discrete:
        raise ValueError(
            f"noisy_inputs: prior must be a distribution of one real number, got {type(prior).__name__} with "
            f"event shape {prior.event_shape}. Give one that broadcasts against x, {jnp.shape(x)}."
        )
    try:
        shape = lax.broadcast_shapes(jnp.shape(x), jnp.shape(sd), prior.batch_shape)
    except ValueError:
        shape = None
    if shape != jnp.shape(x):
        raise ValueError(
            f"noisy_inputs: x has shape {jnp.shape(x)}, sd {jnp.shape(sd)} and prior {prior.batch_shape}, "
            "expected sd and prior to broadcast against x. Give one a column, or one for each entry of x."
        )
    if not_jax_tracer(sd) and not (np.isfinite(sd) & (np.asarray(sd) > 0)).all():
        raise ValueError(
            f"noisy_inputs: sd must be positive and finite, got {np.min(sd)} as the least. Join columns "
            "without an error to the result, `jnp.concatenate([exact, noisy_inputs(…)], -1)`."
        )
    axes, x, sd = len(shape), jnp.asarray(x), jnp.broadcast_to(jnp.asarray(sd), shape)
    infer = {"measured": Measured(prior, x, sd).to_event(axes)}
    inputs = numpyro.sample(name, prior.expand(shape).to_event(axes), infer=infer)
    numpyro.sample(f"{name}.measured", dist.Normal(inputs, sd).to_event(axes), obs=x, infer=infer)
    return inputs
