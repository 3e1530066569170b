"""Descent in a box: projected L-BFGS.

Variables at a bound that the gradient pushes against are fixed for an iteration; L-BFGS in the
others gives the direction, and points along it are projected into the box (Bertsekas 1982). Step
lengths are halved until the function decreases enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numus as nm
from numus.optimize.casting import cast
from numus.optimize.line_search import SUFFICIENT_DECREASE, Limits, choose, dot
from numus.optimize.quasi_newton import Lbfgs, Pairs
from numus.tensor import Tensor

_MAX_TRIALS = 40


class BoxSearch(NamedTuple):
    """A point in the box, a direction, and the step to try next."""

    x: Tensor
    f: Tensor
    g: Tensor
    d: Tensor
    step: Tensor
    trials: Tensor
    memory: Pairs
    fresh: Tensor
    nit: Tensor
    nfev: Tensor
    status: Tensor


def descend_in_box(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    x: Tensor,
    low: Tensor,
    high: Tensor,
    m: int,
    limits: Limits,
) -> BoxSearch:
    """A point of the box where the projected gradient vanishes, or the best that was found."""
    method = Lbfgs(m)
    x = nm.clip(x, low, high)
    f, g = evaluate(x)
    count = nm.zeros_like(f, dtype=nm.int32)
    d, length = _steepest(x, g, low, high)
    s = BoxSearch(
        x, f, g, d, length, count, method.start(x), count == 0, count, count + 1, count - 1
    )
    s = s._replace(status=_verdict(s, low, high, limits, None))

    def trial(s: BoxSearch) -> BoxSearch:
        x = nm.clip(s.x + s.step * s.d, low, high)
        f, g = evaluate(x)
        decrease = SUFFICIENT_DECREASE * dot(s.g, x - s.x)
        accepted = nm.isfinite(f) & (f <= s.f + decrease) & (decrease < 0)
        tried = s._replace(nfev=cast(s.nfev + 1, nm.int32))
        return choose(accepted, moved(tried, x, f, g), shortened(tried))

    def moved(s: BoxSearch, x: Tensor, f: Tensor, g: Tensor) -> BoxSearch:
        step, change = x - s.x, g - s.g
        usable = dot(step, change) > float(nm.finfo(f.dtype).eps) * dot(change, change)
        memory = choose(usable, method.remember(s.memory, step, change), s.memory)
        free = _free(x, g, low, high)
        d = _free_direction(method, memory, g, free)
        back, length = _steepest(x, g, low, high)
        downhill = dot(g, d) < 0
        new = BoxSearch(
            x, f, g, nm.where(downhill, d, back), nm.where(downhill, 1.0, length),
            nm.zeros_like(s.trials), memory, nm.logical_not(downhill),
            cast(s.nit + 1, nm.int32), s.nfev, s.status,
        )  # fmt: skip
        return new._replace(status=_verdict(new, low, high, limits, s.f))

    def shortened(s: BoxSearch) -> BoxSearch:
        trials = cast(s.trials + 1, nm.int32)
        exhausted = trials >= _MAX_TRIALS
        ended = cast(nm.where(exhausted & s.fresh, 2, s.status), nm.int32)
        shorter = s._replace(step=s.step / 2, trials=trials, status=ended)
        d, length = _steepest(s.x, s.g, low, high)
        again = s._replace(
            d=d, step=length, trials=nm.zeros_like(trials), fresh=s.fresh | True,
            memory=method.start(s.x),
        )  # fmt: skip
        return choose(exhausted & nm.logical_not(s.fresh), again, shorter)

    return nm.while_loop(lambda s: s.status < 0, trial, s)


def _free(x: Tensor, g: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return nm.logical_not(((x <= low) & (g > 0)) | ((x >= high) & (g < 0)))


def _steepest(x: Tensor, g: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    d = nm.where(_free(x, g, low, high), -g, 0.0)
    size = nm.sqrt(dot(d, d))
    return d, nm.minimum(1.0, 1 / nm.where(size > 0, size, 1.0))


def _free_direction(method: Lbfgs, pairs: Pairs, g: Tensor, free: Tensor) -> Tensor:
    """L-BFGS in the free variables: with the pairs' components in them, where those curve up."""
    m = method.m
    order = (pairs.oldest + nm.arange(m, device=g.device)) % m
    rows = nm.where(free, pairs.rows[nm.concat([order, order + m])], 0.0)
    diagonal = nm.sum(rows[:m] * rows[m:], axis=1)
    squares = nm.sum(rows[m:] * rows[m:], axis=1)
    usable = diagonal > float(nm.finfo(g.dtype).eps) * squares
    both = nm.expand_dims(nm.concat([usable, usable]), 1)
    rows = nm.where(both, rows, 0.0)
    changes = rows[m:]
    last = nm.max(nm.where(usable, nm.arange(m, device=g.device), -1))
    here = nm.arange(m, device=g.device) == last
    ratio = nm.where(usable, diagonal / nm.where(usable, squares, 1.0), 0.0)
    scale = nm.where(last >= 0, nm.sum(nm.where(here, ratio, 0.0)), 1.0)
    products = rows @ changes.mT
    inner = Pairs(rows, products[:m], products[m:], scale, pairs.oldest)
    return nm.where(free, -method.product(inner, nm.where(free, g, 0.0)), 0.0)


def _verdict(s: BoxSearch, low: Tensor, high: Tensor, limits: Limits, before: Any) -> Tensor:
    left = nm.abs(nm.clip(s.x - s.g, low, high) - s.x)
    gradient = nm.max(left)
    done = gradient <= limits.gtol
    if limits.ftol and before is not None:
        size = nm.maximum(nm.maximum(nm.abs(before), nm.abs(s.f)), 1.0)
        done = done | (before - s.f <= limits.ftol * size)
    over = (s.nit >= limits.maxiter) | (s.nfev >= limits.maxfun)
    finite = nm.isfinite(s.f) & nm.isfinite(gradient)
    return cast(nm.where(done, 0, nm.where(over, 1, nm.where(finite, -1, 3))), nm.int32)
