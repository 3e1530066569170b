"""Solutions at given times, with gradients by the adjoint equation.

The adjoint state a(t), the derivative of a loss by y(t), obeys da/dt = -aᵀ ∂f/∂y; integrated from
the last time to the first, together with the solution itself and the derivatives by the equation's
parameters (Pontryagin 1962; Chen et al. 2018). The solution is integrated backwards along with it,
anew from each of the stored outputs, so memory does not grow with the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numus as nm
from numus.integrate.stepping import Problem, attempt, goes_on, interpolated, start
from numus.optimize.casting import cast
from numus.tensor import Tensor


class Counts(NamedTuple):
    """What an integration cost, and how it ended: 0 or -1."""

    status: Tensor
    nfev: Tensor
    njev: Tensor
    nlu: Tensor


def solution(p: Problem, constants: list[Tensor], y0: Tensor, ts: Tensor) -> tuple[Tensor, Counts]:
    """The solution at times that ascend or descend, the first of which is y0's.

    `p.rhs(constants, t, y)` is the equation. Values at times that were not reached are NaN.
    """
    return _solution(p, tuple(constants), y0, ts)


def closed(p: Problem, constants: Any) -> Problem:
    """The problem with its constants filled in: rhs(t, y)."""
    rhs: Callable[..., Any] = p.rhs
    jac = p.jac
    filled = None if jac is None else lambda t, y: jac(constants, t, y)
    return replace(p, rhs=lambda t, y: rhs(constants, t, y), jac=filled)


def _integrate(p: Problem, constants: Any, y0: Tensor, ts: Tensor) -> tuple[Tensor, Counts]:
    p = closed(p, constants)
    bound = ts[-1]
    direction = nm.sign(bound - ts[0])

    def to_output(s: Any, t: Tensor) -> Any:
        s = nm.while_loop(lambda s: goes_on(p, s, t, direction), lambda s: attempt(p, s, bound), s)
        reached = direction * (t - s.t) <= 0
        return s, nm.where(reached, interpolated(p, s, t), nm.nan)

    s, rows = nm.scan(to_output, start(p, ts[0], y0, bound), ts[1:])
    unreached = direction * (bound - s.t) > 0
    status = nm.where(unreached, nm.asarray(-1, dtype=nm.int32, device=y0.device), 0)
    counts = Counts(cast(status, nm.int32), s.nfev, s.njev, s.nlu)
    return nm.concat([nm.expand_dims(y0, 0), rows]), counts


_solution = nm.custom_vjp(_integrate, nondiff_argnums=(0,))


def _forward(p: Problem, constants: Any, y0: Tensor, ts: Tensor) -> Any:
    ys, counts = _solution(p, constants, y0, ts)
    return (ys, counts), (constants, ys, ts)


def _backward(p: Problem, residuals: Any, cotangents: Any) -> Any:
    constants, ys, ts = residuals
    g = cotangents[0]
    rhs: Callable[..., Any] = p.rhs
    n = ys.shape[1]
    floats = [i for i, c in enumerate(constants) if c.dtype.is_inexact]
    sizes = [constants[i].size for i in floats]

    def pulled(held: Any, t: Tensor, y: Tensor, a: Tensor) -> Any:
        def f(y: Tensor, *moving: Tensor) -> Tensor:
            every = dict(zip(floats, moving, strict=True))
            return rhs([every.get(i, c) for i, c in enumerate(held)], t, y)

        value, pull = nm.vjp(f, y, *(held[i] for i in floats))
        return value, pull(a)

    def augmented(held: Any, t: Tensor, z: Tensor) -> Tensor:
        value, (by_y, *by_constants) = pulled(held, t, z[:n], z[n : 2 * n])
        rates = [nm.reshape(x, -1) for x in by_constants]
        return nm.concat([value, *(-cast(x, value.dtype) for x in (by_y, *rates))])

    def back(carry: Any, row: Any) -> Any:
        a, sums = carry
        t, t_before, y, g_before = row
        z = nm.concat([y, a, sums])
        found, _ = solution(aug, list(constants), z, nm.stack([t, t_before]))
        return (found[-1, n : 2 * n] + g_before, found[-1, 2 * n :]), None

    atol = p.atol
    if isinstance(atol, Tensor) and atol.ndim:
        rest = nm.full((sum(sizes),), 1.0, dtype=atol.dtype, device=atol.device) * nm.min(atol)
        atol = nm.concat([atol, atol, rest])
    aug = replace(p, rhs=augmented, atol=atol, jac=None, first_step=None)  # type: ignore[arg-type]
    sums = nm.zeros((sum(sizes),), dtype=ys.dtype, device=ys.device)
    rows = (ts[1:], ts[:-1], ys[1:], g[:-1])
    (a, sums), _ = nm.scan(back, (g[-1], sums), rows, reverse=True)
    slopes = nm.vmap(lambda t, y: rhs(constants, t, y))(ts, ys)
    by_time = nm.sum(slopes * g, axis=1)
    first = -nm.sum(slopes[0] * (a - g[0]))
    by_time = nm.concat([nm.expand_dims(first, 0), by_time[1:]])
    by_constants: list[Any] = [None] * len(constants)
    at = 0
    for i, size in zip(floats, sizes, strict=True):
        part = nm.reshape(sums[at : at + size], constants[i].shape)
        by_constants[i] = cast(part, constants[i].dtype)
        at += size
    return tuple(by_constants), a, cast(by_time, ts.dtype)


_solution.defvjp(_forward, _backward)
