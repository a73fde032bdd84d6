"""Tells whether what a model computes for a row is the same among other rows.

Predictions are computed a block of rows at a time, and likelihoods summed over chunks and minibatches. Both
are right where each row is computed by itself, and wrong, without any error, where rows depend on one
another: a model that standardises its inputs by their own mean, a recurrent network along the rows, lags made
inside, a sum over rows.

The program that JAX traces shows it first, at no cost of compiling. The model is traced with two numbers of
rows, so that the axis of the rows is the one that differs, and each primitive is looked up in
:mod:`~numpyro_bnn.potential.row_rules`. Where this does not show that rows are separate, numbers decide
(:mod:`~numpyro_bnn.potential.rows_in_parts`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.row_rules import RULES, SAME, UNCLEAR, axis_of_new_rows
from numpyro_bnn.potential.value_sources import called


def separate_in_program(
    function: Callable[..., PyTree], first: tuple, second: tuple, size: int | None = None
) -> bool:
    """Whether the traced program of a function computes each row of its results from one row.

    :param function: a function of arrays.
    :param first: arguments with some number of rows, arrays or their shapes. Those whose first axis is not
        the same in `second` have rows.
    :param second: arguments with another number of rows.
    :param size: number of all rows, where the function may contain how often rows count to stand for all.
    :return: False where a row may depend on others, or the program does not tell.
    """
    numbers = {
        (a.shape[0], b.shape[0])
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second))
        if a.shape != b.shape
    }
    if len(numbers) != 1:
        return False
    programs = [jax.make_jaxpr(function)(*arguments) for arguments in (first, second)]
    walk = _Walk(numbers.pop(), size)
    own = [
        walk.checked(0 if a.aval.shape != b.aval.shape else SAME, (a, b))
        for a, b in zip(*(p.jaxpr.invars for p in programs))
    ]
    return UNCLEAR not in walk.results(programs, own)


class _Walk:
    """Follows the axis of the rows through two programs that differ in the number of rows alone.

    :param rows: the numbers of rows.
    :param size: see :func:`separate_in_program`.
    """

    def __init__(self, rows: tuple[int, int], size: int | None) -> None:
        self.rows = rows
        self._weights = [(1.0, 1.0)]
        if size is not None:
            share = rows[0] / size, rows[1] / size
            self._weights += [share, (1 / share[0], 1 / share[1])]

    def results(self, programs: Sequence[Any], own: Sequence[int]) -> list[int]:
        """Axes of the rows of all results.

        :param programs: both programs, with their constants.
        :param own: axes of the rows of their arguments.
        """
        first, second = (getattr(program, "jaxpr", program) for program in programs)
        if len(first.eqns) != len(second.eqns):
            return [UNCLEAR] * len(first.outvars)
        known = dict(zip(first.invars, own))
        for variable, pair in zip(
            first.constvars, zip(*(getattr(p, "consts", ()) for p in programs))
        ):
            known[variable] = SAME if _equal(*pair) else UNCLEAR

        def axis_of(pair: tuple[Any, Any]) -> int:
            if hasattr(pair[0], "val"):
                return SAME if self._is_same_number(*pair) else UNCLEAR
            return known.get(pair[0], UNCLEAR)

        for both in zip(first.eqns, second.eqns):
            axes = [axis_of(pair) for pair in zip(both[0].invars, both[1].invars)]
            found = self._of_equation(both, axes)
            for axis, one, other in zip(found, both[0].outvars, both[1].outvars):
                known[one] = self.checked(axis, (one, other))
        return [axis_of(pair) for pair in zip(first.outvars, second.outvars)]

    def checked(self, axis: int, pair: tuple[Any, Any]) -> int:
        """The axis of the rows of a variable, where its shapes agree with that."""
        differ = differing(*(variable.aval.shape for variable in pair))
        if axis == SAME:
            return UNCLEAR if differ else SAME
        rows = tuple(variable.aval.shape[axis] for variable in pair) if differ == [axis] else ()
        return axis if rows == self.rows else UNCLEAR

    def _is_same_number(self, first: Any, second: Any) -> bool:
        """Whether a literal is the same in both programs, but for how often rows count."""
        if not hasattr(second, "val"):
            return False
        if _equal(first.val, second.val):
            return True
        pair = np.asarray(first.val, float), np.asarray(second.val, float)
        return any(np.allclose(pair, weight, rtol=1e-6) for weight in self._weights)

    def _of_equation(self, both: tuple[Any, Any], axes: list[int]) -> list[int]:
        """Axes of the rows of the results of an equation."""
        equation, other = both
        name, count = equation.primitive.name, len(equation.outvars)
        unclear = [UNCLEAR] * count
        if name != other.primitive.name or UNCLEAR in axes:
            return unclear
        if name == "scan":
            return self._of_scan(both, axes)
        inner = [called(equation), called(other)]
        if inner[0] is not None and inner[1] is not None:
            return self.results(inner, axes)
        if name == "optimization_barrier":
            return axes
        if set(axes) <= {SAME}:
            return [self._of_constants(both, pair) for pair in zip(equation.outvars, other.outvars)]
        if name not in RULES or not _equal_settings(equation.params, other.params):
            return unclear
        shapes = [v.aval.shape for v in equation.invars]
        return [RULES[name](equation.params, axes, shapes)] * count

    def _of_constants(self, both: tuple[Any, Any], pair: tuple[Any, Any]) -> int:
        """The axis of the rows of a result of arrays that have none."""
        differ = differing(*(variable.aval.shape for variable in pair))
        if not differ:
            same = both[0].params.keys() == both[1].params.keys() and all(
                _equal_programs(value, both[1].params[name])
                for name, value in both[0].params.items()
            )
            return SAME if same else UNCLEAR
        return axis_of_new_rows(both[0].primitive.name, both[0].params, differ[0])

    def _of_scan(self, both: tuple[Any, Any], axes: list[int]) -> list[int]:
        """A loop over another axis than that of the rows, as of a recurrent network along each row."""
        programs = [equation.params["jaxpr"] for equation in both]
        inner = getattr(programs[0], "jaxpr", programs[0])
        # What the loop runs along has an axis less inside. Releases of JAX tell it in several ways.
        scanned = sum(map(_is_smaller, inner.invars, both[0].invars))
        carried = len(inner.outvars) - sum(map(_is_smaller, inner.outvars, both[0].outvars))
        consts = len(axes) - carried - scanned
        along = axes[consts + carried :]
        unclear = [UNCLEAR] * len(both[0].outvars)
        if both[0].params["length"] != both[1].params["length"] or 0 in along:
            return unclear
        inside = [axis - 1 if axis > 0 else axis for axis in along]
        carry = axes[consts : consts + carried]
        for _ in range(carried + 1):
            found = self.results(programs, [*axes[:consts], *carry, *inside])
            if found[:carried] == carry:
                return [*carry, *(axis + 1 if axis >= 0 else axis for axis in found[carried:])]
            # What is the same at the start may have rows later on, which is the same for the program.
            carry = [new if old == SAME else old for old, new in zip(carry, found)]
        return unclear


def _is_smaller(inner: Any, outer: Any) -> bool:
    return len(inner.aval.shape) < len(outer.aval.shape)


def differing(first: tuple[int, ...], second: tuple[int, ...]) -> list[int]:
    """Axes on which two shapes differ."""
    if len(first) != len(second):
        return list(range(len(first)))
    return [axis for axis, (a, b) in enumerate(zip(first, second)) if a != b]


def _equal(first: Any, second: Any) -> bool:
    """Whether two constants are equal; traced ones are where they are the same."""
    if first is second:
        return True
    if isinstance(first, jax.core.Tracer) or isinstance(second, jax.core.Tracer):
        return False
    if jax.dtypes.issubdtype(getattr(first, "dtype", np.dtype(float)), jax.dtypes.prng_key):
        first, second = jax.random.key_data(first), jax.random.key_data(second)
    return np.array_equal(np.asarray(first), np.asarray(second), equal_nan=False)


# Settings of primitives that are numbers, and not shapes.
_NUMBERS = ("y", "new_dtype", "axes", "axis", "dimension", "dimensions", "mode", "exponent_bits")


def _equal_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether settings that are no shapes are equal, such as the power of ``x**n``."""
    return all(first[name] == second[name] for name in _NUMBERS if name in first)


def _equal_programs(first: Any, second: Any) -> bool:
    """Whether two settings of a primitive are equal, programs among them."""
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(_equal_programs, first, second))
    if hasattr(first, "eqns"):
        return str(first) == str(second)
    return callable(first) or bool(np.all(first == second))
