"""How a value that is nothing but views of another lies in that one's memory."""

from __future__ import annotations

from dataclasses import dataclass

from numus.compiler.graph.value import Value
from numus.shapes import Shape, reshape_strides


@dataclass(frozen=True, slots=True)
class StridedView:
    """In whose memory, where it begins there, and by which strides it goes on, in elements."""

    base: Value
    offset: int
    strides: Shape


def lying(x: Value, layouts: dict[Value, Shape]) -> StridedView | None:
    """None where it is more than views, or where no strides say how it lies."""
    chain: list[Value] = []
    while x not in layouts:
        if x.op not in ("reshape", "permute", "broadcast", "slice"):
            return None
        chain.append(x)
        x = x.inputs[0]
    base, shape, offset = x, x.shape, 0
    strides = layouts[x]
    for view in reversed(chain):
        if view.op == "reshape":
            parted = reshape_strides(shape, strides, view.shape)
            if parted is None:
                return None
            strides = parted
        elif view.op == "permute":
            strides = tuple(strides[a] for a in view.params)
        elif view.op == "broadcast":  # new axes come first
            added = len(view.shape) - len(shape)
            own = zip(strides, shape, view.shape[added:], strict=True)
            strides = (0,) * added + tuple(0 if n != m else s for s, n, m in own)
        else:
            starts, steps = view.params
            offset += sum(a * s for a, s in zip(starts, strides, strict=True))
            strides = tuple(s * step for s, step in zip(strides, steps, strict=True))
        shape = view.shape
    return StridedView(base, offset, strides)
