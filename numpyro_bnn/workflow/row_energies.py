"""The energy of a model with a weight for each row, in programs that do not change when rows are added.

Rows are called one at a time, `_CHUNK` together in a vector, from arrays that are longer than there are rows:
so one executable serves a run that grows batch by batch. The energy at weights v,

    U(z; v) = -log p(θ(z)) |∂θ/∂z| - Σ_i v_i log p(y_i | x_i, θ),

is that of all rows for v = 1, unless rows depend on one another, which :meth:`RowEnergies.sites_at` refuses.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, log2
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.compilation.program_identity import Program, form_of
from numpyro_bnn.potential.compiled_arguments import Arguments, map_in_blocks
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.samplers.tempering.rung_kernels import HIGHEST, LOWEST, accept_or_stay, leapfrog

# Rows, and draws at most, that are computed together: on a CPU what its cache holds; draws of a call.
_CHUNK, _TOGETHER, _TOGETHER_ON_CPU, _BLOCK = 128, 256, 8, 64
# Rows at which the sum over rows is compared with the model, and the difference that rounding explains, in
# nats for each row and in proportion to the energy.
_COMPARED, _ROUNDING = 256, 1e-4


class Weighted(NamedTuple):
    """Weights of rows, and the chunks [first, stop) in which any is not zero."""

    weights: Array
    first: Array
    stop: Array


def room_for(size: int, more: int) -> int:
    """Rows to make arrays for, when there are `size` of them and batches of `more` rows come."""
    return _CHUNK * 2 ** ceil(log2(max(1.0, max(1.25 * size, size + 2 * more) / _CHUNK)))


class RowEnergies:
    """A model at `size` rows of its prepared arguments, of whose arrays some are `by_row`.

    - **arrays** - those arrays, with room for more rows, which every program takes
    - **structure** - sites of the model at one row
    - **unconstrain**, **likelihood** - programs for :func:`run_in_blocks`: of draws by site and `arrays`,
      unconstrained values; of these, `arrays` and weights, log likelihoods
    - **move** - program that moves unconstrained values by a trajectory of HMC, see :meth:`_move`
    - **constrain** - program of unconstrained values and `arrays`: values of all sites
    """

    def __init__(
        self, model: Callable, arguments: tuple, by_row: list[bool], size: int, room: int
    ) -> None:
        whole, self._static = Arguments.split(*arguments)
        self.model, self._by_row, self._room = model, by_row, room
        self._hold(whole, size)
        first = self._mapped(lambda array: array[:1], self._whole)
        self._one = Potential(model, *Arguments.join(first, self._static))
        self.structure = self._one.structure
        at, of = self._first, self._likelihood
        self.unconstrain = self._program(
            lambda values, given: jax.vmap(at(given).unconstrain)(values), "unconstrain"
        )
        self.likelihood = self._program(
            lambda z, *rows: _over_draws(lambda one: -of(*rows)(one), z), "likelihood", False
        )
        self.constrain = self._program(
            lambda z, given: _over_draws(lambda one: at(given).constrain(one, True), z), "constrain"
        )
        self.move = self._program(self._move, "move", False)

    def _program(self, function: Callable, name: str, runs_once: bool = True) -> Program:
        same_as = form_of(self.model), self._static, *self._by_row, name
        return Program(function, runs_once, same_as)

    def _hold(self, whole: list[Any], size: int) -> None:
        """Keep the arrays of so many rows, with room for more."""
        self.size, self._whole = size, [np.asarray(array) for array in whole]
        self.arrays = self._mapped(
            lambda a: np.concatenate([a, np.repeat(a[:1], self._room - size, 0)]), self._whole
        )

    def at(
        self, model: Callable, arguments: tuple, by_row: list[bool], size: int
    ) -> "RowEnergies | None":
        """The programs that are there, for arguments that differ in rows; None where they do not serve."""
        whole, static = Arguments.split(*arguments)
        kinds, own = (
            [(a.dtype, a.shape[row:]) for a, row in zip(arrays, by_row)]
            for arrays in (whole, self._whole)
        )
        its = (self.model, self._static, self._by_row, own)
        if (model, static, by_row, kinds) != its or size > self._room:
            return None
        other = copy.copy(self)
        other._hold(whole, size)
        return other

    def _mapped(self, function: Callable, arrays: list[Any]) -> list[Any]:
        """A function of the arrays that have rows; the others as they are."""
        return [function(a) if own else a for a, own in zip(arrays, self._by_row)]

    def _at_one(self, arrays: list[Any]) -> Potential:
        """The potential at one row, which is checked and traced for its sites once."""
        return self._one.at(*Arguments.join(arrays, self._static))

    def _first(self, arrays: list[Any]) -> Potential:
        """The potential at the first row, whose prior is that of all rows."""
        return self._at_one(self._mapped(lambda array: array[:1], arrays))

    def checked_at(self, rows: np.ndarray) -> tuple[tuple, dict[str, Any]]:
        """The arguments at some rows, (row,), after the checks of a fit."""
        arguments = Arguments.join(self._mapped(lambda a: a[rows], self._whole), self._static)
        Potential(self.model, *arguments)
        return arguments

    def weighted(self, weights: np.ndarray) -> Weighted:
        """Weights of rows, (row,), as programs take them."""
        (used,) = np.nonzero(weights)
        padded = np.pad(np.float32(weights), (0, self._room - self.size))
        ends = (used[0] // _CHUNK, used[-1] // _CHUNK + 1) if used.size else (0, 0)
        return Weighted(padded, *np.array(ends, np.int32))

    def _by_one(self, arrays: list[Any], z: Values) -> jax.Array:
        """-log p(y_i | x_i, θ) of each row of arrays, (row,)."""

        def one(*row: jax.Array) -> jax.Array:
            return self._at_one(self._mapped(lambda array: array[None], list(row))).energies(z)[1]

        return jax.vmap(one, [0 if own else None for own in self._by_row])(*arrays)

    def _likelihood(self, arrays: list[Any], rows: Weighted) -> Callable[[Values], jax.Array]:
        """The energy of the likelihood, with a derivative that is computed together with the value."""

        def chunk(z: Values, i: jax.Array) -> jax.Array:
            taken = partial(lax.dynamic_slice_in_dim, start_index=i * _CHUNK, slice_size=_CHUNK)
            weights = taken(rows.weights)
            energies = self._by_one(self._mapped(taken, arrays), z)
            return jnp.sum(jnp.where(weights != 0, weights * energies, 0.0), dtype=float)

        def summed(function: Callable, z: Values, start: Any) -> Any:
            add = partial(jax.tree.map, jnp.add)
            return lax.fori_loop(
                rows.first, rows.stop, lambda i, so: add(so, function(z, i)), start
            )

        @jax.custom_jvp
        def total(z: Values) -> jax.Array:
            return summed(chunk, z, jnp.zeros(()))

        @total.defjvp
        def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
            (z,) = primals
            start = jnp.zeros(()), jax.tree.map(jnp.zeros_like, z)
            value, gradient = summed(jax.value_and_grad(chunk), z, start)
            slopes = jax.tree.map(jnp.vdot, gradient, tangents[0])
            return value, jnp.asarray(sum(jax.tree.leaves(slopes)), value.dtype)

        return total

    def _move(
        self, states: PyTree, noise: PyTree, step: Any, spread: Values, *rows: Any
    ) -> tuple[PyTree, jax.Array]:
        """Values and standard momenta after a trajectory of each draw, and its acceptance; by given noise."""
        first, likelihood = self._first(rows[0]), self._likelihood(*rows)
        (metric, unravel), (step_size, steps) = ravel_pytree(spread), step
        scale, left = jnp.sqrt(metric), jnp.exp(-steps * step_size)

        def one(own: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            position, before, fresh, (jitter, choice) = own

            def energy(position: jax.Array) -> jax.Array:
                return first.energies(unravel(position))[0] + likelihood(unravel(position))

            # A part of the momentum is new: short trajectories go on where the last one went.
            noise = left * before + jnp.sqrt(1 - left**2) * fresh
            own_size = step_size * (LOWEST + jitter * (HIGHEST - LOWEST))
            end, error = leapfrog(energy, position, noise / scale, own_size, metric, steps)
            # Where the end is not taken, the momentum turns round, which leaves the density invariant.
            both = jnp.stack([position, -noise]), jnp.stack([end.z, end.r * scale])
            moved = accept_or_stay(*both, error, steps, choice)
            return *moved.position, moved.accept_prob

        # With flat vectors, and noise of the host, there is half as much to compile.
        flat = jax.vmap(lambda z: ravel_pytree(z)[0])(states[0])
        z, momenta, accepted = _over_draws(one, (flat, states[1], *noise))
        return (jax.vmap(unravel)(z), momenta), accepted.mean()

    def sites_at(self, owner: str, values: Mapping[str, Array]) -> Values:
        """Values of all sites at a row, of two draws, at which the sum over rows is that of the model."""
        count = min(self.size, _COMPARED)

        def both(values: Values, arrays: list[Any]) -> Any:
            together = Potential(self.model, *Arguments.join(arrays, self._static))
            first = self._first(arrays)

            def one(values: Values) -> Any:
                z = first.unconstrain(values)
                apart = first.energies(z)[0], self._by_one(arrays, z).sum()
                return jnp.stack(apart), jnp.stack(together.energies(z)), first.constrain(z, True)

            return jax.vmap(one)(values)

        few = {name: value[:2] for name, value in values.items()}
        arrays = self._mapped(lambda array: array[-count:], self._whole)
        *energies, sites = self._program(both, "both")(few, arrays)
        apart, together = np.asarray(energies, np.float64)
        if not np.isclose(apart, together, _ROUNDING, _ROUNDING * count, equal_nan=True).all():
            why = "rows of this model depend on one another, or its prior on the rows"
            if factors := [name for name, site in self.structure.sites.items() if site.factor]:
                why += f", or its factors {factors} count once and not for each row"
            raise ValueError(
                f"{owner}: {why}: the energy of {count} rows is {together[0].sum():.6g} nats together and "
                f"{apart[0].sum():.6g} one by one. Its posterior does not change by the likelihood of "
                "single rows: fit again on all rows."
            )
        return sites


def run_in_blocks(program: Program, draws: PyTree, *settings: Any) -> Any:
    """A program of each of any number of draws, which is compiled for `_BLOCK` draws."""
    count = len(jax.tree.leaves(draws)[0])
    own = (np.arange(-(-count // _BLOCK) * _BLOCK) % count).reshape(-1, _BLOCK)
    blocks = jax.tree.map(lambda x: x[own], draws)
    parts = [program(jax.tree.map(itemgetter(i), blocks), *settings) for i in range(len(own))]
    return jax.tree.map(lambda *own: np.concatenate(own)[:count], *parts)


def _over_draws(function: Callable, draws: PyTree) -> Any:
    """A function of each draw, of some of them at a time."""
    on_cpu = jax.default_backend() == "cpu"
    return map_in_blocks(function, draws, _TOGETHER_ON_CPU if on_cpu else _TOGETHER)
