"""Winograd F(4×4, 3×3) (Lavin & Gray 2016): the transforms of CPU and GPU kernels.

The interpolation points were chosen for accuracy: in float32, errors are 1.5 times those of a
direct convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

INPUT_TILE = 6
OUTPUT_TILE = 4  # also the step from tile to tile
MATRICES = INPUT_TILE * INPUT_TILE
POINTS = (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2))

Transform = list[list[Fraction]]


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
    scales = [prod((p - q for q in POINTS if q != p), start=Fraction(1)) for p in POINTS]
    found = [[p**k / c for k in range(taps)] for p, c in zip(POINTS, scales, strict=True)]
    return [*found, [Fraction(int(k == taps - 1)) for k in range(taps)]]


def output_transform(outputs: int) -> Transform:
    """A', outputs × 6."""
    last = outputs - 1
    return [[*(p**i for p in POINTS), Fraction(int(i == last))] for i in range(outputs)]


def _sum(terms: Sequence[tuple[Fraction, Expr]], dtype: DType) -> Expr:
    (factor, total), *rest = [(f, v) for f, v in terms if f]
    total = total if factor == 1 else total * float(factor)
    for factor, value in rest:
        total = ir.fma(value, const(float(factor), dtype), total)
    return total


def _times(
    body: list[Stmt], tag: str, matrix: Transform, values: list[Expr], dtype: DType
) -> list[Expr]:
    """A constant matrix times a vector, as Lets. Rows of opposite points, whose coefficients of odd
    powers have opposite signs, share the sums of even and of odd powers."""
    found: list[Expr] = []

    def let(name: str, value: Expr) -> Expr:
        v = ir.var(f"{tag}_{name}", dtype)
        body.append(ir.Let(v, value))
        return v

    while len(found) < len(matrix):
        i = len(found)
        row = matrix[i]
        mirrored = [-f if k % 2 else f for k, f in enumerate(row)]
        terms = list(zip(row, values, strict=True))
        if matrix[i + 1 : i + 2] != [mirrored] or mirrored == row:
            found.append(let(f"{i}", _sum(terms, dtype)))
            continue
        scale = next(f for f in reversed(row[1::2]) if f)
        even = let(f"even{i}", _sum(terms[::2], dtype))
        odd = let(f"odd{i}", _sum([(f / scale, v) for f, v in terms[1::2]], dtype))
        found += [
            let(f"{i + k}", ir.fma(odd, const(float(factor), dtype), even))
            for k, factor in enumerate((scale, -scale))
        ]
    return found


def transformed(
    body: list[Stmt], matrix: Transform, load: Callable[[int, int], Expr], dtype: DType
) -> list[Expr]:
    """T X T' of a tile, as Lets: a column at a time, so that few values are alive."""
    size = range(len(matrix[0]))
    half: list[list[Expr]] = []
    for x in size:
        column = [ir.var(f"value{y}_{x}", dtype) for y in size]
        body += [ir.Let(column[y], load(y, x)) for y in size]
        half.append(_times(body, f"half{x}", matrix, column, dtype))
    lines = [
        _times(body, f"out{y}", matrix, list(line), dtype)
        for y, line in enumerate(zip(*half, strict=True))
    ]
    return [value for line in lines for value in line]
