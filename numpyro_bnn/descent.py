"""Optimisation of many members at once: what starts, ensembles and their relatives share.

Members are vectorised (``jax.vmap``) and every program is compiled once. They move in the
coordinates of :class:`~numpyro_bnn.marginal.Marginal`, on the energy U in nats, estimated from all
rows or from minibatches by the same estimators that the samplers use. A learning rate for the
*mean* loss U/N is N times as large as one for U.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from tqdm.auto import tqdm

from numpyro_bnn.arguments import prepared
from numpyro_bnn.chains import Arguments
from numpyro_bnn.checks import check_whole
from numpyro_bnn.draws import Draws
from numpyro_bnn.marginal import Marginal, marginal_of
from numpyro_bnn.potential import Values
from numpyro_bnn.sgmcmc.gradients import Order, Rows, full, minibatch
from numpyro_bnn.start import check_mapping
from numpyro_bnn.structure import begin_fit, check_key, explain_tracing
from numpyro_bnn.subsampling import own_batch_size
from numpyro_bnn.targets import check_arguments

# Steps between looks at the energy: few enough to stop in time, enough to hide the look.
_BLOCK = 100


class Training(NamedTuple):
    """How members are optimised; each field is a keyword of the functions that optimise.

    - **optimizer** - an optax optimiser of the energy in nats, its learning rate a number or a
      schedule; default Adam with step 0.01
    - **num_steps** - most steps to take; 0 keeps the starts
    - **batch_size** - rows in a minibatch; all rows where None. The model must have a plate
    - **tolerance** - stop when 100 steps lower the mean energy of no member by more than this
      fraction
    - **validation** - arguments of the model, such as ``(x_val, y_val)``: each member keeps the
      parameters at which these have the highest likelihood, looked at every 100 steps
    - **patience** - with `validation`: stop when no member has improved in so many looks
    - **init_params** - weights to begin at, such as :func:`numpyro_bnn.from_params` gives, the
      same for every member; other sites begin at prior draws
    - **progress_bar** - show the energy while it falls
    """

    optimizer: optax.GradientTransformation | None = None
    num_steps: int = 5000
    batch_size: int | None = None
    tolerance: float = 1e-3
    validation: tuple | None = None
    patience: int = 5
    init_params: dict[str, jax.Array] | None = None
    progress_bar: bool = True

    @classmethod
    def split(cls, owner: str, options: Mapping[str, Any]) -> tuple["Training", dict[str, Any]]:
        """Take the fields from keyword arguments; the rest belongs to the model.

        :raises ValueError: if a number is out of range.
        :raises TypeError: if `validation` is not a tuple of arguments.
        """
        training = cls(**{name: options[name] for name in cls._fields if name in options})
        training = training._replace(
            num_steps=check_whole(owner, "num_steps", training.num_steps, least=0),
            patience=check_whole(owner, "patience", training.patience),
        )
        if training.validation is not None and not isinstance(training.validation, tuple | list):
            raise TypeError(
                f"{owner}: validation must be the arguments of the model on held-out rows, such "
                f"as (x_val, y_val), got {type(training.validation).__name__}."
            )
        return training, {k: v for k, v in options.items() if k not in cls._fields}


class Members(NamedTuple):
    """Where members are while they are optimised; every leaf has a leading axis of members.

    - **z** - unconstrained values by site
    - **moments** - state of the optimiser
    - **batches** - state of the gradient estimator
    """

    z: Values
    moments: Any
    batches: Any


class Descent:
    """The compiled optimisation of one model on one data set.

    :param owner: the caller, for error messages.
    :param model: a NumPyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param batch_size: rows in a minibatch; where None, as many as the model subsamples, or all.
    :param order: how minibatches are taken, see :func:`numpyro_bnn.gradients.minibatch`.
    :param perturb: makes the model of one member from the model and the noise of that member.
    :raises ValueError: if the model has discrete latent sites or cannot be subsampled.
    """

    def __init__(
        self,
        owner: str,
        model: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        batch_size: int | None = None,
        order: Order = "permutation",
        perturb: Callable[[Callable, Any], Callable] | None = None,
    ) -> None:
        args, kwargs, structure = begin_fit(model, args, kwargs)
        if batch_size is None:
            batch_size = own_batch_size(owner, structure)
        self.owner = owner
        self.model = model
        self.kwargs = kwargs
        self.whole = Marginal(model, args, kwargs)
        self.plate, self.size = ("", 0) if batch_size is None else self.whole.around.data_plate()
        if batch_size is not None:
            batch_size = check_whole(owner, "batch_size", batch_size)
        if batch_size is not None and batch_size > self.size:
            raise ValueError(
                f"{owner}: batch_size must be between 1 and the {self.size} rows of plate "
                f"'{self.plate}', got {batch_size}."
            )
        self.estimator = full() if batch_size is None else minibatch(batch_size, order)
        self.perturb = perturb
        arguments = Arguments.split(args, kwargs)
        self.static = arguments.static
        self.arrays = [jnp.asarray(a) for a in arguments.arrays]
        self.gradients = 0.0

    def rows(self, arrays: list[Any], noise: Any = None) -> Rows:
        """The potential of one member, inside a compiled function."""
        model = self.model if self.perturb is None else self.perturb(self.model, noise)
        return Rows(marginal_of(model, self.static, arrays), self.plate, self.size)

    def begin(self, key: jax.Array, num_members: int, given: Values | None) -> Values:
        """Starts: prior draws, one a member, or what is given."""
        if given is not None:
            check_mapping(self.owner, given)

        @jax.jit
        def start(keys: jax.Array, given: Values, arrays: list[Any]) -> Values:
            around = marginal_of(self.model, self.static, arrays)
            return jax.vmap(lambda k: around.begin(k, given))(keys)

        return start(jax.random.split(key, num_members), given or {}, self.arrays)

    def members(self, key: jax.Array, z: Values, moments: Any) -> Members:
        """Members at `z` whose minibatches are decided by `key`."""
        num_members = jnp.shape(next(iter(z.values())))[0]
        rows = Rows(self.whole, self.plate, self.size)
        keys = jax.random.split(key, num_members)
        return Members(z, moments, jax.vmap(lambda z, k: self.estimator.init(rows, z, k))(z, keys))

    def step(
        self, optimizer: optax.GradientTransformationExtraArgs, member: Members, rows: Rows
    ) -> tuple[Members, jax.Array]:
        """One step of one member, and the energy before it."""
        value, gradient, batches = self.estimator.estimate(rows, member.z, member.batches)

        def again(z: Values) -> jax.Array:
            return self.estimator.estimate(rows, z, member.batches).value

        updates, moments = optimizer.update(
            gradient, member.moments, member.z, value=value, grad=gradient, value_fn=again
        )
        return Members(optax.apply_updates(member.z, updates), moments, batches), value

    def advance(self, optimizer: optax.GradientTransformation) -> Callable:
        """A program ``(members, num_steps, noise, arrays) -> (members, mean energies)``.

        Its steps are counted in `gradients`, in passes over all rows.
        """
        extended = optax.with_extra_args_support(optimizer)

        @jax.jit
        def program(members: Members, count: jax.Array, noise: Any, arrays: list[Any]) -> tuple:
            def one(member: Members, noise: Any) -> tuple[Members, jax.Array]:
                rows = self.rows(arrays, noise)

                def body(_: int, carry: tuple) -> tuple:
                    member, total = carry
                    member, value = self.step(extended, member, rows)
                    return member, total + value

                zero = jnp.zeros((), jax.eval_shape(rows.potential, member.z).dtype)
                member, total = lax.fori_loop(0, count, body, (member, zero))
                return member, total / count

            return jax.vmap(one)(members, noise)

        def counted(members: Members, count: int, noise: Any, arrays: list[Any]) -> tuple:
            self.count(count * jax.tree.leaves(members.z)[0].shape[0])
            return program(members, count, noise, arrays)

        return counted

    def count(self, estimates: int) -> None:
        """Add gradient estimates to those taken so far."""
        share = self.estimator.batch_size / self.size if self.estimator.batch_size else 1.0
        self.gradients += estimates * share

    @explain_tracing()
    def fit(
        self, key: jax.Array, num_members: int, training: Training, noise: Any = None
    ) -> tuple[Values, np.ndarray]:
        """Optimise members from their own starts.

        :param noise: of each member, where the model is perturbed.
        :return: unconstrained values, and the energy of each member on all rows (nats).
        """
        check_key(self.owner, key)
        optimizer = optax.adam(1e-2) if training.optimizer is None else training.optimizer
        key_start, key_rows = jax.random.split(key)
        z = self.begin(key_start, num_members, training.init_params)
        members = self.members(key_rows, z, jax.vmap(optimizer.init)(z))
        advance = self.advance(optimizer)
        best = None if training.validation is None else self._best(training.validation)
        last = np.full(num_members, np.inf)
        with tqdm(
            total=training.num_steps, desc="optimise", disable=not training.progress_bar
        ) as bar:
            for done in range(0, training.num_steps, _BLOCK):
                count = min(_BLOCK, training.num_steps - done)
                members, energy = advance(members, count, noise, self.arrays)
                energy = np.asarray(energy)
                bar.set_postfix_str(f"potential energy {energy.mean():.4g}", refresh=False)
                bar.update(count)
                if best is not None:
                    if best.look(members.z) >= training.patience:
                        break
                    continue
                settled = ~(last - energy >= training.tolerance * np.abs(energy))
                if done and settled.all():
                    break
                last = np.fmin(last, energy)
        z = members.z if best is None or best.z is None else best.z
        return z, self.energies(z)

    def _best(self, validation: tuple) -> "_Best":
        return _Best(self.model, tuple(validation), self.kwargs)

    def energies(self, z: Values) -> np.ndarray:
        """U of each member on all rows, nats; not finite where any of its values is not."""

        @jax.jit
        def program(z: Values, arrays: list[Any]) -> jax.Array:
            return jax.vmap(marginal_of(self.model, self.static, arrays))(z)

        return np.where(finite_members(z), np.asarray(program(z, self.arrays)), np.nan)

    def draws(
        self,
        z: Values,
        key: jax.Array | None,
        energy: np.ndarray | None = None,
        **info: Any,
    ) -> Draws:
        """Members and their samples as draws, those that failed left out.

        :param z: unconstrained values, leading axes (member, draw).
        :param key: draws the hierarchical precisions given the weights; None for their means.
        :param energy: of each member, nats.
        :param info: facts about the run.
        :raises ValueError: if no member is left.
        """
        good, left_out = keep_finite(self.owner, finite_members(z))
        kept = {name: value[good] for name, value in z.items()}
        shape = jnp.shape(next(iter(kept.values())))[:2]
        keys = None if key is None else jax.random.split(key, shape)

        @jax.jit
        def program(z: Values, keys: jax.Array | None, arrays: list[Any]) -> Values:
            around = marginal_of(self.model, self.static, arrays)
            return jax.vmap(lambda pair: lax.map(lambda p: around.draw(*p), pair))((z, keys))

        facts = {"kernel": self.owner, "left_out": left_out, "gradients": self.gradients} | info
        stats = {} if energy is None else {"potential_energy": energy[good, None]}
        return Draws(program(kept, keys, self.arrays), self.model, stats, facts)


class _Best:
    """The parameters of each member under which held-out rows were most likely so far."""

    def __init__(self, model: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
        check_arguments(args, kwargs)
        arguments = Arguments.split(*prepared(model, args, kwargs))
        self.arrays = [jnp.asarray(a) for a in arguments.arrays]
        self.z: Values | None = None
        self.score: jax.Array | None = None
        self.without = 0

        @jax.jit
        def score(z: Values, arrays: list[Any]) -> jax.Array:
            found = jax.vmap(marginal_of(model, arguments.static, arrays).log_likelihood)(z)
            return jnp.where(jnp.isnan(found), -jnp.inf, found)

        self._score = score

    def look(self, z: Values) -> int:
        """Compare with the best so far.

        :return: looks since any member improved.
        """
        score = self._score(z, self.arrays)
        if self.z is None or self.score is None:
            self.z, self.score = z, score
            return 0
        better = score > self.score
        self.z = jax.tree.map(
            lambda new, old: jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old),
            z,
            self.z,
        )
        self.score = jnp.maximum(score, self.score)
        self.without = 0 if bool(better.any()) else self.without + 1
        return self.without


def finite_members(z: Values) -> np.ndarray:
    """Whether all values of each member are finite, (members,)."""
    flags = [jnp.isfinite(v).reshape(len(v), -1).all(1) for v in z.values()]
    return np.asarray(jnp.stack(flags).all(0))


def keep_finite(owner: str, finite: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """Numbers of the members to keep, and what to say of the others: they are never averaged in.

    :raises ValueError: if none is left.
    """
    left_out = {int(i): "its values are not finite" for i in np.flatnonzero(~finite)}
    advice = (
        "Check the data for NaN or infinite values, or use a smaller learning rate or step size: "
        "`optimizer=optax.adam(1e-3)`."
    )
    if len(left_out) == len(finite):
        raise ValueError(f"{owner}: no member stayed finite. {advice}")
    if left_out:
        warnings.warn(
            f"{owner}: left out the members {list(left_out)} of {len(finite)}, whose values are "
            f"not finite. {advice}",
            stacklevel=3,
        )
    return np.flatnonzero(finite), left_out
