"""Optimises many members at once; starts, ensembles, SWAG and Laplace share it.

Members are vectorised (``jax.vmap``) and every program is compiled once: it holds the model and no data, so
that an equal model finds it compiled (:mod:`numpyro_bnn.compilation.program_identity`). They move in the
coordinates of :class:`~numpyro_bnn.approximations.marginal_energy.Marginal`, on the energy U in nats,
estimated from all rows or from minibatches by the same estimators that the samplers use. A learning rate
for the *mean* loss U/N is N times as large as one for U. Members that are not finite are left out, and those
that end far above the best are named.
"""

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from tqdm.auto import tqdm

from numpyro_bnn._calls import show_options, with_descriptions
from numpyro_bnn._checks import check_key, check_whole, warn
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.approximations import stopping
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.stopping import BLOCK, LOOK, Settling, held_out, held_out_call
from numpyro_bnn.compilation.program_identity import Program, form_of
from numpyro_bnn.data.arguments import prepared
from numpyro_bnn.data.not_finite import advice_on_data
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.training_data import data_facts
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.convolutions import fast_convolutions
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.potential.sites import Structure, own_batch_size
from numpyro_bnn.potential.starts import BoundModel, check_mapping
from numpyro_bnn.potential.structure import check_arguments, explain_tracing
from numpyro_bnn.samplers.sgmcmc.gradients import Order, full, minibatch

_Trains = TypeVar("_Trains", bound=Callable)
# One vector in place of many sites: the same numbers, and a fifth less to compile.
_ADAM = optax.flatten(optax.adam(1e-2))
# Members that end far above others start again so often.
_RESTARTS = 2
# Each start is the best of so many prior draws.
_CANDIDATES = 8
# A time limit leaves so many seconds of steps to a program that has taken several to compile.
_LEAST_SECONDS = 2.0


class TrainingOptions(NamedTuple):
    """How members are optimised.

    :param optimizer: an optax optimiser of the energy in nats, its learning rate a number or a
        schedule; default Adam with step 0.01.
    :param num_steps: most steps of the optimisation to take; 0 keeps the starts.
    :param batch_size: rows in a minibatch; all rows where None. The model must have a plate.
    :param tolerance: stop when 100 steps lower the mean energy of no member by more than this
        fraction, the noise of minibatches allowed for; 0 takes every step.
    :param validation: arguments of the model in order, such as ``(x_val, y_val)``: each member keeps the
        parameters at which these have the highest likelihood, looked at every 10 steps.
    :param patience: with held-out rows: stop when no member has improved in so many hundreds of steps.
    :param init_params: weights to begin at, such as :func:`numpyro_bnn.from_params` gives, the
        same for every member; other sites begin at prior draws.
    :param progress_bar: show the energy while it falls.
    """

    optimizer: optax.GradientTransformation | None = None
    num_steps: int = 5000
    batch_size: int | None = None
    tolerance: float = 1e-3
    validation: tuple | None = None
    patience: int = 5
    init_params: dict[str, jax.Array] | None = None
    progress_bar: bool = True

    def checked(self, owner: str) -> "TrainingOptions":
        """Check these options, and convert numbers to Python's own integers."""
        return self._replace(
            num_steps=check_whole(owner, "num_steps", self.num_steps, least=0),
            patience=check_whole(owner, "patience", self.patience),
        )


def trains(function: _Trains) -> _Trains:
    """Show and describe the options of :class:`TrainingOptions` that a function takes by ``**kwargs``."""
    own = inspect.signature(function).parameters
    fields = [name for name in TrainingOptions._fields if name not in own]
    show_options(function, TrainingOptions, fields)
    for source in (TrainingOptions, MemberOptimizer.taking):
        function.__doc__ = with_descriptions(function, source)
    return function


def taken_options(
    owner: str, model: Callable, key: object, args: tuple, kwargs: Mapping[str, Any]
) -> tuple[BoundModel, TrainingOptions]:
    """The model with its data, and the options of training among the keywords; checks the key first."""
    check_key(owner, key)
    own = {name: kwargs[name] for name in TrainingOptions._fields if name in kwargs}
    options = TrainingOptions(**own).checked(owner)
    return BoundModel.of(model, args, {n: v for n, v in kwargs.items() if n not in own}), options


