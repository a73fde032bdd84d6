"""Log prior densities of draws, site by site, in the coordinates in which a user wrote the prior.

A sampler may use other coordinates than the prior was written in: a non-centred weight w = s z is sampled as
z. Power-scaling of a prior (Kallioinen, Paananen, Bürkner and Vehtari 2024, *Detecting and diagnosing prior
and likelihood sensitivity with power-scaling*) raises the density of the user's parameters to a power, and
raising that of z would be another change of the prior. So the density that is computed is that of w given s:

    log p(w | s) = log p(z) - Σ log s.

It follows that a run has the same log prior densities whatever coordinates it was sampled in.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._types import PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import prepared
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.prediction_programs import VECTOR, flat_draws
from numpyro_bnn.posterior.prediction_sites import structure_at
from numpyro_bnn.posterior.predictions import blocks_of_draws
from numpyro_bnn.posterior.training_data import call_with
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.without_subsampling import all_rows
from numpyro_bnn.priors.coordinates import Standardized, parameterize

_BASE = ".base"


def log_prior(
    draws: Draws, x: PyTree, targets: list[str], others: Mapping[Place, PyTree] | None = None
) -> dict[str, np.ndarray]:
    """The log prior density of every random site given those above it, nats, (chain, draw)."""
    # A weight or a precision has its density in centred coordinates under its own name; other sites that only
    # serve a sampler (``….base``, a precision for each row of a t-distributed target) are left out.
    model = parameterize(all_rows(draws.model), "centered")
    args, kwargs = prepared(model, *call_with({0: x, **(others or {})}))
    structure = structure_at(model, *args, **kwargs)
    # A target with missing values (`obs_mask=`) is two sites.
    targets = [n + end for n in targets for end in ("", "_observed", "_unobserved")]
    sites = [n for n in structure.latent if n not in targets and not structure.sites[n].factor]
    lacking = [name for name in sites if name not in draws]
    if lacking:
        raise ValueError(
            f"to_inference_data: the log prior needs draws of every latent site, and these lack {lacking}. "
            "Give all sites, or pass `log_prior=False`."
        )
    arguments = Arguments.split(args, kwargs)

    def over_draws(block: dict[str, Any], arrays: list[jax.Array]) -> dict[str, jax.Array]:
        given = Arguments.join(arrays, arguments.static)
        flat = jax.tree.map(flat_draws, block)
        return lax.map(
            lambda draw: _of_one_draw(model, draw, given, sites), flat, batch_size=VECTOR
        )

    program = Program(over_draws)
    known = {n: v for n, v in draws.items() if n in structure.shapes}
    lead = (draws.num_chains, draws.num_draws)
    made: dict[str, np.ndarray] = {}
    for drawn in blocks_of_draws(known):
        block = {name: value[:, drawn] for name, value in known.items()}
        for name, found in program(block, arguments.arrays).items():
            values = made.setdefault(name, np.empty(lead, found.dtype))
            values[:, drawn] = np.asarray(found).reshape(lead[0], -1)
    return made


def _of_one_draw(
    model: Callable, draw: dict[str, Any], arguments: tuple[tuple, dict], sites: list[str]
) -> Any:
    """Log prior densities at one draw, by the name of the parameter that a user knows."""
    args, kwargs = arguments
    traced = trace(substitute(seed(model, jax.random.key(0)), data=draw)).get_trace(*args, **kwargs)
    found = {}
    for name in sites:
        site = traced[name]
        density = site["fn"].log_prob(site["value"])
        if site["scale"] is not None:
            # A scale may have the axes of the plates around the site, an entry for each value.
            density = site["scale"] * density
        density = jnp.sum(density)
        standardized = site["infer"].get("hierarchy")
        if isinstance(standardized, Standardized):
            scale = jnp.broadcast_to(standardized.scale, jnp.shape(site["value"]))
            density = density - jnp.sum(jnp.log(scale))
            name = name.removesuffix(_BASE)
        found[name] = density
    return found
