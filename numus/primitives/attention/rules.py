"""Forward-mode and second derivatives of attention as compositions, which materialise the scores.

In the notation of the formulas, for one matrix of the stack,

    S = scale q k' + bias      P = exp(S - lse)       y = (P ∘ M) v        M: the dropout mask
    D = M ∘ (g v')             d = rows of P ∘ D      Z = P ∘ (D - d)

Z is the cotangent of S when g is that of y. A tangent T of S changes P by P ∘ (T - r), where r
holds the row sums of P ∘ T.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from numus import dtypes as dt
from numus.dtypes import DType
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import reduce_sum
from numus.primitives.contract import contract
from numus.primitives.source import constant, iota
from numus.primitives.views import permute, reshape


class Operands(NamedTuple):
    q: Node
    k: Node
    scale: Node
    bias: Node | None
    lse: Node
    v: Node | None
    keep: Node | None
    causal: bool

    @property
    def inputs(self) -> dict[str, Node | None]:
        """By name, in the order of a node's inputs."""
        return {
            **{"q": self.q, "k": self.k, "scale": self.scale, "bias": self.bias},
            **{"lse": self.lse, "v": self.v, "keep": self.keep},
        }

    @property
    def wide(self) -> DType:
        return self.lse.dtype


def _transposed(x: Node) -> Node:
    return permute(x, (0, 2, 1))


class _Formulas:
    """The matrices above, built on demand."""

    def __init__(self, o: Operands, g: Node | None = None) -> None:
        self.o = o
        self.q, self.k = self.cast(o.q), self.cast(o.k)
        self.v = None if o.v is None else self.cast(o.v)
        self.g = None if g is None else self.cast(g)
        self.P = ew.exp(ew.sub(self._scores(), self.column(o.lse)))

    def cast(self, x: Node) -> Node:
        return ew.cast(x, self.o.wide)

    def mul(self, a: Node, b: Node) -> Node:
        """a b, for matrices."""
        return contract(a, b, self.o.wide)

    def column(self, x: Node) -> Node:
        return reshape(x, (*x.shape, 1))

    def rows(self, x: Node) -> Node:
        return self.column(reduce_sum(x, (2,)))

    def scaled(self, x: Node) -> Node:
        return ew.mul(x, self.o.scale)

    def dropped_out(self, x: Node) -> Node:
        return x if self.o.keep is None else ew.mul(x, self.cast(self.o.keep))

    def _scores(self) -> Node:
        o = self.o
        s = self.mul(self.scaled(self.q), _transposed(self.k))
        if o.bias is not None:
            s = ew.add(s, self.cast(o.bias))
        if o.causal:
            rows, columns = s.shape[1:]
            row = reshape(iota(rows, dt.int64, s.device), (rows, 1))
            seen = ew.le(iota(columns, dt.int64, s.device), row)
            s = ew.where(seen, s, constant(-math.inf, s.dtype))
        return s

    # -- in reverse -------------------------------------------------------------------------------

    def cotangent_of_weights(self, g: Node, v: Node) -> Node:
        return self.dropped_out(self.mul(g, _transposed(v)))

    @functools.cached_property
    def D(self) -> Node:
        assert self.g is not None
        assert self.v is not None
        return self.cotangent_of_weights(self.g, self.v)

    @property
    def d(self) -> Node:
        return self.rows(ew.mul(self.P, self.D))

    @property
    def Z(self) -> Node:
        return ew.mul(self.P, ew.sub(self.D, self.d))

    # -- forwards ---------------------------------------------------------------------------------

    def tangent_of_scores(
        self, q: Node | None, k: Node | None, bias: Node | None = None
    ) -> Node | None:
        by_q = None if q is None else self.mul(self.scaled(self.cast(q)), _transposed(self.k))
        by_k = None if k is None else self.mul(self.scaled(self.q), _transposed(self.cast(k)))
        return ew.total(by_q, by_k, None if bias is None else self.cast(bias))

    def tangent_of_weights(self, T: Node) -> Node:
        return ew.mul(self.P, ew.sub(T, self.rows(ew.mul(self.P, T))))


Named = Mapping[str, Node]  # tangents by operand; missing ones are zero
Cotangents = dict[str, Node | None]


# -- the logarithm of the sum ---------------------------------------------------------------------


def lse_jvp(o: Operands, t: Named) -> Node | None:
    f = _Formulas(o)
    T = f.tangent_of_scores(t.get("q"), t.get("k"), t.get("bias"))
    return None if T is None else reduce_sum(ew.mul(f.P, T), (2,))


def lse_vjp(o: Operands, g: Node) -> Cotangents:
    f = _Formulas(o)
    weights = ew.mul(f.P, f.column(g))
    return {
        "q": ew.cast(f.scaled(f.mul(weights, f.k)), o.q.dtype),
        "k": ew.cast(f.scaled(f.mul(_transposed(weights), f.q)), o.k.dtype),
        "bias": None if o.bias is None else ew.cast(weights, o.bias.dtype),
    }


