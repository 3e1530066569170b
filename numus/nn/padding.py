"""Room around the last axes: zeros, a constant, a mirror, the edge, or the other side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.nn import functional as F
from numus.nn.module import Module
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

    def __init__(self, padding: int | Sequence[int]) -> None:
        sides = 2 * self.axes
        self.padding = (padding,) * sides if isinstance(padding, int) else tuple(padding)
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


class ZeroPad1d(_Pad):
    """Zeros around the last axis."""

    axes, mode = 1, "constant"


class ZeroPad2d(_Pad):
    """Zeros around the last two axes."""

    axes, mode = 2, "constant"


class ZeroPad3d(_Pad):
    """Zeros around the last three axes."""

    axes, mode = 3, "constant"


class ConstantPad1d(_ConstantPad):
    """A constant around the last axis."""

    axes, mode = 1, "constant"


class ConstantPad2d(_ConstantPad):
    """A constant around the last two axes."""

    axes, mode = 2, "constant"


class ConstantPad3d(_ConstantPad):
    """A constant around the last three axes."""

    axes, mode = 3, "constant"


class ReflectionPad1d(_Pad):
    """What is inside, mirrored at the edges, around the last axis."""

    axes, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """What is inside, mirrored at the edges, around the last two axes."""

    axes, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """What is inside, mirrored at the edges, around the last three axes."""

    axes, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The edges, again and again, around the last axis."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The edges, again and again, around the last two axes."""

    axes, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The edges, again and again, around the last three axes."""

    axes, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """What is at the other side, around the last axis."""

    axes, mode = 1, "circular"


class CircularPad2d(_Pad):
    """What is at the other side, around the last two axes."""

    axes, mode = 2, "circular"


class CircularPad3d(_Pad):
    """What is at the other side, around the last three axes."""

    axes, mode = 3, "circular"
