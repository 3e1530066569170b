"""Stationary methods and Chebyshev's iteration: Jacobi, Gauss–Seidel, SOR and SSOR.

Rows of one colour, none of which reads another, are relaxed together (multicolour ordering, Adams &
Ortega 1982), so that a sweep of Gauss–Seidel or SOR is as many products as there are colours, on
every device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import LinAlgError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.sparse.linalg.iterative.driver import (
    Callback,
    Problem,
    SolveResult,
    State,
    iterate,
    norm,
    posed,
    solved,
)
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor

Found = tuple[Tensor, dict[str, Any]]


def _diagonal(a: Any, op: str) -> Tensor:
    """As a column; checked."""
    if not isinstance(a, SparseTensor):
        raise TypeError(f"{op}: takes a sparse matrix, whose diagonal it needs")
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ShapeError(f"{op}: a matrix of shape {a.shape} is not square")
    diagonal = nm.detach(a.diagonal())
    if is_known(diagonal._node) and not bool(nm.all(diagonal != 0)):
        raise LinAlgError(f"{op}: the diagonal has a zero")
    return diagonal[:, None]


def _matrix(p: Problem, forward: Any) -> Any:
    """The matrix of a system, or of its adjoint, whose parameters are the same."""
    return p.system.parameters if p.system.forward is forward else p.system.parameters.H


def jacobi(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, omega: float = 1.0,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Jacobi's iteration, damped by `omega`; it converges for diagonally dominant matrices.

    The other arguments are those of `cg`.

    >>> import numus as nm
    >>> from numus.sparse.linalg import jacobi
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2))
    >>> jacobi(a, nm.asarray([5.0, 4.0])).converged
    True
    """
    _diagonal(a, "jacobi")
    p = posed("jacobi", a, b, x0, rtol, atol, maxiter, callback=callback)
    forward = p.system.forward

    def method(p: Problem) -> Found:
        scale = omega / _diagonal(_matrix(p, forward), p.op).astype(p.b.dtype)

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            x = s["x"] + scale * s["r"]
            r = p.b - p.system.apply(x)
            small = norm(r)
            return {"x": x, "r": r}, small, nm.isfinite(small)

        r = p.b - p.system.apply(p.x0)
        found = iterate(p, {"x": p.x0, "r": r}, step, norm(r))
        return found["x"], found

    return solved(p, method)


def _colours(a: SparseTensor) -> list[Any]:
    """Rows in groups, none of which has two that are connected: greedy, in their order."""
    pattern, _ = a.structure.rows
    swapped, _ = pattern.transposed
    n = a.shape[0]
    colour = np.full(n, -1)
    rows = [(p.pointers.array, p.indices.array) for p in (pattern, swapped)]
    for i in range(n):
        near = np.concatenate([indices[starts[i] : starts[i + 1]] for starts, indices in rows])
        taken = set(colour[near[near != i]].tolist())
        c = 0
        while c in taken:
            c += 1
        colour[i] = c
    return [np.flatnonzero(colour == c) for c in range(int(colour.max(initial=-1)) + 1)]


def sor(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, omega: float = 1.0, symmetric: bool = False,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Successive over-relaxation, in the order of colours; with `symmetric`, there and back (SSOR).

    The other arguments are those of `cg`; `omega` is between 0 and 2.

    >>> import numus as nm
    >>> from numus.sparse.linalg import sor
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2))
    >>> sor(a, nm.asarray([5.0, 4.0]), omega=1.1).converged
    True
    """
    if not 0 < omega < 2:
        raise ValueError(f"sor: omega={omega} is not between 0 and 2")
    return _relaxed("sor", a, b, x0, rtol, atol, maxiter, omega, symmetric, callback)


def gauss_seidel(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, symmetric: bool = False,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Gauss–Seidel's iteration, in the order of colours; with `symmetric`, there and back.

    The other arguments are those of `cg`.

    >>> import numus as nm
    >>> from numus.sparse.linalg import gauss_seidel
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2))
    >>> gauss_seidel(a, nm.asarray([5.0, 4.0])).converged
    True
    """
    return _relaxed("gauss_seidel", a, b, x0, rtol, atol, maxiter, 1.0, symmetric, callback)


