"""Host reads inside differentiated functions: an error rather than a derivative of zero.

A number on the host has no history, so what is computed from it is a constant to every derivative.
`nm.grad` and its kin register their variables here while the function runs; reading a float that
depends on one raises. Comparisons, integers and `int(x)` have no derivative to lose.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from numus.errors import GradientError
from numus.graph import Node, mode


class _Open(threading.local):
    def __init__(self) -> None:
        self.calls: list[differentiating] = []


_open = _Open()


class differentiating:  # noqa: N801
    """Refuse host reads of floats that depend on these variables, for the length of a `with`."""

    __slots__ = ("op", "variables")

    def __init__(self, op: str, variables: Sequence[Node]) -> None:
        self.op = op
        self.variables = variables

    def __enter__(self) -> None:
        _open.calls.append(self)

    def __exit__(self, *_: object) -> None:
        _open.calls.pop()


@contextlib.contextmanager
def reading_primals() -> Iterator[None]:
    """Allow host reads to a forward rule, whose derivative is given; the innermost call's alone."""
    hidden = _open.calls[-1:]
    del _open.calls[-1:]
    try:
        yield
    finally:
        _open.calls += hidden


def check_readable(node: Node, what: str) -> None:
    """Raise where the value of a node is being differentiated."""
    if _open.calls and node.tracked and mode.grad and node.dtype.is_inexact:
        for call in _open.calls:
            if _depends(node, call):
                raise GradientError(
                    f"{what} of a {node.dtype.name}{list(node.shape)} tensor that nm.{call.op} "
                    "differentiates: a number on the host has no derivative; compute with numus's "
                    "functions, or read x.detach() where the derivative is meant to be zero"
                )


def _depends(node: Node, call: differentiating) -> bool:
    variables = set(call.variables)
    since = min((v.serial for v in variables), default=0)  # older nodes depend on none
    seen = {node}
    stack = [node]
    while stack:
        x = stack.pop()
        if x in variables:
            return True
        for y in x.inputs:
            if y.tracked and y.serial >= since and y not in seen:
                seen.add(y)
                stack.append(y)
    return False
