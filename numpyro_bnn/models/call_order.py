"""The order in which a network calls its layers, read off its traced program.

Flax numbers layers in the order in which they are *made*: in ``nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))`` the
outer one is ``Dense_0``. A layer is called where one of its parameters first meets a value that depends on
the inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from numpyro.handlers import block, seed

from numpyro_bnn._types import PyTree
from numpyro_bnn.priors.paths import CallOrder, layer_of

# The program that an equation calls with its own arguments, as ``jax.jit`` does.
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
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


def _called(equation: Any) -> Any:
    """The program inside an equation that takes all of its inputs; None where there is none."""
    program = next((equation.params[k] for k in _CALLED if k in equation.params), None)
    program = getattr(program, "jaxpr", program)
    return None if program is None or len(program.invars) != len(equation.invars) else program


def _visit(program: Any, inputs: Sequence[Sources], feeds: dict[str, Sources]) -> list[Sources]:
    """What each output of a program depends on; fills `feeds` with the first input of every layer."""
    known = dict(zip(program.invars, inputs))

    def of(variable: Any) -> Sources:
        # Literals cannot be looked up, and constants of the program are not in the table.
        return _NOTHING if hasattr(variable, "val") else known.get(variable, _NOTHING)

    for equation in program.eqns:
        given = [of(variable) for variable in equation.invars]
        inner, params = _called(equation), equation.params
        if "branches" in params:
            inner, given = params["branches"][-1].jaxpr, given[1:]
        elif "body_jaxpr" in params:
            inner, given = params["body_jaxpr"].jaxpr, given[params["cond_nconsts"] :]
        if inner is not None and len(inner.outvars) == len(equation.outvars):
            found = _visit(inner, given, feeds)
        else:
            _apply(given, feeds)
            found = [_NOTHING.union(*given)] * len(equation.outvars)
        known.update(zip(equation.outvars, found))
    return [of(variable) for variable in program.outvars]


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
