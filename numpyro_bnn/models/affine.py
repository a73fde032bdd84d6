"""Finds the inputs in which a program is affine, from the operations of its jaxpr.

A numeric test could pass by chance, and a program that is being traced has no values. An affine function
consists of sums, products with one constant factor, and operations that only rearrange numbers.
"""

from collections.abc import Sequence
from typing import Any

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


def dependence(program: Any, inputs: Sequence[int]) -> list[int]:
    """Whether each output of a jaxpr is ``CONSTANT``, ``AFFINE`` or ``OTHER`` in its ``AFFINE`` inputs."""
    known: dict[Any, int] = dict(zip(program.invars, inputs))

    def kind(variable: Any) -> int:
        # Literals cannot be looked up, and constants of the program are not in the table.
        return CONSTANT if hasattr(variable, "val") else known.get(variable, CONSTANT)

    for equation in program.eqns:
        kinds = [kind(variable) for variable in equation.invars]
        for variable, result in zip(equation.outvars, _of_equation(equation, kinds)):
            known[variable] = result
    return [kind(variable) for variable in program.outvars]


def _of_equation(equation: Any, kinds: list[int]) -> list[int]:
    count = len(equation.outvars)
    if not any(kinds):
        return [CONSTANT] * count
    inner = next(
        (equation.params[k] for k in ("jaxpr", "call_jaxpr") if k in equation.params), None
    )
    name = equation.primitive.name
    if inner is not None and name not in ("scan", "while", "cond"):
        inner = getattr(inner, "jaxpr", inner)
        if len(inner.invars) == len(kinds):
            return dependence(inner, kinds)
    varying = [i for i, k in enumerate(kinds) if k]
    affine = (
        name in _SUMS
        or (name in _PRODUCTS and len(varying) == 1)
        or (name in _IN_FIRST and varying == [0])
        or (name in _IN_LATER and kinds[0] == CONSTANT)
    )
    return [max(kinds) if affine else OTHER] * count
