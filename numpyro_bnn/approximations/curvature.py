"""Curvature of the energy at a point, and by it the distance from a mode and the Newton step towards it.

The Gauss-Newton matrix Σ_i J_iᵀ F_i J_i + ∇²(-log prior), with J_i the derivative of the parameters
of the distribution of row i and F_i their Fisher information, leaves the second derivatives of the
network out: its likelihood part is never indefinite. For a likelihood in its natural parameters it
is the Hessian of the linearised model (Martens, *New insights and perspectives on the natural
gradient method*, 2020, §9). Hierarchical precisions count as constants in its prior.

An observed value may be computed from latent sites too, as in ``obs=y - f(x)``. A distribution of a location
depends on the location less the value, which is differentiated; for others such a value is refused.

Both are only multiplied with vectors, to compute one column (or diagonal entry) after another.

With g the gradient of the energy, precisions integrated out, and G the Gauss-Newton matrix (the Hessian
where it is not known), ½ gᵀ G⁻¹ g is by how many nats a quadratic energy would still fall: at 10⁻³ nats its
minimum is √(2 · 10⁻³) = .045 posterior standard deviations away. Up to 5000 weights G is factorised in
float64, by absolute eigenvalues where it is not positive definite; with more, conjugate gradients give a
lower bound.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.special import polygamma
from numpyro.handlers import seed, substitute, trace
from numpyro.ops.provenance import eval_provenance
from scipy.linalg import LinAlgError, cho_solve, cholesky

from numpyro_bnn._types import PyTree
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer
from numpyro_bnn.distributions.unwrap import family_of
from numpyro_bnn.potential.compiled_arguments import map_in_blocks
from numpyro_bnn.potential.data_dependencies import is_factor
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.sites import counted

Curvature = Literal["hessian", "gauss_newton"]
# Distributions that depend on their location and value by the difference of the two.
_LOCATION = (dist.Normal, dist.StudentT)
# Columns that are computed at a time.
_COLUMNS = 32


class UnknownInformation(ValueError):
    """The Gauss-Newton matrix of a distribution or of its value is not known; callers say what to do."""


def matrix(
    member_optimizer: MemberOptimizer, z: Values, sites: Sequence[str], kind: Curvature
) -> np.ndarray:
    """All second derivatives with respect to some sites, in the order of `ravel_pytree`, float64."""
    # It costs two to three gradients for each parameter.

    full = _compute(member_optimizer, z, sites, kind, columns)
    return (full + full.T) / 2


def columns(multiply: Callable[[jax.Array], jax.Array], size: int) -> jax.Array:
    """All columns of a matrix from its products with vectors, inside a compiled function."""
    return map_in_blocks(
        lambda i: multiply(jnp.zeros(size).at[i].set(1.0)), jnp.arange(size), _COLUMNS
    )


def diagonal(
    member_optimizer: MemberOptimizer, z: Values, sites: Sequence[str], kind: Curvature
) -> np.ndarray:
    """The diagonal of :func:`matrix`, at the same cost in time but not in memory."""

    def entries(multiply: Callable[[jax.Array], jax.Array], size: int) -> jax.Array:
        return map_in_blocks(
            lambda i: multiply(jnp.zeros(size).at[i].set(1.0))[i], jnp.arange(size), _COLUMNS
        )

    return _compute(member_optimizer, z, sites, kind, entries)


def _compute(
    member_optimizer: MemberOptimizer,
    z: Values,
    sites: Sequence[str],
    kind: Curvature,
    collect: Callable[[Callable[[jax.Array], jax.Array], int], jax.Array],
) -> np.ndarray:
    """Compile and run `collect`, which multiplies the matrix with vectors, with the data as arguments."""

    def program(z: Values, arrays: list[Any]) -> jax.Array:
        at, multiply = products(member_optimizer.marginal(arrays), z, sites, kind)
        return collect(multiply, at.size)

    return np.asarray(member_optimizer.compiled(program)(z, member_optimizer.arrays), np.float64)


def products(
    marginal: Marginal, z: Values, sites: Sequence[str], kind: Curvature
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Values of the sites as one vector, and the product of the curvature with a vector like it."""
    at, unravel = ravel_pytree({name: z[name] for name in sites})
    if kind == "hessian":
        slope = jax.grad(lambda v: marginal(z | unravel(v)))
        return at, lambda v: jax.jvp(slope, (at,), (v,))[1]
    at, of_data, of_prior = gauss_newton_parts(marginal, z, sites)
    return at, lambda v: of_data(v) + of_prior(v)


