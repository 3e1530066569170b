"""An interpreter of GPU kernels: a SIMT machine in NumPy.

Statements are executed one by one, for all threads of a block at once. Out-of-bounds accesses,
registers that were never set, and divergent barriers are errors. Scratch starts as garbage.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import simt_async
import simt_expressions
import simt_roles
import simt_tensor_core

from numus import dtypes as dt
from numus import ir
from numus.codegen.nvptx.analysis import registers_of, resident_loops
from numus.runtime import devices
from numus.runtime.contract import Backend, Launch, LaunchList
from numus.runtime.cuda.properties import capability_fields
from numus.target import Target

BLOCK_SIZE = 64

TARGET = Target(
    name="simt",
    description="a SIMT machine, interpreted",
    dtypes=frozenset(d.name for d in dt.ALL),
    vector_bytes=128,
    vector_registers=64,
    l1_bytes=1 << 16,
    l2_bytes=1 << 20,
    num_cores=2,
    language="none",
    block_size=BLOCK_SIZE,
    shared_bytes=48 << 10,
    elides_copies=True,
)
WGMMA = replace(
    TARGET,
    name="simt_wgmma",
    wgmma=True,
    approx_math=True,
    subgroup_size=32,
    block_size=256,
    shared_bytes=227 << 10,
)
HOPPER = replace(  # for register-resident reductions
    TARGET,
    block_size=256,
    shared_bytes=227 << 10,
    max_block_size=1024,
    **{
        **capability_fields(90),
        **{"wgmma": False, "approx_math": False, "forward_progress": False},
    },
)
ORDERED = replace(TARGET, name="simt_ordered", block_size=256, forward_progress=True)


class Memory:
    """An allocation of the machine."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        raw = np.full(nbytes + 128, 0xA5, np.uint8)
        self.array = raw[-raw.ctypes.data % 64 :][: nbytes + 64]
        self.address = self.array.__array_interface__["data"][0]


class Program:
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.name, self.notes = kernel.name, kernel.notes
        self.source = self.text = ir.kernel_text(kernel)


class Prepared(LaunchList):
    def __init__(self, runtime: Machine, steps: Any, slots: int) -> None:
        self.runtime, self.steps = runtime, steps

    def run(self, addresses: Any, values: Any) -> None:
        at = 0
        for step in self.steps:
            kernel = step.program.kernel
            count = len(kernel.scalars)
            grid, scalars = values[at], values[at + 1 : at + 1 + count]
            at += count + 1
            if kernel.copies and len({addresses[b[0]] + b[1] for b in step.buffers}) == 1:
                continue
            arguments = [
                None if b is None else self.runtime.view(addresses[b[0]] + b[1])
                for b in step.buffers
            ]
            if kernel.vendor is not None:
                launch = kernel.vendor.start(self.runtime, kernel.problem)
                launch([addresses[slot] + offset for slot, offset in step.buffers], 0)
            else:
                self.runtime.run_kernel(kernel, arguments, scalars, grid)
            self.runtime.launched.append(step.program)


