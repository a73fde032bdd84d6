"""Moves members from where an optimiser stopped to their modes, on all rows.

Adam at a constant rate stops a quarter of a posterior standard deviation away, or more. L-BFGS
continues until the energy is flat to rounding. Steps -G⁻¹ g with a fixed matrix G, which need gradients
only, come nearer than differences of energies can resolve. A mode is reached where
½ gᵀ G⁻¹ g is at most 10⁻³ nats (:mod:`numpyro_bnn.approximations.curvature`).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm.auto import tqdm

from numpyro_bnn._checks import warn
from numpyro_bnn._types import PyTree
from numpyro_bnn.approximations.curvature import MOST_DENSE, Newton, Slopes, decrement, sites_at
from numpyro_bnn.approximations.member_optimizer import (
    MemberOptimizer,
    TrainingOptions,
    where_members,
)
from numpyro_bnn.approximations.stopping import BLOCK
from numpyro_bnn.distributions.unwrap import family_of
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.sites import counted

# A mode is reached within so many nats; within the second number no further steps are taken.
REACHED = 1e-3
_NOTHING_LEFT = 1e-7
# Steps with a fixed matrix; fewer where each of them takes 200 products.
_STEPS, _STEPS_LARGE = 20, 3
# Noise, in spreads of the target, below which a density has run away from all modes: of one value; of all on
# average, where parameters can interpolate them, at a mode by its Newton decrement, and elsewhere.
_ONE, _AT_MODE, _ELSEWHERE = 1e-4, 1e-2, 5e-2
# Alternations of L-BFGS and of steps with a fixed matrix.
_ROUNDS = 3


class NoMode(ValueError):
    """The density of a model grows without bound, so that it has no mode to return."""


def fit_modes(
    member_optimizer: MemberOptimizer,
    key: jax.Array,
    num_members: int,
    training: TrainingOptions,
    noise: PyTree = None,
) -> tuple[Values, np.ndarray, np.ndarray]:
    """Unconstrained values of optimised members, energies, and ½ gᵀ G⁻¹ g (NaN where not measured)."""
    # The default optimiser takes half of the steps at most, and L-BFGS what is left. Minibatches,
    # `validation`, data on the host, fewer than 200 steps, and a user's optimiser that takes every step keep
    # members where the optimiser ends.
    unknown = np.full(num_members, np.nan)
    on_all_rows = training.batch_size is None and not member_optimizer.whole.centered.is_on_host
    if not on_all_rows or training.validation is not None or training.num_steps < 2 * BLOCK:
        z, energy = member_optimizer.fit(key, num_members, training, noise, to_mode=True)
        if training.num_steps and training.validation is None:
            refuse_without_mode(member_optimizer, z)
        return z, energy, unknown
    shared = training.optimizer is None and training.tolerance > 0
    first = training._replace(num_steps=training.num_steps // 2) if shared else training
    z, energy = member_optimizer.fit(key, num_members, first, noise, to_mode=True)
    left = training.num_steps - member_optimizer.steps
    by_default = training.num_steps >= TrainingOptions().num_steps
    refuse_without_mode(member_optimizer, z)
    if not np.isfinite(energy).any() or (left == 0 and not by_default):
        return z, energy, unknown
    z, found = to_modes(member_optimizer, z, left, training.progress_bar, noise)
    refuse_without_mode(member_optimizer, z, found)
    return z, member_optimizer.energies(z), found


def to_modes(
    member_optimizer: MemberOptimizer,
    z: Values,
    num_steps: int,
    progress_bar: bool,
    noise: PyTree = None,
) -> tuple[Values, np.ndarray]:
    """Move members to their modes by at most so many steps of L-BFGS; also ½ gᵀ G⁻¹ g of each, nats."""
    newton = Newton(member_optimizer, z)
    descend = _LBFGS(member_optimizer, num_steps, noise)
    with tqdm(total=num_steps, desc="to the mode", disable=not progress_bar) as bar:
        for _ in range(_ROUNDS):
            z = descend(z, bar)
            z, found = _by_fixed_matrix(newton, z, noise)
            found = np.where(descend.whole, found, np.inf)
            if (np.nan_to_num(found) <= REACHED)[descend.whole].all() or not descend.left:
                break
        reached = "reached" if (found <= REACHED).all() else "not reached"
        bar.set_postfix_str(f"mode {reached}: {np.nanmax(found, initial=0.0):.2g} nats away")
    return z, found


class _LBFGS:
    """L-BFGS on all members at once; its program compiles once."""

    def __init__(self, member_optimizer: MemberOptimizer, num_steps: int, noise: PyTree) -> None:
        self.member_optimizer = member_optimizer
        self.left = num_steps
        self.noise = noise
        self.optimizer = optax.lbfgs(memory_size=20)
        self.advance = member_optimizer.advance(self.optimizer)
        # Whether every block of steps of a member ended at finite values; others stay where they are.
        self.whole: Any = True

    def __call__(self, z: Values, bar: tqdm) -> Values:
        """Take steps until 100 of them lower the energy by no more than rounding; the last finite values."""
        begin, last = jax.vmap(self.optimizer.init)(z), np.asarray(np.inf)
        members = self.member_optimizer.members(jax.random.key(0), z, begin)
        while self.left > 0:
            count = min(BLOCK, self.left)
            members, energy, _ = self.advance(
                members, count, self.noise, self.member_optimizer.arrays
            )
            energy = np.asarray(energy, np.float64)
            self.whole = self.whole & np.isfinite(self.member_optimizer.energies(members.z))
            z = jax.tree.map(partial(where_members, self.whole), members.z, z)
            self.left -= count
            bar.set_postfix_str(f"potential energy {energy.mean():.6g}", refresh=False)
            bar.update(count)
            if not (last - energy > REACHED / 10 + 4 * _rounding(z, energy)).any():
                break
            last = energy
        return z


def _by_fixed_matrix(newton: Newton, z: Values, noise: PyTree) -> tuple[Values, np.ndarray]:
    """Steps -G⁻¹ g of each member while they shorten and no energy rises; also ½ gᵀ G⁻¹ g there."""
    at = newton.slopes(z, noise)
    solvers = [newton.solver(z, noise, m) for m in range(len(at.energy))]

    def measure(at: Slopes) -> tuple[np.ndarray, np.ndarray]:
        steps = np.stack([solve(g) for solve, g in zip(solvers, at.gradient)])
        return steps, np.array([decrement(g, s) for g, s in zip(at.gradient, steps)])

    steps, found = measure(at)
    for _ in range(_STEPS if newton.size <= MOST_DENSE else _STEPS_LARGE):
        if not (found > _NOTHING_LEFT).any():
            break
        there = newton.slopes(newton.members(at.z - np.nan_to_num(steps)), noise)
        steps_there, found_there = measure(there)
        rise = there.energy - at.energy
        better = (found_there < found) & (rise <= 16 * _rounding(z, at.energy))
        if not better.any():
            break
        rows = better[:, None]
        at = Slopes(
            np.where(rows, there.z, at.z),
            np.where(better, there.energy, at.energy),
            np.where(rows, there.gradient, at.gradient),
        )
        steps, found = np.where(rows, steps_there, steps), np.where(better, found_there, found)
    return newton.members(at.z), found


def _rounding(z: Values, energy: np.ndarray) -> np.ndarray:
    """The rounding error of an energy at these values, nats."""
    dtype = next(iter(z.values())).dtype
    return np.asarray(np.finfo(dtype).eps * np.maximum(np.abs(energy), 1.0))


def say_if_not_reached(owner: str, found: np.ndarray) -> None:
    """Warn of members that did not reach their modes."""
    far = np.flatnonzero(found > REACHED)
    if not len(far):
        return
    who = f"members {far.tolist()} of {len(found)} did not reach their modes"
    if len(found) == 1:
        who = "the mode was not reached"
    warn(
        f"{owner}: {who}: the energy would still fall by ½ gᵀG⁻¹g = {found[far].max():.2g} nats, "
        f"expected at most {REACHED:g}. Take more steps (num_steps). With units that have kinks "
        "(relu) a mode may lie on one, where this number stays large; predictions rarely feel it."
    )


def refuse_without_mode(
    member_optimizer: MemberOptimizer, z: Values, found: np.ndarray | None = None
) -> None:
    """Refuse members that run towards a noise of 0, where a density grows without bound."""
    # The noise of a value is what its density says: 1/p(y) over √(2π), or √(2πe) on average. It is compared
    # with the spread of the values, and only where it depends on parameters.
    potential, owner = member_optimizer.whole.centered, member_optimizer.owner
    structure = potential.structure
    names = [name for name in structure.targets if not structure.sites[name].discrete]
    if not names or potential.is_on_host:
        return

    def densities(z: Values, arrays: list[Any]) -> dict[str, tuple]:
        sites = sites_at(member_optimizer.marginal(arrays), z)
        return {n: _density(sites[n]["fn"], sites[n]["value"], counted(sites[n])) for n in names}

    def here_and_elsewhere(z: Values, arrays: list[Any]) -> tuple:
        nowhere = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), z)
        return jax.vmap(lambda one: densities(one, arrays))(z), densities(nowhere, arrays)

    at, elsewhere = member_optimizer.compiled(here_and_elsewhere)(z, member_optimizer.arrays)
    size = sum(leaf[0].size for leaf in jax.tree.leaves(z))
    for name, (density, spread, width, count) in at.items():
        # Elsewhere as wide: the noise is a known number, and the density has a bound.
        fixed = np.isclose(width, elsewhere[name][2], rtol=1e-3).reshape(len(width), -1).all(1)
        by_value = np.asarray(density, np.float64).reshape(len(width), -1)
        spread, count = np.asarray(spread, np.float64), np.asarray(count)
        # A member far from the values has any noise: infinite in these units.
        with np.errstate(over="ignore"):
            one = np.exp(-by_value.max(1)) / np.sqrt(2 * np.pi) / spread
            mean = np.exp(-by_value.sum(1) / count) / np.sqrt(2 * np.pi * np.e) / spread
        one = mean if by_value.shape[1] < count.max() else one
        reached = True if found is None else np.nan_to_num(found, nan=np.inf) <= REACHED
        least = np.where(reached, _AT_MODE, _ELSEWHERE) * (size >= count)
        # Where L-BFGS ran to no number, a small noise is no mode either.
        least_one = _ONE if found is None else np.where(np.isinf(found), _AT_MODE, _ONE)
        gone = ~fixed & ((one < least_one) | (mean < least))
        if gone.any():
            raise NoMode(
                f"{owner}: no mode was found, because the density grows as the noise of '{name}' goes to 0: "
                f"it is at {np.minimum(one, mean)[gone].min():.1g} of the spread of the values, "
                f"{count.max()} of them for {size} parameters. Hold out rows (`deep_ensemble`, `optimize`, "
                "`validation=`), give the noise a number or a prior that keeps it from 0 "
                "(`likelihoods.Precision()`), or sample."
            )


def _density(distribution: Any, values: jax.Array, counts: jax.Array) -> tuple:
    """Log densities of values, their spread and that of the distribution, and how many values count."""
    number = jnp.maximum(counts.sum(), 1)
    mean = jnp.sum(jnp.where(counts, values, 0)) / number
    spread = jnp.sqrt(jnp.sum(jnp.where(counts, values - mean, 0) ** 2) / number)
    spread = jnp.where(spread > 0, spread, jnp.where(mean == 0, 1.0, jnp.abs(mean)))
    base = family_of(distribution)
    try:
        width = base.scale if hasattr(base, "scale") else base.variance
    except (NotImplementedError, AttributeError):  # it counts as one that depends on parameters
        width = jnp.full((), jnp.nan)
    return distribution.log_prob(values), spread, width, number
