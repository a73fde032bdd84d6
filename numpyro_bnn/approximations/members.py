"""Decides which optimised members of an ensemble are kept, and warns of those far above the best."""

import math
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn._types import Array
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.sites import Structure


def allowed_excess(structure: Structure, num_weights: int) -> float:
    """How far above the best a member may end, in nats."""
    # Draws of a Gaussian posterior have energies above that of the mode by half a χ² variable with k degrees
    # of freedom, k the number of parameters that the data determine: practically never above k/2 + 5 √(k/2) +
    # 10.
    sites = [structure.sites[name] for name in structure.evidence]
    decided = float(num_weights)
    if not any(site.factor for site in sites):
        decided = min(decided, float(sum(math.prod(site.shape) for site in sites)))
    return decided / 2 + 5 * math.sqrt(decided / 2) + 10


def far_above(energy: np.ndarray, allowed: float) -> np.ndarray:
    """Which members ended with an energy above :func:`limit_of`, or not finite."""
    finite = np.isfinite(energy)
    if not finite.any():
        return np.zeros(len(energy), bool)
    return ~finite | (energy > limit_of(energy, allowed))


def limit_of(energy: np.ndarray, allowed: float) -> float:
    """The energy up to which members count as near the lowest, nats."""
    # Where the median member is nearly as far above the lowest as the model allows, or further (because of
    # modes of unequal depth or the noise of minibatches), ten times its excess is allowed.
    ordered = np.sort(energy[np.isfinite(energy)])
    usual = ordered[(len(ordered) - 1) // 2] - ordered[0]
    return float(ordered[0] + max(allowed, 10 * usual))


def name_far(owner: str, energy: np.ndarray, allowed: float) -> None:
    """Warn of finite members that ended far above the others."""
    far = np.flatnonzero(far_above(energy, allowed) & np.isfinite(energy))
    if not len(far):
        return
    ended = ", ".join(f"{i} at {energy[i]:.4g}" for i in far)
    warnings.warn(
        f"{owner}: {len(far)} of {len(energy)} members ended far above the others, also from new "
        f"starts: {ended} nats, where the lowest is at {np.nanmin(energy):.4g} and up to "
        f"{limit_of(energy, allowed):.4g} would be near it. They mislead an average, and a chain that "
        "begins there. Give other starts (init_params), more steps (num_steps) or a larger "
        "learning rate, or narrow the prior that starts are drawn from.",
        stacklevel=4,
    )


def where_members(take: Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Values of some members from one array, of the others from another."""
    return jnp.where(jnp.reshape(take, (-1, *(1,) * (new.ndim - 1))), new, old)


@jax.jit
def take_members(z: Values, members: Array) -> Values:
    """The members of these numbers; the shape of `members` becomes the leading axes."""
    return {name: value[members] for name, value in z.items()}


def finite_members(z: Values) -> np.ndarray:
    """Whether all values of each member are finite, (members,)."""
    # On the host: on the device each shape of a site would be compiled.
    flags = [np.isfinite(np.asarray(v)).reshape(len(v), -1).all(1) for v in z.values()]
    return np.all(flags, 0)


def keep_finite(
    owner: str, finite: np.ndarray, about_data: Callable[[], str]
) -> tuple[np.ndarray, dict[int, str]]:
    """Numbers of the members to keep, and the reason by number for the others, which are left out."""
    left_out = {int(i): "its values are not finite" for i in np.flatnonzero(~finite)}
    if not left_out:
        return np.flatnonzero(finite), left_out
    advice = (
        f"{about_data()}Use a smaller learning rate or step size: `optimizer=optax.adam(1e-3)`."
    )
    if len(left_out) == len(finite):
        raise ValueError(f"{owner}: no member stayed finite. {advice}")
    warnings.warn(
        f"{owner}: left out the members {list(left_out)} of {len(finite)}, whose values are "
        f"not finite. {advice}",
        stacklevel=3,
    )
    return np.flatnonzero(finite), left_out
