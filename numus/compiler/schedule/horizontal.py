"""Horizontal fusion (Li et al. 2020): independent small kernels share a launch, side by side.

Where kernels of a chain wait for each other, each costs a launch however little it does: the
projections of a decoder's token, the writes to its caches. Kernels of one wave with the same block
become one, whose first blocks are those of the first kernel, the next ones those of the second. A
larger kernel takes some along where it loads ahead of the kernels before it, as a product with one
vector does: its launch is one of a chain, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.cost_model import nbytes
from numus.compiler.lower.emitter import LoweredKernel
from numus.ir import Expr, Stmt
from numus.ir.early_loads import loads_before_wait
from numus.target import Target


@dataclass(frozen=True)
class HorizontalTuning:
    """Measured on one H200."""

    max_kernels: int = 4  # that share a launch
    max_scratch_bytes: int = 8 << 10  # of a kernel
    l2_divisor: int = 4  # bytes of a kernel that is launch-bound: up to this part of L2
    # Blocks of an SM that load ahead of their wait; one more where many would begin later, and
    # wait for memory once again.
    early_blocks: int = 4
    late_blocks_divisor: int = 16


TUNING = HorizontalTuning()
_WARP = 32  # threads of blocks that are packed: they have no barriers nor shared memory
_OF_REGISTERS = ("read", "lanes_reduce", "lanes_min_where")  # not hash-consed: registers change


class HorizontalFusion:
    """Joins steps of a plan; equal ones, as of a model's layers, by one kernel."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._made: dict[tuple[int, ...], ir.Kernel] = {}

    def partition(self, wave: Sequence[LoweredKernel]) -> list[list[int]]:
        """Numbers of a wave's steps, those together that share a launch; the order is kept."""
        found: list[list[int]] = []
        open_: dict[Any, list[int]] = {}
        alone: list[tuple[Any, list[int]]] = []  # not launch-bound, but small ones may join
        for i, step in enumerate(wave):
            key = self._key(step)
            if key is not None and self._is_large(step):
                found.append([i])
                if loads_before_wait(step.kernel):
                    alone.append((key, found[-1]))
                continue
            together = open_.get(key) if key is not None else None
            if together is None or len(together) == TUNING.max_kernels:
                together = []
                found.append(together)
                if key is not None:
                    open_[key] = together
            together.append(i)
        for key, large in alone:
            together = open_.pop(key, None)
            if together is not None and len(together) < TUNING.max_kernels:
                large += together
                found.remove(together)
        return found

    def _key(self, step: LoweredKernel) -> Any:
        """Equal for steps that can share a launch; None: alone."""
        k = step.kernel
        plain = k.vendor is None and k.flags is None and not (k.persistent or k.copies)
        whole = len(k.body) == 1 and isinstance(k.body[0], ir.For) and k.body[0].kind == "grid"
        if not (plain and whole and k.block_size) or k.cluster_size * k.cluster_blocks > 1:
            return None
        if _scratch_bytes(k) > TUNING.max_scratch_bytes:
            return None
        packs = k.packed_blocks > 1 or (k.block_size == _WARP and not _exchanges(k))
        return k.block_size, packs, k.resident_blocks

    def _is_large(self, step: LoweredKernel) -> bool:
        """Bound by memory rather than by its launch."""
        return TUNING.l2_divisor * sum(map(nbytes, step.buffers)) > self._target.l2_bytes

    def join(self, steps: Sequence[LoweredKernel]) -> LoweredKernel:
        """One step that does the work of several."""
        counts = [_block_count(step) for step in steps]
        resident = self._resident_blocks(steps, sum(counts))
        key = (*(id(step.kernel) for step in steps), resident)
        kernel = self._made.get(key)
        if kernel is None:
            kernel = self._made[key] = _joined([step.kernel for step in steps], resident)
        return LoweredKernel(
            kernel,
            [v for step in steps for v in step.buffers],
            [*(x for step in steps for x in step.scalars), *counts],
            -(-sum(counts) // kernel.packed_blocks),
            [x for step in steps for x in step.scratch],
        )

    def _resident_blocks(self, steps: Sequence[LoweredKernel], blocks: int) -> int:
        given, cores = steps[0].kernel.resident_blocks, self._target.num_cores
        late = blocks - TUNING.early_blocks * cores
        many = blocks < late * TUNING.late_blocks_divisor and late <= cores
        early = any(loads_before_wait(step.kernel) for step in steps)
        return TUNING.early_blocks + 1 if many and early else given


def _exchanges(kernel: ir.Kernel) -> bool:
    """Threads of a block read what others stored: in shared memory, or behind barriers."""
    stored = {s.buffer for s in ir.statements(kernel.body) if isinstance(s, ir.Store)}
    loaded = (e.attr for e in ir.loads(kernel.body))
    return any(map(_is_scratch, kernel.buffers)) or not stored.isdisjoint(loaded)


def _scratch_bytes(kernel: ir.Kernel) -> float:
    """Infinite where it is not of constant size, or shares memory."""
    total = 0
    for b in kernel.buffers:
        if _is_scratch(b):
            if b.size is None or b.size.op != "const" or b.aliases is not None:
                return float("inf")
            total += b.size.attr * b.dtype.itemsize
    return total


def _block_count(step: LoweredKernel) -> int:
    """Iterations of the grid loop, an argument of the kernel."""
    loop = step.kernel.body[0]
    assert isinstance(loop, ir.For)
    slots = [slot for slot, _ in step.kernel.scalars]
    return ir.evaluate_size(loop.stop, dict(zip(slots, step.scalars, strict=True)))


def _joined(kernels: Sequence[ir.Kernel], resident_blocks: int = 0) -> ir.Kernel:
    block = ir.var("joint_block")
    copies = [_Copy(k, f"_{i}") for i, k in enumerate(kernels)]
    counts = [ir.scalar(f"s_blocks{i}", dt.int64) for i in range(len(kernels))]
    waits = any(isinstance(s, ir.DependencyWait) for k in kernels for s in ir.statements(k.body))
    body: list[Stmt] = []
    first: Expr = ir.const(0)
    for copy, count in zip(copies, counts, strict=True):
        (loop,) = copy.body
        assert isinstance(loop, ir.For)
        end = ir.add(first, count)
        own: list[Stmt] = [ir.Let(loop.var, ir.sub(block, first)), *loop.body]
        if waits and not any(isinstance(s, ir.DependencyWait) for s in ir.statements(own)):
            own.insert(0, ir.DependencyWait())
        body.append(ir.If((block >= first) & (block < end), own))
        first = end
    slots = [slot for copy in copies for slot in copy.scalars]
    slots += [(x.attr, dt.int64) for x in counts]
    like = kernels[0]
    return ir.Kernel(
        like.name,
        tuple(sorted((b for copy in copies for b in copy.buffers), key=_is_scratch)),
        tuple(slots),
        [ir.For(block, ir.const(0), first, "grid", body)],
        tuple(note for k in kernels for note in k.notes),
        block_size=like.block_size,
        packed_blocks=max(k.packed_blocks for k in kernels),
        resident_blocks=resident_blocks,
    )


def _is_scratch(b: ir.Buffer) -> bool:
    return b.access == "scratch"


class _Copy:
    """A kernel's statements on buffers, registers and scalars of their own."""

    def __init__(self, kernel: ir.Kernel, tag: str) -> None:
        self._tag = tag
        self._known: dict[Any, Any] = {}
        self.buffers = tuple(replace(b, name=f"{b.name}{tag}") for b in kernel.buffers)
        self._known.update(zip(kernel.buffers, self.buffers, strict=True))
        self._slots = {slot: f"{slot}{tag}" for slot, _ in kernel.scalars}
        self.scalars = tuple((self._slots[slot], dtype) for slot, dtype in kernel.scalars)
        self.body: list[Stmt] = self._of(kernel.body)

    def _of(self, x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(map(self._of, x))
        if isinstance(x, (Stmt, ir.FlagRead)):
            return type(x)(*(self._of(getattr(x, f.name)) for f in fields(x)))  # type: ignore[arg-type]
        if isinstance(x, Expr):
            return self._expression(x)
        if isinstance(x, ir.Register):
            if x not in self._known:
                self._known[x] = replace(x, name=f"{x.name}{self._tag}")
            return self._known[x]
        return self._known[x] if isinstance(x, ir.Buffer) else x

    def _expression(self, root: Expr) -> Expr:
        for e in ir.post_order([root], set()):
            if e not in self._known:
                attr = f"{e.attr}{self._tag}" if e.op in ("scalar", "var") else self._of(e.attr)
                args = tuple(self._known[a] for a in e.args)
                make = Expr if e.op in _OF_REGISTERS else ir.make
                self._known[e] = make(e.op, e.dtype, args, attr)
        return self._known[root]  # type: ignore[no-any-return]
