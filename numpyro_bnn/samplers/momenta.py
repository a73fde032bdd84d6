"""Warns of minibatch runs whose momenta are warmer or colder than what was asked for.

Momenta decorrelate within a few steps, so their temperature shows the effects of step size and minibatch
noise long before the draws do.
"""

import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike
from numpyro.util import find_stack_level

# A mean temperature is wrong if it is off by more than this share, and by so many standard errors.
_WRONG, _ERRORS = 0.05, 4.0
# The error comes from means over blocks of draws, much longer than the memory of momenta.
_SHORTEST, _MOST, _FEWEST = 50, 10, 8
_TOO_WARM = (
    "noise of the minibatches heats them, or the chains have not arrived, and draws are spread too widely. "
    "Take gradient_noise='auto' and step_size='auto', gradients.svrg, larger minibatches, smaller steps, or "
    "a longer warm-up"
)
_TOO_COLD = (
    "more noise is taken off than there is, or steps are too large. Take smaller steps, or a longer warm-up "
    "where the noise is estimated"
)


def temperature_of_momenta(stats: Mapping[str, ArrayLike]) -> tuple[float, float] | None:
    """Mean temperature of the momenta of a minibatch run over the one asked for, and its error."""
    # None at temperature 0, for short runs, and for kernels that do not record these fields: only minibatch
    # kernels with momenta and without a Metropolis decision do.
    if not {"kinetic_temperature", "gradient_temperature", "temperature"} <= stats.keys():
        return None
    measured, asked = (np.asarray(stats[n]) for n in ("kinetic_temperature", "temperature"))
    blocks = min(_MOST, measured.shape[1] // _SHORTEST)
    if blocks * len(measured) < _FEWEST or not (asked > 0).all():
        return None
    kept = measured.shape[1] // blocks * blocks
    ratio = np.asarray(measured[:, :kept] / asked[:, :kept], np.float64)
    means = ratio.reshape(-1, kept // blocks).mean(1)
    return float(means.mean()), float(means.std(ddof=1) / len(means) ** 0.5)


def warn_of_momenta(stats: Mapping[str, ArrayLike]) -> None:
    """Warn after a run whose momenta do not have the temperature that was asked for."""
    found = temperature_of_momenta(stats)
    if found is None:
        return
    value, error = found
    if not abs(value - 1) > max(_WRONG, _ERRORS * error):
        return
    why = _TOO_WARM if value > 1 else _TOO_COLD
    warnings.warn(
        f"Momenta of this run are {value:.3g} ± {error:.1g} times as warm as asked for: {why}; "
        "`bnn.diagnose` has the temperature of each site.",
        stacklevel=find_stack_level(),
    )
