"""An operand of a tiled product, laid out as its tiles are copied.

The expression that stands for it is read once per element, in the order in which it lies in memory,
and written in lines of neighbours along k (or across it, if that is how it lies and will do).
"""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.mainloop import zero

ZERO = const(0)

Read = Callable[[Expr, Expr, Expr | None], Expr]
Write = Callable[[Expr, Expr, Expr], list[Stmt]]

SIDE = 64  # of the square that a group turns around
THREADS = 256


def pack(
    g: Expr,
    dtype: DType,
    extents: tuple[Expr, Expr],
    tiles: tuple[Expr, Expr],
    turned: bool,
    read: Callable[[Expr, Expr, Expr, Expr | None], Expr],
    store: Callable[[Expr, Expr, Expr, Expr], list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g: a square of (lines, neighbours as they are written).

    `turned`: neighbours in memory lie along the lines. `read(batch, line, place, mask)`,
    `store(batch, line, place, value)`.
    """
    per_batch = ir.mul(*tiles)
    batch, inner = ir.idiv(g, per_batch), ir.irem(g, per_batch)
    line0 = ir.mul(ir.idiv(inner, tiles[1]), const(SIDE))
    place0 = ir.mul(ir.irem(inner, tiles[1]), const(SIDE))
    ends = [ir.add(first, const(SIDE)) for first in (line0, place0)]
    whole = (ends[0] <= extents[0]) & (ends[1] <= extents[1])
    pitch = SIDE + max(1, 4 // dtype.itemsize)  # shifts the banks of the next line
    square = ir.Buffer("square", dtype, "scratch", const(SIDE * pitch))

    def steps(name: str, across: bool, cut: bool, read: Read, write: Write) -> Stmt:
        """A thread's elements, all of them read before the first is written."""
        lane = ir.var(name)
        reads: list[Stmt] = []
        writes: list[Stmt] = []
        for i in range(SIDE * SIDE // THREADS):
            slow = ir.add(ir.idiv(lane, const(SIDE)), const(i * THREADS // SIDE))
            quick = ir.irem(lane, const(SIDE))
            down, right = (quick, slow) if across else (slow, quick)
            inside = (ir.add(line0, down) < extents[0]) & (ir.add(place0, right) < extents[1])
            value = ir.var(f"{name}{i}", dtype)
            reads.append(ir.Let(value, read(down, right, inside if cut else None)))
            done = write(down, right, value)
            writes += [ir.If(inside, done)] if cut else done
        return ir.For(lane, ZERO, const(THREADS), "lanes", reads + writes)

    def source(down: Expr, right: Expr, mask: Expr | None) -> Expr:
        return read(batch, ir.add(line0, down), ir.add(place0, right), mask)

    def target(down: Expr, right: Expr, value: Expr) -> list[Stmt]:
        return store(batch, ir.add(line0, down), ir.add(place0, right), value)

    def near(down: Expr, right: Expr) -> Expr:
        return ir.add(ir.mul(down, const(pitch)), right)

    def kept(down: Expr, right: Expr, value: Expr) -> list[Stmt]:
        return [ir.Store(square, near(down, right), value)]

    def found(down: Expr, right: Expr, mask: Expr | None) -> Expr:
        return ir.load(square, near(down, right))

    def way(cut: bool) -> list[Stmt]:
        tag = "cut" if cut else "all"
        if not turned:
            return [steps(f"copy_{tag}", False, cut, source, target)]
        take = steps(f"take_{tag}", True, cut, source, kept)
        return [take, steps(f"give_{tag}", False, cut, found, target)]

    body: list[Stmt] = [ir.If(whole, way(False)), ir.If(~whole, way(True))]
    return body, [square] if turned else []


RUN = 8  # neighbours that a thread stores at a time


def pack_cells(
    g: Expr,
    dtype: DType,
    extents: tuple[Expr, Expr],
    tiles: tuple[Expr, Expr],
    natural: bool,
    inside: Callable[[Expr, Expr], Expr],
    read: Callable[[Expr, Expr, Expr, Expr | None], Expr],
    limit: Expr | None,
    store: Callable[[Expr, Expr, Expr, Expr], list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The same for lines that cost something to find, and places that are whole runs. Neighbours in
    memory are such of the result (`natural`), or lie along the lines: then a thread has one line
    for all that it reads. Zeros are stored where a line is not `inside(batch, line)`, and from the
    place `limit` on; None: none of a square is.
    """
    per_batch = ir.mul(*tiles)
    batch, inner = ir.idiv(g, per_batch), ir.irem(g, per_batch)
    line0 = ir.mul(ir.idiv(inner, tiles[1]), const(SIDE))
    place0 = ir.mul(ir.irem(inner, tiles[1]), const(SIDE))
    pitch = SIDE + max(1, 4 // dtype.itemsize)  # shifts the banks of the next line
    square = ir.Buffer("square", dtype, "scratch", const(SIDE * pitch))
    lane, at = ir.var("take"), ir.var("give")
    quick, slow = ir.irem(lane, const(SIDE)), ir.idiv(lane, const(SIDE))
    nothing = zero(dtype)
    parts: dict[Expr, tuple[list[Stmt], list[Stmt], list[Stmt]]] = {}
    for j in range(SIDE * SIDE // THREADS):
        away = ir.add(slow, const(j * THREADS // SIDE))
        down, right = (away, quick) if natural else (quick, away)
        line, place = ir.add(line0, down), ir.add(place0, right)
        there = (line < extents[0]) & inside(batch, line)
        take, keep, clear = parts.setdefault(there, ([], [], []))
        value = ir.var(f"v{j}", dtype)
        known = None if limit is None else place < limit
        found = read(batch, line, place, known)
        take.append(ir.Let(value, found if known is None else ir.select(known, found, nothing)))
        to = ir.add(ir.mul(down, const(pitch)), right)
        keep.append(ir.Store(square, to, value))
        clear.append(ir.Store(square, to, nothing))
    body: list[Stmt] = []
    for there, (take, keep, clear) in parts.items():
        body += [ir.If(there, [*take, *keep]), ir.If(~there, clear)]
    out: list[Stmt] = [ir.For(lane, ZERO, const(THREADS), "lanes", body)]
    runs = SIDE // RUN
    give: list[Stmt] = []
    for i in range(SIDE * runs // THREADS):
        down = ir.add(ir.idiv(at, const(runs)), const(i * THREADS // runs))
        right = ir.mul(ir.irem(at, const(runs)), const(RUN))
        line, place = ir.add(line0, down), ir.add(place0, right)
        base = ir.add(ir.mul(down, const(pitch)), right)
        values = [ir.var(f"w{i}_{u}", dtype) for u in range(RUN)]
        body = [ir.Let(v, ir.load(square, ir.add(base, const(u)))) for u, v in enumerate(values)]
        for u, v in enumerate(values):
            body += store(batch, line, ir.add(place, const(u)), v)
        give.append(ir.If((line < extents[0]) & (place < extents[1]), body))
    return [*out, ir.For(at, ZERO, const(THREADS), "lanes", give)], [square]
