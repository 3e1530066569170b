"""Least squares by Golub–Kahan bidiagonalisation: LSQR (Paige & Saunders 1982) and LSMR (Fong &
Saunders 2011). Solutions are differentiated through the normal equations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numus as nm
from numus.graph import grad_mode
from numus.sparse.linalg.iterative.driver import (
    Callback,
    Problem,
    SolveResult,
    State,
    finished,
    implicitly,
    iterate,
    norm,
    posed,
    ratio,
)
from numus.sparse.linalg.iterative.krylov import cg
from numus.sparse.linalg.operators import LinearOperator
from numus.tensor import Tensor


def _inverse(x: Tensor) -> Tensor:
    return ratio(nm.ones_like(x), x)


def _rotation(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, s, r with c a + s b = r; stable, as nm.hypot is."""
    r = nm.hypot(a, b)
    return ratio(a, r), ratio(b, r), r


def _start(p: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """u, v, alpha, beta of the bidiagonalisation."""
    u = p.b - p.system.apply(p.x0)
    beta = norm(u)
    u = u * _inverse(beta)
    v = p.system.apply_adjoint(u)
    alpha = norm(v)
    return u, v * _inverse(alpha), alpha, beta


def _advance(p: Problem, s: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    u = p.system.apply(s["v"]) - s["alpha"] * s["u"]
    beta = norm(u)
    u = u * _inverse(beta)
    v = p.system.apply_adjoint(u) - beta * s["v"]
    alpha = norm(v)
    return u, v * _inverse(alpha), alpha, beta


def _stop(
    residual: Tensor, normal: Tensor, size: Tensor, x: Tensor, known: Tensor, tolerances: Any
) -> Tensor:
    """The smaller of two measures, at most 1 where one of Paige and Saunders' tests holds: the
    residual is small, or it is orthogonal to the range."""
    atol, btol = tolerances
    compatible = ratio(residual, btol * known + atol * size * norm(x))
    orthogonal = ratio(normal, atol * size * residual)
    orthogonal = nm.where(residual == 0, nm.zeros_like(orthogonal), orthogonal)
    return nm.minimum(compatible, orthogonal)


def _least_squares(op: str, a: Any, b: Any, damp: float, atol: float, btol: float,
                   maxiter: int | None, x0: Any, callback: Callback) -> SolveResult:  # fmt: skip
    p = posed(op, a, b, x0, 0.0, 1.0, None, square=False, callback=callback)
    m, n = p.system.shape
    most = 2 * max(m, n, 1) if maxiter is None else int(maxiter)
    # the loop stops where a measure of the two tests is at most 1
    p = replace(p, maxiter=most)
    with grad_mode(False):
        known = norm(p.b)
        method = _lsqr if op == "lsqr" else _lsmr
        x, found = method(p, damp, known, (atol, btol))

    def equation(parameters: Any, b: Tensor, x: Tensor) -> Tensor:
        s = p.system
        return s.adjoint_of(parameters, b - s.forward(parameters, x)) - damp**2 * x

    def solve(parameters: Any, right: Tensor, adjoint: bool) -> Tensor:
        s = p.system
        normal = LinearOperator(
            *((n, n), lambda q, x: _normal(s, q, x, damp), lambda q, x: _normal(s, q, x, damp)),
            *(parameters, right.dtype),
        )
        return cg(normal, right, rtol=min(atol, btol) * 1e-2, maxiter=10 * n).x

    x = implicitly(x, p.system.parameters, p.b, equation, solve)
    return finished(p, x, found)


def _normal(s: Any, parameters: Any, x: Tensor, damp: float) -> Tensor:
    y: Tensor = s.adjoint_of(parameters, s.forward(parameters, x[:, None]))[:, 0]
    return y + damp**2 * x


def _lsqr(
    p: Problem, damp: float, known: Tensor, tolerances: tuple[float, float]
) -> tuple[Tensor, dict[str, Any]]:
    u, v, alpha, beta = _start(p)
    zero = nm.zeros_like(beta)
    first: State = {
        **{"x": p.x0, "u": u, "v": v, "w": v, "alpha": alpha, "rhobar": alpha, "phibar": beta},
        **{"size": zero, "damped": zero},
    }

    def step(s: State) -> tuple[State, Tensor, Tensor]:
        size = nm.hypot(s["size"], nm.hypot(s["alpha"], nm.full_like(s["alpha"], damp)))
        u, v, alpha, beta = _advance(p, s)
        size = nm.hypot(size, beta)
        c1, s1, rhobar = _rotation(s["rhobar"], nm.full_like(s["rhobar"], damp))
        phibar, psi = c1 * s["phibar"], s1 * s["phibar"]
        c, sn, rho = _rotation(rhobar, beta)
        theta, rhobar, phi, phibar = sn * alpha, -c * alpha, c * phibar, sn * phibar
        x = s["x"] + ratio(phi, rho) * s["w"]
        w = v - ratio(theta, rho) * s["w"]
        damped = nm.hypot(s["damped"], psi)
        residual = nm.hypot(phibar, damped)
        normal = alpha * nm.abs(sn * phi)
        new = {
            **{"x": x, "u": u, "v": v, "w": w, "alpha": alpha, "rhobar": rhobar},
            **{"phibar": phibar, "size": size, "damped": damped},
        }
        measure = _stop(residual, normal, size, x, known, tolerances)
        return new, measure, nm.isfinite(measure)

    begin = nm.where(alpha * beta == 0, zero, nm.full_like(zero, 2.0))
    found = iterate(p, first, step, begin)
    return found["x"], found


def _lsmr(
    p: Problem, damp: float, known: Tensor, tolerances: tuple[float, float]
) -> tuple[Tensor, dict[str, Any]]:
    u, v, alpha, beta = _start(p)
    zero, one = nm.zeros_like(beta), nm.ones_like(beta)
    first: State = {
        **{"x": p.x0, "u": u, "v": v, "h": v, "hbar": nm.zeros_like(v), "alpha": alpha},
        **{"zetabar": alpha * beta, "alphabar": alpha, "rho": one, "rhobar": one, "cbar": one},
        **{"sbar": zero, "betadd": beta, "betad": zero, "rhodold": one, "tautilde": zero},
        **{"thetatilde": zero, "zeta": zero, "d": zero, "size2": alpha * alpha},
    }

    def step(s: State) -> tuple[State, Tensor, Tensor]:
        u, v, alpha, beta = _advance(p, s)
        chat, shat, alphahat = _rotation(s["alphabar"], nm.full_like(s["alphabar"], damp))
        c, sn, rho = _rotation(alphahat, beta)
        theta, alphabar = sn * alpha, c * alpha
        thetabar, rhotemp = s["sbar"] * rho, s["cbar"] * rho
        cbar, sbar, rhobar = _rotation(rhotemp, theta)
        zeta, zetabar = cbar * s["zetabar"], -sbar * s["zetabar"]
        hbar = s["h"] - ratio(thetabar * rho, s["rho"] * s["rhobar"]) * s["hbar"]
        x = s["x"] + ratio(zeta, rho * rhobar) * hbar
        h = v - ratio(theta, rho) * s["h"]
        # the norm of the residual, by two more rotations (Fong & Saunders, section 5)
        betaacute, betacheck = chat * s["betadd"], -shat * s["betadd"]
        betahat, betadd = c * betaacute, -sn * betaacute
        ctilde, stilde, rhotilde = _rotation(s["rhodold"], thetabar)
        thetatilde, rhodold = stilde * rhobar, ctilde * rhobar
        betad = -stilde * s["betad"] + ctilde * betahat
        tautilde = ratio(s["zeta"] - s["thetatilde"] * s["tautilde"], rhotilde)
        taud = ratio(zeta - thetatilde * tautilde, rhodold)
        d = s["d"] + betacheck * betacheck
        residual = nm.sqrt(d + (betad - taud) ** 2 + betadd * betadd)
        size2 = s["size2"] + beta * beta
        new = {
            **{"x": x, "u": u, "v": v, "h": h, "hbar": hbar, "alpha": alpha, "zetabar": zetabar},
            **{"alphabar": alphabar, "rho": rho, "rhobar": rhobar, "cbar": cbar, "sbar": sbar},
            **{"betadd": betadd, "betad": betad, "rhodold": rhodold, "tautilde": tautilde},
            **{"thetatilde": thetatilde, "zeta": zeta, "d": d, "size2": size2 + alpha * alpha},
        }
        normal = nm.abs(zetabar)
        measure = _stop(residual, normal, nm.sqrt(size2), x, known, tolerances)
        return new, measure, nm.isfinite(measure)

    begin = nm.where(alpha * beta == 0, zero, nm.full_like(zero, 2.0))
    found = iterate(p, first, step, begin)
    return found["x"], found


def lsqr(
    a: Any, b: Any, *, damp: float = 0.0, atol: float = 1e-6, btol: float = 1e-6,
    maxiter: int | None = None, x0: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """The least-squares solution of A x = b, of matrices of any shape.

    Args:
        a: a sparse or dense matrix, or a LinearOperator.
        b: a vector, or a matrix of several right-hand sides.
        damp: minimise the norm of the residual squared plus damp² times that of x squared.
        atol: stop where the residual is orthogonal to the range of A, relative to their norms,
        btol: or where it is small against atol times the norms of A and x and btol times that of b.
        maxiter: the most iterations; twice the larger side of A where it is None.
        x0: where to start; zero where it is None.
        callback: called by the host after each iteration, as callback(iterations, residual) with
            the norms of residuals; the loop is then no single program.

    The history of the result has the smaller measure of both tests, which is at most 1 at the end.

    >>> import numus as nm
    >>> from numus.sparse.linalg import lsqr
    >>> a = nm.sparse.from_dense(nm.asarray([[1.0], [1.0]]))
    >>> [round(v, 4) for v in lsqr(a, nm.asarray([1.0, 3.0])).x.tolist()]
    [2.0]
    """
    return _least_squares("lsqr", a, b, damp, atol, btol, maxiter, x0, callback)


def lsmr(
    a: Any, b: Any, *, damp: float = 0.0, atol: float = 1e-6, btol: float = 1e-6,
    maxiter: int | None = None, x0: Any = None,
    callback: Callback = None,
) -> SolveResult:  # fmt: skip
    """The least-squares solution of A x = b by LSMR, whose normal residual never grows.

    The arguments are those of `lsqr`.

    >>> import numus as nm
    >>> from numus.sparse.linalg import lsmr
    >>> a = nm.sparse.from_dense(nm.asarray([[1.0], [1.0]]))
    >>> [round(v, 4) for v in lsmr(a, nm.asarray([1.0, 3.0])).x.tolist()]
    [2.0]
    """
    return _least_squares("lsmr", a, b, damp, atol, btol, maxiter, x0, callback)
