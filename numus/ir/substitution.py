"""Substitution in expressions."""

from __future__ import annotations

from numus.ir.expressions import Expr, add, make, mul, sub

_SIMPLIFYING = {"add": add, "sub": sub, "mul": mul}


def substitute(e: Expr, new: dict[Expr, Expr]) -> Expr:
    """An expression with subexpressions replaced."""
    done = dict(new)
    stack = [e]
    while stack:
        x = stack[-1]
        if x in done:
            stack.pop()
            continue
        missing = [a for a in x.args if a not in done]
        if missing:
            stack += missing
            continue
        stack.pop()
        args = tuple(done[a] for a in x.args)
        if args == x.args:
            done[x] = x
        elif x.op in _SIMPLIFYING and x.dtype.is_integer:
            done[x] = _SIMPLIFYING[x.op](*args)
        else:
            done[x] = make(x.op, x.dtype, args, x.attr)
    return done[e]
