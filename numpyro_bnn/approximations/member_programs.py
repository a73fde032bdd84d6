"""What is compiled to optimise members: their starts, energies, draws, and blocks of steps.

The programs hold the model and no data, which are arguments, so that an equal model finds them compiled
(:mod:`numpyro_bnn.compilation.program_identity`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from numpyro_bnn._types import PyTree
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.stopping import LOOK
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.convolutions import fast_convolutions
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator

# Each start is the best of so many prior draws.
_CANDIDATES = 8


class Members(NamedTuple):
    """The state of members during optimisation; every leaf has a leading axis of members."""

    z: Values  # Unconstrained values by site
    moments: PyTree  # State of the optimiser
    batches: PyTree  # State of the gradient estimator
    # Values at which held-out rows were likeliest so far, and their log likelihood; () where none are
    # held out
    best: tuple = ()


class MemberPrograms:
    """Functions of the members and data of one model, to be compiled by :meth:`compiled`."""

    whole: Marginal  # The energy on all rows
    static: tuple  # Description of the arguments of the model, see :class:`Arguments`
    # The plate of minibatches and its number of rows.
    plate: str
    size: int
    estimator: Estimator
    perturb: Callable[..., Callable]  # Makes the model of a member from its noise

    def compiled(self, function: Callable, runs_once: bool = False) -> Program:
        """A function of members and data, compiled, or what an equal model had compiled."""
        return Program(fast_convolutions(function), runs_once)

    def marginal(self, arrays: list[jax.Array], model: Callable | None = None) -> Marginal:
        """The energy for the arrays that a compiled function was given; `model` may be a perturbed one."""
        return self.whole.at(*Arguments.join(arrays, self.static), model)

    def rows(self, arrays: list[jax.Array], noise: PyTree = None) -> Rows:
        """The potential of one member, inside a compiled function."""
        model = None if noise is None else self.perturb(self.whole.model, noise)
        return Rows(self.marginal(arrays, model), self.plate, self.size)

    def starts(
        self, keys: jax.Array, given: Values, noise: PyTree, arrays: list[jax.Array]
    ) -> Values:
        """For each member the start of lowest energy among several prior draws."""
        # Every second draw is shrunk, because a draw from a wide prior may have an energy from which no
        # optimiser recovers. With minibatches, candidates are compared on a single one.
        centered = self.marginal(arrays)

        num_members = len(keys)
        keys_rows, keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        keys = jax.vmap(lambda key: jax.random.split(key, _CANDIDATES))(keys)

        # One after another: draws for a vector of keys take several times as long to compile.
        numbers = jnp.tile(jnp.arange(_CANDIDATES), num_members)
        drawn = jax.tree.map(
            lambda leaf: leaf.reshape(num_members, _CANDIDATES, *leaf.shape[1:]),
            lax.map(
                lambda at: centered.begin(at[1], given, at[0] % 2 == 1), (numbers, keys.ravel())
            ),
        )

        def best_of(drawn: Values, key_rows: jax.Array, noise: PyTree) -> Values:
            rows = self.rows(arrays, noise)
            # All candidates are judged by one minibatch.
            first = jax.tree.map(lambda leaf: leaf[0], drawn)
            batches = self.estimator.init(rows, first, key_rows)
            energy = lax.map(lambda z: self._energy(rows, z, batches), drawn)
            best = jnp.argmin(jnp.where(jnp.isfinite(energy), energy, jnp.inf))
            return jax.tree.map(lambda leaf: leaf[best], drawn)

        return jax.vmap(best_of)(drawn, keys_rows, noise)

    def block_of_steps(
        self, optimizer: optax.GradientTransformation, held: tuple | None = None
    ) -> Program:
        """The program ``(members, num_steps, noise, arrays, given) -> (members, energies, variances)``."""
        # Energies are means over the steps, and variances those of single steps. `held` says how to keep the
        # best by held-out rows: the description of the arguments `given`, or of `noise`, () for all rows at
        # once or the plate and the number of held-out rows.
        extended = optax.with_extra_args_support(optimizer)

        def steps(
            members: Members,
            count: jax.Array,
            noise: PyTree,
            arrays: list[jax.Array],
            given: list[jax.Array],
        ) -> tuple:
            # Members together inside of the loops: a loop for a vector of members is traced twice.
            def body(i: int, carry: tuple) -> tuple:
                def one(carry: tuple, noise: PyTree) -> tuple:
                    member, mean, squares = carry
                    member, value = self._step(extended, member, self.rows(arrays, noise))
                    gap = value.astype(mean.dtype) - mean
                    mean = mean + gap / (i + 1)
                    return member, mean, squares + gap * (value - mean)

                return jax.vmap(one)(carry, noise)

            zeros = jnp.zeros(len(jax.tree.leaves(members)[0]), jnp.result_type(float))
            carry = (members, zeros, zeros)
            if held is None:
                members, mean, squares = lax.fori_loop(0, count, body, carry)
                return members, mean, squares / count
            between = jnp.clip(count, 1, LOOK)

            def look(member: Members, noise: PyTree) -> Members:
                likelihood = self._held_out(held, noise, arrays, given)
                found = jnp.asarray(likelihood(member.z), member.best[1].dtype)
                better = partial(jnp.where, found > member.best[1])
                return member._replace(best=jax.tree.map(better, (member.z, found), member.best))

            def look_and_go(j: jax.Array, carry: tuple) -> tuple:
                members = jax.vmap(look)(carry[0], noise)
                first = j * between
                last = jnp.minimum(first + between, count)
                return lax.fori_loop(first, last, body, (members, *carry[1:]))

            looks = count // between + 1
            members, mean, squares = lax.fori_loop(0, looks, look_and_go, carry)
            return members, mean, squares / count

        return self.compiled(steps)

    def _held_out(
        self, held: tuple, noise: PyTree, arrays: list[jax.Array], given: list[jax.Array]
    ) -> Callable:
        """The log likelihood of held-out rows as a function of a member's values."""
        kind, about = held
        if kind == "given":
            return Marginal(self.whole.model, *Arguments.join(given, about)).log_likelihood
        if kind == "all":
            model = self.perturb(self.whole.model, noise, others=True)
            return self.marginal(arrays, model).log_likelihood
        plate, size, count = about
        marginal = self.marginal(arrays)
        indices = jnp.nonzero(noise[str(size)], size=count)[0]
        some = marginal.centered.rows_of(indices, plate)
        return lambda z: marginal.log_likelihood(z, some)

    def _step(
        self, optimizer: optax.GradientTransformationExtraArgs, member: Members, rows: Rows
    ) -> tuple[Members, jax.Array]:
        """One step of one member, and the energy before it."""
        value, gradient, batches = self.estimator.estimate(rows, member.z, member.batches)

        given = {"value": value, "grad": gradient}
        given["value_fn"] = partial(self._energy, rows, batches=member.batches)
        updates, moments = optimizer.update(gradient, member.moments, member.z, **given)
        z = optax.apply_updates(member.z, updates)
        return member._replace(z=z, moments=moments, batches=batches), value

    def _energy(self, rows: Rows, z: Values, batches: PyTree) -> jax.Array:
        """The energy of one member on the rows of its next step."""
        # A gradient that nobody reads would be traced and compiled too.
        if batches is None:
            return rows.energy(z)
        return self.estimator.estimate(rows, z, batches).value

    def energies_of(self, z: Values, arrays: list[jax.Array]) -> jax.Array:
        """U of each member on all rows, nats."""
        return jax.vmap(self.marginal(arrays))(z)

    def completed(self, z: Values, arrays: list[jax.Array]) -> Values:
        """Unconstrained values of all latent sites of each member, precisions at their means."""
        return jax.vmap(self.marginal(arrays).complete)(z)

    def draws_of(self, z: Values, keys: jax.Array | None, arrays: list[jax.Array]) -> Values:
        """Values of every site from unconstrained values with leading axes (member, draw)."""
        centered = self.marginal(arrays)
        return jax.vmap(lambda pair: lax.map(lambda p: centered.draw(*p), pair))((z, keys))
