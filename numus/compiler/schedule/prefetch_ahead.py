"""Prefetching by launch-bound kernels: memory works while a chain of kernels waits for itself.

A decoder's step alternates between products that wait for memory and kernels that wait for each
other: writes to caches, attention of one token. Blocks beside those of the smallest kernels bring
what the next ones read of the program's inputs, its weights, to L2. They wait for nothing, and
nothing waits for them; a prefetch is a hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.cost_model import nbytes
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.early_prefetch import TUNING as EARLY
from numus.compiler.lower.loops.early_prefetch import is_fetched
from numus.ir import Stmt, const
from numus.target import Target


@dataclass(frozen=True)
class PrefetchAheadTuning:
    """For one H200; not measured yet."""

    max_host_threads: int = 1 << 12  # of a kernel that leaves memory idle
    l2_divisor: int = 4  # a prefetch fills this part of L2
    lines_per_thread: int = 4


TUNING = PrefetchAheadTuning()


class PrefetchAhead:
    """Prefetches of one plan: what is on its way is not asked for again."""

    def __init__(self, target: Target, donated: Iterable[Value]) -> None:
        self._target = target
        self._done = set(donated)  # inputs that results overwrite are never prefetched
        self._made: dict[tuple[object, ...], ir.Kernel] = {}

    def step(
        self, hosts: Sequence[LoweredKernel], ahead: Iterable[LoweredKernel]
    ) -> LoweredKernel | None:
        """What the kernels `ahead` read, to be joined to the first of the launches of a wave; None
        where these keep memory busy, or nothing is left to prefetch."""
        if sum(map(_threads, hosts)) > TUNING.max_host_threads:
            return None
        room = self._target.l2_bytes // TUNING.l2_divisor
        found: dict[Value, int] = {}
        for v in _inputs(ahead):
            if room <= 0:
                break
            if v not in self._done and v not in found and is_fetched(v, self._target):
                found[v] = min(nbytes(v), room)
                room -= found[v]
        self._done.update(found)
        return self._kernel_step(hosts[0].kernel, found) if found else None

    def _kernel_step(self, like: ir.Kernel, found: dict[Value, int]) -> LoweredKernel:
        """A kernel with blocks like the host's, for one buffer after the other."""
        key = (like.block_size, like.packed_blocks, *(v.dtype for v in found))
        kernel = self._made.get(key)
        if kernel is None:
            kernel = self._made[key] = _kernel(like, [dt.real_of(v.dtype) for v in found])
        lines = [-(-size // EARLY.line_bytes) for size in found.values()]
        per_block = like.block_size * TUNING.lines_per_thread
        blocks = [-(-count // per_block) for count in lines]
        scalars = [*lines, *blocks]
        return LoweredKernel(kernel, list(found), scalars, sum(blocks), [])


def _threads(step: LoweredKernel) -> int:
    return step.grid * step.kernel.block_size * step.kernel.packed_blocks


def _inputs(steps: Iterable[LoweredKernel]) -> Iterable[Value]:
    """What the steps read, in order."""
    for step in steps:
        if step.kernel.copies or step.kernel.vendor is not None:
            continue
        for buffer, v in zip(step.kernel.buffers, step.buffers, strict=False):
            if buffer.access == "read":
                yield v


def _kernel(like: ir.Kernel, dtypes: Sequence[dt.DType]) -> ir.Kernel:
    block, per_block = ir.var("block"), const(like.block_size * TUNING.lines_per_thread)
    buffers = tuple(ir.Buffer(f"b{i}", dtype, "read") for i, dtype in enumerate(dtypes))
    lines = [ir.scalar(f"s_lines{i}") for i in range(len(buffers))]
    counts = [ir.scalar(f"s_count{i}") for i in range(len(buffers))]
    body: list[Stmt] = []
    first: ir.Expr = const(0)
    for i, buffer in enumerate(buffers):
        line, end = ir.var(f"line{i}"), ir.add(first, counts[i])
        start, stop = ir.block_range(ir.sub(block, first), per_block, lines[i])
        at = line * (EARLY.line_bytes // buffer.dtype.itemsize)
        fetch = ir.Prefetch(buffer, at, write=False, level=2)
        own = ir.For(line, start, stop, "lanes", [fetch])
        body.append(ir.If((block >= first) & (block < end), [own]))
        first = end
    slots = tuple((x.attr, dt.int64) for x in (*lines, *counts))
    grid: list[Stmt] = [ir.For(block, const(0), first, "grid", body)]
    return ir.Kernel(
        *("prefetch", buffers, slots, grid, ("prefetch",)),
        block_size=like.block_size,
        packed_blocks=like.packed_blocks,
    )
