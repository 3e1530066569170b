"""Convolutions with fewer multiplications, after Winograd: 16 results of windows of 3 x 3 taps from
36 products instead of 144.

A patch of 6 x 6 elements and a window are taken to another form, in which they are multiplied
element by element, and the result back. All channels are multiplied there, 36 matrices of them, so
what it costs to go there and back counts little. A gradient by weights is the same with the parts
exchanged: patches of 4 x 4 of what came back take the part of the window, and 9 results remain.

The forms are values of polynomials at six points. These ones (and infinity) lie so that as little
as possible is lost: in float32 the error of a result is one and a half times that of a plain sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from numus import ir
from numus.dtypes import DType, uint32
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import small

SIDE = 6  # of a patch
STEP = 4  # from patch to patch
THREADS = 128
POINTS = (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2))

Rows = list[list[Fraction]]
Read = Callable[[Expr, Expr, Expr, Expr], Expr]  # (line, image, down, across), zero beside it
Place = Callable[[Expr, Expr, Expr], Expr]  # (number of the form, line, column)
Done = Callable[[Expr, Expr, Expr, Expr, int, int, Expr], list[Stmt]]


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """The polynomial that is zero at these points: its coefficients, from the lowest."""
    found = [Fraction(1)]
    for root in roots:
        pairs = zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)
        found = [a - root * b for a, b in pairs]
    return found


def of_data() -> Rows:
    """From a patch to its form: 6 by 6."""
    others = [[*_with_roots([q for q in POINTS if q != p]), Fraction(0)] for p in POINTS]
    return [*others, _with_roots(POINTS)]


def of_window(taps: int) -> Rows:
    """From a window to its form: 6 by `taps`."""
    found = []
    for p in POINTS:
        scale = Fraction(1)
        for q in POINTS:
            scale *= p - q if q != p else 1
        found.append([p**k / scale for k in range(taps)])
    return [*found, [Fraction(int(k == taps - 1)) for k in range(taps)]]


def of_result(results: int) -> Rows:
    """From the form of a result to it: `results` by 6."""
    last = results - 1
    return [[*(p**i for p in POINTS), Fraction(int(i == last))] for i in range(results)]


def _times(
    body: list[Stmt], tag: str, rows: Rows, values: list[list[Expr]], dtype: DType
) -> list[list[Expr]]:
    """A matrix of numbers times one of values, each of which gets a name."""
    found: list[list[Expr]] = []
    for i, row in enumerate(rows):
        line: list[Expr] = []
        for j in range(len(values[0])):
            total: Expr | None = None
            for factor, value in zip(row, (v[j] for v in values), strict=True):
                if not factor:
                    continue
                if total is None:
                    total = value if factor == 1 else value * const(float(factor), dtype)
                else:
                    total = ir.fma(value, const(float(factor), dtype), total)
            assert total is not None
            name = ir.var(f"{tag}{i}_{j}", dtype)
            body.append(ir.Let(name, total))
            line.append(name)
        found.append(line)
    return found


def _turned(values: list[list[Expr]]) -> list[list[Expr]]:
    return [list(line) for line in zip(*values, strict=True)]


def _both_ways(
    body: list[Stmt], rows: Rows, values: list[list[Expr]], dtype: DType
) -> list[list[Expr]]:
    half = _times(body, "half", rows, values, dtype)
    return _turned(_times(body, "form", rows, _turned(half), dtype))


def _threads(g: Expr, total: Expr, work: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
    lane = ir.var("lane")
    number = ir.add(ir.mul(g, const(THREADS)), lane)
    body: list[Stmt] = [ir.If(number < total, work(number))]
    return [ir.For(lane, const(0), const(THREADS), "lanes", body)]


def _tile(column: Expr, tiles: tuple[Expr, Expr]) -> tuple[Expr, Expr, Expr]:
    """The image of a column, and the first place of its patch (32 bits)."""
    down, across = (small(n) for n in tiles)
    rest = ir.idiv(column, across)
    step = const(STEP, uint32)
    at = ir.mul(ir.irem(rest, down), step), ir.mul(ir.irem(column, across), step)
    return ir.idiv(rest, down), *at


def to_form(
    g: Expr,
    dtype: DType,
    rows: Rows,
    lines: Expr,
    columns: Expr,
    tiles: tuple[Expr, Expr],
    read: Read,
    target: ir.Buffer,
    place: Place,
) -> list[Stmt]:
    """The work of group g: patches of every line (channels, outputs) and column (images, and tiles
    of them, whose numbers are the quickest) to their forms, one matrix of lines and columns after
    the other."""
    side = len(rows[0])

    def work(number: Expr) -> list[Stmt]:
        line, column = (
            ir.idiv(small(number), small(columns)),
            ir.irem(small(number), small(columns)),
        )
        image, down, across = _tile(column, tiles)
        body: list[Stmt] = []
        values: list[list[Expr]] = []
        for i in range(side):
            values.append([])
            for j in range(side):
                at = (ir.add(down, const(i, uint32)), ir.add(across, const(j, uint32)))
                name = ir.var(f"value{i}_{j}", dtype)
                body.append(ir.Let(name, read(line, image, *at)))
                values[-1].append(name)
        form = _both_ways(body, rows, values, dtype)
        for i, row in enumerate(form):
            for j, value in enumerate(row):
                to = place(const(SIDE * i + j), line.cast(ir.INDEX), column.cast(ir.INDEX))
                body.append(ir.Store(target, to, value))
        return body

    return _threads(g, ir.mul(lines, columns), work)


def from_form(
    g: Expr,
    dtype: DType,
    rows: Rows,
    lines: Expr,
    columns: Expr,
    tiles: tuple[Expr, Expr],
    source: ir.Buffer,
    place: Place,
    done: Done,
) -> list[Stmt]:
    """The work of group g: forms back to results; `done(line, image, down, across, i, j, value)` is
    what becomes of one."""

    def work(number: Expr) -> list[Stmt]:
        line, column = (
            ir.idiv(small(number), small(columns)),
            ir.irem(small(number), small(columns)),
        )
        body: list[Stmt] = []
        values: list[list[Expr]] = []
        for i in range(SIDE):
            values.append([])
            for j in range(SIDE):
                at = place(const(SIDE * i + j), line.cast(ir.INDEX), column.cast(ir.INDEX))
                name = ir.var(f"value{i}_{j}", dtype)
                body.append(ir.Let(name, ir.load(source, at)))
                values[-1].append(name)
        results = _both_ways(body, rows, values, dtype)
        image, down, across = _tile(column, tiles)
        for i, row in enumerate(results):
            for j, value in enumerate(row):
                body += done(line, image, down, across, i, j, value)
        return body

    return _threads(g, ir.mul(lines, columns), work)
