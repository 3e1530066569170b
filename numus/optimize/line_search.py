"""Descent along directions: line searches for the strong Wolfe conditions, step by step.

A search brackets a step length and interpolates cubically within the bracket (Nocedal and Wright,
*Numerical Optimization*, section 3.5). Iterations of searches and of the method that uses them are
one flat loop, in which every iteration evaluates the function once: nothing is nested, and under
`vmap` members of a batch are at different points of their searches. Near the minimum, where
differences of values are rounding errors, Hager and Zhang's approximate conditions take over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numus as nm
from numus.optimize.casting import cast
from numus.tensor import Tensor

SUFFICIENT_DECREASE = 1e-4
_MAX_TRIALS = 30  # of one search
_EXPANSION = 2.5

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]  # x -> the function's value and gradient


class Search(NamedTuple):
    """A point, a direction, and how far the search along it has come."""

    x: Tensor
    f: Tensor
    g: Tensor
    d: Tensor
    slope: Tensor
    step: Tensor  # to try next
    low: Tensor  # the best step so far, which decreases the function
    f_low: Tensor
    slope_low: Tensor
    high: Tensor  # the bracket's other end; infinite before there is one
    f_high: Tensor
    trials: Tensor
    memory: Any  # of the method
    fresh: Tensor  # the direction is steepest descent
    nit: Tensor
    nfev: Tensor
    status: Tensor  # -1 while it goes on


class Directions(Protocol):
    """A method of descent: which way to go."""

    curvature: float  # how much of the slope may remain after a search
    unit_step: bool  # a step of 1 is the one to try first

    def start(self, x: Tensor) -> Any:
        """The memory at the beginning."""

    def reset(self, memory: Any, x: Tensor) -> Any:
        """The memory without what was learnt."""

    def update(self, memory: Any, s: Tensor, y: Tensor, g: Tensor, x: Tensor) -> tuple[Any, Tensor]:
        """The memory after a step s that changed the gradient by y, and the direction from x."""

    def steepest(self, x: Tensor, g: Tensor) -> Tensor:
        """The direction without a memory."""


class Limits(NamedTuple):
    """When to stop."""

    gtol: float
    ftol: float  # relative decrease in one iteration; 0: any will do
    maxiter: int
    maxfun: int


def dot(a: Tensor, b: Tensor) -> Tensor:
    return nm.sum(a * b)


def choose(flag: Tensor, a: Any, b: Any) -> Any:
    return nm.tree.map(lambda x, y: nm.where(flag, x, y), a, b)


def descend(evaluate: Evaluate, x: Tensor, directions: Directions, limits: Limits) -> Search:
    """A point where the gradient vanishes, or the best that was found."""
    f, g = evaluate(x)
    d = directions.steepest(x, g)
    zero = nm.zeros_like(f)
    count = nm.zeros_like(f, dtype=nm.int32)
    s = Search(
        x, f, g, d, dot(g, d), _first_length(g), zero, f, dot(g, d), zero + nm.inf, zero, count,
        directions.start(x), count == 0, count, count + 1, count - 1,
    )  # fmt: skip
    s = s._replace(status=_verdict(s, limits, s.f, started=False))
    return nm.while_loop(
        lambda s: s.status < 0, lambda s: _trial(evaluate, directions, limits, s), s
    )


def _first_length(g: Tensor) -> Tensor:
    size = nm.sqrt(dot(g, g))
    return nm.minimum(1.0, 1 / nm.where(size > 0, size, 1.0))


def _verdict(s: Search, limits: Limits, f_before: Tensor, started: bool = True) -> Tensor:
    """The status after an iteration: 0 converged, 1 at a limit, 3 not a number, -1 goes on."""
    gradient = nm.max(nm.abs(s.g)) if s.g.shape[0] else nm.zeros_like(s.f)
    done = gradient <= limits.gtol
    if limits.ftol and started:
        size = nm.maximum(nm.maximum(nm.abs(f_before), nm.abs(s.f)), 1.0)
        done = done | (f_before - s.f <= limits.ftol * size)
    over = (s.nit >= limits.maxiter) | (s.nfev >= limits.maxfun)
    finite = nm.isfinite(s.f) & nm.isfinite(gradient)
    status = nm.where(done, 0, nm.where(over, 1, nm.where(finite, -1, 3)))
    return cast(status, nm.int32)


def _trial(evaluate: Evaluate, directions: Directions, limits: Limits, s: Search) -> Search:
    """One evaluation: the search ends with a new point, or its bracket shrinks."""
    x = s.x + s.step * s.d
    f, g = evaluate(x)
    slope = dot(g, s.d)
    finite = nm.isfinite(f) & nm.isfinite(slope)
    lower = f <= s.f + SUFFICIENT_DECREASE * s.step * s.slope
    rounding = 4 * float(nm.finfo(f.dtype).eps) * nm.abs(s.f)
    nearly = (f <= s.f + rounding) & (slope <= (2 * SUFFICIENT_DECREASE - 1) * s.slope)
    flat = nm.abs(slope) <= -directions.curvature * s.slope
    accepted = finite & (lower | nearly) & flat
    s = s._replace(nfev=cast(s.nfev + 1, nm.int32))
    return choose(
        accepted,
        _moved(directions, limits, s, x, f, g),
        _narrowed(directions, s, f, slope, finite & lower),
    )


def _moved(
    directions: Directions, limits: Limits, s: Search, x: Tensor, f: Tensor, g: Tensor
) -> Search:
    """The state at a new point, before the search along a new direction."""
    memory, d = directions.update(s.memory, x - s.x, g - s.g, g, x)
    slope = dot(g, d)
    downhill = slope < 0
    back = directions.steepest(x, g)
    d, slope = choose(downhill, (d, slope), (back, dot(g, back)))
    zero = nm.zeros_like(f)
    length = nm.ones_like(f)
    if not directions.unit_step:  # the step that decreases the function as much as the last one
        ratio = 2.02 * (f - s.f) / nm.where(slope < 0, slope, -1.0)
        length = nm.where(ratio > 0, nm.minimum(1.0, ratio), 1.0)
    kept = choose(downhill, memory, directions.reset(memory, x))
    new = Search(
        x, f, g, d, slope, nm.where(downhill, length, _first_length(g)), zero, f, slope,
        zero + nm.inf, zero, nm.zeros_like(s.trials), kept, nm.logical_not(downhill),
        cast(s.nit + 1, nm.int32), s.nfev, s.status,
    )  # fmt: skip
    return new._replace(status=_verdict(new, limits, s.f))


def _narrowed(directions: Directions, s: Search, f: Tensor, slope: Tensor, lower: Tensor) -> Search:
    """The state with a narrower bracket; where that was tried too often, with the direction of
    steepest descent, and where it was that already, the end: status 2."""
    bracketed = s.high < nm.inf
    worse = nm.logical_not(lower & (f < s.f_low))
    uphill = nm.where(bracketed & (s.high < s.low), slope <= 0, slope >= 0)
    # the new step is the worse end, or the better end with the minimum behind it or ahead of it
    high = nm.where(worse, s.step, nm.where(uphill, s.low, s.high))
    f_high = nm.where(worse, f, nm.where(uphill, s.f_low, s.f_high))
    low, f_low, slope_low = choose(worse, (s.low, s.f_low, s.slope_low), (s.step, f, slope))
    step = nm.where(
        high < nm.inf, _interpolated(low, f_low, slope_low, high, f_high), _EXPANSION * s.step
    )
    trials = cast(s.trials + 1, nm.int32)
    new = s._replace(
        step=step, low=low, f_low=f_low, slope_low=slope_low, high=high, f_high=f_high,
        trials=trials,
    )  # fmt: skip
    exhausted = trials >= _MAX_TRIALS
    ended = cast(nm.where(exhausted & s.fresh, 2, new.status), nm.int32)
    d = directions.steepest(s.x, s.g)
    again = s._replace(
        d=d, slope=dot(s.g, d), step=_first_length(s.g), low=s.low * 0, f_low=s.f,
        slope_low=dot(s.g, d), high=nm.full_like(s.high, nm.inf), trials=trials * 0,
        memory=directions.reset(s.memory, s.x), fresh=s.fresh | True,
    )  # fmt: skip
    return choose(exhausted & nm.logical_not(s.fresh), again, new._replace(status=ended))


def _interpolated(
    low: Tensor, f_low: Tensor, slope: Tensor, high: Tensor, f_high: Tensor
) -> Tensor:
    """The minimum of the parabola through two values and a slope, well inside the bracket."""
    width = high - low
    bend = f_high - f_low - slope * width
    usable = nm.isfinite(bend) & (bend > 0)
    part = nm.where(usable, -slope * width / nm.where(usable, 2 * bend, 1.0), 0.5)
    return low + nm.clip(part, 0.1, 0.9) * width
