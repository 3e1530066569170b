"""Products with GGUF's blocks on CPUs, read where they lie (as llama.cpp's `vec_dot` kernels).

Scales of some rows are decoded into a few cache lines of scratch, a block in each lane, and offsets
of their groups meet the sums of the activations' groups. Then lanes go along the words of codes of
several rows side by side, so that activations are loaded once for all of them: dot products of
bytes with planes of the activations are scaled and added up. Each byte of a weight is read once,
whatever the number of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.blocks import BlockLayout
from numus.kernels.matmul.packed import dot_of_planes

ZERO = const(0)
LINE_BYTES = 64  # of a cache line
DECODED_BLOCKS = 64  # at most, of several rows

Sums = list[list[list[ir.Register]]]  # by row and vector


@dataclass(frozen=True)
class BlockOperands:
    """Elements of the operands of a product with a matrix of blocks."""

    word: Callable[[Expr, Expr], Expr]  # row, byte of it: uint32
    x: Callable[[int, int, int, Expr], Expr]  # vector, plane, field, low word: uint32
    x_sum: Callable[[int, int, Expr], Expr]  # vector, group of a block, block: float32
    store: Callable[[int, Expr, Expr], list[Stmt]]  # vector, row, value


@dataclass(frozen=True)
class BlockRows:
    """How many rows of blocks a task takes at once.

    `decoded` of them have their scales decoded at once, a block in each of `width` lanes: more than
    one only of rows that lie one after the other. `rows` of these are read side by side.
    """

    planes: int
    vectors: int
    rows: int
    decoded: int
    width: int


@dataclass(frozen=True)
class BlockSizes:
    """Sizes that a launch passes: the task's rows, all rows, and blocks of a row."""

    start: Expr
    stop: Expr
    rows: Expr
    blocks: Expr


def side_by_side(layout: BlockLayout) -> int:
    """Rows times vectors, whose sums do not wait for each other: those of short blocks have a few
    operations for each word, and share the addresses."""
    return 4 if layout.joined else 2


