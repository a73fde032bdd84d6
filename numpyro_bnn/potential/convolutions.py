"""Convolutions whose gradients are fast inside loops on a CPU.

XLA's fast convolutions for a CPU need one order of axes: rows first, channels last, and the outputs of a
kernel last. Gradients have another order. Outside of loops XLA transposes their operands; inside of loops it
falls back on code that is 10 to 30 times slower and takes longer to compile. All steps of a sampler are in a
loop. So the programs of this package are rewritten: each convolution is
one in that order between transposed operands, which is the same sum (see `benchmarks/speed/convolutions`).
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.compiled_arguments import Arguments


def fast_convolutions(function: Callable) -> Callable:
    """`function`, with convolutions that stay fast inside of loops where JAX runs on a CPU."""
    if jax.default_backend() != "cpu":
        return function

    @functools.wraps(function)
    def rewritten(*args: PyTree) -> PyTree:
        arrays, static = Arguments.split(args, {})

        def of_arrays(arrays: list[Any]) -> PyTree:
            return function(*Arguments.join(arrays, static)[0])

        program, shape = jax.make_jaxpr(of_arrays, return_shape=True)(arrays)
        if _has_convolution(program.jaxpr):
            program = _rewritten(program)
        return jax.tree.unflatten(jax.tree.structure(shape), core.jaxpr_as_fun(program)(*arrays))

    return rewritten


def _programs_in(value: Any) -> Iterable[core.Jaxpr]:
    """The programs in a parameter of an operation, such as the body of a loop."""
    if isinstance(value, core.ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, core.Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _programs_in(each)


def _has_convolution(jaxpr: core.Jaxpr) -> bool:
    return any(
        eqn.primitive is lax.conv_general_dilated_p
        or any(map(_has_convolution, _programs_in(tuple(eqn.params.values()))))
        for eqn in jaxpr.eqns
    )


def _rewritten(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """A program with the same inputs and outputs, all of whose convolutions are in the fast order."""
    inputs = [variable.aval for variable in program.jaxpr.invars]
    return jax.make_jaxpr(lambda *own: _run(program.jaxpr, program.consts, own))(*inputs)


def _run(jaxpr: core.Jaxpr, constants: Iterable[Any], inputs: Iterable[Any]) -> list[Any]:
    known = dict(zip(jaxpr.constvars, constants)) | dict(zip(jaxpr.invars, inputs))

    def of(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        given = list(map(of, eqn.invars))
        with eqn.ctx.manager:
            if eqn.primitive is lax.conv_general_dilated_p:
                found = [_convolution(*given, **eqn.params)]
            else:
                params = {name: _parameter(value) for name, value in eqn.params.items()}
                # JAX 0.7 keeps functions of an operation, such as its derivative, apart from its parameters.
                bound = eqn.primitive.get_bind_params(params)
                functions, params = bound if isinstance(bound, tuple) else ((), bound)
                out = eqn.primitive.bind(*functions, *given, **params)
                found = out if eqn.primitive.multiple_results else [out]
        known.update(zip(eqn.outvars, found))
    return list(map(of, jaxpr.outvars))


def _parameter(value: Any) -> Any:
    """A parameter of an operation, rewritten where it is a program with convolutions, or holds some."""
    if not any(map(_has_convolution, _programs_in(value))):
        return value
    if isinstance(value, core.ClosedJaxpr):
        return _rewritten(value)
    if isinstance(value, core.Jaxpr):
        # A program without constants has none afterwards.
        return _rewritten(core.ClosedJaxpr(value, ())).jaxpr
    parts = map(_parameter, value)
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _convolution(x: jax.Array, kernel: jax.Array, *, dimension_numbers: Any, **params: Any) -> Any:
    """A convolution as the transpose of one with channels last."""
    (rows, channels, *where), (outputs, inputs, *size), (rows_out, channels_out, *where_out) = (
        dimension_numbers
    )
    count = len(where)
    last = (0, count + 1, *range(1, count + 1))
    found = lax.conv_general_dilated_p.bind(
        jnp.transpose(x, (rows, *where, channels)),
        jnp.transpose(kernel, (*size, inputs, outputs)),
        dimension_numbers=lax.ConvDimensionNumbers(last, (count + 1, count, *range(count)), last),
        **params,
    )
    order = (rows_out, *where_out, channels_out)
    return jnp.transpose(found, [order.index(axis) for axis in range(count + 2)])
