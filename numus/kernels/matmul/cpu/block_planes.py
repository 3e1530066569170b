"""Activations as products with GGUF's blocks read them: planes of bytes, sums of groups, the unit.

Products of one vector take as long as a few such passes over it: all of it is one kernel. Words are
in the order of the codes that they meet, those of a field side by side.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.blocks import BlockPlanes

ZERO = const(0)
LEAST = 1e-30  # largest value of a row that is not taken for zero

Store = Callable[[Expr, Expr], list[Stmt]]  # word of the row, value


def planes_of_row(
    planes: BlockPlanes, x: Callable[[Expr], Expr], store: Store, blocks: Expr, width: int
) -> list[Stmt]:
    """Statements of a row of whole blocks; `width`: lanes of a vector."""
    layout, i, s = planes.layout, ir.var("i"), ir.var("span")
    peak, top = ir.Register("peak", dt.float32, lanes=True), ir.var("top", dt.float32)
    unit, inverse = ir.var("unit", dt.float32), ir.var("inverse", dt.float32)
    limit = float(127 << (8 * (planes.planes - 1)))
    largest = ir.maximum(ir.read(peak), ir.unary("abs", x(i)))
    nan_or_one = ir.select(ir.isnan(top), top, const(1.0, dt.float32))
    spans = blocks * layout.spans
    row = _Row(planes, x, store, blocks, inverse)
    return [
        ir.Set(peak, const(0.0, dt.float32)),
        ir.For(i, ZERO, blocks * layout.values, "lanes", [ir.Set(peak, largest)], width=width),
        ir.Let(top, ir.lanes_reduce("max", peak)),
        ir.Let(unit, ir.select(top > LEAST, top / limit, nan_or_one)),
        ir.Let(inverse, const(1.0, dt.float32) / unit),
        ir.For(s, ZERO, spans, "serial", row.span(s)),
        *store(planes.unit_word(blocks), unit.bitcast(dt.uint32)),
    ]


class _Row:
    def __init__(
        self,
        planes: BlockPlanes,
        x: Callable[[Expr], Expr],
        store: Store,
        blocks: Expr,
        inverse: Expr,
    ) -> None:
        self.planes, self.x, self.store = planes, x, store
        self.blocks, self.inverse = blocks, inverse

    def span(self, s: Expr) -> list[Stmt]:
        """The low words that share scales, with a word in each lane."""
        layout, out = self.planes.layout, list[Stmt]()
        sums = [
            ir.Register(f"total{f}", dt.int32, lanes=True)
            for f in range(1 if layout.joined else layout.fields)
        ]
        out += [ir.Set(r, const(0, dt.int32)) for r in sums]
        lane, per_run = ir.var("lane"), layout.run // layout.span
        body: list[Stmt] = []
        for f in range(layout.fields):
            word = (s // per_run * layout.fields + f) * layout.run + s % per_run * layout.span
            whole = [self.whole((word + lane) * 4 + b) for b in range(4)]
            to = sums[f % len(sums)]
            total = (whole[0] + whole[1]) + (whole[2] + whole[3])
            body.append(ir.Set(to, ir.read(to) + total))
            for plane, value in enumerate(self.words(whole)):
                at = self.planes.word(self.blocks, plane, f, s * layout.span + lane)
                body += self.store(at, value)
        out.append(
            ir.For(lane, ZERO, const(layout.span), "lanes", body, width=layout.span),
        )
        block, q = s // layout.spans, s % layout.spans
        for f, register in enumerate(sums):
            name, again = ir.var(f"sum{f}", dt.int32), ir.var(f"again{f}")
            out.append(ir.Let(name, ir.lanes_reduce("add", register)))
            bits = name.cast(dt.float32).bitcast(dt.uint32)
            at = self.planes.sum_word(self.blocks, q + f * layout.spans, again)
            stop = const(self.planes.lanes)
            out.append(ir.For(again, block, stop, "serial", self.store(at, bits), step=self.blocks))
        return out

    def whole(self, at: Expr) -> Expr:
        return ir.unary("rint", self.x(at) * self.inverse).cast(dt.int32)

    def words(self, whole: list[Expr]) -> list[Expr]:
        """Digits -128 … 127 to the base 256 of four integers, the most significant first."""
        found: list[Expr] = []
        for plane in range(self.planes.planes):
            if plane:  # what is left of the integers, less the digit that was taken
                whole = [(v + 128) >> 8 for v in whole]
            own = [v.bitcast(dt.uint32) & 255 for v in whole]
            found.append(own[0] | (own[1] << 8) | (own[2] << 16) | (own[3] << 24))
        return found[::-1]
