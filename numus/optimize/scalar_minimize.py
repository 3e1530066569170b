"""minimize_scalar: minima of functions of one variable, by Brent's method (1973).

Like the zeros of `root_scalar`, minima are elementwise: a tensor of brackets has a minimum for each
element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numus as nm
from numus.optimize.casting import cast
from numus.optimize.implicit import implicit
from numus.optimize.line_search import choose
from numus.optimize.minimize import OptimizeResult
from numus.optimize.scalar_roots import elementwise, floats
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.control.closure import closure_convert

__all__ = ["minimize_scalar"]

Function = Callable[..., Any]
_GOLDEN = 0.3819660112501051  # of an interval: (3 - sqrt 5) / 2
_GROWTH = 1.618033988749895
_MAX_EXPANSIONS = 100


class _Narrowing(NamedTuple):
    low: Tensor
    high: Tensor
    x: Tensor  # the best three points, and the values there
    w: Tensor
    v: Tensor
    fx: Tensor
    fw: Tensor
    fv: Tensor
    step: Tensor
    last: Tensor  # the step before
    done: Tensor
    steps: Tensor


def _narrowed(
    f: Function, s: _Narrowing, xatol: float, rtol: float, maxiter: int, parabolas: bool
) -> _Narrowing:
    """Brent's method: parabolas through three points, and golden sections where they fail."""
    eps = float(nm.finfo(s.x.dtype).eps) ** 0.5
    rtol = max(rtol, eps)

    def tolerance(x: Tensor) -> Tensor:
        return rtol * nm.abs(x) + xatol / 3

    def near(s: _Narrowing) -> Tensor:
        middle, tol = (s.low + s.high) / 2, tolerance(s.x)
        return (nm.abs(s.x - middle) <= 2 * tol - (s.high - s.low) / 2) | nm.isnan(s.fx)

    def advance(s: _Narrowing) -> _Narrowing:
        middle, tol = (s.low + s.high) / 2, tolerance(s.x)
        r = (s.x - s.w) * (s.fx - s.fv)
        q = (s.x - s.v) * (s.fx - s.fw)
        p = (s.x - s.v) * q - (s.x - s.w) * r
        q = 2 * (q - r)
        p = nm.where(q > 0, -p, p)
        q = nm.abs(q)
        inside = (p > q * (s.low - s.x)) & (p < q * (s.high - s.x))
        useful = inside & (nm.abs(p) < nm.abs(q * s.last / 2)) & (nm.abs(s.last) > tol)
        useful = useful & (q > 0) & parabolas
        larger = nm.where(s.x >= middle, s.low - s.x, s.high - s.x)
        step = nm.where(useful, p / nm.where(useful, q, 1.0), _GOLDEN * larger)
        u = s.x + step
        at_end = useful & ((u - s.low < 2 * tol) | (s.high - u < 2 * tol))
        step = nm.where(at_end, nm.where(middle >= s.x, tol, -tol), step)
        least = nm.where(step >= 0, tol, -tol)
        u = s.x + nm.where(nm.abs(step) >= tol, step, least)
        fu = f(u)
        better = fu <= s.fx
        low = nm.where(better & (u >= s.x), s.x, nm.where(~better & (u < s.x), u, s.low))
        high = nm.where(better & (u < s.x), s.x, nm.where(~better & (u >= s.x), u, s.high))
        second = (fu <= s.fw) | (s.w == s.x)
        third = (fu <= s.fv) | (s.v == s.x) | (s.v == s.w)
        ranked: Any = choose(
            better, (u, s.x, s.w, fu, s.fx, s.fw),
            choose(
                second, (s.x, u, s.w, s.fx, fu, s.fw),
                choose(third, (s.x, s.w, u, s.fx, s.fw, fu), (s.x, s.w, s.v, s.fx, s.fw, s.fv)),
            ),
        )  # fmt: skip
        last = nm.where(useful, s.step, larger)
        count = cast(s.steps + 1, nm.int32)
        x, w, v, fx, fw, fv = ranked
        new = _Narrowing(low, high, x, w, v, fx, fw, fv, step, last, s.done, count)
        return choose(s.done, s, new._replace(done=near(new)))

    s = s._replace(done=near(s))
    return nm.while_loop(lambda s: nm.any(nm.logical_not(s.done) & (s.steps < maxiter)), advance, s)


