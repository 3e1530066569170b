"""What a primitive is: one protocol that every operation fills in.

A primitive is a paragraph: its shape and dtype rule, its derivatives both ways, its batching rule
and a NumPy reference, in consecutive lines. Everything else in numus is composed of these, so each
function works on every backend, forwards and backwards, from the day it is written.

The rules work on nodes:
    vjp(node, g)            -> one cotangent (or None) per input, in terms of other primitives;
                               inputs that are not tracked need none
    jvp(node, tangents)     -> the tangent of the output; a tangent may be None (zero)
    batch(node, inputs, batched, size) -> the node over a new leading axis of extent `size`;
                               `inputs` are the replaced inputs, `batched[i]` says which carry it
    reference(node, *arrays) -> the value, by NumPy
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus.errors import GradientError
from numus.graph import Node

Array = np.ndarray[Any, Any]
Vjp = Callable[[Node, Node], Sequence[Node | None]]
Jvp = Callable[[Node, Sequence[Node | None]], Node | None]
Batch = Callable[[Node, Sequence[Node], Sequence[bool], int], Node]
Reference = Callable[..., Array]

PRIMITIVES: dict[str, Primitive] = {}

# What users call the primitives with short names: errors speak their language.
_PUBLIC = {
    **{"sub": "subtract", "mul": "multiply", "div": "divide", "mod": "remainder"},
    **{"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"},
    **{"shift_left": "bitwise_left_shift", "shift_right": "bitwise_right_shift"},
    **{"lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal"},
    **{"contract": "matmul", "convolve": "convolution"},
}


class Primitive:
    """One operation. `kind` tells the compiler what shape of kernel it belongs to:

    source, elementwise, view, reduce, contract, convolve, gather, scatter, scan, sort, topk,
    compact, barrier
    """

    __slots__ = ("batch", "jvp", "kind", "name", "public", "reference", "vjp")

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        reference: Reference,
        vjp: Vjp | None = None,
        jvp: Jvp | None = None,
        batch: Batch | None = None,
    ) -> None:
        self.name = name
        self.public = _PUBLIC.get(name, name)  # as errors call it
        self.kind = kind
        self.reference = reference
        self.vjp = vjp or self._no_gradient
        self.jvp = jvp or self._no_gradient
        self.batch = batch or self._no_batch
        if name in PRIMITIVES:
            raise ValueError(f"primitive {name!r} is defined twice")
        PRIMITIVES[name] = self

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    def _no_gradient(self, *_: Any) -> Any:
        raise GradientError(f"{self.public} has no gradient")

    def _no_batch(self, *_: Any) -> Any:
        raise GradientError(f"vmap: {self.public} has no batching rule")


def zero_vjp(node: Node, g: Node) -> tuple[None, ...]:
    """For operations that are flat almost everywhere: no cotangent reaches their inputs."""
    return (None,) * len(node.inputs)


def zero_jvp(node: Node, tangents: Sequence[Node | None]) -> None:
    """Likewise, forwards."""
    return None
