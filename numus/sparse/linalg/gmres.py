"""GMRES with restarts (Saad & Schultz 1986) and its flexible variant (Saad 1993).

Preconditioners stand on the right, so that the norm that is minimised is that of the residual. The
Arnoldi basis is orthogonalised twice by classical Gram–Schmidt, two products with the whole basis;
the rotations that make the Hessenberg matrix triangular are kept as one unitary matrix.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.shapes import as_int
from numus.sparse.linalg.driver import (
    Problem,
    Progress,
    SolveResult,
    State,
    norm,
    posed,
    ratio,
    solved,
)
from numus.tensor import Tensor


def _set_row(x: Tensor, at: Tensor, row: Tensor) -> Tensor:
    """x with one slice of its first axis replaced."""
    numbers = nm.arange(x.shape[0], device=x.device).reshape(-1, *(1,) * (x.ndim - 1))
    return nm.where(numbers == at, row, x)


def _row(x: Tensor, at: Tensor) -> Tensor:
    """One slice of the first axis."""
    return nm.take(x, at.reshape(1).astype(nm.int64), axis=0)[0]


def _arnoldi(p: Problem, s: State, j: Tensor, flexible: bool) -> State:
    """One more vector of the basis, and one more column of the triangular matrix."""
    v = _row(s["basis"], j)
    z = p.precondition(v)
    w = p.system.apply(z)
    basis = s["basis"]  # (m + 1, n, k), zero from vector j + 1 on
    h = nm.zeros_like(s["rotations"][:, 0])
    for _ in range(2):
        part = nm.sum(nm.conj(basis) * w, axis=1)  # (m + 1, k)
        w = w - nm.sum(basis * part[:, None], axis=0)
        h = h + part
    size = norm(w)
    h = _set_row(h, j + 1, size.astype(h.dtype))
    following = w * ratio(nm.ones_like(size), size)
    # all earlier rotations at once, then the one that makes entry j + 1 zero
    rotated = nm.sum(s["rotations"] * h, axis=1)  # (m + 1, m + 1, k) times (m + 1, k)
    a, b = _row(rotated, j), _row(rotated, j + 1)
    length = nm.sqrt(nm.square(nm.abs(a)) + nm.square(nm.abs(b)))
    c, d = ratio(nm.conj(a), length), ratio(nm.conj(b), length)
    first, second = _row(s["rotations"], j), _row(s["rotations"], j + 1)
    rotations = _set_row(s["rotations"], j, c * first + d * second)
    rotations = _set_row(rotations, j + 1, nm.conj(c) * second - nm.conj(d) * first)
    column = _set_row(_set_row(rotated, j, length.astype(h.dtype)), j + 1, nm.zeros_like(a))
    new = {
        **s,
        "basis": _set_row(basis, j + 1, following),
        "rotations": rotations,
        "triangle": _set_row(s["triangle"], j, column[:-1]),
    }
    if flexible:
        new["directions"] = _set_row(s["directions"], j, z)
    return new


def _cycle_start(p: Problem, x: Tensor, restart: int, flexible: bool) -> State:
    r = p.b - p.system.apply(x)
    beta = norm(r)
    k = beta.shape[0]
    dtype, dev = r.dtype, r.device
    basis = nm.zeros((restart + 1, *r.shape), dtype=dtype, device=dev)
    zero = nm.zeros((), dtype=nm.int32, device=dev)
    unit = r * ratio(nm.ones_like(beta), beta)
    rotations = nm.broadcast_to(
        nm.eye(restart + 1, dtype=dtype, device=dev)[:, :, None], (restart + 1, restart + 1, k)
    )
    triangle = nm.broadcast_to(
        nm.eye(restart, dtype=dtype, device=dev)[:, :, None], (restart, restart, k)
    )
    state = {
        "x": x,
        "basis": _set_row(basis, zero, unit),
        "rotations": rotations + 0,
        "triangle": triangle + 0,
        "beta": beta,
    }
    if flexible:
        state["directions"] = nm.zeros((restart, *r.shape), dtype=dtype, device=dev)
    return state


def _corrected(p: Problem, s: State, count: Tensor, flexible: bool) -> Tensor:
    """x with the step of the cycle's first `count` vectors (of each column)."""
    restart = s["triangle"].shape[0]
    right = (s["rotations"][:-1, 0] * s["beta"]).astype(s["x"].dtype)  # (m, k)
    numbers = nm.arange(restart, device=right.device)[:, None]
    inside = numbers < count
    right = nm.where(inside, right, nm.zeros_like(right))
    # rows are the columns of the triangle: (k, row, column)
    triangle = nm.permute_dims(s["triangle"], (2, 1, 0))
    outside = ~(inside.mT[:, None, :] & inside.mT[:, :, None])
    unit = nm.eye(restart, dtype=triangle.dtype, device=triangle.device)
    triangle = nm.where(outside, unit, triangle)
    diagonal = unit != 0
    triangle = nm.where(diagonal & (triangle == 0), nm.ones_like(triangle), triangle)
    y = nm.linalg.solve_triangular(triangle, right.mT[:, :, None])[:, :, 0].mT
    if flexible:
        return s["x"] + nm.sum(s["directions"] * y[:, None], axis=0)
    return s["x"] + p.precondition(nm.sum(s["basis"][:-1] * y[:, None], axis=0))


