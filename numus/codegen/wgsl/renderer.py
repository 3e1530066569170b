"""Kernel IR to WGSL.

A block of the grid is a workgroup: a lanes loop is spread over its threads, uniform code runs in
all of them, and what a register holds per lane is a variable of each thread. A kernel without
lanes loops runs a block per thread.

How a shader is given its numbers and its memory is told in `wgsl_bindings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from numus import ir
from numus.codegen.wgsl import barriers as group
from numus.codegen.wgsl import memory
from numus.codegen.wgsl.bindings import Bindings, Word
from numus.codegen.wgsl.index_width import Narrow
from numus.codegen.wgsl.prelude import called, prelude
from numus.codegen.wgsl.target import WgslTarget
from numus.codegen.wgsl.thread_loops import Lanes, changed
from numus.codegen.wgsl.workgroup_reduce import BUILTINS, Across
from numus.errors import CompileError
from numus.ir import expressions_of, post_order, statements


@dataclass(frozen=True, slots=True)
class Shader:
    """A rendered kernel and what a launch has to know of it."""

    source: str
    threads: int  # of a workgroup
    per_thread: bool  # a block per thread, not per group
    words: int  # of `P`
    slots: tuple[Word, ...]
    bound: tuple[tuple[int, ...], ...]  # for each binding the kernel's buffers that lie there
    windows: tuple[int, ...]  # for each binding, which of its buffer's windows it is
    pooled: bool  # whether buffers of one type share a binding
    scratch: tuple[tuple[int, int], ...]  # (kernel's buffer, bytes of an element), of those bound
    narrow: Narrow
    wide: bool

    def scratch_elements(self, which: int, sizes: dict[str, int]) -> int:
        """Elements that one worker needs of a scratch buffer."""
        return self.narrow.kernel.buffers[which].count(sizes)


def render(
    kernel: ir.Kernel,
    target: WgslTarget,
    wide: bool = False,
    shared: frozenset[int] = frozenset(),
    unroll: int = 1,
    pooled: bool = False,
    windows: Mapping[int, int] = MappingProxyType({}),
) -> Shader:
    """The kernel as a shader. `wide`: indices need 64 bits; `shared`: buffers that are only read
    but must be bound as the others are, because they lie in memory that is written to; `unroll`:
    turns of the innermost loops that are written out; `pooled`: buffers of one type lie in one
    buffer, because there are more than can be bound; `windows`: of buffers larger than can be bound
    at once, how many parts they are bound as.
    """
    return _Renderer(kernel, target, wide, shared, unroll, pooled, windows).shader()


class _Renderer:
    def __init__(
        self,
        kernel: ir.Kernel,
        target: WgslTarget,
        wide: bool,
        shared: frozenset[int],
        unroll: int,
        pooled: bool,
        windows: Mapping[int, int],
    ) -> None:
        self.kernel, self.target, self.unroll = kernel, target, unroll
        self.per_thread = not group.has_lanes(kernel.body)
        self.threads = (
            min(64, target.block_size)
            if self.per_thread
            else kernel.block_size or target.block_size
        )
        self.meetings = group.Meetings(kernel)
        self.reducing: set[str] = set()  # types of which there is shared memory to reduce in
        self.lane: ir.For | None = None
        # what merging takes comes first, scratch gets the rest
        room = target.shared_bytes - self._merging_bytes()
        self.given = Bindings(
            *(kernel, target, wide, shared, pooled, windows),
            *(self.per_thread, room, self.meetings.near),
        )
        self.x = self.given.x
        self.lanes = Lanes(
            *(self.x, self.threads, unroll, self._iteration, self._loop, self._alone)
        )
        self.across = Across(self.x, self.threads, self._shared_array)

    def _merging_bytes(self) -> int:
        """Memory that threads need to merge what they have: an array per register, at most."""
        most = 0
        for s in statements(self.kernel.body):
            if isinstance(s, (ir.BlockReduce, ir.BlockScan)):
                most += sum(max(4, r.dtype.itemsize) for r in s.registers)
            elif group.is_meeting(s):
                most += 8
        return most * self.threads

    # -- the module -------------------------------------------------------------------------------

    def shader(self) -> Shader:
        x = self.x
        given = self.given
        given.take_scalars()
        given.take_buffers()
        self._registers()
        self._grid()
        body = "\n".join(x.lines)
        functions = prelude(called(body), self.target)
        words = (given.words + 3) // 4
        builtins = [
            "@builtin(workgroup_id) group: vec3<u32>",
            "@builtin(local_invocation_index) thread: u32",
            *(BUILTINS if self.across.by_subgroups else ()),
        ]
        source = "\n".join(
            [
                *(["enable f16;"] if any(p.form == "half" for p in x.places.values()) else []),
                f"struct Numbers {{ v: array<vec4<u32>, {words}> }}",
                "@group(0) @binding(0) var<uniform> P: Numbers;",
                *given.globals,
                "var<private> Z: u32;",
                "var<private> Y: u32;",
                functions,
                f"@compute @workgroup_size({self.threads})",
                f"fn main({', '.join(builtins)}) {{",
                "  Z = P.v[0].x;",
                "  Y = P.v[0].w;",
                body,
                "}",
                "",
            ]
        )
        return Shader(
            source,
            self.threads,
            self.per_thread,
            words * 4,
            tuple(given.slots),
            tuple(map(tuple, given.bound)),
            tuple(given.window_of),
            given.pooled,
            tuple(given.scratch),
            x.narrow,
            given.wide,
        )

    def _registers(self) -> None:
        x = self.x
        for s in statements(self.kernel.body):
            if isinstance(s, ir.Set) and s.register not in x.registers:
                name = x.registers[s.register] = f"r{len(x.registers)}"
                x.do(f"var {name}: {x.type_of(s.register.dtype)};")

    # -- the grid ---------------------------------------------------------------------------------

    def _grid(self) -> None:
        x = self.x
        grids = [s for s in self.kernel.body if isinstance(s, ir.For) and s.kind == "grid"]
        if len(grids) != 1:
            raise CompileError("a kernel has one grid loop")
        grid = grids[0]
        for s in self.kernel.body:
            if s is not grid:
                if not isinstance(s, ir.Let):
                    raise CompileError("beside its grid loop a kernel may only name values (Let)")
                self._let(s)
        ty = x.type(grid.var)
        first = f"group.y * {self.given.word(1)} + group.x"
        if self.per_thread:
            first = f"({first}) * {self.threads}u + thread"
        x.do(f"let worker = {first};")
        for i, _ in self.given.scratch:
            size = self.kernel.buffers[i].size
            assert size is not None
            x.do(f"let o{i} = i32(worker) * {x.index(size)};")
        start, stop, step = (x.carried(e, ty) for e in (grid.start, grid.stop, grid.step))
        block = x.new(f"{ty}(worker)")
        if step != "1i":
            block = x.new(f"{block} * {step}")
        if start != "0i":
            block = x.new(f"{start} + {block}")
        if not self.given.scratch:
            x.open(f"if ({block} < {stop})")
            self._iteration(grid, block)
            x.close()
            return
        workers = f"{ty}({self.given.word(2)})"
        self._loop(grid, ty, block, stop, f"{workers} * {step}", shared=not self.per_thread)

    def _iteration(self, s: ir.For, value: str) -> None:
        self.x.remember(self.x.values, s.var, value)
        self._block(s.body)

    def _loop(self, s: ir.For, ty: str, start: str, stop: str, step: str, shared: bool) -> None:
        """A counted loop. `shared`: threads may meet inside, so what an iteration leaves pending
        is pending when the next one starts."""
        x = self.x
        before = set(self.meetings.pending)
        if shared:
            self.meetings.pending |= self.meetings.after(s.body)
        x.forget(changed(s.body))
        if not shared:
            x.hoist(s)
        i = x.name("v")
        sign = "<"
        if s.step.op == "const" and s.step.attr < 0:
            sign = ">"
        times = 1
        if not shared and not any(isinstance(inner, ir.For) for inner in statements(s.body)):
            times = self.unroll
        by = step if times == 1 else f"{times} * ({step})"
        x.open(f"for (var {i}: {ty} = {start}; {i} {sign} {stop}; {i} += {by})")
        if times > 1:
            x.open("")
        self._iteration(s, i)
        if times > 1:
            x.close()
        for k in range(1, times):
            x.forget(changed(s.body))
            at = x.new(f"{i} + {k} * ({step})")
            x.open(f"if ({at} {sign} {stop})")
            self._iteration(s, at)
            x.close()
        x.close()
        x.forget(changed(s.body))
        if shared:  # it may have no iterations, and then nobody met
            self.meetings.pending |= before

    # -- statements -------------------------------------------------------------------------------

    def _block(self, body: list[ir.Stmt]) -> None:
        if self.lane is None and not self.per_thread:
            for s in body:
                self._shared(s)
            return
        for s in body:
            self._alone(s)

    def _shared(self, s: ir.Stmt) -> None:
        """A statement that a whole group has come to."""
        x = self.x
        if isinstance(s, (ir.BlockReduce, ir.BlockScan)):
            self.across.write(s)
            self.meetings.merged()
            return
        for e in group.reductions(s):
            self.across.reduce(e)
            self.meetings.merged()
        solo = group.is_solo(s)
        outer = isinstance(s, (ir.For, ir.If)) and group.s_is_shared(s)
        who = group.FIRST if solo else group.ALL
        what = group.touched_head(s) if outer else group.touched([s])
        barrier = self.meetings.before(who, what)
        if barrier:
            self._meet(barrier)
        self.meetings.note(who, what)
        if solo:
            self._check_solo(s)
            x.open("if (thread == 0u)")
            self.lane, before = _NOBODY, self.lane
            self._alone(s)
            self.lane = before
            x.close()
            self._forget_stores(s)
        elif isinstance(s, ir.For) and s.kind == "lanes":
            self._lanes(s)
        elif isinstance(s, ir.For) and outer:
            start, stop, step = (x.carried(e, x.type(s.var)) for e in (s.start, s.stop, s.step))
            self._loop(s, x.type(s.var), start, stop, step, shared=True)
        elif isinstance(s, ir.If) and outer:
            before = set(self.meetings.pending)
            x.open(f"if ({x.value(s.condition)})")
            self._block(s.body)
            x.close()
            self.meetings.pending |= before
            x.forget(changed(s.body))
        else:
            self._alone(s)

    def _check_solo(self, s: ir.Stmt) -> None:
        """What the first thread alone computes must not be asked for by the others."""
        if isinstance(s, ir.Store):
            return
        inside = {id(x) for x in statements([s])}
        sets = {x.register for x in statements([s]) if isinstance(x, ir.Set)}
        for other in statements(self.kernel.body):
            if id(other) in inside or isinstance(other, (ir.For, ir.If)):
                continue
            for e in post_order(expressions_of(other), set()):
                if e.op == "read" and e.attr in sets:
                    raise CompileError(
                        f"register {e.attr.name!r} is set by one thread and read by all"
                    )

    def _forget_stores(self, s: ir.Stmt) -> None:
        self.x.forget(changed([s]))

    def _alone(self, s: ir.Stmt) -> None:
        """A statement that a thread runs by itself."""
        x = self.x
        if isinstance(s, ir.Let):
            self._let(s)
        elif isinstance(s, ir.Set):
            name = x.registers[s.register]
            x.do(f"{name} = {x.carried(s.value, x.type_of(s.register.dtype))};")
            x.forget((s.register,))
        elif isinstance(s, ir.Store):
            memory.store(x, s)
            x.forget((s.buffer,))
        elif isinstance(s, ir.If):
            x.open(f"if ({x.value(s.condition)})")
            self._block(s.body)
            x.close()
            x.forget(changed(s.body))
        elif isinstance(s, ir.For) and s.kind != "lanes":
            ty = x.type(s.var)
            start, stop, step = (x.carried(e, ty) for e in (s.start, s.stop, s.step))
            self._loop(s, ty, start, stop, step, shared=False)
        else:
            raise CompileError(f"a lanes loop inside a lanes loop, or no statement: {s!r:.100}")

    def _let(self, s: ir.Let) -> None:
        x = self.x
        x.remember(x.values, s.var, x.carried(s.value, x.type(s.var)))

    def _lanes(self, s: ir.For) -> None:
        self.lane, before = s, self.lane
        self.lanes.write(s)
        self.lane = before

    # -- threads together -------------------------------------------------------------------------

    def _meet(self, where: str) -> None:
        self.x.do("workgroupBarrier();")
        if where == group.FAR:
            self.x.do("storageBarrier();")
        self.meetings.met(where)

    def _shared_array(self, ty: str, number: int) -> str:
        """Memory in which a group merges values of a type."""
        name = f"lanes_{ty}_{number}"
        if name not in self.reducing:
            self.reducing.add(name)
            self.given.globals.append(f"var<workgroup> {name}: array<{ty}, {self.threads}>;")
        return name


_NOBODY: Any = object()  # stands for a lanes loop where one thread works alone
