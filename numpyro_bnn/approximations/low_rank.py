"""A Gaussian whose precision is that of the prior, plus the strongest directions of what the data say.

With D the diagonal precision of the prior and G = Σ JᵀFJ the Gauss-Newton matrix of the likelihood,

    D^(-1/2) G D^(-1/2) ≈ U Λ Uᵀ,    (D + G)⁻¹ ≈ D^(-1/2) (I - U Λ (I + Λ)⁻¹ Uᵀ) D^(-1/2),

with U the directions of largest Λ, which the Lanczos iteration finds from products of G with vectors alone.
What is left out is information of the data, so that variances are too large rather than too small: a
direction that is left out keeps the variance of its prior.

Sources: matfree's `tridiag_sym` (Lanczos 1950, with full reorthogonalisation); the form of the covariance is
that of D. Spantini et al., *Optimal low-rank approximations of Bayesian linear inverse problems* (2015).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn.approximations.curvature import gauss_newton_parts
from numpyro_bnn.approximations.marginal_energy import marginal_of
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer
from numpyro_bnn.potential.potential import Values

# Steps of the iteration for each direction that is kept, and in all: the outermost ones are exact first.
_STEPS_A_DIRECTION, _MORE_STEPS = 2, 20
# Random vectors that estimate how much information the directions leave out.
_PROBES = 16


class LowRank(NamedTuple):
    """Diagonal precision of the prior, directions (parameters, rank) and what the data add along each.

    - **prior** - diagonal of D, (parameters,)
    - **directions** - orthonormal columns U
    - **information** - diagonal of Λ, at least 0: 1 means as much as the prior
    - **left_out** - share of the trace of D^(-1/2) G D^(-1/2) that is in no direction, estimated
    """

    prior: jax.Array
    directions: jax.Array
    information: jax.Array
    left_out: float

    def steps(self, noise: jax.Array) -> jax.Array:
        """Steps from the mode with the covariance above, from standard normal vectors (draw, parameters)."""
        shrink = 1 / jnp.sqrt(1 + self.information) - 1
        along = noise @ self.directions
        return (noise + (along * shrink) @ self.directions.T) / jnp.sqrt(self.prior)


def low_rank(
    member_optimizer: MemberOptimizer, z: Values, sites: Sequence[str], rank: int
) -> LowRank:
    """The strongest directions of the data at a mode.

    :param z: unconstrained values at the mode.
    :param sites: the sites that are random.
    :param rank: number of directions, each of which costs two products of G with a vector.
    :raises ImportError: without matfree.
    :raises ValueError: for a prior that couples parameters, or is not log-concave at the mode.
    """
    size = sum(z[name].size for name in sites)
    tridiagonal = _lanczos(min(_STEPS_A_DIRECTION * rank + _MORE_STEPS, size))
    programs = member_optimizer.programs

    def program(z: Values, arrays: list[Any]) -> tuple[jax.Array, ...]:
        marginal = marginal_of(programs.model, programs.static, arrays)
        at, of_data, of_prior = gauss_newton_parts(marginal, z, sites)
        ones = jnp.ones_like(at)
        diagonal = of_prior(ones)
        signs = jax.random.rademacher(jax.random.key(2), at.shape, at.dtype)
        coupling = jnp.max(jnp.abs(of_prior(signs) - diagonal * signs) / (1 + jnp.abs(diagonal)))
        scale = jax.lax.rsqrt(jnp.maximum(diagonal, jnp.finfo(at.dtype).tiny))

        def whitened(v: jax.Array) -> jax.Array:
            return scale * of_data(scale * v)

        start = jax.random.normal(jax.random.key(0), at.shape, at.dtype)
        basis, matrix = tridiagonal(whitened, start)
        probes = jax.random.rademacher(jax.random.key(1), (_PROBES, at.size), at.dtype)
        seen = jax.lax.map(lambda v: v @ whitened(v), probes)
        return diagonal, coupling, basis, matrix, probes, seen

    shared = programs.compiled(program, sites=list(sites), kind=f"low rank {rank}")
    diagonal, coupling, basis, matrix, probes, seen = shared(z, member_optimizer.arrays)
    _check_prior(diagonal, float(coupling))
    if not (np.isfinite(basis).all() and np.isfinite(matrix).all()):
        raise ValueError(
            f"laplace: the data determine fewer than rank={rank} directions, and the iteration broke down. "
            "Give a smaller rank."
        )
    values, vectors = np.linalg.eigh(np.asarray(matrix, np.float64))
    directions = basis @ jnp.asarray(vectors[:, -rank:], basis.dtype)
    information = jnp.maximum(jnp.asarray(values[-rank:], basis.dtype), 0.0)
    found = jnp.sum((probes @ directions) ** 2 * information, 1)
    left_out = max(0.0, 1 - float(found.sum() / jnp.maximum(seen.sum(), 1e-30)))
    return LowRank(diagonal, directions, information, left_out)


def _lanczos(num_steps: int) -> Any:
    """A function from a product with a symmetric matrix and a vector to a basis and a tridiagonal matrix."""
    try:
        from matfree import decomp
    except ImportError as error:
        raise ImportError(
            "laplace: covariance='low_rank' needs matfree. Install it with the extra "
            "`low_rank`, in a checkout `pip install '.[low_rank]'`."
        ) from error
    iterate = decomp.tridiag_sym(num_steps, reortho="full", custom_vjp=False)

    def tridiagonal(multiply: Any, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = iterate(multiply, start)
        # Its basis vectors are the rows.
        return found.Q_tall.T, found.J_small

    return tridiagonal


def _check_prior(diagonal: jax.Array, coupling: float) -> None:
    if not coupling < 1e-3:
        raise ValueError(
            "laplace: covariance='low_rank' needs a prior of independent parameters at the mode, and this "
            "one couples some (a scale that is itself sampled, in coordinates of its own). Take "
            "covariance='diagonal', or a prior such as priors.Normal, FanIn or Hierarchical."
        )
    if not float(diagonal.min()) > 0:
        raise ValueError(
            f"laplace: covariance='low_rank' needs a log-concave prior at the mode, and the second "
            f"derivative of its energy is as low as {float(diagonal.min()):.3g} there. Take "
            "covariance='diagonal', or a Gaussian prior."
        )
