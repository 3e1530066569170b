"""Newton's method with conjugate gradients: Hessians are met by products with vectors only.

"Newton-CG" truncates the conjugate gradients where the curvature is negative or the residual small
enough, and searches along the result; "trust-ncg" stops them at the boundary of a trust region
(Steihaug 1983).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numus as nm
from numus.optimize.casting import cast
from numus.optimize.line_search import Evaluate, Limits, choose, dot
from numus.tensor import Tensor

Product = Callable[[Tensor, Tensor], Tensor]  # (x, v) -> Hessian at x times v


class _Gradients(NamedTuple):
    z: Tensor
    r: Tensor
    d: Tensor
    done: Tensor
    steps: Tensor


def _conjugate(product: Product, x: Tensor, g: Tensor, radius: Tensor | None) -> Tensor:
    """The minimum of the quadratic model, as far as conjugate gradients get."""
    size = nm.sqrt(dot(g, g))
    tol = nm.minimum(0.5, nm.sqrt(size)) * size
    count = nm.zeros_like(size, dtype=nm.int32)
    limit = max(2 * x.shape[0], 20)

    def step(s: _Gradients) -> _Gradients:
        Hd = product(x, s.d)
        curvature = dot(s.d, Hd)
        rr = dot(s.r, s.r)
        up = curvature > 0
        alpha = rr / nm.where(up, curvature, 1.0)
        z = s.z + alpha * s.d
        first = s.steps == 0
        if radius is None:  # bent down: what is there already, or the gradient's direction
            stop, ended = nm.logical_not(up), nm.where(first, s.d, s.z)
        else:
            stop = nm.logical_not(up) | (dot(z, z) >= radius * radius)
            ended = _to_boundary(s.z, s.d, radius)
        r = s.r + alpha * Hd
        beta = dot(r, r) / nm.where(rr > 0, rr, 1.0)
        near = nm.sqrt(dot(r, r)) <= tol
        z = nm.where(stop, ended, z)
        return _Gradients(z, r, -r + beta * s.d, stop | near, cast(s.steps + 1, nm.int32))

    start = _Gradients(nm.zeros_like(g), g, -g, size == 0, count)
    found = nm.while_loop(lambda s: nm.logical_not(s.done) & (s.steps < limit), step, start)
    return found.z


def _to_boundary(z: Tensor, d: Tensor, radius: Tensor) -> Tensor:
    a, b, c = dot(d, d), 2 * dot(z, d), dot(z, z) - radius * radius
    root = nm.sqrt(nm.maximum(b * b - 4 * a * c, 0.0))
    return z + (-b + root) / nm.where(a > 0, 2 * a, 1.0) * d


class NewtonCg:
    """Directions of truncated conjugate gradients."""

    curvature = 0.9
    unit_step = True

    def __init__(self, product: Product) -> None:
        self._product = product

    def start(self, x: Tensor) -> Any:
        return ()

    def reset(self, memory: Any, x: Tensor) -> Any:
        return ()

    def steepest(self, x: Tensor, g: Tensor) -> Tensor:
        return -g

    def update(self, memory: Any, s: Tensor, y: Tensor, g: Tensor, x: Tensor) -> tuple[Any, Tensor]:
        return (), _conjugate(self._product, x, g, None)


class Trusted(NamedTuple):
    """Where a trust-region method stands."""

    x: Tensor
    f: Tensor
    g: Tensor
    radius: Tensor
    nit: Tensor
    nfev: Tensor
    status: Tensor


def trust_region(evaluate: Evaluate, product: Product, x: Tensor, limits: Limits) -> Trusted:
    """Steps of conjugate gradients within a radius that follows the model's success."""
    f, g = evaluate(x)
    count = nm.zeros_like(f, dtype=nm.int32)

    def verdict(s: Trusted) -> Tensor:
        gradient = nm.sqrt(dot(s.g, s.g))
        over = (s.nit >= limits.maxiter) | (s.nfev >= limits.maxfun)
        tiny = s.radius <= float(nm.finfo(f.dtype).eps) * nm.sqrt(dot(s.x, s.x))
        status = nm.where(over, 1, nm.where(tiny, 2, -1))
        finite = nm.isfinite(s.f) & nm.isfinite(gradient)
        status = nm.where(finite, nm.where(gradient <= limits.gtol, 0, status), 3)
        return cast(status, nm.int32)

    def step(s: Trusted) -> Trusted:
        p = _conjugate(product, s.x, s.g, s.radius)
        x = s.x + p
        f, g = evaluate(x)
        predicted = -(dot(s.g, p) + 0.5 * dot(p, product(s.x, p)))
        ratio = (s.f - f) / nm.where(predicted > 0, predicted, 1.0)
        # near the minimum, differences of values are roundings: trust the model
        rounding = 8 * float(nm.finfo(f.dtype).eps) * nm.maximum(nm.abs(s.f), 1e-300)
        ratio = nm.where((predicted <= rounding) & (f <= s.f + rounding), 1.0, ratio)
        good = nm.isfinite(f) & nm.all(nm.isfinite(g))
        at_edge = nm.sqrt(dot(p, p)) >= 0.99 * s.radius
        larger = nm.where((ratio > 0.75) & at_edge, nm.minimum(2 * s.radius, 1000.0), s.radius)
        radius = nm.where(good & (ratio >= 0.25), larger, 0.25 * s.radius)
        taken = good & (ratio > 0.15)
        new = choose(taken, s._replace(x=x, f=f, g=g), s)
        nit, nfev = cast(s.nit + 1, nm.int32), cast(s.nfev + 1, nm.int32)
        new = new._replace(radius=radius, nit=nit, nfev=nfev)
        return new._replace(status=verdict(new))

    s = Trusted(x, f, g, nm.ones_like(f), count, count + 1, count - 1)
    return nm.while_loop(lambda s: s.status < 0, step, s._replace(status=verdict(s)))
