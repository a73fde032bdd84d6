"""Names for the axes of weights in files: inputs, outputs, heads, positions of a convolution's window.

Axes are named within their layer (``"net.Dense_0.unit_in"``), since layers differ in width and a dataset
of xarray has one size for each name.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.units import taken
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.structure import structure_of
from numpyro_bnn.priors.paths import is_auxiliary

Shape = tuple[int, ...]


class _Place(NamedTuple):
    """The layer (``"net/Dense_0"``) and the parameter (``"kernel"``) that a site of a network belongs to."""

    layer: str
    parameter: str


def variable_name(site: str) -> str:
    """Name of a site in a file: dots in place of slashes, which netCDF and ``DataTree`` read as paths."""
    return site.replace("/", ".")


def layer_of(site: str) -> str | None:
    """The layer of a weight, or of the weight whose precision or base value a site is; None for others."""
    if "/" not in site:
        return None
    return _place(site).layer


def _place(site: str) -> _Place:
    weight = site.rsplit(".", 1)[0] if is_auxiliary(site) else site
    network, _, path = weight.partition("/")
    *parents, parameter = path.split(".")
    return _Place("/".join([network, ".".join(parents)]) if parents else network, parameter)


def dims_of(shapes: Mapping[str, Shape], classes: str | None = None) -> dict[str, list[str]]:
    """Name every axis of every site.

    Kernels are (unit_in, unit_out), with ``window_i`` in front for convolutions; attention
    projections add ``head``; embeddings are (entry, unit_out). A precision or
    base value of a weight has the axes of that weight.

    :param shapes: shape of one value by site name.
    :param classes: the layer whose outputs are the classes; its ``unit_out`` is ``class``.
    """
    sizes: dict[str, int] = {}
    dims: dict[str, list[str]] = {}
    for site, shape in shapes.items():
        if "/" in site:
            layer = variable_name(_place(site).layer)
            ends = _weight_axes(site, shapes)
            names = [f"{layer}.{end}" for end in ends]
            if _place(site).layer == classes:
                names = ["class" if end == "unit_out" else n for end, n in zip(ends, names)]
        else:
            names = [f"{variable_name(site)}.axis_{i}" for i in range(len(shape))]
        # Parameters of one layer may have different numbers of units: each of those gets axes of its own.
        dims[site] = [
            name
            if sizes.setdefault(name, size) == size and name not in names[:i]
            else f"{variable_name(site)}.axis_{i}"
            for i, (name, size) in enumerate(zip(names, shape))
        ]
    return dims


def _weight_axes(site: str, shapes: Mapping[str, Shape]) -> list[str]:
    shape = shapes[site]
    layer, parameter = _place(site)
    if is_auxiliary(site):
        weight = site.rsplit(".", 1)[0]
        names = _weight_axes(weight, shapes) if weight in shapes else []
        if names and shape == shapes[weight]:
            return names
        if len(shape) == 1 and "unit_in" in names:
            return ["unit_in"]
        return [f"{parameter}.{site.rsplit('.', 1)[-1]}.axis_{i}" for i in range(len(shape))]
    parent, _, role = layer.rpartition(".") if "." in layer else layer.rpartition("/")
    separator = layer[len(parent) : len(layer) - len(role)]
    if any(f"{parent}{separator}query.{leaf}" in shapes for leaf in ("kernel", "bias")):
        attention = {
            ("query", 3): ["unit_in", "head", "unit_out"],
            ("query", 2): ["head", "unit_out"],
            ("out", 3): ["head", "unit_in", "unit_out"],
        }
        role = "query" if role in ("key", "value") else role
        if (role, len(shape)) in attention:
            return attention[role, len(shape)]
    if parameter == "embedding" and len(shape) == 2:
        return ["entry", "unit_out"]
    if parameter == "kernel" and len(shape) >= 2:
        return [*(f"window_{i}" for i in range(len(shape) - 2)), "unit_in", "unit_out"]
    if len(shape) == 1:
        return ["unit_out"]
    return [f"{parameter}.axis_{i}" for i in range(len(shape))]


def class_layer(
    model: Callable,
    x: PyTree,
    target: str,
    draw: Mapping[str, Array],
    others: tuple[tuple, dict[str, PyTree]] = ((), {}),
) -> str | None:
    """The layer whose outputs are the logits of the classes, found by differentiating the model.

    The bias b of that layer, and of no other, moves the log probabilities as in a softmax:
    ∂ log p_c / ∂ b_k = δ_ck - p_k. Names and sizes alone could point to a hidden layer with as many units
    as there are classes.

    :param model: the model.
    :param x: inputs; the first row is used.
    :param target: name of the target site.
    :param draw: one value of every site.
    :param others: further positional and keyword arguments of the model; of rows the first is used.
    :return: the layer, or None if the target has no classes or no layer is known to give them.
    """
    more, named = others
    args, kwargs = taken(((x, *more), named), slice(1), len(jax.tree.leaves(x)[0]))
    arguments = Arguments.split(args, kwargs)
    given = structure_of(model, args, kwargs).shapes
    draw = {name: value for name, value in draw.items() if name in given}
    counts: list[int] = []

    def log_probs(
        some: dict[str, jax.Array], draw: dict[str, jax.Array], arrays: list[jax.Array]
    ) -> jax.Array:
        args, kwargs = Arguments.join(arrays, arguments.static)
        bound = substitute(seed(model, jax.random.key(0)), data={**draw, **some})
        sites = trace(bound).get_trace(*args, **kwargs)
        # A target of which some are missing (`obs_mask=`) is two sites.
        fn = sites.get(f"{target}_observed", sites[target])["fn"]
        if not isinstance(fn, (dist.CategoricalProbs, dist.CategoricalLogits)):
            return jnp.zeros(())
        counts.append(fn.probs.shape[-1])
        return fn.log_prob(jnp.arange(counts[-1])[:, None])[:, 0]

    jax.eval_shape(log_probs, {}, draw, arguments.arrays)
    biases = {
        site: value
        for site, value in draw.items()
        if counts and "/" in site and not is_auxiliary(site) and value.shape == (counts[0],)
    }
    if not biases:
        return None

    def with_slopes(*given: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        return log_probs(*given), jax.jacobian(log_probs)(*given)

    log_p, slopes = Program(with_slopes)(biases, draw, arguments.arrays)
    wanted = jnp.eye(len(log_p)) - jnp.exp(log_p)
    for site, slope in slopes.items():
        if jnp.allclose(slope, wanted, atol=1e-4):
            return _place(site).layer
    return None
