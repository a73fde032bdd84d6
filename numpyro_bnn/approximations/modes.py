"""Optimisation in place of sampling: starts, MAP, deep ensembles, and modes of randomised problems.

All but :func:`optimize`, and their relatives in :mod:`numpyro_bnn.approximations.sgd_iterates`,
:mod:`numpyro_bnn.approximations.laplace` and :mod:`numpyro_bnn.approximations.mean_field`, are called
``f(model, key, *args, …)`` and return :class:`numpyro_bnn.Draws`, shaped like
``mcmc.get_samples(group_by_chain=True)``, with the model: predictions and diagnostics accept them like
those of a sampler. A member of an ensemble is a chain.

Everything here minimises the energy of the weights (and of all other latent sites, in
unconstrained coordinates) with hierarchical precisions integrated out; in the draws each
precision is at its conditional mean given the weights, or at its prior's 99.9 % quantile where that is
smaller (:mod:`~numpyro_bnn.approximations.marginal_energy` says why). A member whose values are not finite
is left out with a warning and named in ``draws.left_out``.

Optimisation on all rows ends at the mode, which means ½ gᵀG⁻¹g ≤ 10⁻³ nats (g the gradient, G the
Gauss-Newton matrix with the curvature of the prior): ``draws.info["newton_decrement"]`` has the
number of every member, and a warning names those that did not reach it. With minibatches, `validation`,
fewer than 200 steps, or a given optimiser that takes every step, members stay where the optimiser ends.
Where parameters can interpolate the rows and the noise is fitted there is no mode: density grows without
bound as the noise goes to 0, and a search for one is refused. A deep ensemble is an average of trained
networks and no approximation around a mode: each member stops by rows that it holds out.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_sample
from numpyro.primitives import Messenger

from numpyro_bnn._checks import check_whole
from numpyro_bnn.approximations.finish import fit_modes, say_if_not_reached
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.member_optimizer import (
    MemberOptimizer,
    TrainingOptions,
    take_members,
    taken_options,
    trains,
)
from numpyro_bnn.compilation.program_identity import Program, form_of
from numpyro_bnn.data.arguments import inputs_of_call
from numpyro_bnn.distributions.unwrap import GAUSSIAN, blanks, family_of
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.training_data import data_facts
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.sites import Site, Structure
from numpyro_bnn.potential.starts import BoundModel


@trains
def map_estimate(
    model: Callable, key: jax.Array, *args: object, num_starts: int = 1, **kwargs: Any
) -> Draws:
    """The weights of highest posterior density: training to the end with the prior as regulariser.

    A Gaussian prior of scale s is a weight decay λ = 1/(N s²) on the mean loss over N rows, and
    a learning rate r for the mean loss is r/N for the energy in nats, which `optimizer` moves.

    :param num_starts: starts of which the best is kept, by energy on all rows; by the likelihood
        of held-out rows it is each start's own parameters that are chosen.
    :return: one chain with one draw; ``stats["potential_energy"]`` is the energy in nats,
        precisions integrated out, and ``info["newton_decrement"]`` a list with how many nats the
        mode is away, where that was measured.
    :raises TypeError: for a keyword that neither this function nor the model takes.
    :raises ValueError: if a number is out of range or no start stays finite, and where there is no mode,
        because the density grows as the noise goes to 0.

    >>> import jax, numpyro, numpyro.distributions as dist, numpyro_bnn as bnn
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0., 1.))
    ...     numpyro.sample("y", dist.Normal(mean, 1.), obs=y)
    >>> draws = bnn.map_estimate(model, jax.random.key(0), 3.0, progress_bar=False)
    >>> draws["mean"].shape, round(float(draws["mean"][0, 0]), 2)
    ((1, 1), 1.5)
    """
    num_starts = check_whole("map_estimate", "num_starts", num_starts)
    member_optimizer, options = MemberOptimizer.taking("map_estimate", model, key, args, kwargs)
    z, energy, found = fit_modes(member_optimizer, key, num_starts, options)
    finite = np.isfinite(energy)
    best = [int(np.argmin(np.where(finite, energy, np.inf)))]
    say_if_not_reached("map_estimate", found[best])
    return member_optimizer.draws(
        take_members(z, np.asarray(best)[:, None]), None, energy[best], **_measured(found[best])
    )


@trains
def deep_ensemble(
    model: Callable, key: jax.Array, *args: object, num_members: int = 5, **kwargs: Any
) -> Draws:
    """Networks trained from independent prior draws, averaged as if they were posterior draws.

    Each member holds out a fold of its own, a fifth of the rows and at most 2000, and keeps the parameters at
    which these are likeliest, looked at every 10 steps. Training stops when this improves for no member in
    `patience` hundreds of steps, or by `tolerance`. Rows lie along the largest plate around the data, or else
    along the first axis of the observed values. A likelihood that has all rows in one factor has none
    to hold out, and stops by `tolerance` alone: give `validation` or a noise that stays away from 0.

    Source: Lakshminarayanan, Pritzel and Blundell, *Simple and scalable predictive uncertainty
    estimation using deep ensembles* (2017), without adversarial training; the folds as in bagging.

    :param num_members: number of members.
    :return: a chain with one draw for each member.
    :raises ValueError: if a number is out of range or no member stays finite.
    """
    num_members = check_whole("deep_ensemble", "num_members", num_members)
    member_optimizer, options = MemberOptimizer.taking("deep_ensemble", model, key, args, kwargs)
    z, energy = member_optimizer.fit(key, num_members, options)
    member_optimizer.name_far(energy, options)
    return _as_chains(member_optimizer, z, energy)


@trains
def randomized_map(
    model: Callable, key: jax.Array, *args: object, num_members: int = 5, **kwargs: Any
) -> Draws:
    """Modes of randomised problems: targets and prior means are drawn anew for each member.

    Member m minimises, with ε_m standard normal and the anchor a_m drawn from the prior,

        Σ_i (y_i + σ ε_mi - f(x_i, w))² / 2σ² + ‖(w - a_m) / s‖² / 2,

    which for a linear model with Gaussian prior and known noise is an exact posterior draw, weights of rows
    (`handlers.scale`) included.
    Observed constants whose distribution depends on latent sites (a covariate measured with an error, the
    first value of a series) are perturbed too, in their own density; values that ``condition`` gives to
    weights are not.
    Targets without known Gaussian noise (classes, or a noise that is fitted) get exponential
    weights of mean 1, the weighted likelihood bootstrap, instead; priors that are not Gaussian
    have no anchor. Under a hierarchical prior anchors are standard normal draws over the square
    root of the precision, which stays at its conditional mean.

    Sources: Gu and Oliver, *An iterative ensemble Kalman filter* (2007, randomised maximum
    likelihood); Pearce, Leibfried and Brintrup, *Uncertainty in neural networks: approximately
    Bayesian ensembling* (2020), eq. 9; Newton and Raftery, *Approximate Bayesian inference with
    the weighted likelihood bootstrap* (1994).

    :param num_members: number of members.
    :return: a chain with one draw for each member. Energies in its stats are of the problem
        that was not randomised.
    :raises ValueError: if a number is out of range or no member stays finite, and for a likelihood that has
        all rows in one observation and no known Gaussian noise.
    """
    num_members = check_whole("randomized_map", "num_members", num_members)
    member_optimizer, options = MemberOptimizer.taking("randomized_map", model, key, args, kwargs)
    known, counts = known_noise(member_optimizer.whole.centered)
    inputs = inputs_of_call(model, member_optimizer.args, member_optimizer.kwargs)
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(inputs) if getattr(leaf, "shape", ())}
    refuse_common_weights(member_optimizer.whole.centered.structure, known, rows)
    whole = member_optimizer.whole
    anchored = gaussian_priors(whole)
    member_optimizer.perturb, member_optimizer.same_as = partial(perturbed, known=known), (None,)
    key_noise, key_fit = jax.random.split(key)
    one = partial(draw_noise, marginal=whole, anchored=anchored, known=known, counts=counts)
    noise = Program(jax.vmap(one))(jax.random.split(key_noise, num_members))
    z, energy, found = fit_modes(member_optimizer, key_fit, num_members, options, noise)
    say_if_not_reached("randomized_map", found)
    member_optimizer.name_far(energy, options)
    return _as_chains(member_optimizer, z, energy, **_measured(found))


def _measured(found: np.ndarray) -> dict[str, list[float]]:
    """The entry of `info` with the distance of members from their modes; empty where none was measured."""
    known = ~np.isnan(found)
    return {"newton_decrement": np.where(known, found, np.inf).tolist()} if known.any() else {}


def _as_chains(
    member_optimizer: MemberOptimizer, z: Values, energy: np.ndarray, **info: object
) -> Draws:
    """A chain with one draw for each member."""
    values = {name: value[:, None] for name, value in z.items()}
    return member_optimizer.draws(values, None, energy, **info)


Noise = dict[str, jax.Array]


class perturbed(Messenger):
    """Handler that perturbs targets and prior means by standard normals, and other rows by weights."""

    # An observed site with Gaussian noise of known scale gets y + σ ε in its own density: its mean is moved
    # by -σ ε, and its value stays for sites that are computed from it (the next value of a series). Other
    # observed sites get an exponential weight of mean 1 for every row: noise of a scale that is fitted
    # would inflate it without end. Gaussian priors are centred at a draw from themselves (the anchor).
    # A log density that counts w times (`handlers.scale`) is that of w equal rows: its noise has the
    # standard deviation σ / √w, its weight is the mean of w exponential ones, its anchor √w times nearer.

    def __init__(self, fn: Callable | None, noise: Noise, known: frozenset[str]) -> None:
        self.noise = noise
        self.known = known
        self.rows: dict[str, jax.Array] = {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Perturb a site by the noise of this member: a prior mean, a target or a weight of rows."""
        if msg["type"] != "sample" or msg["name"] not in self.noise:
            return
        name, noise, fn = msg["name"], self.noise[msg["name"]], msg["fn"]
        if not msg["is_observed"]:
            msg["fn"] = moved(fn, shift_of(fn, noise))
            return
        event_dim = fn.event_dim if name in self.known else 0
        for frame in msg["cond_indep_stack"]:
            noise = jnp.take(noise, self.rows[frame.name], frame.dim - event_dim)
        if name in self.known:
            # As a target y + σ ε, which sites that are computed from y must not see.
            msg["fn"] = moved(fn, -lax.stop_gradient(shift_of(fn, noise)))
        else:
            msg["scale"] = noise if msg["scale"] is None else msg["scale"] * noise

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Note the rows that each plate selected, whose noise the sites inside it take."""
        # The rows of a minibatch are decided outside, and known once the plate was entered.
        if msg["type"] == "plate":
            self.rows[msg["name"]] = msg["value"]


def shift_of(distribution: dist.Distribution, noise: jax.Array) -> jax.Array:
    """Draws from a Gaussian distribution around its mean, made of standard normal values."""
    base = family_of(distribution)
    if isinstance(base, dist.Normal):
        return base.scale * noise
    return jnp.squeeze(_root(base) @ noise[..., None], -1)


def moved(distribution: dist.Distribution, shift: jax.Array) -> dist.Distribution:
    """A Gaussian distribution with another mean; masks around it stay."""
    if isinstance(distribution, dist.MaskedDistribution):
        return moved(distribution.base_dist, shift).mask(distribution._mask)
    if isinstance(distribution, dist.Independent):
        return moved(distribution.base_dist, shift).to_event(distribution.reinterpreted_batch_ndims)
    if isinstance(distribution, dist.ExpandedDistribution):
        return moved(distribution.base_dist, shift)
    if isinstance(distribution, dist.Normal):
        return dist.Normal(distribution.loc + shift, distribution.scale)
    return dist.MultivariateNormal(distribution.loc + shift, scale_tril=_root(distribution))


def _root(distribution: dist.Distribution) -> jax.Array:
    """The Cholesky factor of the covariance of a multivariate normal distribution."""
    root = getattr(distribution, "scale_tril", None)
    return jnp.linalg.cholesky(distribution.covariance_matrix) if root is None else root


def known_noise(potential: Potential) -> tuple[frozenset[str], Noise]:
    """Observed sites of known Gaussian noise, and how often sites count where that is not once."""

    @jax.jit
    def found(key: jax.Array) -> tuple[Noise, Noise]:
        drawn = substitute(seed(potential.bound, key), substitute_fn=init_to_sample)
        sites = trace(drawn).get_trace(*potential.args, **potential.kwargs)
        scales = {}
        for name in potential.structure.evidence:
            fn = family_of(sites[name]["fn"])
            if isinstance(fn, GAUSSIAN):
                scales[name] = fn.covariance_matrix if fn.event_shape else fn.scale
        kept = {name: sites[name]["scale"] for name in potential.structure.sites if name in sites}
        return scales, {name: count for name, count in kept.items() if count is not None}

    (one, counts), (other, _) = (found(jax.random.key(i)) for i in (0, 1))
    known = frozenset(name for name in one if np.array_equal(one[name], other[name]))
    return known, {name: jnp.asarray(count) for name, count in counts.items()}


def refuse_common_weights(structure: Structure, known: frozenset[str], rows: set[int]) -> None:
    """Refuse a likelihood of which all rows together get one weight, which says nothing of their scatter."""
    # A single observation beside data, such as a constant that was measured, has a weight of its own.
    if rows == {1}:
        return
    # An input of one entry may be no row.
    rows = rows - {1}
    batches = {name: _batch_of(structure.sites[name]) for name in structure.evidence}
    for name in structure.evidence:
        site, batch = structure.sites[name], batches[name]
        event = _full_shape(site)[len(batch) :]
        others = [n for n in structure.evidence if n != name]
        beside = any(
            math.prod(structure.sites[n].shape if n in known else batches[n]) > 1 for n in others
        )
        together = math.prod(batch) == 1 and math.prod(event) != 1 and not beside
        over_rows = bool(rows.intersection(event)) and not rows.intersection(batch)
        if name in known or not (together or over_rows):
            continue
        what = f"'{name}' is one observation of shape {event}"
        if site.factor:
            what = f"the factor '{name}' is one number"
        raise ValueError(
            f"randomized_map: {what}, in which all rows are together, and its noise is not Gaussian of a "
            f"known scale. It would be randomised by weights of rows, of which it takes {math.prod(batch)}. "
            "Give the rows a batch axis (`numpyro.plate`, no `.to_event` over them), or take `laplace`, "
            "`mean_field` or a sampler for one distribution of all rows."
        )


def _full_shape(site: Site) -> tuple[int, ...]:
    """Batch and event shape: values under one distribution without batch axes count once each."""
    return np.broadcast_shapes(site.shape, site.distribution_shape)


def _batch_of(site: Site) -> tuple[int, ...]:
    full = _full_shape(site)
    return full[: len(full) - site.event_dim]


def gaussian_priors(marginal: Marginal) -> list[str]:
    """Sites of a marginal energy whose prior is Gaussian."""
    potential = marginal.centered
    found: list[str] = []

    def visit(key: jax.Array, blank: jax.Array) -> jax.Array:
        shaped = seed(substitute(potential.bound, substitute_fn=blanks(blank)), key)
        sites = trace(shaped).get_trace(*potential.args, **potential.kwargs)
        families = {name: family_of(sites[name]["fn"]) for name in marginal.sites}
        found.extend(name for name, family in families.items() if isinstance(family, GAUSSIAN))
        return key

    jax.eval_shape(visit, jax.random.key(0), 0.0)
    return found


def draw_noise(
    key: jax.Array, marginal: Marginal, anchored: list[str], known: frozenset[str], counts: Noise
) -> Noise:
    """The noise of one member, for every site that is perturbed."""
    structure = marginal.centered.structure
    noise = {}
    for i, name in enumerate([*anchored, *structure.evidence]):
        site = structure.sites[name]
        drawn = jax.random.fold_in(key, i)
        batch = _batch_of(site)
        gaussian = name in known or not site.observed
        if name in counts:
            count = jnp.broadcast_to(counts[name], batch)
            # What counts nothing has no noise.
            some = jnp.where(count > 0, count, 1)
            once = jnp.where(count > 0, 1 / some, 0)
            if gaussian:
                spread = jnp.sqrt(once).reshape(*batch, *(1,) * site.event_dim)
                noise[name] = spread * jax.random.normal(drawn, site.shape)
            else:
                noise[name] = once * jax.random.gamma(drawn, some)
        elif gaussian:
            noise[name] = jax.random.normal(drawn, site.shape)
        else:
            noise[name] = jax.random.exponential(drawn, batch)
    return noise


@trains
def optimize(
    model: Callable, key: jax.Array, *args: object, num_chains: int = 1, **kwargs: Any
) -> Values:
    """Minimise the potential energy from several starts, one a chain, as long as held-out rows gain.

    Each start is the best of eight prior draws by energy, kernels shrunk to variance 1/fan-in
    where the prior is wider, and in half of them every site to a root mean square of at most 1.
    Weights and everything without a hierarchical precision are optimised in centred
    coordinates. Hierarchical precisions have no joint mode with their weights worth finding,
    so at every step they are held at their conditional means given the weights; this minimises
    the energy with the precisions integrated out. A mean above the 99.9 % quantile of the prior
    counts as that quantile: a wide layer would otherwise end at zero weights, where the density
    is a spike with hardly any mass.

    A network that can interpolate its rows has no mode: density grows without bound as the noise goes to 0,
    and chains that begin there stay. So each chain holds out a fold of the rows and begins where these are
    likeliest, as the members of :func:`numpyro_bnn.deep_ensemble` do. All run together under ``jax.vmap``
    and stop together: when held-out rows have improved for none of them in 500 steps, or 100 steps lower the
    mean energy of none by more than a fraction `tolerance`, two standard errors of minibatches allowed for.
    Chains that end further above the lowest than its posterior reaches start again, twice at most, and are
    named in a warning if they stay. For a mode use :func:`numpyro_bnn.map_estimate`.

    :param num_chains: number of starts.
    :return: unconstrained values of every latent site, with a leading axis of `num_chains`:
        `init_params` for :meth:`numpyro_bnn.MCMC.run`.
    :raises TypeError: for a keyword that neither this function nor the model takes.
    :raises ValueError: if a number is out of range, if the model has discrete latent sites, if
        it cannot be subsampled, or if the energy is not finite at the end.
    """
    num_chains = check_whole("optimize", "num_chains", num_chains)
    bound, options = taken_options("optimize", model, key, args, kwargs)
    return optimized(bound, key, num_chains, options)


def optimized(
    bound: BoundModel,
    key: jax.Array,
    num_chains: int,
    options: TrainingOptions,
    ends: float = math.inf,
) -> Values:
    """Starts of chains, as :func:`optimize` gives them; `ends` is a time of ``time.monotonic()``."""
    member_optimizer = MemberOptimizer("optimize", bound, options.batch_size, pads=True, ends=ends)
    z, energy = member_optimizer.fit(key, num_chains, options)
    if bad := np.flatnonzero(~np.isfinite(energy)).tolist():
        raise ValueError(
            f"optimize: the potential energy of start(s) {bad} is not finite. "
            f"{member_optimizer.about_data()}Use a smaller learning rate: `optimizer=optax.adam(1e-3)`."
        )
    member_optimizer.name_far(energy, options)
    complete = member_optimizer.compiled(member_optimizer.completed, "completed", runs_once=True)
    return complete(z, member_optimizer.arrays)


def ensemble_of(bound: BoundModel, starts: Values) -> Draws:
    """Optimised starts as draws: each member is a chain of one draw, with its potential energy."""
    arguments = Arguments.split(*bound.padded)

    def values_and_energy(starts: Values, arrays: list[jax.Array]) -> tuple:
        potential = Potential(bound.model, *Arguments.join(arrays, arguments.static))
        both = jax.vmap(potential.constrain)(starts), jax.vmap(potential)(starts)
        return jax.tree.map(lambda leaf: leaf[:, None], both)

    same_as = "ensemble", form_of(bound.model), arguments.static
    values, energy = Program(values_and_energy, True, same_as)(starts, arguments.arrays)
    stats = {"potential_energy": np.asarray(energy)}
    return Draws(values, bound.model, stats, {"approximation": True} | data_facts(bound, values))
