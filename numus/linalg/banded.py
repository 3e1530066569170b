"""Banded systems: Gaussian elimination with partial pivoting on a window of rows."""

from __future__ import annotations

import functools
from typing import Any

from numus.functions.autocast import widens
from numus.functions.creation.creation import arange, zeros
from numus.functions.elementwise.comparison import where
from numus.functions.indexing.gather_scatter import take_along_axis
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to, flip, moveaxis
from numus.linalg._base import (
    Implicit,
    LinAlgShapeError,
    check,
    differentiated,
    operands,
    spoiled,
)
from numus.shapes import as_int
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import scan

Band = tuple[int, int]  # diagonals below and above the main one


def _shifted(x: Tensor, by: int) -> Tensor:
    """Elements of the last axis `by` places on, zeros coming in."""
    n = x.shape[-1]
    if not by:
        return x
    none = zeros((*x.shape[:-1], min(abs(by), n)), dtype=x.dtype, device=x.device)
    if by > 0:
        return concat([none, x[..., : max(n - by, 0)]], axis=-1)
    return concat([x[..., min(-by, n) :], none], axis=-1)


def _rows(ab: Tensor, band: Band) -> Tensor:
    """Row i of the matrix from column i - lower on: (n, lower + upper + 1)."""
    lower, upper = band
    parts = [_shifted(ab[..., upper + lower - d, :], lower - d) for d in range(lower + upper + 1)]
    return concat([part[..., None] for part in parts], axis=-1)


def _adjoint(ab: Tensor, band: Band) -> Tensor:
    """The diagonals of the conjugate transpose, which has them the other way round."""
    lower, upper = band
    parts = [_shifted(ab[..., k, :], k - upper) for k in reversed(range(lower + upper + 1))]
    found = concat([part[..., None, :] for part in parts], axis=-2)
    return found.conj() if found.dtype.is_complex else found


def _product(ab: Tensor, x: Tensor, band: Band) -> Tensor:
    """The banded matrix times x."""
    lower, upper = band
    columns = x.mT
    total = x * 0.0
    for k in range(lower + upper + 1):
        moved = _shifted(ab[..., k, None, :] * columns, k - upper)
        total = total + moved.mT
    return total


