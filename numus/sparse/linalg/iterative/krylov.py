"""Krylov methods of short recurrences: CG, MINRES, BiCGSTAB, CGS, QMR, TFQMR.

Hestenes & Stiefel 1952; Paige & Saunders 1975; van der Vorst 1992; Sonneveld 1989; Freund &
Nachtigal 1991; Freund 1993. Each is one program for all right-hand sides (`driver.py`).
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.primitives.sparse import csr_dotted
from numus.runtime.devices import default
from numus.sparse.linalg.iterative.driver import (
    Callback,
    Problem,
    SolveResult,
    State,
    dot,
    iterate,
    norm,
    posed,
    ratio,
    solved,
)
from numus.sparse.linalg.operators import System
from numus.sparse.structure import CSR
from numus.tensor import Tensor

Found = tuple[Tensor, dict[str, Any]]


def product_and_dot(system: System, x: Tensor) -> tuple[Tensor, Tensor]:
    """A x and xᴴ A x of each column, by one kernel on GPUs for one vector and a matrix that has
    templates of rows."""
    matrix = system.matrix
    is_single = x.dtype is nm.float32  # in float64 it takes longer than two kernels
    if matrix is not None and isinstance(matrix.structure, CSR) and x.shape[1] == 1 and is_single:
        device, pattern = x._node.device or default.device, matrix.structure.pattern
        kind, known = pattern.known_rows(device)
        if kind == "templates":
            values = matrix.values.astype(x.dtype, copy=False)[None]
            arrays, vector = pattern.arrays(device), x[None, :, 0]
            found = Tensor(csr_dotted(*arrays, values._node, vector._node, known))[0]
            n = x.shape[0]
            return found[:n, None], nm.sum(found[n:], axis=0, keepdims=True)
    product = system.apply(x)
    return product, dot(x, product)


def cg(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Conjugate gradients, for Hermitian positive definite matrices.

    Args:
        a: a sparse or dense matrix, or a LinearOperator.
        b: a vector, or a matrix of several right-hand sides.
        x0: where to start; zero where it is None.
        rtol: stop where the norm of the residual is at most rtol times that of b,
        atol: or at most this.
        maxiter: the most iterations; 10 times the number of unknowns where it is None.
        M: a preconditioner that approximates the inverse of a: a matrix, operator or function.
        callback: called by the host after each iteration, as callback(iterations, residual) with
            the norms of residuals; the loop is then no single program.

    >>> import numus as nm
    >>> from numus.sparse.linalg import cg
    >>> a = nm.sparse.diags([[2.0, 2.0, 2.0], -1.0, -1.0], [0, 1, -1], (3, 3))
    >>> found = cg(a, nm.asarray([1.0, 0.0, 1.0]))
    >>> [round(v, 4) for v in found.x.tolist()], found.converged
    ([1.0, 1.0, 1.0], True)
    """
    p = posed("cg", a, b, x0, rtol, atol, maxiter, M, callback=callback)

    def method(p: Problem) -> Found:
        m = p.precondition
        r = p.b - p.system.apply(p.x0)
        z = m(r)

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            q, curvature = product_and_dot(p.system, s["p"])
            alpha = ratio(s["rz"], curvature)
            x, r = s["x"] + alpha * s["p"], s["r"] - alpha * q
            z = m(r)
            rz = dot(r, z)
            new = z + ratio(rz, s["rz"]) * s["p"]
            return {"x": x, "r": r, "p": new, "rz": rz}, norm(r), curvature != 0

        found = iterate(p, {"x": p.x0, "r": r, "p": z, "rz": dot(r, z)}, step, norm(r))
        return found["x"], found

    return solved(p, method)


