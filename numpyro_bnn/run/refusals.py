"""Refuses runs that would be silently wrong: models a kernel cannot sample, starts of infinite energy.

What is wrong with a model whatever its kernel is found in `potential/structure.py`, and with a network in
`models/networks.py`.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpyro.infer import AIES, ESS, HMC, HMCECS, SA, BarkerMH, HMCGibbs, MixedHMC
from numpyro.infer.gibbs import Gibbs
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.data.host_rows import sources_in
from numpyro_bnn.data.not_finite import advice_on_data
from numpyro_bnn.potential.sites import Structure
from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.run.kernel_protocol import with_inner_kernels
from numpyro_bnn.samplers.kernels import refuse_unequal

# Kernels of NumPyro that need all rows in every step; HMCECS is an HMCGibbs that does not.
_ON_ALL_ROWS = (HMC, HMCGibbs, MixedHMC, BarkerMH, SA, AIES, ESS)


def check_call(
    sampler: MCMCKernel,
    model: Callable | None,
    chunked: bool,
    args: tuple,
    kwargs: dict[str, object],
) -> BoundModel | None:
    """The model traced with its arguments; refuses what the kernel samples wrongly."""
    if model is None:
        return None
    refuse_host_rows(sampler, chunked, (args, kwargs))
    fit = BoundModel.of(model, args, kwargs)
    if hasattr(sampler, "take_batch_size"):
        sampler.take_batch_size(fit.structure)
    refuse_subsampling(sampler, fit.structure)
    for kernel in with_inner_kernels(sampler):
        if isinstance(kernel, Gibbs):
            refuse_unequal([part for part, _ in kernel.blocks])
    refuse_sites_of_host_rows(fit)
    return fit


def refuse_subsampling(sampler: MCMCKernel, structure: Structure) -> None:
    """Refuse a model that subsamples under a kernel that would use one fixed minibatch for the whole run."""
    on_all_rows = getattr(sampler, "looks_at_all_rows", isinstance(sampler, _ON_ALL_ROWS))
    if isinstance(sampler, HMCECS) or not on_all_rows:
        return
    for name, (size, subsample_size) in structure.plates.items():
        if subsample_size < size:
            kernel = type(sampler).__name__
            raise ValueError(
                f"{kernel}: the plate '{name}' subsamples {subsample_size} of {size} rows, and {kernel} "
                "would freeze one such batch for the whole run. Remove `subsample_size=` to use all rows, "
                "or use a stochastic-gradient kernel with `batch_size=`."
            )


def refuse_host_rows(sampler: MCMCKernel, chunked: bool, data: PyTree) -> None:
    """Refuse data on the host under a sampler that needs all rows on the device."""
    sources = sources_in(data)
    if sources and not chunked and not getattr(sampler, "takes_host_rows", False):
        raise ValueError(
            f"{type(sampler).__name__}: cannot take {sources[0]!r}, because it looks at all rows at "
            "once. Give `chunk_size=` to MCMC with HMC or NUTS, or use a kernel of this package, "
            "with `batch_size=`."
        )


def refuse_sites_of_host_rows(fit: BoundModel) -> None:
    """Refuse deterministic sites that depend on all rows: host data are never on the device together."""
    if not fit.structure.deterministic or not sources_in((fit.args, fit.kwargs)):
        return
    potential = fit.potential

    @jax.jit
    def sites() -> Any:
        z = potential.unconstrain(potential.prior_draw(jax.random.key(0)))
        return potential.constrain(z, deterministic=True)

    # The placeholders for host data are NaN, so a site that depends on rows is NaN.
    values = {name: value for name, value in sites().items() if name in fit.structure.deterministic}
    for name, value in values.items():
        if np.isnan(value).any():
            raise ValueError(
                f"The deterministic site '{name}' depends on rows of data on the host, which are "
                "never all on the device. Take it out of the model, and compute it from the draws."
            )


def check_energy(fit: BoundModel, energy: Array, position: Callable[[], PyTree]) -> None:
    """Refuse starts without a finite potential energy."""
    bad = np.flatnonzero(~np.isfinite(np.atleast_1d(np.asarray(energy))))
    if not bad.size:
        return
    chain, z = int(bad[0]), position()
    if np.ndim(energy):
        z = jax.tree.map(lambda leaf: leaf[chain], z)
    potential = fit.potential
    # Compiled, because distributions refuse concrete values that are NaN.
    by_site = jax.jit(lambda z: potential.log_joint_by_site(potential.constrain(z)))(z)
    sites = {k: float(v) for k, v in by_site.items() if not np.isfinite(v)}
    raise ValueError(
        f"Chain {chain} starts where the potential energy is not finite; log densities by "
        f"site: {sites or 'all finite, but their sum is not'}. "
        f"{advice_on_data(fit.model, fit.args, fit.kwargs)}Start from `bnn.optimize(model, key, …)`."
    )
