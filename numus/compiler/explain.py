"""What a program does, kernel by kernel: operations fused, bytes moved, work done, time taken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph import cost_model
from numus.compiler.graph.value import Value
from numus.compiler.hooks import watchers
from numus.compiler.plan import Plan


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel of a program."""

    name: str
    fused: tuple[str, ...]  # the operations it computes
    blocks: int  # that run in parallel
    bytes_read: int
    bytes_written: int
    flops: int  # arithmetic operations, each elementwise function counted as one
    seconds: float | None  # None where nothing ran
    program: Any

    @property
    def source(self) -> str:
        """What the renderer made of it: LLVM IR, PTX, WGSL."""
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
    waves: int  # in which the kernels run: those of a wave don't need each other
    result_bytes: int
    temporary_bytes: int
    scratch_bytes: int  # of these, what all workers need for themselves in a wave, at most

    @property
    def structure(self) -> tuple[object, ...]:
        """What it has in common with other runs of the same program: all but the time."""
        kernels = tuple((k.name, k.fused, k.bytes_read, k.bytes_written) for k in self.kernels)
        return self.device, kernels, self.waves, self.result_bytes, self.temporary_bytes


@contextlib.contextmanager
def recording(found: list[ProgramReport], timed: bool) -> Iterator[None]:
    """Append a report of every program that is evaluated inside."""

    def watch(place: Any, plan: Plan, leaves: Sequence[Any], constants: Sequence[Any]) -> None:
        seconds = _time_steps(plan, leaves, constants) if timed and place.kind != "null" else None
        found.append(_report(place, plan, seconds))

    watchers.append(watch)
    try:
        yield
    finally:
        watchers.remove(watch)


def _time_steps(plan: Plan, leaves: Sequence[Any], constants: Sequence[Any]) -> list[float]:
    """The best of four times of each kernel, on memory of its own."""
    held, addresses, values = plan.arguments(leaves, constants)
    best = [float("inf")] * len(plan.steps)
    launches = plan.single_launches()  # they learn from run to run
    for _ in range(4):
        at = 0
        for i, launch in enumerate(launches):
            count = 1 + len(plan.steps[i].scalars)
            began = time.perf_counter()
            launch(addresses, values[at : at + count])
            plan.runtime.synchronize()
            best[i] = min(best[i], time.perf_counter() - began)
            at += count
    del held
    return best


def _report(place: Any, plan: Plan, seconds: list[float] | None) -> ProgramReport:
    kernels = []
    told: set[FusionGroup] = set()  # what a group does is told of its first kernel that computes
    for i, (step, program) in enumerate(zip(plan.steps, plan.programs, strict=True)):
        read = written = 0
        for buffer, val in zip(step.kernel.buffers, step.buffers, strict=False):
            nbytes = val.size * val.dtype.itemsize
            if buffer.access == "write":
                written += nbytes
            else:
                read += nbytes
        group = plan.group_of_step[i]
        first = group not in told and step.kernel.name != "pack"
        if first:
            told.add(group)
        kernels.append(
            KernelReport(
                step.kernel.name,
                _fused(group, plan) if first else step.kernel.notes,
                step.grid,
                read,
                written,
                cost_model.flops(_inside(group, plan)) if first else 0,
                None if seconds is None else seconds[i],
                program,
            )
        )
    return ProgramReport(
        place.name,
        tuple(kernels),
        len(plan.waves),
        sum(plan.result_bytes),
        plan.arena,
        plan.scratch_bytes,
    )


def _inside(group: FusionGroup, plan: Plan) -> list[Value]:
    """The values that a group computes, in order."""
    return cost_model.inside(group.members, plan.slot)


def _fused(group: FusionGroup, plan: Plan) -> tuple[str, ...]:
    quiet = ("constant", "broadcast", "reshape", "permute")
    return tuple(v.op for v in _inside(group, plan) if v.op not in quiet)
