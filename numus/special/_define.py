"""Public functions made of primitives: arguments checked and promoted, results wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import DTypeError, GradientError
from numus.functions._base import common, to_float, widened, wrap
from numus.functions.elementwise.output import write_out
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special.tables import unknown_derivative
from numus.tensor import Tensor


def operands(op: str, *xs: Any) -> list[Node]:
    """Operands in their common real floating dtype."""
    nodes = [to_float(n) for n in common(f"special.{op}", *xs)]
    if nodes[0].dtype.is_complex:
        raise DTypeError(f"special.{op}: it takes real numbers, not {nodes[0].dtype.name}")
    return nodes


def apply(
    op: str,
    build: Callable[..., Any],
    *xs: Any,
    out: Tensor | None = None,
    fixed: Sequence[str] = (),
) -> Any:
    """build() of the operands in the dtype kernels compute in, rounded once at the end.

    `fixed` names the first operands, where derivatives by them are not known: they must not
    require gradients.
    """
    nodes = operands(op, *xs)
    for name, node in zip(fixed, nodes, strict=False):
        if node.tracked:
            raise GradientError(unknown_derivative(f"special.{op}", name))
    dtype = nodes[0].dtype
    result = build(*(widened(n) for n in nodes))
    if isinstance(result, tuple):
        return tuple(wrap(ew.cast(r, dtype)) for r in result)
    tensor = wrap(ew.cast(result, dtype))
    return tensor if out is None else write_out(tensor, out, f"special.{op}")


def number(value: float, like: Node) -> Node:
    return ew.scalar_like(value, like)


def compute_dtype(x: Node) -> dt.DType:
    return dt.compute_dtype(x.dtype)
