"""Reports of plans, kernel by kernel: fused operations, bytes moved, flops, time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import computed_values, flops, nbytes
from numus.compiler.graph.value import PACKED
from numus.compiler.hooks import before_run, under_way
from numus.compiler.plan import Plan
from numus.compiler.schedule.order import reads, writes

_NOT_REPORTED = ("constant", "broadcast", "reshape", "permute")


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel of a plan."""

    name: str
    fused: tuple[str, ...]  # operations
    blocks: int  # that run in parallel
    bytes_read: int
    bytes_written: int
    flops: int  # arithmetic operations, each elementwise function counted as one
    seconds: float | None  # None where nothing ran
    program: Any
    hoisted: bool = False  # computes what later runs of a jitted program read: it runs once

    @property
    def source(self) -> str:
        """The rendered code: LLVM IR, PTX, WGSL."""
        return str(self.program.source)

    @property
    def ir(self) -> str:
        """The kernel IR it was rendered from."""
        return str(self.program.text)


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """One evaluation."""

    device: str
    kernels: tuple[KernelReport, ...]
    waves: int  # of kernels that may run concurrently
    result_bytes: int
    temporary_bytes: int
    scratch_bytes: int  # of these, the most that the workers of a wave need
    hoisted_bytes: int = 0  # of values that hoisted kernels have left, such as packed weights
    under_way: tuple[str, ...] = ()  # collectives that had begun, and were not waited for yet

    @property
    def structure(self) -> tuple[object, ...]:
        """All but the times: equal for runs of the same plan."""
        kernels = tuple((k.name, k.fused, k.bytes_read, k.bytes_written) for k in self.kernels)
        memory = self.result_bytes, self.temporary_bytes
        return self.device, kernels, self.waves, *memory, self.under_way


@contextlib.contextmanager
def recording(found: list[ProgramReport], timed: bool) -> Iterator[None]:
    """Append a report of every plan that runs inside."""

    def hook(device: Any, plan: Plan, leaves: Sequence[Any], constants: Sequence[Any]) -> None:
        seconds = _time_steps(plan, leaves, constants) if timed and device.kind != "null" else None
        found.append(report(device, plan, seconds))

    before_run.append(hook)
    try:
        yield
    finally:
        before_run.remove(hook)


def _time_steps(plan: Plan, leaves: Sequence[Any], constants: Sequence[Any]) -> list[float]:
    """The best of four times of each kernel, on memory of its own."""
    memories, addresses, values = plan.arguments(leaves, constants)
    best = [float("inf")] * len(plan.steps)
    launches = plan.single_launches()
    for _ in range(4):
        at = 0
        for i, launch in enumerate(launches):
            count = 1 + len(plan.steps[i].scalars)
            began = time.perf_counter()
            launch(addresses, values[at : at + count])
            plan.runtime.synchronize()
            best[i] = min(best[i], time.perf_counter() - began)
            at += count
    del memories
    return best


def report(device: Any, plan: Plan, seconds: list[float] | None) -> ProgramReport:
    """The kernels of a plan, and the times that each took."""
    kernels = []
    reported: set[FusionGroup] = set()  # by the first kernel of each that does not only pack
    for i, (step, program) in enumerate(zip(plan.steps, plan.programs, strict=True)):
        group, fused, count = plan.group_of_step[i], step.kernel.notes, 0
        if group not in reported and any(v.op != PACKED for v in writes(step)):
            reported.add(group)
            computed = computed_values(group.members, plan.slot)
            fused = tuple(v.op for v in computed if v.op not in _NOT_REPORTED)
            count = flops(computed)
        moved = sum(map(nbytes, reads(step))), sum(map(nbytes, writes(step)))
        took = None if seconds is None else seconds[i]
        once = i < plan.hoisted_steps
        kernels.append(
            KernelReport(step.kernel.name, fused, step.grid, *moved, count, took, program, once)
        )
    memory = sum(plan.result_bytes), plan.arena, plan.scratch_bytes, plan.hoisted_bytes
    meanwhile = tuple(map(str, under_way))
    return ProgramReport(device.name, tuple(kernels), len(plan.waves), *memory, meanwhile)
