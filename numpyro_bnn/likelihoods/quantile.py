"""A likelihood that fits f to a quantile of the target."""

from typing import Any

import jax
import numpyro
import numpyro.distributions as dist

from numpyro_bnn._types import Outputs, PyTree, Values
from numpyro_bnn.likelihoods.noise import positive
from numpyro_bnn.likelihoods.observe import check_shape, check_vector, observe


def quantile(
    f: Outputs,
    y: Values | None = None,
    *,
    level: float,
    scale: float | dist.Distribution,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    weights: Values | None = None,
) -> jax.Array:
    """y has an asymmetric Laplace distribution around f, which fits f to a quantile of the target.

    Its negative logarithm is the pinball loss over `scale` (Yu and Moyeed 2001, *Bayesian quantile
    regression*). Targets hardly ever have this distribution. The mean of f estimates the quantile, but the
    standard deviation of f is not the error of that estimate. Calibrate intervals between such quantiles.

    :param f: predictions (N,), or the network, with `x`.
    :param y: targets (N,); None to predict.
    :param level: the probability below f, strictly between 0 and 1.
    :param scale: a positive number in the units of the target, or a prior on it (site ``"{name}.scale"``).
    :param x: inputs (N, …).
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param weights: (N,), how often each row counts; None for once.
    :return: the target.
    :raises ValueError: for another level, a scale that is not positive, or shapes that do not agree.
    """
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level < 1:
        raise ValueError(
            f"quantile: level must be a probability strictly between 0 and 1, got {level!r}. Give 0.9 for "
            "the value that nine targets in ten stay below."
        )
    spread = positive("quantile", "scale", scale)
    if isinstance(spread, dist.Distribution):
        spread = numpyro.sample(f"{name}.scale", spread)

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        check_vector("quantile", f)
        check_shape("quantile", f, y)
        # NumPyro's distribution has the pinball loss over a scale that both sides share.
        return dist.AsymmetricLaplaceQuantile(f, spread, level)

    return observe("quantile", f, y, x, name, plate, likelihood, 0, weights)
