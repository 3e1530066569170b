"""Reduction over channels and taps of direct convolutions, as a table of offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import ONE, ZERO, Triple, delinearize, floordiv


@dataclass(slots=True, kw_only=True)
class TapSizes:
    """Launch arguments. Triples are (z, y, x); phases are those of lhs_dilation."""

    in_channels: Expr  # of a group
    out_channels: Expr
    in_size: Triple
    out_size: Triple
    taps: Triple
    stride: Triple
    dilation: Triple
    lhs_dilation: Triple
    padding_low: Triple
    tap_origin: Triple  # the first input element of a block, from its origin
    k_size: Expr  # in_channels × taps of a phase, at most
    block: Triple  # outputs of one phase
    num_blocks: Expr  # of all images
    blocks_per_task: Expr
    block_tasks: Expr
    panels_per_task: Expr  # panels of output channels
    panel_tasks: Expr


def _displacement(s: TapSizes, at: Triple, taps: Triple) -> tuple[list[Expr], Expr]:
    """Displacement of a tap from the block's origin; true where it hits an input element."""
    raw = [
        r * t + k * d - low
        for r, t, k, d, low in zip(at, s.stride, taps, s.dilation, s.padding_low, strict=True)
    ]
    hits = const(True, bool_)
    for i, d in zip(raw, s.lhs_dilation, strict=True):
        if d is not ONE:
            hits = hits & (i % d).eq(ZERO)
    displacement = [
        floordiv(i, d) - o for i, d, o in zip(raw, s.lhs_dilation, s.tap_origin, strict=True)
    ]
    return displacement, hits


def for_each_tap(
    s: TapSizes, phase: Expr, entry: ir.Register, body: Callable[..., list[Stmt]]
) -> list[Stmt]:
    """`body(channel, taps, displacement, index)` for each tap of a phase, in order."""
    c = ir.var("tap_c")
    taps: Triple = (ir.var("tap_z"), ir.var("tap_y"), ir.var("tap_x"))
    displacement, hits = _displacement(s, delinearize(phase, s.lhs_dilation), taps)
    index = ir.var("entry_at")
    inner: list[Stmt] = [
        ir.Let(index, ir.read(entry)),
        *body(c, taps, displacement, index),
        ir.Set(entry, ir.read(entry) + 1),
    ]
    if hits.op != "const":
        inner = [ir.If(hits, inner)]
    for k, n in zip(reversed(taps), reversed(s.taps), strict=True):
        inner = [ir.For(k, ZERO, n, "serial", inner)]
    return [ir.Set(entry, ZERO), ir.For(c, ZERO, s.in_channels, "serial", inner)]
