"""Backward differentiation formulas of orders 1 to 5, for stiff equations.

Quasi-constant steps with the modified formulas of Klopfenstein and Shampine, as in ode15s (Shampine
and Reichelt 1997): the state is a table of backward differences, rescaled where the step changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.integrate.radau import jacobian, newton_tolerance
from numus.integrate.stepping import MAX_FACTOR, MIN_FACTOR, SAFETY, Attempt, Problem, State, norm
from numus.optimize.casting import cast
from numus.tensor import Tensor

_MAX_ORDER = 5
_ROWS = _MAX_ORDER + 3
_NEWTON_STEPS = 4
_KAPPA = np.array([0, -0.1850, -1 / 9, -0.0823, -0.0415, 0])
_GAMMA = np.hstack((0, np.cumsum(1 / np.arange(1, _MAX_ORDER + 1))))
_ALPHA = (1 - _KAPPA) * _GAMMA
_ERROR = _KAPPA * _GAMMA + 1 / np.arange(1, _MAX_ORDER + 2)
_INDEX = np.arange(1, _MAX_ORDER + 1)
_UNIT = np.cumprod(
    np.vstack([np.ones(_MAX_ORDER + 1),
               np.hstack([np.zeros((_MAX_ORDER, 1)),
                          (_INDEX[:, None] - 1 - _INDEX) / _INDEX[:, None]])]),
    axis=0,
)  # fmt: skip


class _Inner(NamedTuple):
    D: Tensor  # differences, (rows, n)
    order: Tensor
    equal: Tensor  # steps of one size in a row
    h: Tensor  # the size that the differences belong to


def _entry(table: np.ndarray, at: Tensor, like: Tensor) -> Tensor:
    """The number of a table at an index that is computed."""
    total: Any = nm.zeros_like(like)
    for i, number in enumerate(table):
        total = nm.where(at == i, float(number), total)
    return cast(total, like.dtype)


def _rows(order: Tensor) -> Tensor:
    return nm.expand_dims(nm.arange(_ROWS, device=order.device), 1) - order


def _rescaled(D: Tensor, order: Tensor, factor: Tensor) -> Tensor:
    """The differences for steps that are `factor` times as long."""
    index = nm.asarray(_INDEX, dtype=D.dtype, device=D.device)
    unit = nm.asarray(_UNIT, dtype=D.dtype, device=D.device)
    down = nm.expand_dims(index, 1)
    inner = (down - 1 - factor * index) / down
    # running products down the columns; the first row is ones, the first column zeros below it
    running = [inner[0]]
    for i in range(1, _MAX_ORDER):
        running.append(running[-1] * inner[i])
    R = nm.stack([nm.ones_like(running[0]), *running])
    corner = nm.zeros_like(R[:, :1])
    R = nm.concat([corner + nm.expand_dims(unit[:, 0], 1), R], 1)
    RU = nm.sum(nm.expand_dims(R, 2) * unit, axis=1)
    low = D[: _MAX_ORDER + 1]
    here = _rows(order)[: _MAX_ORDER + 1] <= 0
    moved = nm.sum(nm.expand_dims(RU, 2) * nm.expand_dims(nm.where(here, low, 0.0), 1), axis=0)
    return nm.concat([nm.where(here, moved, low), D[_MAX_ORDER + 1 :]])


class Bdf:
    """The multistep method of variable order."""

    order = 1
    starting_nfev = 0

    def start(self, problem: Problem, t: Tensor, y: Tensor, f: Tensor, h: Tensor) -> Any:
        rows = [y, f * h, *(nm.zeros_like(y) for _ in range(_ROWS - 2))]
        count = nm.zeros_like(t, dtype=nm.int32)
        return _Inner(nm.stack(rows), count + 1, count, nm.abs(h))

    def blank(self, y: Tensor) -> Any:
        rows = nm.stack([y, *(nm.zeros_like(y) for _ in range(_ROWS - 1))])
        return rows, nm.zeros_like(nm.real(y)[0], dtype=nm.int32) + 1

    def attempt(self, problem: Problem, s: State, t_new: Tensor, h: Tensor) -> Attempt:
        inner: _Inner = s.inner
        size, order = nm.abs(h), inner.order
        ratio = size / inner.h
        eps = float(nm.finfo(size.dtype).eps)
        same = nm.abs(size - inner.h) <= 4 * eps * (nm.abs(s.t) + size)  # but for roundings
        D = nm.where(same, inner.D, _rescaled(inner.D, order, ratio))
        equal = nm.where(same, inner.equal, 0)
        at = _rows(order)
        predicted = nm.sum(nm.where(at <= 0, D, 0.0), axis=0)
        gamma = nm.asarray(
            np.hstack([_GAMMA, np.zeros(_ROWS - _GAMMA.size)]), dtype=D.dtype, device=D.device
        )
        weights = nm.where(at <= 0, nm.expand_dims(gamma, 1), 0.0)
        alpha = _entry(_ALPHA, order, size)
        psi = nm.sum(weights * D, axis=0) / alpha
        change, converged, used = self._newton(problem, s, t_new, predicted, h / alpha, psi)
        y = predicted + change
        scale = problem.scale(y)
        error = norm(_entry(_ERROR, order, size) * change / scale)
        safety = SAFETY * (2 * _NEWTON_STEPS + 1) / (2 * _NEWTON_STEPS + used)
        usable = converged & nm.isfinite(error)
        accepted = usable & (error <= 1)
        shrink = safety * nm.maximum(error, 1e-10) ** (-1 / cast(order + 1, size.dtype))
        shrink = nm.where(usable, nm.maximum(MIN_FACTOR, nm.minimum(shrink, 1.0)), 0.5)
        new = self._accumulated(D, order, change)
        counted = cast(equal + 1, nm.int32)
        ready = counted >= order + 1
        best, growth = self._best_order(new, order, error, scale)
        factor = nm.where(ready, nm.minimum(MAX_FACTOR, safety * growth), 1.0)
        after = _Inner(
            new,
            cast(nm.where(ready, best, order), nm.int32),
            cast(nm.where(ready, 0, counted), nm.int32),
            size,
        )
        before = _Inner(D, order, nm.zeros_like(counted), size)
        return Attempt(
            y, accepted, nm.where(accepted, factor, shrink), (new, order), after, before,
            used, 1, 1,
        )  # fmt: skip

    def _newton(
        self, p: Problem, s: State, t: Tensor, predicted: Tensor, c: Tensor, psi: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The correction of the prediction by simplified Newton steps."""
        J = jacobian(p, t, predicted)
        n = predicted.shape[0]
        eye = nm.asarray(np.eye(n), dtype=J.dtype, device=J.device)
        inverse = nm.linalg.inv(eye - c * J)
        scale = p.scale(predicted)
        tol = newton_tolerance(p.rtol, J.dtype)
        d = nm.zeros_like(predicted)
        going = nm.logical_not(s.failed)
        converged = s.failed & nm.logical_not(s.failed)
        used = nm.zeros_like(s.nfev)
        old = nm.zeros_like(s.t)
        for k in range(_NEWTON_STEPS):
            f = p.rhs(t, predicted + d)
            step = nm.sum(inverse * (c * f - psi - d), axis=1)
            size = norm(step / scale)
            used = cast(used + cast(going, used.dtype), used.dtype)
            ok, near = nm.isfinite(size), size == 0
            if k:
                rate = size / nm.where(old > 0, old, 1.0)
                left = nm.where(rate < 1, 1 - rate, 1.0)
                ok = ok & (rate < 1)
                ok = ok & nm.logical_not(rate ** (_NEWTON_STEPS - k) / left * size > tol)
                near = near | (rate / left * size < tol)
            going = going & ok
            d = nm.where(going, d + step, d)
            converged = converged | (going & near)
            going = going & nm.logical_not(near)
            old = size
        return d, converged, used

    def _accumulated(self, D: Tensor, order: Tensor, change: Tensor) -> Tensor:
        """The differences at the new point."""
        rows = [D[i] for i in range(_ROWS)]
        new: list[Any] = [None] * _ROWS
        total: Any = nm.zeros_like(change)
        for i in reversed(range(_ROWS)):
            at = i - order
            total = total + nm.where(at == 1, change, nm.where(at <= 0, rows[i], 0.0))
            before = rows[i - 1] if i else change
            new[i] = nm.where(
                at <= 0,
                total,
                nm.where(at == 1, change, nm.where(at == 2, change - before, rows[i])),
            )
        return nm.stack(new)

    def _best_order(
        self, D: Tensor, order: Tensor, error: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The order of the longest next step, and that step's length in those of the last."""
        at = _rows(order)

        def of_row(shift: int, number: Tensor) -> Tensor:
            row = nm.sum(nm.where(at == shift, D, 0.0), axis=0)
            return norm(number * row / scale)

        lower = of_row(0, _entry(_ERROR, order - 1, error))
        higher = of_row(2, _entry(_ERROR, order + 1, error))
        factors = []
        for shift, size in ((-1, lower), (0, error), (1, higher)):
            power = -1 / cast(order + 1 + shift, error.dtype)
            possible = (order + shift >= 1) & (order + shift <= _MAX_ORDER)
            factors.append(nm.where(possible, nm.maximum(size, 1e-10) ** power, 0.0))
        best = nm.maximum(nm.maximum(factors[0], factors[1]), factors[2])
        move = nm.where(best == factors[1], 0, nm.where(best == factors[0], -1, 1))
        return order + move, best

    def interpolate(self, problem: Problem, saved: Any, t: Tensor, h: Tensor, x: Tensor) -> Tensor:
        D, order = saved
        total, product = D[0], nm.ones_like(x)
        for j in range(1, _MAX_ORDER + 1):
            product = product * (x + (j - 2)) / j
            total = total + nm.where(order >= j, D[j] * product, 0.0)
        return total
