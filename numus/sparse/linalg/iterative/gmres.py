"""GMRES with restarts (Saad & Schultz 1986), its flexible variant (Saad 1993), cycles of changing
length (Baker, Jessup & Kolev 2009), and LGMRES, whose cycles begin with what earlier ones have
found (Baker, Jessup & Manteuffel 2005).

Preconditioners stand on the right, so that the norm that is minimised is that of the residual. The
cycle itself is in `arnoldi.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.shapes import as_int
from numus.sparse.linalg.iterative.arnoldi import Cycle
from numus.sparse.linalg.iterative.driver import (
    Callback,
    Problem,
    Progress,
    SolveResult,
    looped,
    norm,
    posed,
    ratio,
    solved,
)
from numus.tensor import Tensor


@dataclass(frozen=True)
class Variant:
    """What distinguishes the methods of this family."""

    restart: int
    flexible: bool = False
    adaptive: bool = False
    errors: int = 0  # of earlier cycles that augment the space


# Of Baker, Jessup & Kolev: cycles that nearly stagnate become long, those that do well stay as they
# are, others become shorter by a few vectors.
_STAGNATING, _CONVERGING = 0.99, 0.175
_FEWER_VECTORS, _LEAST_VECTORS = 3, 3


def _next_length(length: Tensor, restart: int, decrease: Tensor) -> Tensor:
    shorter = length - _FEWER_VECTORS
    most = nm.full_like(length, restart)
    changed = nm.where(shorter < min(_LEAST_VECTORS, restart), most, shorter)
    changed = nm.where(decrease < _CONVERGING, length, changed)
    return nm.where(decrease > _STAGNATING, most, changed)


def _method(p: Problem, v: Variant) -> tuple[Tensor, dict[str, Any]]:
    progress = Progress(p.tolerance, p.maxiter)
    whole = Cycle(p, progress, v.restart, v.errors, v.flexible)

    def cycle(c: dict[str, Any]) -> dict[str, Any]:
        before = c["true"]
        change, count, now = whole.run(c["x"], c["length"], c["errors"], c["kept"], c["progress"])
        x = c["x"] + change
        true = norm(p.b - p.system.apply(x))
        worked = count > 0
        good = (true < before) & worked
        # the same residual leads to the same cycle
        eps = nm.finfo(true.dtype).eps
        stagnates = (true >= (1 - 4 * eps) * before) & (true > p.tolerance)
        now = {
            **now,
            "residual": nm.where(good, true, before),
            "broken": now["broken"] | (worked & (~good | stagnates)),
        }
        out = {**c, "x": nm.where(good, x, c["x"]), "true": nm.where(good, true, before)}
        if v.adaptive:
            decrease = nm.max(nm.where(worked, ratio(true, before), nm.zeros_like(true)))
            out["length"] = _next_length(c["length"], v.restart, decrease)
        if v.errors:
            unit = change * ratio(nm.ones_like(true), norm(change))
            out["errors"] = nm.concatenate([unit.mT[:, None], c["errors"][:, :-1]], axis=1)
            out["kept"] = nm.minimum(c["kept"] + 1, nm.full_like(c["kept"], v.errors))
        return {**out, "progress": now}

    first = norm(p.b - p.system.apply(p.x0))
    dev = p.b.device
    columns, n = p.b.shape[1], p.n
    start: dict[str, Any] = {
        "x": p.x0,
        "true": first,
        "length": nm.full((), v.restart, dtype=nm.int32, device=dev),
        "errors": nm.zeros((columns, v.errors, n), dtype=p.b.dtype, device=dev),
        "kept": nm.zeros((), dtype=nm.int32, device=dev),
        "progress": progress.start(first),
    }
    found = looped(
        *(p, lambda c: c["progress"], lambda c: progress.goes_on(c["progress"]), cycle, start)
    )
    return found["x"], found["progress"]


def _gmres(
    op: str, a: Any, b: Any, x0: Any, rtol: float, atol: float, maxiter: int | None, M: Any,
    restart: int, callback: Callback, flexible: bool = False, adaptive: bool = False,
    errors: int = 0,
) -> SolveResult:  # fmt: skip
    p = posed(op, a, b, x0, rtol, atol, maxiter, M, callback=callback)
    restart = max(1, min(as_int(restart, "restart", op), max(1, p.n)))
    variant = Variant(restart, flexible, adaptive, errors)
    return solved(p, lambda p: _method(p, variant))


def gmres(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, restart: int = 20,
    maxiter: int | None = None, M: Any = None, adaptive: bool = False,
    callback: Callback = None,
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
        adaptive: choose the length of each cycle by what the one before achieved, at most
            `restart`.
        callback: called by the host after each cycle, as callback(iterations, residual) with
            the norms of residuals; the loop is then no single program.

    It has broken down (`info` is -1) where a cycle finds nothing better than its start.

    >>> import numus as nm
    >>> from numus.sparse.linalg import gmres
    >>> a = nm.sparse.from_dense(nm.asarray([[2.0, 1.0], [0.0, 4.0]]))
    >>> [round(v, 4) for v in gmres(a, nm.asarray([3.0, 4.0])).x.tolist()]
    [1.0, 1.0]
    """
    return _gmres("gmres", a, b, x0, rtol, atol, maxiter, M, restart, callback, adaptive=adaptive)


def fgmres(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0, restart: int = 20,
    maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Flexible GMRES, whose preconditioner may be another in every step, as a solver is.

    The arguments are those of `gmres`; twice as many vectors are kept.

    >>> import numus as nm
    >>> from numus.sparse.linalg import fgmres
    >>> fgmres(nm.sparse.diags([2.0, 4.0]), nm.ones(2), M=lambda x: x / nm.sum(x * x)).converged
    True
    """
    return _gmres("fgmres", a, b, x0, rtol, atol, maxiter, M, restart, callback, flexible=True)


def lgmres(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None, inner_m: int = 30, outer_k: int = 3,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """GMRES that keeps from one cycle to the next what the last ones have added to the solution.

    Where GMRES with restarts alternates between two directions, this one needs fewer iterations.

    Args:
        a, b, x0, rtol, atol, maxiter, M: as of `gmres`.
        inner_m: vectors of the Krylov space in a cycle.
        outer_k: how many earlier changes of the solution are added to it.
        callback: called by the host after each cycle, as callback(iterations, residual) with
            the norms of residuals; the loop is then no single program.

    >>> import numus as nm
    >>> from numus.sparse.linalg import lgmres
    >>> a = nm.sparse.from_dense(nm.asarray([[2.0, 1.0], [0.0, 4.0]]))
    >>> [round(v, 4) for v in lgmres(a, nm.asarray([3.0, 4.0])).x.tolist()]
    [1.0, 1.0]
    """
    op = "lgmres"
    errors = as_int(outer_k, "outer_k", op)
    if errors < 0:
        raise ValueError(f"{op}: outer_k must not be negative, but is {outer_k}")
    return _gmres(op, a, b, x0, rtol, atol, maxiter, M, inner_m, callback, errors=errors)
