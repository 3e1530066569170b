"""The first kernel of a launch list waits before it loads.

Loads ahead of the wait for earlier kernels (`ir.DependencyWait`) would make a list begin after all
work before it has ended. Where only its first kernel has such loads, they follow the wait: its
blocks start while the kernels before end, and no value is read too early. (Prefetches ahead of the
wait, of 16 bytes a thread, took longer than they saved.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from numus import ir
from numus.compiler.lower.emitter import LoweredKernel
from numus.ir import Stmt


def _loads_early(kernel: ir.Kernel) -> bool:
    return any(
        isinstance(s, ir.DependencyWait) and s.loads_before for s in ir.statements(kernel.body)
    )


def wait_first(steps: Sequence[LoweredKernel]) -> None:
    """Rewrite the first step, if it alone has loads ahead of its wait."""
    early = [step for step in steps if _loads_early(step.kernel)]
    if not early or len(early) > 1 or early[0] is not steps[0]:
        return
    kernel = early[0].kernel
    body = _waiting(kernel.body)
    early[0].kernel = replace(kernel, body=body, cached_text=None, cached_digest=None)


def _waiting(body: list[Stmt]) -> list[Stmt]:
    """Statements with their waits ahead of all others; kernels in one launch have one each."""
    for at, s in enumerate(body):
        if isinstance(s, ir.DependencyWait):
            wait = ir.DependencyWait(loads_after=True)
            return [wait, *body[:at], *body[at + 1 :]] if s.loads_before else body
    return [
        replace(s, body=_waiting(s.body)) if isinstance(s, (ir.For, ir.If)) else s for s in body
    ]
