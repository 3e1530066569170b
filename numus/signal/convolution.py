"""Convolution and correlation: by sliding windows, by one transform, or by transforms of blocks.

Blocks follow the overlap-save method: frames that overlap by the length of the shorter operand are
transformed, and the part of each that wraps around is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.shapes import normal_axis
from numus.signal._arguments import choice, slice_along
from numus.signal.framing import frames
from numus.tensor import Tensor

__all__ = [
    "choose_conv_method", "convolve", "correlate", "correlation_lags", "fftconvolve", "oaconvolve",
]  # fmt: skip


@dataclass(frozen=True)
class ConvolutionTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    direct_cost: float = 1.0  # of a product and a sum in sliding windows
    min_block_signal: int = 8192  # samples of a signal that is transformed in blocks
    transform_cost: float = 2.5  # of a point and a factor of two in a transform


TUNING = ConvolutionTuning()


def _operands(op: str, in1: Any, in2: Any) -> tuple[Tensor, Tensor]:
    given = [x if isinstance(x, Tensor) else None for x in (in1, in2)]
    device = next((x.device for x in given if x is not None), None)
    x, y = (
        t if t is not None else nm.asarray(raw, device=device)
        for t, raw in zip(given, (in1, in2), strict=True)
    )
    dtype = nm.result_type(x, y)
    if dtype.kind == "bool":
        dtype = nm.int64
    if dtype.kind not in ("int", "uint", "float", "complex"):
        raise DTypeError(f"signal.{op}: cannot convolve {x.dtype.name} and {y.dtype.name}")
    if x.ndim != y.ndim:
        raise ShapeError(
            f"signal.{op}: shapes {x.shape} and {y.shape} must have the same number of axes"
        )
    return x.astype(dtype), y.astype(dtype)


def _swapped(op: str, mode: str, x: Tensor, y: Tensor, axes: Sequence[int]) -> bool:
    """Whether, of a valid convolution, the first operand is inside the second."""
    if mode != "valid":
        return False
    first = all(x.shape[a] >= y.shape[a] for a in axes)
    second = all(y.shape[a] >= x.shape[a] for a in axes)
    if not first and not second:
        raise ShapeError(
            f"signal.{op}: of a valid convolution, one of {x.shape} and {y.shape} must be at least "
            "as large as the other along every axis"
        )
    return not first


def _bounds(mode: str, n: int, m: int) -> tuple[int, int]:
    """The part of a full convolution of n and m elements that a mode keeps: start and count."""
    if mode == "full":
        return 0, n + m - 1
    if mode == "same":
        return (m - 1) // 2, n
    return m - 1, n - m + 1


def _kept(full: Tensor, mode: str, x: Tensor, y: Tensor, axes: Sequence[int]) -> Tensor:
    for a in axes:
        start, count = _bounds(mode, x.shape[a], y.shape[a])
        full = slice_along(full, a, start, start + count)
    return full


def _direct(x: Tensor, y: Tensor, mode: str) -> Tensor:
    """Sliding windows of the longer operand."""
    if math.prod(y.shape) > math.prod(x.shape) and mode == "full":
        x, y = y, x
    bounds = [_bounds(mode, n, m) for n, m in zip(x.shape, y.shape, strict=True)]
    axes = tuple(range(x.ndim))
    padding = [
        (m - 1 - start, start + count - n)
        for (start, count), n, m in zip(bounds, x.shape, y.shape, strict=True)
    ]
    flipped = nm.flip(y, axis=axes) if axes else y
    ones = (1, 1)
    found = nm.conv_general(
        nm.pad(x, [(max(a, 0), max(b, 0)) for a, b in padding]).reshape(*ones, *_sizes(x, padding)),
        flipped.reshape(*ones, *y.shape),
        (1,) * x.ndim,
        [(min(a, 0), min(b, 0)) for a, b in padding],
    )
    return found.reshape(found.shape[2:])


def _sizes(x: Tensor, padding: Sequence[tuple[int, int]]) -> list[int]:
    return [n + max(a, 0) + max(b, 0) for n, (a, b) in zip(x.shape, padding, strict=True)]


def _mode(op: str, mode: str) -> str:
    found: str = choice(op, mode, "mode", "full", "same", "valid")
    return found


def _empty(op: str, x: Tensor, y: Tensor) -> bool:
    return 0 in x.shape or 0 in y.shape


def _transform_points(x: Tensor, y: Tensor) -> float:
    n = math.prod(a + b - 1 for a, b in zip(x.shape, y.shape, strict=True))
    return n * max(1.0, math.log2(max(n, 2)))


def _method(x: Tensor, y: Tensor, mode: str) -> str:
    """The cheaper method; integers are convolved exactly."""
    if x.dtype.kind in ("int", "uint") or not x.ndim or x.ndim > 3:
        return "direct"
    small = min(math.prod(x.shape), math.prod(y.shape))
    outputs = math.prod(
        max(1, _bounds(mode, max(a, b), min(a, b))[1])
        for a, b in zip(x.shape, y.shape, strict=True)
    )
    direct = TUNING.direct_cost * small * outputs
    return "direct" if direct <= TUNING.transform_cost * 3 * _transform_points(x, y) else "fft"


def choose_conv_method(in1: Any, in2: Any, mode: str = "full", measure: bool = False) -> str:
    """ "direct" or "fft", whichever costs less operations. Integers are convolved directly.

    >>> nm.signal.choose_conv_method(nm.ones(1000), nm.ones(3))
    'direct'
    >>> nm.signal.choose_conv_method(nm.ones(100000), nm.ones(5000))
    'fft'
    """
    op = "choose_conv_method"
    x, y = _operands(op, in1, in2)
    return _method(x, y, _mode(op, mode))


def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Tensor:
    """The convolution along all axes.

    Args:
        mode: "full" (all elements that either operand reaches), "same" (as many as `in1` has, in
            the middle), "valid" (those that do not touch the ends).
        method: "direct", "fft", or "auto": the cheaper one.

    >>> nm.signal.convolve(nm.asarray([1, 2, 3]), nm.asarray([0, 1])).tolist()
    [0, 1, 2, 3]
    """
    return _convolve("convolve", in1, in2, mode, method)


def _convolve(op: str, in1: Any, in2: Any, mode: str, method: str) -> Tensor:
    x, y = _operands(op, in1, in2)
    _mode(op, mode)
    choice(op, method, "method", "auto", "direct", "fft")
    if not x.ndim:
        return x * y
    if _empty(op, x, y):
        raise ShapeError(f"signal.{op}: shapes {x.shape} and {y.shape} must not be empty")
    if _swapped(op, mode, x, y, range(x.ndim)):
        x, y = y, x
    if method == "auto":
        method = _method(x, y, mode)
    if method == "direct":
        return _direct(x, y, mode)
    found = _by_transform(x, y, mode, list(range(x.ndim)))
    return found if x.dtype.kind in ("float", "complex") else nm.round(found).astype(x.dtype)


def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Tensor:
    """The cross-correlation along all axes: the convolution with `in2` reversed and conjugated.

    >>> nm.signal.correlate(nm.asarray([1, 2, 3]), nm.asarray([0, 1])).tolist()
    [1, 2, 3, 0]
    """
    op = "correlate"
    x, y = _operands(op, in1, in2)
    _mode(op, mode)
    if not x.ndim:
        return x * nm.conj(y)
    reverse = nm.conj(nm.flip(y, axis=tuple(range(y.ndim))))
    return _convolve(op, x, reverse, mode, method)


def correlation_lags(in1_len: int, in2_len: int, mode: str = "full") -> Tensor:
    """The lags of the elements of a correlation of two axes.

    >>> nm.signal.correlation_lags(3, 2).tolist()
    [-1, 0, 1, 2]
    """
    mode = _mode("correlation_lags", mode)
    if mode == "valid":
        bound = in1_len - in2_len
        return nm.arange(bound + 1) if bound >= 0 else nm.arange(bound, 1)
    lags = nm.arange(-in2_len + 1, in1_len)
    if mode == "full":
        return lags
    middle, bound = (in1_len + in2_len - 1) // 2, in1_len // 2
    return lags[middle - bound : middle - bound + in1_len]


# -- transforms -----------------------------------------------------------------------------------


def _axes(op: str, x: Tensor, y: Tensor, axes: Any) -> list[int]:
    """The axes to convolve along; the others are broadcast, and so are axes of one element."""
    if axes is None:
        where = list(range(x.ndim))
    else:
        given = axes if isinstance(axes, (tuple, list)) else [axes]
        where = [normal_axis(a, x.ndim, f"signal.{op}") for a in given]
        if len(set(where)) != len(where):
            raise ShapeError(f"signal.{op}: axes {tuple(given)} are not distinct")
    if not where and x.ndim:
        raise ShapeError(f"signal.{op}: takes at least one axis")
    pairs = list(zip(x.shape, y.shape, strict=True))
    for a, (n, m) in enumerate(pairs):
        if a not in where and n != m and 1 not in (n, m):
            raise ShapeError(
                f"signal.{op}: shapes {x.shape} and {y.shape} do not broadcast along axis {a}"
            )
    return where


def _wide(x: Tensor) -> Tensor:
    if x.dtype.kind in ("int", "uint"):
        return x.astype(nm.float32 if x.dtype.itemsize < 4 else nm.float64)
    return x.astype(nm.float32) if x.dtype.itemsize < 4 else x


def _block_points(n: int, m: int) -> int:
    """The length of transforms of blocks: least work per output, for m taps."""
    lengths = [1 << k for k in range((2 * m).bit_length(), (2 * m).bit_length() + 6)]
    return min(lengths, key=lambda size: size * math.log2(size) / (size - m + 1))


def _spectra(x: Tensor, y: Tensor, sizes: Sequence[int], axes: Sequence[int]) -> Tensor:
    """The circular convolution of these lengths along axes."""
    if x.dtype.kind == "complex" or y.dtype.kind == "complex":
        product = nm.fft.fftn(x, sizes, axes) * nm.fft.fftn(y, sizes, axes)
        return nm.fft.ifftn(product, sizes, axes)
    product = nm.fft.rfftn(x, sizes, axes) * nm.fft.rfftn(y, sizes, axes)
    return nm.fft.irfftn(product, sizes, axes)


def _by_transform(
    x: Tensor, y: Tensor, mode: str, axes: list[int], blocks: bool | None = None
) -> Tensor:
    """By transforms: of the whole axes, or of blocks, if those cost less (blocks=None)."""
    dtype, a, b = x.dtype, _wide(x), _wide(y)
    inner = [i for i in axes if 1 not in (x.shape[i], y.shape[i])]
    if blocks is None:
        sizes = sorted((x.shape[inner[0]], y.shape[inner[0]])) if len(inner) == 1 else (1, 1)
        blocks = sizes[1] >= max(8 * sizes[0], TUNING.min_block_signal)
    if not inner:
        full = a * b
    else:
        full = _in_blocks(a, b, inner) if blocks else _whole(a, b, inner)
    kept = _kept(full, mode, x, y, axes)
    return kept if dtype.kind in ("int", "uint") else kept.astype(dtype)


def _whole(x: Tensor, y: Tensor, axes: list[int]) -> Tensor:
    real = x.dtype.kind != "complex"
    counts = [x.shape[a] + y.shape[a] - 1 for a in axes]
    sizes = [
        nm.fft.next_fast_len(n, real and a == axes[-1]) for a, n in zip(axes, counts, strict=True)
    ]
    found = _spectra(x, y, sizes, axes)
    for a, n in zip(axes, counts, strict=True):
        found = slice_along(found, a, 0, n)
    return found


def _in_blocks(x: Tensor, y: Tensor, axes: list[int]) -> Tensor:
    """Overlap-save along each axis: the longer operand in frames, the shorter one as taps."""
    if sum(x.shape[a] < y.shape[a] for a in axes) * 2 > len(axes):
        x, y = y, x
    if any(x.shape[a] < y.shape[a] for a in axes):
        return _whole(x, y, axes)
    ndim = x.ndim
    counts = [x.shape[a] + y.shape[a] - 1 for a in axes]
    sizes, steps = [], []
    for a, count in zip(axes, counts, strict=True):
        m = y.shape[a]
        size = min(_block_points(count, m), nm.fft.next_fast_len(count, True))
        sizes.append(size)
        steps.append(size - m + 1 if size < count else count)
    for a, size, step, count in zip(axes, sizes, steps, counts, strict=True):
        m, blocks = y.shape[a], -(-count // step)
        whole = (blocks - 1) * step + size
        before = m - 1 if size < count else 0
        edges = [(0, 0)] * x.ndim
        edges[a] = (before, whole - before - x.shape[a])
        rows = nm.moveaxis(nm.pad(x, edges), a, -1)
        x = nm.moveaxis(frames(rows, size, step), -2, a)  # blocks stay, positions go last
    taps = nm.moveaxis(y, axes, range(ndim - len(axes), ndim))
    lead = [1 if a in axes else y.shape[a] for a in range(ndim)]
    taps = taps.reshape(*lead, *taps.shape[ndim - len(axes) :])
    last = list(range(ndim, ndim + len(axes)))
    found = _spectra(x, taps, sizes, last)
    for i in reversed(range(len(axes))):
        a, start = axes[i], y.shape[axes[i]] - 1 if sizes[i] < counts[i] else 0
        part = slice_along(found, ndim + i, start, start + steps[i])
        joined = nm.moveaxis(part, ndim + i, a + 1)
        shape = (*joined.shape[:a], joined.shape[a] * joined.shape[a + 1], *joined.shape[a + 2 :])
        found = slice_along(joined.reshape(shape), a, 0, counts[i])
    return found


def _transformed(op: str, in1: Any, in2: Any, mode: str, axes: Any, blocks: bool | None) -> Tensor:
    x, y = _operands(op, in1, in2)
    _mode(op, mode)
    if not x.ndim:
        return x * y
    if _empty(op, x, y):
        return nm.zeros((0,), dtype=x.dtype, device=x.device)
    where = _axes(op, x, y, axes)
    if _swapped(op, mode, x, y, where):
        x, y = y, x
    return _by_transform(x, y, mode, where, blocks)


def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Tensor:
    """The convolution along axes (default: all) by transforms; other axes are broadcast.

    Signals much longer than their taps are transformed in blocks.

    >>> nm.signal.fftconvolve(nm.ones(3), nm.ones(2)).round(decimals=5).tolist()
    [1.0, 2.0, 2.0, 1.0]
    """
    return _transformed("fftconvolve", in1, in2, mode, axes, None)


def oaconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Tensor:
    """The convolution along axes (default: all) by transforms of blocks, for operands of very
    different lengths.

    >>> nm.signal.oaconvolve(nm.ones(5), nm.ones(2), mode="same").round(decimals=5).tolist()
    [1.0, 2.0, 2.0, 2.0, 2.0]
    """
    return _transformed("oaconvolve", in1, in2, mode, axes, True)
