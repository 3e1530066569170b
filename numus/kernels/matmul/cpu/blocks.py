"""Products with GGUF's blocks on CPUs, read where they lie (as llama.cpp's `vec_dot` kernels).

A row at a time: its scales are decoded into a few cache lines of scratch, a block in each lane;
then lanes go along the words of codes, and dot products of bytes (VNNI, usdot) with planes of the
activations are scaled and added up. Offsets of groups meet the sums of the activations' groups
while scales are decoded. Each byte of a weight is read once, whatever the number of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.blocks import BlockLayout

ZERO = const(0)
MAX_SUMS = 8
PREFETCH_ROWS = 1  # ahead, so that headers of blocks are there when a row begins


@dataclass(frozen=True)
class BlockOperands:
    """Elements of the operands of a product with a matrix of blocks."""

    word: Callable[[Expr, Expr], Expr]  # row, byte of it: uint32
    x: Callable[[int, int, int, Expr], Expr]  # vector, plane, field, low word: uint32
    x_sum: Callable[[int, int, Expr], Expr]  # vector, group of a block, block
    store: Callable[[int, Expr, Expr], list[Stmt]]  # vector, row, value


@dataclass(frozen=True)
class RowScales:
    """Scales of the groups of a row in scratch, in the order in which codes are read."""

    layout: BlockLayout
    blocks: Expr
    buffer: ir.Buffer

    @staticmethod
    def of(layout: BlockLayout, blocks: Expr, name: str = "scales") -> RowScales:
        size = blocks * layout.groups
        return RowScales(layout, blocks, ir.Buffer(name, dt.float32, "scratch", size))

    def index(self, group: int, block: Expr) -> Expr:
        f, q = divmod(group, self.layout.spans)
        return self.blocks * (f * self.layout.spans) + (block * self.layout.spans + q)

    def at(self, f: int, w: Expr) -> Expr:
        """The scale of field `f` of a low word."""
        field = 0 if self.layout.joined else f
        first = self.blocks * (field * self.layout.spans)
        return ir.load(self.buffer, first + w // self.layout.span)


def rows_of_task(
    layout: BlockLayout,
    shape: tuple[int, int],
    o: BlockOperands,
    span: tuple[Expr, Expr],
    blocks: Expr,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch of a range of rows; `shape`: planes and vectors."""
    planes, vectors = shape
    row, block, w = ir.var("row"), ir.var("block"), ir.var("word")
    scales = RowScales.of(layout, blocks)
    # a sum for each field: one alone would wait for itself
    fields = 1 if layout.joined else max(1, min(layout.fields, MAX_SUMS // vectors))
    sums = [
        [ir.Register(f"sum{v}_{f}", dt.float32, lanes=True) for f in range(fields)]
        for v in range(vectors)
    ]
    offsets = [ir.Register(f"offset{v}", dt.float32, lanes=True) for v in range(vectors)]

    def load(byte: Expr) -> Expr:
        return o.word(row, byte)

    decoded, offset_step = layout.scales(load, block)
    decode: list[Stmt] = [
        ir.Store(scales.buffer, scales.index(g, block), scale)
        for g, (scale, _) in enumerate(decoded)
    ]
    for v, register in enumerate(offsets):
        total = const(0.0, dt.float32)
        for g, (_, offset) in enumerate(decoded):
            total = ir.fma(offset, o.x_sum(v, g, block), total)
        decode.append(ir.Set(register, ir.fma(-total, offset_step, ir.read(register))))
    ahead = o.word(row + PREFETCH_ROWS, w * layout.size // layout.words)
    step: list[Stmt] = [ir.Prefetch(ahead.attr, ahead.args[0], write=False)]
    codes = layout.codes(load, w)
    for v, own in enumerate(sums):
        if layout.joined:
            dot = _dot(codes, v, planes, o, w)
            step.append(ir.Set(own[0], ir.fma(dot, scales.at(0, w), ir.read(own[0]))))
            continue
        for f, code in enumerate(codes):
            register = own[f % fields]
            dot = _dot([code], v, planes, o, w, f)
            step.append(ir.Set(register, ir.fma(dot, scales.at(f, w), ir.read(register))))
    registers = [*offsets, *(r for own in sums for r in own)]
    body: list[Stmt] = [ir.Set(r, const(0.0, dt.float32)) for r in registers]
    body.append(ir.For(block, ZERO, blocks, "lanes", decode))
    body.append(ir.For(w, ZERO, blocks * layout.words, "lanes", step))
    for v in range(vectors):
        total = ir.lanes_reduce("add", offsets[v])
        for register in sums[v]:
            total = total + ir.lanes_reduce("add", register)
        name = ir.var(f"total{v}", dt.float32)
        body.append(ir.Let(name, total))
        body += o.store(v, row, name)
    return [ir.For(row, *span, "serial", body)], [scales.buffer]


def _dot(codes: list[Expr], v: int, planes: int, o: BlockOperands, w: Expr, first: int = 0) -> Expr:
    """Words of codes, those of fields from `first` on, times activations: float32."""
    total: Expr | None = None
    for plane in range(planes):
        dot = const(0, dt.int32)
        for f, code in enumerate(codes, first):
            dot = ir.dot4(dot, code, o.x(v, plane, f, w))
        part = dot.cast(dt.float32)
        total = part if total is None else ir.fma(total, 256.0, part)
    assert total is not None
    return total
