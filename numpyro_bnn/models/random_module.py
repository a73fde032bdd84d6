"""Networks as parts of a NumPyro model: every parameter becomes a sample site.

Flax's linen and NNX modules, Equinox modules and other pytrees with a call are used through one small
interface, :class:`Network`: the shapes of the parameters, and a function from their values and the inputs
to the output. :class:`linearize` and :class:`calls` are handlers of the networks inside a model;
:func:`to_params` and :func:`from_params` go from draws of sample sites to parameters, and back.
"""

import copyreg
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import prod
from types import FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.linen.dtypes import promote_dtype
from jax import lax
from numpy.typing import ArrayLike
from numpyro.primitives import Messenger, apply_stack

from numpyro_bnn._checks import check_whole
from numpyro_bnn._text import call_of
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.models.networks import NNX, Linen, Network, PyTreeNetwork
from numpyro_bnn.priors import paths
from numpyro_bnn.priors.base import PriorLike, as_prior
from numpyro_bnn.priors.paths import AUXILIARY, LaidOut, NetworkShapes


class Dense(linen.Dense):
    """A dense layer that keeps the rows of a unit adjacent, for which CPUs have faster programs."""

    @linen.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], self.features))
        bias = self.param("bias", self.bias_init, (self.features,))
        x, kernel, bias = promote_dtype(jnp.moveaxis(inputs, -1, 0), kernel, bias)
        y = lax.dot_general(kernel, x, (((0,), (0,)), ((), ())))
        # The sum comes before the axes are moved back: XLA would undo the order of the product alone.
        y += lax.expand_dims(bias, range(1, x.ndim))
        return jnp.moveaxis(y, 0, -1)


class MLP(linen.Module):
    """A plain multilayer perceptron, on a CPU up to a third faster than the same layers of Flax.

    - **hidden** - units of each hidden layer
    - **outputs** - units of the last layer
    - **activation** - between the layers
    """

    hidden: Sequence[int]
    outputs: int
    activation: Callable = jnp.tanh

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        # Without a barrier XLA would move the rows in each product.
        x = jnp.moveaxis(lax.optimization_barrier(jnp.moveaxis(x, -1, 0)), 0, -1)
        for units in self.hidden:
            x = self.activation(Dense(units)(x))
        return Dense(self.outputs)(x)


class BoundModule:
    """A network with sampled weights: call it like the module itself.

    - **params** - the weights as nested dicts, the way the module's own ``params`` look
    """

    def __init__(self, apply: Callable, values: dict[str, Array]) -> None:
        self._apply = apply
        self._values = values

    def __repr__(self) -> str:
        return call_of(type(self).__name__, {}, (self._values,))

    @property
    def params(self) -> dict:
        """The sampled weights as nested dicts, as Flax has them."""
        return paths.nest(self._values)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return self._apply(self._values, *args, **kwargs)


