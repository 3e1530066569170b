"""Nelder and Mead's simplex method (1965), which needs no derivatives.

All points that an iteration may ask for are evaluated side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numus as nm
from numus.optimize.casting import cast
from numus.optimize.line_search import choose
from numus.tensor import Tensor


class Simplex(NamedTuple):
    """Points, the best first, and the values there."""

    points: Tensor  # (n + 1, n)
    values: Tensor
    nit: Tensor
    nfev: Tensor
    status: Tensor


def nelder_mead(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    xatol: float,
    fatol: float,
    maxiter: int,
    maxfun: int,
) -> Simplex:
    """Reflect, expand, contract or shrink until points and values are close."""
    n = x.shape[0]
    many = nm.vmap(f)
    moved = nm.where(x != 0, x * 1.05, 0.00025)
    eye = nm.eye(n, dtype=x.dtype, device=x.device) > 0
    points = nm.concat([nm.expand_dims(x, 0), nm.where(eye, moved, x)])
    count = nm.zeros_like(x[0], dtype=nm.int32)
    s = _sorted(Simplex(points, many(points), count, count + n + 1, count - 1))

    def verdict(s: Simplex) -> Tensor:
        near = nm.max(nm.abs(s.points[1:] - s.points[0])) <= xatol
        near = near & (nm.max(nm.abs(s.values[1:] - s.values[0])) <= fatol)
        over = (s.nit >= maxiter) | (s.nfev >= maxfun)
        finite = nm.isfinite(s.values[0])
        status = nm.where(near, 0, nm.where(over, 1, nm.where(finite, -1, 3)))
        return cast(status, nm.int32)

    def step(s: Simplex) -> Simplex:
        best, worst = s.points[0], s.points[-1]
        middle = nm.mean(s.points[:-1], axis=0)
        trials = nm.stack([middle + k * (middle - worst) for k in (1.0, 2.0, 0.5, -0.5)])
        shrunk = best + 0.5 * (s.points[1:] - best)
        values = many(nm.concat([trials, shrunk]))
        values = nm.where(nm.isnan(values), nm.inf, values)
        reflected, expanded, outside, inside = (values[i] for i in range(4))
        low, second, high = s.values[0], s.values[-2], s.values[-1]
        out = reflected < high
        contracted = nm.where(out, outside <= reflected, inside < high)
        which = nm.where(
            reflected < low, nm.where(expanded < reflected, 1, 0),
            nm.where(reflected < second, 0, nm.where(out, 2, 3)),
        )  # fmt: skip
        replaced = (reflected < second) | contracted
        one = s._replace(
            points=nm.concat([s.points[:-1], nm.expand_dims(trials[which], 0)]),
            values=nm.concat([s.values[:-1], nm.expand_dims(values[which], 0)]),
        )
        all_of_them = s._replace(
            points=nm.concat([s.points[:1], shrunk]), values=nm.concat([s.values[:1], values[4:]])
        )
        new = _sorted(choose(replaced, one, all_of_them))
        nit, nfev = cast(s.nit + 1, nm.int32), cast(s.nfev + n + 4, nm.int32)
        new = new._replace(nit=nit, nfev=nfev)
        return new._replace(status=verdict(new))

    return nm.while_loop(lambda s: s.status < 0, step, s._replace(status=verdict(s)))


def _sorted(s: Simplex) -> Simplex:
    order = nm.argsort(s.values, stable=True)
    return s._replace(points=s.points[order], values=s.values[order])
