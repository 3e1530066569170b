"""Transforms of two rows at once, where the last pass of one has lanes for half a vector.

The first pass runs along each row. Its results are interleaved in scratch memory, so that lanes of
the second one are the points of both rows.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Complex, mul
from numus.kernels.fft.prefetch import fetch_operands
from numus.kernels.fft.radices import is_in_registers
from numus.kernels.fft.stockham import ZERO, Block, FirstRoots, passes_of, register_butterfly

Read = Callable[[Expr, Expr], Complex]  # which row, position
Write = Callable[[Expr, Expr, Complex, Expr], list[Stmt]]  # which row, position, ..., mask


def fills_half(block: Block) -> bool:
    """There are two passes, in registers, and lanes of the last are half a vector."""
    if block.width > 1 or block.first_roots is None or len(block.radices) != 2:
        return False
    stride, radix = block.radices
    in_registers = is_in_registers(radix, block.largest_odd)
    return in_registers and block.vector > 2 and 2 * stride == block.vector


def row_pair(
    block: Block, first_roots: FirstRoots, read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The statements of a pair of rows, and their scratch. The row after each is prefetched."""
    first, last = passes_of(block.length, block.radices)
    half, count = block.radices
    parts = ("re", "im")
    size = block.size(2 * block.length)
    scratch = [ir.Buffer(f"{block.name}{x}", block.dtype, "scratch", size) for x in parts]
    r, group, lane = ir.var("pair"), ir.var("group0"), ir.var("q1")

    def position(j: Expr) -> Expr:
        return ir.add(group, ir.mul(block.size(count), j))

    def rotated(k: Expr, z: Complex) -> Complex:
        return mul(z, first_roots(group, k.attr))

    def interleave(k: Expr, z: Complex) -> list[Stmt]:
        place = ir.add(ir.mul(group, const(block.vector)), ir.mul(r, const(half)))
        return ir.stores(scratch, ir.add(place, k), z)

    def ahead(j: Expr) -> list[Stmt]:
        return fetch_operands(read(ir.add(r, const(1)), position(j))) if block.fetches else []

    def point(j: Expr) -> Complex:
        at = ir.add(ir.mul(j, const(block.vector)), lane)
        return ir.load(scratch[0], at), ir.load(scratch[1], at)

    def part(k: Expr, z: Complex) -> list[Stmt]:
        out: list[Stmt] = []
        for row, op in enumerate(("lt", "ge")):
            at = ir.add(ir.sub(lane, const(row * half)), ir.mul(k, const(half)))
            out += write(const(row), at, z, ir.binary(op, lane, const(half)))
        return out

    along = register_butterfly(
        first, lambda j: read(r, position(j)), rotated, interleave, ahead, lambda k, z: []
    )
    across = register_butterfly(last, point, lambda k, z: z, part, lambda j: [], lambda k, z: [])
    groups = ir.For(group, ZERO, block.size(count), "lanes", along)
    return [
        ir.For(r, ZERO, const(2), "serial", [groups]),
        ir.For(lane, ZERO, const(block.vector), "lanes", across),
    ], scratch