def _relaxed(
    op: str, a: Any, b: Any, x0: Any, rtol: float, atol: float, maxiter: int | None,
    omega: float, symmetric: bool, callback: Callback,
) -> SolveResult:  # fmt: skip
    _diagonal(a, op)
    p = posed(op, a, b, x0, rtol, atol, maxiter, callback=callback)
    forward = p.system.forward
    groups = _colours(a)
    order = np.concatenate([*groups, np.zeros(0, np.int64)]).astype(np.int64)
    place = np.argsort(order)
    ends = np.cumsum([0, *(g.size for g in groups)])

    def method(p: Problem) -> Found:
        matrix = _matrix(p, forward).map(nm.detach)
        scale = omega / _diagonal(matrix, p.op).astype(p.b.dtype)[nm.asarray(order)]
        parts = [matrix[g][:, order] for g in groups]
        right = p.b[nm.asarray(order)]
        path = [*range(len(groups))]
        path += path[::-1] if symmetric else []

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            x = s["x"]
            for c in path:
                low, high = int(ends[c]), int(ends[c + 1])
                change = scale[low:high] * (right[low:high] - parts[c] @ x)
                x = nm.concatenate([x[:low], x[low:high] + change, x[high:]])
            rest = [right[low:high] - part @ x for part, low, high in spans]
            small = norm(nm.concatenate(rest) if rest else right)
            return {"x": x}, small, nm.isfinite(small)

        spans = [(parts[c], int(ends[c]), int(ends[c + 1])) for c in range(len(groups))]
        start = p.x0[nm.asarray(order)]
        found = iterate(p, {"x": start}, step, norm(p.b - p.system.apply(p.x0)))
        return found["x"][nm.asarray(place)], found

    return solved(p, method)


def chebyshev(
    a: Any, b: Any, x0: Any = None, *, bounds: tuple[float, float], rtol: float = 1e-5,
    atol: float = 0.0, maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Chebyshev's iteration for Hermitian positive definite matrices: no products of vectors.

    Args:
        a: a sparse or dense matrix, or a LinearOperator.
        b: a vector, or a matrix of several right-hand sides.
        x0: where to start; zero where it is None.
        bounds: below and above the eigenvalues (of M a, with a preconditioner).
        rtol: stop where the norm of the residual is at most rtol times that of b,
        atol: or at most this.
        maxiter: the most iterations.
        M: a preconditioner.
        callback: called by the host after each iteration, as callback(iterations, residual) with
            the norms of residuals; the loop is then no single program.

    >>> import numus as nm
    >>> from numus.sparse.linalg import chebyshev
    >>> chebyshev(nm.sparse.diags([2.0, 4.0]), nm.ones(2), bounds=(2.0, 4.0)).converged
    True
    """
    low, high = bounds
    if not 0 < low <= high:
        raise ValueError(f"chebyshev: bounds of {bounds} are not positive and in order")
    p = posed("chebyshev", a, b, x0, rtol, atol, maxiter, M, callback=callback)
    centre, radius = (high + low) / 2, (high - low) / 2

    def method(p: Problem) -> Found:
        m = p.precondition
        r = p.b - p.system.apply(p.x0)
        one = nm.ones_like(norm(r))

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            x = s["x"] + s["d"]
            r = s["r"] - p.system.apply(s["d"])
            rho = 1 / (2 * centre / radius - s["rho"]) if radius else 0 * one
            d = m(r) / centre if not radius else rho * s["rho"] * s["d"] + (2 * rho / radius) * m(r)
            small = norm(r)
            return {"x": x, "r": r, "d": d, "rho": rho}, small, nm.isfinite(small)

        first = {"x": p.x0, "r": r, "d": m(r) / centre, "rho": one * (radius / centre)}
        found = iterate(p, first, step, norm(r))
        return found["x"], found

    return solved(p, method)
