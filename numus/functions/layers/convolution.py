"""Convolutions, with PyTorch's arguments and layouts, and JAX's general one.

As everywhere in machine learning, the window is not turned around: these are correlations. Data is
(batch, channels, *space), with or without the batch; weights are (outputs, channels / groups,
*taps). Low-precision floats are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.errors import ShapeError
from numus.functions._base import pair, require, wrap
from numus.functions.autocast import lowers
from numus.functions.layers import windows as win
from numus.functions.layers.windows import Margins, Sizes, by_rank, per_axis
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.convolve import Window, convolve, input_gradient
from numus.primitives.views import permute, reshape
from numus.shapes import Shape, as_int
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_general", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d",
]  # fmt: skip

Padding = int | str | Sequence[int] | Sequence[tuple[int, int]]


def _operands(op: str, x: Any, w: Any) -> tuple[Node, Node]:
    a, b = pair(op, x, w)
    return require(op, a, "uint", "int", "float", "complex"), b


def _ranked_operands(op: str, x: Any, w: Any, rank: int, layout: str) -> tuple[Node, Node, bool]:
    a, b = _operands(op, x, w)
    a, has_batch = win.batched(op, a, rank)
    if b.ndim != rank + 2:
        raise ShapeError(f"{op}: weights are ({layout}, {rank} of taps), not shape {b.shape}")
    return a, b, has_batch


def _check_groups(op: str, x: Node, channels: int, outputs: int, w: Node, groups: int) -> None:
    """Whether channels fit the weights, which see `channels` of them in each group."""
    if groups < 1:
        raise ShapeError(f"{op}: groups must be at least 1, not {groups}")
    if x.shape[1] != channels * groups:
        raise ShapeError(
            f"{op}: data of shape {x.shape} has {x.shape[1]} channels, weights of shape {w.shape} "
            f"in groups={groups} take {channels * groups}"
        )
    if outputs % groups:
        raise ShapeError(f"{op}: {outputs} output channels must be divisible by groups={groups}")


def _with_bias(op: str, y: Node, bias: Any, has_batch: bool) -> Tensor:
    if bias is not None:
        y, b = pair(op, wrap(y), bias)
        if b.shape != (y.shape[1],):
            raise ShapeError(f"{op}: the bias must have shape ({y.shape[1]},), not {b.shape}")
        y = ew.add(y, reshape(b, (1, *b.shape, *(1,) * (y.ndim - 2))))
    return win.unbatched(y, has_batch)


@lowers
@templated
def _conv(
    rank: int,
    x: ArrayLike,
    weight: ArrayLike,
    /,
    bias: ArrayLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    op = f"conv{rank}d"
    a, b, has_batch = _ranked_operands(op, x, weight, rank, "outputs, channels / groups")
    groups = as_int(groups, "groups", op)
    _check_groups(op, a, b.shape[1], b.shape[0], b, groups)
    strides = per_axis(op, "stride", stride, rank)
    dilations = per_axis(op, "dilation", dilation, rank)
    size, taps = a.shape[2:], b.shape[2:]
    if isinstance(padding, str):
        if padding == "same" and any(s != 1 for s in strides):
            raise ShapeError(f'{op}: padding="same" needs stride 1, not stride={stride!r}')
        sides = _named_margins(op, padding, size, taps, strides, dilations, "valid", "same")
    else:
        sides = win.margins(op, padding, rank)
    windows, extents = _windows(op, a, b, strides, sides, (1,) * rank, dilations)
    y = convolve(a, b, windows, extents, groups)
    return _with_bias(op, y, bias, has_batch)


def _named_margins(
    op: str, name: str, size: Shape, taps: Shape, strides: Shape, dilations: Shape, *names: str
) -> Margins:
    if name not in names:
        raise ValueError(f"{op}: padding {name!r} must be one of {', '.join(names)}, nor numbers")
    if name.lower() == "valid":
        return ((0, 0),) * len(size)
    sides = win.same_margins(size, taps, strides, dilations)
    return tuple((b, a) for a, b in sides) if name.lower() == "same_lower" else sides


def _windows(
    op: str, x: Node, w: Node, strides: Shape, sides: Margins, gaps: Shape, dilations: Shape
) -> tuple[tuple[Window, ...], Shape]:
    """The window along each axis of space, and the number of them that fit."""
    if 0 in w.shape[2:]:
        raise ShapeError(f"{op}: the kernel must not be empty: weights of shape {w.shape}")
    axes = zip(x.shape[2:], w.shape[2:], strides, sides, gaps, dilations, strict=True)
    extents, windows = [], []
    for n, k, s, (low, high), lhs_dilation, d in axes:
        extent = (n - 1) * lhs_dilation + 1 if n else 0
        extents.append(win.window_count(extent + low + high, (k - 1) * d + 1, s))
        windows.append(Window(s, d, lhs_dilation, low))
    if 0 in extents and 0 not in x.shape[2:]:
        raise ShapeError(
            f"{op}: windows of {w.shape[2:]} taps, dilation {dilations}, are larger than data of "
            f"{x.shape[2:]} with padding {sides}"
        )
    return tuple(windows), tuple(extents)


conv1d, conv2d, conv3d = by_rank(
    _conv,
    "conv",
    """Windows of (batch, channels, width), each times (outputs, channels / groups, taps).

    Args:
        bias: one number per output.
        padding: zeros at both ends; (before, after) per axis; "valid" (none) or "same" (as many as
            keep the size).
        groups: parts of the channels, each seen by its own part of the outputs.

    >>> x = nm.asarray([[1.0, 2.0, 4.0, 8.0]])
    >>> nm.conv1d(x, nm.asarray([[[1.0, -1.0]]])).tolist()
    [[-1.0, -2.0, -4.0]]
    """,
    "Windows of (batch, channels, height, width), each times weights; as `conv1d`.",
    "Windows of (batch, channels, depth, height, width), each times weights; as `conv1d`.",
)


@lowers
@templated
def _conv_transpose(
    rank: int,
    x: ArrayLike,
    weight: ArrayLike,
    /,
    bias: ArrayLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    op = f"conv_transpose{rank}d"
    a, b, has_batch = _ranked_operands(op, x, weight, rank, "channels, outputs / groups")
    groups = as_int(groups, "groups", op)
    if groups < 1 or b.shape[0] % groups:
        raise ShapeError(f"{op}: {b.shape[0]} channels must be divisible by groups={groups}")
    _check_groups(op, a, b.shape[0] // groups, b.shape[1] * groups, b, groups)
    strides = per_axis(op, "stride", stride, rank)
    dilations = per_axis(op, "dilation", dilation, rank)
    extra = per_axis(op, "output_padding", output_padding, rank, 0)
    if isinstance(padding, str):
        raise ValueError(f"{op}: padding is numbers, not {padding!r}")
    sides = win.margins(op, padding, rank)
    if 0 in b.shape[2:]:
        raise ShapeError(f"{op}: the kernel must not be empty: weights of shape {b.shape}")
    if any(more >= max(s, d) for more, s, d in zip(extra, strides, dilations, strict=True)):
        raise ShapeError(
            f"{op}: output_padding={output_padding!r} must be smaller than stride={stride!r} "
            f"or dilation={dilation!r}"
        )
    axes = zip(a.shape[2:], b.shape[2:], strides, dilations, sides, extra, strict=True)
    extents = [
        (n - 1) * s - low - high + (k - 1) * d + 1 + more for n, k, s, d, (low, high), more in axes
    ]
    if any(n < 0 for n in extents) or (0 in extents and 0 not in a.shape[2:]):
        raise ShapeError(
            f"{op}: nothing is left of data of {a.shape[2:]} after removing padding of {sides}"
        )
    # the transpose of a convolution from `extents` to the space of x
    rows = zip(strides, dilations, sides, strict=True)
    windows = tuple(Window(s, d, 1, low) for s, d, (low, _) in rows)
    y = input_gradient(a, b, windows, tuple(extents), groups)
    return _with_bias(op, y, bias, has_batch)


conv_transpose1d, conv_transpose2d, conv_transpose3d = by_rank(
    _conv_transpose,
    "conv_transpose",
    """The transpose of `conv1d`: every element adds its window to the result; weights are
    (channels, outputs / groups, taps).

    Args:
        padding: what is cut off the result at both ends, or (before, after) per axis.
        output_padding: how much longer the result is, where several lengths are possible.

    >>> nm.conv_transpose1d(nm.asarray([[1.0, 10.0]]), nm.ones((1, 1, 3)), stride=2).tolist()
    [[1.0, 1.0, 11.0, 10.0, 10.0]]
    """,
    "The transpose of `conv2d`; as `conv_transpose1d`.",
    "The transpose of `conv3d`; as `conv_transpose1d`.",
)


def conv_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    /,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Sequence[str] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
) -> Tensor:
    """JAX's conv_general_dilated: any number of axes, any layout, any dilation.

    Args:
        padding: "SAME", "SAME_LOWER", "VALID", or (before, after) per axis; negative numbers cut
            off.
        lhs_dilation: the distance between elements of lhs.
        rhs_dilation: the distance between taps of the window.
        dimension_numbers: the layouts of lhs, rhs and the result, as in ("NHWC", "HWIO", "NHWC").
        batch_group_count: parts of the batch, each seen by its own part of the outputs.
    """
    op = "conv_general"
    a, b = _operands(op, lhs, rhs)
    rank = a.ndim - 2
    if rank < 0 or b.ndim != a.ndim:
        raise ShapeError(f"{op}: {a.shape} and {b.shape} must have as many axes, at least 2")
    order = tuple(range(a.ndim))
    if dimension_numbers is not None:
        a, b, order = _from_layouts(op, a, b, [str(s) for s in dimension_numbers])
    strides = per_axis(op, "window_strides", tuple(window_strides), rank)
    gaps = per_axis(op, "lhs_dilation", tuple(lhs_dilation or (1,) * rank), rank)
    dilations = per_axis(op, "rhs_dilation", tuple(rhs_dilation or (1,) * rank), rank)
    groups = as_int(feature_group_count, "feature_group_count", op)
    parts = as_int(batch_group_count, "batch_group_count", op)
    if groups > 1 and parts > 1:
        raise ShapeError(f"{op}: either features or the batch are in groups, not both")
    if parts > 1:  # parts of the batch are groups of channels
        if a.shape[0] % parts:
            raise ShapeError(f"{op}: a batch of {a.shape[0]} must be divisible by {parts}")
        n, c, *space = a.shape
        a = permute(reshape(a, (parts, n // parts, c, *space)), (1, 0, *range(2, a.ndim + 1)))
        a = reshape(a, (n // parts, parts * c, *space))
        groups = parts
    _check_groups(op, a, b.shape[1], b.shape[0], b, groups)
    if isinstance(padding, str):
        dilated = tuple((n - 1) * g + 1 if n else 0 for n, g in zip(a.shape[2:], gaps, strict=True))
        window = (b.shape[2:], strides, dilations)
        sides = _named_margins(op, padding, dilated, *window, "VALID", "SAME", "SAME_LOWER")
    else:
        sides = win.margins(op, [tuple(p) for p in padding], rank) if rank else ()
    windows, extents = _windows(op, a, b, strides, sides, gaps, dilations)
    return wrap(permute(convolve(a, b, windows, extents, groups), order))


def _from_layouts(op: str, a: Node, b: Node, spec: list[str]) -> tuple[Node, Node, Shape]:
    """Operands in the layouts this file uses, and the permutation to that of the result."""
    if len(spec) != 3 or any(len(set(s)) != a.ndim or len(s) != a.ndim for s in spec):
        raise ShapeError(f"{op}: dimension_numbers={spec} are not three layouts of {a.ndim} axes")
    left, right, out = spec
    space = [c for c in left if c not in "NC"]
    if set(left) != {"N", "C", *space} or set(out) != set(left) or set(right) != {"O", "I", *space}:
        raise ShapeError(f"{op}: dimension_numbers={spec} do not name the same axes")
    ours = ["N", "C", *space]
    a = permute(a, tuple(left.index(c) for c in ours))
    b = permute(b, tuple(right.index(c) for c in ("O", "I", *space)))
    return a, b, tuple(ours.index(c) for c in out)
