"""Linen, NNX and Equinox modules, and other callable pytrees, through one interface.

A :class:`Network` has parameters by path, and a function of them and the inputs. Of a pytree arrays of real
numbers are parameters; whole numbers and all other leaves are kept. Equinox is used only where it is imported
already.

:func:`call_order` reads the order in which a network calls its layers off its traced program. Flax numbers
layers in the order in which they are *made*: in ``nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))`` the outer one is
``Dense_0``. A layer is called where one of its parameters first meets a value that depends on the inputs.
"""

import copy
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from flax import linen, nnx
from jax.tree_util import FlattenedIndexKey, GetAttrKey, SequenceKey
from numpyro.handlers import block, seed

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.models import layouts
from numpyro_bnn.priors import paths

_NO_STATISTICS = (
    "Running statistics are estimated from the data during training; they are neither parameters "
    "with a prior nor a function of the inputs, so a posterior over the weights does not define "
    "them. Use GroupNorm, LayerNorm or filter response normalisation instead, or pass frozen "
    "statistics as `batch_stats=`."
)


class Network:
    """The interface of linen, NNX and other modules: parameters by path, and a pure function of them."""

    shapes: paths.Shapes  # Shapes of all parameters
    # Shapes of the parameters that can be random (floating point), with their layouts.
    random_shapes: paths.Shapes
    own_values: dict[str, Array]  # Values of parameters that the module itself holds
    leaves: dict[str, jax.ShapeDtypeStruct]  # Shapes and types of all parameters

    def _describe(self, leaves: Mapping[str, Any]) -> None:
        self.leaves = {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()
        }
        self.shapes = {path: tuple(leaf.shape) for path, leaf in leaves.items()}
        self.own_values = {
            p: x for p, x in leaves.items() if not isinstance(x, jax.ShapeDtypeStruct)
        }
        random = [path for path, x in leaves.items() if jnp.issubdtype(x.dtype, jnp.floating)]
        self.random_shapes = {path: self.shapes[path] for path in random}

    def shapes_for_prior(
        self, inputs: tuple[tuple, dict[str, PyTree]] | None
    ) -> paths.NetworkShapes:
        """Shapes of the parameters that can be random; `inputs` are for the order of calls."""
        if inputs is None:
            return paths.NetworkShapes(self.random_shapes)
        find = partial(call_order, self.apply, self.leaves, *inputs)
        return paths.NetworkShapes(self.random_shapes, find)

    def over_rows(self) -> "Network":
        """This network as a function of all rows: itself, unless it takes one row at a time."""
        return self

    def apply(self, values: dict[str, Array], *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the network with these values of its random parameters."""
        raise NotImplementedError


def _streams(names: tuple[str, ...]) -> dict[str, jax.Array]:
    """A fresh key for every random stream; needs NumPyro's seed handler."""
    return {stream: numpyro.prng_key() for stream in names}


def _arrays_of_call(
    args: tuple, kwargs: dict[str, PyTree]
) -> tuple[list[Any], Callable[[list[Any]], tuple[tuple, dict[str, PyTree]]]]:
    """Arrays among the arguments of a call, and a function from others like them to the arguments."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]

    def joined(arrays: list[Any]) -> tuple[tuple, dict[str, PyTree]]:
        remaining = iter(arrays)
        filled = [next(remaining) if a else leaf for a, leaf in zip(is_array, leaves)]
        return jax.tree.unflatten(structure, filled)

    return [leaf for leaf, a in zip(leaves, is_array) if a], joined


class Linen(Network):
    """A Flax linen module, whose parameters are known from an abstract call of `init`."""

    def __init__(
        self,
        module: linen.Module,
        batch_stats: PyTree,
        apply_rng: tuple[str, ...],
        init_args: tuple,
        init_kwargs: dict[str, PyTree],
    ) -> None:
        self.module = module
        self.apply_rng = apply_rng
        self.batch_stats = batch_stats
        seen = layouts.SeenLayers()
        collections = self._eval_shape(init_args, init_kwargs, seen)
        params, companions = layouts.without_companions(collections.pop("params", {}))
        if batch_stats is not None:
            self.batch_stats = batch_stats.get("batch_stats", batch_stats)
            needed = paths.flatten_params(collections.pop("batch_stats", {}))
            _check_statistics(needed, paths.flatten_params(self.batch_stats))
        if collections:
            found = ", ".join(f"'{collection}'" for collection in collections)
            raise ValueError(
                f"random_module: {type(module).__name__} keeps the mutable collection(s) {found}. "
                + _NO_STATISTICS
            )
        self._describe(paths.flatten_params(params))
        self.random_shapes = seen.laid_out(self.random_shapes, companions)
        for part in _keys(params):
            if "." in part or part.isdigit():
                raise ValueError(
                    f"random_module: a part of {type(module).__name__} is named '{part}'. Dots "
                    "and whole numbers have a meaning in site names; use another name."
                )

    def _eval_shape(self, args: tuple, kwargs: PyTree, seen: layouts.SeenLayers) -> dict[str, Any]:
        """Shapes of the variables."""
        arrays, joined = _arrays_of_call(args, kwargs)

        def init(key: jax.Array, arrays: list[Any]) -> Any:
            args, kwargs = joined(arrays)
            streams = dict.fromkeys(("params", *self.apply_rng), key)
            with self._dropout(), linen.intercept_methods(seen):
                return self.module.init(streams, *args, **kwargs)

        return dict(layouts.shapes_of(init, jax.random.key(0), arrays))

    def _dropout(self) -> Any:
        """A context in which dropout is the identity, unless it has a random stream."""

        def skip(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
            is_dropout = isinstance(context.module, linen.Dropout)
            is_off = is_dropout and context.method_name == "__call__" and not self.apply_rng
            return args[0] if is_off else call(*args, **kwargs)

        return linen.intercept_methods(skip)

    def apply(self, values: dict[str, Array], *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the linen module with these values of its parameters."""
        variables = {"params": paths.nest(values)}
        if self.batch_stats is not None:
            variables["batch_stats"] = self.batch_stats
        rngs = {**_streams(self.apply_rng), **kwargs.pop("rngs", {})}
        with self._dropout():
            return self.module.apply(variables, *args, rngs=rngs, **kwargs)


def _keys(params: Any) -> set[str]:
    """Every name in a tree of parameters."""
    if not isinstance(params, Mapping):
        return set()
    return {str(key) for key in params}.union(*map(_keys, params.values()))


class NNX(Network):
    """A Flax NNX module, split into its graph, its parameters and its running statistics."""

    def __init__(self, module: nnx.Module, batch_stats: PyTree, apply_rng: tuple[str, ...]) -> None:
        self.name = type(module).__name__
        self.apply_rng = apply_rng
        parts: Any = nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState, ...)
        self.graph, self.params, self.statistics, self.streams, rest = parts
        self.own_statistics: dict[str, Any] = {}
        if jax.tree.leaves(rest):
            raise ValueError(
                f"random_module: {self.name} keeps the mutable state "
                f"{sorted(paths.flatten_params(rest))}. " + _NO_STATISTICS
            )
        if jax.tree.leaves(self.statistics):
            if batch_stats is None:
                raise ValueError(
                    f"random_module: {self.name} keeps the running statistics "
                    f"{sorted(paths.flatten_params(self.statistics))}. " + _NO_STATISTICS
                )
            # A module in training mode changes NumPy's arrays in place, where its call is traced.
            given = paths.flatten_params(batch_stats)
            self.own_statistics = {path: jnp.asarray(value) for path, value in given.items()}
            _check_statistics(paths.flatten_params(self.statistics), self.own_statistics)
        self._describe(paths.flatten_params(self.params))
        self.random_shapes = layouts.layouts_of_nnx(module, self.random_shapes)

    def apply(self, values: dict[str, Array], *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the NNX module with these values of its parameters, in evaluation mode."""
        # New variables for every call, so that changes the module makes to them are not kept.
        statistics = _replace(self.statistics, self.own_statistics)
        module = nnx.merge(self.graph, _replace(self.params, values), statistics, self._seeded())
        module.eval()
        if self.apply_rng:
            module.set_attributes(deterministic=False, raise_if_not_found=False)
        else:
            module.set_attributes(nnx.Dropout, rate=0.0, raise_if_not_found=False)
            attention = nnx.MultiHeadAttention
            module.set_attributes(attention, dropout_rate=0.0, raise_if_not_found=False)
        output = module(*args, **kwargs)
        after = paths.flatten_params(nnx.state(module, nnx.BatchStat))
        if any(after[path] is not value for path, value in self.own_statistics.items()):
            raise ValueError(
                f"random_module: {self.name} tries to update its running statistics. Call it so that it "
                "uses the frozen ones, for example `net(x, use_running_average=True)`."
            )
        return output

    def _seeded(self) -> Any:
        """A copy of the random streams, with a fresh key for each that `apply_rng` names."""
        tags: set[str] = set()
        nnx.map_state(lambda _, variable: tags.add(variable.tag), self.streams)
        keys = {}
        for stream, key in _streams(self.apply_rng).items():
            # A stream that a module was not given is drawn from its default one.
            tag = stream if stream in tags else "default"
            if tag not in tags:
                raise ValueError(
                    f"random_module: {self.name} has no random stream '{stream}'; it has "
                    f"{sorted(tags)}. Name one of those in `apply_rng=`."
                )
            keys[tag] = key

        def new(path: tuple, variable: Any) -> Any:
            (value,) = jax.tree.leaves(variable)
            if variable.tag in keys:
                own = zlib.crc32(".".join(str(part) for part in path).encode())
                fresh = jax.random.fold_in(keys[variable.tag], own)
                value = fresh if isinstance(variable, nnx.RngKey) else jnp.zeros((), jnp.uint32)
            return variable.replace(value)

        return nnx.map_state(new, self.streams)


def _check_statistics(needed: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse frozen statistics of another module."""
    wrong = {
        path: jnp.shape(value)
        for path, value in needed.items()
        if path not in given or jnp.shape(given[path]) != jnp.shape(value)
    }
    if wrong:
        found = {path: jnp.shape(value) for path, value in given.items()}
        raise ValueError(
            f"random_module: `batch_stats` lacks {wrong} (or has them in another shape); it holds "
            f"{found}. Pass the statistics that were trained with this module."
        )


def _replace(state: Any, values: dict[str, Array]) -> Any:
    """An NNX state of this structure with other values, given by dotted path."""
    return nnx.map_state(lambda path, leaf: leaf.replace(values[".".join(map(str, path))]), state)


class PyTreeNetwork(Network):
    """A pytree with a call, whose arrays are its parameters; dropout of Equinox is switched off."""

    def __init__(self, module: PyTree) -> None:
        self.module = _without_dropout(module)
        self._describe(paths.arrays_of(self.module))
        laid_out = dict(_layouts(self.module))
        self.random_shapes = {path: laid_out[path] for path in self.random_shapes}
        self._by_row = False

    def over_rows(self) -> "PyTreeNetwork":
        made = copy.copy(self)
        made._by_row = True
        return made

    def apply(self, values: dict[str, Array], *args: PyTree, **kwargs: PyTree) -> PyTree:
        module = paths.with_arrays(self.module, values)
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


def _layouts(module: Any) -> Iterator[tuple[str, paths.LaidOut]]:
    """The shape of each array, which knows the axes that an output sums over and the class that holds it."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(module)[0]:
        if hasattr(leaf, "ndim"):
            owner, name = _owner(module, keys)
            summed = _summed(owner, name, leaf.ndim)
            units = _grouped_units(owner, summed, leaf.shape)
            laid_out = paths.LaidOut(leaf.shape, summed, type(owner).__name__, units)
            yield paths.path_of(keys), laid_out


def _grouped_units(owner: Any, summed: tuple[int, ...] | None, shape: paths.Shape) -> Any:
    """The source units of a grouped Equinox convolution, each with its own inputs; else None."""
    groups = getattr(owner, "groups", 1)
    if "equinox" not in sys.modules or not summed or groups == 1:
        return None
    from equinox import nn

    if not isinstance(owner, (nn.Conv, nn.ConvTranspose)):
        return None
    inputs = summed[0]
    return paths.UnitAxis(inputs - 1, shape[inputs - 1] // groups), paths.UnitAxis(inputs)


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
            name = name or paths.path_of((key,))
    return owner, name


def _summed(owner: Any, name: str, ndim: int) -> tuple[int, ...] | None:
    """The axes that an output sums over; None where the class is unknown and does not say."""
    if (axes := layouts.declared_axes(owner, name, ndim)) is not None:
        return axes
    if ndim < 2 or name in paths.ENTER_ONCE:
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
) -> paths.CallOrder:
    """Layers with parameters, by their first call in ``apply(values by path, *args, **kwargs)``."""
    arrays, joined = _arrays_of_call(args, kwargs)

    def outputs(values: dict[str, Any], arrays: list[Any]) -> Any:
        args, kwargs = joined(arrays)
        # Random streams of the network must not use up the keys of the model around it.
        with block(), seed(rng_seed=0):
            return apply(values, *args, **kwargs)

    program = jax.make_jaxpr(outputs)(dict(leaves), arrays)
    # JAX flattens a dict in the order of its sorted keys.
    inputs = [frozenset([path]) for path in sorted(leaves)] + [frozenset([_DATA])] * len(arrays)
    feeds: dict[str, Sources] = {}
    _visit(program.jaxpr, inputs, feeds)
    from_data = frozenset(layer for layer, others in feeds.items() if others == {_DATA})
    layers = dict.fromkeys(map(paths.layer_of, leaves))
    not_called = tuple(layer for layer in layers if layer not in feeds)
    return paths.CallOrder(tuple(feeds), from_data, not_called)


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
        layers = {paths.layer_of(path) for path in sources}
        if _DATA in sources or len(layers) != 1:
            continue
        (layer,) = layers
        others = [other for other in given if _DATA in other]
        if others and layer not in feeds:
            feeds[layer] = _NOTHING.union(*others)
