"""Completes initial positions of chains: finds values of all latent sites from values of some.

A trained network gives weights; a hierarchical prior also needs precisions, and in
non-centred coordinates standardised weights. Precisions start at their conditional means
given the weights, because weights and precisions have no useful joint mode.
"""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import HMC
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.sites import Structure
from numpyro_bnn.priors.coordinates import parameterize, to_own_coordinates
from numpyro_bnn.priors.paths import usual_axes
from numpyro_bnn.priors.precision_conditionals import prior_means, typical_values


def centered(model: Callable, args: tuple, kwargs: dict | None = None) -> Potential:
    """The potential energy of a model in centred coordinates, over weights and precisions themselves."""
    return Potential(parameterize(model, "centered"), args, kwargs)


def own_coordinates(potential: Potential, values: Values) -> Values:
    """Unconstrained values in the model's own coordinates, from constrained weights and precisions."""
    own = to_own_coordinates(potential.model, potential.args, potential.kwargs, values)
    return potential.unconstrain(own)


def fill_precisions(potential: Potential, values: Values) -> Values:
    """Add the hierarchical precisions that are missing, at conditional means given the weights."""
    shapes = {name: site.shape for name, site in potential.structure.sites.items()}
    return typical_values(potential.structure.levels, shapes, values)


def check_names(given: Iterable[str], known: Iterable[str], needed: Iterable[str] = ()) -> None:
    """Refuse starts that name unknown sites, or that lack a needed one."""
    unknown = [name for name in given if name not in set(known)]
    missing = [name for name in needed if name not in set(given)]
    if unknown or missing:
        faults = [f"lack the sites {missing}"] * bool(missing)
        faults += [f"give the unknown sites {unknown}"] * bool(unknown)
        raise ValueError(
            f"init_params {' and '.join(faults)}. Starts are values of the model's sites "
            f"{list(known)}; `bnn.optimize(model, key, …)` returns all of them."
        )


def check_kinds(owner: str, init_params: object) -> None:
    """Refuse starts that are not made of numbers."""
    for leaf in jax.tree.leaves(init_params, is_leaf=lambda value: value is None):
        kind = getattr(leaf, "dtype", None)
        numeric = kind is not None and any(jnp.issubdtype(kind, k) for k in (jnp.number, jnp.bool_))
        if not numeric and not isinstance(leaf, (bool, int, float, complex)):
            raise TypeError(
                f"{owner}: init_params must hold arrays of numbers, got {leaf!r}. {_HOW_TO_START}"
            )


def check_mapping(owner: str, init_params: object) -> None:
    """Refuse starts of a model that are not arrays by site."""
    check_kinds(owner, init_params)
    if not isinstance(init_params, Mapping):
        raise TypeError(
            f"{owner}: init_params of a model must be a mapping from sites to arrays, got "
            f"{type(init_params).__name__}. {_HOW_TO_START}"
        )


_HOW_TO_START = (
    "Give unconstrained values by site, `{'net/Dense_0.kernel': array, …}`, such as "
    "`bnn.optimize(model, key, …)` and `bnn.from_params(params)` return."
)


def start_shapes(structure: Structure) -> dict[str, tuple[int, ...]]:
    """Shapes of unconstrained values of the latent sites."""
    sites = {name: structure.sites[name] for name in structure.latent}
    return {n: s.shape if s.unconstrained is None else s.unconstrained for n, s in sites.items()}


def check_shapes(given: Mapping[str, Any], structure: Structure, chains: tuple[int, ...]) -> None:
    """Refuse starts that would change the shape of a site, and so the model."""
    for name, own in start_shapes(structure).items():
        if name not in given or jnp.shape(given[name]) == (*chains, *own):
            continue
        shape = jnp.shape(given[name])
        if chains and shape[:1] != chains:
            raise ValueError(
                f"init_params must have a leading axis of num_chains={chains[0]} on every array; "
                f"'{name}' has shape {shape}, expected {(*chains, *own)}. For starts of every chain "
                f"use `bnn.optimize(model, key, …, num_chains={chains[0]})`."
            )
        raise ValueError(
            f"init_params give '{name}' the shape {shape}, expected {(*chains, *own)}: the shape of "
            f"its unconstrained value{', of each chain' if chains else ''}. A start of another shape "
            "would change the model."
        )


