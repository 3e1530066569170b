"""Padding of the last axes: zeros, a constant, reflection, replication, or circular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.nn import functional as F
from numus.nn.module import Module
from numus.shapes import as_int, is_sequence
from numus.tensor import Tensor

__all__ = [
    *("CircularPad1d", "CircularPad2d", "CircularPad3d"),
    *("ConstantPad1d", "ConstantPad2d", "ConstantPad3d"),
    *("ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d"),
    *("ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d"),
    *("ZeroPad1d", "ZeroPad2d", "ZeroPad3d"),
]


class _Pad(Module):
    """Widths are one number for all sides, or (left, right, top, bottom, ...)."""

    axes = 1
    mode = "constant"

    def __init_subclass__(cls, axes: int | None = None, mode: str | None = None) -> None:
        super().__init_subclass__()
        cls.axes, cls.mode = axes or cls.axes, mode or cls.mode

    def __init__(self, padding: int | Sequence[int]) -> None:
        sides = 2 * self.axes
        given = padding if is_sequence(padding) else (padding,) * sides
        self.padding = tuple(as_int(n, "padding", type(self).__name__) for n in given)
        if len(self.padding) != sides:
            raise ValueError(
                f"{type(self).__name__}: takes one width, or {sides} of them, not {padding}"
            )

    def forward(self, x: Any) -> Tensor:
        return F.pad(x, self.padding, self.mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, x: Any) -> Tensor:
        return F.pad(x, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ZeroPad1d(_Pad, axes=1):
    """Zeros around the last axis."""


class ZeroPad2d(_Pad, axes=2):
    """Zeros around the last two axes."""


class ZeroPad3d(_Pad, axes=3):
    """Zeros around the last three axes."""


class ConstantPad1d(_ConstantPad, axes=1):
    """A constant around the last axis."""


class ConstantPad2d(_ConstantPad, axes=2):
    """A constant around the last two axes."""


class ConstantPad3d(_ConstantPad, axes=3):
    """A constant around the last three axes."""


class ReflectionPad1d(_Pad, axes=1, mode="reflect"):
    """The input mirrored at its edges, around the last axis."""


class ReflectionPad2d(_Pad, axes=2, mode="reflect"):
    """The input mirrored at its edges, around the last two axes."""


class ReflectionPad3d(_Pad, axes=3, mode="reflect"):
    """The input mirrored at its edges, around the last three axes."""


class ReplicationPad1d(_Pad, axes=1, mode="replicate"):
    """The edges repeated around the last axis."""


class ReplicationPad2d(_Pad, axes=2, mode="replicate"):
    """The edges repeated around the last two axes."""


class ReplicationPad3d(_Pad, axes=3, mode="replicate"):
    """The edges repeated around the last three axes."""


class CircularPad1d(_Pad, axes=1, mode="circular"):
    """The opposite side, around the last axis."""


class CircularPad2d(_Pad, axes=2, mode="circular"):
    """The opposite side, around the last two axes."""


class CircularPad3d(_Pad, axes=3, mode="circular"):
    """The opposite side, around the last three axes."""
