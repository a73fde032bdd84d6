"""Where chains start: full sets of latent values from a few of them.

A trained network gives weights; a hierarchical prior also needs precisions, and in
non-centred coordinates standardised weights. Precisions start at their conditional means
given the weights, because weights and precisions have no useful joint mode.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs, prototype_trace
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import ParamInfo

from numpyro_bnn.hierarchy import parameterize, to_own_coordinates
from numpyro_bnn.levels import prior_means, typical_values
from numpyro_bnn.potential import Potential, Values, transforms_of
from numpyro_bnn.rules import fan_in
from numpyro_bnn.sites import Structure


def centered(potential: Potential) -> Potential:
    """The same posterior over weights and precisions themselves."""
    model = parameterize(potential.model, "centered")
    return Potential(model, potential.args, potential.kwargs)


def own_coordinates(potential: Potential, values: Values) -> Values:
    """Unconstrained latent values from constrained ones of weights and precisions."""
    own = to_own_coordinates(potential.model, potential.args, potential.kwargs, values)
    return potential.unconstrain(own)


def fill_precisions(potential: Potential, values: Values) -> Values:
    """Add the hierarchical precisions that are missing, at conditional means given the weights."""
    shapes = {name: site.shape for name, site in potential.structure.sites.items()}
    return typical_values(potential.structure.levels, shapes, values)


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


def check_kinds(owner: str, init_params: Any) -> None:
    """Refuse starts that are not made of numbers.

    :param owner: the caller, for error messages.
    :raises TypeError: naming the first that is not.
    """
    for leaf in jax.tree.leaves(init_params, is_leaf=lambda value: value is None):
        kind = getattr(leaf, "dtype", None)
        numeric = kind is not None and any(jnp.issubdtype(kind, k) for k in (jnp.number, jnp.bool_))
        if not numeric and not isinstance(leaf, (bool, int, float, complex)):
            raise TypeError(
                f"{owner}: init_params must hold arrays of numbers, got {leaf!r}. {_HOW_TO_START}"
            )


def check_mapping(owner: str, init_params: Any) -> None:
    """Refuse starts of a model that are not arrays by site.

    :raises TypeError: naming what they are.
    """
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


def _start_shapes(structure: Structure) -> dict[str, tuple[int, ...]]:
    """Shapes of unconstrained values of the latent sites."""
    sites = {name: structure.sites[name] for name in structure.latent}
    return {n: s.shape if s.unconstrained is None else s.unconstrained for n, s in sites.items()}


def _check_shapes(given: Mapping[str, Any], structure: Structure, chains: tuple[int, ...]) -> None:
    """Refuse starts that would change the shape of a site, and so the model.

    :param chains: the axis of chains, () where there is none.
    :raises ValueError: naming the site and both shapes.
    """
    for name, own in _start_shapes(structure).items():
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


def complete(potential: Potential, given: dict[str, Any], chains: tuple[int, ...]) -> Values:
    """Unconstrained start from the values of weights alone.

    :param potential: of the model to start.
    :param given: values of weight sites (``"net/Dense_0.kernel"``), which are real, and
        unconstrained ones of any further latent sites.
    :param chains: the leading axis of chains that every array has, () where there is none.
    :return: unconstrained values of every latent site; precisions at their conditional means.
    :raises ValueError: if other sites are missing, naming them.
    """
    around = centered(potential)
    levels = around.structure.levels
    needed = [n for n in around.structure.latent if n not in levels]
    check_names(given, [*needed, *levels], needed)
    _check_shapes(given, around.structure, chains)

    def one(values: Values) -> Values:
        placeholder = {n: jnp.zeros(around.structure.sites[n].shape) for n in levels}
        constrained = around.constrain({**placeholder, **values})
        constrained = {n: constrained[n] for n in constrained if n in values or n not in levels}
        return own_coordinates(potential, fill_precisions(around, constrained))

    return jax.vmap(one)(given) if chains else one(given)


def shrink(name: str, value: jax.Array) -> jax.Array:
    """Scale a kernel down to variance 1/fan-in, where a draw from a wide prior is larger."""
    if "/" not in name or jnp.ndim(value) < 2:
        return value
    limit = 1 / jnp.sqrt(fan_in(name.rsplit("/", 1)[1], jnp.shape(value)))
    spread = jnp.sqrt(jnp.mean(value**2))
    return value * jnp.minimum(1.0, limit / spread)


def gentle_draw(potential: Potential, rng_key: jax.Array) -> Values:
    """Prior draw, with kernels shrunk where the prior is wide and precisions at their means.

    Vague laws of precisions give draws many orders of magnitude apart, from where nothing is learnt.
    """
    structure = potential.structure
    shapes = {name: structure.sites[name].shape for name in structure.latent}
    levels = {name: level for name, level in structure.levels.items() if name in shapes}
    drawn = potential.prior_draw(rng_key, prior_means(levels, shapes))
    return {name: shrink(name, value) for name, value in drawn.items()}


def gentle_start(potential: Potential, rng_key: jax.Array) -> Values:
    """The same, unconstrained."""
    return potential.unconstrain(gentle_draw(potential, rng_key))


class Fit(NamedTuple):
    """A model on its training data.

    - **model** - the model
    - **args**, **kwargs** - its arguments
    - **structure** - what it consists of for them
    """

    model: Callable
    args: tuple
    kwargs: dict[str, Any]
    structure: Structure

    @property
    def potential(self) -> Potential:
        return Potential(self.model, self.args, self.kwargs)


def starts_for(kernel: MCMCKernel, fit: Fit | None, init_params: Any, num_chains: int) -> Any:
    """Starts for every chain, in the form that a kernel wants.

    :param kernel: any kernel.
    :param fit: its model on the data; None for a kernel over a potential function.
    :param init_params: unconstrained values, of all latent sites or of the weights alone, with a
        leading axis of chains; or None.
    :param num_chains: number of chains.
    :raises ValueError: for sites or shapes that do not fit.
    """
    if init_params is None:
        return None
    check_kinds("MCMC.run", init_params)
    init_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_params)
    chains = (num_chains,) if num_chains > 1 else ()
    if fit is not None and not isinstance(init_params, ParamInfo):
        check_mapping("MCMC.run", init_params)
        if not chains:
            shapes = fit.structure.deterministic | _start_shapes(fit.structure)
            init_params = _drop_chain_axis(init_params, shapes)
        return _all_sites(kernel, fit, init_params, chains)
    leading = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(init_params)}
    if chains and leading != {chains}:
        raise ValueError(
            f"init_params must have a leading axis of num_chains={num_chains} on every "
            f"array, got leading axes {sorted(leading)}. Give a start for each chain."
        )
    return init_params


def _translated(fit: Fit, given: dict, chains: tuple[int, ...]) -> dict:
    """Starts of all sites of the model in other coordinates, in its own.

    Collapsed coordinates have no value of the lowest precisions: :func:`complete` finds them.
    """
    for parameterization in ("noncentered", "centered"):
        other = Potential(parameterize(fit.model, parameterization), fit.args, fit.kwargs)
        if set(given) == set(other.structure.latent):
            _check_shapes(given, other.structure, chains)

            def one(z: Values, other: Potential = other) -> Values:
                values = other.constrain(z, deterministic=True)
                return own_coordinates(fit.potential, values)

            return jax.vmap(one)(given) if chains else one(given)
    return given


def _all_sites(kernel: MCMCKernel, fit: Fit, init_params: dict, chains: tuple[int, ...]) -> dict:
    # A kernel around another starts as that does.
    kernel = getattr(kernel, "kernel", kernel)
    structure = fit.structure
    batched = bool(chains)
    if structure.levels and not set(init_params) <= set(structure.latent):
        init_params = _translated(fit, init_params, chains)
    if structure.levels and set(init_params) != set(structure.latent):
        init_params = complete(fit.potential, init_params, chains)
    else:
        check_names(init_params, *_sites_to_start(kernel, structure, init_params))
    _check_shapes(init_params, structure, chains)
    if isinstance(kernel, Gibbs):
        init_params = _constrain_blocks(kernel, fit, init_params, batched)
    return init_params


def _sites_to_start(
    kernel: MCMCKernel, structure: Structure, given: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Sites that a start may give to a kernel, and those that it must."""
    # Discrete sites are summed out under HMC, or drawn by a kernel of their own: no start.
    own = [name for name in structure.latent if not structure.sites[name].discrete]
    if isinstance(kernel, HMC):
        return own, own
    # NumPyro's HMCGibbs starts the sites of its own function by itself.
    drawn = set(getattr(kernel, "_gibbs_sites", None) or ())
    moved = [name for name in own if name not in drawn]
    return structure.latent, moved if any(n in moved for n in given) or not drawn else []


def _constrain_blocks(kernel: Gibbs, fit: Fit, init_params: dict, batched: bool) -> dict:
    """NumPyro's Gibbs takes constrained starts for every block that is not HMC."""
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
        # A potential has no discrete sites; supports do.
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
