"""linprog: linear programs by an interior-point method.

The homogeneous self-dual algorithm with Mehrotra's predictor and corrector (Andersen and Andersen
2000): it starts anywhere, and tells infeasible and unbounded programs apart. Derivatives of the
solution are those of the vertex: which variables are zero does not change.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.optimize.casting import cast
from numus.optimize.implicit import implicit
from numus.optimize.line_search import dot
from numus.optimize.result import Result
from numus.shapes import as_int
from numus.tensor import Tensor

__all__ = ["LinprogResult", "linprog"]


class LinprogResult(Result):
    """x, fun, slack, con, nit, status, message and success."""

    messages: ClassVar[dict[int, str]] = {
        0: "Optimization terminated successfully.",
        1: "The iteration limit was reached before the optimum.",
        2: "The problem is infeasible.",
        3: "The problem is unbounded.",
        4: "Numerical difficulties were encountered.",
    }

    @property
    def success(self) -> Any:
        return self.status == 0


class _Point(NamedTuple):
    x: Tensor
    y: Tensor
    z: Tensor
    tau: Tensor
    kappa: Tensor
    nit: Tensor
    status: Tensor


def _matrix(op: str, name: str, A: Any, b: Any, n: int, dtype: Any) -> tuple[Tensor, Tensor]:
    """The rows and right-hand side of constraints; none of them where they are not given."""
    if A is None or b is None:
        if A is not None or b is not None:
            raise ValueError(f"{op}: A_{name} and b_{name} come together")
        return nm.zeros((0, n), dtype=dtype), nm.zeros((0,), dtype=dtype)
    rows, right = nm.asarray(A), nm.reshape(nm.asarray(b), -1)
    if rows.ndim != 2 or rows.shape != (right.shape[0], n):
        raise ShapeError(
            f"{op}: A_{name} has shape {rows.shape}, but there are {n} variables and "
            f"{right.shape[0]} entries of b_{name}"
        )
    return cast(rows, dtype), cast(right, dtype)


def _standard_variables(
    op: str, bounds: Any, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x = shift + T x', x' >= 0, and rows of x' with upper bounds."""
    pairs = (
        [bounds] * n if len(bounds) == 2 and not isinstance(bounds[0], (tuple, list)) else bounds
    )
    if isinstance(pairs, (np.ndarray, Tensor)):
        pairs = np.asarray(pairs).tolist()
    if len(pairs) != n:
        raise ShapeError(f"{op}: {n} variables need as many (low, high) pairs, not {len(pairs)}")
    shift = np.zeros(n)
    columns: list[tuple[int, float]] = []
    capped: list[int] = []
    caps: list[float] = []
    for i, (low, high) in enumerate(pairs):
        low = -math.inf if low is None else float(low)
        high = math.inf if high is None else float(high)
        if low > high:
            raise ValueError(f"{op}: variable {i} has the bounds {low} and {high}")
        if low > -math.inf:
            shift[i] = low
            if high < math.inf:
                capped.append(len(columns))
                caps.append(high - low)
            columns.append((i, 1.0))
        elif high < math.inf:
            shift[i] = high
            columns.append((i, -1.0))
        else:
            columns += [(i, 1.0), (i, -1.0)]
    T = np.zeros((n, len(columns)))
    for j, (i, sign) in enumerate(columns):
        T[i, j] = sign
    rows = np.zeros((len(capped), len(columns)))
    rows[np.arange(len(capped)), capped] = 1
    return shift, T, rows, np.array(caps)


