"""What a program does, kernel by kernel: operations fused, bytes moved, work done, time taken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numus.compiler.fuse import Group
from numus.compiler.local import Val, walk
from numus.compiler.program import Plan
from numus.compiler.watchers import watchers
from numus.shapes import size_of


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
    scratch_bytes: int  # that the kernels of a wave need beside it, at most, for each thread


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
    told: set[Group] = set()  # what a group does is told of its first kernel that computes
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
                _flops(group, plan) if first else 0,
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
        _scratch(plan),
    )


def _scratch(plan: Plan) -> int:
    """What the kernels of one wave need for themselves, at most."""
    steps = iter(plan.steps)
    return max((sum(sum(next(steps).scratch) for _ in range(n)) for n in plan.waves), default=0)


def _inside(group: Group, plan: Plan) -> list[Val]:
    """The values that a group computes, in order."""
    read = plan.slot.keys() - set(group.members)
    found = walk(group.members, lambda v: v not in read)
    return sorted((v for v in found if v not in read), key=lambda v: v.id)


def _fused(group: Group, plan: Plan) -> tuple[str, ...]:
    quiet = ("constant", "broadcast", "reshape", "permute")
    return tuple(v.op for v in _inside(group, plan) if v.op not in quiet)


def _flops(group: Group, plan: Plan) -> int:
    total = 0
    for v in _inside(group, plan):
        if v.kind == "elementwise" and v.op not in ("cast", "bitcast"):
            total += v.size
        elif v.kind == "reduce":
            total += v.inputs[0].size
        elif v.kind == "contract":
            total += 2 * v.size * v.inputs[0].shape[2]
        elif v.kind == "convolve":
            gaps = size_of(tuple(window.gap for window in v.params[1]))  # of zeros, passed over
            total += 2 * v.size * size_of(v.inputs[1].shape[1:]) // gaps
    return total
