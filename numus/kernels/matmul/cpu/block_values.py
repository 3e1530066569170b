"""Unpacking GGUF's blocks to floats: products with many rows read the values often.

The scales of a row are decoded into a few cache lines of scratch, a block in each lane. Then lanes
go along consecutive values, whose codes are consecutive bytes of the block in one of its fields.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.blocks import BlockLayout
from numus.kernels.matmul.cpu.blocks import GroupScales, whole_vectors

ZERO = const(0)
MAX_WIDTH = 16  # values of a run of low words, the shortest of which has four

At = Callable[[Expr], Expr]  # by the byte of a row
Store = Callable[[Expr, Expr], list[Stmt]]  # column, value


def values_of_row(
    layout: BlockLayout, byte: At, word: At, store: Store, blocks: Expr, width: int
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements that store the values of a row, and their scratch. `width`: lanes of a vector."""
    chunk, lane, block = ir.var("chunk"), ir.var("lane"), ir.var("block")
    lanes = whole_vectors(blocks, width)
    scales = GroupScales.of(layout, lanes, width)
    lows = ir.Buffer("lows", dt.float32, "scratch", lanes * layout.groups)
    decoded, step = layout.scales(word, chunk + lane)
    decode: list[Stmt] = []
    for g, (scale, low) in enumerate(decoded):
        at = chunk * layout.groups + (lane + g * width)
        decode += [ir.Store(scales.buffer, at, scale), ir.Store(lows, at, low * step)]
    left = ir.minimum(blocks - chunk, const(width))
    vector = ir.For(lane, ZERO, left, "lanes", decode, width=width)
    by_chunks = ir.For(chunk, ZERO, blocks, "serial", [vector], step=const(width))

    width, body = min(width, MAX_WIDTH), list[Stmt]()
    first = block * layout.size
    for start in range(0, layout.words, width // 4):
        codes = layout.value_codes(
            lambda at: byte(first + at).cast(dt.uint32), lambda at: word(first + at), start, lane
        )
        run, within = divmod(start, layout.run)
        group = start // layout.span % layout.spans
        for f, code in enumerate(codes):
            field = 0 if layout.joined else f
            index = scales.index(const(group + field * layout.spans), block)
            scale, low = ir.load(scales.buffer, index), ir.load(lows, index)
            column = 4 * ((run * layout.fields + f) * layout.run + within)
            value = ir.fma(code.cast(dt.float32), scale, -low)
            body += store(block * layout.values + (lane + column), value)
    values = ir.For(lane, ZERO, const(width), "lanes", body, width=width)
    return [by_chunks, ir.For(block, ZERO, blocks, "serial", [values])], [scales.buffer, lows]