def complete(potential: Potential, given: Values, chains: tuple[int, ...]) -> Values:
    """Unconstrained start of all latent sites from values of weights (and unconstrained other sites)."""
    # Precisions start at their conditional means. Every array has the leading axis `chains`, () for none.
    in_centered_coordinates = centered(potential.model, potential.args, potential.kwargs)
    levels = in_centered_coordinates.structure.levels
    needed = [n for n in in_centered_coordinates.structure.latent if n not in levels]
    check_names(given, [*needed, *levels], needed)
    check_shapes(given, in_centered_coordinates.structure, chains)

    def one(values: Values) -> Values:
        placeholder = {
            n: jnp.zeros(in_centered_coordinates.structure.sites[n].shape) for n in levels
        }
        constrained = in_centered_coordinates.constrain({**placeholder, **values})
        constrained = {n: constrained[n] for n in constrained if n in values or n not in levels}
        return own_coordinates(potential, fill_precisions(in_centered_coordinates, constrained))

    return jax.vmap(one)(given) if chains else one(given)


def shrink(name: str, value: jax.Array, known: int | None = None) -> jax.Array:
    """Scale a kernel down to variance 1/fan-in, if it is a larger draw from a wide prior."""
    if "/" not in name or jnp.ndim(value) < 2:
        return value
    if (count := known) is None:
        # Not `fan_in`, which refuses what it does not know: a rough size is enough.
        shape = jnp.shape(value)
        axes = usual_axes(name.rsplit("/", 1)[1], shape)
        count = prod(shape[:-1] if axes is None else [shape[axis] for axis in axes])
    limit = 1 / jnp.sqrt(count)
    spread = jnp.sqrt(jnp.mean(value**2))
    return value * jnp.minimum(1.0, limit / spread)


def gentle_draw(potential: Potential, key: jax.Array) -> Values:
    """Prior draw, with kernels shrunk where the prior is wide and precisions at their means."""
    # Vague priors of precisions give draws that differ by orders of magnitude, from which
    # optimisers and chains do not recover.
    structure = potential.structure
    shapes = {name: structure.sites[name].shape for name in structure.latent}
    levels = {name: level for name, level in structure.levels.items() if name in shapes}
    drawn = potential.prior_draw(key, prior_means(levels, shapes))
    return {n: shrink(n, value, structure.sites[n].fan_in) for n, value in drawn.items()}


def gentle_start(potential: Potential, key: jax.Array) -> Values:
    """A draw of :func:`gentle_draw`, in unconstrained coordinates."""
    return potential.unconstrain(gentle_draw(potential, key))


class BoundModel(NamedTuple):
    """A model together with its training data."""

    model: Callable
    args: tuple
    kwargs: dict[str, object]
    structure: Structure

    @property
    def potential(self) -> Potential:
        """The potential energy of the model for these arguments."""
        return Potential(self.model, self.args, self.kwargs)


def sites_to_start(
    kernel: MCMCKernel, structure: Structure, given: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Names of the sites that a start of a kernel may contain, and of those that it must contain."""
    # Discrete sites need no start: they are summed out under HMC, or drawn by a kernel of their own.
    own = [name for name in structure.latent if not structure.sites[name].discrete]
    if isinstance(kernel, HMC):
        return own, own
    # NumPyro's HMCGibbs starts the sites of its own function by itself.
    drawn = set(getattr(kernel, "_gibbs_sites", None) or ())
    moved = [name for name in own if name not in drawn]
    return structure.latent, moved if any(n in moved for n in given) or not drawn else []
