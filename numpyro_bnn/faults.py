"""What can be wrong with a run: models that HMC would get wrong, starts without energy, explosions."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import HMC
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import constrain_fn
from numpyro.util import find_stack_level

from numpyro_bnn.host_rows import sources_in
from numpyro_bnn.sgmcmc.kernel import SGMCMC
from numpyro_bnn.start import Fit
from numpyro_bnn.structure import Structure


_BY_SCHEDULE = "its schedule"


def refuse_subsampling(sampler: HMC, structure: Structure) -> None:
    """Refuse HMC over a model that subsamples: one minibatch would stand for all data.

    :raises ValueError: naming the plate.
    """
    for name, (size, subsample_size) in structure.plates.items():
        if subsample_size < size:
            kernel = type(sampler).__name__
            raise ValueError(
                f"{kernel}: the plate '{name}' subsamples {subsample_size} of {size} rows, and "
                f"{kernel} would freeze one such batch for the whole run. Remove "
                "`subsample_size=` to use all rows, or use a stochastic-gradient kernel with "
                "`batch_size=`."
            )


def refuse_host_rows(sampler: MCMCKernel, chunked: bool, data: Any) -> None:
    """Refuse data on the host where a sampler would want all of them on the device."""
    sources = sources_in(data)
    if sources and not chunked and not isinstance(sampler, SGMCMC):
        raise ValueError(
            f"{type(sampler).__name__}: cannot take {sources[0]!r}, because it looks at all rows at "
            "once. Give `chunk_size=` to MCMC with HMC or NUTS, or use a kernel of this package, "
            "with `batch_size=`."
        )


def refuse_sites_of_host_rows(fit: Fit) -> None:
    """Refuse deterministic sites that only all rows, which are never together, could tell."""
    if not fit.structure.deterministic or not sources_in((fit.args, fit.kwargs)):
        return
    potential = fit.potential

    @jax.jit
    def sites() -> Any:
        z = potential.unconstrain(potential.prior_draw(jax.random.key(0)))
        return constrain_fn(
            potential.bound, potential.args, potential.kwargs, z, return_deterministic=True
        )

    # Stand-ins for the rows are NaN.
    found = {name: value for name, value in sites().items() if name in fit.structure.deterministic}
    for name, value in found.items():
        if np.isnan(value).any():
            raise ValueError(
                f"The deterministic site '{name}' depends on rows of data on the host, which are "
                "never all on the device. Take it out of the model, and compute it from the draws."
            )


def check_energy(fit: Fit, energy: Any, z: Any) -> None:
    """Refuse starts without a finite potential energy.

    :param fit: the model on its data.
    :param energy: of every chain, or of the only one.
    :param z: positions, with an axis of chains if the energies have one.
    :raises ValueError: naming the chain and the sites.
    """
    bad = np.flatnonzero(~np.isfinite(np.atleast_1d(np.asarray(energy))))
    if not bad.size:
        return
    chain = int(bad[0])
    if np.ndim(energy):
        z = jax.tree.map(lambda leaf: leaf[chain], z)
    potential = fit.potential
    # Compiled, because distributions refuse concrete values that are NaN.
    by_site = jax.jit(lambda z: potential.log_joint_by_site(potential.constrain(z)))(z)
    sites = {k: float(v) for k, v in by_site.items() if not np.isfinite(v)}
    raise ValueError(
        f"Chain {chain} starts where the potential energy is not finite; log densities by "
        f"site: {sites or 'all finite, but their sum is not'}. Check the data for NaN or "
        "infinite values, and start from `bnn.optimize(model, key, …)`."
    )


def failed_chains(state: Any, bad: dict[int, int]) -> dict[int, str]:
    """Why chains failed, by chain.

    :param state: of the kernel, after the last step.
    :param bad: first draw of a chain that is not finite.
    """
    return _exploded(state) | {chain: f"draw {i} is not finite" for chain, i in bad.items()}


def warn_of_failed(failed: dict[int, str], num_chains: int) -> None:
    """Say which chains are left out, and why.

    :param failed: at least one chain.
    :raises RuntimeError: if no other chain is left.
    """
    reasons = "; ".join(f"chain {chain}: {why}" for chain, why in failed.items())
    advice = "Use a smaller step size, or start from `bnn.optimize`."
    if any(why.startswith(_BY_SCHEDULE) for why in failed.values()):
        advice = (
            "Correct the schedule: what it gives must be finite and not negative at every count."
        )
    if len(failed) == num_chains:
        raise RuntimeError(f"No chain stayed finite ({reasons}). {advice}")
    warnings.warn(
        f"Left out {len(failed)} of {num_chains} chains ({reasons}). {advice}",
        stacklevel=find_stack_level(),
    )


def _exploded(state: Any) -> dict[int, str]:
    """Chains that a kernel, or a block of Gibbs, has frozen."""
    left_out = {}
    for part in (state, *getattr(state, "block_states", ())):
        steps = np.atleast_1d(np.asarray(getattr(part, "exploded_at", -1)))
        for chain in np.flatnonzero(steps >= 0):
            left_out[int(chain)] = f"{_cause(part, chain)} at step {steps[chain]}, warm-up included"
    return left_out


def _cause(state: Any, chain: Any) -> str:
    """Why a chain was frozen, which its state shows."""
    for field, name in (("step_size", "step size"), ("temperature", "temperature")):
        value = float(np.atleast_1d(np.asarray(getattr(state, field)))[chain])
        if not (np.isfinite(value) and value >= 0):
            return f"{_BY_SCHEDULE} gave the {name} {value:.4g}"
    return "exploded"


def first_bad_draws(draws: Any) -> dict[int, int]:
    """First draw of each chain that is not finite somewhere, by chain.

    :param draws: pytree of arrays (chain, draw, …), on a device or on the host.
    """
    found: dict[int, int] = {}
    for values in jax.tree.leaves(draws):
        if not jnp.issubdtype(values.dtype, jnp.inexact):
            continue
        finite = np.asarray(_finite(values))
        for chain in np.flatnonzero(~finite.all(1)):
            first = int(np.argmin(finite[chain]))
            found[int(chain)] = min(first, found.get(int(chain), first))
    return found


def _finite(values: Any) -> Any:
    if isinstance(values, jax.Array):
        return _finite_on_device(values)
    # A sum passes over them once and keeps nothing; it is finite only if all of them are.
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum()):
            return np.ones(values.shape[:2], bool)
    return np.isfinite(values).all(axis=tuple(range(2, values.ndim)))


@jax.jit
def _finite_on_device(values: jax.Array) -> jax.Array:
    return jnp.isfinite(values).all(axis=tuple(range(2, values.ndim)))
