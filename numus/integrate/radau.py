"""Radau IIA of order 5, for stiff equations (Hairer and Wanner, *Solving ODEs II*, section IV.8).

The three stages are decoupled by the eigenvectors of the method's matrix into a real system and a
complex one, which is solved as a real one of twice the size. The Jacobian is new at every attempt,
by forward mode: its columns are computed side by side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.integrate.stepping import MAX_FACTOR, MIN_FACTOR, SAFETY, Attempt, Problem, State, norm
from numus.optimize.casting import cast
from numus.tensor import Tensor

_NEWTON_STEPS = 6
_S6 = 6**0.5
_NODES = ((4 - _S6) / 10, (4 + _S6) / 10, 1.0)
_ERROR = ((-13 - 7 * _S6) / 3, (-13 + 7 * _S6) / 3, -1 / 3)
_REAL = 3 + 3 ** (2 / 3) - 3 ** (1 / 3)  # eigenvalues of the inverse of the method's matrix
_PAIR = (3 + 0.5 * (3 ** (1 / 3) - 3 ** (2 / 3)), -0.5 * (3 ** (5 / 6) + 3 ** (7 / 6)))
_BACK = (
    (0.09443876248897524, -0.14125529502095421, 0.03002919410514742),
    (0.25021312296533332, 0.20412935229379994, -0.38294211275726192),
    (1.0, 1.0, 0.0),
)
_TO = (
    (4.17871859155190428, 0.32768282076106237, 0.52337644549944951),
    (-4.17871859155190428, -0.32768282076106237, 0.47662355450055044),
    (0.50287263494578682, -2.57192694985560522, 0.59603920482822492),
)
_INTERPOLANT = (  # weights of the stages in the powers of a step's fraction
    (13 / 3 + 7 * _S6 / 3, 13 / 3 - 7 * _S6 / 3, 1 / 3),
    (-23 / 3 - 22 * _S6 / 3, -23 / 3 + 22 * _S6 / 3, -8 / 3),
    (10 / 3 + 5 * _S6, 10 / 3 - 5 * _S6, 10 / 3),
)


def mixed(row: tuple[float, ...], parts: Any) -> Any:
    """A weighted sum."""
    return sum(weight * part for weight, part in zip(row, parts, strict=True) if weight)


def newton_tolerance(rtol: Any, dtype: Any) -> Any:
    eps = float(nm.finfo(dtype).eps)
    if isinstance(rtol, Tensor):
        return nm.maximum(10 * eps / rtol, nm.minimum(0.03, nm.sqrt(rtol)))
    return max(10 * eps / rtol, min(0.03, rtol**0.5))


def jacobian(p: Problem, t: Tensor, y: Tensor) -> Tensor:
    if y.dtype.is_complex:
        raise TypeError("solve_ivp: Radau and BDF take real states; split them, or use RK45")
    if p.jac is not None:
        return cast(nm.asarray(p.jac(t, y)), y.dtype)
    return nm.jacfwd(lambda y: p.rhs(t, y))(y)


class _Inner(NamedTuple):
    f: Tensor
    powers: tuple[Tensor, ...]  # the interpolant of the last step
    h: Tensor  # its size; zero before there is one
    error: Tensor


class Radau:
    """The implicit Runge-Kutta method."""

    order = 3
    starting_nfev = 0

    def start(self, problem: Problem, t: Tensor, y: Tensor, f: Tensor, h: Tensor) -> Any:
        blank = nm.zeros_like(y)
        return _Inner(f, (blank, blank, blank), nm.zeros_like(t), nm.zeros_like(t))

    def blank(self, y: Tensor) -> Any:
        return (y, *(nm.zeros_like(y) for _ in range(3)))

    def attempt(self, problem: Problem, s: State, t_new: Tensor, h: Tensor) -> Attempt:
        inner: _Inner = s.inner
        J = jacobian(problem, s.t, s.y)
        n = s.y.shape[0]
        eye = nm.asarray(np.eye(n), dtype=s.y.dtype, device=s.y.device)
        real = nm.linalg.inv(_REAL / h * eye - J)
        a, b = _PAIR[0] / h * eye - J, _PAIR[1] / h * eye
        pair = nm.linalg.inv(nm.concat([nm.concat([a, -b], 1), nm.concat([b, a], 1)]))
        stages, converged, used = self._newton(problem, s, h, real, pair)
        y = s.y + stages[2]
        pulled = mixed(_ERROR, stages) / h
        scale = problem.scale(s.y, y)
        estimate = _product(real, inner.f + pulled)
        error = norm(estimate / scale)
        # the first estimate is too large for stiff components: where it rejects, filter it again
        again = norm(_product(real, problem.rhs(s.t, s.y + estimate) + pulled) / scale)
        error = nm.where(s.retrying & (error > 1), again, error)
        safe = nm.maximum(error, 1e-10)
        known = (inner.h != 0) & (inner.error > 0)
        growth = nm.abs(h / nm.where(known, inner.h, 1.0)) * (inner.error / safe) ** 0.25
        factor = nm.minimum(1.0, nm.where(known, growth, 1.0)) * safe**-0.25
        safety = SAFETY * (2 * _NEWTON_STEPS + 1) / (2 * _NEWTON_STEPS + used)
        factor = nm.clip(safety * factor, MIN_FACTOR, MAX_FACTOR)
        usable = converged & nm.isfinite(error)
        factor = nm.where(usable, factor, 0.5)
        powers = tuple(mixed(row, stages) for row in _INTERPOLANT)
        accepted = usable & (error <= 1)
        after = _Inner(problem.rhs(t_new, y), powers, h, error)
        return Attempt(y, accepted, factor, (s.y, *powers), after, inner, 3 * used + 3, 1, 2)

    def _newton(
        self, p: Problem, s: State, h: Tensor, real: Tensor, pair: Tensor
    ) -> tuple[Any, Tensor, Tensor]:
        """The stages by simplified Newton steps from the last step's interpolant."""
        n = s.y.shape[0]
        scale = p.scale(s.y)
        tol = newton_tolerance(p.rtol, s.y.dtype)
        last: _Inner = s.inner
        ratio = nm.where(last.h != 0, h / nm.where(last.h != 0, last.h, 1.0), 0.0)
        whole = mixed((1.0, 1.0, 1.0), last.powers)
        stages = []
        for c in _NODES:
            x = 1 + ratio * c
            guess = x * (last.powers[0] + x * (last.powers[1] + x * last.powers[2])) - whole
            stages.append(nm.where(last.h != 0, guess, 0.0))
        w = [mixed(row, stages) for row in _TO]
        going = nm.logical_not(s.failed)
        converged = s.failed & nm.logical_not(s.failed)
        used = nm.zeros_like(s.nfev)
        old, rate = nm.zeros_like(s.t), nm.zeros_like(s.t)
        for k in range(_NEWTON_STEPS):
            f = [p.rhs(s.t + c * h, s.y + z) for c, z in zip(_NODES, stages, strict=True)]
            transformed = [mixed(row, f) for row in _TO]
            first = _product(real, transformed[0] - _REAL / h * w[0])
            right = nm.concat([
                transformed[1] - (_PAIR[0] * w[1] - _PAIR[1] * w[2]) / h,
                transformed[2] - (_PAIR[1] * w[1] + _PAIR[0] * w[2]) / h,
            ])  # fmt: skip
            both = _product(pair, right)
            steps = [first, both[:n], both[n:]]
            size = nm.sqrt(sum(norm(step / scale) ** 2 for step in steps) / 3)
            used = cast(used + cast(going, used.dtype), used.dtype)
            ok = nm.isfinite(size)
            if k:
                rate = nm.where(going, size / nm.where(old > 0, old, 1.0), rate)
                slow = rate ** (_NEWTON_STEPS - k) / nm.where(rate < 1, 1 - rate, 1.0) * size > tol
                ok = ok & (rate < 1) & nm.logical_not(slow)
            going = going & ok
            w = [nm.where(going, a + b, a) for a, b in zip(w, steps, strict=True)]
            moved = [mixed(row, w) for row in _BACK]
            stages = [nm.where(going, a, b) for a, b in zip(moved, stages, strict=True)]
            near = size == 0
            if k:
                near = near | (rate / nm.where(rate < 1, 1 - rate, 1.0) * size < tol)
            converged = converged | (going & near)
            going = going & nm.logical_not(near)
            old = size
        return stages, converged, used

    def interpolate(self, problem: Problem, saved: Any, t: Tensor, h: Tensor, x: Tensor) -> Tensor:
        y_old, *powers = saved
        return y_old + x * (powers[0] + x * (powers[1] + x * powers[2]))


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """A small matrix times a vector, as a sum that fuses with what is around it."""
    return nm.sum(matrix * vector, axis=1)
