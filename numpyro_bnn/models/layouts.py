"""Over which axes of its kernels a Flax layer sums, where their shape and name do not say.

A shape alone cannot tell a convolution from dense layers that ``nn.scan`` or ``vmap`` stacked along an axis,
nor several output axes from several inputs. Linen modules are asked where they are called, NNX modules by
what their layers know of themselves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from flax import linen, nnx

from numpyro_bnn.priors.paths import Shape, Shapes, summed_axes
from numpyro_bnn.priors.pytree_paths import LaidOut


class Single(NamedTuple):
    """An array of one layer, as it is without a stack.

    - **shape** - its shape
    - **summed** - axes over which an output sums, the one over units first; None: as usual
    """

    shape: Shape
    summed: tuple[int, ...] | None = None


def laid_out(shapes: Shapes, single: Mapping[str, Single]) -> Shapes:
    """Shapes of arrays by path, with their layouts where these are not the usual ones.

    :param shapes: shapes of all arrays.
    :param single: the arrays of single layers, as far as they are known.
    """
    return {
        path: _laid_out(path, shape, single[path]) if path in single else shape
        for path, shape in shapes.items()
    }


def _laid_out(path: str, shape: Shape, single: Single) -> Shape:
    own = _own_axes(shape, single.shape)
    if own is None:
        return shape
    summed = summed_axes(path, single.shape) if single.summed is None else single.summed
    found = tuple(own[axis] for axis in summed)
    return shape if found == summed_axes(path, shape) else LaidOut(shape, found, "the layer")


def _own_axes(shape: Shape, single: Shape) -> tuple[int, ...] | None:
    """The axes of the single layer among all, the last ones that fit; None where they are not there."""
    own: list[int] = []
    for axis in reversed(range(len(shape))):
        if len(own) < len(single) and shape[axis] == single[-1 - len(own)]:
            own.insert(0, axis)
    return tuple(own) if len(own) == len(single) else None


class SeenLayers:
    """The arrays of linen layers as they are where a layer is called, inside of ``nn.scan`` and ``nn.vmap``.

    An interceptor of ``linen.intercept_methods``.

    - **found** - by path
    """

    def __init__(self) -> None:
        self.found: dict[str, Single] = {}

    def __call__(self, call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        """Call the method, and look at the parameters that its module has then."""
        output = call(*args, **kwargs)
        layer: linen.Module = context.module
        own = {} if layer.scope is None else layer.scope.variables().get("params", {})
        # Arrays with names of their axes are in a box.
        for name, value in linen.unbox(own).items():
            if hasattr(value, "shape"):
                shape = tuple(value.shape)
                summed = _summed(layer, shape) if name == "kernel" else None
                self.found[".".join((*layer.path, name))] = Single(shape, summed)
        return output


def layers_of_nnx(module: nnx.Module, shapes: Shapes) -> dict[str, Single]:
    """The arrays of NNX layers, which know their own sizes; others are stacked as the layers beside them are.

    :param module: the network.
    :param shapes: shapes of its arrays by path.
    """
    layers = [(path, node) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)]
    found = {
        ".".join(map(str, (*path, name))): Single(shape, _summed(layer, shape))
        for path, layer in layers
        for name, shape in _kernels(layer)
    }
    # By module, how many axes more than a single layer's the known arrays inside of it have.
    stacks: dict[str, set[int]] = {}
    for path, single in found.items():
        for owner in _owners(path) if path in shapes else ():
            stacks.setdefault(owner, set()).add(len(shapes[path]) - len(single.shape))
    for path in shapes.keys() - found.keys():
        counts = next((stacks[owner] for owner in _owners(path) if owner in stacks), {0})
        (more,) = counts if len(counts) == 1 else (0,)
        found[path] = Single(shapes[path][more:])
    return found


def _owners(path: str) -> Iterator[str]:
    """Paths of the modules that an array is in, the innermost first, without the network itself."""
    while path := path.rpartition(".")[0]:
        yield path


def _kernels(layer: nnx.Module) -> Iterator[tuple[str, Shape]]:
    """Shapes of the kernels of an unstacked layer of NNX."""
    if isinstance(layer, nnx.LinearGeneral) and not layer.batch_axis:
        yield "kernel", (*layer.in_features, *layer.out_features)
    elif isinstance(layer, nnx.Linear):
        yield "kernel", (layer.in_features, layer.out_features)
    elif isinstance(layer, (nnx.Conv, nnx.ConvTranspose, nnx.Einsum)):
        yield "kernel", tuple(layer.kernel_shape)
    elif isinstance(layer, nnx.LoRA):
        yield "lora_a", tuple(layer.lora_a.shape[-2:])
        yield "lora_b", tuple(layer.lora_b.shape[-2:])


def _summed(layer: linen.Module | nnx.Module, shape: Shape) -> tuple[int, ...] | None:
    """The axes over which an output sums of an unstacked kernel; None: all but the last."""
    if isinstance(layer, (linen.Einsum, nnx.Einsum)):
        return _of_equation(layer.einsum_str, shape)
    if isinstance(layer, (linen.ConvTranspose, nnx.ConvTranspose)) and layer.transpose_kernel:
        return _units_first([*range(len(shape) - 2), len(shape) - 1])
    if isinstance(layer, nnx.LinearGeneral):
        first, outputs = 0, len(layer.out_features)
    elif isinstance(layer, linen.DenseGeneral):
        batch = layer.batch_dims
        first = len(batch)
        outputs = len(layer.features) if isinstance(layer.features, (tuple, list)) else 1
    else:
        return None
    return _units_first(range(first, len(shape) - outputs))


def _units_first(axes: Iterable[int]) -> tuple[int, ...]:
    """The last of some axes, which runs over units, and then the others."""
    *others, last = axes
    return (last, *others)


def _of_equation(equation: str | None, shape: Shape) -> tuple[int, ...] | None:
    """The axes of the second operand that its equation sums over; None where it does not say."""
    terms, arrow, output = (equation or "").replace(" ", "").partition("->")
    kernel = terms.partition(",")[2]
    if not arrow or len(kernel) != len(shape) or "." in kernel:
        return None
    summed = [axis for axis, letter in enumerate(kernel) if letter not in output]
    return _units_first(summed) if summed else ()
