"""Fourier transforms of planes, along both of their axes while they stay in the cache of a core.

Rows are transformed first, into scratch memory; then columns, vectors of them at a time, which
store the results. Two axes thus take one pass over memory. Fused code is read by the rows and
stored by the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numus import ir
from numus.compiler.lower.axis import delinearize, store_members
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.fft.problem import FftProblem
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Complex, swap
from numus.kernels.fft.radices import radices_of
from numus.kernels.fft.row_pairs import fills_half, row_pair
from numus.kernels.fft.stockham import ZERO, Block, Transform, stockham
from numus.kernels.fft.tables import layout


def _block(
    p: FftProblem, e: Emitter, which: int, number: Expr, radix: tuple[int, int]
) -> tuple[Block, int, Callable[[Expr], Complex]]:
    """The block of a plane's rows or columns with this number, how many there are, the roots."""
    n, count = p.val.shape[-1 - which], p.val.shape[-2 + which]
    at = layout(n, p.complex_dtype, p.target)
    table, vector = p.val.inputs[1 + which], at.vector

    def root(k: Expr) -> Complex:
        found: Complex = e.value(table, (k,))
        return found

    def first_root(group: Expr, k: int) -> Complex:
        start = at.starts["first", n] + n // at.first_radix * k
        return root(ir.add(e.dim(start), group))

    along = at.first_radix if which == 0 else 0
    width = 1 if along else vector
    rest = radices_of(n // max(along, 1), *radix)
    block = Block(
        length=n,
        radices=(along, *rest) if along else rest,
        largest_odd=radix[1],
        dtype=p.part,
        width=width,
        count=ir.minimum(ir.sub(e.dim(count), ir.mul(number, const(width))), const(width)),
        full=count % width == 0,
        vector=vector,
        adjacent_points=(not which, not which),
        size=e.scalar_arg,
        paired=which == 1,
        first_roots=first_root if along else None,
        name="columns" if which else "rows",
        fetches=p.is_streamed,
    )
    return block, -(-count // width), root


def lower_planes(p: FftProblem, largest: int, largest_odd: int) -> Kernels:
    """One kernel, a block of which is a plane."""
    *batch, n0, n1 = p.val.shape
    e = Emitter(p.layouts)
    e.static = True  # addresses of points differ by constants
    plane, row, column = (ir.var(name) for name in ("g", "row", "column"))
    lead = delinearize(e, plane, batch)
    size = e.scalar_arg(n0 * n1)
    slab = [ir.Buffer(f"plane_{part}", p.part, "scratch", size) for part in ("re", "im")]
    radix = largest, largest_odd
    rows, row_blocks, row_root = _block(p, e, 0, row, radix)
    columns, column_blocks, column_root = _block(p, e, 1, column, radix)

    def at(block: Block, number: Expr, w: Transform) -> Expr:
        return ir.add(ir.mul(number, const(block.width)), ir.add(*w))

    def read_at(number: Expr, i: Expr) -> Complex:
        z: Complex = e.value(p.source, (*lead, number, i))
        return swap(z) if p.inverse else z

    def read(w: Transform, i: Expr) -> Complex:
        return read_at(at(rows, row, w), i)

    def row_of(which: Expr) -> Expr:
        return ir.add(ir.mul(row, const(2)), which)

    def read_row(which: Expr, i: Expr) -> Complex:
        return read_at(row_of(which), i)

    def in_plane(row: Expr, column: Expr) -> Expr:
        return ir.add(ir.mul(row, e.dim(n1)), column)

    def put(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
        return ir.stores(slab, in_plane(at(rows, row, w), k), z)

    def get(w: Transform, i: Expr) -> Complex:
        index = in_plane(i, at(columns, column, w))
        return ir.load(slab[0], index), ir.load(slab[1], index)

    def write(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
        result = swap(z) if p.inverse else z
        return p.streamed(store_members(e, p.group, (*lead, k, at(columns, column, w)), result))

    def put_half(w: Expr, k: Expr, z: Complex, mask: Expr) -> list[Stmt]:
        index = in_plane(row_of(w), k)
        return [ir.Store(b, index, x, mask) for b, x in zip(slab, z, strict=True)]

    if rows.first_roots is not None and n0 % 2 == 0 and fills_half(rows):
        row_blocks //= 2
        first, scratch = row_pair(rows, rows.first_roots, read_row, put_half)
    else:
        if rows.width == 1:
            rows = replace(rows, next_read=lambda w, i: read((const(1), w[1]), i))
        first, scratch = stockham(rows, row_root, read, put)
    second, others = stockham(columns, column_root, get, write)
    e.scratch += [*slab, *scratch, *others]
    body: list[Stmt] = [
        ir.For(row, ZERO, e.scalar_arg(row_blocks), "serial", first),
        ir.For(column, ZERO, e.scalar_arg(column_blocks), "serial", second),
    ]
    e.static = False  # any number of planes
    return [e.grid_kernel("fft_planes", plane, body, p.planes, p.group.notes)]
