"""Values that are others seen differently."""

from __future__ import annotations

from numus.compiler.graph.value import Value


def source_of(x: Value) -> tuple[Value, list[Value]]:
    """What a value is made of by reshapes and permutations alone, and these, innermost first."""
    views: list[Value] = []
    while x.op in ("reshape", "permute"):
        views.append(x)
        x = x.inputs[0]
    return x, views[::-1]
