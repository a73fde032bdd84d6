"""Where chains start: full sets of latent values from a few of them.

A trained network gives weights; a hierarchical prior also needs precisions, and in
non-centred coordinates standardised weights. Precisions start at their conditional means
given the weights, because weights and precisions have no useful joint mode.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_bnn.hierarchy import parameterize, to_own_coordinates
from numpyro_bnn.potential import Potential, Values
from numpyro_bnn.rules import fan_in


def centered(potential: Potential) -> Potential:
    """The same posterior over weights and precisions themselves."""
    model = parameterize(potential.model, "centered")
    return Potential(model, potential.args, potential.kwargs)


def own_coordinates(potential: Potential, values: Values) -> Values:
    """Unconstrained latent values from constrained ones of weights and precisions."""
    own = to_own_coordinates(potential.model, potential.args, potential.kwargs, values)
    return potential.unconstrain(own)


def fill_precisions(potential: Potential, values: Values) -> Values:
    """Add every hierarchical precision at its conditional mean given the weights."""
    filled = dict(values)
    for name, group in potential.structure.groups.items():
        filled[name] = group.conditional(filled).mean
    return filled


def check_names(given: Iterable[str], known: Iterable[str], needed: Iterable[str] = ()) -> None:
    """Refuse starts for sites that a model does not have, or that lack some.

    :raises ValueError: naming them.
    """
    unknown = [name for name in given if name not in set(known)]
    missing = [name for name in needed if name not in set(given)]
    if unknown or missing:
        faults = [f"lack the sites {missing}"] * bool(missing)
        faults += [f"give the unknown sites {unknown}"] * bool(unknown)
        raise ValueError(
            f"init_params {' and '.join(faults)}. Starts are values of the model's sites "
            f"{list(known)}; `bnn.optimize(model, key, …)` returns all of them."
        )


def complete(potential: Potential, given: dict[str, Any], batched: bool) -> Values:
    """Unconstrained start from the values of weights alone.

    :param potential: of the model to start.
    :param given: values of weight sites (``"net/Dense_0.kernel"``), which are real, and
        unconstrained ones of any further latent sites.
    :param batched: whether every array has a leading axis of chains.
    :return: unconstrained values of every latent site; precisions at their conditional means.
    :raises ValueError: if other sites are missing, naming them.
    """
    around = centered(potential)
    needed = [n for n in around.structure.latent if n not in around.structure.groups]
    check_names(given, [*needed, *around.structure.groups], needed)

    def one(values: Values) -> Values:
        placeholder = {n: jnp.zeros(()) for n in around.structure.groups}
        constrained = around.constrain({**placeholder, **values})
        return own_coordinates(potential, fill_precisions(around, constrained))

    return jax.vmap(one)(given) if batched else one(given)


def shrink(name: str, value: jax.Array) -> jax.Array:
    """Scale a kernel down to variance 1/fan-in, where a draw from a wide prior is larger."""
    if "/" not in name or jnp.ndim(value) < 2:
        return value
    limit = 1 / jnp.sqrt(fan_in(name.rsplit("/", 1)[1], jnp.shape(value)))
    spread = jnp.sqrt(jnp.mean(value**2))
    return value * jnp.minimum(1.0, limit / spread)


def gentle_start(potential: Potential, rng_key: jax.Array) -> Values:
    """Unconstrained prior draw, with kernels shrunk where the prior is wide."""
    drawn = potential.prior_draw(rng_key)
    return potential.unconstrain({name: shrink(name, value) for name, value in drawn.items()})