class Members(NamedTuple):
    """The state of members during optimisation; every leaf has a leading axis of members."""

    z: Values  # Unconstrained values by site
    moments: PyTree  # State of the optimiser
    batches: PyTree  # State of the gradient estimator
    # Values at which held-out rows were likeliest so far, and their log likelihood; () where none are
    # held out
    best: tuple = ()


class MemberOptimizer:
    """The compiled optimisation of one model on one data set."""

    def __init__(
        self,
        owner: str,
        bound: BoundModel,
        batch_size: int | None = None,
        order: Order = "permutation",
        pads: bool = False,
        ends: float = math.inf,
    ) -> None:
        if batch_size is None:
            batch_size = own_batch_size(owner, bound.structure)
        self.owner, self.bound, self.ends = owner, bound, ends
        self.model, self.structure = bound.model, bound.structure
        self.args, self.kwargs = args, kwargs = bound.args, bound.kwargs
        if pads and batch_size is None:
            args, kwargs = bound.padded
        # The energy on all rows.
        self.whole = Marginal(bound.model, args, kwargs)
        self.plate, self.size = ("", 0) if batch_size is None else self.whole.centered.data_plate()
        if batch_size is not None:
            batch_size = check_whole(owner, "batch_size", batch_size)
        self.estimator = full() if batch_size is None else minibatch(batch_size, order)
        arguments = Arguments.split(args, kwargs)
        self.static = arguments.static
        # Equal for optimisations whose programs are the same, see `Program`.
        self.same_as: tuple = form_of(self.model), (self.static, self.size, batch_size, order)
        # Makes the model of a member from its noise.
        self.perturb = partial(held_out, sites=frozenset(self.whole.centered.structure.data))
        self.arrays = [jnp.asarray(a) for a in arguments.arrays]
        self._energies = self.compiled(self.energies_of, "energies", runs_once=True)
        self.gradients = 0.0
        self.steps = 0
        self.stopped = ""

    @classmethod
    def taking(
        cls,
        owner: str,
        model: Callable,
        key: object,
        args: tuple,
        kwargs: Mapping[str, Any],
        order: Order = "permutation",
    ) -> tuple[Self, TrainingOptions]:
        """The optimisation of a model, by the options among keywords of a function, and these options.

        :param model: a NumPyro model.
        :param key: random key.
        :param args: its arguments.
        :param kwargs: keyword arguments of the model.
        """
        bound, options = taken_options(owner, model, key, args, kwargs)
        return cls(owner, bound, options.batch_size, order), options

    def begin(
        self, key: jax.Array, num_members: int, given: Values | None, noise: PyTree = None
    ) -> Values:
        """For each member the start of lowest energy among several prior draws; `given` replaces some."""
        if given is not None:
            check_mapping(self.owner, given)
        start = self.compiled(self.starts, "starts", runs_once=True)
        return start(jax.random.split(key, num_members), given or {}, noise, self.arrays)

    def members(self, key: jax.Array, z: Values, moments: PyTree, best: tuple = ()) -> Members:
        """The state of members at `z`; `key` decides their minibatches."""
        num_members = jnp.shape(next(iter(z.values())))[0]
        rows = Rows(self.whole, self.plate, self.size)
        keys = jax.random.split(key, num_members)
        batches = jax.vmap(lambda z, k: self.estimator.init(rows, z, k))(z, keys)
        return Members(z, moments, batches, best)

    def advance(
        self,
        optimizer: optax.GradientTransformation,
        held: tuple | None = None,
        given: Sequence[jax.Array] = (),
    ) -> Callable:
        """The program :meth:`block_of_steps`, which counts its steps in `gradients`."""
        program = self.block_of_steps(optimizer, held)

        def counted(members: Members, count: int, noise: PyTree, arrays: list[jax.Array]) -> tuple:
            self.count(count * jax.tree.leaves(members.z)[0].shape[0])
            return program(members, count, noise, arrays, list(given))

        return counted

    def _holding_out(
        self, key: jax.Array, num_members: int, training: TrainingOptions, to_mode: bool
    ) -> tuple[PyTree, tuple | None, Sequence[jax.Array]]:
        """Rows that each member holds out; how a program looks at them; their arguments, where others."""
        validation = training.validation
        if not training.num_steps or (to_mode and validation is None):
            return None, None, ()
        if validation is not None:
            call = held_out_call(self.owner, self.model, self.args, self.kwargs, validation)
            check_arguments(*call)
            there = Arguments.split(*prepared(self.model, *call))
            return None, ("given", there.static), [jnp.asarray(a) for a in there.arrays]
        potential = self.whole.centered
        if not (sizes := stopping.row_numbers(potential)):
            return None, None, ()
        real = self.structure.plates
        plates = potential.structure.plates.items()
        padding = sum(p.size - real[name].size for name, p in plates if name in real)
        key_held = jax.random.fold_in(key, _RESTARTS)
        rows = stopping.rows_by_member(key_held, sizes, num_members, padding)
        if not (self.plate or potential.is_on_host):
            return rows, ("all", ()), ()
        plate, size = potential.data_plate() if potential.is_on_host else (self.plate, self.size)
        return rows, ("some", (plate, size, stopping.num_held(size))), ()

    def count(self, estimates: int) -> None:
        """Add a number of gradient estimates to the passes over all rows in `gradients`."""
        share = self.estimator.batch_size / self.size if self.estimator.batch_size else 1.0
        self.gradients += estimates * share

    @explain_tracing()
    def fit(
        self,
        key: jax.Array,
        num_members: int,
        training: TrainingOptions,
        noise: PyTree = None,
        to_mode: bool = False,
    ) -> tuple[Values, np.ndarray]:
        """Optimise members from their own starts: unconstrained values, and energies on all rows (nats)."""
        # Each member holds out a fold of the rows, unless `to_mode`, and keeps the values at which these were
        # likeliest; members that end far above the others start again.
        optimizer = _ADAM if training.optimizer is None else training.optimizer
        rows, held, given = self._holding_out(key, num_members, training, to_mode)
        noise = noise if rows is None else rows
        advance = self.advance(optimizer, held, given)

        def attempt(key: jax.Array) -> tuple[Values, np.ndarray]:
            key_start, key_rows = jax.random.split(key)
            z = self.begin(key_start, num_members, training.init_params, noise)
            best = () if held is None else (z, jnp.full(num_members, -jnp.inf))
            # Members of one optimiser may differ by their number, as in their weight decay.
            begin = jax.vmap(optimizer.init, axis_name="members")
            moments = self.compiled(begin, runs_once=True)(z)
            members = self.members(key_rows, z, moments, best)
            z = self._descend(advance, members, training, noise)
            return z, self.energies(z)

        z, energy = attempt(key)
        chosen = set(training.init_params or ()) >= set(self.whole.sites)
        if training.num_steps == 0 or training.validation is not None or chosen:
            return z, energy
        for i in range(_RESTARTS):
            far = far_above(energy, self.allowed)
            if not far.any() or time.monotonic() > self.ends:
                break
            again, found = attempt(jax.random.fold_in(key, i))
            better = far & ~(found >= energy) & np.isfinite(found)
            z = jax.tree.map(lambda new, old, take=better: where_members(take, new, old), again, z)
            energy = np.where(better, found, energy)
        return z, energy

    def _descend(
        self, advance: Callable, members: Members, training: TrainingOptions, noise: PyTree
    ) -> Values:
        """Take steps until members have settled; `steps` and `stopped` say how many and why."""
        batch_size, start = self.estimator.batch_size, members.z
        without_gain, best = 0, np.full(len(jax.tree.leaves(members.z)[0]), -np.inf)
        compiles = not self.stopped
        epoch = -(-self.size // batch_size) if batch_size else 1
        settling = Settling(training.tolerance, epoch)
        self.steps, self.stopped = 0, f"all {training.num_steps} steps taken"
        with tqdm(
            total=training.num_steps, desc="optimise", disable=not training.progress_bar
        ) as bar:
            bar.set_postfix_str("starting, a first run compiles")
            while self.steps < training.num_steps:
                count = min(BLOCK, training.num_steps - self.steps)
                members, energy, variance = advance(members, count, noise, self.arrays)
                energy = np.asarray(energy, np.float64)
                self.steps += count
                bar.set_postfix_str(f"potential energy {energy.mean():.4g}", refresh=False)
                bar.update(count)
                if members.best:
                    score = np.asarray(members.best[1])
                    without_gain = 0 if (score > best).any() else without_gain + 1
                    best = score
                to_the_end = training.validation is None and training.tolerance <= 0
                if without_gain >= training.patience and not to_the_end:
                    self.stopped = "held-out rows no longer gain"
                    break
                if compiles and self.steps == count:
                    self.ends = max(self.ends, time.monotonic() + _LEAST_SECONDS)
                if time.monotonic() > self.ends:
                    self.stopped = "time is over"
                    break
                noisy = np.asarray(variance) / count if batch_size else np.zeros_like(energy)
                if training.validation is None and settling.add_block(energy, noisy):
                    self.stopped = f"{BLOCK} steps gain less than {training.tolerance:g} of it"
                    break
            if self.steps:
                # Without the bar itself, so that the reason fits into a narrow terminal.
                bar.bar_format = "{desc}: {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
                bar.set_postfix_str(f"{self.stopped}, potential energy {energy.mean():.4g}")
        if not members.best:
            return members.z
        # A member that is not finite, and never was better than its start, has failed.
        same = [
            (np.asarray(members.best[0][n]) == np.asarray(v)).reshape(len(v), -1).all(1)
            for n, v in start.items()
        ]
        failed = ~finite_members(members.z) & np.all(same, 0)
        if not failed.any():
            return members.best[0]
        kept, ended = members.best[0], members.z
        return jax.tree.map(lambda new, old: where_members(failed, new, old), ended, kept)

    @property
    def allowed(self) -> float:
        """Nats that a member may end above the best."""
        sites = self.whole.centered.structure.sites
        sizes = [math.prod(sites[name].shape) for name in self.whole.sites]
        return allowed_excess(self.structure, sum(sizes))

    def about_data(self) -> str:
        """A sentence on data that are not finite, for errors; empty where all are."""
        return advice_on_data(self.model, self.args, self.kwargs)

    def name_far(self, energy: np.ndarray, training: TrainingOptions) -> None:
        """Warn of members that ended far above the others, where all were to reach a mode."""
        is_late = time.monotonic() > self.ends
        if training.num_steps and training.validation is None and not is_late:
            name_far(self.owner, energy, self.allowed)

    def energies(self, z: Values) -> np.ndarray:
        """U of each member on all rows, nats; not finite where any of its values is not."""
        return np.where(finite_members(z), np.asarray(self._energies(z, self.arrays)), np.nan)

    def draws(
        self, z: Values, key: jax.Array | None, energy: np.ndarray | None = None, **info: object
    ) -> Draws:
        """Members and their samples, leading axes (member, draw), as draws without failed members."""
        finite = finite_members(z) & (energy is None or np.isfinite(energy))
        good, left_out = keep_finite(self.owner, finite, self.about_data)
        kept = take_members(z, good) if left_out else z
        shape = jnp.shape(next(iter(kept.values())))[:2]
        keys = None if key is None else jax.random.split(key, shape)
        program = self.compiled(self.draws_of, "draws")
        facts = {"kernel": self.owner, "approximation": True, "left_out": left_out}
        facts["gradients"] = self.gradients
        values = program(kept, keys, self.arrays)
        facts |= data_facts(self.bound, values) | info
        stats = {} if energy is None else {"potential_energy": energy[good, None]}
        return Draws(values, self.model, stats, facts)

    def compiled(self, function: Callable, name: Any = None, runs_once: bool = False) -> Program:
        """A function of members and data, compiled; a `name` says what it is, and which options it has."""
        return Program(fast_convolutions(function), runs_once, (*self.same_as, name))

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
        keys = jax.vmap(lambda key: jax.random.split(key, 1 + _CANDIDATES))(keys)
        keys_rows, keys = keys[:, 0], keys[:, 1:]

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

        return self.compiled(steps, ("steps", held) if optimizer is _ADAM else None)

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


def allowed_excess(structure: Structure, num_weights: int) -> float:
    """How far above the best a member may end, in nats."""
    # Draws of a Gaussian posterior have energies above that of the mode by half a χ² variable with k degrees
    # of freedom, k the number of parameters that the data determine: practically never above k/2 + 5 √(k/2) +
    # 10.
    sites = [structure.sites[name] for name in structure.evidence]
    decided = float(num_weights)
    if not any(site.factor for site in sites):
        decided = min(decided, float(sum(math.prod(site.shape) for site in sites)))
    return decided / 2 + 5 * math.sqrt(decided / 2) + 10


def far_above(energy: np.ndarray, allowed: float) -> np.ndarray:
    """Which members ended with an energy above :func:`limit_of`, or not finite."""
    finite = np.isfinite(energy)
    if not finite.any():
        return np.zeros(len(energy), bool)
    return ~finite | (energy > limit_of(energy, allowed))


def limit_of(energy: np.ndarray, allowed: float) -> float:
    """The energy up to which members count as near the lowest, nats."""
    # Where the median member is nearly as far above the lowest as the model allows, or further (because of
    # modes of unequal depth or the noise of minibatches), ten times its excess is allowed.
    ordered = np.sort(energy[np.isfinite(energy)])
    usual = ordered[(len(ordered) - 1) // 2] - ordered[0]
    return float(ordered[0] + max(allowed, 10 * usual))


def name_far(owner: str, energy: np.ndarray, allowed: float) -> None:
    """Warn of finite members that ended far above the others."""
    far = np.flatnonzero(far_above(energy, allowed) & np.isfinite(energy))
    if not len(far):
        return
    ended = ", ".join(f"{i} at {energy[i]:.4g}" for i in far)
    warn(
        f"{owner}: {len(far)} of {len(energy)} members ended far above the others, also from new "
        f"starts: {ended} nats, where the lowest is at {np.nanmin(energy):.4g} and up to "
        f"{limit_of(energy, allowed):.4g} would be near it. They mislead an average, and a chain that "
        "begins there. Give other starts (init_params), more steps (num_steps) or a larger "
        "learning rate, or narrow the prior that starts are drawn from."
    )


def where_members(take: Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Values of some members from one array, of the others from another."""
    return jnp.where(jnp.reshape(take, (-1, *(1,) * (new.ndim - 1))), new, old)


@jax.jit
def take_members(z: Values, members: Array) -> Values:
    """The members of these numbers; the shape of `members` becomes the leading axes."""
    return {name: value[members] for name, value in z.items()}


def finite_members(z: Values) -> np.ndarray:
    """Whether all values of each member are finite, (members,)."""
    # On the host: on the device each shape of a site would be compiled.
    flags = [np.isfinite(np.asarray(v)).reshape(len(v), -1).all(1) for v in z.values()]
    return np.all(flags, 0)


def keep_finite(
    owner: str, finite: np.ndarray, about_data: Callable[[], str]
) -> tuple[np.ndarray, dict[int, str]]:
    """Numbers of the members to keep, and the reason by number for the others, which are left out."""
    left_out = {int(i): "its values or its energy are not finite" for i in np.flatnonzero(~finite)}
    if left_out:
        advice = (
            f"{about_data()}Use a smaller learning rate or step size: `optimizer=optax.adam(1e-3)`."
        )
        if not finite.any():
            raise ValueError(f"{owner}: no member stayed finite. {advice}")
        warn(
            f"{owner}: left out the members {list(left_out)} of {len(finite)}, whose values "
            f"or energies are not finite. {advice}"
        )
    return np.flatnonzero(finite), left_out