class Machine(Backend):
    """The runtime."""

    def __init__(self, target: Target = TARGET) -> None:
        self.target = target
        self.allocations: dict[int, Any] = {}
        self.programs: dict[str, Program] = {}
        self.launched: list[Program] = []

    def allocate(self, nbytes: int) -> Memory:
        import weakref

        memory = Memory(nbytes)
        self.allocations[memory.address] = weakref.ref(memory)
        return memory

    def view(self, address: int) -> tuple[np.ndarray[Any, Any], int]:
        """(bytes of the allocation that contains an address, offset in it)."""
        for start, ref in self.allocations.items():
            memory = ref()
            if memory is not None and start <= address <= start + memory.nbytes:
                return memory.array[: memory.nbytes], address - start
        raise AssertionError(f"no memory at {address}")

    def upload(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        memory.array[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, memory: Memory, dtype: Any, count: int, start: int = 0) -> Any:
        size = dtype.itemsize
        return memory.array[start * size : (start + count) * size].copy().view(dtype.np)

    def compile(self, kernel: ir.Kernel) -> Program:
        kernel.block_size = kernel.block_size or 32  # SIMD kernels
        return self.programs.setdefault(ir.kernel_text(kernel), Program(kernel))

    def prepare(self, steps: Any, slots: int) -> Prepared:
        return Prepared(self, steps, slots)

    def run(self, launches: list[Launch]) -> None:
        for launch in launches:
            arguments = [None if m is None else (m.array[: m.nbytes], 0) for m in launch.memories]
            self.run_kernel(launch.program.kernel, arguments, launch.scalars, launch.grid)

    def run_kernel(self, kernel: ir.Kernel, arguments: list[Any], scalars: Any, grid: int) -> None:
        run(kernel, arguments, scalars, grid)

    def synchronize(self) -> None:
        pass

    def memory_stats(self) -> dict[str, int]:
        return {}


def install() -> None:
    """Add devices "simt"; "simt_wgmma"; "simt_ordered", whose blocks start in order; and
    "simt_sm75" … by compute capability."""
    devices.BACKENDS.setdefault("simt", lambda index: Machine())
    devices.BACKENDS.setdefault("simt_wgmma", lambda index: Machine(WGMMA))
    devices.BACKENDS.setdefault("simt_ordered", lambda index: Machine(ORDERED))
    for capability in (75, 80, 90):
        target = simt_tensor_core.target_of(TARGET, capability)
        devices.BACKENDS.setdefault(f"simt_sm{capability}", lambda index, f=target: Machine(f))


# -- interpretation -------------------------------------------------------------------------------


def run(kernel: ir.Kernel, arguments: list[Any], scalars: Any, grid: int) -> None:
    values = {}
    for (slot, dtype), v in zip(kernel.scalars, scalars, strict=True):
        values[slot] = np.asarray(v).astype(dtype.np)
    layout = _Layout(kernel)
    with np.errstate(all="ignore"):
        count = grid * kernel.packed_blocks // kernel.cluster_size
        together = kernel.cluster_blocks
        assert count % together == 0, "a cluster without all of its blocks"
        for first in range(0, count, together):
            numbers = range(first, first + together)
            _run_together([_Block(layout, arguments, values, g, count) for g in numbers])


def _run_together(blocks: list[_Block]) -> None:
    """The blocks of a cluster, each in a thread that waits for the others."""
    barrier = threading.Barrier(len(blocks))
    for block in blocks:
        block.cluster, block.barrier = blocks, barrier
    if len(blocks) == 1:
        blocks[0].run()
        return

    def run_one(block: _Block) -> None:
        try:
            with np.errstate(all="ignore"):
                block.run()
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(blocks)) as pool:
        found = [pool.submit(run_one, block) for block in blocks]
    problems = [x for f in found if (x := f.exception()) is not None]
    for problem in sorted(problems, key=lambda x: isinstance(x, threading.BrokenBarrierError)):
        raise problem


class _Context:
    """Variables and active threads."""

    def __init__(self, env: dict[Any, Any], ids: Any = None, slot: int = 0) -> None:
        self.env, self.ids = env, ids  # ids None: outside lanes loops
        self.slot = slot  # iteration of a thread in a resident loop

    def masked(self, keep: Any) -> _Context:
        n = len(self.ids)
        env = {k: v[keep] if np.shape(v) == (n,) else v for k, v in self.env.items()}
        return _Context(env, self.ids[keep], self.slot)


