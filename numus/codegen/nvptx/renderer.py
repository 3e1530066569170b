"""Kernel IR to LLVM IR for NVIDIA GPUs (SIMT), compiled to PTX by LLVM.

Every kernel becomes one function with a parameter per buffer and per scalar. A block of the grid
loop is a CTA, a lane is a thread: see docs/design/0004-lanes-as-threads.md.

Scratch buffers of constant size are in shared memory. Others are addresses; where null, they are in
dynamic shared memory, one after the other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from numus import ir
from numus.codegen.llvm import casts
from numus.codegen.llvm.builder import SCALAR, memory_type, register_type
from numus.codegen.llvm.divergence import is_computable
from numus.codegen.nvptx import (
    analysis,
    block_reduce,
    cluster,
    cp_async,
    grid_sync,
    memory,
    occupancy,
    register_loops,
    thread_loops,
    tma_pipeline,
    warp_roles,
)
from numus.codegen.nvptx.context import ACCESS_BYTES, GENERIC, GLOBAL, SHARED, KernelContext
from numus.codegen.nvptx.expressions import ThreadExpressions
from numus.codegen.nvptx.tensor_core import mma_sync, wgmma
from numus.codegen.nvptx.warp import WARP
from numus.dtypes import float64, int64
from numus.errors import CompileError
from numus.ir import statements

TILE_ALIGNMENT = 1024  # of swizzled tiles
STATIC_SHARED = 48 << 10  # bytes of shared memory of a kernel without opt-in
_DEPENDENT_LAUNCH_MIN_CAPABILITY = 90
_EVICTION_POLICY_MIN_CAPABILITY = 80
_REDUX_MIN_CAPABILITY = 80
_UNROLL = 16  # iterations of a thread's load-bound loop


@dataclass(frozen=True)
class NvptxTarget:
    """A GPU to compile for, as the code shared with CPUs sees it."""

    capability: int  # 90: sm_90
    arch: str = "nvptx"
    has_f16_conversion: bool = True
    has_int64_conversion: bool = True
    byte_dot: str = "dp4a"

    @property
    def has_bf16_conversion(self) -> bool:
        return self.capability >= 80

    @property
    def has_float8_conversion(self) -> bool:
        return self.capability >= 89


cta_threads, static_scratch = analysis.cta_threads, analysis.static_scratch
tensor_maps = analysis.tensor_maps
is_whole_program = analysis.is_whole_program


def has_dependent_launch(capability: int) -> bool:
    """Whether kernels wait for the previous one themselves (programmatic dependent launch)."""
    return capability >= _DEPENDENT_LAUNCH_MIN_CAPABILITY


def render(kernel: ir.Kernel, target: NvptxTarget, symbol: str = "kernel") -> str:
    """The kernel as an LLVM module with one function, `symbol`."""
    return Renderer(kernel, target).module(symbol)


class Renderer(KernelContext):
    def __init__(self, kernel: ir.Kernel, target: NvptxTarget) -> None:
        threads = analysis.cta_threads(kernel)
        super().__init__(kernel, target, target.capability, threads)
        if kernel.packed_blocks > 1 and self.block_threads != WARP:
            raise CompileError(f"packed blocks must be of {WARP} threads: they share barriers")
        if kernel.packed_blocks > 1 and any(b.access == "scratch" for b in kernel.buffers):
            raise CompileError("packed blocks must have no scratch: they share shared memory")
        self.cross_thread = analysis.cross_thread(kernel.body, self.plan.loaded)
        # With dependent launch, inputs are not invariant: ptxas would hoist loads above the wait.
        tag = "" if has_dependent_launch(self.capability) else ", !invariant.load !0"
        tags = {b: tag if b.access == "read" else "" for b in kernel.buffers}

        def reduce(op: str, register: ir.Register) -> str:
            return block_reduce.lanes_reduce(self, op, register)

        redux = self.capability >= _REDUX_MIN_CAPABILITY
        x = ThreadExpressions(self.plan, self.t, {}, {}, tags, block_reduce=reduce, has_redux=redux)
        x.counters.update(s.var for s in statements(kernel.body) if isinstance(s, ir.For))
        if self.capability >= _EVICTION_POLICY_MIN_CAPABILITY:
            x.streamed.update(b for b in kernel.buffers if b.streamed and b.dtype.itemsize >= 4)
        x.counter_bounds.update(analysis.counter_bounds(kernel))
        self.x = x
        cluster.check(self)
        self.shapes = thread_loops.loop_shapes(kernel, self.plan)
        self.resident_loops = [loop for loop in self.shapes if loop.resident]
        self.issue_loads_first = (
            bool(self.resident_loops) and occupancy.resident_ctas(kernel, threads)[1]
        )

    # -- the module -------------------------------------------------------------------------------

    def module(self, symbol: str) -> str:
        if has_dependent_launch(self.capability):
            # the next kernel may be scheduled while this one ends
            self.asm("griddepcontrol.launch_dependents;", "~{memory}")
            if not any(isinstance(s, ir.DependencyWait) for s in statements(self.kernel.body)):
                self.wait_for_earlier_kernels()
        cluster.arrive(self)
        arguments = ", ".join(self._prologue())
        self.write_kernel(self.kernel.body, needs_grid=True)
        threads = analysis.cta_threads(self.kernel)
        ctas = occupancy.min_ctas(self.kernel, threads)
        attributes = f'"nvvm.minctasm"="{ctas}"' if ctas else ""
        if cluster.is_cluster(self.kernel):
            attributes += f' "nvvm.cluster_dim"="{self.kernel.cluster_size}"'
        elif self.kernel.cluster_blocks > 1:
            attributes += f' "nvvm.cluster_dim"="{self.kernel.cluster_blocks}"'
        lines = [
            *('target triple = "nvptx64-nvidia-cuda"', "", *self.globals),
            *self.t.define_function(f"define ptx_kernel void @{symbol}({arguments}) #0"),
            f'attributes #0 = {{ nounwind "nvvm.reqntid"="{threads}" {attributes} }}',
            *("!0 = !{}", ""),
        ]
        return "\n".join(lines)

    def wait_for_earlier_kernels(self) -> None:
        if has_dependent_launch(self.capability):
            self.asm("griddepcontrol.wait;", "~{memory}")

    def _prologue(self) -> list[str]:
        """Bind thread indices and arguments; returns the parameters."""
        self._thread_indices()
        t, x, kernel = self.t, self.x, self.kernel
        parameters: list[str] = []
        static_bytes, static = analysis.static_scratch(kernel)
        dynamic = []
        for i, buffer in enumerate(kernel.buffers):
            if buffer in static:
                continue
            if buffer.access == "scratch":
                parameters.append(f"ptr %b{i}")
                x.spaces[buffer] = GENERIC
                dynamic.append((buffer, f"%b{i}"))
            else:
                parameters.append(f"{GLOBAL} align 1 %b{i}")
                x.spaces[buffer] = GLOBAL
                x.buffers[buffer] = f"%b{i}"
        for slot, dtype in kernel.scalars:
            given = float64 if dtype.kind == "float" else int64
            parameters.append(f"{register_type(given)} %{slot}")
            x.scalars[slot] = casts.cast(t, SCALAR, f"%{slot}", given, dtype)
        self.tensor_maps = {}
        for i, tensor in enumerate(analysis.tma_tensors(kernel)):
            self.tensor_maps[id(tensor)] = f"%map{i}"
            parameters.append(f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map{i}')
        if dynamic or static_bytes > STATIC_SHARED:
            outside = "@given = external addrspace(3) global [0 x i8]"
            self.globals.append(f"{outside}, align {TILE_ALIGNMENT}")
        tiled = bool(analysis.wgmma_accumulators(kernel))
        offset = "0"
        for b in static:
            x.spaces[b] = SHARED
            if b.aliases is not None:
                x.buffers[b] = x.buffers[b.aliases]
            elif static_bytes <= STATIC_SHARED:
                tile = tiled and not analysis.scratch_bytes(b) % TILE_ALIGNMENT
                type_ = f"[{b.scratch_size.attr} x {memory_type(b.dtype)}]"
                x.buffers[b] = self.shared(type_, TILE_ALIGNMENT if tile else 16)
            else:
                x.buffers[b] = t.new(f"getelementptr i8, {SHARED} @given, i64 {offset}")
                offset = str(int(offset) + analysis.scratch_bytes(b))
        for b, parameter in dynamic:
            offset = self._dynamic_scratch(b, parameter, offset)
        return parameters

    def _thread_indices(self) -> None:
        t, kernel = self.t, self.kernel
        thread = self.special_register("tid.x")
        block = self.special_register("ctaid.x")
        if kernel.packed_blocks > 1:
            before = t.new(f"mul i32 {block}, {kernel.packed_blocks}")
            block = t.new(f"add i32 {before}, {t.new(f'lshr i32 {thread}, 5')}")
            thread = t.new(f"and i32 {thread}, {WARP - 1}")
        self.lane = t.new(f"and i32 {thread}, {WARP - 1}")
        self.warp = t.new(f"lshr i32 {thread}, 5")
        self.cta_thread, self.cta_rank = thread, "0"
        if kernel.cluster_size > 1:
            self.cta_rank = t.new(f"and i32 {block}, {kernel.cluster_size - 1}")
            block = t.new(f"lshr i32 {block}, {kernel.cluster_size.bit_length() - 1}")
            before = t.new(f"mul i32 {self.cta_rank}, {WARP * self.warps}")
            thread = t.new(f"add i32 {before}, {thread}")
        self.thread = t.new(f"zext i32 {thread} to i64")
        self.warpgroup = t.new(f"lshr i64 {self.thread}, 7")
        self.block = t.new(f"zext i32 {block} to i64")
        self.is_first = t.new(f"icmp eq i32 {thread}, 0")

    def _dynamic_scratch(self, buffer: ir.Buffer, parameter: str, offset: str) -> str:
        """Bind scratch in global or dynamic shared memory; returns the next shared offset."""
        t, x = self.t, self.x
        size = x.uniform(buffer.scratch_size, "a scratch size")
        nbytes = t.new(f"mul i64 {size}, {buffer.dtype.itemsize}")
        nbytes = t.new(f"add i64 {nbytes}, 63")
        nbytes = t.new(f"and i64 {nbytes}, -64")
        shared = t.new(f"getelementptr i8, {SHARED} @given, i64 {offset}")
        shared = t.new(f"addrspacecast {SHARED} {shared} to ptr")
        block_offset = t.new(f"mul i64 {nbytes}, {self.block}")
        in_global = t.new(f"getelementptr i8, ptr {parameter}, i64 {block_offset}")
        is_shared = t.new(f"icmp eq ptr {parameter}, null")
        x.buffers[buffer] = t.new(f"select i1 {is_shared}, ptr {shared}, ptr {in_global}")
        return t.new(f"add i64 {offset}, {nbytes}")

    # -- statements -------------------------------------------------------------------------------

    def block_barrier(self) -> None:
        """Of all CTAs of the block."""
        if cluster.is_cluster(self.kernel):
            cluster.barrier(self)
        else:
            self.barrier()

    def merge(self, body: list[ir.Stmt], first: int) -> int:
        s, x = body[first], self.x
        if isinstance(s, ir.Let):  # defines the values of the following Lets too
            if s.vector > 1:
                memory.load_vector(x, body[first : first + s.vector])
            elif x.lane is not None and s.var not in x.values:
                memory.merge_shared_loads(x, body[first : first + memory.SHARED_VECTOR])
        elif isinstance(s, ir.Store) and x.lane is not None:
            return memory.merge_stores(x, body[first : first + ACCESS_BYTES])
        return 0

    def store(self, s: ir.Store) -> None:
        x = self.x
        if x.lane is not None:
            memory.store(x, s)
            return
        for e in (s.value, s.index):  # by all threads: they may contain block reductions
            x.value(e)
        if s.buffer in self.cross_thread:
            self.block_barrier()
        with self.t.conditional(self.is_first, "first"), x.scope("branch"):
            memory.store(x, s)
        if s.buffer in self.cross_thread:
            self.block_barrier()

    def _serial(self, s: ir.For, start: str, stop: str, step: str) -> None:
        self.loop_depth += 1
        if self.x.lane is not None and analysis.is_load_bound(s):
            start = self._unrolled_loads(s, start, stop, step)
        super()._serial(s, start, stop, step)
        self.loop_depth -= 1

    def _unrolled_loads(self, s: ir.For, start: str, stop: str, step: str) -> str:
        """A loop unrolled for more loads in flight; returns the start of the remainder."""
        t, x = self.t, self.x
        trips = self.trip_count(start, stop, step)
        whole = t.new(f"and i64 {trips}, {-_UNROLL}")
        end = t.new(f"add i64 {start}, {t.new(f'mul i64 {whole}, {step}')}")

        def is_early(e: ir.Expr) -> bool:
            return all(is_computable(a, x.values, s.var, x.thread_lane.var) for a in e.args)

        loads = [e for e in ir.loads(s.body) if is_early(e)]

        def body(i: str) -> None:
            indices = [i]
            for k in range(1, _UNROLL):
                indices.append(t.new(f"add i64 {i}, {t.new(f'mul i64 {step}, {k}')}"))
            found = []  # all loads before the first use: ptxas keeps the order
            for at in indices:
                with x.scope():
                    self.bind_loop_var(s, at)
                    found.append([x.value(e) for e in loads])
            for at, values in zip(indices, found, strict=True):
                with x.scope():
                    for e, value in zip(loads, values, strict=True):
                        x.bind(x.values, e, value)
                    self.iteration(s, at)

        self.loop(start, end, t.new(f"mul i64 {step}, {_UNROLL}"), body)
        return end

    def _grid(self, s: ir.For, start: str, stop: str, step: str) -> None:
        t = self.t
        i = t.affine(self.block, step, start)
        if (start, step) == ("0", "1"):
            self.x.block_indices.add(s.var)
        if self.kernel.persistent:
            tma_pipeline.persistent(self, s)
            return
        in_grid: AbstractContextManager[None] = nullcontext()
        if self.kernel.packed_blocks > 1:  # the last ones may be past the end
            in_grid = t.conditional(t.new(f"icmp slt i64 {i}, {stop}"), "block")
        with in_grid, self.x.scope():
            self.iteration(s, i)

    def _lanes(self, s: ir.For, start: str, stop: str, step: str) -> None:
        stored = analysis.cross_thread(s.body, self.cross_thread)
        private = all(b.warp_private for b in stored)
        barrier = self.warp_barrier if private else self.block_barrier
        if not all(b.stored_once for b in stored):
            barrier()
        count = self.trip_count(start, stop, step)
        if s.resident:
            register_loops.write(self, s, count)
            return
        thread_loops.write(self, s, start, step, count)
        if stored:
            barrier()


Renderer.handlers = {
    ir.Store: Renderer.store,
    ir.Prefetch: lambda r, s: memory.prefetch(r.x, s),
    ir.DependencyWait: lambda r, s: r.wait_for_earlier_kernels(),
    ir.BlockReduce: block_reduce.reduce,
    ir.BlockScan: block_reduce.scan,
    ir.AtomicAdd: grid_sync.atomic_add,
    ir.WarpMultisplit: grid_sync.multisplit,
    ir.SetFlag: grid_sync.set_flag,
    ir.SpinWait: grid_sync.spin_wait,
    ir.ClusterGather: cluster.gather,
    ir.ClusterBarrier: cluster.wait_for_blocks,
    ir.ClusterStore: cluster.store,
    ir.AsyncCopy: cp_async.copy,
    ir.AsyncCommit: cp_async.commit,
    ir.AsyncFence: cp_async.fence,
    ir.AsyncWait: cp_async.wait,
    ir.MmaSync: mma_sync.mma,
    ir.Wgmma: wgmma.mma_async,
    ir.PackFragments: wgmma.pack,
    ir.WgmmaWait: wgmma.wait,
    ir.WarpRoles: warp_roles.roles,
    ir.Arrive: warp_roles.arrive,
    ir.AwaitPhase: warp_roles.await_phase,
    ir.WarpgroupTurn: warp_roles.turn,
    ir.WgmmaTile: wgmma.mma_k_tile,
    ir.WgmmaMainloop: tma_pipeline.mainloop,
}
