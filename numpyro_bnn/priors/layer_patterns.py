"""Patterns over paths of parameters, and over the order in which layers are called: ``"layer[0].kernel"``."""

import re
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from numpyro.util import find_stack_level

from numpyro_bnn.priors.paths import CallOrder, NetworkShapes, Shapes, layer_of, source_axis

_LAYER = re.compile(r"layer\[(-?\d+)\]\.(.+)")
# Layers that were warned of: every trace of a model calls its prior again.
_WARNED: set[tuple[str, ...]] = set()


def matches(path: str, pattern: str, shapes: Shapes) -> bool:
    """Whether a path matches a glob pattern, or ``"layer[i]."`` and one over what follows the layer."""
    found = _LAYER.fullmatch(pattern)
    if found is None:
        return fnmatchcase(path, pattern)
    layers = _order_of(shapes, pattern).layers
    number = int(found[1])
    if not -len(layers) <= number < len(layers):
        named = ", ".join(f"layer[{i}] is {layer!r}" for i, layer in enumerate(layers))
        raise ValueError(
            f"ByPath: the pattern {pattern!r} asks for a layer that is not there; the network calls "
            f"{len(layers)}: {named}. Count from 0, or from -1 at the end."
        )
    layer = layers[number]
    return layer_of(path) == layer and fnmatchcase(path.rpartition(".")[2], found[2])


def check_no_layers(owner: str, patterns: Iterable[str]) -> None:
    """Refuse patterns by call order where single parameters are asked for, without their network."""
    for pattern in patterns:
        if _LAYER.fullmatch(pattern):
            raise ValueError(
                f"{owner}: {pattern!r} goes by the order of calls, which a path alone does not tell. Use "
                "the prior in `random_module`."
            )


def same_order(paths: Shapes, shapes: Shapes) -> NetworkShapes:
    """Some of the parameters of a network, with the order of its calls."""
    return NetworkShapes(paths, shapes.find if isinstance(shapes, NetworkShapes) else None)


def warn_of_hidden_units(name: str, by_unit: Mapping[str, Shapes], shapes: Shapes) -> None:
    """Warn if precisions by unit, which show relevant inputs, are on hidden layers only."""
    # Patterns by call order name a layer on purpose, so they do not warn.
    patterns = tuple(pattern for pattern in by_unit if _LAYER.fullmatch(pattern) is None)
    reached = (
        path for p in patterns for path, s in by_unit[p].items() if source_axis(path, s) is not None
    )
    layers = tuple(dict.fromkeys(map(layer_of, reached)))
    if not layers or getattr(shapes, "find", None) is None or len(patterns) < len(by_unit):
        return
    order = _order_of(shapes, patterns[0])
    if order.from_data & set(layers) or (name, *layers) in _WARNED:
        return
    _WARNED.add((name, *layers))
    places = " and ".join(
        f"{layer!r} is layer[{order.layers.index(layer)}]" if layer in order.layers else repr(layer)
        for layer in layers
    )
    first = ", ".join(sorted(map(repr, order.from_data)))
    warnings.warn(
        f"ByPath: {', '.join(map(repr, patterns))} has a prior with precisions by unit (`unit=`), and the "
        f"data enter the network '{name}' elsewhere: in order of calls {places} of {len(order.layers)}, "
        f"and the data enter {first}. For the relevance of inputs write 'layer[0].kernel'; if hidden "
        "units are meant, name them so too, such as 'layer[-1].kernel'.",
        stacklevel=find_stack_level(),
    )


def _order_of(shapes: Shapes, pattern: str) -> CallOrder:
    find = getattr(shapes, "find", None)
    if find is None:
        raise ValueError(
            f"ByPath: the pattern {pattern!r} goes by the order in which layers are called, which needs "
            "an example input. Give it after the prior: `random_module(name, module, prior, x[:1])`."
        )
    order: CallOrder = find()
    return order