def minres(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """The minimal residual method, for Hermitian matrices, indefinite ones too.

    The arguments are those of `cg`; a preconditioner is Hermitian and positive definite.

    >>> import numus as nm
    >>> from numus.sparse.linalg import minres
    >>> minres(nm.sparse.diags([2.0, -4.0]), nm.ones(2)).x.tolist()
    [0.5, -0.25]
    """
    p = posed("minres", a, b, x0, rtol, atol, maxiter, M, callback=callback)

    def method(p: Problem) -> Found:
        m = p.precondition
        r = p.b - p.system.apply(p.x0)
        y = m(r)
        beta = nm.sqrt(nm.abs(dot(r, y)))
        zero, one = nm.zeros_like(beta), nm.ones_like(beta)
        empty = nm.zeros_like(r)
        first: State = {
            **{"x": p.x0, "r1": r, "r2": r, "y": y, "w": empty, "w2": empty, "res": r},
            **{"old": zero, "beta": beta, "dbar": zero, "epsilon": zero, "phi": beta},
            **{"cs": -one, "sn": zero, "aw": empty, "aw2": empty, "started": zero},
        }

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            v = s["y"] * ratio(nm.ones_like(s["beta"]), s["beta"])
            av = p.system.apply(v)
            z = av - ratio(s["beta"], s["old"]) * s["r1"]
            alpha = nm.real(dot(v, z)) if z.dtype.is_complex else dot(v, z)
            z = z - ratio(alpha, s["beta"]) * s["r2"]
            y = m(z)
            beta = nm.sqrt(nm.abs(dot(z, y)))
            oldeps = s["epsilon"]
            delta = s["cs"] * s["dbar"] + s["sn"] * alpha
            gbar = s["sn"] * s["dbar"] - s["cs"] * alpha
            epsilon, dbar = s["sn"] * beta, -s["cs"] * beta
            gamma = nm.sqrt(gbar * gbar + beta * beta)
            cs, sn = ratio(gbar, gamma), ratio(beta, gamma)
            phi = cs * s["phi"]
            over = ratio(nm.ones_like(gamma), gamma)
            w = (v - oldeps * s["w2"] - delta * s["w"]) * over
            aw = (av - oldeps * s["aw2"] - delta * s["aw"]) * over
            res = s["res"] - phi * aw
            new = {
                **{"x": s["x"] + phi * w, "r1": s["r2"], "r2": z, "y": y, "w": w, "w2": s["w"]},
                **{"old": s["beta"], "beta": beta, "dbar": dbar, "epsilon": epsilon},
                **{"phi": sn * s["phi"], "cs": cs, "sn": sn, "res": res},
                **{"aw": aw, "aw2": s["aw"], "started": s["started"]},
            }
            return new, norm(res), gamma != 0

        found = iterate(p, first, step, norm(r))
        return found["x"], found

    return solved(p, method)


def bicgstab(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Stabilised biconjugate gradients, for any matrix. The arguments are those of `cg`.

    >>> import numus as nm
    >>> from numus.sparse.linalg import bicgstab
    >>> a = nm.sparse.from_dense(nm.asarray([[2.0, 1.0], [0.0, 4.0]]))
    >>> [round(v, 4) for v in bicgstab(a, nm.asarray([3.0, 4.0])).x.tolist()]
    [1.0, 1.0]
    """
    p = posed("bicgstab", a, b, x0, rtol, atol, maxiter, M, callback=callback)

    def method(p: Problem) -> Found:
        m = p.precondition
        r = p.b - p.system.apply(p.x0)
        one = nm.ones_like(dot(r, r))
        empty = nm.zeros_like(r)
        first: State = {
            **{"x": p.x0, "r": r, "p": empty, "v": empty},
            **{"rho": one, "alpha": one, "omega": one},
        }
        shadow = r

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            rho = dot(shadow, s["r"])
            beta = ratio(rho, s["rho"]) * ratio(s["alpha"], s["omega"])
            direction = s["r"] + beta * (s["p"] - s["omega"] * s["v"])
            hat = m(direction)
            v = p.system.apply(hat)
            along = dot(shadow, v)
            alpha = ratio(rho, along)
            half = s["r"] - alpha * v
            near = m(half)
            t = p.system.apply(near)
            tt = dot(t, t)
            omega = ratio(dot(t, half), tt)
            r = half - omega * t
            x = s["x"] + alpha * hat + omega * near
            small = norm(r)
            well = (rho != 0) & (along != 0) & ((omega != 0) | (small <= p.tolerance))
            new = {"x": x, "r": r, "p": direction, "v": v, "rho": rho, "alpha": alpha}
            return {**new, "omega": omega}, small, well

        found = iterate(p, first, step, norm(r))
        return found["x"], found

    return solved(p, method)


def cgs(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """Conjugate gradients squared, for any matrix. The arguments are those of `cg`.

    >>> import numus as nm
    >>> from numus.sparse.linalg import cgs
    >>> cgs(nm.sparse.diags([2.0, 4.0]), nm.ones(2)).converged
    True
    """
    p = posed("cgs", a, b, x0, rtol, atol, maxiter, M, callback=callback)

    def method(p: Problem) -> Found:
        m = p.precondition
        r = p.b - p.system.apply(p.x0)
        empty = nm.zeros_like(r)
        shadow = r

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            rho = dot(shadow, s["r"])
            beta = ratio(rho, s["rho"]) * s["started"]
            u = s["r"] + beta * s["q"]
            direction = u + beta * (s["q"] + beta * s["p"])
            v = p.system.apply(m(direction))
            along = dot(shadow, v)
            alpha = ratio(rho, along)
            q = u - alpha * v
            hat = m(u + q)
            x, r = s["x"] + alpha * hat, s["r"] - alpha * p.system.apply(hat)
            new = {"x": x, "r": r, "q": q, "p": direction, "rho": rho}
            started = nm.ones_like(s["started"])
            return {**new, "started": started}, norm(r), (rho != 0) & (along != 0)

        one = nm.ones_like(dot(r, r))
        first: State = {"x": p.x0, "r": r, "q": empty, "p": empty, "rho": one}
        found = iterate(p, {**first, "started": nm.zeros_like(one)}, step, norm(r))
        return found["x"], found

    return solved(p, method)


def tfqmr(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """The transpose-free quasi-minimal residual method, for any matrix.

    The arguments are those of `cg`; an iteration has two products.

    >>> import numus as nm
    >>> from numus.sparse.linalg import tfqmr
    >>> tfqmr(nm.sparse.diags([2.0, 4.0]), nm.ones(2)).converged
    True
    """
    p = posed("tfqmr", a, b, x0, rtol, atol, maxiter, M, callback=callback)

    def method(p: Problem) -> Found:
        m = p.precondition
        r = p.b - p.system.apply(p.x0)
        shadow, empty = r, nm.zeros_like(r)
        v = p.system.apply(m(r))
        tau = norm(r)
        zero = nm.zeros_like(tau)
        first: State = {
            **{"x": p.x0, "w": r, "u": r, "v": v, "uhat": v, "d": empty, "ad": empty, "res": r},
            **{"tau": tau, "theta": zero, "eta": nm.zeros_like(dot(r, r)), "rho": dot(r, r)},
        }

        def half(s: State, u: Tensor, au: Tensor, alpha: Tensor) -> State:
            w = s["w"] - alpha * au
            scale = ratio(s["theta"] * s["theta"] * s["eta"], alpha)
            d, ad = m(u) + scale * s["d"], au + scale * s["ad"]
            theta = ratio(norm(w), s["tau"])
            c = 1 / nm.sqrt(1 + theta * theta)
            tau = s["tau"] * theta * c
            eta = c * c * alpha
            moved = {"x": s["x"] + eta * d, "res": s["res"] - eta * ad}
            return {**s, **moved, "w": w, "d": d, "ad": ad, "theta": theta, "tau": tau, "eta": eta}

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            along = dot(shadow, s["v"])
            alpha = ratio(s["rho"], along)
            s1 = half(s, s["u"], s["uhat"], alpha)
            u = s["u"] - alpha * s["v"]
            au = p.system.apply(m(u))
            s2 = half(s1, u, au, alpha)
            rho = dot(shadow, s2["w"])
            beta = ratio(rho, s["rho"])
            following = s2["w"] + beta * u
            uhat = p.system.apply(m(following))
            v = uhat + beta * (au + beta * s["v"])
            new = {**s2, "u": following, "uhat": uhat, "v": v, "rho": rho}
            small = norm(s2["res"])
            well = ((along != 0) & (rho != 0)) | (small <= p.tolerance)
            return new, small, well

        found = iterate(p, first, step, norm(r))
        return found["x"], found

    return solved(p, method)


def qmr(
    a: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: float = 0.0,
    maxiter: int | None = None, M: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """The quasi-minimal residual method by coupled recurrences, for any matrix.

    The arguments are those of `cg`; the adjoint of the matrix is used, and that of the
    preconditioner, which stands on the right.

    >>> import numus as nm
    >>> from numus.sparse.linalg import qmr
    >>> qmr(nm.sparse.diags([2.0, 4.0]), nm.ones(2)).converged
    True
    """
    p = posed("qmr", a, b, x0, rtol, atol, maxiter, M, callback=callback)

    def method(p: Problem) -> Found:
        right = p.m

        def forward(x: Tensor) -> Tensor:
            return p.system.apply(x if right is None else right.apply(x))

        def backward(y: Tensor) -> Tensor:
            z = p.system.apply_adjoint(y)
            return z if right is None else right.apply_adjoint(z)

        def hat(x: Tensor) -> Tensor:
            return x if right is None else right.apply(x)

        r = p.b - p.system.apply(p.x0)
        empty, size = nm.zeros_like(r), norm(r)
        zero, one = nm.zeros_like(dot(r, r)), nm.ones_like(dot(r, r))
        first: State = {
            **{"x": p.x0, "r": r, "v": r, "w": r, "p": empty, "q": empty, "d": empty},
            **{"s": empty, "rho": size, "xi": size, "gamma": nm.ones_like(size), "eta": -one},
            **{"epsilon": one, "theta": nm.zeros_like(size), "started": zero},
        }

        def step(s: State) -> tuple[State, Tensor, Tensor]:
            v = s["v"] * ratio(nm.ones_like(s["rho"]), s["rho"])
            w = s["w"] * ratio(nm.ones_like(s["xi"]), s["xi"])
            delta = dot(w, v)
            one = s["started"]
            direction = v - one * ratio(s["xi"] * delta, s["epsilon"]) * s["p"]
            q = w - one * nm.conj(ratio(s["rho"] * delta, s["epsilon"])) * s["q"]
            ap = forward(direction)
            epsilon = dot(q, ap)
            beta = ratio(epsilon, delta)
            v_next = ap - beta * v
            w_next = backward(q) - nm.conj(beta) * w
            rho, xi = norm(v_next), norm(w_next)
            theta = ratio(rho, s["gamma"] * nm.abs(beta))
            gamma = 1 / nm.sqrt(1 + theta * theta)
            eta = -s["eta"] * ratio(s["rho"] * gamma * gamma, beta * s["gamma"] * s["gamma"])
            old = (s["theta"] * gamma) ** 2 * one
            d, residual = eta * direction + old * s["d"], eta * ap + old * s["s"]
            r = s["r"] - residual
            small = norm(r)
            # a breakdown that is nearly one overflows: the solution before it is the better one
            x = nm.where(nm.isfinite(small), s["x"] + hat(d), s["x"])
            new = {
                **{"x": x, "r": r, "v": v_next, "w": w_next, "p": direction, "q": q, "d": d},
                **{"s": residual, "rho": rho, "xi": xi, "gamma": gamma, "eta": eta},
                **{"epsilon": epsilon, "theta": theta, "started": nm.ones_like(one)},
            }
            well = ((delta != 0) & (epsilon != 0)) | (small <= p.tolerance)
            return new, small, well

        found = iterate(p, first, step, size)
        return found["x"], found

    return solved(p, method)