def decoded_rows(blocks: int, rows: int, width: int) -> int:
    """How many rows have their scales decoded at once, a multiple of `rows`: as leave the fewest
    lanes idle."""
    most = max(rows, DECODED_BLOCKS // blocks)
    return min(range(rows, most + 1, rows), key=lambda n: (-n * blocks % width) / n)


def whole_vectors(blocks: Any, width: int) -> Any:
    """A number of blocks, rounded up to whole vectors."""
    return (blocks + (width - 1)) // width * width


@dataclass(frozen=True)
class GroupScales:
    """Scales of the groups of some rows in scratch: a vector of blocks for one group after the
    other, and on to the next blocks."""

    layout: BlockLayout
    width: int
    buffer: ir.Buffer

    @staticmethod
    def of(layout: BlockLayout, blocks: Expr, width: int) -> GroupScales:
        size = blocks * layout.groups
        return GroupScales(layout, width, ir.Buffer("scales", dt.float32, "scratch", size))

    def index(self, group: Expr, block: Expr) -> Expr:
        """Where the scale of a group of a block is."""
        lane = block & (self.width - 1)
        return (block - lane) * self.layout.groups + lane + group * self.width


def rows_of_task(
    layout: BlockLayout, shape: BlockRows, o: BlockOperands, sizes: BlockSizes
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch of a range of rows."""
    first, row = ir.var("first_row"), ir.var("row")
    chunk, lane = ir.var("chunk"), ir.var("lane")
    block, blocks = chunk + lane, sizes.blocks
    lanes = whole_vectors(blocks * shape.decoded, shape.width)
    scales = GroupScales.of(layout, lanes, shape.width)
    offsets = ir.Buffer("offsets", dt.float32, "scratch", lanes * shape.vectors)
    decoded, step = layout.scales(lambda byte: o.word(first, byte), block)
    decode: list[Stmt] = [
        ir.Store(scales.buffer, chunk * layout.groups + (lane + g * shape.width), scale)
        for g, (scale, _) in enumerate(decoded)
    ]
    for v in range(shape.vectors):
        total = const(0.0, dt.float32)
        for g, (_, low) in enumerate(decoded):
            total = ir.fma(low, o.x_sum(v, g, block), total)
        decode.append(ir.Store(offsets, lanes * v + block, total * step))

    end = ir.minimum(first + shape.decoded, sizes.stop)
    rows = _Rows(layout, shape, o, scales, offsets, lanes)
    # as many as fill vectors, if there are rows behind these
    count = ir.minimum(lanes, (sizes.rows - first) * blocks) if shape.decoded > 1 else blocks
    left = ir.minimum(count - chunk, const(shape.width))
    vector = ir.For(lane, ZERO, left, "lanes", decode, width=shape.width)
    some: list[Stmt] = [
        ir.For(chunk, ZERO, count, "serial", [vector], step=const(shape.width)),
        ir.For(
            row, first, end, "serial", rows.body(row, first, end, blocks), step=const(shape.rows)
        ),
    ]
    loop = ir.For(first, sizes.start, sizes.stop, "serial", some, step=const(shape.decoded))
    return [loop], [scales.buffer, offsets]


@dataclass(frozen=True)
class _Rows:
    """Rows side by side, whose scales are decoded."""

    layout: BlockLayout
    shape: BlockRows
    o: BlockOperands
    scales: GroupScales
    offsets: ir.Buffer
    lanes: Expr  # of the offsets of a vector

    @property
    def fields(self) -> int:
        """Of codes, that have scales of their own."""
        return 1 if self.layout.joined else self.layout.fields

    def sums(self, row: int, v: int) -> list[ir.Register]:
        at_once = side_by_side(self.layout) // (self.shape.rows * self.shape.vectors)
        apart = max(1, min(self.fields, at_once))
        return [ir.Register(f"sum{row}_{v}_{f}", dt.float32, lanes=True) for f in range(apart)]

    def body(self, row: Expr, first: Expr, end: Expr, blocks: Expr) -> list[Stmt]:
        """Those past the end repeat the last one, and are not stored."""
        block, rows = ir.var("block"), range(self.shape.rows)
        own = [ir.minimum(row + i, end - 1) if i else row for i in rows]
        begin = [(r - first) * blocks for r in own]
        sums = [[self.sums(i, v) for v in range(self.shape.vectors)] for i in rows]
        body: list[Stmt] = [ir.Set(r, const(0.0, dt.float32)) for s in sums for rs in s for r in rs]
        subtract: list[Stmt] = []
        for i in rows:
            for v, (register, *_) in enumerate(sums[i]):
                low = ir.load(self.offsets, self.lanes * v + (begin[i] + block))
                subtract.append(ir.Set(register, ir.read(register) - low))
        body.append(ir.For(block, ZERO, blocks, "lanes", subtract))
        body.append(
            (self.along_row if self.layout.joined else self.along_blocks)(own, begin, sums, blocks)
        )
        for i in rows:
            for v, registers in enumerate(sums[i]):
                total = ir.lanes_reduce("add", registers[0])
                for register in registers[1:]:
                    total = total + ir.lanes_reduce("add", register)
                found = ir.var(f"total{i}_{v}", dt.float32)
                body.append(ir.Let(found, total))
                stores = self.o.store(v, own[i], found)
                body += [ir.If(row + i < end, stores)] if i else stores
        return body

    def along_row(self, own: list[Expr], begin: list[Expr], sums: Sums, blocks: Expr) -> ir.For:
        """Lanes go along all words of a row: a vector of them is several blocks."""
        layout, w = self.layout, ir.var("word")
        step: list[Stmt] = []
        for i, row in enumerate(own):
            step.append(self.prefetch(row, w * layout.size // layout.words))
            codes = layout.codes(partial(self.o.word, row), w)
            scale = ir.load(self.scales.buffer, begin[i] + w // layout.span)
            for v, (register, *_) in enumerate(sums[i]):
                dot = self.dot(codes, v, w)
                step.append(ir.Set(register, ir.fma(dot, scale, ir.read(register))))
        return ir.For(w, ZERO, blocks * layout.words, "lanes", step)

    def along_blocks(self, own: list[Expr], begin: list[Expr], sums: Sums, blocks: Expr) -> ir.For:
        """Block by block, which is some vectors of words."""
        layout, lane, block = self.layout, ir.var("lane"), ir.var("block_of_row")
        width, step = self.shape.width, list[Stmt]()
        for row in own:
            for byte in range(0, layout.size, LINE_BYTES):
                step.append(self.prefetch(row, block * layout.size + byte))
        for start in range(0, layout.words, width):
            at = lane + start
            for i, row in enumerate(own):
                codes = layout.block_codes(self.in_block(row, block), at)
                group = at // layout.span % layout.spans
                for f, code in enumerate(codes):
                    index = self.scales.index(group + f * layout.spans, begin[i] + block)
                    scale = ir.load(self.scales.buffer, index)
                    for v, registers in enumerate(sums[i]):
                        dot = self.dot([code], v, block * layout.words + at, f)
                        to = registers[f % len(registers)]
                        step.append(ir.Set(to, ir.fma(dot, scale, ir.read(to))))
        lanes = ir.For(lane, ZERO, const(width), "lanes", step, width=width)
        return ir.For(block, ZERO, blocks, "serial", [lanes])

    def in_block(self, row: Expr, block: Expr) -> Callable[[Expr], Expr]:
        """Words by their byte in a block."""
        return lambda byte: self.o.word(row, block * self.layout.size + byte)

    def prefetch(self, row: Expr, byte: Expr) -> Stmt:
        """Of the next rows whose scales are decoded."""
        ahead = self.o.word(row + self.shape.decoded, byte)
        return ir.Prefetch(ahead.attr, ahead.args[0], write=False)

    def dot(self, codes: list[Expr], v: int, w: Expr, first: int = 0) -> Expr:
        """Words of codes, those of fields from `first` on, times activations: float32."""
        planes, fields = range(self.shape.planes), range(first, first + len(codes))
        xs = [[self.o.x(v, plane, f, w) for f in fields] for plane in planes]
        return dot_of_planes(codes, xs, self.layout.largest)
