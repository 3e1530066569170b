"""CPU GEMM of bytes: integer dot products (VNNI, pmaddubsw, usdot), scaled group by group.

The right operand is a matrix of codes in unsigned bytes, four to a word, whose rows have a scale
and an offset for each group of words; the left one integers in planes of signed bytes, in panels of
a few rows. A task unpacks some rows of codes at a time into a panel with a row in each lane, which
stays in L2 while all panels of the left operand pass by: weights are never in memory as floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.target import Target

ZERO = const(0)
UNROLL_WORDS = 8


@dataclass(frozen=True)
class ByteTile:
    """What a register tile computes: `rows` of the left operand by a vector of columns."""

    rows: int
    planes: int
    columns: int
    group_words: int  # 0: all of a row
    small: bool  # codes are below 128


def tile_rows(target: Target, planes: int) -> int:
    """Integer sums for each plane and a float sum, of as many rows as registers hold."""
    return max(1, (target.vector_registers - 6) // (planes + 1))


@dataclass(frozen=True)
class ByteTuning:
    """Measured on 2-core x86-64 machines: Skylake without VNNI, Cascade Lake with it.

    Vector instructions of one `dot4`, of codes below 128 and of others; with an instruction for it,
    loads of activations take half as long again.
    """

    dot_ops: Mapping[str, tuple[float, float]] = field(
        default_factory=lambda: {
            "vnni": (1.5, 1.5),
            "usdot": (1.5, 1.5),
            "sdot": (1.5, 3.0),
            "pmadd": (3.0, 7.0),
            "": (16.0, 16.0),
        }
    )
    fma_ops: float = 4.0  # multiply-adds of float32 that a `dot4` stands for
    unpack_rows: int = 80  # of A, whose float GEMM takes as long as storing B as float32


TUNING = ByteTuning()


def is_faster_as_floats(target: Target, m: int, planes: int, group_words: int, small: bool) -> bool:
    """Unpacking B to float32 and a float GEMM of m rows take less time than products of bytes."""
    dot = TUNING.dot_ops[target.byte_dot][0 if small else 1]
    size = group_words or 4 * UNROLL_WORDS
    ops = planes * (dot * size + 1) + planes + 1  # sums of a plane are widened, joined and scaled
    excess: float = ops / (TUNING.fma_ops * size) - 1
    return m * excess > TUNING.unpack_rows


@dataclass(frozen=True)
class ByteOperands:
    """Elements of the operands, and how codes are unpacked."""

    x: Callable[[Expr, Expr, int, int], Expr]  # panel of rows, word, plane, row of it: uint32
    x_sum: Callable[[Expr, Expr, int], Expr]  # panel, group, row of it: float32
    # (row, store a word, store scale and offset): statements that unpack a row in each lane
    unpack: Callable[[Expr, StoreWord, StoreScale], list[Stmt]]
    store: Callable[[Expr, Expr, Expr, Expr], list[Stmt]]  # row, column, value, mask


StoreWord = Callable[[Expr, Expr], Stmt]  # number of the word, value
StoreScale = Callable[[Expr, Expr, Expr], list[Stmt]]  # group, scale, offset
Lanes = Callable[[list[Stmt]], Stmt]


@dataclass(frozen=True)
class ByteSizes:
    """Sizes that a launch passes."""

    m: Expr
    n: Expr
    words: Expr  # of a row
    groups: Expr


def columns_of_task(
    tile: ByteTile, o: ByteOperands, span: tuple[Expr, Expr], sizes: ByteSizes
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch of a range of columns, a multiple of the tile's."""
    width = tile.columns
    codes = ir.Buffer("codes", dt.uint32, "scratch", sizes.words * width)
    scales = ir.Buffer("scales", dt.float32, "scratch", sizes.groups * width)
    offsets = ir.Buffer("offsets", dt.float32, "scratch", sizes.groups * width)
    first, j, t = ir.var("first"), ir.var("j"), ir.var("panel")

    def store_word(word: Expr, value: Expr) -> Stmt:
        return ir.Store(codes, word * width + j, value)

    def store_scale(group: Expr, scale: Expr, offset: Expr) -> list[Stmt]:
        at = group * width + j
        return [ir.Store(scales, at, scale), ir.Store(offsets, at, offset)]

    row = ir.minimum(first + j, sizes.n - 1)  # those past the end repeat the last one
    packed = o.unpack(row, store_word, store_scale)
    body: list[Stmt] = [ir.For(j, ZERO, const(width), "lanes", packed, width=width)]
    tiles = _tile(tile, o, (codes, scales, offsets), sizes, t, first)
    panels = (sizes.m + (tile.rows - 1)) // tile.rows
    body.append(ir.For(t, ZERO, panels, "serial", [tiles]))
    loop = ir.For(first, *span, "serial", body, step=const(width))
    return [loop], [codes, scales, offsets]


def _tile(
    tile: ByteTile,
    o: ByteOperands,
    panel: tuple[ir.Buffer, ir.Buffer, ir.Buffer],
    sizes: ByteSizes,
    t: Expr,
    first: Expr,
) -> Stmt:
    codes, scales, offsets = panel
    width, rows, planes = tile.columns, range(tile.rows), range(tile.planes)
    lane, group, word = ir.var("lane"), ir.var("group"), ir.var("word")
    largest = 127 if tile.small else 255
    sums = [ir.Register(f"sum{i}", dt.float32, lanes=True) for i in rows]
    dots = [[ir.Register(f"dot{i}_{p}", dt.int32, lanes=True) for p in planes] for i in rows]

    def step(word: Expr, u: int) -> list[Stmt]:
        name = ir.var(f"code{u}", dt.uint32)
        out: list[Stmt] = [ir.Let(name, ir.load(codes, (word + u) * width + lane))]
        for i in rows:
            for p in planes:
                new = ir.dot4(ir.read(dots[i][p]), name, o.x(t, word + u, p, i), largest)
                out.append(ir.Set(dots[i][p], new))
        return out

    size = const(tile.group_words) if tile.group_words else sizes.words
    start = group * size
    count = min(tile.group_words or UNROLL_WORDS, UNROLL_WORDS)
    unrolled = [s for u in range(count) for s in step(word, u)]
    body: list[Stmt] = [ir.Set(d, const(0, dt.int32)) for row in dots for d in row]
    body.append(ir.For(word, start, start + size, "serial", unrolled, step=const(count)))
    scale, offset = ir.var("scale", dt.float32), ir.var("offset", dt.float32)
    at = group * width + lane
    body += [ir.Let(scale, ir.load(scales, at)), ir.Let(offset, ir.load(offsets, at))]
    for i in rows:
        total = ir.read(dots[i][0]).cast(dt.float32)
        for p in planes[1:]:
            total = ir.fma(total, 256.0, ir.read(dots[i][p]).cast(dt.float32))
        new = ir.fma(total, scale, ir.read(sums[i]))
        body.append(ir.Set(sums[i], ir.fma(offset, -o.x_sum(t, group, i), new)))
    out: list[Stmt] = [ir.Set(s, const(0.0, dt.float32)) for s in sums]
    out.append(ir.For(group, ZERO, sizes.groups, "serial", body))
    for i in rows:
        m, n = t * tile.rows + i, first + lane
        out.append(ir.If(m < sizes.m, o.store(m, n, ir.read(sums[i]), n < sizes.n)))
    return ir.For(lane, ZERO, const(width), "lanes", out, width=width)
