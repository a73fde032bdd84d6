"""Equinox modules, and any other pytree with a call, as networks.

Arrays of real numbers are parameters under their dotted path, ``"layers.0.weight"``; whole numbers and all
other leaves are kept. The only file that imports Equinox, and only where it is imported already.
"""

import copy
import sys
from collections.abc import Iterator
from typing import Any

import jax
from jax.tree_util import FlattenedIndexKey, GetAttrKey, SequenceKey

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.models.layer_kernels import declared_axes
from numpyro_bnn.models.networks import Network
from numpyro_bnn.priors.paths import Shape
from numpyro_bnn.priors.pytree_paths import LaidOut, UnitAxis, arrays_of, path_of, with_arrays

# Names of arrays that enter an output once, in whatever class.
_NOT_SUMMED = ("bias", "scale", "embedding")


class PyTreeNetwork(Network):
    """A pytree with a call, whose arrays are its parameters; dropout of Equinox is switched off."""

    def __init__(self, module: PyTree) -> None:
        self.module = _without_dropout(module)
        leaves = arrays_of(self.module)
        self._describe(leaves)
        laid_out = dict(_layouts(self.module))
        self.random_shapes = {path: laid_out[path] for path in self.random_shapes}
        self.own_values = {
            path: leaf
            for path, leaf in leaves.items()
            if not isinstance(leaf, jax.ShapeDtypeStruct)
        }
        self._by_row = False

    def over_rows(self) -> "PyTreeNetwork":
        made = copy.copy(self)
        made._by_row = True
        return made

    def apply(self, values: dict[str, Array], *args: PyTree, **kwargs: PyTree) -> PyTree:
        module = with_arrays(self.module, values)
        if self._by_row:
            return jax.vmap(lambda *row: module(*row, **kwargs))(*args)
        return module(*args, **kwargs)


def _without_dropout(module: Any) -> Any:
    """The module in inference mode; refused if it keeps state between calls."""
    if "equinox" not in sys.modules:
        return module
    import equinox as eqx

    states = (eqx.nn.State, eqx.nn.StateIndex)
    nodes = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, states))
    if any(isinstance(node, states) for node in nodes):
        raise ValueError(
            f"random_module: {type(module).__name__} keeps a state from call to call, as BatchNorm does. "
            "Running statistics are neither parameters with a prior nor a function of the inputs, so a "
            "posterior over the weights does not define them. Use GroupNorm, LayerNorm or RMSNorm instead."
        )
    return eqx.nn.inference_mode(module)


def _layouts(module: Any) -> Iterator[tuple[str, LaidOut]]:
    """The shape of each array, which knows the axes that an output sums over and the class that holds it."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(module)[0]:
        if hasattr(leaf, "ndim"):
            owner, name = _owner(module, keys)
            summed = _summed(owner, name, leaf.ndim)
            units = _grouped_units(owner, summed, leaf.shape)
            yield path_of(keys), LaidOut(leaf.shape, summed, type(owner).__name__, units)


def _grouped_units(owner: Any, summed: tuple[int, ...] | None, shape: Shape) -> Any:
    """The source units of a grouped Equinox convolution, each with its own inputs; else None."""
    groups = getattr(owner, "groups", 1)
    if "equinox" not in sys.modules or not summed or groups == 1:
        return None
    from equinox import nn

    if not isinstance(owner, (nn.Conv, nn.ConvTranspose)):
        return None
    inputs = summed[0]
    return UnitAxis(inputs - 1, shape[inputs - 1] // groups), UnitAxis(inputs)


def _owner(module: Any, keys: tuple[Any, ...]) -> tuple[Any, str]:
    """The innermost object, no container, that an array belongs to, and the name of the array in it."""
    owner, name, node = module, "", module
    for key in keys:
        if isinstance(key, GetAttrKey):
            owner, name = node, key.name
            node = getattr(node, name)
        elif isinstance(key, FlattenedIndexKey):
            # The keys of a class registered without names do not lead to its parts.
            return node, str(key.key)
        else:
            node = node[key.idx if isinstance(key, SequenceKey) else key.key]
            name = name or path_of((key,))
    return owner, name


def _summed(owner: Any, name: str, ndim: int) -> tuple[int, ...] | None:
    """The axes that an output sums over; None where the class is unknown and does not say."""
    if (axes := declared_axes(owner, name, ndim)) is not None:
        return axes
    if ndim < 2 or name in _NOT_SUMMED:
        return ()
    return _of_equinox(owner, name, ndim)


def _of_equinox(owner: Any, name: str, ndim: int) -> tuple[int, ...] | None:
    """The axes of the arrays of Equinox's own layers, the last being (outputs, inputs, …)."""
    # ``eqx.filter_vmap`` stacks layers along axes before these.
    if "equinox" not in sys.modules:
        return None
    from equinox import nn

    if isinstance(owner, (nn.Conv, nn.ConvTranspose)) and name == "weight":
        return tuple(range(ndim - 1 - owner.num_spatial_dims, ndim))
    if isinstance(owner, nn.Linear) and name == "weight":
        return (ndim - 1,)
    if isinstance(owner, (nn.GRUCell, nn.LSTMCell)) and name in ("weight_ih", "weight_hh"):
        return (ndim - 1,)
    once = (nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.WeightNorm, nn.PReLU)
    return () if isinstance(owner, once) else None
