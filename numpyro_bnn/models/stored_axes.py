"""Where the axes of a layer's array end up in the array that a network stores.

``nn.scan`` and ``nn.vmap`` stack arrays along any axis, and ``nn.map_variables`` transposes them. Sizes are
ambiguous where there are as many layers as inputs. So an array is marked where its layer makes it, and the
mark is followed to the outputs of the jaxpr of `init`. Values do not change.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from numpyro_bnn._types import Array
from numpyro_bnn.priors.paths import Shape

_MARK = "numpyro_bnn: "
# Operations that keep each entry in its place, on operands of equal shape.
_IN_PLACE = {
    "abs", "add", "add_any", "convert_element_type", "copy", "copy_p", "div", "exp", "log", "log1p", "expm1",
    "logistic", "max", "min", "mul", "name", "neg", "optimization_barrier", "pow", "integer_pow", "select_n",
    "sharding_constraint", "sqrt", "square", "stop_gradient", "sub", "tanh",
}  # fmt: skip


class Followed(NamedTuple):
    """A value that holds a marked array."""

    note: str  # What the mark says
    shape: Shape  # Shape of the array where it was marked
    # For each axis of the value that of the marked array; None for one of a stack.
    axes: tuple[int | None, ...]

    def stored(self) -> tuple[int, ...] | None:
        """For each axis of the marked array that of the value; None where one is missing."""
        own = range(len(self.shape))
        if any(self.axes.count(axis) != 1 for axis in own):
            return None
        return tuple(self.axes.index(axis) for axis in own)


def marked(value: Array, note: str) -> Array:
    """The same values, with a mark in the program that computes them."""
    # The mark is on zeros, which ``vmap`` does not batch: its axes stay apart from those of stacks.
    return value + checkpoint_name(jnp.zeros(jnp.shape(value), value.dtype), _MARK + note)


def follow(program: Any, inputs: Sequence[Followed | None] = ()) -> list[Followed | None]:
    """For every output of a jaxpr the marked array that it holds, or None."""
    known: dict[Any, Followed] = {v: f for v, f in zip(program.invars, inputs) if f is not None}
    for equation in program.eqns:
        # Literals cannot be looked up.
        given = [None if hasattr(v, "val") else known.get(v) for v in equation.invars]
        for variable, found in zip(equation.outvars, _of_equation(equation, given)):
            if found is not None:
                known[variable] = found
    return [None if hasattr(v, "val") else known.get(v) for v in program.outvars]


def _of_equation(equation: Any, given: list[Followed | None]) -> list[Followed | None]:
    kind, params = equation.primitive.name, equation.params
    nothing: list[Followed | None] = [None] * len(equation.outvars)
    if kind == "name" and params["name"].startswith(_MARK):
        shape = tuple(equation.outvars[0].aval.shape)
        own = tuple(range(len(shape)))
        return [Followed(params["name"].removeprefix(_MARK), shape, own)]
    if kind == "scan":
        return _of_scan(equation, given)
    if kind == "cond":
        branches = [follow(branch.jaxpr, given[1:]) for branch in params["branches"]]
        return [found[0] if len(set(found)) == 1 else None for found in zip(*branches)]
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in params:
            inner = getattr(params[name], "jaxpr", params[name])
            fits = len(inner.invars) == len(given) and len(inner.outvars) == len(nothing)
            return follow(inner, given) if fits else nothing
    if kind == "add" and given[0] is not None:
        # The first mark of an array counts; a module around its layer may mark it again.
        given = given[:1]
    held = {one for one in given if one is not None}
    if len(held) != 1:
        return nothing
    (one,) = held
    return [_moved(one, equation, variable.aval.shape) for variable in equation.outvars]


def _moved(one: Followed, equation: Any, shape: Shape) -> Followed | None:
    """What a result holds if its operands hold one marked array."""
    kind, params = equation.primitive.name, equation.params
    if kind == "transpose":
        return one._replace(axes=tuple(one.axes[axis] for axis in params["permutation"]))
    if kind == "broadcast_in_dim":
        axes: list[int | None] = [None] * len(shape)
        operand = equation.invars[0].aval.shape
        for axis, own, size in zip(params["broadcast_dimensions"], one.axes, operand):
            axes[axis] = own if size == shape[axis] else None
        return one._replace(axes=tuple(axes))
    if kind == "squeeze":
        kept = [a for i, a in enumerate(one.axes) if i not in params["dimensions"]]
        return one._replace(axes=tuple(kept))
    if kind == "reshape":
        return _reshaped(one, equation.invars[0].aval.shape, shape)
    return one if kind in _IN_PLACE and len(one.axes) == len(shape) else None


def _reshaped(one: Followed, before: Shape, after: Shape) -> Followed | None:
    """What a reshape holds if it only adds or removes axes of size one."""
    sizes = [(size, own) for size, own in zip(before, one.axes) if size != 1]
    if [size for size, _ in sizes] != [size for size in after if size != 1]:
        return None
    remaining = iter(sizes)
    return one._replace(axes=tuple(None if size == 1 else next(remaining)[1] for size in after))


def _of_scan(equation: Any, given: list[Followed | None]) -> list[Followed | None]:
    step = equation.params["jaxpr"]
    step = getattr(step, "jaxpr", step)
    # One step sees a slice of a stack. Carried values and constants are not followed.
    inputs = [
        _slice(one) if one is not None and v.aval.ndim < len(one.axes) else None
        for v, one in zip(step.invars, given)
    ]
    return [
        one._replace(axes=(None, *one.axes))
        if one is not None and v.aval.ndim > len(one.axes)
        else None
        for v, one in zip(equation.outvars, follow(step, inputs))
    ]


def _slice(one: Followed) -> Followed | None:
    return one._replace(axes=one.axes[1:]) if one.axes[0] is None else None


def program_of(function: Any, *arguments: Any) -> tuple[Any, Any]:
    """The program of a function of arrays, and the shapes of what it returns."""
    # Modules under ``nn.jit`` keep their programs. An unused precision of products gives these programs a
    # context of their own, so that they are not confused with those without marks; no value is computed.
    in_use = jax.config.jax_default_matmul_precision
    with jax.default_matmul_precision("bfloat16" if in_use != "bfloat16" else "tensorfloat32"):
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return program.jaxpr, shapes
