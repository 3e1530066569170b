"""What the schedules of convolutions share: shapes, operands, and what is fused behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import Read, Triple
from numus.shapes import Shape, size_of

WORTH_A_THREAD = 1 << 20  # multiplications that take longer than waking a thread


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution over three axes of space, those that it lacks of extent 1."""

    batch: int
    groups: int
    channels: int  # of a group
    outputs: int
    space: Shape
    taps: Shape
    extents: Shape
    stride: Shape
    dilation: Shape
    gap: Shape
    low: Shape

    @staticmethod
    def of(product: Value) -> Geometry | None:
        x, w = product.inputs
        groups, windows, _ = product.params
        lack = 3 - len(windows)
        if lack not in (0, 1, 2) or 0 in (*x.shape, *w.shape, *product.shape):
            return None
        ones = (1,) * lack
        stride, dilation, gap, low = zip(*windows, strict=True)
        return Geometry(
            x.shape[0],
            groups,
            w.shape[1],
            w.shape[0] // groups,
            ones + x.shape[2:],
            ones + w.shape[2:],
            ones + product.shape[2:],
            ones + stride,
            ones + dilation,
            ones + gap,
            (0,) * lack + low,
        )

    @property
    def work(self) -> int:
        """Multiplications, margins included; what falls between gaps is passed over."""
        results = self.batch * self.groups * self.outputs * size_of(self.extents)
        return results * self.channels * size_of(self.taps) // size_of(self.gap)

    @property
    def depth(self) -> float:
        """Products that a result is the sum of, on average."""
        return self.channels * size_of(self.taps) / size_of(self.gap)

    @property
    def counts(self) -> Shape:
        """Results of one phase, along each axis."""
        return tuple(-(-n // gap) for n, gap in zip(self.extents, self.gap, strict=True))

    def folded(self) -> Geometry:
        """The same with images as the first axis of space, which windows do not cross."""
        space, extents = (self.batch, *self.space[1:]), (self.batch, *self.extents[1:])
        return replace(self, batch=1, space=space, extents=extents)

    def reach(self, axis: int) -> tuple[int, int, int]:
        """How far from the place of a result its taps lie: at least, at most; and how many taps
        the results of one phase have, at most.
        """
        gap = self.gap[axis]
        found: list[int] = []
        most = 0
        for turn in range(min(gap, self.extents[axis])):
            at = [
                turn * self.stride[axis] + k * self.dilation[axis] - self.low[axis]
                for k in range(self.taps[axis])
            ]
            fits = [a // gap for a in at if a % gap == 0]
            found += fits
            most = max(most, len(fits))
        return (min(found), max(found), most) if found else (0, 0, 0)


def is_folded(product: Value) -> bool:
    """Whether there is an axis of space to spare, for images."""
    return len(product.shape) < 5


class Numbers:
    """Numbers of a launch. Those up to `fixed` shape the code: it is simpler for 1, and loads can
    be vectors where steps are known.
    """

    def __init__(self, e: Emitter) -> None:
        self.e = e

    def __call__(self, values: Sequence[int], fixed: int = 1) -> Triple:
        a, b, c = (const(n) if 0 < n <= fixed else self.e.scalar_arg(n) for n in values)
        return a, b, c


def operands(
    e: Emitter, product: Value, g: Geometry, channels: Expr, outputs: Expr, folded: bool = False
) -> tuple[Read, Read]:
    """How elements of the two operands are read."""
    x, w = product.inputs
    lack = 5 - len(product.shape)

    def joined(group: Expr, size: Expr, i: Expr) -> Expr:
        return ir.add(ir.mul(group, size), i) if g.groups > 1 else i

    def data(n: Expr, group: Expr, c: Expr, *space: Expr) -> Expr:
        value: Expr = e.value(
            x, (space[0] if folded else n, joined(group, channels, c), *space[lack:])
        )
        return value

    def weights(group: Expr, o: Expr, c: Expr, *taps: Expr) -> Expr:
        value: Expr = e.value(w, (joined(group, outputs, o), c, *taps[lack:]))
        return value

    return data, weights


def epilogue(e: Emitter, group: FusionGroup, index: Index, value: Any) -> list[Stmt]:
    """What is stored for one element of the product: itself, and what is fused behind it."""
    product = group.members[0]
    for i, n in zip(index, product.shape, strict=True):
        e.extents.setdefault(i, e.dim(n))
    point = [i for i, n in zip(index, product.shape, strict=True) if n != 1]
    result = value.cast(product.dtype)
    e.bindings[product] = lambda _: result
    out: list[Stmt] = []
    for v in group.members:
        if v in group.stored:
            at = index_of(v.shape, point)
            out += e.store(v, at, e.value(v, at))
    return out
