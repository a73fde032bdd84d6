"""The distance of a point from a mode in nats, ½ gᵀ G⁻¹ g, and the Newton step -G⁻¹ g towards it.

g is the gradient of the energy of the weights, hierarchical precisions integrated out, and G the
Gauss-Newton matrix plus the curvature of the prior (:mod:`numpyro_bnn.approximations.curvature`). A
quadratic energy of curvature G would still fall by this much; at 10⁻³ nats its minimum is √(2 · 10⁻³) =
.045 posterior standard deviations away. Where the Fisher information of a likelihood is not known here, the
Hessian takes the place of G; of a matrix that is not positive definite the absolute eigenvalues are used.

Up to 5000 weights G is factorised in float64. With more, conjugate gradients solve G x = g,
and their result is a lower bound.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.linalg import LinAlgError, cho_solve, cholesky

from numpyro_bnn._types import PyTree
from numpyro_bnn.approximations.curvature import Curvature, columns, products
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer
from numpyro_bnn.potential.potential import Values

# Weights up to which the matrix is factorised.
MOST_DENSE = 5000
# Products of the matrix with a vector that conjugate gradients take at most.
_PRODUCTS = 200

Solve = Callable[[np.ndarray], np.ndarray]


class Slopes(NamedTuple):
    """Positions, energies and gradients of members, weights as one vector.

    - **z** - values, (members, weights)
    - **energy** - nats, (members,)
    - **gradient** - gradient of the energy, (members, weights)
    """

    z: np.ndarray
    energy: np.ndarray
    gradient: np.ndarray


class Newton:
    """Gradients and matrices G of the members of one optimisation; every program compiles once."""

    def __init__(
        self, member_optimizer: MemberOptimizer, example: Values, sites: Sequence[str] | None = None
    ) -> None:
        one = {name: value[0] for name, value in example.items()}
        sites = sorted(one if sites is None else sites)
        flat, self._unravel = ravel_pytree({name: one[name] for name in sites})
        self.size = flat.size
        self._dtype = flat.dtype
        self._member_optimizer = member_optimizer
        kind = _kind_for(member_optimizer, one)
        programs = member_optimizer.programs

        def slopes(z: Values, noise: PyTree, arrays: list[Any]) -> tuple:
            potential = programs.rows(arrays, noise).potential
            at = {name: z[name] for name in sites}
            value, gradient = jax.value_and_grad(lambda some: potential(z | some))(at)
            return ravel_pytree(at)[0], value, ravel_pytree(gradient)[0]

        def dense(z: Values, noise: PyTree, arrays: list[Any]) -> jax.Array:
            at, multiply = products(programs.rows(arrays, noise).potential, z, sites, kind)
            return columns(multiply, at.size)

        def solve(z: Values, noise: PyTree, right: jax.Array, arrays: list[Any]) -> jax.Array:
            _, multiply = products(programs.rows(arrays, noise).potential, z, sites, kind)
            return jax.scipy.sparse.linalg.cg(multiply, right, tol=1e-3, maxiter=_PRODUCTS)[0]

        def all_slopes(z: Values, noise: PyTree, arrays: list[Any]) -> tuple:
            return jax.vmap(slopes, in_axes=(0, 0, None))(z, noise, arrays)

        self._slopes, self._dense, self._solve = (
            programs.compiled(function) for function in (all_slopes, dense, solve)
        )

    def slopes(self, z: Values, noise: PyTree) -> Slopes:
        """Energies and gradients of all members."""
        found = self._slopes(z, noise, self._member_optimizer.arrays)
        self._member_optimizer.count(len(found[0]))
        return Slopes(*(np.asarray(part, np.float64) for part in found))

    def members(self, flat: np.ndarray) -> Values:
        """Values by site from (members, weights)."""
        return jax.vmap(self._unravel)(jnp.asarray(flat, self._dtype))

    def decrements(self, z: Values, noise: PyTree = None) -> np.ndarray:
        """½ gᵀ G⁻¹ g of every member, nats."""
        gradient = self.slopes(z, noise).gradient
        return np.array([decrement(g, self.solver(z, noise, m)(g)) for m, g in enumerate(gradient)])

    def solver(self, z: Values, noise: PyTree, member: int) -> Solve:
        """A function that multiplies a vector with G⁻¹ of one member; of a vector that is not finite, NaN."""
        # It costs a product of G, of two to three gradients, for each weight; above 5000 weights 200 for
        # every call.
        own, noise = jax.tree.map(lambda leaf: leaf[member], (z, noise))
        arrays = self._member_optimizer.arrays
        if self.size <= MOST_DENSE:
            self._member_optimizer.count(self.size)
            return _of_finite(_inverse(np.asarray(self._dense(own, noise, arrays), np.float64)))

        def by_conjugate_gradients(right: np.ndarray) -> np.ndarray:
            self._member_optimizer.count(_PRODUCTS)
            found = self._solve(own, noise, jnp.asarray(right, self._dtype), arrays)
            return np.asarray(found, np.float64)

        return _of_finite(by_conjugate_gradients)


def decrement(gradient: np.ndarray, step: np.ndarray) -> float:
    """½ gᵀ G⁻¹ g; NaN where rounding, or a matrix that is not positive definite, leaves no number."""
    found = float(gradient @ step) / 2
    return found if found >= 0 else float("nan")


def _kind_for(member_optimizer: MemberOptimizer, z: Values) -> Curvature:
    """``"gauss_newton"`` where that matrix is known for the likelihood, else ``"hessian"``."""

    def probe(z: Values) -> jax.Array:
        return products(member_optimizer.whole, z, sorted(z), "gauss_newton")[0]

    try:
        jax.eval_shape(probe, z)
    except ValueError:
        return "hessian"
    return "gauss_newton"


def _of_finite(solve: Solve) -> Solve:
    """The same function, NaN for gradients that are not finite, such as those where a step went too far."""
    return lambda right: solve(right) if np.isfinite(right).all() else np.full_like(right, np.nan)


def _inverse(matrix: np.ndarray) -> Solve:
    """A function that multiplies with the inverse of a matrix, absolute values taken of its eigenvalues."""
    matrix = (matrix + matrix.T) / 2
    if not np.isfinite(matrix).all():
        return lambda right: np.full_like(right, np.nan)
    try:
        factor = cholesky(matrix, lower=True)
    except LinAlgError:
        values, vectors = np.linalg.eigh(matrix)
        # Zero eigenvalues come out as rounding errors of either sign; they must not give long steps.
        lengths = np.maximum(np.abs(values), 1e-7 * np.abs(values).max())
        return lambda right: vectors @ ((vectors.T @ right) / lengths)
    return lambda right: cho_solve((factor, True), right)
