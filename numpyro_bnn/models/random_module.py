"""Flax modules as parts of a NumPyro model: every parameter becomes a sample site.

This is the only file that imports Flax. Linen and NNX modules are used through one small
interface, :class:`Network`: the shapes of the parameters, and a function from their values
and the inputs to the output.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from numpyro.primitives import apply_stack

from numpyro_bnn._text import call_of
from numpyro_bnn.models.networks import NNX, Linen, Network
from numpyro_bnn.models.parameters import nest
from numpyro_bnn.models.pickled_modules import by_name, name_of
from numpyro_bnn.priors.base import as_prior
from numpyro_bnn.priors.paths import flatten_params, parameter_tree, site_name


class MLP(linen.Module):
    """A plain multilayer perceptron, for ready models and the command line.

    - **hidden** - units of each hidden layer
    - **outputs** - units of the last layer
    - **activation** - between the layers
    """

    hidden: Sequence[int]
    outputs: int
    activation: Callable = jnp.tanh

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for units in self.hidden:
            x = self.activation(linen.Dense(units)(x))
        return linen.Dense(self.outputs)(x)

    @linen.nowrap
    def __reduce__(self) -> tuple[Callable, tuple]:
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "parent"}
        if (named := name_of(self.activation)) is not None:
            del settings["activation"]
        return _remade, (type(self), settings, named)


def _remade(kind: type[MLP], settings: dict[str, Any], activation: tuple[str, str] | None) -> MLP:
    """A perceptron from what pickle keeps of it: an activation that JAX has compiled by its name."""
    return (
        kind(**settings)
        if activation is None
        else kind(**settings, activation=by_name(*activation))
    )


class BoundModule:
    """A Flax module with sampled weights: call it like the module itself.

    - **params** - the weights as nested dicts, the way the module's own ``params`` look
    """

    def __init__(self, apply: Callable, values: dict[str, Any]) -> None:
        self._apply = apply
        self._values = values

    def __repr__(self) -> str:
        return call_of(type(self).__name__, {}, (self._values,))

    @property
    def params(self) -> dict[Any, Any]:
        return nest(self._values)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._apply(self._values, *args, **kwargs)


def random_module(
    name: str,
    module: Any,
    prior: Any,
    *init_args: Any,
    params: Any = None,
    batch_stats: Any = None,
    apply_rng: str | Sequence[str] | None = None,
    **init_kwargs: Any,
) -> BoundModule:
    """Sample every parameter of a Flax module inside a NumPyro model.

    Sites are named ``"{name}/{path}"``, for example ``"net/Dense_0.kernel"``. Shapes are found
    without a forward pass. Call it outside the data plate.

    :param name: prefix of the site names.
    :param module: a linen module, or an instance of an NNX module.
    :param prior: one of :mod:`numpyro_bnn.priors`, a distribution, or a function
        ``(path, shape) -> Distribution``.
    :param init_args: example inputs of a linen module, such as ``x[:1]``; an NNX module knows
        its shapes and needs none.
    :param params: values for the parameters that the prior leaves deterministic, as nested
        dicts or ``nnx.State`` (values for random ones are not used). An NNX module's own values
        serve where none are given.
    :param batch_stats: frozen running statistics for modules with BatchNorm; the module must
        then be called so that it uses them (linen: ``use_running_average=True``).
    :param apply_rng: names of random streams (``["dropout"]``) that the module draws from in
        every call; without it dropout layers are the identity.
    :param init_kwargs: example keyword arguments of a linen module.
    :return: a callable with the sampled weights.
    :raises TypeError: if `module` is not a Flax module.
    :raises ValueError: if the module keeps running statistics or other mutable state, if the
        prior does not fit the parameters, or if a deterministic parameter has no value.
    """
    apply_rng = (apply_rng,) if isinstance(apply_rng, str) else tuple(apply_rng or ())
    network: Network
    if isinstance(module, linen.Module):
        network = Linen(module, batch_stats, apply_rng, init_args, init_kwargs)
    elif isinstance(module, nnx.Module):
        network = NNX(module, batch_stats, apply_rng)
    else:
        hint = " Make one first: `MyModule(…)`." if isinstance(module, type) else ""
        raise TypeError(
            f"random_module: expected a flax.linen or flax.nnx module, got {module!r}.{hint}"
        )
    shapes = network.shapes
    if not shapes:
        raise ValueError(f"random_module: the module {type(module).__name__} has no parameters.")
    inputs = (init_args, init_kwargs) if init_args or init_kwargs else None
    values = as_prior(prior).sample(name, network.shapes_for_prior(inputs))
    for path, value in values.items():
        if jnp.shape(value) != shapes[path]:
            raise ValueError(
                f"random_module: the site '{site_name(name, path)}' has shape {jnp.shape(value)} "
                f"instead of {shapes[path]}. Call random_module outside every plate, and give "
                "values and starts of that shape."
            )
    fixed = [path for path in shapes if path not in values]
    if fixed:
        values |= _fixed_values(fixed, network, params)
    return BoundModule(_handled(name, network.apply), {path: values[path] for path in shapes})


def _handled(name: str, apply: Callable) -> Callable:
    """The function that applies the network, which handlers around the model may replace."""
    message: dict[str, Any] = {"type": "network", "name": name, "apply": apply, "value": None}

    def result() -> Callable:
        # A network is no site: NumPyro's `trace` keeps the messages that still have a name.
        del message["name"]
        return message["apply"]

    message |= {"fn": result, "args": (), "kwargs": {}}
    return apply_stack(message)["value"]


def _fixed_values(paths: list[str], network: "Network", params: Any) -> dict[str, Any]:
    given = network.own_values | ({} if params is None else flatten_params(params))
    missing = [path for path in paths if path not in given]
    if missing:
        raise ValueError(
            f"random_module: {missing} are not random under this prior and have no values. Pass "
            f"them as `params=`. The parameters are:\n{parameter_tree(network.shapes)}"
        )
    for path in paths:
        if jnp.shape(given[path]) != network.shapes[path]:
            raise ValueError(
                f"random_module: `params` gives '{path}' the shape {jnp.shape(given[path])}, the "
                f"module needs {network.shapes[path]}."
            )
    return {path: jnp.asarray(given[path]) for path in paths}
