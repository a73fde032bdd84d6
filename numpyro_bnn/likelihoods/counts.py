"""Likelihoods of counts: whole numbers from 0, unbounded."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.util import not_jax_tracer

from numpyro_bnn._types import Outputs, PyTree, Values
from numpyro_bnn.likelihoods.noise import positive
from numpyro_bnn.likelihoods.observe import check_array, check_shape, check_vector, observe


def poisson(
    f: Outputs,
    y: Values | None = None,
    *,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    weights: Values | None = None,
) -> jax.Array:
    """y ~ Poisson(exp(f)): counts whose variance is their mean.

    Counts over unequal times or areas have the logarithm of these added to f:
    ``lambda x: net(x).squeeze(-1) + jnp.log(x[:, 0])``.

    :param f: logarithms of the means (N,), or the network, with `x`.
    :param y: counts (N,), whole numbers from 0; None to predict.
    :param x: inputs (N, …).
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param weights: (N,), how often each row counts; None for once.
    :return: the target.
    :raises ValueError: for negative or broken numbers, or shapes that do not agree.
    """
    _check_counts("poisson", y)

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        check_vector("poisson", f)
        check_shape("poisson", f, y)
        return dist.Poisson(jnp.exp(f))

    return observe("poisson", f, y, x, name, plate, likelihood, 0, weights)


def negative_binomial(
    f: Outputs,
    y: Values | None = None,
    *,
    concentration: float | dist.Distribution,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    weights: Values | None = None,
) -> jax.Array:
    """y ~ Poisson(exp(f) u), u ~ Gamma with mean 1: counts that vary more than Poisson ones.

    The mean is m = exp(f), the variance m + m² / concentration (Gelman et al. 2013, *Bayesian data
    analysis*, section 16.2).

    :param f: logarithms of the means (N,), or the network, with `x`.
    :param y: counts (N,), whole numbers from 0; None to predict.
    :param concentration: a positive number, or a prior on it (site ``"{name}.concentration"``).
    :param x: inputs (N, …).
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param weights: (N,), how often each row counts; None for once.
    :return: the target.
    :raises ValueError: for negative or broken counts, a concentration that is not positive, or shapes
        that do not agree.
    """
    _check_counts("negative_binomial", y)
    shape = positive("negative_binomial", "concentration", concentration)
    if isinstance(shape, dist.Distribution):
        shape = numpyro.sample(f"{name}.concentration", shape)

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        check_vector("negative_binomial", f)
        check_shape("negative_binomial", f, y)
        return dist.NegativeBinomial2(jnp.exp(f), shape)

    return observe("negative_binomial", f, y, x, name, plate, likelihood, 0, weights)


def _check_counts(owner: str, y: Any) -> None:
    """Refuse concrete targets that are no counts."""
    check_array(owner, "y", y)
    if y is None or not not_jax_tracer(y):
        return
    counts = np.asarray(y)
    bad = np.flatnonzero(~((counts >= 0) & (counts == np.round(counts))))
    if bad.size:
        raise ValueError(
            f"{owner}: y must hold counts, whole numbers from 0, got {counts.ravel()[bad[0]]} in row "
            f"{bad[0]}. Take `gaussian` for quantities, and undo a standardisation of counts."
        )
