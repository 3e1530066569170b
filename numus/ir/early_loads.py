"""Loads of a kernel ahead of its wait for earlier kernels (`DependencyWait`)."""

from __future__ import annotations

from numus.ir.expressions import Buffer
from numus.ir.statements import DependencyWait, For, If, Kernel, Stmt
from numus.ir.tensor_core import AsyncCopy
from numus.ir.visit import expressions_of, statements, walk


def loads_before_wait(kernel: Kernel) -> bool:
    """Whether it loads inputs of the launch list while earlier kernels may still run."""
    return any(isinstance(s, DependencyWait) and s.loads_before for s in statements(kernel.body))


def buffers_before_wait(kernel: Kernel) -> set[Buffer]:
    """The memory that it loads while earlier kernels may still run."""
    found = set[Buffer]()
    if loads_before_wait(kernel):
        _collect_until_wait(kernel.body, found)
    return found


def _collect_until_wait(body: list[Stmt], found: set[Buffer]) -> bool:
    """Add what is loaded ahead of a wait; True where there is one. Kernels that share a launch have
    one each, in branches."""
    for s in body:
        if isinstance(s, DependencyWait):
            return True
        if isinstance(s, AsyncCopy):
            found.add(s.src)
        for root in expressions_of(s):
            found |= {e.attr for e in walk(root, lambda e: True) if e.op == "load"}
        if isinstance(s, (For, If)):
            waits = _collect_until_wait(s.body, found)
            if waits and isinstance(s, For):
                return True
    return False
