"""Sums the likelihood of a model a chunk of rows at a time, for full batches in bounded memory.

For every sampler :class:`Chunked` is the model that it wraps, with all observed sites replaced by one factor:
their log density at the sampled values, summed over chunks of the data plate. Value and gradient of a chunk
are computed together and only their sums are kept, so that memory grows with the chunk and not with the
number of rows, without another pass over the data.
"""

from collections.abc import Callable

import jax
import numpyro
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer import HMC
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import log_density

from numpyro_bnn._checks import check_whole
from numpyro_bnn.data.host_rows import with_stand_ins
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.rows import summed
from numpyro_bnn.potential.structure import structure_of

SITE = "log likelihood in chunks"


class _LogLikelihood:
    """Log likelihood and gradient of some rows, as :func:`~numpyro_bnn.potential.rows.in_chunks` expects."""

    def __init__(self, model: Callable, args: tuple, kwargs: dict, plate: str | None) -> None:
        self.potential = Potential(model, args, kwargs)
        self.plate, self.size = self.potential.data_plate(plate)

    def value(self, latent: dict, indices: jax.Array, contiguous: bool) -> jax.Array:
        """log p(y_I | θ) N/B at constrained values."""
        potential = self.potential
        bound = substitute(potential.rows_of(indices, self.plate, contiguous), data=latent)
        hidden = block(seed(bound, jax.random.key(0)), hide=list(potential.structure.latent))
        # This code runs inside a model, whose handlers must not see the rows of a chunk.
        with block():
            return log_density(hidden, potential.args, potential.kwargs, {})[0]

    def some(self, latent: dict, indices: jax.Array, contiguous: bool) -> tuple[jax.Array, dict]:
        return jax.value_and_grad(self.value)(latent, indices, contiguous)


class Chunked:
    """A model whose likelihood is summed in chunks of rows; the head of this module says how."""

    def __init__(self, fn: Callable, chunk_size: int, plate: str | None = None) -> None:
        self.fn = fn
        self.chunk_size = check_whole("MCMC", "chunk_size", chunk_size)
        self.plate = plate

    def __call__(self, *args: object, **kwargs: object) -> object:
        with block():
            observed = structure_of(self.fn, args, kwargs).observed
        if not observed:
            return self.fn(*args, **kwargs)
        # The model is called on all rows once more, for the values of deterministic sites; the compiler
        # removes that call where they are not used.
        visited = trace(block(with_stand_ins(self.fn), hide=list(observed)))
        sites = visited.get_trace(*args, **kwargs)
        latent = {
            name: site["value"]
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        with block():
            rows = _LogLikelihood(self.fn, args, kwargs, self.plate)
        numpyro.factor(SITE, summed(rows, self.chunk_size)(latent))
        return None


def chunked_kernel(kernel: MCMCKernel, chunk_size: int) -> MCMCKernel:
    """A copy of HMC or NUTS over a model whose likelihood is summed in chunks."""
    if not isinstance(kernel, HMC) or kernel.model is None:
        raise ValueError(
            f"MCMC: chunk_size={chunk_size!r} is for HMC or NUTS over a model, got "
            f"{type(kernel).__name__}. For a kernel of this package give it "
            f"`gradient=gradients.full(chunk_size={chunk_size!r})` instead."
        )
    return kernel.wrap_model(lambda model: Chunked(model, chunk_size))
