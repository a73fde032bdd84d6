"""Stopping rules of an optimisation: energies that no longer fall, held-out rows that no longer improve."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn.approximations.marginal_energy import marginal_of
from numpyro_bnn.approximations.members import where_members
from numpyro_bnn.data.arguments import innermost, inputs_of_call, prepared
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.targets import check_arguments
from numpyro_bnn.storage.shared_programs import Traced, compiled

# Steps between two evaluations of the energy: few enough to stop in time, enough to hide their cost.
BLOCK = 100


class Settling:
    """Decides whether energies still fall, from noisy means over blocks of steps.

    The mean over the last w blocks is compared with the mean over the w before, for
    w = 1, 2, 4, …, each side at least an epoch of minibatches. Members have settled when for some
    w the fall in 100 steps, plus two standard errors of it, is below a fraction of the energy for
    each of them: noise can delay the end, but not cause it.

    :param tolerance: this fraction of the energy; with 0 or less members never settle.
    :param epoch: steps that see every row once; 1 for steps on all rows.
    """

    def __init__(self, tolerance: float, epoch: int = 1) -> None:
        self.tolerance = tolerance
        self.epoch = epoch
        self._means: list[np.ndarray] = []
        self._variances: list[np.ndarray] = []

    def add_block(self, mean: np.ndarray, variance: np.ndarray) -> bool:
        """Take the next block into account.

        :param mean: energy of each member in the block, nats.
        :param variance: variance of that mean by the noise of minibatches; 0 for steps on all rows.
        :return: whether all members have settled.
        """
        self._means.append(mean)
        self._variances.append(variance)
        if self.tolerance <= 0:
            return False
        width = 1
        while 2 * width <= len(self._means):
            if width * BLOCK >= self.epoch and self._settled_over(width):
                return True
            width *= 2
        return False

    def _settled_over(self, width: int) -> bool:
        last = np.mean(self._means[-width:], 0)
        fall = np.mean(self._means[-2 * width : -width], 0) - last
        error = np.sqrt(np.sum(self._variances[-2 * width :], 0)) / width
        # Members that are no longer finite do not delay the others.
        still = (fall + 2 * error) / width >= self.tolerance * np.abs(last)
        return not still.any()


def held_out_call(
    owner: str, model: Callable, args: tuple, kwargs: dict[str, Any], validation: tuple
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a call of the model on held-out rows: those of training, held-out ones in their place.

    :param owner: the function that was called, for the error.
    :param model: the model.
    :param args: positional arguments of training, as arrays.
    :param kwargs: its keyword arguments.
    :param validation: arguments in the order of the model's signature.
    :raises ValueError: for arguments that have a value for every training row, and none for held-out rows.
    """
    validation = tuple(validation)
    try:
        names = list(inspect.signature(innermost(model)).parameters)
    except (TypeError, ValueError):  # a callable that does not say what it takes
        names = []
    others = {n: value for n, value in kwargs.items() if n not in names[: len(validation)]}
    beyond = args[len(validation) :]
    places = range(len(validation), len(args))
    labels = [names[i] if i < len(names) else f"argument {i + 1}" for i in places]
    inputs = jax.tree.leaves(inputs_of_call(model, args, kwargs))
    rows = {leaf.shape[0] for leaf in inputs if getattr(leaf, "shape", ())}
    missing = [
        name
        for name, value in [*zip(labels, beyond), *others.items()]
        if any(getattr(v, "shape", ())[:1] in {(n,) for n in rows} for v in jax.tree.leaves(value))
    ]
    if missing:
        order = [*names[: len(validation)], *missing]
        raise ValueError(
            f"{owner}: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} a value for every "
            f"training row, and validation, {len(validation)} arguments, has none of held-out rows. Give "
            "all arguments of the model in their order, "
            f"validation=({', '.join(f'{n}_val' for n in order)}), with None for one that the model can do "
            "without; one that it takes by keyword alone it has to take by position too."
        )
    return (*validation, *beyond), others


class HeldOut:
    """Keeps for each member the parameters with the highest likelihood of held-out rows so far."""

    def __init__(self, model: Callable, args: tuple, kwargs: dict[str, object]) -> None:
        check_arguments(args, kwargs)
        arguments = Arguments.split(*prepared(model, args, kwargs))
        self.arrays = [jnp.asarray(a) for a in arguments.arrays]
        self.z: Values | None = None
        self.score: jax.Array | None = None
        self.without = 0

        def score(z: Values, arrays: list[Any]) -> jax.Array:
            found = jax.vmap(marginal_of(model, arguments.static, arrays).log_likelihood)(z)
            return jnp.where(jnp.isnan(found), -jnp.inf, found)

        self._score = compiled(score, Traced(model, arguments.static))

    def compare(self, z: Values) -> int:
        """Compare with the best so far.

        :return: comparisons since any member improved.
        """
        score = self._score(z, self.arrays)
        if self.z is None or self.score is None:
            self.z, self.score = z, score
            return 0
        better = score > self.score
        self.z = jax.tree.map(lambda new, old: where_members(better, new, old), z, self.z)
        self.score = jnp.maximum(score, self.score)
        self.without = 0 if bool(better.any()) else self.without + 1
        return self.without
