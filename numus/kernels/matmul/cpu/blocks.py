"""Products with GGUF's blocks on CPUs, read where they lie (as llama.cpp's `vec_dot` kernels).

Scales of a row, or of several short ones, are decoded into a few cache lines of scratch, a block
in each lane; then, a row at a time, lanes go along the words of codes, and dot products of bytes
(VNNI, usdot) with planes of the activations are scaled and added up. Offsets of groups meet the
sums of the activations' groups while scales are decoded. Each byte of a weight is read once,
whatever the number of vectors.
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
    """Scales of the groups of a row in scratch, in the order in which codes are read; or of some
    rows, as if they were a long one."""

    layout: BlockLayout
    blocks: Expr  # of all rows
    buffer: ir.Buffer

    @staticmethod
    def of(layout: BlockLayout, blocks: Expr, name: str = "scales") -> RowScales:
        size = blocks * layout.groups
        return RowScales(layout, blocks, ir.Buffer(name, dt.float32, "scratch", size))

    def index(self, group: int, block: Expr) -> Expr:
        f, q = divmod(group, self.layout.spans)
        return self.blocks * (f * self.layout.spans) + (block * self.layout.spans + q)

    def at(self, f: int, w: Expr, block: Expr = ZERO) -> Expr:
        """The scale of field `f` of a low word, counted from a block."""
        field = 0 if self.layout.joined else f
        first = self.blocks * (field * self.layout.spans) + block * self.layout.spans
        return ir.load(self.buffer, first + w // self.layout.span)


def rows_of_task(
    layout: BlockLayout,
    shape: tuple[int, int],
    o: BlockOperands,
    span: tuple[Expr, Expr],
    blocks: Expr,
    together: int = 1,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch of a range of rows; `shape`: planes and vectors; `together`: rows
    whose scales are decoded at once, which lie one after the other if there are several.
    """
    planes, vectors = shape
    first, row, block, w = ir.var("first_row"), ir.var("row"), ir.var("block"), ir.var("word")
    every = blocks * together
    scales = RowScales.of(layout, every)
    offsets = ir.Buffer("offsets", dt.float32, "scratch", every * vectors)
    repeated = ir.Buffer("x_sums", dt.float32, "scratch", every * (vectors * layout.groups))
    # a sum for each field: one alone would wait for itself
    fields = 1 if layout.joined else max(1, min(layout.fields, MAX_SUMS // vectors))
    sums = [
        [ir.Register(f"sum{v}_{f}", dt.float32, lanes=True) for f in range(fields)]
        for v in range(vectors)
    ]
    offset = [ir.Register(f"offset{v}", dt.float32, lanes=True) for v in range(vectors)]

    decoded, offset_step = layout.scales(lambda byte: o.word(first, byte), block)
    decode: list[Stmt] = [
        ir.Store(scales.buffer, scales.index(g, block), scale)
        for g, (scale, _) in enumerate(decoded)
    ]
    copies, copy, repeat = list[Stmt](), ir.var("copy"), ir.var("repeat")
    for v in range(vectors):
        total = const(0.0, dt.float32)
        for g, (_, low) in enumerate(decoded):
            at = every * (v * layout.groups + g)
            to = at + (repeat * blocks + copy)
            copies.append(ir.Store(repeated, to, o.x_sum(v, g, copy)))
            own = ir.load(repeated, at + block) if together > 1 else o.x_sum(v, g, block)
            total = ir.fma(low, own, total)
        decode.append(ir.Store(offsets, every * v + block, total * offset_step))
    prologue: list[Stmt] = []
    if together > 1:
        inner = ir.For(copy, ZERO, blocks, "serial", copies)
        prologue = [ir.For(repeat, ZERO, const(together), "serial", [inner])]

    ahead = o.word(row + PREFETCH_ROWS, w * layout.size // layout.words)
    begin = (row - first) * blocks
    step: list[Stmt] = [ir.Prefetch(ahead.attr, ahead.args[0], write=False)]
    codes = layout.codes(lambda byte: o.word(row, byte), w)
    for v, registers in enumerate(sums):
        if layout.joined:
            dot = _dot(codes, v, planes, o, w)
            scale = scales.at(0, w, begin)
            step.append(ir.Set(registers[0], ir.fma(dot, scale, ir.read(registers[0]))))
            continue
        for f, code in enumerate(codes):
            register = registers[f % fields]
            dot = _dot([code], v, planes, o, w, f)
            scale = scales.at(f, w, begin)
            step.append(ir.Set(register, ir.fma(dot, scale, ir.read(register))))
    cleared = [*offset, *(r for own in sums for r in own)]
    body: list[Stmt] = [ir.Set(r, const(0.0, dt.float32)) for r in cleared]
    subtract: list[Stmt] = [
        ir.Set(r, ir.read(r) - ir.load(offsets, every * v + begin + block))
        for v, r in enumerate(offset)
    ]
    body.append(ir.For(block, ZERO, blocks, "lanes", subtract))
    body.append(ir.For(w, ZERO, blocks * layout.words, "lanes", step))
    for v in range(vectors):
        total = ir.lanes_reduce("add", offset[v])
        for register in sums[v]:
            total = total + ir.lanes_reduce("add", register)
        name = ir.var(f"total{v}", dt.float32)
        body.append(ir.Let(name, total))
        body += o.store(v, row, name)
    start, stop = span
    end = ir.minimum(first + together, stop)
    some: list[Stmt] = [
        ir.For(block, ZERO, (end - first) * blocks, "lanes", decode),
        ir.For(row, first, end, "serial", body),
    ]
    loop = ir.For(first, start, stop, "serial", some, step=const(together))
    scratch = [scales.buffer, offsets, *([repeated] if together > 1 else [])]
    return [*prologue, loop], scratch


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
