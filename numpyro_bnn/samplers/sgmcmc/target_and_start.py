"""The potential that a kernel samples, and the position at which a chain begins."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from numpyro.infer.gibbs import GIBBS_SITES_KWARG

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.potential.starts import gentle_start


def rows_of(
    model: Callable, args: tuple, kwargs: dict | None, needs_rows: bool, plate: str | None
) -> Rows:
    """The potential of a model for these arguments, and its data plate if minibatches are taken."""
    potential = Potential(model, args, kwargs)
    if needs_rows:
        return Rows(potential, *potential.data_plate(plate))
    sites = (potential.structure.sites[name] for name in potential.structure.data)
    sizes = [potential.structure.plates[p].size for p in {p for site in sites for p in site.plates}]
    return Rows(potential, size=sizes[0] if len(sizes) == 1 else 0)


def start_of(
    owner: str, rows: Rows, key: jax.Array, init_params: PyTree, kwargs: dict | None
) -> PyTree:
    """The unconstrained position at which a chain begins; by default a prior draw without extreme values."""
    if not isinstance(rows.potential, Potential):
        if init_params is None:
            raise ValueError(
                f"{owner}: potential_fn says nothing about where to start. Give `init_params=` to "
                "`MCMC.run`."
            )
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x, float)), init_params)
    if init_params is None:
        return gentle_start(rows.potential, key)
    if kwargs and GIBBS_SITES_KWARG in kwargs:
        # NumPyro's Gibbs passes constrained values to every block that is not HMC.
        return rows.potential.unconstrain(init_params)
    return dict(init_params)