class _Layout:
    """What the blocks of a launch share."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        shared = any(b.access == "scratch" for b in kernel.buffers)
        assert kernel.packed_blocks == 1 or not shared, "packed blocks share their scratch"
        loops = resident_loops(kernel)
        self.slots = max((s.unroll * s.width for s in loops), default=1)
        seen = [r for s in loops for r in {r for y in s.body for r in registers_of(y)}]
        self.resident = {r for r in seen if seen.count(r) > 1}  # a slot per iteration
        self.programs: dict[ir.Expr, list[simt_expressions.Step]] = {}


class _Block:
    def __init__(
        self, layout: _Layout, arguments: list[Any], scalars: Any, index: int, count: int
    ) -> None:
        self.layout, self.kernel = layout, layout.kernel
        self.index, self.count, self.scalars = index, count, scalars
        self.threads = self.kernel.block_size  # of a role, in warp-specialised code
        self.mbarriers: list[simt_roles.Mbarrier] = []
        self.registers: dict[ir.Register, Any] = {}
        self.memory: dict[ir.Buffer, Any] = {}
        self.pipeline = simt_async.Pipeline(self)
        self.origins: dict[ir.Buffer, int] = {}  # offsets of addresses, in elements
        self.cluster: list[_Block] = [self]
        self.barrier = threading.Barrier(1)
        top = _Context({})
        for i, b in enumerate(self.kernel.buffers):
            if b.aliases is not None:
                raw = self.memory[b.aliases].view(np.uint8)
                size = int(self.value(b.size, top)) * b.dtype.itemsize
                assert size <= len(raw), f"{b.name} is larger than {b.aliases.name}"
                self.memory[b] = raw[:size].view(b.dtype.np)
            elif b.access == "scratch":
                size = int(self.value(b.size, top))
                raw = np.full(size * b.dtype.itemsize, 0xA5, np.uint8)
                self.memory[b] = raw.view(np.uint8 if b.dtype is dt.bool_ else b.dtype.np)
            else:
                raw, offset = arguments[i]
                size = b.dtype.itemsize
                first = offset % size
                raw = raw[first : first + (len(raw) - first) // size * size]
                self.memory[b] = raw.view(np.uint8 if b.dtype is dt.bool_ else b.dtype.np)
                self.origins[b] = offset // size

    def run(self) -> None:
        self.block(self.kernel.body, _Context({}))

    def block(self, body: list[ir.Stmt], c: _Context) -> None:
        for s in body:
            self.statement(s, c)

    def statement(self, s: ir.Stmt, c: _Context) -> None:
        if isinstance(s, ir.Let):
            c.env[s.var] = self.value(s.value, c)
        elif isinstance(s, ir.Set):
            self.set(s, c)
        elif isinstance(s, ir.Store):
            self.store(s, c)
        elif isinstance(s, ir.If):
            condition = self.value(s.condition, c)
            if np.ndim(condition) == 0:
                if condition:
                    self.block(s.body, c)
            elif condition.any():
                self.block(s.body, c.masked(np.nonzero(condition)[0]))
        elif isinstance(s, ir.For):
            self.loop(s, c)
        elif isinstance(s, (ir.BlockReduce, ir.BlockScan)):
            assert c.ids is None, "a divergent block operation"
            self.collective(s, c)
        elif isinstance(s, (ir.AtomicAdd, ir.WarpMultisplit, ir.SetFlag, ir.SpinWait)):
            assert c.ids is not None, "outside a lanes loop"
            self.sync(s, c)
        elif isinstance(s, (ir.Prefetch, ir.DependencyWait)):
            pass
        elif isinstance(s, ir.ClusterGather):
            assert c.ids is None, "a divergent wait"
            at = int(self.value(s.start, c))
            self.barrier.wait()
            parts = [block.memory[s.src][at : at + s.count] for block in self.cluster]
            self.memory[s.dst][: s.count * len(parts)] = np.concatenate(parts)
            if not s.in_turns:
                self.barrier.wait()
        elif isinstance(s, ir.ClusterStore):
            assert c.ids is not None, "outside a lanes loop"
            self.cluster_store(s, c)
        elif isinstance(s, ir.ClusterBarrier):
            assert c.ids is None, "a divergent wait"
            self.barrier.wait()
        elif isinstance(s, simt_roles.STATEMENTS):
            simt_roles.statement(self, s, c)
        elif isinstance(s, simt_tensor_core.STATEMENTS):
            simt_tensor_core.statement(self, s, c)
        else:
            self.pipeline.statement(s, c)

    def sync(self, s: ir.Stmt, c: _Context) -> None:
        n = len(c.ids)
        args = [np.broadcast_to(self.value(e, c), n) for e in ir.expressions_of(s)]
        if isinstance(s, ir.WarpMultisplit):
            assert n == self.kernel.block_size, "a divergent multisplit"
            assert (args[1] < 1 << s.bits).all()
            warps = args[0].reshape(-1, 32)
            assert (warps == warps[:, :1]).all()
            assert len(set(warps[:, 0])) == len(warps)
            memory, indices = self.memory[s.counters], args[0] + args[1].astype(np.int64)
            result = np.empty(n, s.rank.dtype.np)
            for i, at in enumerate(indices):
                result[i] = memory[at]
                memory[at] += 1
            c.env[s.rank] = result
            return
        buffer = s.buffer if isinstance(s, ir.AtomicAdd) else s.flags
        memory, origin = self.memory[buffer], self.origins.get(buffer, 0)

        def check(at: Any) -> None:
            assert ((at >= 0) & (at < len(memory))).all(), (
                f"{self.kernel.name}: {buffer.name}[{at}]"
            )

        if isinstance(s, ir.SpinWait):
            for read, index, count in zip(s.reads, args[::2], args[1::2], strict=True):
                for k, name in enumerate(read.results):
                    here = k < count
                    at = np.where(here, index + origin + k * read.stride, 0)
                    check(at)
                    words = np.where(here, memory[at], 0).astype(memory.dtype)
                    assert (words[here] != 0).all(), "a deadlock: the flag is not set"
                    c.env[name] = words
            return
        at = args[0] + origin
        check(at)
        if isinstance(s, ir.AtomicAdd):
            np.add.at(memory, at, args[1])
        else:
            assert (args[1] != 0).all()
            assert (memory[at] == 0).all(), "a flag is set twice"
            memory[at] = args[1]

    def set(self, s: ir.Set, c: _Context) -> None:
        v = self.value(s.value, c)
        assert v.dtype == s.register.dtype.np, (v.dtype, s.register.dtype)
        if not s.register.lanes:
            assert np.ndim(v) == 0, "a uniform register is set to a varying value"
            self.registers[s.register] = v
            return
        values = self.registers.get(s.register)
        if values is None:
            slots = s.register in self.layout.resident
            shape = (self.layout.slots, self.kernel.block_size) if slots else self.kernel.block_size
            values = self.registers[s.register] = np.zeros(shape, s.register.dtype.np)
        if c.ids is None:
            values[...] = v
        else:
            values[(c.slot, c.ids) if values.ndim > 1 else c.ids] = v

    def store(self, s: ir.Store, c: _Context) -> None:
        index, value = self.value(s.index, c), self.value(s.value, c)
        index = index + self.origins.get(s.buffer, 0)
        if np.ndim(value):  # colliding lanes: the last one wins
            index = np.broadcast_to(index, np.shape(value))
        memory = self.memory[s.buffer]
        assert s.buffer.access != "read"
        assert value.dtype == s.buffer.dtype.np, (s.buffer.dtype, value.dtype)
        if s.mask is not None:
            here = () if c.ids is None else c.ids.shape
            mask, index, value = np.broadcast_arrays(
                self.value(s.mask, c), index, value, np.empty(here)
            )[:3]
            index, value = index[mask], value[mask]
        assert ((index >= 0) & (index < len(memory))).all(), (
            f"{self.kernel.name} writes {s.buffer.name}[{index}] of {len(memory)}"
        )
        memory[index] = value

    def cluster_store(self, s: ir.ClusterStore, c: _Context) -> None:
        args = (self.value(e, c) for e in (s.rank, s.index, s.value))
        ranks, indices, values = (np.broadcast_to(x, len(c.ids)) for x in args)
        for rank, block in enumerate(self.cluster):
            here, memory = ranks == rank, block.memory[s.buffer]
            assert ((indices[here] >= 0) & (indices[here] < len(memory))).all()
            memory[indices[here]] = values[here]
        assert ((ranks >= 0) & (ranks < len(self.cluster))).all(), "no block of the cluster"

    def loop(self, s: ir.For, c: _Context) -> None:
        start, stop, step = (self.value(e, c) for e in (s.start, s.stop, s.step))
        if s.kind == "grid":
            assert self.kernel.packed_blocks > 1 or self.index < stop
            last = stop if self.kernel.persistent else min(stop, self.index + 1)
            for g in range(self.index, int(last), self.count):
                c.env[s.var] = np.int64(start + g * step)
                self.block(s.body, c)
        elif s.kind == "lanes":
            assert c.ids is None, "nested lanes loops"
            every = np.arange(start, stop, step, dtype=np.int64)
            if s.resident:
                self.resident_loop(s, c, len(every))
                return
            for first in range(0, len(every), self.threads):
                now = every[first : first + self.threads]
                self.block(s.body, _Context({**c.env, s.var: now}, np.arange(len(now))))
        elif np.ndim(start) == np.ndim(stop) == 0:
            for i in range(int(start), int(stop), int(step)):
                inner = _Context(dict(c.env), c.ids)
                inner.env[s.var] = np.int64(i)
                self.block(s.body, inner)
        else:
            n = len(c.ids)
            at = np.broadcast_to(start, n).copy()
            while (at < stop).any():
                here = np.nonzero(at < stop)[0]
                inner = c.masked(here)
                inner.env[s.var] = at[here]
                self.block(s.body, inner)
                at += step

    def resident_loop(self, s: ir.For, c: _Context, count: int) -> None:
        """All iterations of a thread have slots of their own."""
        threads = np.arange(self.kernel.block_size)
        assert count <= s.unroll * s.width * self.kernel.block_size, "more iterations than slots"
        assert count >= s.full_vectors * s.width * self.kernel.block_size, "missing full vectors"
        for slot in range(s.unroll * s.width):
            vector, element = divmod(slot, s.width)
            at = (vector * self.kernel.block_size + threads) * s.width + element
            here = at < count
            if here.any():
                env = {**c.env, s.var: at[here]}
                self.block(s.body, _Context(env, threads[here], slot))

    def collective(self, s: ir.BlockReduce | ir.BlockScan, c: _Context) -> None:
        states = [self.registers[r].reshape(-1) for r in s.registers]

        def merge(a: Any, b: Any) -> Any:
            env = {**c.env, **dict(zip((*s.left, *s.right), (*a, *b), strict=True))}
            return [self.value(e, _Context(env)) for e in s.merged]

        if isinstance(s, ir.BlockReduce):
            while (count := len(states[0])) > 1:
                half = count // 2
                merged = merge([x[:half] for x in states], [x[half : 2 * half] for x in states])
                states = [
                    np.concatenate([np.broadcast_to(m, half), x[2 * half :]])
                    for m, x in zip(merged, states, strict=True)
                ]
            total = [x[0] for x in states]
        else:
            total = [self.value(e, c) for e in s.initial]
            for i, state in enumerate(list(zip(*states, strict=True))):
                for r, x in zip(s.registers, total, strict=True):
                    self.registers[r][i] = x
                total = state if i == 0 else merge(total, state)
        c.env.update(zip(s.results, total, strict=True))

    # -- expressions ------------------------------------------------------------------------------

    def value(self, root: ir.Expr, c: _Context) -> Any:
        return simt_expressions.evaluate(root, self, c, self.layout.programs)

    def iterate(self, e: ir.Expr, c: _Context) -> list[Any]:
        parts = ir.LoopParts.of(e)
        state = [self.value(x, c) for x in parts.initial]
        for _ in range(parts.limit):
            env = {**c.env, **dict(zip(parts.carried, state, strict=True))}
            inner = _Context(env, c.ids, c.slot)
            running = self.value(parts.running, inner)
            if not np.any(running):
                break
            following = [self.value(x, inner) for x in parts.following]
            state = [np.where(running, x, y)[()] for x, y in zip(following, state, strict=True)]
        return state

    def access(self, e: ir.Expr, args: list[Any], c: _Context) -> Any:
        """What an expression reads of registers, memory or other threads."""
        if e.op == "read":
            values = self.registers[e.attr]
            if not e.attr.lanes:
                return values
            assert c.ids is not None, "a register with lanes is read outside a lanes loop"
            return values[(c.slot, c.ids) if values.ndim > 1 else c.ids].copy()
        if e.op == "lanes_reduce":
            assert c.ids is None
            return self.lanes_reduce(*e.attr)
        if e.op == "load":
            return self.load(e, args)
        if e.op == "address":
            memory, origin = self.memory[e.attr], self.origins.get(e.attr, 0)
            return np.int64(memory.ctypes.data + origin * memory.itemsize)
        count = len(c.ids)
        if count != self.threads:  # whole subgroups
            warps = np.arange(self.threads).reshape((-1, 32))
            whole = np.isin(warps, c.ids).all(axis=1)
            assert whole.sum() * 32 == count, "a divergent shuffle"
        if e.op == "lanes_max":
            warps = args[0].reshape((-1, 32))
            return np.repeat(warps.max(axis=1), 32)
        return args[0][np.arange(count) ^ (args[1] if e.attr is None else e.attr)]

    def lanes_reduce(self, op: str, register: ir.Register) -> Any:
        parts = self.registers[register].reshape(-1)
        while len(parts) > 1:
            half, left = len(parts) // 2, parts[len(parts) // 2 * 2 :]
            merge = simt_expressions.binary(op, register.dtype)
            parts = np.concatenate([merge(parts[:half], parts[half : 2 * half]), left])
        return parts[0]

    def load(self, e: ir.Expr, args: list[Any]) -> Any:
        memory = self.memory[e.attr]
        index = args[0] + self.origins.get(e.attr, 0)
        mask = np.True_ if len(args) == 1 else args[1]
        inside = (index >= 0) & (index < len(memory))
        everywhere = inside.all()
        assert everywhere or (inside | ~mask).all(), (
            f"{self.kernel.name} reads {e.attr.name}[{index}] of {len(memory)}"
        )
        if len(memory) == 0:
            found = np.zeros(np.shape(index), memory.dtype)[()]
        else:
            found = memory[index if everywhere else np.where(inside, index, 0)]
        if e.dtype is dt.bool_:
            found = found != 0
        if len(args) > 1:
            found = np.where(mask, found, np.zeros((), found.dtype))[()]
        return found.astype(e.dtype.np)