def _bracket(f: Function, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points around a minimum, downhill from a and b, and the evaluations that they took."""
    fa, fb = f(a), f(b)
    a, b, fa, fb = choose(fa < fb, (b, a, fb, fa), (a, b, fa, fb))
    c = b + _GROWTH * (b - a)
    count = nm.zeros_like(a, dtype=nm.int32)

    def open_end(s: Any) -> Tensor:
        return (s[5] < s[4]) & (s[6] < _MAX_EXPANSIONS)

    def grow(s: Any) -> Any:
        _, b, c, _, fb, fc, count = s
        far = c + _GROWTH * (c - b)
        moved = (b, c, far, fb, fc, f(far), cast(count + 1, nm.int32))
        return choose(open_end(s), moved, s)

    s = nm.while_loop(lambda s: nm.any(open_end(s)), grow, (a, b, c, fa, fb, f(c), count))
    return s[0], s[1], s[2], s[6] + 3


def minimize_scalar(
    fun: Function,
    bracket: Any = None,
    bounds: Any = None,
    args: tuple[Any, ...] = (),
    method: str | None = None,
    tol: float | None = None,
    options: Any = None,
) -> OptimizeResult:
    """A local minimum of an elementwise function of one variable.

    Args:
        bracket: two points from which to go downhill, (0, 1) if not given, or three, the middle one
            lower than the others.
        bounds: the interval in which to look, for "bounded".
        method: "brent" (the default without bounds), "golden", or "bounded" (with them).
        tol: relative tolerance of x; for "bounded" the absolute one.
        options: `xtol` (brent, golden) or `xatol` (bounded), and `maxiter`.

    >>> found = nm.optimize.minimize_scalar(lambda x: (x - 2) ** 2 + 1)
    >>> round(found.x.item(), 3), round(found.fun.item(), 3)
    (2.0, 1.0)
    """
    op = "minimize_scalar"
    method = method or ("brent" if bounds is None else "bounded")
    if method not in ("brent", "golden", "bounded"):
        raise ValueError(f"{op}: there is no method {method!r}; it is brent, golden or bounded")
    if (bounds is None) == (method == "bounded"):
        raise ValueError(f"{op}: bounds go with the method bounded, and only with it")
    given = dict(options or {})
    for name in given:
        if name not in ("xtol", "xatol", "maxiter", "disp"):
            raise ValueError(f"{op}: there is no option {name!r}; there are xtol, xatol, maxiter")
    maxiter = as_int(given.get("maxiter", 500), "maxiter", op)
    points = floats(op, *(bounds if bounds is not None else bracket or (0.0, 1.0)))
    if not (len(points) == 2 or (len(points) == 3 and bounds is None)):
        raise ValueError(f"{op}: a bracket is two or three points, bounds are two")
    convert, held = closure_convert(op, elementwise(op, fun, args), points[0])
    known = [c.detach() for c in held]
    with nm.no_grad():
        f = lambda x: convert(known, x)  # noqa: E731
        ends = [p.detach() for p in points]
        calls: Any = 1
        if method == "bounded":
            low, high = ends
            x = low + _GOLDEN * (high - low)
            rtol, xatol = 0.0, given.get("xatol", 1e-5 if tol is None else tol)
        else:
            if len(ends) == 2:
                a, x, b, calls = _bracket(f, *ends)
            else:
                a, x, b = ends
            low, high = nm.minimum(a, b), nm.maximum(a, b)
            rtol, xatol = given.get("xtol", 1.48e-8 if tol is None else tol), 1e-11
        fx = f(x)
        zero, count = nm.zeros_like(x), nm.zeros_like(x, dtype=nm.int32)
        s = _Narrowing(low, high, x, x, x, fx, fx, fx, zero, zero, count > 0, count)
        s = _narrowed(f, s, xatol, rtol, maxiter, method != "golden")
    slope = lambda c, x: nm.jvp(lambda x: convert(c, x), (x,), (nm.ones_like(x),))[1]  # noqa: E731
    x = implicit(slope, s.x, held, elementwise=True)
    bad = nm.isnan(s.fx)
    status = nm.where(bad, 3, nm.where(s.done, 0, 1))
    return OptimizeResult(
        x=x, fun=convert(held, x), nit=s.steps, nfev=cast(s.steps + calls, nm.int32),
        status=cast(status, nm.int32),
    )  # fmt: skip
