"""Hypergeometric functions; derivatives by the argument are those of shifted parameters."""

from __future__ import annotations

from collections.abc import Callable

from numus.graph import Node
from numus.primitives.elementwise import div, mul, neg
from numus.primitives.references import special
from numus.primitives.special.tables import nary, plus

hyp0f1: Callable[..., Node] = nary(
    "hyp0f1",
    special("hyp0f1"),
    lambda y, v, x: (None, div(hyp0f1(plus(v, 1), x), v)),
    {0: "v"},
)
hyp1f1: Callable[..., Node] = nary(
    "hyp1f1",
    special("hyp1f1"),
    lambda y, a, b, x: (None, None, mul(div(a, b), hyp1f1(plus(a, 1), plus(b, 1), x))),
    {0: "a", 1: "b"},
)
hyp2f1: Callable[..., Node] = nary(
    "hyp2f1",
    special("hyp2f1"),
    lambda y, a, b, c, x: (
        *(None, None, None),
        mul(mul(a, div(b, c)), hyp2f1(plus(a, 1), plus(b, 1), plus(c, 1), x)),
    ),
    {0: "a", 1: "b", 2: "c"},
)
hyperu: Callable[..., Node] = nary(
    "hyperu",
    special("hyperu"),
    lambda y, a, b, x: (None, None, neg(mul(a, hyperu(plus(a, 1), plus(b, 1), x)))),
    {0: "a", 1: "b"},
)
