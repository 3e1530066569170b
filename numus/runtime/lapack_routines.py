"""LAPACK's routines: what a library is given, and how its results are packed.

A routine factorises a stack of matrices, each row-major in memory, and has one result per matrix: a
row of elements in which everything it finds lies packed (`segments`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from numus.dtypes import DType
from numus.shapes import Shape


@dataclass(frozen=True)
class Routine:
    """A routine of a stack of matrices in memory, of m rows and n columns.

    Option: of "lu", whether the order of rows is wanted (1); of "order", their number; of "qr",
    the columns of Q; of "svd", LAPACK's letter of what is wanted; of "solve", whether the matrix is
    lower (1) and has a unit diagonal (2); otherwise 1 for vectors, 0 for values alone. `columns`
    are those of a right-hand side, `layout` that of triangular matrices that are no contiguous
    stack: an offset, the distance of matrices and of rows (of columns, if they are transposed:
    column-major), in elements.
    """

    name: str
    batch: int
    m: int
    n: int
    dtype: str
    option: int | str = 0
    columns: int = 0
    layout: tuple[int, int, int, bool] | None = None


class Segment(NamedTuple):
    """Consecutive elements of a result. Parts are the matrix's numbers ("whole"), real numbers, or
    int32, which begin at an element and fill as many as they need."""

    name: str
    shape: Shape
    part: str = "whole"

    def elements(self, dtype: DType) -> int:
        parts = {"int": 4, "real": dtype.itemsize // (1 + dtype.is_complex)}
        nbytes = math.prod(self.shape) * parts.get(self.part, dtype.itemsize)
        return -(-nbytes // dtype.itemsize)


def _spectrum(n: int, complex_: bool) -> list[Segment]:
    """Eigenvalues of matrices that need not be symmetric."""
    return [Segment("w", (n,))] if complex_ else [Segment("re", (n,)), Segment("im", (n,))]


def _cholesky(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("factor", (n, n))]


def _lu(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    numbers = [Segment("swaps", (min(m, n),), "int")]
    if option:
        numbers.append(Segment("order", (m,), "int"))
    return [Segment("factor", (n, m)), *numbers]


def _order(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("order", (option,), "int")]


def _system(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("x", (columns, n))]


def _qr(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("q", (option, m)), Segment("r", (n, m))]


def _eigh(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("vectors", (n, n)), Segment("values", (n,), "real")]


def _svd(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    k = min(m, n)
    sides = {"S": (k, k), "A": (m, n), "N": (0, 0)}[option]
    u, vh = Segment("u", (m, sides[0])), Segment("vh", (sides[1], n))
    return [u, vh, Segment("s", (k,), "real")]


def _eig(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("vectors", (n, n) if option else (0, 0)), *_spectrum(n, complex_)]


def _schur(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("t", (n, n)), Segment("z", (n, n)), *_spectrum(n, complex_)]


def _qz(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    square = [Segment(name, (n, n)) for name in ("s", "t", "q", "z")]
    return [*square, *_spectrum(n, complex_), Segment("beta", (n,))]


def _solve(m: int, n: int, option: Any, columns: int, complex_: bool) -> list[Segment]:
    return [Segment("x", (n, columns))]


_RESULTS: dict[str, Callable[..., list[Segment]]] = {
    **{"cholesky": _cholesky, "lu": _lu, "qr": _qr, "eigh": _eigh, "svd": _svd},
    **{"eig": _eig, "schur": _schur, "qz": _qz, "solve": _solve},
    **{"system": _system, "order": _order},
}


_COLUMN_MAJOR = ("lu", "qr", "eig", "schur", "qz")  # whose operands are given transposed
_RIGHT_HAND_SIDES = {"solve": -1, "system": -2}  # of a second operand, its axis of columns


def segments(r: Routine, complex_: bool) -> list[Segment]:
    """What the result of a routine is made of, the info number last.

    Matrices "factor" of "lu", "q", "r", "vectors", "t", "z", "s" of "qz" and "x" of "system" are
    column-major, those of "cholesky", "svd" and "solve" row-major.
    """
    found = _RESULTS[r.name](r.m, r.n, r.option, r.columns, complex_)
    return [*found, Segment("info", (1,), "int")]


def operand_lengths(r: Routine) -> list[int]:
    """Elements of a matrix of each operand."""
    first = r.m * r.n
    if r.name == "qz":
        return [first, first]
    return [first, r.n * r.columns] if r.name in _RIGHT_HAND_SIDES else [first]


def result_length(r: Routine, dtype: DType) -> int:
    return sum(s.elements(dtype) for s in segments(r, dtype.is_complex))


def described(name: str, option: int | str, *xs: Any) -> Routine:
    """The routine of stacks (…, rows, columns), of which the first is factorised."""
    *lead, m, n = xs[0].shape
    if name in _COLUMN_MAJOR:
        m, n = n, m
    columns = 0
    if name in _RIGHT_HAND_SIDES:
        columns = xs[1].shape[_RIGHT_HAND_SIDES[name]]
    return Routine(name, math.prod(lead), m, n, xs[0].dtype.name, option, columns)
