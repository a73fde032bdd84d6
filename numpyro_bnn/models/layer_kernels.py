"""Over which axes of its kernel each layer of Flax sums, and which of them run over the units it reads.

A name and a shape are ambiguous: a convolution of width one called ``query`` looks like a projection of
attention. Where the class of a layer is known, it decides.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from flax import linen, nnx

from numpyro_bnn.priors.paths import Shape
from numpyro_bnn.priors.pytree_paths import UnitAxis


class Summed(NamedTuple):
    """What an output of a layer sums of its kernel."""

    axes: tuple[int, ...]  # The summed axes, the one over units first
    units: tuple[UnitAxis, ...]  # The axes over the units that weights come from


class Single(NamedTuple):
    """An array of one layer, as it is without a stack."""

    shape: Shape
    summed: Summed | None = None  # None: as its name and shape imply
    problem: str | None = None  # Why that is not known, for the error of priors that ask for it


def single_array(layer: Any, name: str, shape: Shape, equation: str | None = None) -> Single:
    """An array of an unstacked layer; `equation` is that of an ``Einsum`` which gets it in its call."""
    if (axes := declared_axes(layer, name, len(shape))) is not None:
        return Single(shape, Summed(axes, tuple(UnitAxis(axis) for axis in axes[:1])))
    if name != "kernel":
        return Single(shape)
    if isinstance(layer, (linen.Einsum, nnx.Einsum)):
        equation = layer.einsum_str or equation
        if (summed := _of_equation(equation, shape)) is None:
            problem = f"the equation {equation!r} of the layer does not say over which axes an output sums"
            return Single(shape, None, problem)
        return Single(shape, summed)
    return Single(shape, _summed(layer, shape))


def declared_axes(owner: Any, name: str, ndim: int) -> tuple[int, ...] | None:
    """The axes that outputs sum over, as a class says in ``input_axes``; None where it does not."""
    declared = getattr(type(owner), "input_axes", {})
    if name not in declared:
        return None
    axes = declared[name]
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if not all(isinstance(axis, int) and -ndim <= axis < ndim for axis in axes):
        raise ValueError(
            f"random_module: {type(owner).__name__}.input_axes says {declared[name]!r} for '{name}', "
            f"which has {ndim} axes. Give the number of an axis, several, or () for none."
        )
    return tuple(axis % ndim for axis in axes)


def _summed(layer: Any, shape: Shape) -> Summed | None:
    last = len(shape) - 1
    taps = tuple(range(last - 1))
    if isinstance(layer, linen.ConvLocal):
        # (*positions, inputs x taps, outputs): every position has weights of its own, so none is summed over.
        # The taps of one channel stand together.
        return Summed((last - 1,), (UnitAxis(last - 1, prod(_sequence(layer.kernel_size))),))
    if isinstance(layer, (linen.Conv, nnx.Conv)):
        groups, channels = layer.feature_group_count, UnitAxis(last - 1)
        # Each group of outputs has its own inputs, so both axes identify an input.
        grouped = (UnitAxis(last, shape[last] // groups), channels)
        return Summed((last - 1, *taps), grouped if groups > 1 else (channels,))
    if isinstance(layer, (linen.ConvTranspose, nnx.ConvTranspose)):
        inputs = last if layer.transpose_kernel else last - 1
        return Summed((inputs, *taps), (UnitAxis(inputs),))
    if isinstance(layer, (linen.Dense, nnx.Linear)):
        return Summed((0,), (UnitAxis(0),))
    if isinstance(layer, nnx.LinearGeneral):
        batch, outputs = len(layer.batch_axis), len(layer.out_features)
    elif isinstance(layer, linen.DenseGeneral):
        batch, outputs = len(_sequence(layer.batch_dims)), len(_sequence(layer.features))
    else:
        return None
    *others, first = range(batch, len(shape) - outputs)
    # Every entry of the input is a unit: those along batch axes, too.
    return Summed((first, *others), tuple(UnitAxis(axis) for axis in range(len(shape) - outputs)))


def _of_equation(equation: str | None, shape: Shape) -> Summed | None:
    """The axes of its second operand that an equation sums over; None where this is unclear."""
    terms, arrow, output = (equation or "").replace(" ", "").partition("->")
    inputs, _, kernel = terms.partition(",")
    if len(kernel) != len(shape) or "." in kernel:
        return None
    if not arrow:
        output = "".join(letter for letter in terms if terms.count(letter) == 1)
    summed = [axis for axis, letter in enumerate(kernel) if letter not in output]
    units = [UnitAxis(axis) for axis, letter in enumerate(kernel) if letter in inputs]
    return Summed((*summed[-1:], *summed[:-1]), tuple(units) if summed else ())


def _sequence(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def kernels_of_nnx(layer: nnx.Module) -> Iterator[tuple[str, Shape]]:
    """Shapes of the kernels of an unstacked layer of NNX, which knows its own sizes."""
    if isinstance(layer, nnx.LinearGeneral):
        sizes = (*layer.batch_axis.values(), *layer.in_features, *layer.out_features)
        yield "kernel", tuple(sizes)
    elif isinstance(layer, nnx.Linear):
        yield "kernel", (layer.in_features, layer.out_features)
    elif isinstance(layer, (nnx.Conv, nnx.ConvTranspose, nnx.Einsum)):
        yield "kernel", tuple(layer.kernel_shape)
    elif isinstance(layer, nnx.LoRA):
        yield "lora_a", tuple(layer.lora_a.shape[-2:])
        yield "lora_b", tuple(layer.lora_b.shape[-2:])
