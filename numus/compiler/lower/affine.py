"""Affine analysis of index expressions: strides of accesses along loop variables, in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numus.compiler.lower.emitter import Emitter
from numus.ir import Expr, walk

Coefficients = dict[Expr, int]


def accesses(emitter: Emitter) -> list[Coefficients]:
    """The strides of every access of a kernel."""
    analysis = AffineAnalysis(emitter)
    return [term for index in emitter.accesses for term in analysis.affine_terms(index)]


class AffineAnalysis:
    """Coefficients of one emitter's expressions, whose scalar arguments have known numbers."""

    def __init__(self, emitter: Emitter) -> None:
        self.numbers = {arg: n for n, arg in emitter.dims}
        self._memo: dict[Expr, Coefficients | None] = {}

    def coefficients(self, e: Expr) -> Coefficients | None:
        """Coefficients of the loop variables, None if the expression is not affine in them."""
        if e not in self._memo:
            self._memo[e] = self._analyse(e)
        return self._memo[e]

    def _analyse(self, e: Expr) -> Coefficients | None:
        if e.op == "var":
            return {e: 1}
        if e.op in ("const", "scalar"):
            return {}
        if e.op in ("add", "sub"):
            a, b = (self.coefficients(x) for x in e.args)
            if a is None or b is None:
                return None
            out = dict(a)
            for v, c in b.items():
                out[v] = out.get(v, 0) + (c if e.op == "add" else -c)
            return out
        if multiple := self._multiple(e):
            inner = self.coefficients(multiple[0])
            return None if inner is None else {v: c * multiple[1] for v, c in inner.items()}
        if e.op == "cast":
            return self.coefficients(e.args[0])
        constant = not any(x.op == "var" for x in walk(e, lambda x: True))
        return {} if constant else None

    def _number(self, e: Expr) -> int | None:
        if e.op == "const" and isinstance(e.attr, int):
            return e.attr
        return self.numbers.get(e)

    def _multiple(self, e: Expr) -> tuple[Expr, int] | None:
        """An expression and the number it is multiplied by."""
        for x, y in (e.args, e.args[::-1]) if e.op == "mul" else ():
            if (scale := self._number(y)) is not None:
                return x, scale
        return None

    def affine_terms(self, e: Expr) -> list[Coefficients]:
        """Affine subexpressions; transformations that keep each keep the whole. The affine terms of
        a sum, or of a multiple of one, are taken together."""
        found: list[Coefficients] = []
        seen: set[Expr] = set()
        stack = [e]
        while stack:
            x = stack.pop()
            if x in seen:
                continue
            seen.add(x)
            whole = self.coefficients(x)
            if whole is not None:
                found.append(whole)
            elif x.op not in ("add", "mul"):
                stack.extend(x.args)
            else:
                total: Coefficients = {}
                for term, factor in self._addends(x):
                    own = self.coefficients(term)
                    if own is not None:
                        for v, c in own.items():
                            total[v] = total.get(v, 0) + c * factor
                    else:
                        stack += [term] if term is not x else term.args
                found.append(total)
        return [p for p in found if p]

    def _addends(self, e: Expr) -> list[tuple[Expr, int]]:
        """The terms of a sum, each with its factor."""
        found: list[tuple[Expr, int]] = []
        stack = [(e, 1)]
        while stack:
            x, factor = stack.pop()
            if x.op == "add":
                stack += [(y, factor) for y in x.args]
            elif multiple := self._multiple(x):
                stack.append((multiple[0], factor * multiple[1]))
            else:
                found.append((x, factor))
        return found


def collapsible(outer: Expr, inner: Expr, extent: int, terms: Iterable[Coefficients]) -> bool:
    """Two adjacent loops are one: a step of the outer is `extent` steps of the inner."""
    return all(p.get(outer, 0) == p.get(inner, 0) * extent for p in terms)


def unit_stride_count(terms: Sequence[Coefficients], variable: Expr) -> int:
    """The number of accesses that are contiguous along this variable."""
    return sum(abs(p.get(variable, 0)) == 1 for p in terms)
