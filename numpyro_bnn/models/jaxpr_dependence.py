"""How outputs of a jaxpr depend on its inputs, by its operations: affinely, or slice by slice.

A numeric test could pass by chance, and a program that is being traced has no values. An affine function
consists of sums, products with one constant factor, and operations that only rearrange numbers. Slices stay
apart where the logit of one class depends on the weights of that class alone: column k of the output layer's
kernel leads to column k of the logits.

:func:`call_order` reads off the order in which a network calls its layers. Flax numbers them in the order in
which they are *made*: in ``nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))`` the outer one is ``Dense_0``. A layer is
called where one of its parameters first meets a value that depends on the inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

import jax
from numpyro.handlers import block, seed

from numpyro_bnn._types import PyTree
from numpyro_bnn.priors.paths import CallOrder, layer_of

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


# What a value depends on: paths of parameters, and `_DATA` for the inputs.
Sources = frozenset[str]
_DATA = "<data>"
_NOTHING: Sources = frozenset()


def call_order(
    apply: Callable,
    leaves: Mapping[str, jax.ShapeDtypeStruct],
    args: tuple,
    kwargs: dict[str, PyTree],
) -> CallOrder:
    """Layers with parameters, by their first call in ``apply(values by path, *args, **kwargs)``."""
    given, structure = jax.tree.flatten((args, kwargs))
    is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in given]

    def outputs(values: dict[str, Any], arrays: list[Any]) -> Any:
        remaining = iter(arrays)
        filled = [next(remaining) if a else leaf for a, leaf in zip(is_array, given)]
        args, kwargs = jax.tree.unflatten(structure, filled)
        # Random streams of the network must not use up the keys of the model around it.
        with block(), seed(rng_seed=0):
            return apply(values, *args, **kwargs)

    arrays = [leaf for leaf, a in zip(given, is_array) if a]
    program = jax.make_jaxpr(outputs)(dict(leaves), arrays)
    # JAX flattens a dict in the order of its sorted keys.
    inputs = [frozenset([path]) for path in sorted(leaves)] + [frozenset([_DATA])] * len(arrays)
    feeds: dict[str, Sources] = {}
    _visit(program.jaxpr, inputs, feeds)
    from_data = frozenset(layer for layer, others in feeds.items() if others == {_DATA})
    not_called = dict.fromkeys(layer_of(path) for path in leaves if layer_of(path) not in feeds)
    return CallOrder(tuple(feeds), from_data, tuple(not_called))


def _visit(program: Any, inputs: Sequence[Sources], feeds: dict[str, Sources]) -> list[Sources]:
    """What each output of a program depends on; fills `feeds` with the first input of every layer."""

    def of_equation(equation: Any, given: list[Sources]) -> list[Sources]:
        inner, params = called(equation), equation.params
        if "branches" in params:
            inner, given = params["branches"][-1].jaxpr, given[1:]
        elif "body_jaxpr" in params:
            inner, given = params["body_jaxpr"].jaxpr, given[params["cond_nconsts"] :]
        if inner is not None and len(inner.outvars) == len(equation.outvars):
            return _visit(inner, given, feeds)
        _apply(given, feeds)
        return [_NOTHING.union(*given)] * len(equation.outvars)

    return walk(program, inputs, of_equation, _NOTHING)


def _apply(given: list[Sources], feeds: dict[str, Sources]) -> None:
    """Note the layers that an operation applies to data for the first time."""
    for sources in given:
        layers = {layer_of(path) for path in sources}
        if _DATA in sources or len(layers) != 1:
            continue
        (layer,) = layers
        others = [other for other in given if _DATA in other]
        if others and layer not in feeds:
            feeds[layer] = _NOTHING.union(*others)