def linprog(
    c: Any,
    A_ub: Any = None,
    b_ub: Any = None,
    A_eq: Any = None,
    b_eq: Any = None,
    bounds: Any = (0, None),
    method: str = "interior-point",
    options: Any = None,
) -> LinprogResult:
    """Minimise c x, where A_ub x <= b_ub and A_eq x = b_eq, and x is within bounds.

    Args:
        bounds: (low, high) for all variables or for each; None is no bound. The default is x >= 0.
        method: "interior-point" ("highs", SciPy's default, is taken as the same).
        options: `tol`, 1e-9 for float64, and `maxiter`, 200.

    >>> found = nm.optimize.linprog([-1.0, -2.0], A_ub=[[1.0, 1.0], [-1.0, 1.0]], b_ub=[4.0, 2.0])
    >>> found.success.item(), nm.round(found.x, decimals=3).tolist()
    (True, [1.0, 3.0])
    """
    op = "linprog"
    if method not in ("interior-point", "highs", "highs-ipm"):
        raise ValueError(f"{op}: there is no method {method!r}; it is interior-point")
    given = dict(options or {})
    for name in given:
        if name not in ("tol", "maxiter", "disp"):
            raise ValueError(f"{op}: there is no option {name!r}; there are tol and maxiter")
    costs = nm.asarray(c)
    operands = [nm.asarray(x) for x in (c, A_ub, b_ub, A_eq, b_eq) if x is not None]
    dtype = nm.result_type(*operands, nm.float32)
    if costs.ndim != 1 or costs.shape[0] == 0:
        raise ShapeError(f"{op}: c must be a vector of costs, not of shape {costs.shape}")
    costs = cast(costs, dtype)
    n = costs.shape[0]
    upper, upper_right = _matrix(op, "ub", A_ub, b_ub, n, dtype)
    equal, equal_right = _matrix(op, "eq", A_eq, b_eq, n, dtype)
    shift, T, caps, caps_right = (
        nm.asarray(x, dtype=dtype, device=costs.device) for x in _standard_variables(op, bounds, n)
    )
    slack = upper.shape[0] + caps.shape[0]
    top = nm.concat([upper @ T, caps])
    slacks = nm.eye(slack, dtype=dtype, device=costs.device)
    below = nm.zeros((equal.shape[0], slack), dtype=dtype, device=costs.device)
    A = nm.concat([nm.concat([top, slacks], 1), nm.concat([equal @ T, below], 1)])
    b = nm.concat([upper_right - upper @ shift, caps_right, equal_right - equal @ shift])
    cost = nm.concat([costs @ T, nm.zeros((slack,), dtype=dtype, device=costs.device)])
    eps = float(nm.finfo(dtype).eps)
    tol = given.get("tol", max(1e-9, 50 * eps))
    maxiter = as_int(given.get("maxiter", 200), "maxiter", op)
    with nm.no_grad():
        s = _interior_point(A.detach(), b.detach(), cost.detach(), tol, maxiter)
        standard = s.x / s.tau
        basic = standard > s.z / s.tau
    standard = implicit(
        lambda held, x: nm.where(basic, held[0].mT @ (held[0] @ x - held[1]), x), standard, [A, b]
    )
    x = shift + T @ standard[: T.shape[1]]
    bad = s.status >= 2
    x = nm.where(bad, nm.nan, x)
    return LinprogResult(
        x=x, fun=dot(costs, x), slack=upper_right - upper @ x, con=equal_right - equal @ x,
        nit=s.nit, status=s.status,
    )  # fmt: skip


