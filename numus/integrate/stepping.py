"""Adaptive step sizes: what the methods for initial value problems share.

Errors are measured by root mean squares, scaled by `atol + rtol * |y|`; the first step follows
Hairer, Nørsett and Wanner, *Solving Ordinary Differential Equations I*, section II.4. A loop makes
one attempt at a step in each iteration, accepted or not, so that under `vmap` all members of a
batch attempt theirs together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numus as nm
from numus.optimize.casting import cast
from numus.tensor import Tensor

SAFETY, MIN_FACTOR, MAX_FACTOR = 0.9, 0.2, 10.0  # of a step to the next

Rhs = Callable[[Tensor, Tensor], Tensor]  # (t, y) -> dy/dt


class State(NamedTuple):
    """Where an integration stands after an attempt at a step."""

    t: Tensor
    y: Tensor
    h: Tensor  # the size of the next attempt
    t_old: Tensor  # where the last accepted step began
    saved: Any  # what the method interpolates that step from
    inner: Any  # what the method carries along
    retrying: Tensor  # the last attempt was rejected
    failed: Tensor
    attempts: Tensor
    nfev: Tensor
    njev: Tensor
    nlu: Tensor


class Attempt(NamedTuple):
    """What a method found for one step."""

    y: Tensor
    accepted: Tensor
    factor: Tensor  # of the step's size
    saved: Any
    inner: Any  # if accepted
    retained: Any  # the inner state, if not
    nfev: Any = 0
    njev: Any = 0
    nlu: Any = 0


class Method(Protocol):
    """A method for initial value problems."""

    order: int  # of the error estimate
    starting_nfev: int

    def start(self, problem: Problem, t: Tensor, y: Tensor, f: Tensor, h: Tensor) -> Any:
        """The inner state at the beginning."""

    def blank(self, y: Tensor) -> Any:
        """What an interpolant of a step of length zero at y would be saved as."""

    def attempt(self, problem: Problem, s: State, t_new: Tensor, h: Tensor) -> Attempt:
        """A step from s to t_new, h away (negative, if time runs backwards)."""

    def interpolate(self, problem: Problem, saved: Any, t: Tensor, h: Tensor, x: Tensor) -> Tensor:
        """The solution at the fraction x of a step of size h that began at t."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The equation, its method, and the tolerances."""

    rhs: Rhs
    method: Method
    rtol: Any
    atol: Any
    max_step: Any
    first_step: Any
    max_attempts: int
    jac: Any = None

    def scale(self, *ys: Tensor) -> Tensor:
        """The error that is tolerated in each component."""
        size = nm.abs(ys[0])
        for y in ys[1:]:
            size = nm.maximum(size, nm.abs(y))
        return cast(self.atol + self.rtol * size, size.dtype)


def norm(x: Tensor) -> Tensor:
    """The root mean square."""
    return nm.sqrt(nm.mean(nm.square(nm.abs(x))))


def smallest_step(t: Tensor) -> Tensor:
    return 10 * float(nm.finfo(t.dtype).eps) * nm.abs(t)


def _first_step(p: Problem, t: Tensor, y: Tensor, f: Tensor, bound: Tensor) -> Tensor:
    """A step of which an explicit Euler step would change y by a hundredth, and not more than the
    second derivative allows."""
    span = nm.abs(bound - t)
    scale = p.scale(y)
    d0, d1 = norm(y / scale), norm(f / scale)
    small = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = nm.where(small, 1e-6, 0.01 * d0 / nm.where(small, 1.0, d1))
    h0 = nm.minimum(cast(h0, t.dtype), span)
    direction = nm.sign(bound - t)
    y1 = y + h0 * direction * f
    f1 = p.rhs(t + h0 * direction, y1)
    d2 = norm((f1 - f) / scale) / nm.where(h0 > 0, h0, 1.0)
    flat = (d1 <= 1e-15) & (d2 <= 1e-15)
    steepest = nm.where(flat, 1.0, nm.maximum(d1, d2))
    h1 = nm.where(
        flat, nm.maximum(1e-6, h0 * 1e-3), (0.01 / steepest) ** (1 / (p.method.order + 1))
    )
    return nm.minimum(nm.minimum(nm.minimum(100 * h0, h1), span), p.max_step)


def start(p: Problem, t: Tensor, y: Tensor, bound: Tensor) -> State:
    """The state before the first step, towards `bound`."""
    f = p.rhs(t, y)
    if p.first_step is None:
        h, nfev = _first_step(p, t, y, f, bound), 2
    else:
        h, nfev = nm.full_like(t, p.first_step), 1
    zero, no = nm.zeros_like(t, dtype=nm.int32), nm.zeros_like(t, dtype=nm.bool)
    inner = p.method.start(p, t, y, f, h * nm.sign(bound - t))
    return State(
        t, y, h, t, p.method.blank(y), inner, no, no, zero, zero + nfev + p.method.starting_nfev,
        zero, zero,
    )  # fmt: skip


def choose(flag: Tensor, a: Any, b: Any) -> Any:
    """a where the flag holds, else b: containers of tensors."""
    return nm.tree.map(lambda x, y: nm.where(flag, x, y), a, b)


def attempt(p: Problem, s: State, bound: Tensor) -> State:
    """The state after one more attempt at a step, which does not go beyond `bound`."""
    direction = nm.sign(bound - s.t)
    least = smallest_step(s.t)
    size = nm.clip(s.h, least, p.max_step)
    t_new = s.t + size * direction
    t_new = nm.where(direction * (t_new - bound) > 0, bound, t_new)
    h = t_new - s.t
    found = p.method.attempt(p, s, t_new, h)
    ok = found.accepted
    factor = nm.where(ok & s.retrying, nm.minimum(found.factor, 1.0), found.factor)
    h_next = cast(nm.abs(h) * factor, s.h.dtype)
    return State(
        t=nm.where(ok, t_new, s.t),
        y=nm.where(ok, found.y, s.y),
        h=h_next,
        t_old=nm.where(ok, s.t, s.t_old),
        saved=choose(ok, found.saved, s.saved),
        inner=choose(ok, found.inner, found.retained),
        retrying=nm.logical_not(ok),
        failed=nm.logical_not(ok) & (h_next < least) | nm.logical_not(nm.isfinite(h_next)),
        attempts=s.attempts + 1,
        nfev=cast(s.nfev + found.nfev, s.nfev.dtype),
        njev=cast(s.njev + found.njev, s.njev.dtype),
        nlu=cast(s.nlu + found.nlu, s.nlu.dtype),
    )


def goes_on(p: Problem, s: State, target: Tensor, direction: Tensor) -> Tensor:
    """Whether the target is not reached and another attempt makes sense."""
    return (
        (direction * (target - s.t) > 0) & nm.logical_not(s.failed) & (s.attempts < p.max_attempts)
    )


def interpolated(p: Problem, s: State, t: Tensor) -> Tensor:
    """The solution at a time within the last step."""
    h = s.t - s.t_old
    x = nm.where(h == 0, 0.0, (t - s.t_old) / nm.where(h == 0, 1.0, h))
    found = p.method.interpolate(p, s.saved, s.t_old, h, cast(x, t.dtype))
    return nm.where(t == s.t, s.y, found)
