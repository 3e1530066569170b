"""Zeros of functions of one variable: bisection, Brent's method, Newton's, the secant method.

All are elementwise: a bracket of tensors has a zero for each element, found side by side, and those
that are found wait for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numus as nm
from numus.optimize.casting import cast
from numus.tensor import Tensor

Function = Callable[[Tensor], Tensor]


class Found(NamedTuple):
    """A zero, or the best that was found."""

    root: Tensor
    converged: Tensor
    iterations: Tensor
    calls: Tensor


class _Brent(NamedTuple):
    before: Tensor  # x, and below the value there
    x: Tensor  # the best
    other: Tensor  # the other end of the bracket
    f_before: Tensor
    f: Tensor
    f_other: Tensor
    last: Tensor  # the step before the last
    step: Tensor
    done: Tensor
    steps: Tensor  # for each element


def _tolerance(x: Tensor, xtol: float, rtol: float) -> Tensor:
    return xtol + max(rtol, 4 * float(nm.finfo(x.dtype).eps)) * nm.abs(x)


def _frozen(done: Tensor, old: Any, new: Any) -> Any:
    return nm.tree.map(lambda a, b: nm.where(done, a, b), old, new)


def changes_sign(fa: Tensor, fb: Tensor) -> Tensor:
    return nm.sign(fa) * nm.sign(fb) <= 0


def brent(f: Function, a: Tensor, b: Tensor, xtol: float, rtol: float, maxiter: int) -> Found:
    """Brent's method (1973): inverse quadratic interpolation or a secant, and bisection where they
    do not shrink the bracket enough."""
    fa, fb = f(a), f(b)
    zero = nm.zeros_like(a)
    count = nm.zeros_like(a, dtype=nm.int32)
    s = _rotated(_Brent(a, b, a, fa, fb, fa, b - a, b - a, fa * 0 != 0, count))
    s = s._replace(done=_is_done(s, xtol, rtol), last=s.step + zero)

    def advance(s: _Brent) -> _Brent:
        delta = _tolerance(s.x, xtol, rtol) / 2
        bisection = (s.other - s.x) / 2
        slope = _ratio(s.f_before - s.f, s.before - s.x)
        slope_other = _ratio(s.f_other - s.f, s.other - s.x)
        secant = _ratio(-s.f, slope)
        curved = _ratio(
            -s.f * (s.f_other * slope_other - s.f_before * slope),
            slope_other * slope * (s.f_other - s.f_before),
        )
        trial = nm.where(s.before == s.other, secant, curved)
        limit = nm.minimum(nm.abs(s.last), 3 * nm.abs(bisection) - delta)
        useful = (nm.abs(s.last) > delta) & (nm.abs(s.f) < nm.abs(s.f_before))
        useful = useful & (2 * nm.abs(trial) < limit)
        last, step = nm.where(useful, s.step, bisection), nm.where(useful, trial, bisection)
        moved = nm.where(nm.abs(step) > delta, step, nm.where(bisection > 0, delta, -delta))
        x = s.x + moved
        new = s._replace(before=s.x, f_before=s.f, x=x, f=f(x), last=last, step=step)
        new = _rotated(new._replace(steps=cast(s.steps + 1, nm.int32)))
        return _frozen(s.done, s, new._replace(done=_is_done(new, xtol, rtol)))

    s = nm.while_loop(lambda s: nm.any(nm.logical_not(s.done) & (s.steps < maxiter)), advance, s)
    found = changes_sign(fa, fb) & s.done
    root = nm.where(changes_sign(fa, fb), s.x, nm.nan)
    return Found(root, found, s.steps, s.steps + 2)


def _rotated(s: _Brent) -> _Brent:
    """The bracket after a new value: the best end is x, the other has another sign."""
    opposite = (nm.sign(s.f_before) * nm.sign(s.f)) < 0
    width = s.x - s.before
    s = s._replace(
        other=nm.where(opposite, s.before, s.other),
        f_other=nm.where(opposite, s.f_before, s.f_other),
        last=nm.where(opposite, width, s.last),
        step=nm.where(opposite, width, s.step),
    )
    swap = nm.abs(s.f_other) < nm.abs(s.f)
    return s._replace(
        before=nm.where(swap, s.x, s.before),
        x=nm.where(swap, s.other, s.x),
        other=nm.where(swap, s.x, s.other),
        f_before=nm.where(swap, s.f, s.f_before),
        f=nm.where(swap, s.f_other, s.f),
        f_other=nm.where(swap, s.f, s.f_other),
    )


def _is_done(s: _Brent, xtol: float, rtol: float) -> Tensor:
    near = nm.abs(s.other - s.x) < _tolerance(s.x, xtol, rtol)
    return (s.f == 0) | near | nm.isnan(s.f)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    zero = b == 0
    return nm.where(zero, nm.inf, a / nm.where(zero, 1.0, b))


def bisection(f: Function, a: Tensor, b: Tensor, xtol: float, rtol: float, maxiter: int) -> Found:
    """Halving of the bracket."""
    fa, fb = f(a), f(b)
    at_end = nm.where(fa == 0, a, b)
    done = (fa == 0) | (fb == 0)
    count = nm.zeros_like(a, dtype=nm.int32)

    def goes_on(s: Any) -> Tensor:
        _, _, done, count = s
        return nm.any(nm.logical_not(done) & (count < maxiter))

    def halve(s: Any) -> Any:
        low, width, done, count = s
        width = width / 2
        middle = low + width
        value = f(middle)
        new_low = nm.where(nm.sign(value) * nm.sign(fa) >= 0, middle, low)
        close = (value == 0) | (nm.abs(width) < _tolerance(middle, xtol, rtol))
        new = (nm.where(value == 0, middle, new_low), width, close, cast(count + 1, nm.int32))
        return _frozen(done, s, new)

    low, _, ended, count = nm.while_loop(goes_on, halve, (a, b - a, done, count))
    root = nm.where(done, at_end, low)
    bracketed = changes_sign(fa, fb)
    return Found(nm.where(bracketed, root, nm.nan), bracketed & ended, count, count + 2)


def newton(
    f: Function,
    x0: Tensor,
    x1: Tensor | None,
    slope: Function | None,
    curvature: Function | None,
    tol: float,
    rtol: float,
    maxiter: int,
) -> Found:
    """Newton's method, Halley's with a second derivative, or the secant method with none."""
    calls = 1 + (slope is not None) + (curvature is not None)
    no = nm.zeros_like(x0, dtype=nm.bool)
    count = nm.zeros_like(x0, dtype=nm.int32)
    if slope is None:
        if x1 is None:
            x1 = x0 * (1 + 1e-4) + nm.where(x0 >= 0, 1e-4, -1e-4)
        before, x = x0, cast(x1, x0.dtype)
        f_before, value = f(before), f(x)
    else:
        before, x, f_before, value = x0, x0, f(x0), f(x0)

    def goes_on(s: Any) -> Tensor:
        return nm.any(nm.logical_not(s[-2]) & (s[-1] < maxiter))

    def advance(s: Any) -> Any:
        before, x, f_before, value, done, count = s
        if slope is None:
            change = value * (x - before)
            flat = value == f_before
            step = -nm.where(flat, 0.0, change / nm.where(flat, 1.0, value - f_before))
        else:
            step = -_ratio(value, slope(x))
            if curvature is not None:
                adjust = step * _ratio(curvature(x), slope(x)) / 2
                step = nm.where(nm.abs(adjust) < 1, step / (1 + adjust), step)
        new = x + step
        fresh = f(new)
        least = 4 * float(nm.finfo(x.dtype).eps) * nm.abs(new)
        close = (nm.abs(step) <= nm.maximum(tol + rtol * nm.abs(new), least)) | (fresh == 0)
        close = close & nm.isfinite(new)
        if slope is None:
            close = close & ((value != f_before) | (value == 0))
        after = (x, new, value, fresh, close, cast(count + 1, nm.int32))
        return _frozen(done, s, after)

    done = (value == 0) | no
    _, x, _, _, done, count = nm.while_loop(
        goes_on, advance, (before, x, f_before, value, done, count)
    )
    return Found(x, done, count, calls * (count + 1))
