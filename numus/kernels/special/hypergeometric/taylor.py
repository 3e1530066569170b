"""Continuation of a solution of a differential equation by Taylor steps that halve a distance."""

from __future__ import annotations

from collections.abc import Callable

from numus.ir import Expr, iterate, select
from numus.kernels.math import _tools as fp
from numus.kernels.special.incomplete import epsilon

Following = Callable[[Expr, Expr, Expr, Expr], Expr]


def halved(
    following: Following, value: Expr, slope: Expr, x: Expr, halvings: Expr, max_terms: int
) -> tuple[Expr, Expr]:
    """The value and the first term after it, once x has been halved `halvings` times.

    `slope` is the first term of the first step; `following(k, now, after, x)` is term k + 2 of a
    step from x to x / 2, by the two before it.
    """
    zero = fp.like(x, 0.0)

    def step(
        left: Expr, k: Expr, now: Expr, after: Expr, total: Expr, slopes: Expr, x: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        term = following(k, now, after, x)
        total = total + term
        part = (k + 2.0) * term
        slopes = slopes + part
        size = fp.absolute(part) + fp.absolute((k + 1.0) * after)
        done = (size <= fp.absolute(total) * (epsilon(x) * 0.25)) | (k > 300.0)
        half = slopes * 0.5
        return left > 0.5, (
            select(done, left - 1.0, left),
            select(done, zero, k + 1.0),
            select(done, total, after),
            select(done, half, term),
            select(done, total + half, total),
            select(done, half, slopes),
            select(done, x * 0.5, x),
        )

    # total and slopes hold the first two terms of the step that begins
    start = (halvings, zero, value, slope, value + slope, slope, x)
    out = iterate(max_terms, start, step)
    return out[2], out[3]
