"""What convolutions have in common whose sums go over channels and taps, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import ONE, ZERO, Triple, digits, quotient


@dataclass(slots=True, kw_only=True)
class Taps:
    """The numbers of a launch, as expressions. Of triples the last is the innermost axis."""

    channels: Expr  # of a group
    outputs: Expr
    space: Triple  # of the data
    extents: Triple  # of the result
    taps: Triple
    stride: Triple
    dilation: Triple
    gap: Triple
    low: Triple
    nearest: Triple  # the first element that any tap reaches, from a block's origin
    entries: Expr  # taps of a phase, at most, times channels
    block: Triple  # results of one phase that a block has
    units: Expr  # blocks of all images
    task_units: Expr
    unit_tasks: Expr
    task_panels: Expr  # panels of outputs in a task
    output_tasks: Expr


def _positions(s: Taps, turn: Triple, taps: Triple) -> tuple[list[Expr], Expr]:
    """How far from the place of a result each of its taps lies; whether it meets an element."""
    at = [
        ir.sub(ir.add(ir.mul(r, t), ir.mul(k, d)), low)
        for r, t, k, d, low in zip(turn, s.stride, taps, s.dilation, s.low, strict=True)
    ]
    fits = const(True, bool_)
    for a, gap in zip(at, s.gap, strict=True):
        if gap is not ONE:
            fits = fits & ir.irem(a, gap).eq(ZERO)
    displacement = [
        ir.sub(quotient(a, gap), near) for a, gap, near in zip(at, s.gap, s.nearest, strict=True)
    ]
    return displacement, fits


def for_each_tap(
    s: Taps, phase: Expr, entry: ir.Register, body: Callable[..., list[Stmt]]
) -> list[Stmt]:
    """`body(channel, taps, displacement, entry)` for each tap that a phase has, in order."""
    c = ir.var("tap_c")
    taps: Triple = (ir.var("tap_z"), ir.var("tap_y"), ir.var("tap_x"))
    displacement, fits = _positions(s, digits(phase, s.gap), taps)
    here = ir.var("entry_at")
    inner: list[Stmt] = [
        ir.Let(here, ir.read(entry)),
        *body(c, taps, displacement, here),
        ir.Set(entry, ir.add(ir.read(entry), ONE)),
    ]
    if fits.op != "const":
        inner = [ir.If(fits, inner)]
    for k, n in zip(reversed(taps), reversed(s.taps), strict=True):
        inner = [ir.For(k, ZERO, n, "serial", inner)]
    return [ir.Set(entry, ZERO), ir.For(c, ZERO, s.channels, "serial", inner)]
