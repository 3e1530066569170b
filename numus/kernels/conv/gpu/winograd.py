"""Winograd F(4×4, 3×3) convolution (Lavin & Gray 2016), and its weight gradient F(3×3, 4×4).

Input tiles of 6 × 6 and filters are transformed, multiplied in the Winograd domain by 36 GEMMs over
the channels, and transformed back: 36 multiplications instead of 144. The interpolation points were
chosen for accuracy: in float32, errors are 1.5 times those of a direct convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from numus import ir
from numus.dtypes import DType, uint32
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import u32

INPUT_TILE = 6
OUTPUT_TILE = 4  # also the step from tile to tile
THREADS = 128
POINTS = (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2))

Transform = list[list[Fraction]]
Read = Callable[[Expr, Expr, Expr, Expr], Expr]  # (row, image, y, x), zero out of bounds
Index = Callable[[Expr, Expr, Expr], Expr]  # (matrix of the Winograd domain, row, column)
# (row, image, y, x, offset in y, offset in x, value)
Store = Callable[[Expr, Expr, Expr, Expr, int, int, Expr], list[Stmt]]
Emit = Callable[[list[Stmt], Expr, Expr], None]  # (body, row, column)


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, the lowest first, of the polynomial with these roots."""
    found = [Fraction(1)]
    for root in roots:
        pairs = zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)
        found = [a - root * b for a, b in pairs]
    return found


def input_transform() -> Transform:
    """B', 6 × 6."""
    others = [[*_with_roots([q for q in POINTS if q != p]), Fraction(0)] for p in POINTS]
    return [*others, _with_roots(POINTS)]


def filter_transform(taps: int) -> Transform:
    """G, 6 × taps."""
    found = []
    for p in POINTS:
        scale = Fraction(1)
        for q in POINTS:
            scale *= p - q if q != p else 1
        found.append([p**k / scale for k in range(taps)])
    return [*found, [Fraction(int(k == taps - 1)) for k in range(taps)]]


def output_transform(outputs: int) -> Transform:
    """A', outputs × 6."""
    last = outputs - 1
    return [[*(p**i for p in POINTS), Fraction(int(i == last))] for i in range(outputs)]


def _times(
    body: list[Stmt], tag: str, matrix: Transform, values: list[list[Expr]], dtype: DType
) -> list[list[Expr]]:
    """A constant matrix times one of values, as Lets."""
    found: list[list[Expr]] = []
    for i, row in enumerate(matrix):
        found.append([])
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
            found[-1].append(name)
    return found


def _transpose(values: list[list[Expr]]) -> list[list[Expr]]:
    return [list(row) for row in zip(*values, strict=True)]


def _transform_2d(
    body: list[Stmt], matrix: Transform, size: int, load: Callable[[int, int], Expr], dtype: DType
) -> list[list[Expr]]:
    """T X T' of a tile of size × size."""
    values = [[ir.var(f"value{i}_{j}", dtype) for j in range(size)] for i in range(size)]
    for i, row in enumerate(values):
        body += [ir.Let(name, load(i, j)) for j, name in enumerate(row)]
    half = _times(body, "half", matrix, values, dtype)
    return _transpose(_times(body, "out", matrix, _transpose(half), dtype))


def _threads(g: Expr, rows: Expr, columns: Expr, emit: Emit) -> list[Stmt]:
    """A thread for each row (channel) and column (image and tile; 32 bits), columns fastest."""
    lane = ir.var("lane")
    thread = g * THREADS + lane
    body: list[Stmt] = []
    emit(body, u32(thread) // u32(columns), u32(thread) % u32(columns))
    work: list[Stmt] = [ir.If(thread < rows * columns, body)]
    return [ir.For(lane, const(0), const(THREADS), "lanes", work)]


def _tile_origin(column: Expr, tiles: tuple[Expr, Expr]) -> tuple[Expr, Expr, Expr]:
    """The image of a column, and the origin of its tile (32 bits)."""
    down, across = (u32(n) for n in tiles)
    rest = column // across
    step = const(OUTPUT_TILE, uint32)
    at = rest % down * step, column % across * step
    return rest // down, *at


def to_domain(
    g: Expr,
    dtype: DType,
    matrix: Transform,
    rows: Expr,
    columns: Expr,
    tiles: tuple[Expr, Expr],
    read: Read,
    target: ir.Buffer,
    index: Index,
) -> list[Stmt]:
    """Body of thread block g: input or filter tiles to the Winograd domain, 36 matrices."""

    def emit(body: list[Stmt], row: Expr, column: Expr) -> None:
        image, y, x = _tile_origin(column, tiles)

        def load(i: int, j: int) -> Expr:
            return read(row, image, y + i, x + j)

        values = _transform_2d(body, matrix, len(matrix[0]), load, dtype)
        for i, line in enumerate(values):
            for j, value in enumerate(line):
                to = index(const(INPUT_TILE * i + j), row.cast(ir.INDEX), column.cast(ir.INDEX))
                body.append(ir.Store(target, to, value))

    return _threads(g, rows, columns, emit)


def from_domain(
    g: Expr,
    dtype: DType,
    matrix: Transform,
    rows: Expr,
    columns: Expr,
    tiles: tuple[Expr, Expr],
    source: ir.Buffer,
    index: Index,
    store: Store,
) -> list[Stmt]:
    """Body of thread block g: the output transform."""

    def emit(body: list[Stmt], row: Expr, column: Expr) -> None:
        def load(i: int, j: int) -> Expr:
            at = index(const(INPUT_TILE * i + j), row.cast(ir.INDEX), column.cast(ir.INDEX))
            return ir.load(source, at)

        outputs = _transform_2d(body, matrix, INPUT_TILE, load, dtype)
        image, y, x = _tile_origin(column, tiles)
        for i, line in enumerate(outputs):
            for j, value in enumerate(line):
                body += store(row, image, y, x, i, j, value)

    return _threads(g, rows, columns, emit)
