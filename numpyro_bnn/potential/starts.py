"""Completes initial positions of chains: finds values of all latent sites from values of some.

A trained network gives weights; a hierarchical prior also needs precisions, and in
non-centred coordinates standardised weights. Precisions start at their conditional means
given the weights, because weights and precisions have no useful joint mode.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs, prototype_trace
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import ParamInfo

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import as_arrays, innermost, inputs_of_call
from numpyro_bnn.data.columns import Columns, column_names
from numpyro_bnn.potential.potential import Potential, Values, constrained_by_support
from numpyro_bnn.potential.rows_in_parts import with_padding
from numpyro_bnn.potential.sites import Structure
from numpyro_bnn.potential.structure import trace_and_check
from numpyro_bnn.priors.hierarchical import parameterize, to_own_coordinates
from numpyro_bnn.priors.paths import usual_axes
from numpyro_bnn.priors.precision_conditionals import prior_means, typical_values


def centered(model: Callable, args: tuple, kwargs: dict | None = None) -> Potential:
    """The potential energy of a model in centred coordinates, over weights and precisions themselves."""
    return Potential(parameterize(model, "centered"), args, kwargs)


def own_coordinates(potential: Potential, values: Values) -> Values:
    """Unconstrained values in the model's own coordinates, from constrained weights and precisions."""
    own = to_own_coordinates(potential.bound, potential.args, potential.kwargs, values)
    return potential.unconstrain(own)


def fill_precisions(potential: Potential, values: Values) -> Values:
    """Add the hierarchical precisions that are missing, at conditional means given the weights."""
    shapes = {name: site.shape for name, site in potential.structure.sites.items()}
    return typical_values(potential.levels, shapes, values)


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


def check_mapping(owner: str, init_params: object) -> None:
    """Refuse starts of a model that are not arrays by site."""
    if not isinstance(init_params, Mapping):
        raise TypeError(
            f"{owner}: init_params of a model must be a mapping from sites to unconstrained values, "
            "such as `bnn.optimize(model, key, …)` and `bnn.from_params(params)` return, got "
            f"{type(init_params).__name__}."
        )


def start_shapes(structure: Structure) -> dict[str, tuple[int, ...]]:
    """Shapes of unconstrained values of the latent sites."""
    sites = {name: structure.sites[name] for name in structure.latent}
    return {n: s.shape if s.unconstrained is None else s.unconstrained for n, s in sites.items()}


