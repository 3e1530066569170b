"""Kernel IR to WGSL compute shaders.

A block of the grid is a workgroup: lanes loops are strided over its threads, uniform code runs in
all of them, and lane registers are variables of each thread. A kernel without lanes loops runs one
block per thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

from numus import ir
from numus.codegen.llvm.divergence import written_by
from numus.codegen.wgsl import barriers, memory
from numus.codegen.wgsl.bindings import DEFAULT_VARIANT, Bindings, UniformScalar, Variant
from numus.codegen.wgsl.expressions import Expressions
from numus.codegen.wgsl.index_width import IndexWidth
from numus.codegen.wgsl.prelude import called_functions, prelude
from numus.codegen.wgsl.target import WgslTarget
from numus.codegen.wgsl.thread_loops import ThreadLoops
from numus.codegen.wgsl.vectors import MAX_WIDTH, store_vector
from numus.codegen.wgsl.workgroup_reduce import SUBGROUP_BUILTINS, WorkgroupReduce
from numus.errors import CompileError
from numus.ir import expressions_of, post_order, statements

_Stmt = TypeVar("_Stmt", bound=ir.Stmt)


@dataclass(frozen=True, slots=True)
class Shader:
    """A rendered kernel with the layout of its arguments."""

    source: str
    threads: int  # of a workgroup
    per_thread: bool  # a block per thread, not per workgroup
    words: int  # of the uniform array `P`
    scalars: tuple[UniformScalar, ...]
    bound: tuple[tuple[int, ...], ...]  # the kernel's buffers of each binding
    segments: tuple[int, ...]  # which segment of its buffer each binding is
    merged: bool  # buffers of one type share a binding
    scratch: tuple[tuple[int, int], ...]  # (buffer, bytes of an element) of bound scratch


def render(kernel: ir.Kernel, target: WgslTarget, variant: Variant = DEFAULT_VARIANT) -> Shader:
    return _Renderer(kernel, target, variant).shader()


class _Renderer:
    def __init__(self, kernel: ir.Kernel, target: WgslTarget, variant: Variant) -> None:
        self.kernel, self.target, self.unroll = kernel, target, variant.unroll
        self.per_thread = not barriers.has_lanes(kernel.body)
        self.threads = kernel.block_size or target.block_size
        if self.per_thread:
            self.threads = min(64, target.block_size)
        self.barriers = barriers.BarrierAnalysis(kernel)
        self.shared_arrays: set[str] = set()  # declared for reductions
        self.single_thread = False  # inside a lanes loop, or on thread 0
        self.x = Expressions(kernel, target, variant.wide, IndexWidth(kernel), {}, {})
        budget = target.shared_bytes - self._reduction_bytes()
        buffers = self.barriers.workgroup_buffers
        self.bindings = Bindings(self.x, variant, self.per_thread, budget, buffers)
        self.thread_loops = ThreadLoops(
            *(self.x, self.threads, variant.unroll),
            *(self._iteration, self._loop, self._thread_statement),
        )
        self.reduce = WorkgroupReduce(self.x, self.threads, self._shared_array)

    def _reduction_bytes(self) -> int:
        """An upper bound of workgroup memory for reductions: an array per register."""
        per_thread = 0
        for s in statements(self.kernel.body):
            if isinstance(s, (ir.BlockReduce, ir.BlockScan)):
                per_thread += sum(max(4, r.dtype.itemsize) for r in s.registers)
            elif barriers.is_collective(s):
                per_thread += 8
        return per_thread * self.threads

    # -- the module -------------------------------------------------------------------------------

    def shader(self) -> Shader:
        x, bindings = self.x, self.bindings
        bindings.declare_scalars()
        bindings.declare_buffers()
        self._declare_registers()
        self._grid()
        body = "\n".join(x.lines)
        functions = prelude(called_functions(body), self.target)
        vectors = (bindings.words + 3) // 4
        builtins = [
            "@builtin(workgroup_id) group: vec3<u32>",
            "@builtin(local_invocation_index) thread: u32",
            *(SUBGROUP_BUILTINS if self.reduce.uses_subgroups else ()),
        ]
        has_f16 = any(b.storage == "half" for b in x.bindings.values())
        lines = [
            *(["enable f16;"] if has_f16 else []),
            f"struct Numbers {{ v: array<vec4<u32>, {vectors}> }}",
            "@group(0) @binding(0) var<uniform> P: Numbers;",
            *bindings.globals,
            *("var<private> Z: u32;", "var<private> Y: u32;", functions),
            f"@compute @workgroup_size({self.threads})",
            f"fn main({', '.join(builtins)}) {{",
            *("  Z = P.v[0].x;", "  Y = P.v[0].w;", body, "}", ""),
        ]
        return Shader(
            *("\n".join(lines), self.threads, self.per_thread, vectors * 4),
            scalars=tuple(bindings.scalars),
            bound=tuple(map(tuple, bindings.bound)),
            segments=tuple(bindings.segment_of),
            merged=bindings.variant.merged,
            scratch=tuple(bindings.scratch),
        )

    def _declare_registers(self) -> None:
        x = self.x
        for s in statements(self.kernel.body):
            if isinstance(s, ir.Set) and s.register not in x.registers:
                name = x.registers[s.register] = f"r{len(x.registers)}"
                x.emit(f"var {name}: {x.type_of(s.register.dtype)};")

    # -- the grid ---------------------------------------------------------------------------------

    def _grid(self) -> None:
        x = self.x
        grids = [s for s in self.kernel.body if isinstance(s, ir.For) and s.kind == "grid"]
        if len(grids) != 1:
            raise CompileError("a kernel must have exactly one grid loop")
        (grid,) = grids
        for s in (s for s in self.kernel.body if s is not grid):
            if not isinstance(s, ir.Let):
                raise CompileError("only Let may stand next to a kernel's grid loop")
            self._let(s)
        ty = x.type(grid.var)
        first = f"group.y * {self.bindings.word(1)} + group.x"
        if self.per_thread:
            first = f"({first}) * {self.threads}u + thread"
        x.emit(f"let worker = {first};")
        for i, _ in self.bindings.scratch:
            size = x.index(self.kernel.buffers[i].scratch_size)
            x.emit(f"let o{i} = i32(worker) * {size};")
        start, stop, step = x.loop_bounds(grid)
        block = x.let(f"{ty}(worker)")
        if step != "1i":
            block = x.let(f"{block} * {step}")
        if start != "0i":
            block = x.let(f"{start} + {block}")
        if not self.bindings.scratch:
            with x.block(f"if ({block} < {stop})"):
                self._iteration(grid, block)
            return
        workers = f"{ty}({self.bindings.word(2)})"
        self._loop(grid, ty, block, stop, f"{workers} * {step}", shared=not self.per_thread)

    def _iteration(self, s: ir.For, value: str) -> None:
        self.x.bind(self.x.values, s.var, value)
        self._block(s.body)

    def _loop(self, s: ir.For, ty: str, start: str, stop: str, step: str, shared: bool) -> None:
        """A counted loop. `shared`: with barriers inside, so that accesses pending at the end of an
        iteration are pending at the start of the next."""
        x = self.x
        before = set(self.barriers.pending)
        written = written_by(s.body)
        if shared:
            self.barriers.pending |= self.barriers.pending_after(s.body)
        x.invalidate(written)
        if not shared:
            x.hoist(s)
        i = x.fresh("v")
        sign = ">" if s.step.op == "const" and s.step.attr < 0 else "<"
        is_innermost = not any(isinstance(inner, ir.For) for inner in statements(s.body))
        times = self.unroll if is_innermost and not shared else 1
        by = step if times == 1 else f"{times} * ({step})"
        with x.block(f"for (var {i}: {ty} = {start}; {i} {sign} {stop}; {i} += {by})"):
            with x.block("") if times > 1 else nullcontext():
                self._iteration(s, i)
            for k in range(1, times):
                x.invalidate(written)
                at = x.let(f"{i} + {k} * ({step})")
                with x.block(f"if ({at} {sign} {stop})"):
                    self._iteration(s, at)
        x.invalidate(written)
        if shared:  # it may have no iterations, and so no barrier
            self.barriers.pending |= before

    # -- statements -------------------------------------------------------------------------------

    def _block(self, body: list[ir.Stmt]) -> None:
        workgroup = not self.single_thread and not self.per_thread
        if workgroup:
            for s in body:
                self._workgroup_statement(s)
            return
        at = 0
        while at < len(body):
            stored = store_vector(self.x, body[at : at + MAX_WIDTH])
            if not stored:
                self._thread_statement(body[at])
            at += stored or 1

    def _workgroup_statement(self, s: ir.Stmt) -> None:
        """A statement that all threads of the workgroup reach."""
        x = self.x
        if isinstance(s, (ir.BlockReduce, ir.BlockScan)):
            self.reduce.write(s)
            self.barriers.passed(barriers.WORKGROUP)
            return
        for e in barriers.reductions(s):
            self.reduce.reduce(e)
            self.barriers.passed(barriers.WORKGROUP)
        on_first = barriers.runs_on_first(s)
        outer = barriers.contains_lanes(s)
        threads = barriers.FIRST if on_first else barriers.ALL
        accesses = barriers.header_accesses(s) if outer else barriers.accesses([s])
        barrier = self.barriers.required(threads, accesses)
        if barrier:
            self._barrier(barrier)
        self.barriers.record(threads, accesses)
        if on_first:
            self._check_registers(s)
            with x.block("if (thread == 0u)"):
                self._as_single_thread(self._thread_statement, s)
            x.invalidate(written_by([s]))
        elif isinstance(s, ir.For) and s.kind == "lanes":
            self._as_single_thread(self.thread_loops.write, s)
        elif isinstance(s, ir.For) and outer:
            self._loop(s, x.type(s.var), *x.loop_bounds(s), shared=True)
        elif isinstance(s, ir.If) and outer:
            before = set(self.barriers.pending)
            self._if(s)
            self.barriers.pending |= before
        else:
            self._thread_statement(s)

    def _check_registers(self, s: ir.Stmt) -> None:
        """Registers set on thread 0 alone must not be read by the others."""
        if isinstance(s, ir.Store):
            return
        inner = set(statements([s]))
        sets = {x.register for x in inner if isinstance(x, ir.Set)}
        for other in statements(self.kernel.body):
            if other in inner or isinstance(other, (ir.For, ir.If)):
                continue
            for e in post_order(expressions_of(other), set()):
                if e.op == "read" and e.attr in sets:
                    name = e.attr.name
                    raise CompileError(f"register {name!r} is set by thread 0 but read by all")

    def _thread_statement(self, s: ir.Stmt) -> None:
        x = self.x
        if isinstance(s, ir.Let):
            self._let(s)
        elif isinstance(s, ir.Set):
            name = x.registers[s.register]
            x.emit(f"{name} = {x.cast_to(s.value, x.type_of(s.register.dtype))};")
            x.invalidate((s.register,))
        elif isinstance(s, ir.Store):
            memory.store(x, s)
            x.invalidate((s.buffer,))
        elif isinstance(s, ir.If):
            self._if(s)
        elif isinstance(s, ir.For) and s.kind != "lanes":
            self._loop(s, x.type(s.var), *x.loop_bounds(s), shared=False)
        else:
            raise CompileError(f"not a statement of one thread (nested lanes loop?): {s!r:.100}")

    def _let(self, s: ir.Let) -> None:
        x = self.x
        x.bind(x.values, s.var, x.cast_to(s.value, x.type(s.var)))

    def _if(self, s: ir.If) -> None:
        with self.x.block(f"if ({self.x.value(s.condition)})"):
            self._block(s.body)
        self.x.invalidate(written_by(s.body))

    def _as_single_thread(self, write: Callable[[_Stmt], None], s: _Stmt) -> None:
        self.single_thread = True
        write(s)
        self.single_thread = False

    # -- barriers and workgroup memory ------------------------------------------------------------

    def _barrier(self, kind: str) -> None:
        self.x.emit("workgroupBarrier();")
        if kind == barriers.STORAGE:
            self.x.emit("storageBarrier();")
        self.barriers.passed(kind)

    def _shared_array(self, ty: str, number: int) -> str:
        """Workgroup memory in which values of a type are reduced."""
        name = f"lanes_{ty}_{number}"
        if name not in self.shared_arrays:
            self.shared_arrays.add(name)
            self.bindings.globals.append(f"var<workgroup> {name}: array<{ty}, {self.threads}>;")
        return name