def random_module(
    name: str,
    module: Callable,
    prior: PriorLike,
    *init_args: PyTree,
    params: PyTree = None,
    batch_stats: PyTree = None,
    apply_rng: str | Sequence[str] | None = None,
    **init_kwargs: PyTree,
) -> BoundModule:
    """Sample every parameter of a network inside a NumPyro model.

    Sites are named ``"{name}/{path}"``, for example ``"net/Dense_0.kernel"`` of a linen module or
    ``"net/layers.0.weight"`` of an Equinox module. Shapes are found without a forward pass. Call it
    outside the data plate.

    An Equinox module takes one row, and so does the network that is returned: ``jax.vmap(net)(x)`` for all
    rows (ready models do so themselves). Its weights are (out, in), which priors by fan-in and by source
    unit know. A class of your own says over which axis its arrays are summed in
    ``input_axes: ClassVar = {"weight": 1}``, which only such priors ask for; -1 is right for stacked layers
    too. Modules of Flax may say so as well. Where they do not, their own arrays of two axes count as (inputs,
    outputs), names that end in ``bias``, ``scale`` or ``embedding`` as arrays that no output sums, and one of
    three axes and more that is no ``kernel`` is refused by such priors.

    Arrays of whole numbers, and everything else that is no array, stay as they are in the module.

    Layers that ``nn.scan`` or ``vmap`` stacked along an axis have the fan-in of one of them, and share the
    precisions of their arrays and of the units that weights come from. Arrays of linen modules are followed
    to where they are stored, along whichever axis, and those under ``nn.map_variables`` found by their
    sizes; an array that several layers share counts as that of the first. NNX modules are not called
    here: own parameters of a class count as stacked where all layers of Flax inside of it are. What stays
    unknown is an error of the priors that ask for it.

    A network may compute in half precision (``dtype=jnp.bfloat16``). Its outputs are then converted to
    float32, since sums of log densities over rows need more digits.

    :param name: prefix of the site names.
    :param module: a linen module, an instance of an NNX or Equinox module, or of any other class that is
        registered as a pytree with `jax.tree_util` and has a call.
    :param prior: one of :mod:`numpyro_bnn.priors`, a distribution, or a function
        ``(path, shape) -> Distribution``.
    :param init_args: example inputs of a linen module, such as ``x[:1]``; other modules know their shapes
        and need none, but for priors by call order (an Equinox module then takes one row, ``x[0]``).
    :param params: values for the parameters that the prior leaves deterministic, as nested
        dicts, ``nnx.State`` or a trained Equinox module (values for random ones are not used). The own
        values of an NNX or Equinox module serve where none are given.
    :param batch_stats: frozen running statistics for modules with BatchNorm; the module must
        then be called so that it uses them (linen: ``use_running_average=True``).
    :param apply_rng: names of random streams (``["dropout"]``) that the module draws from, anew for each
        draw of a prediction; a fit keeps one draw for all its steps, and warns of it. Without it dropout
        layers are the identity; attention of linen with a dropout of its own needs ``deterministic=True``.
        Equinox modules take their keys as an argument, and their dropout layers always are the identity here.
    :param init_kwargs: example keyword arguments of a linen module.
    :return: a callable with the sampled weights.
    :raises TypeError: if `module` is none of these, or an option is not for its kind.
    :raises ValueError: if the module keeps running statistics or other mutable state, if the
        prior does not fit the parameters, or if a deterministic or complex parameter is given no value.
    """
    network = network_of(module, batch_stats, apply_rng, init_args, init_kwargs)
    return sampled(name, network, prior, init_args, init_kwargs, params)


def network_of(
    module: Callable,
    batch_stats: PyTree,
    apply_rng: str | Sequence[str] | None,
    init_args: tuple,
    init_kwargs: dict[str, PyTree],
) -> Network:
    """A module of any kind through the one interface; the arguments are those of :func:`random_module`."""
    apply_rng = (apply_rng,) if isinstance(apply_rng, str) else tuple(apply_rng or ())
    network: Network
    if isinstance(module, linen.Module):
        network = Linen(module, batch_stats, apply_rng, init_args, init_kwargs)
    elif isinstance(module, nnx.Module):
        network = NNX(module, batch_stats, apply_rng)
    elif paths.is_module(module):
        if batch_stats is not None or apply_rng:
            raise TypeError(
                "random_module: `batch_stats` and `apply_rng` are for Flax modules only."
            )
        network = PyTreeNetwork(module)
    else:
        hint = " Make one first: `MyModule(…)`." if isinstance(module, type) else ""
        raise TypeError(
            f"random_module: expected a flax.linen or flax.nnx module, an Equinox module or another pytree "
            f"with a call, got {module!r}.{hint}"
        )
    if not network.shapes:
        raise ValueError(f"random_module: the module {type(module).__name__} has no parameters.")
    if taken := [path for path in network.shapes if path.rpartition(".")[2] in AUXILIARY]:
        raise ValueError(
            f"random_module: {type(module).__name__} has parameters that are called {taken}. Names that end "
            f"in one of {list(AUXILIARY)} are for the sites that priors of this package add to a parameter. "
            "Give these parameters other names in the module."
        )
    return network


