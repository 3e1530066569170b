"""Kernel IR to LLVM IR for NVIDIA GPUs, which LLVM turns into PTX.

Every kernel becomes one function with a parameter per buffer and per scalar. A block of the grid
loop is a thread block, a lane is a thread: docs/design/0004-lanes-as-threads.md tells how it maps.

Scratch buffers of constant size lie in shared memory. Others are given as an address; where that is
null they lie in the shared memory that the launch provides, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import ir
from numus.codegen.llvm import casts
from numus.codegen.llvm.builder import SCALAR, IRBuilder, memory_type, register_type
from numus.codegen.llvm.control_flow import Control
from numus.codegen.llvm.divergence import changed, computed_from, plan
from numus.codegen.llvm.expressions import Block
from numus.codegen.nvptx import (
    analysis,
    block_reduce,
    cluster,
    cp_async,
    grid_sync,
    memory,
    mma_sync,
    occupancy,
    register_loops,
    thread_loops,
    tma_pipeline,
    wgmma,
)
from numus.codegen.nvptx.expressions import ThreadExpressions
from numus.codegen.nvptx.warp import WARP
from numus.dtypes import float64, int64
from numus.errors import CompileError
from numus.ir import statements

GLOBAL, SHARED, GENERIC = "ptr addrspace(1)", memory.SHARED, "ptr"
ACCESS = occupancy.ACCESS
TILE_ALIGNMENT = 1024  # of tiles whose runs are exchanged by the number of their row
STATIC_SHARED = 48 << 10  # bytes of shared memory that a kernel may have without being given them
_WAITS_SINCE = 90
_AT_A_TIME = 16  # iterations of a thread's own loop


@dataclass(frozen=True)
class NvptxTarget:
    """What the parts of the renderer that CPUs share ask about a target."""

    capability: int  # 90: sm_90
    arch: str = "nvptx"
    half: bool = True

    @property
    def brain(self) -> bool:
        """Whether the hardware converts between bfloat16 and float32."""
        return self.capability >= 80

    lanes_bytes: int = ACCESS


shared_by_size, threads, maps = analysis.shared_by_size, analysis.threads, analysis.maps


def waits(capability: int) -> bool:
    """Whether kernels wait by themselves for the one before them."""
    return capability >= _WAITS_SINCE


def render(kernel: ir.Kernel, target: NvptxTarget, symbol: str = "kernel") -> str:
    """The kernel as an LLVM module with one function, `symbol`."""
    return Renderer(kernel, target).module(symbol)


class Renderer(Control):
    x: ThreadExpressions

    def __init__(self, kernel: ir.Kernel, target: NvptxTarget) -> None:
        self.kernel = kernel
        self.capability = target.capability
        self.group = analysis.threads(kernel) // kernel.packed_blocks * kernel.cluster_size
        self.warps = self.group // kernel.cluster_size // WARP  # of a group, in one block
        self.met, self.posted = False, 0  # what blocks of a group have done so far
        self.half = ""  # which 128 threads this one is of, where that is the same for its warp
        self.role: tma_pipeline.Role | None = None  # of the threads that what is written is for
        if kernel.packed_blocks > 1 and self.group != WARP:
            raise CompileError("groups that are more than a warp share barriers")
        self.t = IRBuilder()
        self.plan = plan(kernel, ACCESS)
        self.talking = analysis.communicating(kernel, self.plan.loaded)
        # Where kernels wait for the one before, memory that they read is no constant: the driver's
        # assembler would move loads of constants before the wait.
        tag = "" if waits(self.capability) else ", !invariant.load !0"
        tags = {b: tag if b.access == "read" else "" for b in kernel.buffers}
        shared: Any = target
        self.x = ThreadExpressions(shared, self.plan, self.t, {}, {}, tags, renderer=self)
        self.x.counters.update(s.var for s in statements(kernel.body) if isinstance(s, ir.For))
        cluster.check(self)
        self.globals: list[str] = []
        self.serial = 0  # loops around what is being written
        self.shapes = thread_loops.shapes(kernel, self.plan)
        self.held = [loop for loop in self.shapes if loop.resident]
        # whether what held loops read besides is all under way before anything is computed of it
        self.at_once = bool(self.held) and occupancy.held(kernel, analysis.threads(kernel))[1]

    # -- the module -------------------------------------------------------------------------------

    def module(self, symbol: str) -> str:
        t = self.t
        if waits(self.capability):
            # the next kernel may be brought while this one ends, as this one was: it then waits
            # here until the one before it is done and can be seen
            for what in ("launch_dependents", "wait"):
                t.do(f'call void asm sideeffect "griddepcontrol.{what};", "~{{memory}}"()')
        cluster.arrive(self)
        parameters = self._arguments()
        self._top(self.kernel.body)
        threads = analysis.threads(self.kernel)
        share = occupancy.share(self.kernel, threads)
        if cluster.in_clusters(self.kernel):
            share += f' "nvvm.cluster_dim"="{self.kernel.cluster_size}"'
        return "\n".join(
            [
                'target triple = "nvptx64-nvidia-cuda"',
                "",
                *self.globals,
                f"define ptx_kernel void @{symbol}({', '.join(parameters)}) #0 {{",
                "entry:",
                *t.allocas,
                *t.text_lines(),
                "  ret void",
                "}",
                "",
                *t.functions.values(),
                *t.declares.values(),
                "",
                f'attributes #0 = {{ nounwind "nvvm.reqntid"="{threads}" {share} }}',
                "!0 = !{}",
                "",
            ]
        )

    def _special(self, name: str) -> str:
        return self.t.call("i32", f"llvm.nvvm.read.ptx.sreg.{name}")

    def _arguments(self) -> list[str]:
        t, x = self.t, self.x
        parameters: list[str] = []
        thread = self._special("tid.x")
        block = self._special("ctaid.x")
        if self.kernel.packed_blocks > 1:
            before = t.new(f"mul i32 {block}, {self.kernel.packed_blocks}")
            block = t.new(f"add i32 {before}, {t.new(f'lshr i32 {thread}, 5')}")
            thread = t.new(f"and i32 {thread}, {WARP - 1}")
        self.lane = t.new(f"and i32 {thread}, {WARP - 1}")
        self.warp = t.new(f"lshr i32 {thread}, 5")
        self.in_block, self.rank = thread, "0"
        if self.kernel.cluster_size > 1:  # threads of a group are numbered through
            self.rank = t.new(f"and i32 {block}, {self.kernel.cluster_size - 1}")
            block = t.new(f"lshr i32 {block}, {self.kernel.cluster_size.bit_length() - 1}")
            before = t.new(f"mul i32 {self.rank}, {WARP * self.warps}")
            thread = t.new(f"add i32 {before}, {thread}")
        self.thread = t.new(f"zext i32 {thread} to i64")
        self.warp_group = t.new(f"lshr i64 {self.thread}, 7")
        self.block = t.new(f"zext i32 {block} to i64")
        self.is_first = t.new(f"icmp eq i32 {thread}, 0")
        fixed_bytes, fixed = analysis.shared_by_size(self.kernel)
        tiled = bool(analysis.tile_sums(self.kernel))
        open_buffers = []
        for i, buffer in enumerate(self.kernel.buffers):
            if buffer in fixed:
                continue
            if buffer.access == "scratch":
                parameters.append(f"ptr %b{i}")
                x.spaces[buffer] = GENERIC
                open_buffers.append((buffer, f"%b{i}"))
            else:
                parameters.append(f"{GLOBAL} align 1 %b{i}")
                x.spaces[buffer] = GLOBAL
                x.buffers[buffer] = f"%b{i}"
        for slot, dtype in self.kernel.scalars:
            given = float64 if dtype.kind == "float" else int64
            parameters.append(f"{register_type(given)} %{slot}")
            x.scalars[slot] = casts.cast(t, x.target, SCALAR, f"%{slot}", given, dtype)
        self.maps: dict[int, str] = {}  # of what an engine brings tiles
        for i, source in enumerate(analysis.tile_sources(self.kernel)):
            self.maps[id(source)] = f"%map{i}"
            parameters.append(f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map{i}')
        if open_buffers or fixed_bytes > STATIC_SHARED:
            outside = "@given = external addrspace(3) global [0 x i8]"
            self.globals.append(f"{outside}, align {TILE_ALIGNMENT}")
        offset = "0"
        for b in fixed:
            x.spaces[b] = SHARED
            if b.aliases is not None:
                x.buffers[b] = x.buffers[b.aliases]
            elif fixed_bytes <= STATIC_SHARED:
                assert b.size is not None
                tile = tiled and not analysis.scratch_bytes(b) % TILE_ALIGNMENT
                type_ = f"[{b.size.attr} x {memory_type(b.dtype)}]"
                x.buffers[b] = self.shared(type_, TILE_ALIGNMENT if tile else 16)
            else:
                x.buffers[b] = t.new(f"getelementptr i8, {SHARED} @given, i64 {offset}")
                offset = str(int(offset) + analysis.scratch_bytes(b))
        for b, parameter in open_buffers:
            offset = self._scratch(b, parameter, offset)
        return parameters

    def _scratch(self, buffer: ir.Buffer, parameter: str, offset: str) -> str:
        """A scratch buffer of which only the launch knows where it lies; where the next begins."""
        t, x = self.t, self.x
        if buffer.size is None:
            raise CompileError(f"scratch buffer {buffer.name!r} has no size")
        size = x.uniform(buffer.size, "a scratch size")
        nbytes = t.new(f"mul i64 {size}, {buffer.dtype.itemsize}")
        nbytes = t.new(f"add i64 {nbytes}, 63")
        nbytes = t.new(f"and i64 {nbytes}, -64")
        near = t.new(f"getelementptr i8, {SHARED} @given, i64 {offset}")
        near = t.new(f"addrspacecast {SHARED} {near} to ptr")
        away = t.new(f"mul i64 {nbytes}, {self.block}")
        far = t.new(f"getelementptr i8, ptr {parameter}, i64 {away}")
        is_near = t.new(f"icmp eq ptr {parameter}, null")
        x.buffers[buffer] = t.new(f"select i1 {is_near}, ptr {near}, ptr {far}")
        return t.new(f"add i64 {offset}, {nbytes}")

    def shared(self, type_: str, align: int = 16) -> str:
        """A piece of shared memory."""
        name = f"@shared{len(self.globals)}"
        self.globals.append(f"{name} = internal addrspace(3) global {type_} undef, align {align}")
        return name

    def below(self) -> str:
        """A bit for each lane of the warp before this one."""
        return self._special("lanemask.lt")

    @property
    def in_loop(self) -> bool:
        return self.serial > 0

    def barrier(self) -> None:
        """All threads are here; where they do different things, all that do the same."""
        if self.role is None:
            self.t.call("void", "llvm.nvvm.barrier.cta.sync.aligned.all", ("i32", "0"))
        else:
            tma_pipeline.meet(self)

    def _warp_barrier(self) -> None:
        self.t.do('call void asm sideeffect "bar.warp.sync -1;", "~{memory}"()')

    # -- statements -------------------------------------------------------------------------------

    def _top(self, body: list[ir.Stmt]) -> None:
        grids = [s for s in body if isinstance(s, ir.For) and s.kind == "grid"]
        if len(grids) != 1:
            raise CompileError(f"a kernel for groups has one grid loop, not {len(grids)}")
        if not all(s is grids[0] or isinstance(s, ir.Let) for s in body):
            raise CompileError("beside its grid loop a kernel may only name values (Let)")
        self._block(body)

    def _block(self, body: list[ir.Stmt]) -> None:
        x = self.x
        x.blocks.append(Block(body))
        stored = 0  # statements that are written already
        for i, s in enumerate(body):
            if i < stored:
                continue
            if isinstance(s, ir.Store) and x.lane is not None:
                stored = i + memory.store_run(x, body[i : i + ACCESS])
                if stored > i:
                    x.forget((s.buffer,))
                    continue
            if isinstance(s, ir.Let):
                if s.vector > 1:
                    memory.load_whole(x, body[i : i + s.vector])
                elif x.lane is not None and s.var not in x.values:
                    memory.load_run(x, body[i : i + memory.RUN])
                self._let(s)
            elif isinstance(s, ir.Set):
                self._set(s)
            elif isinstance(s, ir.Store):
                self._store(s)
                x.forget((s.buffer,))
            elif isinstance(s, ir.If):
                self._if(s)
            elif isinstance(s, ir.For):
                self._for(s)
            else:
                written = _WRITTEN.get(type(s))
                if written is None:
                    raise CompileError(f"no statement of the kernel IR: {s!r}")
                written(self, s)
        x.blocks.pop()

    def _set(self, s: ir.Set) -> None:
        x, t = self.x, self.t
        register = s.register
        v = x.value(s.value)
        slots = x.storage(register)
        if not register.lanes and v.vec:
            raise CompileError(f"register {register.name!r} is uniform, its new value is not")
        if register.lanes and x.lane is not None:
            slots = x.slots_of(register)
        names = v.names if len(v.names) == len(slots) else v.names * len(slots)
        ty = register_type(register.dtype)
        for slot, name in zip(slots, names, strict=True):
            t.do(f"store {ty} {name}, ptr {slot}")
        x.forget((register,))

    def _store(self, s: ir.Store) -> None:
        t, x = self.t, self.x
        if x.lane is not None:
            memory.store(x, s)
            return
        for e in (s.value, s.index):  # by all threads: they may need each other for it
            x.value(e)
        if s.buffer in self.talking:
            self.barrier()
        mine, done = t.label("first"), t.label("done")
        t.branch(self.is_first, mine, done)
        t.start(mine)
        x.push("branch")
        memory.store(x, s)
        x.pop()
        t.jump(done)
        t.start(done)
        if s.buffer in self.talking:
            self.barrier()

    def _for(self, s: ir.For) -> None:
        x = self.x
        start, stop, step = (x.uniform(e, "a loop bound") for e in (s.start, s.stop, s.step))
        if s.kind == "unroll":
            self._unrolled(s)
            return
        x.forget(changed(s.body))
        if s.kind == "lanes":
            self._lanes(s, start, stop, step)
        elif s.kind == "grid":
            self._grid(s, start, step)
        elif s.kind == "serial":
            self.serial += 1
            if x.lane is not None and analysis.reads_on(s):
                start = self._several(s, start, stop, step)
            self.loop(start, stop, step, lambda i: self._iteration(s, i))
            self.serial -= 1
        else:
            raise CompileError(f"no kind of loop: {s.kind!r}")

    def _several(self, s: ir.For, start: str, stop: str, step: str) -> str:
        """Write a loop of a thread for several iterations at a time, so that several loads are
        under way; gives where it ends, and the rest begins."""
        t, x = self.t, self.x
        trips = self.trips(start, stop, step)
        whole = t.new(f"and i64 {trips}, {-_AT_A_TIME}")
        end = t.new(f"add i64 {start}, {t.new(f'mul i64 {whole}, {step}')}")

        counters = (s.var, x.thread_lane.var)
        reads = [
            e
            for e in analysis.loads(s)
            if all(computed_from(a, x.values, *counters) for a in e.args)
        ]

        def body(i: str) -> None:
            places = [i]
            for k in range(1, _AT_A_TIME):
                places.append(t.new(f"add i64 {i}, {t.new(f'mul i64 {step}, {k}')}"))
            found = []  # all loads come before the first use: assemblers leave them in this order
            for at in places:
                x.push()
                self._count(s, at)
                found.append([x.value(e) for e in reads])
                x.pop()
            for at, values in zip(places, found, strict=True):
                x.push()
                for e, value in zip(reads, values, strict=True):
                    x.remember(x.values, e, value)
                self._iteration(s, at)
                x.pop()

        self.loop(start, end, t.new(f"mul i64 {step}, {_AT_A_TIME}"), body)
        return end

    def _grid(self, s: ir.For, start: str, step: str) -> None:
        t, i = self.t, self.block
        if step != "1":
            i = t.new(f"mul i64 {i}, {step}")
        if start != "0":
            i = t.new(f"add i64 {i}, {start}")
        if (start, step) == ("0", "1"):
            self.x.block_numbers.add(s.var)
        yes, done = t.label("block"), t.label("done")
        if self.kernel.persistent:
            tma_pipeline.stay(self, s)
            return
        if self.kernel.packed_blocks > 1:  # the last ones may be past the end
            stop = self.x.uniform(s.stop, "the size of the grid")
            t.branch(t.new(f"icmp slt i64 {i}, {stop}"), yes, done)
            t.start(yes)
        self.x.push()
        self._iteration(s, i)
        self.x.pop()
        if self.kernel.packed_blocks > 1:
            t.jump(done)
            t.start(done)

    def _lanes(self, s: ir.For, start: str, stop: str, step: str) -> None:
        if self.x.lane is not None:
            raise CompileError("a lanes loop inside a lanes loop")
        told = {b for y in statements(s.body) for b in analysis.changes(y)} & self.talking
        meet = self._warp_barrier if all(b.warp_private for b in told) else self.barrier
        if told:
            meet()
        count = self.trips(start, stop, step)
        if s.resident:
            register_loops.write(self, s, count)
            return
        thread_loops.write(self, s, start, step, count)
        if told:
            meet()


# Statements that threads have beyond those of loops, and how each is written.
_WRITTEN: dict[type[ir.Stmt], Callable[[Renderer, Any], None]] = {
    ir.Prefetch: lambda r, s: None,  # other threads hide the latency
    **{ir.BlockReduce: block_reduce.combine, ir.BlockScan: block_reduce.scan},
    **{ir.AtomicAdd: grid_sync.add, ir.WarpMultisplit: grid_sync.tally},
    **{ir.SetFlag: grid_sync.post, ir.SpinWait: grid_sync.await_},
    **{ir.AsyncCopy: cp_async.copy, ir.AsyncCommit: cp_async.commit},
    **{ir.AsyncFence: cp_async.fence, ir.AsyncWait: cp_async.wait},
    **{ir.Wgmma: cp_async.product, ir.WgmmaWait: cp_async.wait_products},
    **{ir.MmaSync: mma_sync.product, ir.WgmmaTile: wgmma.slice_product},
    ir.WgmmaMainloop: tma_pipeline.tile_sum,
}
