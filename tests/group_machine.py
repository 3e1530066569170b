"""A machine of thread groups, imitated: kernels for GPUs run here without one.

Kernels are interpreted statement by statement, all threads of a group at once as NumPy arrays. That
is slow, and exact about what a kernel may do: an access outside of a buffer, a register that was
never set, or a barrier where threads could miss each other is an error. Scratch starts as garbage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import group_tiles
import numpy as np
import tile_machine

from numus import dtypes as dt
from numus import ir
from numus.codegen.nvptx.analysis import registers_of
from numus.ir import statements
from numus.runtime import devices
from numus.runtime.contract import Backend, Launch, LaunchList
from numus.runtime.cuda.properties import capability_fields
from numus.target import Target

GROUP = 64

TARGET = Target(
    name="groups",
    description="thread groups, imitated",
    dtypes=frozenset(d.name for d in dt.ALL),
    vector_bytes=128,
    vector_registers=64,
    l1_bytes=1 << 16,
    l2_bytes=1 << 20,
    num_cores=2,
    language="none",
    block_size=GROUP,
    shared_bytes=48 << 10,
)
WITH_TILES = replace(
    TARGET,
    name="tiles",
    wgmma=True,
    approx_math=True,
    subgroup_size=32,
    block_size=256,
    shared_bytes=227 << 10,
)
HOPPER = replace(  # as far as rows that stay in registers care
    TARGET,
    block_size=256,
    shared_bytes=227 << 10,
    max_block_size=1024,
    **{
        **capability_fields(90),
        **{"wgmma": False, "approx_math": False, "forward_progress": False},
    },
)
ORDERED = replace(TARGET, name="ordered", block_size=256, forward_progress=True)


class Block:
    """Memory of the machine."""

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
            places = [
                None if b is None else self.runtime.view(addresses[b[0]] + b[1])
                for b in step.buffers
            ]
            if kernel.vendor is not None:
                launch = kernel.vendor.start(self.runtime, kernel.problem)
                launch([addresses[slot] + offset for slot, offset in step.buffers], 0)
            else:
                self.runtime.run_kernel(kernel, places, scalars, grid)
            self.runtime.launched.append(step.program)


class Machine(Backend):
    """The runtime."""

    def __init__(self, target: Target = TARGET) -> None:
        self.target = target
        self.blocks: dict[int, Any] = {}
        self.programs: dict[str, Program] = {}
        self.launched: list[Program] = []

    def allocate(self, nbytes: int) -> Block:
        import weakref

        block = Block(nbytes)
        self.blocks[block.address] = weakref.ref(block)
        return block

    def view(self, address: int) -> tuple[np.ndarray[Any, Any], int]:
        """The bytes of the block that an address lies in, and how far inside it lies."""
        for start, ref in self.blocks.items():
            block = ref()
            if block is not None and start <= address <= start + block.nbytes:
                return block.array[: block.nbytes], address - start
        raise AssertionError(f"no memory at {address}")

    def upload(self, memory: Block, array: np.ndarray[Any, Any]) -> None:
        memory.array[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, memory: Block, dtype: Any, count: int, start: int = 0) -> Any:
        size = dtype.itemsize
        return memory.array[start * size : (start + count) * size].copy().view(dtype.np)

    def compile(self, kernel: ir.Kernel) -> Program:
        kernel.block_size = kernel.block_size or 32  # lanes that were meant to be SIMD
        return self.programs.setdefault(ir.kernel_text(kernel), Program(kernel))

    def prepare(self, steps: Any, slots: int) -> Prepared:
        return Prepared(self, steps, slots)

    def run(self, launches: list[Launch]) -> None:
        for launch in launches:
            places = [None if m is None else (m.array[: m.nbytes], 0) for m in launch.memories]
            self.run_kernel(launch.program.kernel, places, launch.scalars, launch.grid)

    def run_kernel(self, kernel: ir.Kernel, places: list[Any], scalars: Any, grid: int) -> None:
        run(kernel, places, scalars, grid)

    def synchronize(self) -> None:
        pass

    def memory_stats(self) -> dict[str, int]:
        return {}


def install() -> None:
    """From now on there are devices "groups"; "tiles", whose groups multiply tiles; and "ordered",
    whose blocks start in order."""
    devices.BACKENDS.setdefault("groups", lambda index: Machine())
    devices.BACKENDS.setdefault("tiles", lambda index: Machine(WITH_TILES))
    devices.BACKENDS.setdefault("ordered", lambda index: Machine(ORDERED))
    for capability in (75, 80, 90):
        target = group_tiles.facts_of(TARGET, capability)
        devices.BACKENDS.setdefault(f"groups_{capability}", lambda index, f=target: Machine(f))


# -- interpretation -------------------------------------------------------------------------------


def run(kernel: ir.Kernel, places: list[Any], scalars: Any, grid: int) -> None:
    values = {}
    for (slot, dtype), v in zip(kernel.scalars, scalars, strict=True):
        values[slot] = np.asarray(v).astype(dtype.np)
    with np.errstate(all="ignore"):
        count = grid * kernel.packed_blocks // kernel.cluster_size
        for g in range(count):
            _Group(kernel, places, values, g, count).run()


class _Context:
    """What a thread, or all of them, can see: variables, and which threads are here."""

    def __init__(self, env: dict[Any, Any], ids: Any = None, slot: int = 0) -> None:
        self.env, self.ids = env, ids  # ids None: outside lanes loops
        self.slot = slot  # which of a thread's iterations, where it holds several

    def narrowed(self, keep: Any) -> _Context:
        n = len(self.ids)
        env = {k: v[keep] if np.shape(v) == (n,) else v for k, v in self.env.items()}
        return _Context(env, self.ids[keep], self.slot)


class _Group:
    def __init__(
        self, kernel: ir.Kernel, places: list[Any], scalars: Any, g: int, groups: int
    ) -> None:
        self.kernel, self.g, self.groups, self.scalars = kernel, g, groups, scalars
        self.registers: dict[ir.Register, Any] = {}
        held = [s for s in statements(kernel.body) if isinstance(s, ir.For) and s.resident]
        self.slots = max((s.unroll * s.width for s in held), default=1)
        seen = [r for s in held for r in {r for y in s.body for r in registers_of(y)}]
        self.kept = {r for r in seen if seen.count(r) > 1}  # with a place for every iteration
        self.memory: dict[ir.Buffer, Any] = {}
        self.tiles = tile_machine.Tiles(self)
        self.origins: dict[ir.Buffer, int] = {}  # where addresses point, in elements
        top = _Context({})
        for i, b in enumerate(kernel.buffers):
            if b.aliases is not None:
                raw = self.memory[b.aliases].view(np.uint8)
                size = int(self.value(b.size, top)) * b.dtype.itemsize
                assert size <= len(raw), f"{b.name} does not fit in the place of {b.aliases.name}"
                self.memory[b] = raw[:size].view(b.dtype.np)
            elif b.access == "scratch":
                size = int(self.value(b.size, top))
                raw = np.full(size * b.dtype.itemsize, 0xA5, np.uint8)
                self.memory[b] = raw.view(np.uint8 if b.dtype is dt.bool_ else b.dtype.np)
            else:
                raw, offset = places[i]
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
                self.block(s.body, c.narrowed(np.nonzero(condition)[0]))
        elif isinstance(s, ir.For):
            self.loop(s, c)
        elif isinstance(s, (ir.BlockReduce, ir.BlockScan)):
            assert c.ids is None, "threads may not be all here"
            self.across(s, c)
        elif isinstance(s, (ir.AtomicAdd, ir.WarpMultisplit, ir.SetFlag, ir.SpinWait)):
            assert c.ids is not None, "this is for lanes"
            self.between(s, c)
        elif isinstance(s, group_tiles.KINDS):
            group_tiles.statement(self, s, c)
        else:
            self.tiles.statement(s, c)

    def between(self, s: ir.Stmt, c: _Context) -> None:
        n = len(c.ids)
        given = [np.broadcast_to(self.value(e, c), n) for e in ir.operands(s)]
        if isinstance(s, ir.WarpMultisplit):
            assert n == self.kernel.block_size, "somebody is missing"
            assert (given[1] < 1 << s.bits).all()
            teams = given[0].reshape(-1, 32)
            assert (teams == teams[:, :1]).all()
            assert len(set(teams[:, 0])) == len(teams)
            memory, places = self.memory[s.counters], given[0] + given[1].astype(np.int64)
            result = np.empty(n, s.rank.dtype.np)
            for i, at in enumerate(places):
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
            for run, index, count in zip(s.reads, given[::2], given[1::2], strict=True):
                for k, name in enumerate(run.results):
                    here = k < count
                    at = np.where(here, index + origin + k * run.stride, 0)
                    check(at)
                    told = np.where(here, memory[at], 0).astype(memory.dtype)
                    assert (told[here] != 0).all(), "a word that nobody has posted is waited for"
                    c.env[name] = told
            return
        at = given[0] + origin
        check(at)
        if isinstance(s, ir.AtomicAdd):
            np.add.at(memory, at, given[1])
        else:
            assert (given[1] != 0).all()
            assert (memory[at] == 0).all(), "a word is posted twice"
            memory[at] = given[1]

    def set(self, s: ir.Set, c: _Context) -> None:
        v = self.value(s.value, c)
        assert v.dtype == s.register.dtype.np, (v.dtype, s.register.dtype)
        if not s.register.lanes:
            assert np.ndim(v) == 0, "a uniform register is given a varying value"
            self.registers[s.register] = v
            return
        held = self.registers.get(s.register)
        if held is None:
            kept = s.register in self.kept
            shape = (self.slots, self.kernel.block_size) if kept else self.kernel.block_size
            held = self.registers[s.register] = np.zeros(shape, s.register.dtype.np)
        if c.ids is None:
            held[...] = v
        else:
            held[(c.slot, c.ids) if held.ndim > 1 else c.ids] = v

    def store(self, s: ir.Store, c: _Context) -> None:
        index, value = self.value(s.index, c), self.value(s.value, c)
        index = index + self.origins.get(s.buffer, 0)
        if np.ndim(value):  # lanes that meet in one element: the last one stays
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
        assert np.all((index >= 0) & (index < len(memory))), (
            f"{self.kernel.name} writes {s.buffer.name}[{index}] of {len(memory)}"
        )
        memory[index] = value

    def loop(self, s: ir.For, c: _Context) -> None:
        start, stop, step = (self.value(e, c) for e in (s.start, s.stop, s.step))
        if s.kind == "grid":
            assert self.kernel.packed_blocks > 1 or self.g < stop
            last = stop if self.kernel.persistent else min(stop, self.g + 1)
            for g in range(self.g, int(last), self.groups):
                c.env[s.var] = np.int64(start + g * step)
                self.block(s.body, c)
        elif s.kind == "lanes":
            assert c.ids is None, "a lanes loop inside a lanes loop"
            every = np.arange(start, stop, step, dtype=np.int64)
            if s.resident:
                self.held(s, c, len(every))
                return
            for first in range(0, len(every), self.kernel.block_size):
                now = every[first : first + self.kernel.block_size]
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
                inner = c.narrowed(here)
                inner.env[s.var] = at[here]
                self.block(s.body, inner)
                at += step

    def held(self, s: ir.For, c: _Context, count: int) -> None:
        """All iterations of a thread have registers of their own."""
        threads = np.arange(self.kernel.block_size)
        assert count <= s.unroll * s.width * self.kernel.block_size, (
            "threads have no room for so many"
        )
        assert count >= s.full_vectors * s.width * self.kernel.block_size, "vectors are missing"
        for slot in range(s.unroll * s.width):
            vector, place = divmod(slot, s.width)
            at = (vector * self.kernel.block_size + threads) * s.width + place
            here = at < count
            if here.any():
                env = {**c.env, s.var: at[here]}
                self.block(s.body, _Context(env, threads[here], slot))

    def across(self, s: ir.BlockReduce | ir.BlockScan, c: _Context) -> None:
        states = list(zip(*(self.registers[r].reshape(-1) for r in s.registers), strict=True))

        def merge(a: Any, b: Any) -> Any:
            env = {**c.env, **dict(zip((*s.left, *s.right), (*a, *b), strict=True))}
            return [self.value(e, _Context(env)) for e in s.merged]

        if isinstance(s, ir.BlockReduce):
            while len(states) > 1:
                half = len(states) // 2
                left = states[2 * half :]
                states = [merge(states[i], states[i + half]) for i in range(half)] + left
            total = states[0]
        else:
            total = [self.value(e, c) for e in s.initial]
            for i, state in enumerate(states):
                for r, x in zip(s.registers, total, strict=True):
                    self.registers[r][i] = x
                total = state if i == 0 else merge(total, state)
        c.env.update(zip(s.results, total, strict=True))

    # -- expressions ------------------------------------------------------------------------------

    def value(self, root: ir.Expr, c: _Context) -> Any:
        memo: dict[ir.Expr, Any] = {}
        stack = [root]
        while stack:
            e = stack[-1]
            if e in memo:
                stack.pop()
                continue
            if e in c.env:
                memo[e] = c.env[e]
                continue
            missing = [a for a in e.args if a not in memo]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            memo[e] = self.compute(e, [memo[a] for a in e.args], c)
        return memo[root]

    def compute(self, e: ir.Expr, args: list[Any], c: _Context) -> Any:
        if e.op == "const":
            return np.asarray(ir.const_value(e)).astype(e.dtype.np)[()]
        if e.op == "scalar":
            return self.scalars[e.attr][()]
        if e.op == "var":
            raise AssertionError(f"{e!r} has no value here")
        if e.op == "read":
            held = self.registers[e.attr]
            if not e.attr.lanes:
                return held
            assert c.ids is not None, "a register with lanes is read outside a lanes loop"
            return held[(c.slot, c.ids) if held.ndim > 1 else c.ids].copy()
        if e.op == "lanes_reduce":
            assert c.ids is None
            return self.lanes_reduce(*e.attr)
        if e.op == "load":
            return self.load(e, args, c)
        if e.op == "address":
            memory, origin = self.memory[e.attr], self.origins.get(e.attr, 0)
            return np.int64(memory.ctypes.data + origin * memory.itemsize)
        if e.op == "lanes_xor":
            assert len(c.ids) == self.kernel.block_size, "threads may not be all here"
            return args[0][c.ids ^ e.attr]
        result = _operation(e, args)
        assert result.dtype == e.dtype.np, (e.op, result.dtype, e.dtype)
        return result

    def lanes_reduce(self, op: str, register: ir.Register) -> Any:
        parts = self.registers[register].reshape(-1)
        while len(parts) > 1:
            half, left = len(parts) // 2, parts[len(parts) // 2 * 2 :]
            merged = _binary(op, register.dtype, parts[:half], parts[half : 2 * half])
            parts = np.concatenate([merged, left])
        return parts[0]

    def load(self, e: ir.Expr, args: list[Any], c: _Context) -> Any:
        memory = self.memory[e.attr]
        index = args[0] + self.origins.get(e.attr, 0)
        mask = np.True_ if len(args) == 1 else args[1]
        inside = (index >= 0) & (index < len(memory))
        assert np.all(inside | ~mask), (
            f"{self.kernel.name} reads {e.attr.name}[{index}] of {len(memory)}"
        )
        if len(memory) == 0:
            found = np.zeros(np.shape(index), memory.dtype)[()]
        else:
            found = memory[np.where(inside, index, 0)]
        if e.dtype is dt.bool_:
            found = found != 0
        return np.where(mask, found, np.zeros((), found.dtype))[()].astype(e.dtype.np)


def _operation(e: ir.Expr, args: list[Any]) -> Any:
    op, dtype = e.op, e.dtype
    if op == "cast":
        return _cast(args[0], e.args[0].dtype, dtype)
    if op == "bitcast":
        return np.asarray(args[0]).view(dtype.np)[()]
    if op in ("select", "slow_path"):
        yes, no = (args[1], args[2])
        return np.where(args[0], yes, no)[()].astype(dtype.np)
    if op == "fma":
        wide = np.float64 if dtype is dt.float32 else np.longdouble
        x, y, z = (np.asarray(a, wide) for a in args)
        return (x * y + z).astype(dtype.np)[()]
    if op in ir.COMPARES:
        names = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
        return getattr(np, names.get(op, {"eq": "equal", "ne": "not_equal"}.get(op, op)))(*args)
    if len(args) == 1:
        return _unary(op, dtype, args[0])
    return _binary(op, dtype, *args)


def _unary(op: str, dtype: Any, x: Any) -> Any:
    if op == "popcount":
        return np.bitwise_count(x).astype(dtype.np)
    if op == "clz":
        flat = [
            dtype.bits - int(v).bit_length() for v in np.ravel(x).astype(object) % (1 << dtype.bits)
        ]
        return np.array(flat, dtype.np).reshape(np.shape(x))[()]
    table = {
        "neg": np.negative,
        "abs": np.abs,
        "sqrt": np.sqrt,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "rint": np.rint,
        "exp2": np.exp2,
        "log2": np.log2,
        "reciprocal": np.reciprocal,
        "not": np.invert,
    }
    return table[op](x)


def _binary(op: str, dtype: Any, x: Any, y: Any) -> Any:
    if op in ("idiv", "irem"):
        fx, fy = np.asarray(x), np.asarray(y)
        safe = np.where(fy == 0, np.ones((), fy.dtype), fy)
        r = np.fmod(fx, safe)
        return (r if op == "irem" else (fx - r) // safe).astype(dtype.np)[()]
    if op == "mulhi":
        shape = np.broadcast_shapes(np.shape(x), np.shape(y))
        a, b = (np.broadcast_to(v, shape).astype(object) for v in (x, y))
        low = [int(v) % (1 << dtype.bits) for v in np.ravel(np.asarray(a * b >> dtype.bits))]
        return np.array(low, f"u{dtype.itemsize}").astype(dtype.np).reshape(shape)[()]
    if op in ("shl", "lshr", "ashr"):
        kind = f"{'i' if op == 'ashr' else 'u'}{dtype.itemsize}"
        shift = np.left_shift if op == "shl" else np.right_shift
        wide = np.asarray(x).astype(kind), np.asarray(y).astype(kind)
        return shift(*wide).astype(dtype.np)[()]
    table = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "copysign": np.copysign,
    }
    return table[op](x, y)


def _cast(x: Any, source: Any, to: Any) -> Any:
    x = np.asarray(x)
    if to is dt.bool_:
        return (x != 0)[()]
    if source.is_floating and to.is_integer:
        low, high = dt.int_range(to)
        wide = np.where(np.isnan(x), 0, x.astype(np.longdouble))
        whole = np.trunc(np.clip(wide, np.longdouble(low), np.longdouble(high)))
        return whole.astype(to.np)[()]
    return x.astype(to.np)[()]
