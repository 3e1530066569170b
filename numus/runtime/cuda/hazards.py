"""Read-after-write hazards of loads ahead of a kernel's wait for earlier ones, in LLVM IR.

A kernel may load what earlier kernels have long written, such as weights, while the last ones still
run (programmatic dependent launch). Launches without overlap begin after all before them has ended:
since the last of these, the launch loop keeps the memory that kernels write. One that would load
some of it early is launched without overlap.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from numus.ir.early_loads import buffers_before_wait
from numus.runtime.contract import LaunchStep

_RANGES = 32  # that are told apart; beyond, all memory counts as written
_UNKNOWN = -1
# Words of a launch: what was written before, and how many entries follow.
TABLE = ("written", "loads", "stores")
ENTRY = ("buffer", "nbytes")
_EVERYTHING = 1 << 62

# `written`: how many ranges, or -1; then where each begins and ends.
TEXT = f"""
define internal i1 @numus_cuda_clashes(ptr %table, ptr %buffers) {{
  ; whether it would load early what may not be written yet
  ?ptr written, i64 loads = TABLE of %table
  br eq i64 %loads, 0, label %safe, label %known
known:
  %count = load i64, ptr %written
  br slt i64 %count, 0, label %unsafe, label %seek
seek:
  %entries = getelementptr i64, ptr %table, i64 $TABLE$
  for %i in 0..%loads
  %entry = getelementptr [$ENTRY$ x i64], ptr %entries, i64 %i
  ?i64 buffer, i64 nbytes = ENTRY of %entry
  %begin = i64 %buffers[%buffer]
  %end = add i64 %begin, %nbytes
  for %j in 0..%count
  %range = getelementptr [2 x i64], ptr %written, i64 %j
  %from = i64 %range[1]
  %to = i64 %range[2]
  br ult i64 %begin, %to, label %below, label %j.latch
below:
  br ult i64 %from, %end, label %unsafe, label %j.latch
  end
  end
  br label %safe
safe:
  ret i1 false
unsafe:
  ret i1 true
}}
define internal void @numus_cuda_writes(ptr %table, ptr %buffers) {{
  ?ptr written, i64 loads, i64 stores = TABLE of %table
  br slt i64 %stores, 0, label %unknown, label %add
unknown:
  store i64 {_UNKNOWN}, ptr %written
  ret void
add:
  %entries = getelementptr i64, ptr %table, i64 $TABLE$
  for %i in 0..%stores
  %number = add i64 %loads, %i
  %entry = getelementptr [$ENTRY$ x i64], ptr %entries, i64 %number
  ?i64 buffer, i64 nbytes = ENTRY of %entry
  %begin = i64 %buffers[%buffer]
  %end = add i64 %begin, %nbytes
  %count = load i64, ptr %written
  for %j in 0..%count
  %range = getelementptr [2 x i64], ptr %written, i64 %j
  %from = i64 %range[1]
  %to = i64 %range[2]
  br ule i64 %from, %begin, label %left, label %j.latch
left:
  br ule i64 %end, %to, label %i.latch, label %j.latch
  end
  br slt i64 %count, 0, label %i.latch, label %room
room:
  br eq i64 %count, {_RANGES}, label %unknown, label %append
append:
  %next = getelementptr [2 x i64], ptr %written, i64 %count
  %next[1] = i64 %begin
  %next[2] = i64 %end
  %more = add i64 %count, 1
  store i64 %more, ptr %written
  br label %i.latch
  end
  ret void
}}
"""


class WrittenMemory:
    """What kernels have written since the last launch without overlap."""

    def __init__(self) -> None:
        self._words = (ctypes.c_int64 * (1 + 2 * _RANGES))(_UNKNOWN)
        self.address = ctypes.addressof(self._words)

    def forget(self) -> None:
        """Work that launch lists do not know: any memory may be written by it."""
        self._words[0] = _UNKNOWN


def tables(written: WrittenMemory, steps: Sequence[LaunchStep]) -> tuple[bool, list[list[Any]]]:
    """Whether a list is to begin alone, and the words of each step: of several kernels that load
    early, those behind the first are not checked, and all that writes their inputs has to end."""
    begins_alone = any(step.program.loads_early for step in steps[1:])
    return begins_alone, [
        _table(written, step, n == 0 and not begins_alone) for n, step in enumerate(steps)
    ]


def _table(written: WrittenMemory, step: LaunchStep, checked: bool) -> list[int]:
    given, sizes = step.program.kernel.buffers, step.nbytes

    def entries(numbers: Sequence[int]) -> Iterator[int]:
        for i in numbers:
            yield i
            yield _EVERYTHING if sizes is None else sizes[i]

    loaded = buffers_before_wait(step.program.kernel) if checked else ()
    loads = [i for i, b in enumerate(given) if b in loaded]
    stores = [i for i, b in enumerate(given) if b.access == "write"]
    known = sizes is not None and step.program.programmatic_launch
    words = [written.address, len(loads), len(stores) if known else _UNKNOWN]
    return [*words, *entries(loads), *(entries(stores) if known else ())]
