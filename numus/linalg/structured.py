"""Systems of tensors and of Toeplitz matrices."""

from __future__ import annotations

import math
from typing import Any

from numus.errors import ShapeError
from numus.functions._base import common, wrap
from numus.functions.autocast import widens
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import where
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to, flip, moveaxis
from numus.functions.spelling import spelled
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    LinAlgShapeError,
    adjoint,
    check,
    differentiated,
    operands,
    spoiled,
)
from numus.linalg.builders import toeplitz
from numus.linalg.factor.lu import inverted, solution
from numus.shapes import as_int, normal_axes
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import scan


@widens
@spelled
def tensorsolve(a: ArrayLike, b: ArrayLike, /, axes: Any = None) -> Tensor:
    """x with tensordot(a, x, x.ndim) = b: the last axes of a are those of x, the first those of b.

    `axes` of a are moved to its end first.

    >>> nm.linalg.tensorsolve(2 * nm.eye(4).reshape(2, 2, 4), nm.ones((2, 2))).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    x, y = (wrap(n) for n in common("linalg.tensorsolve", a, b))
    if axes is not None:
        moved = normal_axes(axes, x.ndim, "linalg.tensorsolve")
        x = moveaxis(x, moved, tuple(range(x.ndim - len(moved), x.ndim)))
    shape = x.shape[y.ndim :]
    if x.shape[: y.ndim] != y.shape or math.prod(shape) != y.size:
        raise LinAlgShapeError(
            f"linalg.tensorsolve: shapes {x.shape} and {y.shape} do not fit: the first axes of a "
            "must be those of b, and the product of the others the number of elements of b"
        )
    found = solution("tensorsolve", x.reshape((y.size, y.size)), y.reshape(-1))
    return found.reshape(shape)


@widens
def tensorinv(a: ArrayLike, /, ind: int = 2) -> Tensor:
    """The inverse of a for tensordot over `ind` axes: the first `ind` axes of a against the others.

    >>> nm.linalg.tensorinv(2 * nm.eye(4).reshape(2, 2, 4), 2).shape
    (4, 2, 2)
    """
    (x,) = (wrap(n) for n in common("linalg.tensorinv", a))
    count = as_int(ind, "ind", "linalg.tensorinv")
    if count <= 0:
        raise ValueError(f"linalg.tensorinv: ind must be positive, not {count}")
    first, rest = x.shape[:count], x.shape[count:]
    if math.prod(first) != math.prod(rest):
        raise LinAlgShapeError(
            f"linalg.tensorinv: the first {count} axes of shape {x.shape} and the others must have "
            "equally many elements"
        )
    found = inverted("tensorinv", x.reshape((math.prod(first), math.prod(rest))))
    return found.reshape((*rest, *first))


# -- Toeplitz systems -----------------------------------------------------------------------------


def _levinson(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    """Levinson's recursion, n² operations: x (n, k), and a last row with the number of the first
    leading minor that is zero."""
    n = c.shape[-1]
    diagonals = concat([flip(r[..., 1:], axis=-1), c], axis=-1)  # element (i, j) at n - 1 + i - j
    positions = arange(n, device=c.device)
    size = abs(diagonals).sum(axis=-1)

    def rolled(v: Tensor) -> Tensor:
        """One place on."""
        return concat([v[..., :1] * 0.0, v[..., :-1]], axis=-1)

    def step(
        state: tuple[Tensor, Tensor, Tensor, Tensor], at: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
        forward, backward, x, info = state
        i, right = at
        below = where(positions < i, _row(diagonals, n - 1 + i, positions, -1), 0.0)
        above = where(positions < i, _row(diagonals, n - 2, positions, -1), 0.0)
        error = (below * forward).sum(axis=-1)
        other = (above * backward).sum(axis=-1)
        divisor = 1 - error * other
        zero = divisor == 0
        inverse = (1 / where(zero, 1.0, divisor))[..., None]
        after = rolled(backward)
        forward, backward = (
            (forward - error[..., None] * after) * inverse,
            (after - other[..., None] * forward) * inverse,
        )
        missed = right - (below[..., :, None] * x).sum(axis=-2)
        x = x + backward[..., :, None] * missed[..., None, :]
        info = where((info == 0) & zero, (i + 1).astype(info.dtype), info)
        return (forward, backward, x, info), i

    first = c[..., 0]
    zero = first == 0
    unit = (positions == 0).astype(c.dtype) / where(zero, 1.0, first)[..., None]
    x = unit[..., :, None] * b[..., :1, :]
    info = where(zero | (size == 0), 1.0, 0.0)
    state = (unit, unit, x, info)
    if n > 1:
        steps = (positions[1:], moveaxis(b, -2, 0)[1:])
        state, _ = scan(step, state, steps)
    last = broadcast_to(state[3][..., None, None].astype(b.dtype), (*b.shape[:-2], 1, b.shape[-1]))
    return concat([state[2], last], axis=-2)


def _row(diagonals: Tensor, start: Any, positions: Tensor, sign: int) -> Tensor:
    """Elements at start, start - 1, … of each row."""
    index = start + sign * positions
    index = where(index < 0, 0, index)
    return diagonals[..., index]


def _toeplitz_tangent(packed: Tensor, given: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """The same system with another right-hand side: db - dT x."""
    (c, r, _), (dc, dr, db) = given, tangents
    x = packed[..., :-1, :]
    moved = toeplitz(dc, concat([dc[..., :1], dr[..., 1:]], axis=-1)) @ x
    found = _solved(c, r, db - moved)
    return concat([found[..., :-1, :], packed[..., -1:, :] * 0.0], axis=-2)


def _toeplitz_pull(packed: Tensor, given: list[Tensor], g: Tensor) -> tuple[Tensor, ...]:
    """The adjoint is the Toeplitz matrix of the conjugates, rows and columns exchanged."""
    c, r, _ = given
    row = concat([c[..., :1], r[..., 1:]], axis=-1)
    gb = _solved(row.conj(), c.conj(), g[..., :-1, :])[..., :-1, :]
    whole = flip(-(gb @ adjoint(packed[..., :-1, :])), axis=-2)
    n, lead = c.shape[-1], whole.shape[:-2]
    # sums along diagonals: rows with n more zeros, read with one element less per row, are columns
    padded = concat([whole, whole * 0.0], axis=-1).reshape((*lead, 2 * n * n))
    sums = padded[..., : n * (2 * n - 1)].reshape((*lead, n, 2 * n - 1)).sum(axis=-2)
    first = (arange(n, device=c.device) == 0).astype(c.dtype)
    return flip(sums[..., :n], axis=-1), sums[..., n - 1 :] * (1 - first), gb


_TOEPLITZ = Implicit(_toeplitz_tangent, _toeplitz_pull)


def _solved(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    def compute(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        return _levinson(c, r, b)

    return differentiated(_TOEPLITZ, compute, c, r, b)


@widens
def solve_toeplitz(c_or_cr: Any, b: ArrayLike, /) -> Tensor:
    """x with T x = b for Toeplitz matrices, in n² operations (Levinson 1946).

    Args:
        c_or_cr: the first column, or the first column and row (whose first element is not read);
            without a row it is the conjugate of the column. Leading axes are a batch.
        b: a vector, or matrices of right-hand sides; leading axes broadcast.

    All leading minors have to be regular: otherwise it is a `LinAlgError`, in `nm.jit` NaN.

    >>> nm.linalg.solve_toeplitz(nm.asarray([2.0, 1.0]), nm.asarray([4.0, 5.0])).tolist()
    [1.0, 2.0]
    """
    op = "solve_toeplitz"
    pair = c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr, None)
    if len(pair) != 2:
        raise ValueError(f"linalg.{op}: takes a column, or a column and a row, not {len(pair)}")
    column, row = pair
    given = [x for x in (column, row, b) if x is not None]
    xs, dtype = operands(op, *given)
    c, y = xs[0], xs[-1]
    r = c.conj() if row is None else xs[1]
    vector = y.ndim == 1
    y = y[:, None] if vector else y
    if c.ndim < 1 or c.shape[-1:] != r.shape[-1:] or y.ndim < 2 or y.shape[-2] != c.shape[-1]:
        raise ShapeError(
            f"linalg.{op}: a column of shape {c.shape}, a row of shape {r.shape} and right-hand "
            f"sides of shape {y.shape[:-1] if vector else y.shape} do not fit"
        )
    lead = broadcast_shapes(c.shape[:-1], r.shape[:-1], f"linalg.{op}")
    lead = broadcast_shapes(lead, y.shape[:-2], f"linalg.{op}")
    c, r = (broadcast_to(x, (*lead, x.shape[-1])) for x in (c, r))
    y = broadcast_to(y, (*lead, *y.shape[-2:]))
    if not y.size:
        return y.astype(dtype, copy=False)[..., 0] if vector else y.astype(dtype, copy=False)
    packed = _solved(c, r, y)
    with grad_mode(False):
        info = packed[..., -1, 0].detach()
        info = (info.real if info.dtype.is_complex else info).astype("int64")
    check(
        op, info, "has no solution by Levinson's recursion: its leading minor of order {} is zero"
    )
    found = spoiled(packed[..., :-1, :], info).astype(dtype, copy=False)
    return found[..., 0] if vector else found
