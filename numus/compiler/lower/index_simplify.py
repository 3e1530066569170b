"""Simplification of index arithmetic by value ranges: provably redundant divisions disappear."""

from __future__ import annotations

from numus.ir import Expr, add, const, idiv, irem, mul

# Expressions that are never negative, and their exclusive upper bounds (None: unknown).
Extents = dict[Expr, Expr | None]


def quotient(a: Expr, b: Expr, extents: Extents) -> Expr:
    """a // b for a >= 0, b > 0."""
    if b.op == "const" and b.attr == 1:
        return a
    if a.op == "const" and b.op == "const":
        return const(a.attr // b.attr)
    if _below(a, b, extents):
        return const(0)
    parts = _as_multiple(a, b, extents)
    if parts is not None:
        x, y = parts
        return x if _below(y, b, extents) else add(x, quotient(y, b, extents))
    if a.op == "idiv":
        return quotient(a.args[0], mul(a.args[1], b), extents)
    return idiv(a, b)


def remainder(a: Expr, b: Expr, extents: Extents) -> Expr:
    """a % b for a >= 0, b > 0."""
    if b.op == "const" and b.attr == 1:
        return const(0)
    if a.op == "const" and b.op == "const":
        return const(a.attr % b.attr)
    if _below(a, b, extents):
        return a
    parts = _as_multiple(a, b, extents)
    if parts is not None:
        return remainder(parts[1], b, extents)
    return irem(a, b)


def recombined(outer: Expr, inner: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """Indices of two axes, `extent` elements in the inner one, with the same sum outer * extent +
    inner: (x + i // n, i % n) becomes (x, i), without divisions."""
    if inner.op != "irem" or inner.args[1] is not extent:
        return outer, inner
    divided = idiv(*inner.args)
    terms = _terms(outer)
    if divided not in terms:
        return outer, inner
    terms.remove(divided)
    return _total(terms), inner.args[0]


def _below(a: Expr, bound: Expr, extents: Extents) -> bool:
    """0 <= a < bound is provable."""
    if a.op == "const":
        return a.attr == 0 or (bound.op == "const" and 0 <= a.attr < bound.attr)
    if a.op == "irem":
        return a.args[1] is bound
    return extents.get(a) is bound


def _not_negative(e: Expr, extents: Extents) -> bool:
    """e >= 0 is provable."""
    if e.op == "const":
        return bool(e.attr >= 0)
    if e.op in ("add", "mul", "idiv", "irem", "min"):
        return all(_not_negative(x, extents) for x in e.args)
    return e.op == "var" or e in extents


def _as_multiple(a: Expr, b: Expr, extents: Extents) -> tuple[Expr, Expr] | None:
    """(x, y) with a = x * b + y and y >= 0, where the sum has a term x * b."""
    terms = _terms(a)
    for i, term in enumerate(terms):
        x = _over(term, b)
        if x is not None:
            rest = _total([*terms[:i], *terms[i + 1 :]])
            return (x, rest) if _not_negative(rest, extents) else None
    return None


def _terms(a: Expr) -> list[Expr]:
    """Those of a sum."""
    terms: list[Expr] = []
    stack = [a]
    while stack:
        term = stack.pop()
        if term.op == "add":
            stack.extend(term.args)
        else:
            terms.append(term)
    return terms


def _total(terms: list[Expr]) -> Expr:
    total: Expr = const(0)
    for term in terms:
        total = add(total, term)
    return total


def _over(term: Expr, b: Expr) -> Expr | None:
    """x, if the term is x * b."""
    if term is b:
        return const(1)
    if term.op != "mul":
        return None
    first, second = term.args
    if b in term.args:
        return second if first is b else first
    if b.op == "const" and second.op == "const" and second.attr % b.attr == 0:
        return mul(first, const(second.attr // b.attr))
    return None