def sampled(
    name: str,
    network: Network,
    prior: PriorLike,
    init_args: tuple,
    init_kwargs: dict[str, PyTree],
    params: PyTree = None,
) -> BoundModule:
    """Sample the parameters of a network; the arguments are those of :func:`random_module`."""
    shapes = network.shapes
    inputs = (init_args, init_kwargs) if init_args or init_kwargs else None
    asked = network.shapes_for_prior(inputs)
    with _OfNetwork(name, asked):
        values = as_prior(prior).sample(name, asked)
    for path, value in values.items():
        if jnp.shape(value) != shapes[path]:
            raise ValueError(
                f"random_module: the site '{paths.site_name(name, path)}' has shape {jnp.shape(value)} "
                f"instead of {shapes[path]}. Call random_module outside every plate, and give "
                "values and starts of that shape."
            )
    if fixed := [path for path in shapes if path not in values]:
        values |= _fixed_values(fixed, network, params)
    apply = partial(_in_single_precision, network.apply)
    return BoundModule(_handled(name, apply), {path: values[path] for path in shapes})


def _in_single_precision(apply: Callable, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """What a function returns, with float32 in place of smaller floating point types."""

    def converted(leaf: Any) -> Any:
        kind = getattr(leaf, "dtype", None)
        if kind is None or not jnp.issubdtype(kind, jnp.floating):
            return leaf
        return leaf.astype(jnp.float32) if jnp.finfo(kind).bits < 32 else leaf

    return jax.tree.map(converted, apply(*args, **kwargs))


class _OfNetwork(Messenger):
    """Marks sites as those of a network, with the fan-in of arrays of an unusual layout, for starts."""

    def __init__(self, name: str, shapes: NetworkShapes) -> None:
        self.known = {
            paths.site_name(name, path): max(shape)
            if shape.summed is None
            else prod(shape[axis] for axis in shape.summed)
            for path, shape in shapes.items()
            if isinstance(shape, LaidOut) and len(shape) > 1
        }
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample":
            fan_in = self.known.get(msg["name"].removesuffix(".base"))
            known = {} if fan_in is None else {"fan_in": fan_in}
            msg["infer"] = {**msg["infer"], "of_network": True, **known}


def _handled(name: str, apply: Callable) -> Callable:
    """The function that applies the network, which handlers around the model may replace."""
    message: dict[str, Any] = {"type": "network", "name": name, "apply": apply, "value": None}

    def result() -> Callable:
        # A network is no site: NumPyro's `trace` keeps the messages that still have a name.
        del message["name"]
        return message["apply"]

    message |= {"fn": result, "args": (), "kwargs": {}}
    return apply_stack(message)["value"]


def _fixed_values(fixed: list[str], network: "Network", params: PyTree) -> dict[str, Any]:
    explicit = {} if params is None else paths.flatten_params(params)
    kinds = {path: network.leaves[path].dtype for path in fixed if path not in explicit}
    if unasked := [p for p, kind in kinds.items() if jnp.issubdtype(kind, jnp.complexfloating)]:
        raise ValueError(
            f"random_module: {unasked} are complex, for which no prior is, and would keep the values that "
            "they have. Make the real and the imaginary part parameters of their own; to keep them fixed, "
            "give their values in `params=`."
        )
    given = network.own_values | explicit
    if missing := [path for path in fixed if path not in given]:
        raise ValueError(
            f"random_module: {missing} are not random under this prior and have no values. Pass "
            f"them as `params=`. The parameters are:\n{paths.parameter_tree(network.shapes)}"
        )
    for path in fixed:
        if jnp.shape(given[path]) != network.shapes[path]:
            raise ValueError(
                f"random_module: `params` gives '{path}' the shape {jnp.shape(given[path])}, the "
                f"module needs {network.shapes[path]}."
            )
    return {path: jnp.asarray(given[path]) for path in fixed}


class linearize(Messenger):
    """Replace each network by its first-order expansion f(x, w*) + J(x) (w - w*) around weights `at`."""

    # Source: Immer, Korzepa and Bauer, *Improving predictions of Bayesian neural nets via
    # local linearization* (2021), eq. 9. Costs one forward-mode derivative a call.

    def __init__(
        self, fn: Callable | None = None, at: Mapping[str, ArrayLike] | None = None
    ) -> None:
        self.at = dict(at or {})
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace the call of a network by its expansion in the weights."""
        if msg["type"] == "network":
            msg["apply"] = partial(self._expanded, msg["name"], msg["apply"])

    def _expanded(
        self, name: str, apply: Callable, values: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        at = {
            path: jnp.asarray(self.at[paths.site_name(name, path)])
            for path in values
            if paths.site_name(name, path) in self.at
        }
        steps = {path: values[path] - at[path] for path in at}

        def function(some: dict[str, Any]) -> Any:
            return apply(values | some, *args, **kwargs)

        primal, tangent = jax.jvp(function, (at,), (steps,))
        return jax.tree.map(jnp.add, primal, tangent)


class Call(NamedTuple):
    """A call of a network inside a model."""

    apply: Callable  # The network as a function of its parameters and inputs
    values: dict[str, Any]  # Its parameters by path
    args: tuple
    kwargs: dict[str, Any]
    output: Any


class calls(Messenger):
    """Keep the first call of each network: ``handler.seen[name]``."""

    def __init__(self, fn: Callable | None = None) -> None:
        self.seen: dict[str, Call] = {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Keep the call of a network."""
        if msg["type"] == "network":
            msg["apply"] = partial(self._kept, msg["name"], msg["apply"])

    def _kept(
        self, name: str, apply: Callable, values: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        output = apply(values, *args, **kwargs)
        self.seen.setdefault(name, Call(apply, values, args, kwargs, output))
        return output


def _reduced(function: Any) -> str | tuple:
    """How to pickle a function that JAX compiled: by its name, where that leads to it."""
    # A compiled function has the name of the function inside it, which is not the same object, and which
    # pickle would look for.
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    is_there = found is function
    return function.__qualname__ if is_there else function.__reduce_ex__(pickle.DEFAULT_PROTOCOL)


for _kind in (type(jnp.tanh), jax.custom_jvp, jax.custom_vjp):
    copyreg.pickle(_kind, _reduced)


def _default(module: str, owner: str, argument: str) -> Any:
    return inspect.signature(getattr(import_module(module), owner)).parameters[argument].default


def _where_default(value: FunctionType) -> tuple[str, str, str] | None:
    """Module, class and argument of which a function is the default; None where there is none."""
    for name, owner in vars(sys.modules.get(value.__module__)).items():
        if isinstance(owner, type) and owner.__module__ == value.__module__:
            for argument in inspect.signature(owner).parameters.values():
                if argument.default is value:
                    return value.__module__, name, argument.name
    return None


class _Pickler(pickle.Pickler):
    """Keeps lambdas that are the default of a class."""

    def reducer_override(self, value: Any) -> Any:
        is_lambda = isinstance(value, FunctionType) and value.__name__ == "<lambda>"
        default = _where_default(value) if is_lambda else None
        return NotImplemented if default is None else (_default, default)


def dumped(module: object) -> bytes:
    """A module as bytes for ``pickle.loads``; its classes must be importable by name."""
    to = io.BytesIO()
    _Pickler(to).dump(module)
    return to.getvalue()


def to_params(
    samples: Mapping[str, Array], name: str | None = None, params: PyTree = None
) -> PyTree:
    """Turn draws into parameters of Flax, or into Equinox modules.

    :param samples: draws by site name, such as ``mcmc.get_samples()``; leading axes of the
        arrays stay in front, so that ``jax.vmap`` over the result runs every draw.
    :param name: the network's name, with the prefixes of any ``scope`` around it; not needed
        where the draws hold one network.
    :param params: values of the parameters that are not random, repeated over the draws; an Equinox module
        (or another pytree with a call) to get such a module back.
    :return: nested dicts: ``variables["params"]`` of a linen module, or a pure dict of an NNX
        state; or, with a module as `params`, that module with the draws in place of its arrays.
    :raises ValueError: if no network or several are found.
    """
    # Sites that belong to a weight (its precision, its standardised value) are no parameters.
    weights = {
        site: value
        for site, value in samples.items()
        if "/" in site
        and not paths.is_auxiliary(site)
        and not any(site.startswith(f"{other}.") for other in samples)
    }
    networks = {site.split("/", 1)[0] for site in weights}
    if name is None and len(networks) == 1:
        (name,) = networks
    prefix = f"{name}/"
    found = {site.removeprefix(prefix): v for site, v in weights.items() if site.startswith(prefix)}
    if not found:
        raise ValueError(
            f"to_params: no weights of a network named {name!r}; the draws hold networks "
            f"{sorted(networks)} and sites {list(samples)}. Say which with `name=`."
        )
    if params is not None:
        trained = paths.flatten_params(params)
        path, value = next(iter(found.items()))
        lead = jnp.shape(value)[: jnp.ndim(value) - jnp.ndim(trained[path])]
        found |= {
            path: jnp.broadcast_to(v, lead + jnp.shape(v))
            for path, v in trained.items()
            if path not in found
        }
        if not isinstance(params, Mapping) and paths.is_module(params):
            return paths.with_arrays(params, found)
    return paths.nest(found)


def from_params(
    params: PyTree,
    name: str = "net",
    *,
    num_chains: int | None = None,
    jitter: float = 0.0,
    key: jax.Array | None = None,
    fixed: Sequence[str] = (),
) -> dict[str, jax.Array]:
    """Turn parameters of Flax or Equinox into values of sample sites.

    Weights are real, so the values serve as `init_params` as they are where the prior has no
    scales of its own; :func:`numpyro_bnn.optimize` and :class:`numpyro_bnn.MCMC` also take
    them for hierarchical priors and start the precisions at their conditional means.

    :param params: ``variables["params"]`` of a linen module, an ``nnx.State``, or an Equinox module; leading
        axes (one start a chain) are kept, and arrays of whole numbers left out.
    :param name: the network's name in the model.
    :param num_chains: starts to make of these parameters, as a leading axis; None for none, where `params`
        have such an axis or the run has one chain.
    :param jitter: standard deviation of normal noise on every weight, in units of the root mean square of
        its array (of 1 where all of it is 0), so that chains do not begin at one place.
    :param key: random key of the noise; default ``jax.random.key(0)``.
    :param fixed: paths of parameters that are not random in the model, such as ``"Dense_0.kernel"`` or
        ``"Conv_0"`` for all of a layer; they are left out.
    :return: ``{"{name}/{path}": value}``.
    :raises ValueError: for `num_chains` below 1, or a path in `fixed` that there is not.
    """
    found = {path: jnp.asarray(v) for path, v in paths.flatten_params(params).items()}
    for left_out in fixed:
        inside = [path for path in found if path == left_out or path.startswith(f"{left_out}.")]
        if not inside:
            raise ValueError(
                f"from_params: fixed={left_out!r} is no path of these parameters; there are {list(found)}."
            )
        found = {path: value for path, value in found.items() if path not in inside}
    found = {path: v for path, v in found.items() if jnp.issubdtype(v.dtype, jnp.floating)}
    if num_chains is not None:
        count = check_whole("from_params", "num_chains", num_chains)
        found = {path: jnp.broadcast_to(v, (count, *v.shape)) for path, v in found.items()}
    if jitter:
        keys = jax.random.split(jax.random.key(0) if key is None else key, len(found))
        found = {path: _jittered(k, v, jitter) for k, (path, v) in zip(keys, found.items())}
    return {paths.site_name(name, path): value for path, value in found.items()}


def _jittered(key: jax.Array, value: jax.Array, jitter: float) -> jax.Array:
    size = jnp.sqrt(jnp.mean(jnp.square(value)))
    unit = jnp.where(size > 0, size, 1.0)
    return value + jitter * unit * jax.random.normal(key, value.shape, value.dtype)
