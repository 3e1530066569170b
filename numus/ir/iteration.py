"""Bounded loops inside expressions: series, continued fractions and recurrences of one element.

A `loop` carries values from step to step. Lanes that have converged keep theirs; the loop ends when
none is left, or at its limit. Its operands are (carried, initial, next, running, invariants): what
the body needs from outside is evaluated ahead of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus.ir.expressions import Expr, make

_numbers = itertools.count()

Step = Callable[..., tuple[Expr, Sequence[Expr]]]


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The operands of a `loop` expression by role."""

    carried: tuple[Expr, ...]
    initial: tuple[Expr, ...]
    following: tuple[Expr, ...]
    running: Expr
    invariants: tuple[Expr, ...]
    limit: int

    @classmethod
    def of(cls, e: Expr) -> LoopParts:
        n, limit = e.attr
        a = e.args
        return cls(a[:n], a[n : 2 * n], a[2 * n : 3 * n], a[3 * n], a[3 * n + 1 :], limit)


def iterate(limit: int, initial: Sequence[Expr], step: Step) -> tuple[Expr, ...]:
    """The carried values after at most `limit` steps; step(*carried) gives (running, next values).

    `running` is evaluated first: where it does not hold, the carried values are final.
    """
    carried = tuple(make("carry", x.dtype, (), next(_numbers)) for x in initial)
    running, following = step(*carried)
    inside = (*following, running)
    args = (*carried, *initial, *inside, *_invariants(inside))
    loop = make("loop", dt.bool_, args, (len(carried), limit))
    return tuple(make("loop_result", x.dtype, (loop,), i) for i, x in enumerate(initial))


def _invariants(inside: Sequence[Expr]) -> tuple[Expr, ...]:
    """The largest subexpressions that no carried value enters, constants excluded."""
    varies: dict[Expr, bool] = {}
    stack = list(inside)
    while stack:
        e = stack[-1]
        if e in varies:
            stack.pop()
            continue
        missing = [a for a in e.args if a not in varies]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        varies[e] = e.op == "carry" or any(varies[a] for a in e.args)
    found = dict.fromkeys(e for e in inside if not varies[e])
    for e in varies:
        if varies[e]:
            found.update(dict.fromkeys(a for a in e.args if not varies[a]))
    return tuple(e for e in found if e.op != "const")
