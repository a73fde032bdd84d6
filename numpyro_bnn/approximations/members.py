"""Members of an ensemble after they were optimised: which to keep, and which to warn of."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.sites import Structure


def allowed_excess(structure: Structure, num_weights: int) -> float:
    """How far above the best a member may end, in nats.

    Around a mode the energies of a Gaussian posterior exceed its own by half a χ² of as many
    degrees of freedom as the data decide parameters: k/2 on average, √(k/2) the standard
    deviation. Beyond k/2 + 5 √(k/2) + 10 is where the posterior of the best member never goes.

    :param structure: of the model.
    :param num_weights: parameters.
    """
    sites = [structure.sites[name] for name in structure.observed]
    decided = float(num_weights)
    if not any(site.factor for site in sites):
        decided = min(decided, float(sum(math.prod(site.shape) for site in sites)))
    return decided / 2 + 5 * math.sqrt(decided / 2) + 10


def far_above(energy: np.ndarray, allowed: float) -> np.ndarray:
    """Which members ended far above the lowest, or not finite.

    Far is further than :func:`limit_of`.

    :param energy: of each member, nats.
    :param allowed: by the model, see :func:`allowed_excess`.
    """
    finite = np.isfinite(energy)
    if not finite.any():
        return np.zeros(len(energy), bool)
    return ~finite | (energy > limit_of(energy, allowed))


def limit_of(energy: np.ndarray, allowed: float) -> float:
    """The energy up to which members are near the lowest, nats.

    Where half of them are as far away as the model allows, or nearly, as modes of unequal depth
    and the noise of minibatches make them, ten times their excess is allowed.
    """
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


def where_members(take: Any, new: jax.Array, old: jax.Array) -> jax.Array:
    """Values of some members from one array, of the others from another."""
    return jnp.where(jnp.reshape(take, (-1, *(1,) * (new.ndim - 1))), new, old)


def finite_members(z: Values) -> np.ndarray:
    """Whether all values of each member are finite, (members,)."""
    flags = [jnp.isfinite(v).reshape(len(v), -1).all(1) for v in z.values()]
    return np.asarray(jnp.stack(flags).all(0))


def keep_finite(owner: str, finite: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """Numbers of the members to keep, and what to say of the others: they are never averaged in.

    :raises ValueError: if none is left.
    """
    left_out = {int(i): "its values are not finite" for i in np.flatnonzero(~finite)}
    advice = (
        "Check the data for NaN or infinite values, or use a smaller learning rate or step size: "
        "`optimizer=optax.adam(1e-3)`."
    )
    if len(left_out) == len(finite):
        raise ValueError(f"{owner}: no member stayed finite. {advice}")
    if left_out:
        warnings.warn(
            f"{owner}: left out the members {list(left_out)} of {len(finite)}, whose values are "
            f"not finite. {advice}",
            stacklevel=3,
        )
    return np.flatnonzero(finite), left_out
