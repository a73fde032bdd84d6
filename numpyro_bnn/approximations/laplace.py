"""The Laplace approximation: a Gaussian at a mode, with the curvature there as its precision.

For many parameters the precision is that of the prior plus the strongest directions of what the data say
(:class:`LowRank`), which the Lanczos iteration finds from products with vectors alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.handlers import seed, substitute, trace
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from numpyro_bnn._checks import check_whole, require_extra
from numpyro_bnn.approximations import curvature
from numpyro_bnn.approximations.curvature import Newton, gauss_newton_parts
from numpyro_bnn.approximations.finish import fit_modes, refuse_without_mode, say_if_not_reached
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer, keep_finite, trains
from numpyro_bnn.models.random_module import calls, linearize
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.priors.paths import layer_of_site

# Parameters up to which the covariance is a full one by default.
_MOST_FULL = 5000
# Directions of a covariance of low rank by default.
_RANK = 100


@trains
def laplace(
    model: Callable,
    key: jax.Array,
    *args: object,
    num_samples: int = 1000,
    subset: Literal["all", "last_layer"] | Sequence[str] = "all",
    covariance: Literal["auto", "full", "diagonal", "low_rank"] = "auto",
    rank: int | None = None,
    linearized: bool = False,
    mode: Draws | None = None,
    **kwargs: Any,
) -> Draws:
    """Draws from N(w*, H⁻¹) at a mode w* of the posterior, in unconstrained coordinates.

    H is the Hessian of the energy, hierarchical precisions integrated out (they are drawn from
    their conditional given each w). Where it is not positive definite, as is common for a
    network that was not trained to the end, H is the Gauss-Newton matrix: ``info["curvature"]``
    says which. It costs as many products with a vector as there are parameters, on all rows.

    Sources: MacKay, *A practical Bayesian framework for backpropagation networks* (1992); Daxberger
    et al., *Laplace redux - effortless Bayesian deep learning* (2021).

    :param num_samples: draws.
    :param subset: the sites that are random: ``"all"``, ``"last_layer"`` (the layer whose bias is added to
        the outputs), or names of sites; the rest stays at the mode.
    :param covariance: ``"full"``, ``"diagonal"`` (1 over the diagonal of H), ``"low_rank"`` (the prior and
        the `rank` directions in which the data say most, by the Gauss-Newton matrix; what they leave out
        makes variances too large rather than too small; needs the extra ``low_rank``), or ``"auto"``: full
        up to 5000 parameters.
    :param rank: directions of ``"low_rank"``, each of which costs four products with a vector and twice the
        memory of the parameters; None for 100, or as many as there are parameters.
        ``info["variance_factor"]`` bounds the error: no variance is too large by more than this factor, as
        far as the iteration has found the strongest directions.
    :param linearized: predict with networks linearised at the mode: the model of the draws is
        then ``linearize(model, mode)``. Samples of all weights of a deep network in the network
        itself often predict badly where the curvature is that of Gauss-Newton.
    :param mode: the result of :func:`numpyro_bnn.map_estimate`; found here where None.
    :return: one chain. ``info["newton_decrement"]`` is ½ gᵀG⁻¹g at the centre in the coordinates
        that are random: by how many nats a quadratic energy with the Gauss-Newton matrix G would
        still fall. More than 10⁻³ is said in a warning: the centre is then no mode.
    :raises ImportError: for ``"low_rank"`` without matfree.
    :raises ValueError: where there is no mode, if a number is out of range, a site is unknown, the last layer
        cannot be found, no curvature is positive definite, the prior is not one that ``"low_rank"`` can take,
        or the Gauss-Newton matrix is needed of a distribution for which it is not known, or of an observed
        value that depends on latent sites (``obs=y - f(x)``) under another one than Normal or StudentT.
    """
    num_samples = check_whole("laplace", "num_samples", num_samples)
    if covariance not in ("auto", "full", "diagonal", "low_rank"):
        raise ValueError(f"laplace: unknown covariance={covariance!r}. Take 'auto' if in doubt.")
    if covariance == "low_rank":
        require_extra("laplace: covariance='low_rank'", "low_rank")
    rank = _RANK if rank is None else check_whole("laplace", "rank", rank)
    member_optimizer, options = MemberOptimizer.taking("laplace", model, key, args, kwargs)
    key_fit, key_noise, key_precisions = jax.random.split(key, 3)
    if mode is None:
        members, energy, _ = fit_modes(member_optimizer, key_fit, 1, options)
    else:
        if not isinstance(mode, Draws) or (mode.num_chains, mode.num_draws) != (1, 1):
            raise ValueError(
                f"laplace: mode must be one draw, as `bnn.map_estimate` returns, got {mode!r}."
            )
        latent = member_optimizer.whole.centered.structure.latent
        one = member_optimizer.whole.reduce({n: mode[n][0, 0] for n in latent})
        members = {n: v[None] for n, v in one.items()}
        refuse_without_mode(member_optimizer, members)
        energy = member_optimizer.energies(members)
    keep_finite("laplace", np.isfinite(energy), member_optimizer.about_data)
    z = {name: value[0] for name, value in members.items()}
    if isinstance(subset, str) and subset in ("all", "last_layer"):
        whole = member_optimizer.whole
        sites = whole.sites if subset == "all" else _last_layer(whole, z)
    else:
        sites = [subset] if isinstance(subset, str) else list(subset)
    flat, unravel = ravel_pytree({name: z[name] for name in sites})
    if covariance == "auto":
        covariance = "full" if flat.size <= _MOST_FULL else "diagonal"
    about: dict[str, Any] = {"covariance": covariance, "random": list(sites)}
    if covariance == "low_rank":
        found = low_rank(member_optimizer, z, sites, min(rank, flat.size))
        about |= {"rank": found.information.size, "variance_factor": found.variance_factor}
        about["curvature"] = "gauss_newton"
        steps = found.steps(jax.random.normal(key_noise, (num_samples, flat.size)))
    else:
        root, about["curvature"] = _root(member_optimizer, z, sites, covariance)
        noise = np.asarray(jax.random.normal(key_noise, (flat.size, num_samples)), np.float64)
        if root.ndim == 1:
            solved = noise / root[:, None]
        else:
            solved = solve_triangular(root, noise, lower=True, trans=1)
        steps = jnp.asarray(solved.T, flat.dtype)
    decrement = float(Newton(member_optimizer, members, sites).decrements(members)[0])
    drawn = jax.vmap(unravel)(flat + steps)
    everywhere = {n: jnp.broadcast_to(v, (num_samples, *v.shape)) for n, v in z.items()} | drawn
    draws = member_optimizer.draws(
        {name: value[None] for name, value in everywhere.items()},
        key_precisions,
        newton_decrement=decrement,
        **about,
    )
    say_if_not_reached("laplace", np.array([decrement]))
    if not linearized:
        return draws
    at = member_optimizer.whole.centered.constrain(member_optimizer.whole.with_precisions(z))
    weights = {name: at[name] for name in member_optimizer.whole.sites if "/" in name}
    return Draws(draws, linearize(draws.model, weights), draws.stats, draws.info)


def _last_layer(marginal: Marginal, z: Values) -> list[str]:
    """Sites of the layers whose biases are added to the outputs of a network."""
    potential = marginal.centered
    values = potential.constrain(marginal.with_precisions(z))
    biases = {n: v for n, v in values.items() if "/" in n and v.ndim == 1}

    def first_rows(some: Values) -> dict[str, jax.Array]:
        handler = calls(substitute(potential.bound, data=values | some))
        trace(seed(handler, jax.random.key(0))).get_trace(*potential.args, **potential.kwargs)
        found = {name: call.output for name, call in handler.seen.items()}
        return {n: out[0].reshape(-1) for n, out in found.items() if hasattr(out, "shape")}

    found = set()
    try:
        by_network = jax.jit(jax.jacobian(first_rows))(biases) if biases else {}
    except jax.errors.UnexpectedTracerError:
        # The model itself maps a network over its rows, which then has no outputs of all rows.
        by_network = {}
    for slopes in by_network.values():
        for site, slope in slopes.items():
            rows, columns = slope.shape
            if rows == columns and np.allclose(slope, np.eye(rows), atol=1e-5):
                found.add(layer_of_site(site))
    if not found:
        raise ValueError(
            "laplace: no bias is added to the outputs of the network for all rows, so which layer is the "
            f"last cannot be told. Name its sites with `subset=[…]`; there are {marginal.sites}."
        )
    return [name for name in marginal.sites if layer_of_site(name) in found]


def _root(
    member_optimizer: MemberOptimizer, z: Values, sites: Sequence[str], covariance: str
) -> tuple[np.ndarray, str]:
    """Square root of the precision (lower triangle, or diagonal), and the kind of curvature used."""
    kinds: tuple[curvature.Curvature, ...] = ("hessian", "gauss_newton")
    measure = curvature.diagonal if covariance == "diagonal" else curvature.matrix
    values = np.zeros(1)
    for kind in kinds:
        found = measure(member_optimizer, z, sites, kind)
        if not np.isfinite(found).all():
            values = np.full(1, np.nan)
            continue
        if found.ndim == 1:
            values = np.sort(found)
            if values[0] > 0:
                return np.sqrt(found), kind
            continue
        try:
            return cholesky(found, lower=True), kind
        except LinAlgError:
            values = np.linalg.eigvalsh(found)
    raise ValueError(
        "laplace: neither the Hessian nor the Gauss-Newton matrix is positive definite where the "
        f"optimisation ended (eigenvalues of the latter from {values[0]:.3g} to {values[-1]:.3g}). Optimise "
        "longer, take a subset of the sites, covariance='diagonal' or a Gaussian prior; for a "
        "rounding error below 0 `numpyro.enable_x64()`."
    )


# Steps of the iteration for each direction that is kept, and in all: the outermost ones are exact first.
_STEPS_A_DIRECTION, _MORE_STEPS = 2, 20


class LowRank(NamedTuple):
    """Diagonal precision of the prior, directions (parameters, rank) and what the data add along each.

    With D the diagonal precision of the prior and G = Σ JᵀFJ the Gauss-Newton matrix of the likelihood,

        D^(-1/2) G D^(-1/2) ≈ U Λ Uᵀ,    (D + G)⁻¹ ≈ D^(-1/2) (I - U Λ (I + Λ)⁻¹ Uᵀ) D^(-1/2).

    A direction that is left out keeps the variance of its prior: variances are too large, not too small.
    Source: D. Spantini et al., *Optimal low-rank approximations of Bayesian linear inverse problems* (2015).
    """

    prior: jax.Array  # Diagonal of D, (parameters,)
    directions: jax.Array  # Orthonormal columns U
    # Diagonal of Λ, at least 0, the largest last: 1 means as much as the prior
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
    from matfree import decomp

    size = sum(z[name].size for name in sites)
    num_steps = min(_STEPS_A_DIRECTION * rank + _MORE_STEPS, size)
    iterate = decomp.tridiag_sym(num_steps, reortho="full", custom_vjp=False)

    def program(z: Values, arrays: list[Any]) -> tuple[jax.Array, ...]:
        at, of_data, of_prior = gauss_newton_parts(member_optimizer.marginal(arrays), z, sites)
        diagonal = of_prior(jnp.ones_like(at))
        signs = jax.random.rademacher(jax.random.key(2), at.shape, at.dtype)
        coupling = jnp.max(jnp.abs(of_prior(signs) - diagonal * signs) / (1 + jnp.abs(diagonal)))
        scale = jax.lax.rsqrt(jnp.maximum(diagonal, jnp.finfo(at.dtype).tiny))

        def whitened(v: jax.Array) -> jax.Array:
            return scale * of_data(scale * v)

        start = jax.random.normal(jax.random.key(0), at.shape, at.dtype)
        # Where the data determine fewer directions the iteration goes on with rounding errors, whose vectors
        # (rows at first) are not orthogonal: the basis is made so, and the matrix taken on it anew.
        basis, _ = jnp.linalg.qr(iterate(whitened, start).Q_tall.T)
        matrix = basis.T @ jax.lax.map(whitened, basis.T).T
        return diagonal, coupling, basis, matrix

    compiled = member_optimizer.compiled(program)
    diagonal, coupling, basis, matrix = compiled(z, member_optimizer.arrays)
    if not coupling < 1e-3:
        raise ValueError(
            "laplace: covariance='low_rank' needs a prior of independent parameters at the mode, and this "
            "one couples some (a scale that is itself sampled, in coordinates of its own). Take "
            "covariance='diagonal', or a prior such as priors.Normal, FanIn or Hierarchical."
        )
    if not diagonal.min() > 0:
        raise ValueError(
            f"laplace: covariance='low_rank' needs a log-concave prior at the mode, and the second "
            f"derivative of its energy is as low as {float(diagonal.min()):.3g} there. Take "
            "covariance='diagonal', or a Gaussian prior."
        )
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
