"""Which strides an index expression has, in numbers: what loop shapes are chosen by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numus.compiler.lower.emitter import Emitter
from numus.ir import Expr, walk

Coefficients = dict[Expr, int]


def accesses(emitter: Emitter) -> list[Coefficients]:
    """The strides by which a kernel goes through memory, of every place where it does."""
    strides = Strides(emitter)
    return [part for index in emitter.accesses for part in strides.parts(index)]


class Strides:
    """Reads expressions of one emitter, whose slots have known numbers."""

    def __init__(self, emitter: Emitter) -> None:
        self.numbers = {slot: n for n, slot in emitter.dims.items()}
        self._memo: dict[Expr, Coefficients | None] = {}

    def of(self, e: Expr) -> Coefficients | None:
        """Coefficients of the loop variables, None if the expression is not affine in them."""
        if e in self._memo:
            return self._memo[e]
        found = self._read(e)
        self._memo[e] = found
        return found

    def _read(self, e: Expr) -> Coefficients | None:
        if e.op == "var":
            return {e: 1}
        if e.op in ("const", "scalar"):
            return {}
        if e.op in ("add", "sub"):
            a, b = self.of(e.args[0]), self.of(e.args[1])
            if a is None or b is None:
                return None
            out = dict(a)
            for v, c in b.items():
                out[v] = out.get(v, 0) + (c if e.op == "add" else -c)
            return out
        if e.op == "mul":
            for x, y in (e.args, e.args[::-1]):
                scale = self._number(y)
                if scale is not None:
                    inner = self.of(x)
                    return None if inner is None else {v: c * scale for v, c in inner.items()}
        if e.op == "cast":
            return self.of(e.args[0])
        constant = not any(x.op == "var" for x in walk(e, lambda x: True))
        return {} if constant else None

    def _number(self, e: Expr) -> int | None:
        if e.op == "const" and isinstance(e.attr, int):
            return e.attr
        return self.numbers.get(e)

    def parts(self, e: Expr) -> list[Coefficients]:
        """The affine pieces an expression is made of; keeping each keeps the whole. The affine
        terms of a sum are one piece, whatever else is added to them, and so are those of a sum
        that is multiplied by a number.
        """
        pieces: list[Coefficients] = []
        seen: set[Expr] = set()
        stack = [e]
        while stack:
            x = stack.pop()
            if x in seen:
                continue
            seen.add(x)
            whole = self.of(x)
            if whole is not None:
                pieces.append(whole)
            elif x.op not in ("add", "mul"):
                stack.extend(x.args)
            else:
                together: Coefficients = {}
                for term, factor in self._terms(x):
                    own = self.of(term)
                    if own is not None:
                        for v, c in own.items():
                            together[v] = together.get(v, 0) + c * factor
                    else:
                        stack += [term] if term is not x else term.args
                pieces.append(together)
        return [p for p in pieces if p]

    def _terms(self, e: Expr) -> list[tuple[Expr, int]]:
        """What a sum is the sum of, each by how much it is multiplied."""
        found: list[tuple[Expr, int]] = []
        stack = [(e, 1)]
        while stack:
            x, factor = stack.pop()
            if x.op == "add":
                stack += [(y, factor) for y in x.args]
                continue
            scale = None
            if x.op == "mul":
                for y, z in (x.args, x.args[::-1]):
                    scale = self._number(z)
                    if scale is not None:
                        stack.append((y, factor * scale))
                        break
            if scale is None:
                found.append((x, factor))
        return found


def collapsible(outer: Expr, inner: Expr, extent: int, pieces: Iterable[Coefficients]) -> bool:
    """Whether two neighbouring loops are one: stepping the outer is `extent` steps of the inner."""
    return all(p.get(outer, 0) == p.get(inner, 0) * extent for p in pieces)


def unit_weight(pieces: Sequence[Coefficients], variable: Expr) -> int:
    """How many accesses have neighbours along this variable next to each other in memory."""
    return sum(abs(p.get(variable, 0)) == 1 for p in pieces)