def check_shapes(given: Mapping[str, Any], structure: Structure, chains: tuple[int, ...]) -> None:
    """Refuse starts that would change the shape of a site, and so the model."""
    for name, own in start_shapes(structure).items():
        if name in given and (shape := jnp.shape(given[name])) != (*chains, *own):
            axis = f", after a leading axis of num_chains={chains[0]}" if chains else ""
            raise ValueError(
                f"init_params give '{name}' the shape {shape}, expected {(*chains, *own)}: the shape of "
                f"its unconstrained value{axis}. `bnn.optimize(…, num_chains=)` returns such starts."
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
        sites = in_centered_coordinates.structure.sites
        placeholder = {name: jnp.zeros(sites[name].shape) for name in levels}
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
    return value * jnp.minimum(1.0, limit / jnp.sqrt(jnp.mean(value**2)))


def gentle_draw(potential: Potential, key: jax.Array) -> Values:
    """Prior draw, with kernels shrunk where the prior is wide and precisions at their means."""
    # Vague priors of precisions give draws that differ by orders of magnitude, from which
    # optimisers and chains do not recover.
    structure = potential.structure
    shapes = {name: structure.sites[name].shape for name in structure.latent}
    levels = {name: level for name, level in potential.levels.items() if name in shapes}
    drawn = potential.prior_draw(key, prior_means(levels, shapes))
    return {n: shrink(n, value, structure.sites[n].fan_in) for n, value in drawn.items()}


def gentle_start(potential: Potential, key: jax.Array) -> Values:
    """A draw of :func:`gentle_draw`, in unconstrained coordinates."""
    return potential.unconstrain(gentle_draw(potential, key))


@dataclass(frozen=True)
class BoundModel:
    """A model with its training data, which are parsed and traced once, when a fit begins."""

    model: Callable  # The model, with values of its fixed parameters
    args: tuple  # Its arguments as it takes them, in the units of a ready model
    kwargs: dict[str, Any]
    structure: Structure  # Its sites and plates
    # Arguments and keyword arguments as arrays in the user's units
    arrays: tuple[tuple, dict[str, Any]]
    columns: Columns  # Names of the columns of its inputs

    @classmethod
    def of(cls, model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> "BoundModel":
        """Parse the arguments of a fit, trace the model with them, and check both."""
        arrays = as_arrays(model, args, kwargs)
        columns = column_names(inputs_of_call(model, args, kwargs))
        return cls(*trace_and_check(model, args, dict(kwargs)), arrays, columns)

    @cached_property
    def padded(self) -> tuple[tuple, dict[str, Any]]:
        """The arguments with rows of weight 0 up to a size that other data share."""
        return with_padding(self.model, self.args, self.kwargs)

    @property
    def facts(self) -> dict[str, Any]:
        """What a stored run keeps beside its program: the prior of a ready model, whose scales it has not."""
        prior = getattr(innermost(self.model), "prior", None)
        return {} if prior is None else {"prior": prior}

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


def starts_for(
    kernel: MCMCKernel, fit: BoundModel | None, init_params: PyTree | None, num_chains: int
) -> PyTree | None:
    """Initial positions of every chain, in the form that the kernel expects."""
    if init_params is None:
        return None
    if by_site := fit is not None and not isinstance(init_params, ParamInfo):
        check_mapping("MCMC.run", init_params)
    init_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_params)
    if fit is None or not by_site:
        return init_params
    structure, chains = fit.structure, (num_chains,) if num_chains > 1 else ()
    if not chains:
        shapes = structure.deterministic | start_shapes(structure)
        init_params = _drop_chain_axis(init_params, shapes)
    # A kernel that wraps another one starts like the inner kernel.
    kernel = getattr(kernel, "kernel", kernel)
    # A collapsed model has no levels, and may be given starts of other coordinates all the same; a
    # model with discrete sites has no energy to translate by.
    discrete = any(structure.sites[name].discrete for name in structure.latent)
    if not discrete and not set(init_params) <= set(structure.latent):
        init_params = _translated(fit, init_params, chains)
    if structure.levels and set(init_params) != set(structure.latent):
        init_params = complete(fit.potential, init_params, chains)
    else:
        check_names(init_params, *sites_to_start(kernel, structure, init_params))
    check_shapes(init_params, structure, chains)
    if isinstance(kernel, Gibbs):
        init_params = _constrain_blocks(kernel, fit, init_params, bool(chains))
    return init_params


def _translated(fit: BoundModel, given: dict, chains: tuple[int, ...]) -> dict:
    """Starts given in other coordinates of the model, in its own; :func:`complete` finds what these lack."""
    for parameterization in ("noncentered", "centered"):
        other = Potential(parameterize(fit.model, parameterization), fit.args, fit.kwargs)
        if set(given) == set(other.structure.latent):
            check_shapes(given, other.structure, chains)

            def one(z: Values, other: Potential = other) -> Values:
                return own_coordinates(fit.potential, other.constrain(z, deterministic=True))

            return jax.vmap(one)(given) if chains else one(given)
    return given


def _constrain_blocks(kernel: Gibbs, fit: BoundModel, init_params: dict, batched: bool) -> dict:
    """Constrain starts of the blocks of NumPyro's Gibbs that are not HMC, as it expects them."""
    sites = prototype_trace(fit.model, jax.random.key(0), fit.args, fit.kwargs)
    by_hmc: set[str] = set()
    named: set[str] = set()
    for block, spec in kernel.blocks:
        names = () if spec is None else spec(sites) if callable(spec) else spec
        named |= set(names)
        by_hmc |= set(names) if isinstance(block, HMC) else set()
    if any(spec is None and isinstance(block, HMC) for block, spec in kernel.blocks):
        by_hmc |= set(init_params) - named
    if set(init_params) <= by_hmc:
        return init_params
    if any(fit.structure.sites[name].discrete for name in fit.structure.latent):
        # A potential has no discrete sites.
        constrain = constrained_by_support(fit.model, fit.args, fit.kwargs)
    else:
        constrain = fit.potential.constrain
    values = jax.vmap(constrain)(init_params) if batched else constrain(init_params)
    return {k: v if k in by_hmc else values[k] for k, v in init_params.items()}


def _drop_chain_axis(init_params: dict, shapes: dict[str, tuple[int, ...]]) -> dict:
    """Accept starts with a leading axis of one for a single chain."""
    known = [name for name in init_params if name in shapes]
    extra = {jnp.ndim(init_params[n]) - len(shapes[n]) for n in known}
    if known and extra == {1} and all(jnp.shape(v)[0] == 1 for v in init_params.values()):
        return {name: value[0] for name, value in init_params.items()}
    return init_params
