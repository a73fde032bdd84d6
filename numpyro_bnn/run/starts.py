"""Initial positions of the chains, in the form that each kernel expects."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs, prototype_trace
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import ParamInfo

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.potential import Potential, Values, transforms_of
from numpyro_bnn.potential.starts import (
    BoundModel,
    check_kinds,
    check_mapping,
    check_names,
    check_shapes,
    complete,
    own_coordinates,
    sites_to_start,
    start_shapes,
)
from numpyro_bnn.priors.coordinates import parameterize


def starts_for(
    kernel: MCMCKernel, fit: BoundModel | None, init_params: PyTree | None, num_chains: int
) -> PyTree | None:
    """Initial positions of every chain, in the form that the kernel expects."""
    if init_params is None:
        return None
    check_kinds("MCMC.run", init_params)
    init_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_params)
    chains = (num_chains,) if num_chains > 1 else ()
    if fit is not None and not isinstance(init_params, ParamInfo):
        check_mapping("MCMC.run", init_params)
        if not chains:
            shapes = fit.structure.deterministic | start_shapes(fit.structure)
            init_params = _drop_chain_axis(init_params, shapes)
        return _all_sites(kernel, fit, init_params, chains)
    leading = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(init_params)}
    if chains and leading != {chains}:
        raise ValueError(
            f"init_params must have a leading axis of num_chains={num_chains} on every "
            f"array, got leading axes {sorted(leading)}. Give a start for each chain."
        )
    return init_params


def _translated(fit: BoundModel, given: dict, chains: tuple[int, ...]) -> dict:
    """Starts given in other coordinates of the model, in its own; :func:`complete` finds what these lack."""
    for parameterization in ("noncentered", "centered"):
        other = Potential(parameterize(fit.model, parameterization), fit.args, fit.kwargs)
        if set(given) == set(other.structure.latent):
            check_shapes(given, other.structure, chains)

            def one(z: Values, other: Potential = other) -> Values:
                values = other.constrain(z, deterministic=True)
                return own_coordinates(fit.potential, values)

            return jax.vmap(one)(given) if chains else one(given)
    return given


def _all_sites(
    kernel: MCMCKernel, fit: BoundModel, init_params: dict, chains: tuple[int, ...]
) -> dict:
    # A kernel that wraps another one starts like the inner kernel.
    kernel = getattr(kernel, "kernel", kernel)
    structure = fit.structure
    batched = bool(chains)
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
        init_params = _constrain_blocks(kernel, fit, init_params, batched)
    return init_params


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
    constrain: Callable
    if any(fit.structure.sites[name].discrete for name in fit.structure.latent):
        # Transforms come from the supports: a potential has no discrete sites.
        transforms = transforms_of(fit.model, fit.args, fit.kwargs)

        def constrain(z: Values) -> Values:
            return {name: transforms[name](v) if name in transforms else v for name, v in z.items()}

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