def _gmres(
    op: str, a: Any, b: Any, x0: Any, rtol: float, atol: float, restart: int,
    maxiter: int | None, M: Any, flexible: bool,
) -> SolveResult:  # fmt: skip
    p = posed(op, a, b, x0, rtol, atol, maxiter, M)
    restart = max(1, min(as_int(restart, "restart", op), max(1, p.n)))

    def method(p: Problem) -> tuple[Tensor, dict[str, Any]]:
        progress = Progress(p.tolerance, p.maxiter)

        def inner_goes_on(c: dict[str, Any]) -> Tensor:
            return progress.goes_on(c["progress"]) & (c["at"] < restart)

        def inner(c: dict[str, Any]) -> dict[str, Any]:
            at, s, now = c["at"], c["state"], c["progress"]
            new = _arnoldi(p, s, at, flexible)
            estimate = s["beta"] * nm.abs(_row(new["rotations"], at + 1)[0])
            count = nm.where(progress.active(now), at + 1, c["count"])
            now = progress.advanced(now, estimate, nm.isfinite(estimate))
            return {"state": new, "progress": now, "at": at + 1, "count": count}

        def cycle(c: dict[str, Any]) -> dict[str, Any]:
            now = c["progress"]
            begin = {
                "state": _cycle_start(p, c["x"], restart, flexible),
                "progress": now,
                "at": nm.zeros_like(now["step"]),
                "count": nm.zeros_like(now["iterations"]),
            }
            end = nm.while_loop(inner_goes_on, inner, begin)
            x = _corrected(p, end["state"], end["count"], flexible)
            true, now = norm(p.b - p.system.apply(x)), end["progress"]
            worked = end["count"] > 0
            good = nm.isfinite(true) & worked
            now = {
                **now,
                "residual": nm.where(good, true, now["residual"]),
                "broken": now["broken"] | (worked & ~good),
            }
            return {"x": nm.where(good, x, c["x"]), "progress": now}

        first = norm(p.b - p.system.apply(p.x0))
        start = {"x": p.x0, "progress": progress.start(first)}
        found = nm.while_loop(lambda c: progress.goes_on(c["progress"]), cycle, start)
        return found["x"], found["progress"]

    return solved(p, method)


def gmres(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, restart: int = 20,
    maxiter: int | None = None, M: Any = None,
) -> SolveResult:  # fmt: skip
    """The generalised minimal residual method with restarts, for any matrix.

    Args:
        a: a sparse or dense matrix, or a LinearOperator.
        b: a vector, or a matrix of several right-hand sides.
        x0: where to start; zero where it is None.
        rtol: stop where the norm of the residual is at most rtol times that of b,
        atol: or at most this.
        restart: vectors of the basis; it is begun anew when they are used up.
        maxiter: the most iterations, each a product with the matrix; 10 times the number of
            unknowns where it is None.
        M: a preconditioner that approximates the inverse of a: a matrix, operator or function.

    >>> import numus as nm
    >>> from numus.sparse.linalg import gmres
    >>> a = nm.sparse.from_dense(nm.asarray([[2.0, 1.0], [0.0, 4.0]]))
    >>> [round(v, 4) for v in gmres(a, nm.asarray([3.0, 4.0])).x.tolist()]
    [1.0, 1.0]
    """
    return _gmres("gmres", a, b, x0, rtol, atol, restart, maxiter, M, False)


def fgmres(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, restart: int = 20,
    maxiter: int | None = None, M: Any = None,
) -> SolveResult:  # fmt: skip
    """Flexible GMRES, whose preconditioner may be another in every step, as a solver is.

    The arguments are those of `gmres`; twice as many vectors are kept.

    >>> import numus as nm
    >>> from numus.sparse.linalg import fgmres
    >>> fgmres(nm.sparse.diags([2.0, 4.0]), nm.ones(2), M=lambda x: x / nm.sum(x * x)).converged
    True
    """
    return _gmres("fgmres", a, b, x0, rtol, atol, restart, maxiter, M, True)
