"""Loop-invariant code motion across the runs of a plan: kernels of captured operands run once.

A traced program is run again and again on the same weights. What depends on them alone (packed
GEMM and convolution operands, filters in the Winograd domain, folded factors) is computed by the
first run into memory of its own, which later runs read: see docs/design/0023-hoisted-kernels.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import nbytes
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.schedule.memory_plan import aligned
from numus.compiler.schedule.order import reads, writes


@dataclass(frozen=True, slots=True)
class HoistingLimits:
    """Bytes that hoisted values may take."""

    max_captured_bytes: int = 4 << 30  # of a program's captured operands: others are not hoisted
    min_captured_bytes: int = 64  # less is a counter or a rate, which changes
    # of a kernel's result over its operands: packing 16-bit floats for float32 doubles them, and
    # the Winograd domain is four times as large; unpacking a format of few bits is left alone
    max_growth: int = 4
    free_bytes: int = 1 << 16  # whatever the operands


LIMITS = HoistingLimits()


def hoistable(shapes_bytes: Sequence[tuple[int, int]]) -> list[int]:
    """Which of the captured operands, given as (number, bytes), may be hoisted."""
    found, total = [], 0
    for number, size in shapes_bytes:
        if size >= LIMITS.min_captured_bytes and total + size <= LIMITS.max_captured_bytes:
            found.append(number)
            total += size
    return found


def mark_captured(
    groups: Sequence[FusionGroup],
    in_memory: Collection[Value],
    captured: Collection[Value],
    changing: int,
) -> None:
    """Tell groups which of the values that they read are the same in all runs; `changing` of the
    first constants are not."""
    if not captured:
        return
    made = set(in_memory) - set(captured)
    invariant = dict.fromkeys(captured, True)

    def is_invariant(v: Value) -> bool:
        """All that a value is computed from is captured."""
        known = invariant.get(v)
        if known is None:
            if v.kind in ("leaf", "source"):
                known = v.op == "iota" or (v.op == "constant" and v.params[-1] >= changing)
            else:
                known = all(map(is_invariant, v.inputs))
            invariant[v] = known
        return known

    for v in sorted(made, key=lambda v: v.id):  # operands first: no deep recursion
        is_invariant(v)
    for group in groups:
        members = set(group.members)
        read = walk(group.members, lambda v, own=members: v in own or v not in in_memory)  # type: ignore[misc]
        group.captured = frozenset(
            v for v in read if v not in members and v in in_memory and invariant.get(v, False)
        )


def is_captured(group: FusionGroup, operand: Value, in_memory: Collection[Value]) -> bool:
    """An operand of a group is computed from captured values alone."""
    if not group.captured:
        return False
    found = False
    for v in walk([operand], lambda v: v not in in_memory):
        if v in in_memory:
            if v not in group.captured:
                return False
            found = True
    return found


class Hoisted:
    """Kernels of a plan that run once, and where their results are."""

    def __init__(
        self,
        steps: Sequence[tuple[LoweredKernel, FusionGroup]],
        captured: Collection[Value],
        results: Collection[Value],
        changing: int,
    ) -> None:
        """`changing`: the first constants, whose values are given for each run."""
        self.steps: set[int] = set()
        self.offset: dict[Value, int] = {}
        self.nbytes = 0
        if not captured:
            return
        # weights of few bits are not unpacked for good
        barred = {i for i, (_, group) in enumerate(steps) if group.kind == "unpack"}
        while True:
            known = set(captured)
            self.steps = set()
            for i, (step, _) in enumerate(steps):
                if i not in barred and self._is_invariant(step, known, results, changing):
                    self.steps.add(i)
                    known |= writes(step)
            # a scatter writes, in every run, to what an earlier kernel has copied for it
            each_run = set().union(
                *(writes(step) for i, (step, _) in enumerate(steps) if i not in self.steps)
            )
            shared = {i for i in self.steps if writes(steps[i][0]) & each_run}
            if not shared:
                break
            barred |= shared
        # what only hoisted kernels read is made again with them
        for i in sorted(self.steps):
            for v in writes(steps[i][0]):
                if v not in self.offset:
                    self.offset[v] = self.nbytes
                    self.nbytes += aligned(nbytes(v))

    @staticmethod
    def _is_invariant(
        step: LoweredKernel, known: set[Value], results: Collection[Value], changing: int
    ) -> bool:
        read, written = reads(step), writes(step)
        if not read or not read <= known or len(read) + len(written) != len({*step.buffers}):
            return False
        if any(v in results for v in written) or any(_changes(s, changing) for s in step.scalars):
            return False
        made, given = sum(map(nbytes, written)), sum(map(nbytes, read))
        return made <= max(LIMITS.max_growth * given, LIMITS.free_bytes)


def _changes(scalar: Any, changing: int) -> bool:
    return scalar.__class__ is tuple and scalar[0] < changing
