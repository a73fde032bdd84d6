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

from numpyro_bnn.approximations.curvature import UnknownInformation, gauss_newton_parts
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer
from numpyro_bnn.potential.potential import Values

# Steps of the iteration for each direction that is kept, and in all: the outermost ones are exact first.
_STEPS_A_DIRECTION, _MORE_STEPS = 2, 20


class LowRank(NamedTuple):
    """Diagonal precision of the prior, directions (parameters, rank) and what the data add along each.

    - **prior** - diagonal of D, (parameters,)
    - **directions** - orthonormal columns U
    - **information** - diagonal of Λ, at least 0, the largest last: 1 means as much as the prior
    """

    prior: jax.Array
    directions: jax.Array
    information: jax.Array

    @property
    def variance_factor(self) -> float:
        """How many times too large a variance can be: no direction left out has more information."""
        everything = self.information.size == self.prior.size
        return 1.0 if everything else 1.0 + float(self.information[0])

    def steps(self, noise: jax.Array) -> jax.Array:
        """Steps from the mode with the covariance above, from standard normal vectors (draw, parameters)."""
        shrink = 1 / jnp.sqrt(1 + self.information) - 1
        along = noise @ self.directions
        return (noise + (along * shrink) @ self.directions.T) / jnp.sqrt(self.prior)


def low_rank(
    member_optimizer: MemberOptimizer, z: Values, sites: Sequence[str], rank: int
) -> LowRank:
    """The strongest directions of the data at a mode; each costs four products of G with a vector."""
    size = sum(z[name].size for name in sites)
    krylov = _lanczos(min(_STEPS_A_DIRECTION * rank + _MORE_STEPS, size))
    programs = member_optimizer.programs

    def program(z: Values, arrays: list[Any]) -> tuple[jax.Array, ...]:
        marginal = programs.marginal(arrays)
        at, of_data, of_prior = gauss_newton_parts(marginal, z, sites)
        ones = jnp.ones_like(at)
        diagonal = of_prior(ones)
        signs = jax.random.rademacher(jax.random.key(2), at.shape, at.dtype)
        coupling = jnp.max(jnp.abs(of_prior(signs) - diagonal * signs) / (1 + jnp.abs(diagonal)))
        scale = jax.lax.rsqrt(jnp.maximum(diagonal, jnp.finfo(at.dtype).tiny))

        def whitened(v: jax.Array) -> jax.Array:
            return scale * of_data(scale * v)

        start = jax.random.normal(jax.random.key(0), at.shape, at.dtype)
        # Where the data determine fewer directions the iteration goes on with rounding errors, whose vectors
        # are not orthogonal: the basis is made so, and the matrix taken on it anew.
        basis, _ = jnp.linalg.qr(krylov(whitened, start))
        matrix = basis.T @ jax.lax.map(whitened, basis.T).T
        return diagonal, coupling, basis, matrix

    shared = programs.compiled(program)
    try:
        diagonal, coupling, basis, matrix = shared(z, member_optimizer.arrays)
    except UnknownInformation as error:
        raise ValueError(
            f"{error} covariance='low_rank' is made of this matrix. Take covariance='full' or 'diagonal', "
            "which begin with the Hessian."
        ) from error
    _check_prior(diagonal, float(coupling))
    matrix = np.asarray(matrix, np.float64)
    if not (np.isfinite(basis).all() and np.isfinite(matrix).all()):
        raise ValueError(
            f"laplace: the data determine fewer than rank={rank} directions, and the iteration broke down. "
            "Give a smaller rank."
        )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    directions = basis @ jnp.asarray(vectors[:, -rank:], basis.dtype)
    information = jnp.maximum(jnp.asarray(values[-rank:], basis.dtype), 0.0)
    return LowRank(diagonal, directions, information)


def _lanczos(num_steps: int) -> Any:
    """A function from a product with a symmetric matrix and a vector to a basis of a Krylov space."""
    try:
        from matfree import decomp
    except ImportError as error:
        raise ImportError(
            "laplace: covariance='low_rank' needs matfree. Install it with the extra "
            "`low_rank`, in a checkout `pip install '.[low_rank]'`."
        ) from error
    iterate = decomp.tridiag_sym(num_steps, reortho="full", custom_vjp=False)

    def krylov(multiply: Any, start: jax.Array) -> jax.Array:
        # Its basis vectors are the rows.
        basis: jax.Array = iterate(multiply, start).Q_tall
        return basis.T

    return krylov


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
