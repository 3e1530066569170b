"""The first kernel of a launch list waits before it loads.

Loads ahead of the wait for earlier kernels (`ir.DependencyWait`) would make a list begin after all
work before it has ended. Where only its first kernel has such loads, they follow the wait, and what
they read is prefetched to L2 ahead of it instead: no value is read too early, and memory is busy
while the kernels before end.
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
    """Statements with their waits ahead of all loads; kernels that share a launch have one each."""
    for at, s in enumerate(body):
        if isinstance(s, ir.DependencyWait):
            if not s.loads_before:
                return body
            names = [x for x in body[:at] if _is_name(x)]
            loads = [x for x in body[:at] if not _is_name(x)]
            wait = ir.DependencyWait(loads_after=True)
            return [*names, *_prefetches(loads), wait, *loads, *body[at + 1 :]]
    return [
        replace(s, body=_waiting(s.body)) if isinstance(s, (ir.For, ir.If)) else s for s in body
    ]


def _is_name(s: Stmt) -> bool:
    """A name for what is not loaded."""
    return isinstance(s, ir.Let) and not ir.loads([s])


def _prefetches(body: list[Stmt]) -> list[Stmt]:
    """Of what statements load, each vector once."""
    out, within = list[Stmt](), 0  # elements of a vector that follow
    for s in body:
        if isinstance(s, (ir.For, ir.If)):
            out.append(replace(s, body=_prefetches(s.body)))
        elif within:
            within -= 1
        elif _is_name(s):
            out.append(s)
        else:
            loads = ir.loads([s])
            out += [ir.Prefetch(x.attr, x.args[0], write=False, level=2) for x in loads]
            within = max(0, s.vector - 1) if isinstance(s, ir.Let) else 0
    return out