# -- attention ------------------------------------------------------------------------------------


def attention_jvp(o: Operands, t: Named, dtype: DType) -> Node | None:
    f = _Formulas(o)
    found = _attention_tangent(f, t.get("q"), t.get("k"), t.get("v"), t.get("bias"))
    return None if found is None else ew.cast(found, dtype)


def _attention_tangent(
    f: _Formulas, q: Node | None, k: Node | None, v: Node | None, bias: Node | None = None
) -> Node | None:
    T = f.tangent_of_scores(q, k, bias)
    assert f.v is not None
    return ew.total(
        None if T is None else f.mul(f.dropped_out(f.tangent_of_weights(T)), f.v),
        None if v is None else f.mul(f.dropped_out(f.P), f.cast(v)),
    )


def bias_cotangent(o: Operands, g: Node, delta: Node) -> Node:
    """Z: as large as the bias itself is when it is not broadcast."""
    assert o.bias is not None
    f = _Formulas(o, g)
    return ew.cast(ew.mul(f.P, ew.sub(f.D, f.column(delta))), o.bias.dtype)


# -- the derivative of the derivative -------------------------------------------------------------


def grad_jvp(o: Operands, g: Node, which: str, t: Named, dtype: DType) -> Node | None:
    """The tangent of the cotangent of q, k or v."""
    f = _Formulas(o, g)
    assert f.g is not None
    assert f.v is not None
    tv, tg = t.get("v"), t.get("g")
    T = f.tangent_of_scores(t.get("q"), t.get("k"), t.get("bias"))
    dP = None if T is None else f.tangent_of_weights(T)
    if which == "v":
        found = ew.total(
            None if dP is None else f.mul(_transposed(f.dropped_out(dP)), f.g),
            None if tg is None else f.mul(_transposed(f.dropped_out(f.P)), f.cast(tg)),
        )
        return None if found is None else ew.cast(found, dtype)
    dD = ew.total(
        None if tg is None else f.cotangent_of_weights(f.cast(tg), f.v),
        None if tv is None else f.cotangent_of_weights(f.g, f.cast(tv)),
    )
    dd = ew.total(
        None if dP is None else f.rows(ew.mul(dP, f.D)),
        None if dD is None else f.rows(ew.mul(f.P, dD)),
    )
    dZ = None if dP is None else ew.mul(dP, ew.sub(f.D, f.d))
    if dd is not None:
        change = ew.neg(dd) if dD is None else ew.sub(dD, dd)
        dZ = ew.total(dZ, ew.mul(f.P, change))
    moved = t.get("k" if which == "q" else "q")

    def transposed_for(x: Node) -> Node:
        return x if which == "q" else _transposed(x)

    found = ew.total(
        None if dZ is None else f.mul(transposed_for(dZ), f.k if which == "q" else f.q),
        None if moved is None else f.mul(transposed_for(f.Z), f.cast(moved)),
    )
    return None if found is None else ew.cast(f.scaled(found), dtype)


def grad_vjp(o: Operands, g: Node, which: str, h: Node) -> Cotangents:
    """Cotangents of q, k, bias, v and g, given that of the cotangent of q, k or v.

    The inner product of h with that cotangent is <g, y'>, where y' is the tangent of attention in
    the direction h: its derivative by g is y', the others follow from y' as written above.
    """
    f = _Formulas(o, g)
    assert f.g is not None
    assert f.v is not None
    h = f.cast(h)
    hq, hk, hv = (h if which == name else None for name in ("q", "k", "v"))
    tangent = _attention_tangent(f, hq, hk, hv)
    T = f.tangent_of_scores(hq, hk)
    dP: Node | None = None  # the cotangent of P
    dv: Node | None = None
    if T is not None:
        r = f.rows(ew.mul(f.P, T))
        dP = ew.sub(ew.sub(ew.mul(T, f.D), ew.mul(T, f.d)), ew.mul(r, f.D))
        dv = f.mul(_transposed(f.dropped_out(f.tangent_of_weights(T))), f.g)
    if hv is not None:
        dP = ew.total(dP, f.cotangent_of_weights(f.g, hv))
    assert dP is not None
    dS = ew.mul(f.P, ew.sub(dP, f.rows(ew.mul(f.P, dP))))
    dq, dk = f.mul(dS, f.k), f.mul(_transposed(dS), f.q)
    if hk is not None:
        dq = ew.add(dq, f.mul(f.Z, hk))
    if hq is not None:
        dk = ew.add(dk, f.mul(_transposed(f.Z), hq))
    assert tangent is not None
    assert o.v is not None
    return {
        "q": ew.cast(f.scaled(dq), o.q.dtype),
        "k": ew.cast(f.scaled(dk), o.k.dtype),
        "bias": None if o.bias is None else ew.cast(dS, o.bias.dtype),
        "v": None if dv is None else ew.cast(dv, o.v.dtype),
        "g": ew.cast(tangent, g.dtype),
    }