def _eliminated(ab: Tensor, b: Tensor, band: Band) -> Tensor:
    """x, and a last row with the number of the first pivot that is zero."""
    lower, upper = band
    n, width = ab.shape[-1], lower + upper + 1
    rows = _rows(ab, band)
    lead, count = b.shape[:-2], b.shape[-1]
    whole = concat([rows, b], axis=-1)
    none = zeros((*lead, lower + 1, width + count), dtype=b.dtype, device=b.device)
    whole = concat([whole, none], axis=-2)
    # at first row i begins in column i - lower, which is not there: i - lower places to the left
    start = [
        concat([_shifted(whole[..., i, :width], i - lower), whole[..., i, width:]], axis=-1)
        for i in range(lower + 1)
    ]
    window = concat([row[..., None, :] for row in start], axis=-2)
    places = arange(lower + 1, device=b.device)

    def step(
        state: tuple[Tensor, Tensor], at: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        window, info = state
        i, following = at
        pivot = abs(window[..., 0]).argmax(axis=-1)[..., None]
        order = where(places == 0, pivot, where(places == pivot, 0, places))
        index = broadcast_to(order[..., None], window.shape)
        window = take_along_axis(window, index, axis=-2)
        head, rest = window[..., :1, :], window[..., 1:, :]
        zero = head[..., :1] == 0
        rest = rest - rest[..., :1] / where(zero, 1.0, head[..., :1]) * head
        rest = concat([_shifted(rest[..., :width], -1), rest[..., width:]], axis=-1)
        info = where((info == 0) & zero[..., 0, 0], (i + 1).astype(info.dtype), info)
        return (concat([rest, following[..., None, :]], axis=-2), info), head[..., 0, :]

    info = abs(b).sum(axis=(-2, -1)) * 0.0
    steps = (arange(n, device=b.device), moveaxis(whole, -2, 0)[lower + 1 :])
    (_, info), found = scan(step, (window, info), steps)

    def back(after: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """x of a row, from those of the next ones."""
        known = (row[..., 1:width, None] * after).sum(axis=-2)
        pivot = row[..., :1]
        x = (row[..., width:] - known) / where(pivot == 0, 1.0, pivot)
        return concat([x[..., None, :], after], axis=-2)[..., : width - 1, :], x

    after = zeros((*lead, width - 1, count), dtype=b.dtype, device=b.device)
    _, x = scan(back, after, flip(found, axis=0))
    x = moveaxis(flip(x, axis=0), 0, -2)
    last = broadcast_to(info[..., None, None].astype(b.dtype), (*lead, 1, count))
    return concat([x, last], axis=-2)


def _solved(ab: Tensor, b: Tensor, band: Band) -> Tensor:
    def compute(ab: Tensor, b: Tensor) -> Tensor:
        return _eliminated(ab, b, band)

    return differentiated(_rule(band), compute, ab, b)


@functools.cache
def _rule(band: Band) -> Implicit:
    def tangent(packed: Tensor, given: list[Tensor], tangents: list[Tensor]) -> Tensor:
        (ab, _), (dab, db) = given, tangents
        found = _solved(ab, db - _product(dab, packed[..., :-1, :], band), band)
        return concat([found[..., :-1, :], packed[..., -1:, :] * 0.0], axis=-2)

    def pull(packed: Tensor, given: list[Tensor], g: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = band
        back = _adjoint(given[0], band)
        gb = _solved(back, g[..., :-1, :], (upper, lower))[..., :-1, :]
        x = packed[..., :-1, :].mT
        x = x.conj() if x.dtype.is_complex else x
        parts = [-(_shifted(gb.mT, upper - k) * x).sum(axis=-2) for k in range(lower + upper + 1)]
        return concat([part[..., None, :] for part in parts], axis=-2), gb

    return Implicit(tangent, pull)


@widens
def solve_banded(l_and_u: tuple[int, int], ab: ArrayLike, b: ArrayLike, /) -> Tensor:
    """x with a x = b for banded matrices, in about 2 n l (l + u) operations.

    Args:
        l_and_u: the number of diagonals below and above the main one.
        ab: the diagonals in rows, from the uppermost on: ab[..., u + i - j, j] = a[..., i, j].
        b: a vector, or matrices of right-hand sides; leading axes broadcast.

    A singular matrix is a `LinAlgError`, in `nm.jit` NaN.

    >>> diagonals = nm.asarray([[0.0, 1.0, 1.0], [4.0, 4.0, 4.0], [1.0, 1.0, 0.0]])
    >>> x = nm.linalg.solve_banded((1, 1), diagonals, nm.asarray([5.0, 6.0, 5.0]))
    >>> x.round(decimals=5).tolist()
    [1.0, 1.0, 1.0]
    """
    op = "solve_banded"
    lower, upper = (as_int(k, "l_and_u", f"linalg.{op}") for k in l_and_u)
    (diagonals, y), dtype = operands(op, ab, b)
    vector = y.ndim == 1
    y = y[:, None] if vector else y
    fits = diagonals.ndim > 1 and y.ndim > 1 and diagonals.shape[-1] == y.shape[-2]
    if min(lower, upper) < 0 or not fits or diagonals.shape[-2] != lower + upper + 1:
        raise LinAlgShapeError(
            f"linalg.{op}: {lower} and {upper} diagonals below and above the main one need "
            f"{lower + upper + 1} rows, as many columns as right-hand sides have rows; the shapes "
            f"are {diagonals.shape} and {y.shape[:-1] if vector else y.shape}"
        )
    lead = broadcast_shapes(diagonals.shape[:-2], y.shape[:-2], f"linalg.{op}")
    diagonals, y = (broadcast_to(x, (*lead, *x.shape[-2:])) for x in (diagonals, y))
    if not y.size:
        return y.astype(dtype, copy=False)[..., 0] if vector else y.astype(dtype, copy=False)
    packed = _solved(diagonals, y, (lower, upper))
    info: Any = packed[..., -1, 0].detach()
    info = (info.real if info.dtype.is_complex else info).astype("int64")
    check(op, info, "is singular: its pivot {} is zero")
    found = spoiled(packed[..., :-1, :], info).astype(dtype, copy=False)
    return found[..., 0] if vector else found
