"""From draws of sample sites to parameters of Flax or Equinox, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_bnn._checks import check_whole
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.priors.paths import flatten_params, is_auxiliary, is_module, site_name, with_arrays


def nest(values: Mapping[str, PyTree]) -> dict:
    """Nested dicts from dotted paths; numbered parts (NNX lists) become integers."""
    tree: dict[Any, Any] = {}
    for path, value in values.items():
        *parents, leaf = (int(part) if part.isdigit() else part for part in path.split("."))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


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
        and not is_auxiliary(site)
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
        trained = flatten_params(params)
        path, value = next(iter(found.items()))
        lead = jnp.shape(value)[: jnp.ndim(value) - jnp.ndim(trained[path])]
        found |= {
            path: jnp.broadcast_to(v, lead + jnp.shape(v))
            for path, v in trained.items()
            if path not in found
        }
        if not isinstance(params, Mapping) and is_module(params):
            return with_arrays(params, found)
    return nest(found)


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
    found = {path: jnp.asarray(v) for path, v in flatten_params(params).items()}
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
    return {site_name(name, path): value for path, value in found.items()}


def _jittered(key: jax.Array, value: jax.Array, jitter: float) -> jax.Array:
    size = jnp.sqrt(jnp.mean(jnp.square(value)))
    unit = jnp.where(size > 0, size, 1.0)
    return value + jitter * unit * jax.random.normal(key, value.shape, value.dtype)
