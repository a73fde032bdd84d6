"""How outputs of a jaxpr depend on its inputs, by its operations: affinely, or slice by slice.

A numeric test could pass by chance, and a program that is being traced has no values. An affine function
consists of sums, products with one constant factor, and operations that only rearrange numbers. Slices stay
apart where the logit of one class depends on the weights of that class alone: column k of the output layer's
kernel leads to column k of the logits.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

T = TypeVar("T")
# The program that an equation calls with its own arguments, as ``jax.jit`` does.
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def walk(
    program: Any, inputs: Sequence[T], rule: Callable[[Any, list[T]], Sequence[T]], constant: T
) -> list[T]:
    """What is known of each output of a jaxpr, by a rule for an equation and what is known of its inputs."""
    known: dict[Any, T] = dict(zip(program.invars, inputs))

    def of(variable: Any) -> T:
        # Literals cannot be looked up, and constants of the program are not in the table.
        return constant if hasattr(variable, "val") else known.get(variable, constant)

    for equation in program.eqns:
        given = [of(variable) for variable in equation.invars]
        known.update(zip(equation.outvars, rule(equation, given)))
    return [of(variable) for variable in program.outvars]


def called(equation: Any) -> Any:
    """The program inside an equation that takes all of its inputs; None where there is none."""
    program = next((equation.params[k] for k in _CALLED if k in equation.params), None)
    program = getattr(program, "jaxpr", program)
    return None if program is None or len(program.invars) != len(equation.invars) else program


CONSTANT, AFFINE, OTHER = range(3)

# Operations whose result is affine in all of their inputs.
_SUMS = {
    "add", "add_any", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p",
    "cumsum", "expand_dims", "neg", "optimization_barrier", "pad", "reduce_sum", "reshape", "rev",
    "sharding_constraint", "squeeze", "sub", "transpose",
}  # fmt: skip
# Products: affine where at most one factor is not constant.
_PRODUCTS = {"mul", "dot_general", "conv_general_dilated"}
# Affine in some inputs where the others are constant.
_IN_FIRST = {"div", "slice", "dynamic_slice", "gather"}
_IN_LATER = {"select_n"}
_LOOPS = {"scan", "while", "cond"}


def dependence(program: Any, inputs: Sequence[int]) -> list[int]:
    """Whether each output of a jaxpr is ``CONSTANT``, ``AFFINE`` or ``OTHER`` in its ``AFFINE`` inputs."""
    return walk(program, inputs, _kinds_of_equation, CONSTANT)


def _kinds_of_equation(equation: Any, kinds: list[int]) -> list[int]:
    count, name = len(equation.outvars), equation.primitive.name
    if not any(kinds):
        return [CONSTANT] * count
    if name not in _LOOPS and (inner := called(equation)) is not None:
        return dependence(inner, kinds)
    varying = [i for i, k in enumerate(kinds) if k]
    affine = (
        name in _SUMS
        or (name in _PRODUCTS and len(varying) == 1)
        or (name in _IN_FIRST and varying == [0])
        or (name in _IN_LATER and kinds[0] == CONSTANT)
    )
    return [max(kinds) if affine else OTHER] * count


# An input, or result, that varies and whose slices do not stay apart.
MIXED = -1
# Operations that work entry by entry, on operands of equal shape.
_ENTRYWISE = {
    "add", "add_any", "convert_element_type", "copy", "copy_p", "div", "mul", "neg",
    "optimization_barrier", "select_n", "sharding_constraint", "sub",
}  # fmt: skip


def slice_axes(program: Any, inputs: Sequence[int | None]) -> list[int | None]:
    """For every output of a jaxpr the axis whose slice k depends on slices k of the inputs alone."""
    # None for inputs and outputs that are constant; ``MIXED`` for outputs that may mix slices.
    return walk(program, inputs, _axes_of_equation, None)


def _axes_of_equation(equation: Any, axes: list[int | None]) -> list[int | None]:
    count, name, params = len(equation.outvars), equation.primitive.name, equation.params
    varying = [i for i, axis in enumerate(axes) if axis is not None]
    if not varying:
        return [None] * count
    if name not in _LOOPS and (inner := called(equation)) is not None:
        return slice_axes(inner, axes)
    if len({axes[i] for i in varying}) > 1 or axes[varying[0]] == MIXED:
        return [MIXED] * count
    axis = axes[varying[0]]
    assert axis is not None
    if name in _ENTRYWISE:
        return [axis] * count
    if count > 1 or len(varying) > 1:
        return [MIXED] * count
    before = equation.invars[varying[0]].aval.shape
    return [_moved(name, params, axis, before, equation.outvars[0].aval.shape, varying[0])]


def _moved(
    name: str,
    params: dict[str, Any],
    axis: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
    operand: int,
) -> int:
    """Where an operation of one varying operand puts an axis of it; ``MIXED`` if it does not keep it."""
    if name == "broadcast_in_dim":
        found = params["broadcast_dimensions"][axis]
        return found if after[found] == before[axis] else MIXED
    if name == "transpose":
        return list(params["permutation"]).index(axis)
    if name in ("reduce_sum", "squeeze"):
        gone = params["axes"] if name == "reduce_sum" else params["dimensions"]
        return MIXED if axis in gone else axis - sum(g < axis for g in gone)
    if name in ("reshape", "expand_dims"):
        # The axis is kept where as many entries lie before it and along it as there were.
        ahead = prod(before[:axis])
        kept = [a for a, n in enumerate(after) if n == before[axis] and prod(after[:a]) == ahead]
        return kept[0] if kept else MIXED
    if name == "dot_general":
        contracted, batch = params["dimension_numbers"]
        if axis in batch[operand]:
            return list(batch[operand]).index(axis)
        if axis in contracted[operand]:
            return MIXED
        free = [a for a in range(len(before)) if a not in (*contracted[operand], *batch[operand])]
        # Axes of a product: those of the batch, then the free ones of the first factor and of the second.
        other = len(after) - len(batch[0]) - len(free)
        return len(batch[0]) + (other if operand == 1 else 0) + free.index(axis)
    return MIXED
