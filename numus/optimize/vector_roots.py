"""root: zeros of functions from vectors to vectors.

"hybr" combines Newton's step with the gradient's (Powell's dogleg, 1970) in a trust region, with a
Jacobian by forward mode at every step; "broyden1" updates the inverse of the first one by rank one
(Broyden 1965).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.optimize.casting import cast
from numus.optimize.implicit import implicit
from numus.optimize.least_squares import levenberg_marquardt
from numus.optimize.line_search import choose, dot
from numus.optimize.minimize import start_of
from numus.optimize.result import Result
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.control.closure import closure_convert
from numus.transforms.trace import require_function

__all__ = ["RootResult", "root"]

Function = Callable[..., Any]
_METHODS = ("hybr", "lm", "broyden1", "newton")
_RUNS = -1  # the status before the end


class RootResult(Result):
    """x, fun, jac, nit, nfev, status, message and success."""

    messages: ClassVar[dict[int, str]] = {
        1: "The solution converged.",
        2: "The maximum number of evaluations was reached.",
        4: "The iteration is not making good progress.",
        5: "The function is not finite.",
    }

    @property
    def success(self) -> Any:
        return self.status == 1


class _Walk(NamedTuple):
    x: Tensor
    r: Tensor
    J: Tensor  # or, for Broyden's method, its inverse
    radius: Tensor
    slow: Tensor  # steps in a row that failed
    nit: Tensor
    nfev: Tensor
    status: Tensor


def _size(x: Tensor) -> Tensor:
    return nm.sqrt(dot(x, x))


def _status(s: _Walk, step: Tensor, xtol: float, maxfev: int, too_slow: int) -> Tensor:
    eps = float(nm.finfo(s.x.dtype).eps)
    near = (_size(step) <= max(xtol, 4 * eps) * _size(s.x)) | (nm.max(nm.abs(s.r)) == 0)
    finite = nm.all(nm.isfinite(s.r))
    status = nm.where(s.nfev >= maxfev, 2, nm.where(s.slow >= too_slow, 4, _RUNS))
    return cast(nm.where(finite, nm.where(near, 1, status), 5), nm.int32)


def _dogleg(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    x: Tensor,
    xtol: float,
    maxfev: int,
    trusted: bool,
) -> _Walk:
    """Powell's dogleg; without trust regions, Newton's method."""
    r, J = evaluate(x)
    count = nm.zeros_like(r[0], dtype=nm.int32)
    reach = 100 * nm.maximum(_size(x), 1.0)
    s = _Walk(x, r, J, reach, count, count, count + 1, count + _RUNS)
    s = s._replace(status=_status(s, nm.ones_like(x) * nm.inf, xtol, maxfev, 10))

    def step(s: _Walk) -> _Walk:
        newton = -nm.linalg.solve(s.J, s.r)
        g = nm.sum(s.J * nm.expand_dims(s.r, 1), axis=0)
        Jg = s.J @ g
        cauchy = -g * dot(g, g) / nm.where(dot(Jg, Jg) > 0, dot(Jg, Jg), 1.0)
        solvable = nm.all(nm.isfinite(newton))
        p = newton if not trusted else _bent(nm.where(solvable, newton, cauchy), cauchy, s.radius)
        x = s.x + p
        r, J = evaluate(x)
        before, after = dot(s.r, s.r), dot(r, r)
        linear = s.r + s.J @ p
        predicted = before - dot(linear, linear)
        ratio = (before - after) / nm.where(predicted > 0, predicted, 1.0)
        good = nm.isfinite(after) & nm.all(nm.isfinite(J))
        better = good & (ratio > 1e-4) & (after < before) if trusted else solvable
        length = _size(p)
        smaller = nm.where(good, nm.maximum(0.5 * length, 0.1 * s.radius), 0.1 * length)
        radius = nm.where(
            better & (ratio > 0.75), nm.maximum(s.radius, 2 * length),
            nm.where(better & (ratio > 0.25), s.radius, nm.minimum(smaller, 0.5 * s.radius)),
        )  # fmt: skip
        taken = s._replace(x=x, r=r, J=J, slow=nm.zeros_like(s.slow))
        new = choose(better, taken, s._replace(slow=cast(s.slow + 1, nm.int32)))
        nit, nfev = cast(s.nit + 1, nm.int32), cast(s.nfev + 1, nm.int32)
        new = new._replace(radius=radius, nit=nit, nfev=nfev)
        # a short step is the end only if it is Newton's: others are short at minima of |r| too
        step = nm.where(solvable & (_size(newton) <= s.radius), newton, nm.inf)
        return new._replace(status=_status(new, step, xtol, maxfev, 40 if trusted else 1))

    return nm.while_loop(lambda s: s.status == _RUNS, step, s)


def _bent(newton: Tensor, cauchy: Tensor, radius: Tensor) -> Tensor:
    """Newton's step within the radius; else the point where the path to it by Cauchy's leaves."""
    rest = newton - cauchy
    a, b = dot(rest, rest), 2 * dot(cauchy, rest)
    c = dot(cauchy, cauchy) - radius * radius
    root = nm.sqrt(nm.maximum(b * b - 4 * a * c, 0.0))
    part = (-b + root) / nm.where(a > 0, 2 * a, 1.0)
    along = cauchy * radius / nm.where(_size(cauchy) > 0, _size(cauchy), 1.0)
    bent = nm.where(_size(cauchy) >= radius, along, cauchy + part * rest)
    return nm.where(_size(newton) <= radius, newton, bent)


def _broyden(evaluate: Any, x: Tensor, xtol: float, maxfev: int) -> _Walk:
    """Broyden's good method; `radius` is the fraction of the step to try, halved where the
    residuals grow."""
    r, J = evaluate(x, True)
    count = nm.zeros_like(r[0], dtype=nm.int32)
    one = nm.ones_like(r[0])
    s = _Walk(x, r, nm.linalg.inv(J), one, count, count, count + 1, count + _RUNS)
    s = s._replace(status=_status(s, nm.ones_like(x) * nm.inf, xtol, maxfev, 1 << 30))

    def step(s: _Walk) -> _Walk:
        p = -s.radius * (s.J @ s.r)
        x = s.x + p
        r = evaluate(x, False)[0]
        smaller = nm.isfinite(dot(r, r)) & (_size(r) <= (1 - 1e-4 * s.radius) * _size(s.r))
        taken = smaller | ((s.radius < 1e-2) & nm.isfinite(dot(r, r)))
        y = r - s.r
        Hy, pH = s.J @ y, p @ s.J
        bottom = dot(p, Hy)
        change = nm.expand_dims((p - Hy) / nm.where(bottom != 0, bottom, 1.0), 1)
        H = s.J + change * nm.expand_dims(pH, 0)
        new = choose(
            taken,
            s._replace(x=x, r=r, J=nm.where(bottom != 0, H, s.J), radius=nm.ones_like(s.radius)),
            s._replace(radius=s.radius / 2),
        )
        nit, nfev = cast(s.nit + 1, nm.int32), cast(s.nfev + 1, nm.int32)
        new = new._replace(nit=nit, nfev=nfev)
        return new._replace(status=_status(new, p, xtol, maxfev, 1 << 30))

    return nm.while_loop(lambda s: s.status == _RUNS, step, s)


def root(
    fun: Function,
    x0: Any,
    args: tuple[Any, ...] = (),
    method: str = "hybr",
    jac: Any = None,
    tol: float | None = None,
    options: Any = None,
) -> RootResult:
    """A zero of a function from vectors to vectors of the same length, near x0.

    Args:
        fun: fun(x, *args).
        method: "hybr" (Powell's dogleg), "lm" (Levenberg and Marquardt's), "broyden1", "newton".
        jac: the Jacobian, a function of (x, *args); else it is taken by forward mode.
        tol: relative size of the last step.
        options: `xtol`, which is that, and `maxfev`.

    >>> found = nm.optimize.root(lambda x: nm.stack([x[0] + x[1] - 3, x[0] * x[1] - 2]), [0.0, 5.0])
    >>> found.success.item(), nm.round(found.x, decimals=4).tolist()
    (True, [1.0, 2.0])
    """
    op = "root"
    require_function(fun, op)
    if method not in _METHODS:
        raise ValueError(f"{op}: there is no method {method!r}; it is one of {', '.join(_METHODS)}")
    given = dict(options or {})
    for name in given:
        if name not in ("xtol", "maxfev"):
            raise ValueError(f"{op}: there is no option {name!r}; there are xtol and maxfev")
    x = start_of(op, x0)

    def residuals(x: Tensor) -> Tensor:
        found = nm.asarray(fun(x, *args))
        if found.size != x.size:
            raise ShapeError(
                f"{op}: the function gives {found.size} numbers for {x.size} variables; "
                "nm.optimize.least_squares takes more or fewer"
            )
        return cast(nm.reshape(found, -1), x.dtype)

    value, held = closure_convert(op, residuals, x)
    known = [c.detach() for c in held]

    def evaluate(x: Tensor, with_jacobian: bool = True) -> tuple[Tensor, Any]:
        r = value(known, x)
        if not with_jacobian:
            return r, None
        if callable(jac):
            return r, nm.reshape(cast(nm.asarray(jac(x, *args)), x.dtype), (r.size, r.size))
        return r, nm.jacfwd(lambda x: value(known, x))(x)

    xtol = given.get("xtol", 1.49012e-8 if tol is None else tol)
    maxfev = as_int(given.get("maxfev", 200 * (x.shape[0] + 1)), "maxfev", op)
    with nm.no_grad():
        at = x.detach()
        if method == "lm":
            end = nm.full_like(at, nm.inf)
            eps = float(nm.finfo(at.dtype).eps)
            fit = levenberg_marquardt(evaluate, at, (-end, end), eps, max(xtol, eps), 0.0, maxfev)
            size = nm.max(nm.sum(nm.abs(fit.J * fit.x), axis=1)) + 1
            small = nm.max(nm.abs(fit.r)) <= eps**0.5 * size  # else a minimum of |r|, but no zero
            failed = nm.where(
                fit.status == 0, 2, nm.where(fit.status < 0, 5, nm.where(small, 1, 4))
            )
            counts = {"nit": fit.njev, "nfev": fit.nfev, "status": cast(failed, nm.int32)}
            end_x = fit.x
        else:
            if method == "broyden1":
                s = _broyden(evaluate, at, xtol, maxfev)
            else:
                s = _dogleg(evaluate, at, xtol, maxfev, method == "hybr")
            counts, end_x = {"nit": s.nit, "nfev": s.nfev, "status": s.status}, s.x
    found = implicit(value, end_x, held)
    r = value(held, found)
    return RootResult(x=found, fun=r, jac=evaluate(found.detach())[1], **counts)
