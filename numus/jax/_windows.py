"""Convolutions and reductions of windows of `jax.lax`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numus as nm
from numus.jax import lax
from numus.jax._adapt import to_tensor
from numus.tensor import Tensor

Function = Callable[..., Any]


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    **hints: Any,
) -> Tensor:
    """`nm.conv_general`."""
    return nm.conv_general(
        *(to_tensor(lhs), to_tensor(rhs), window_strides, padding, lhs_dilation, rhs_dilation),
        *(dimension_numbers, feature_group_count, batch_group_count),
    )


def conv(lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any, **hints: Any) -> Tensor:
    """A convolution of NCHW images with OIHW weights."""
    return conv_general_dilated(lhs, rhs, window_strides, padding)


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Function,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Tensor:
    """Each window reduced: by `lax.add`, `max`, `min`, `mul` or a function like them."""
    x = to_tensor(operand)
    strides = list(window_strides or [1] * x.ndim)
    if isinstance(padding, str):
        padding = [
            _same_padding(*sizes) if padding.upper() == "SAME" else (0, 0)
            for sizes in zip(x.shape, window_dimensions, strides, strict=True)
        ]
    x = nm.pad(x, [tuple(p) for p in padding], constant_values=init_value)
    windows = nm.sliding_window_view(x, tuple(window_dimensions))
    windows = windows[tuple(slice(None, None, s) for s in strides)]
    inner = tuple(range(x.ndim, 2 * x.ndim))
    for name, reduction in (("add", nm.sum), ("max", nm.max), ("min", nm.min), ("mul", nm.prod)):
        if computation is getattr(lax, name):
            return computation(reduction(windows, axis=inner), init_value)
    out = to_tensor(init_value)
    flat = nm.reshape(windows, (*windows.shape[: x.ndim], -1))
    for k in range(flat.shape[-1]):
        out = computation(out, flat[..., k])
    return out


def _same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


conv_with_general_padding = conv_general_dilated