def gauss_newton_parts(
    marginal: Marginal, z: Values, sites: Sequence[str]
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]:
    """Values of the sites as one vector, and products with Σ JᵀFJ of the data and ∇²(-log prior)."""
    at, unravel = ravel_pytree({name: z[name] for name in sites})
    _check_values(marginal, lambda v: sites_at(marginal, z | unravel(v)), at)
    groups = {n: marginal.with_precisions(z)[n] for n in marginal.groups}
    prior_slope = jax.grad(lambda v: marginal.prior_energy(z | unravel(v), groups))

    def standardized(v: jax.Array) -> list[jax.Array]:
        return _standardized(marginal, z | unravel(v))

    _, pull = jax.vjp(standardized, at)

    def of_data(v: jax.Array) -> jax.Array:
        return pull(jax.jvp(standardized, (at,), (v,))[1])[0]

    def of_prior(v: jax.Array) -> jax.Array:
        return jax.jvp(prior_slope, (at,), (v,))[1]

    return at, of_data, of_prior


def _check_values(
    marginal: Marginal, sites_at: Callable[[jax.Array], dict[str, Any]], at: jax.Array
) -> None:
    """Refuse observed values that depend on the position where only parameters are differentiated."""
    structure = marginal.centered.structure
    if all(
        issubclass(structure.sites[name].distribution, _LOCATION) for name in structure.observed
    ):
        return
    found: dict[str, Any] = {}

    def values(v: jax.Array) -> dict[str, list[Any]]:
        found.update(sites_at(v))
        return {n: jax.tree.leaves(found[n]["value"]) for n in structure.observed}

    for name, sources in eval_provenance(values, v=at).items():
        family = family_of(found[name]["fn"])
        if not isinstance(family, _LOCATION) and any(sources):
            raise UnknownInformation(
                f"laplace: the observed value of '{name}' depends on latent sites, and the Gauss-Newton "
                f"matrix of such a value is known for Normal and StudentT, not for {type(family).__name__}."
            )


def sites_at(marginal: Marginal, z: Values) -> dict[str, Any]:
    """The trace of the model at unconstrained values of its sites."""
    potential = marginal.centered
    values = potential.constrain(marginal.with_precisions(z))
    bound = substitute(seed(potential.bound, jax.random.key(0)), data=values)
    return dict(trace(bound).get_trace(*potential.args, **potential.kwargs))


def _standardized(marginal: Marginal, z: Values) -> list[jax.Array]:
    """Functions r of z, one array a parameter, whose derivatives give Σ JᵀFJ = Σ r'ᵀ r'."""
    sites = sites_at(marginal, z)
    found = []
    for name in marginal.centered.structure.observed:
        fn, scale, value = (sites[name][key] for key in ("fn", "scale", "value"))
        # Each value counts, also where several are under one distribution without batch axes.
        shape = jnp.broadcast_shapes(jnp.shape(value), fn.batch_shape + fn.event_shape)
        shown = counted(sites[name] | {"value": jnp.broadcast_to(value, shape)})
        for part in _by_family(name, family_of(fn), value, shape):
            weight = 1.0 if scale is None else jnp.sqrt(scale)
            rows = jnp.broadcast_to(weight, shape[: len(shape) - fn.event_dim])
            rows = rows.reshape(*rows.shape, *(1,) * (part.ndim - rows.ndim))
            entries = shown.reshape(*shape, *(1,) * (part.ndim - len(shape)))
            # What a mask hides may be no number.
            found.append(jnp.where(entries, part * rows, 0.0))
    return found