def _interior_point(A: Tensor, b: Tensor, c: Tensor, tol: float, maxiter: int) -> _Point:
    m, n = A.shape
    one = nm.ones_like(c)
    count = nm.zeros_like(c[0], dtype=nm.int32)
    start = _Point(one, nm.zeros_like(b), one, one[0], one[0], count, count - 1)

    def residuals(s: _Point) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        primal = b * s.tau - A @ s.x
        dual = c * s.tau - s.y @ A - s.z
        gap = dot(c, s.x) - dot(b, s.y) + s.kappa
        return primal, dual, gap, (dot(s.x, s.z) + s.tau * s.kappa) / (n + 1)

    def size(v: Tensor) -> Tensor:
        return nm.sqrt(dot(v, v))

    first = residuals(start)
    scales = [nm.maximum(1.0, size(first[0])), nm.maximum(1.0, size(first[1]))]
    scales.append(nm.maximum(1.0, nm.abs(first[2])))

    def verdict(s: _Point, moved: Tensor) -> Tensor:
        primal, dual, gap, mu = residuals(s)
        objective = nm.abs(dot(c, s.x) - dot(b, s.y)) / (s.tau + nm.abs(dot(b, s.y)))
        small = [size(primal) / scales[0] < tol, size(dual) / scales[1] < tol]
        small_gap = nm.abs(gap) / scales[2] < tol
        feasible = (size(primal) / s.tau < tol * scales[0]) & (size(dual) / s.tau < tol * scales[1])
        optimal = feasible & (objective < tol)
        lost = small[0] & small[1] & small_gap & (s.tau < tol * nm.maximum(1.0, s.kappa))
        lost = lost | ((mu / first[3] < tol) & (s.tau < tol * nm.minimum(1.0, s.kappa)))
        which = nm.where(dot(b, s.y) > tol, 2, 3)
        finite = nm.isfinite(mu) & nm.all(nm.isfinite(s.x))
        status = nm.where(s.nit >= maxiter, 1, nm.where(moved, -1, 4))
        status = nm.where(optimal, 0, nm.where(lost, which, status))
        return cast(nm.where(finite, status, 4), nm.int32)

    def step(s: _Point) -> _Point:
        primal, dual, gap, mu = residuals(s)
        ratio = s.x / s.z
        M = (A * ratio) @ A.mT
        # dependent rows leave the matrix singular but for roundings
        least = float(nm.finfo(c.dtype).eps) * (nm.max(nm.diagonal(M)) + 1)
        factor = nm.linalg.cholesky(M + least * nm.eye(m, dtype=c.dtype, device=c.device))

        def back(r: Tensor) -> Tensor:
            half = nm.linalg.solve_triangular(factor, nm.expand_dims(r, 1), lower=True)
            return nm.linalg.solve_triangular(factor, half, lower=True, trans=1)[:, 0]

        def solve(r1: Tensor, r2: Tensor) -> tuple[Tensor, Tensor]:
            right = r2 + A @ (ratio * r1)
            v = back(right)
            for _ in range(2):  # refined
                v = v + back(right - M @ v)
            return ratio * (v @ A - r1), v

        p, q = solve(c, b)
        dx, dz, dtau, dkappa = 0 * s.x, 0 * s.z, 0 * s.tau, 0 * s.kappa
        dy, gamma, eta = 0 * s.y, 0 * s.tau, 1 + 0 * s.tau
        for _ in range(2):  # predictor, corrector
            xz = gamma * mu - s.x * s.z - dx * dz
            tk = gamma * mu - s.tau * s.kappa - dtau * dkappa
            u, v = solve(eta * dual - xz / s.x, eta * primal)
            above = eta * gap + tk / s.tau - (dot(b, v) - dot(c, u))
            dtau = above / (s.kappa / s.tau + (dot(b, q) - dot(c, p)))
            dx, dy = u + p * dtau, v + q * dtau
            dz, dkappa = (xz - s.z * dx) / s.x, (tk - s.kappa * dtau) / s.tau
            alpha = _longest(s, dx, dz, dtau, dkappa)
            gamma = (1 - alpha) ** 2 * nm.minimum(0.1, 1 - alpha)
            eta = 1 - gamma
        alpha = nm.minimum(1.0, 0.99995 * alpha)
        new = _Point(
            s.x + alpha * dx, s.y + alpha * dy, s.z + alpha * dz, s.tau + alpha * dtau,
            s.kappa + alpha * dkappa, cast(s.nit + 1, nm.int32), s.status,
        )  # fmt: skip
        return new._replace(status=verdict(new, alpha > 1e-12))

    return nm.while_loop(lambda s: s.status < 0, step, start)


def _longest(s: _Point, dx: Tensor, dz: Tensor, dtau: Tensor, dkappa: Tensor) -> Tensor:
    """The longest step, at most 1, that keeps everything positive."""
    found: Any = nm.ones_like(s.tau)
    for at, move in ((s.x, dx), (s.z, dz), (s.tau, dtau), (s.kappa, dkappa)):
        limit = nm.where(move < 0, at / nm.where(move < 0, -move, 1.0), nm.inf)
        found = nm.minimum(found, nm.min(limit) if limit.ndim else limit)
    return found
