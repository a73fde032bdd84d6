"""For primitives of JAX: on which axis a result has the rows, where each row of it is computed from one row.

A rule is ``rule(params, axes, shapes) -> axis``. `axes` are those of the operands on which they have rows
(:data:`SAME` for an operand that is the same whatever the rows are), `shapes` those of the operands; the
result is the axis of the rows of all results, or :data:`UNCLEAR` where a row of them may depend on several
rows. Whether a result has as many rows as there are is not the business of a rule.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# An array that has no rows, and is the same whatever the rows are.
SAME = -1
# An array whose rows may depend on one another.
UNCLEAR = -2

Rule = Callable[[Mapping[str, Any], Sequence[int], Sequence[tuple[int, ...]]], int]

_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type
    cbrt ceil clamp clz conj convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp exp2
    expm1 floor ge gt igamma igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul
    ne neg nextafter not or polygamma population_count pow real reduce_precision regularized_incomplete_beta
    rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square
    stop_gradient sub tan tanh xor zeta
"""
_REDUCTIONS = """
    argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
"""
_WINDOWS = "reduce_window_max reduce_window_min reduce_window_sum"
_ALONG_AN_AXIS = "cumlogsumexp cummax cummin cumprod cumsum"
# What is drawn is of each row its own.
_RANDOM = "random_bits random_fold_in random_split random_unwrap random_wrap"


def _common(axes: Sequence[int]) -> int:
    """The one axis of all operands with rows."""
    found = {axis for axis in axes if axis != SAME}
    return found.pop() if len(found) == 1 else (UNCLEAR if found else SAME)


def _elementwise(_: Mapping[str, Any], axes: Sequence[int], __: Sequence[tuple]) -> int:
    return _common(axes)


def _kept(axis: int, removed: Sequence[int]) -> int:
    """The number of an axis after others were removed."""
    return UNCLEAR if axis in removed else axis - sum(other < axis for other in removed)


def _reduction(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    return _kept(axes[0], params["axes"])


def _squeeze(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    return _kept(axes[0], params["dimensions"])


def _along_an_axis(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    """Operations along one axis, and joins of arrays along one, are of each row its own along another."""
    axis, dimension = _common(axes), params.get("axis", params.get("dimension"))
    return UNCLEAR if axis == dimension else axis


def _reverse(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    return UNCLEAR if axes[0] in params["dimensions"] else axes[0]


def _top_k(params: Mapping[str, Any], axes: Sequence[int], shapes: Sequence[tuple]) -> int:
    dimension = params.get("axis", -1) % len(shapes[0])
    return UNCLEAR if axes[0] == dimension else axes[0]


def _broadcast(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    return int(params["broadcast_dimensions"][axes[0]])


def _transpose(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    return list(params["permutation"]).index(axes[0])


def _reshape(params: Mapping[str, Any], axes: Sequence[int], shapes: Sequence[tuple]) -> int:
    """The axis with as many rows, and as many numbers before it."""
    (axis, *_), (shape, *_) = axes, shapes
    if params["dimensions"] is not None:
        return UNCLEAR
    new = params["new_sizes"]
    before = math.prod(shape[:axis])
    fits = [
        i for i, n in enumerate(new) if n == shape[axis] and math.prod(new[:i]) == before and n > 1
    ]
    return fits[0] if len(fits) == 1 else UNCLEAR


def _slice(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    strides = params["strides"]
    whole = params["start_indices"][axes[0]] == 0 and (strides is None or strides[axes[0]] == 1)
    return axes[0] if whole else UNCLEAR


def _dynamic_slice(_: Mapping[str, Any], axes: Sequence[int], __: Sequence[tuple]) -> int:
    return axes[0] if axes[0] >= 0 and all(axis == SAME for axis in axes[1:]) else UNCLEAR


def _pad(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    axis = axes[0]
    alone = axis >= 0 and axes[1] == SAME and tuple(params["padding_config"][axis]) == (0, 0, 0)
    return axis if alone else UNCLEAR


def _dot(params: Mapping[str, Any], axes: Sequence[int], shapes: Sequence[tuple]) -> int:
    """Products with weights; or of two arrays with rows, row by row."""
    summed, together = params["dimension_numbers"]
    positions = set()
    for side, axis in enumerate(axes):
        if axis == SAME:
            continue
        if axis in summed[side]:
            return UNCLEAR
        if axis in together[side]:
            positions.add(list(together[side]).index(axis))
            continue
        if axes[1 - side] != SAME:
            return UNCLEAR
        removed = (*summed[side], *together[side])
        place = len(together[side]) + _kept(axis, removed)
        others = len(shapes[0]) - len(summed[0]) - len(together[0])
        positions.add(place if side == 0 else place + others)
    return positions.pop() if len(positions) == 1 else UNCLEAR


def _convolution(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    numbers = params["dimension_numbers"]
    images = axes[0] == numbers.lhs_spec[0] and axes[1] == SAME
    return numbers.out_spec[0] if images and params["batch_group_count"] == 1 else UNCLEAR


def _window(params: Mapping[str, Any], axes: Sequence[int], _: Sequence[tuple]) -> int:
    axis = _common(axes)
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    alone = all(params[name][axis] == 1 for name in names) and tuple(params["padding"][axis]) == (
        0,
        0,
    )
    return axis if alone else UNCLEAR


def _gather(params: Mapping[str, Any], axes: Sequence[int], shapes: Sequence[tuple]) -> int:
    """Entries of a table, looked up by row; the same columns of each row; or columns of each its own."""
    numbers, (operand, indices) = params["dimension_numbers"], axes
    offsets = set(numbers.offset_dims)
    size = len(shapes[1]) - 1 + len(offsets)
    looked_up = [i for i in range(size) if i not in offsets]
    paired = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
    if operand == SAME:
        return looked_up[indices] if indices < len(looked_up) else UNCLEAR
    if operand in paired:
        same_rows = indices in (SAME, paired[operand])
        return looked_up[paired[operand]] if same_rows and indices != SAME else UNCLEAR
    fixed = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    if indices != SAME or operand in fixed or operand in numbers.start_index_map:
        return UNCLEAR
    return sorted(offsets)[_kept(operand, sorted(fixed))]


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: Mapping[str, Rule] = {
    **_each(_ELEMENTWISE, _elementwise),
    **_each(_RANDOM, _elementwise),
    **_each(_REDUCTIONS, _reduction),
    **_each(_ALONG_AN_AXIS, _along_an_axis),
    **_each("concatenate sort split", _along_an_axis),
    **_each(_WINDOWS, _window),
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "slice": _slice,
    "squeeze": _squeeze,
    "top_k": _top_k,
    "transpose": _transpose,
}


def axis_of_new_rows(name: str, params: Mapping[str, Any], axis: int) -> int:
    """Where an array gets rows though no operand has any: the same for each row, or drawn.

    :param name: the primitive.
    :param params: its parameters.
    :param axis: the axis on which the result has as many entries as there are rows.
    """
    if name == "iota":
        # Numbers of the rows are others in another block.
        return UNCLEAR if axis == params["dimension"] else axis
    return axis if name == "broadcast_in_dim" or name in _RANDOM.split() else UNCLEAR