def _by_family(
    name: str, fn: dist.Distribution, value: Any, shape: tuple[int, ...]
) -> list[jax.Array]:
    """Parameters times a constant square root of their Fisher information."""
    constant = lax.stop_gradient
    if isinstance(fn, _LOCATION):
        location, spread, log_scale = 1.0, 2.0, jnp.log(fn.scale)
        parts = []
        if isinstance(fn, dist.StudentT):
            df = constant(fn.df)
            location, spread = (df + 1) / (df + 3), 2 * df / (df + 3)
            # A heavier tail looks like a larger scale, so that data tell a combination of the two.
            log_scale -= jnp.log(fn.df) / (df + 1)
            parts.append(jnp.sqrt(_information_of_df(df)) * jnp.log(fn.df))
        parts.append(jnp.sqrt(location) * (fn.loc - value) / constant(fn.scale))
        parts.append(jnp.sqrt(spread) * log_scale)
        return [jnp.broadcast_to(part, shape) for part in parts]
    if isinstance(fn, (dist.CategoricalLogits, dist.CategoricalProbs)):
        # diag(p) - p pᵀ = A Aᵀ with A = diag(√p) - p √pᵀ.
        p = constant(fn.probs)
        logits = fn.logits
        part = jnp.sqrt(p) * (logits - jnp.sum(p * logits, -1, keepdims=True))
        return [jnp.broadcast_to(part, (*shape, part.shape[-1]))]
    if isinstance(fn, (dist.BernoulliLogits, dist.BernoulliProbs)):
        p = constant(fn.probs)
        return [jnp.broadcast_to(jnp.sqrt(p * (1 - p)) * fn.logits, shape)]
    what = "a `numpyro.factor`" if is_factor(fn) else f"{type(fn).__name__}, the distribution of"
    raise UnknownInformation(f"laplace: the Gauss-Newton matrix is not known for {what} '{name}'.")


def _information_of_df(df: jax.Array) -> jax.Array:
    """Fisher information of log df in a Student t whose scale is not known."""
    # Lange, Little and Taylor, *Robust statistical modeling using the t distribution* (1989), appendix B.
    df = jnp.asarray(df, float)
    trigammas = polygamma(1, df / 2) - polygamma(1, (df + 1) / 2)
    known = trigammas / 4 - (df + 5) / (2 * df * (df + 1) * (df + 3))
    exact = df**2 * known - 2 * df / ((df + 1) ** 2 * (df + 3))
    # Of many df these parts differ by less than they are rounded; the series is good to 1e-5 from 15 on.
    e = 1 / df
    series = 1.5 * e**2 * (1 + e * (-2 + e * (7 / 3 + e * (-2 + e * 11 / 3))))
    return jnp.where(df < 15, exact, series)


# Weights up to which the matrix is factorised.
MOST_DENSE = 5000
# Products of the matrix with a vector that conjugate gradients take at most.
_PRODUCTS = 200

Solve = Callable[[np.ndarray], np.ndarray]


class Slopes(NamedTuple):
    """Positions, energies and gradients of members, weights as one vector."""

    z: np.ndarray  # Values, (members, weights)
    energy: np.ndarray  # Nats, (members,)
    gradient: np.ndarray  # Gradient of the energy, (members, weights)


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

        def slopes(z: Values, noise: PyTree, arrays: list[Any]) -> tuple:
            potential = member_optimizer.rows(arrays, noise).potential
            at = {name: z[name] for name in sites}
            value, gradient = jax.value_and_grad(lambda some: potential(z | some))(at)
            return ravel_pytree(at)[0], value, ravel_pytree(gradient)[0]

        def dense(z: Values, noise: PyTree, arrays: list[Any]) -> jax.Array:
            at, multiply = products(member_optimizer.rows(arrays, noise).potential, z, sites, kind)
            return columns(multiply, at.size)

        def solve(z: Values, noise: PyTree, right: jax.Array, arrays: list[Any]) -> jax.Array:
            _, multiply = products(member_optimizer.rows(arrays, noise).potential, z, sites, kind)
            return jax.scipy.sparse.linalg.cg(multiply, right, tol=1e-3, maxiter=_PRODUCTS)[0]

        functions = (jax.vmap(slopes, in_axes=(0, 0, None)), dense, solve)
        self._slopes, self._dense, self._solve = (member_optimizer.compiled(f) for f in functions)

    def slopes(self, z: Values, noise: PyTree) -> Slopes:
        """Energies and gradients of all members."""
        found = self._slopes(z, noise, self._member_optimizer.arrays)
        self._member_optimizer.count(len(found[0]))
        return Slopes(*(np.asarray(part, np.float64) for part in found))

    def members(self, flat: np.ndarray) -> Values:
        """Values by site from (members, weights)."""
        return jax.vmap(self._unravel)(jnp.asarray(flat, self._dtype))

    def decrements(self, z: Values) -> np.ndarray:
        """½ gᵀ G⁻¹ g of every member, nats."""
        gradient = self.slopes(z, None).gradient
        return np.array([decrement(g, self.solver(z, None, m)(g)) for m, g in enumerate(gradient)])

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
    whole = member_optimizer.whole
    try:
        jax.eval_shape(lambda z: products(whole, z, sorted(z), "gauss_newton")[0], z)
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
