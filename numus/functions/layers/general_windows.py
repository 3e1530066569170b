"""Windows in any layout (XLA): transposed convolutions, patches, and reductions by any function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numus.functions import api as nm
from numus.functions.layers.convolution import conv_general
from numus.functions.layers.windows import same_margins
from numus.tensor import Tensor


def _layouts(given: Any, rank: int, default: str) -> Any:
    space = "HWD"[:rank] if rank <= 3 else "ABEFGHJK"[:rank]
    return given or tuple(layout.replace("*", space) for layout in default.split())


def conv_general_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
) -> Tensor:
    """A convolution of an image whose elements lie `strides` apart: the transpose of a strided
    one. Without dimension numbers, images are N…C and weights …IO."""
    x, w = nm.asarray(lhs), nm.asarray(rhs)
    rank = x.ndim - 2
    numbers = _layouts(dimension_numbers, rank, "N*C *IO N*C")
    space = [i for i, letter in enumerate(numbers[1]) if letter not in "IO"]
    dilation = rhs_dilation or (1,) * rank
    if transpose_kernel:
        first, last = numbers[1].index("I"), numbers[1].index("O")
        w = nm.swapaxes(nm.flip(w, tuple(space)), first, last)
    if isinstance(padding, str):
        sizes = [(w.shape[i] - 1) * d + 1 for i, d in zip(space, dilation, strict=True)]
        ends = zip(sizes, strides, strict=True)
        padding = [_transposed_padding(k, s, padding.upper()) for k, s in ends]
    return conv_general(x, w, (1,) * rank, padding, tuple(strides), tuple(dilation), numbers)


def _transposed_padding(size: int, stride: int, padding: str) -> tuple[int, int]:
    if padding == "SAME":
        total = size + stride - 2
        first = size - 1 if stride > size - 1 else math.ceil(total / 2)
    else:
        total = size + stride - 2 + max(size - stride, 0)
        first = size - 1
    return first, total - first


def conv_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
) -> Tensor:
    """The patches that a convolution sees, as channels: by one with weights of ones and zeros."""
    x, size = nm.asarray(lhs), math.prod(filter_shape)
    rank = x.ndim - 2
    numbers = _layouts(dimension_numbers, rank, "NC* OI* NC*")
    channels = x.shape[numbers[0].index("C")]
    weights = nm.reshape(nm.eye(size, dtype=x.dtype), (size, 1, *filter_shape))
    weights = nm.tile(weights, (channels, 1, *([1] * rank)))
    order = "OI" + "".join(c for c in numbers[1] if c not in "OI")
    weights = nm.permute_dims(weights, tuple(order.index(c) for c in numbers[1]))
    given = (window_strides, padding, lhs_dilation, rhs_dilation, numbers)
    return conv_general(x, weights, *given, feature_group_count=channels)


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Tensor],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Tensor:
    """Each window reduced, by a function of two elements that is associative."""
    x = nm.asarray(operand)
    strides = tuple(window_strides or [1] * x.ndim)
    if isinstance(padding, str):
        same = same_margins(x.shape, tuple(window_dimensions), strides, (1,) * x.ndim)
        padding = same if padding.upper() == "SAME" else [(0, 0)] * x.ndim
    x = nm.pad(x, [tuple(p) for p in padding], constant_values=init_value)
    windows = nm.sliding_window_view(x, tuple(window_dimensions))
    windows = windows[tuple(slice(None, None, s) for s in strides)]
    inner = tuple(range(x.ndim, 2 * x.ndim))
    known: Any = getattr(computation, "__name__", "")
    if reduction := _REDUCTIONS.get(known):
        return computation(reduction(windows, axis=inner), init_value)
    out: Any = nm.asarray(init_value)
    flat = nm.reshape(windows, (*windows.shape[: x.ndim], -1))
    for k in range(flat.shape[-1]):
        out = computation(out, flat[..., k])
    return out


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": nm.sum, "multiply": nm.prod, "maximum": nm.max, "minimum": nm.min
}  # fmt: skip


def pad_general(operand: Any, padding_value: Any, padding_config: Sequence[Any]) -> Tensor:
    """Padded at both ends of each axis; inner padding spreads elements, negative padding cuts."""
    x = nm.asarray(operand)
    for axis, (low, high, inner) in enumerate(padding_config):
        front = (slice(None),) * axis
        if inner and x.shape[axis]:
            count = (x.shape[axis] - 1) * (inner + 1) + 1
            spread = nm.full((*x.shape[:axis], count, *x.shape[axis + 1 :]), padding_value)
            spread = nm.astype(spread, x.dtype)
            spread[(*front, slice(None, None, inner + 1))] = x
            x = spread
        width = [(0, 0)] * x.ndim
        width[axis] = (max(low, 0), max(high, 0))
        x = nm.pad(x, width, constant_values=padding_value)
        x = x[(*front, slice(max(-low, 0), x.shape[axis] + min(high, 0)))]
    return x
