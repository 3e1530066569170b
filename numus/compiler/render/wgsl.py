"""Kernel IR to WGSL.

A block of the grid is a workgroup: a lanes loop is spread over its threads, uniform code runs in
all of them, and what a register holds per lane is a variable of each thread. A kernel without
lanes loops runs a block per thread.

A shader's numbers come in one uniform array of words, `P`: a zero (see `wgsl_prelude`), how the
groups are counted, where each buffer's elements start, then the kernel's scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numus.compiler import ir
from numus.compiler.render import wgsl_group as group
from numus.compiler.render import wgsl_memory as memory
from numus.compiler.render import wgsl_ops as ops
from numus.compiler.render.wgsl_narrow import Narrow, below, expressions_of, is_size, statements
from numus.compiler.render.wgsl_prelude import called, prelude
from numus.compiler.render.wgsl_values import Values
from numus.errors import CompileError
from numus.runtime.webgpu.target import Target

TOGETHER = 4  # iterations of a light lanes loop that are under way at a time
LIGHT = 80  # expressions of a loop that counts as such
HEAD = 4  # words of `P` before the buffers' offsets: zero, groups in a row, all groups or threads


@dataclass(frozen=True, slots=True)
class Word:
    """How a scalar slot is written into `P`: a `struct` format, and the first of its words."""

    slot: str
    format: str  # "i", "I", "q", "Q", "f", "d"
    at: int


@dataclass(frozen=True, slots=True)
class Shader:
    """A rendered kernel and what a launch has to know of it."""

    source: str
    threads: int  # of a workgroup
    per_thread: bool  # a block per thread, not per group
    words: int  # of `P`
    slots: tuple[Word, ...]
    bound: tuple[tuple[int, ...], ...]  # for each binding the kernel's buffers that lie there
    pooled: bool  # whether buffers of one type share a binding
    scratch: tuple[tuple[int, int], ...]  # (kernel's buffer, bytes of an element), of those bound
    narrow: Narrow
    wide: bool

    def scratch_elements(self, which: int, sizes: dict[str, int]) -> int:
        """Elements that one worker needs of a scratch buffer."""
        size = self.narrow.kernel.buffers[which].size
        assert size is not None
        return _number(size, sizes)


def render(
    kernel: ir.Kernel,
    target: Target,
    wide: bool = False,
    shared: frozenset[int] = frozenset(),
    unroll: int = 1,
    pooled: bool = False,
) -> Shader:
    """The kernel as a shader. `wide`: indices need 64 bits; `shared`: buffers that are only read
    but must be bound as the others are, because they lie in memory that is written to; `unroll`:
    turns of the innermost loops that are written out; `pooled`: buffers of one type lie in one
    buffer, because there are more than can be bound.
    """
    return _Renderer(kernel, target, wide, shared, unroll, pooled).shader()


def _number(e: ir.Expr, sizes: dict[str, int]) -> int:
    if e.op == "const":
        return int(e.attr)
    if e.op == "scalar":
        return sizes[e.attr]
    a, *rest = (_number(x, sizes) for x in e.args if x.dtype is ir.INDEX)
    b = rest[-1] if rest else 0
    results = {"add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b)}
    if e.op in ("idiv", "irem"):
        return a // max(b, 1) if e.op == "idiv" else a % max(b, 1)
    return results[e.op]


class _Renderer:
    def __init__(
        self,
        kernel: ir.Kernel,
        target: Target,
        wide: bool,
        shared: frozenset[int],
        unroll: int,
        pooled: bool,
    ) -> None:
        self.kernel, self.target, self.wide, self.bound_as_written = kernel, target, wide, shared
        self.unroll, self.pooled = unroll, pooled
        self.per_thread = not group.has_lanes(kernel.body)
        self.threads = min(64, target.group) if self.per_thread else kernel.group or target.group
        self.meetings = group.Meetings(kernel)
        self.globals: list[str] = []
        self.reducing: set[str] = set()  # types of which there is shared memory to reduce in
        self.words = HEAD
        self.slots: list[Word] = []
        self.bound: list[list[int]] = []
        self.pools: dict[str, tuple[str, list[int]]] = {}  # by type: a variable, and what is there
        self.scratch: list[tuple[int, int]] = []
        self.lane: ir.For | None = None
        # what merging takes comes first, scratch gets the rest
        self.group_memory = target.group_memory - self._merging_bytes()
        self.x = Values(kernel, target, wide, Narrow(kernel), {}, {})

    def _merging_bytes(self) -> int:
        """Memory that threads need to merge what they have: an array per register, at most."""
        most = 0
        for s in statements(self.kernel.body):
            if isinstance(s, (ir.Combine, ir.Scan)):
                most += sum(max(4, r.dtype.itemsize) for r in s.registers)
            elif group.is_meeting(s):
                most += 8
        return most * self.threads

    # -- the module -------------------------------------------------------------------------------

    def shader(self) -> Shader:
        x = self.x
        self._scalars()
        self._buffers()
        self._registers()
        self._grid()
        body = "\n".join(x.lines)
        functions = prelude(called(body), self.target)
        words = (self.words + 3) // 4
        source = "\n".join(
            [
                *(["enable f16;"] if any(p.form == "half" for p in x.places.values()) else []),
                f"struct Numbers {{ v: array<vec4<u32>, {words}> }}",
                "@group(0) @binding(0) var<uniform> P: Numbers;",
                *self.globals,
                "var<private> Z: u32;",
                functions,
                f"@compute @workgroup_size({self.threads})",
                "fn main(@builtin(workgroup_id) group: vec3<u32>, "
                "@builtin(local_invocation_index) thread: u32) {",
                "  Z = P.v[0].x;",
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
            tuple(self.slots),
            tuple(map(tuple, self.bound)),
            self.pooled,
            tuple(self.scratch),
            x.narrow,
            self.wide,
        )

    def _word(self, at: int) -> str:
        return f"P.v[{at // 4}].{'xyzw'[at % 4]}"

    def _take(self, count: int) -> int:
        """The first of so many new words of `P`."""
        at = self.words
        self.words += count
        return at

    def _scalars(self) -> None:
        x = self.x
        self.words += sum(b.access != "scratch" for b in self.kernel.buffers)
        for slot, dtype in self.kernel.scalars:
            narrow = not self.target.i64 or (is_size(slot) and not self.wide)
            ty = "i32" if dtype is ir.INDEX and narrow else ops.carrier(dtype)
            at = self._take(2 if ty[1:] == "64" else 1)
            self.slots.append(Word(slot, _FORMATS[ty], at))
            first = self._word(at)
            if ty == "u32":
                text = first
            elif ty[1:] == "32":
                text = f"bitcast<{ty}>({first})"
            else:
                whole = f"(u64({first}) | (u64({self._word(at + 1)}) << 32u))"
                text = whole if ty == "u64" else f"bitcast<{ty}>({whole})"
            x.do(f"let {slot} = {text};")
            x.scalars[slot] = slot

    def _buffers(self) -> None:
        x = self.x
        offset = HEAD
        for i, buffer in enumerate(self.kernel.buffers):
            form = memory.form_of(buffer, self.target)
            if self.pooled and form == "packed":
                form = "shared"
            carrier = x.type_of(buffer.dtype)
            element = memory.element_of(buffer.dtype, form, carrier)
            name = f"b{i}"
            if buffer.access == "scratch":
                self._scratch(i, buffer, name, carrier)
                continue
            x.do(f"let o{i} = bitcast<i32>({self._word(offset)});")
            offset += 1
            if self.pooled:
                x.places[buffer] = memory.Place(self._pool(i, element), f"o{i}", form, element)
                continue
            only_read = buffer.access == "read" and i not in self.bound_as_written
            access = "read" if only_read else "read_write"
            x.places[buffer] = memory.Place(name, f"o{i}", form, element)
            self._bind(i, f"var<storage, {access}> {name}: array<{element}>;")

    def _pool(self, which: int, element: str) -> str:
        """The variable in which all buffers of a type lie."""
        if element not in self.pools:
            name = f"pool{len(self.pools)}"
            self._bind(which, f"var<storage, read_write> {name}: array<{element}>;")
            self.pools[element] = (name, self.bound[-1])
        else:
            self.pools[element][1].append(which)
        return self.pools[element][0]

    def _bind(self, which: int, declaration: str) -> None:
        self.bound.append([which])
        self.globals.append(f"@group(0) @binding({len(self.bound)}) {declaration}")

    def _scratch(self, i: int, buffer: ir.Buffer, name: str, carrier: str) -> None:
        """Memory of a group: shared where it is small and of known size, else a part of a buffer
        that all groups (or threads) share."""
        x = self.x
        if carrier == "bool":
            carrier = "u32"
        if buffer.size is None:
            raise CompileError(f"scratch buffer {buffer.name!r} has no size")
        if buffer.size.op == "const" and not self.per_thread:
            nbytes = -(-buffer.size.attr * _bytes(carrier) // 16) * 16
            if nbytes <= self.group_memory:
                self.group_memory -= nbytes
                self.globals.append(f"var<workgroup> {name}: array<{carrier}, {buffer.size.attr}>;")
                x.places[buffer] = memory.Place(name, "", "word", carrier)
                return
        self.scratch.append((i, _bytes(carrier)))
        x.places[buffer] = memory.Place(name, f"o{i}", "word", carrier)
        self._bind(i, f"var<storage, read_write> {name}: array<{carrier}>;")

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
        first = f"group.y * {self._word(1)} + group.x"
        if self.per_thread:
            first = f"({first}) * {self.threads}u + thread"
        x.do(f"let worker = {first};")
        for i, _ in self.scratch:
            size = self.kernel.buffers[i].size
            assert size is not None
            x.do(f"let o{i} = i32(worker) * {x.index(size)};")
        start, stop, step = (x.carried(e, ty) for e in (grid.start, grid.stop, grid.step))
        block = x.new(f"{ty}(worker)")
        if step != "1i":
            block = x.new(f"{block} * {step}")
        if start != "0i":
            block = x.new(f"{start} + {block}")
        if not self.scratch:
            x.open(f"if ({block} < {stop})")
            self._iteration(grid, block)
            x.close()
            return
        workers = f"{ty}({self._word(2)})"
        self._loop(grid, ty, block, stop, f"{workers} * {step}", shared=not self.per_thread)

    def _iteration(self, s: ir.For, value: str) -> None:
        self.x.remember(self.x.values, s.var, value)
        self._block(s.body)

    def _loop(self, s: ir.For, ty: str, start: str, stop: str, step: str, shared: bool) -> None:
        """A counted loop. `shared`: threads may meet inside, so what an iteration leaves pending
        is pending when the next one starts."""
        x = self.x
        if shared:
            self.meetings.pending |= self.meetings.after(s.body)
        x.forget(_changed(s.body))
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
            x.forget(_changed(s.body))
            at = x.new(f"{i} + {k} * ({step})")
            x.open(f"if ({at} {sign} {stop})")
            self._iteration(s, at)
            x.close()
        x.close()
        x.forget(_changed(s.body))

    # -- statements -------------------------------------------------------------------------------

    def _block(self, body: list[ir.Stmt]) -> None:
        for s in body:
            if self.lane is None and not self.per_thread:
                self._shared(s)
            else:
                self._alone(s)

    def _shared(self, s: ir.Stmt) -> None:
        """A statement that a whole group has come to."""
        x = self.x
        if group.is_meeting(s):
            self._across(s)
            return
        solo = group.is_solo(s)
        outer = isinstance(s, (ir.For, ir.If)) and group.s_is_shared(s)
        who = group.FIRST if solo else group.ALL
        what = group.touched_head(s) if outer else group.touched([s])
        if self.meetings.must_meet(who, what):
            self._meet()
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
            x.forget(_changed(s.body))
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
            for e in below(expressions_of(other), set()):
                if e.op == "read" and e.attr in sets:
                    raise CompileError(
                        f"register {e.attr.name!r} is set by one thread and read by all"
                    )

    def _forget_stores(self, s: ir.Stmt) -> None:
        self.x.forget(_changed([s]))

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
            x.forget(_changed(s.body))
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
        """Every thread takes its iterations: `thread`, `thread` + group, …"""
        x = self.x
        ty = x.type(s.var)
        start, stop, step = (x.carried(e, ty) for e in (s.start, s.stop, s.step))
        self.lane, before = s, self.lane
        count = _trips(s)
        if count is not None and count <= self.threads:  # one each, at most
            x.forget(_changed(s.body))
            x.open("" if count == self.threads else f"if (thread < {count}u)")
            self._iteration(s, x.new(f"{start} + {ty}(thread) * {step}"))
            x.close()
            x.forget(_changed(s.body))
        else:
            own = x.new(f"{start} + {ty}(thread) * {step}")
            stride = f"{self.threads * s.step.attr}" if s.step.op == "const" else ""
            stride = stride or f"{self.threads} * {step}"
            if self.unroll == 1 and _is_light(s):
                own = self._together(s, ty, own, stop, stride)
            self._loop(s, ty, own, stop, stride, shared=False)
        self.lane = before

    def _together(self, s: ir.For, ty: str, start: str, stop: str, stride: str) -> str:
        """Several iterations at a time, as long as there are so many: all of them are loaded before
        any is stored, which hides the latency of memory. Gives where the others begin.
        """
        x = self.x
        changed = _changed(s.body)
        x.forget(changed)
        i = x.name("v")
        x.do(f"var {i}: {ty} = {start};")
        x.open(
            f"for (; {i} + {TOGETHER - 1} * ({stride}) < {stop}; {i} += {TOGETHER} * ({stride}))"
        )
        places = [i, *(x.new(f"{i} + {k} * ({stride})") for k in range(1, TOGETHER))]
        loaded = [self._prefetch(s, at, changed) for at in places]
        for at, known in zip(places, loaded, strict=True):
            x.forget(changed)
            with x.scope():
                for e, name in known.items():
                    x.remember(x.values, e, name)
                self._iteration(s, at)
        x.close()
        x.forget(changed)
        return i

    def _prefetch(self, s: ir.For, at: str, changed: list[Any]) -> dict[ir.Expr, str]:
        """Write the loads of an iteration ahead of it, and what their addresses take."""
        x = self.x
        with x.scope() as written:
            x.remember(x.values, s.var, at)
            seen: set[ir.Expr] = set()
            named = {inner.var for inner in s.body if isinstance(inner, ir.Let)}
            for inner in s.body:
                for e in below(expressions_of(inner), seen):
                    if e.op == "load" and _is_free(e, changed, named):
                        x.value(e)
            return {key: x.values[key] for table, key, _ in written if table is x.values}

    # -- threads together -------------------------------------------------------------------------

    def _meet(self) -> None:
        self.x.do("workgroupBarrier();")
        if any(b.access != "read" for b in self.kernel.buffers):
            self.x.do("storageBarrier();")
        self.meetings.met()

    def _across(self, s: ir.Stmt) -> None:
        """Merge what threads have in registers, by way of memory that they share."""
        x = self.x
        if isinstance(s, ir.Let):
            op, register = s.value.attr
            left, right = (ir.var(side, register.dtype) for side in ("left", "right"))
            merged = ir.make(op, register.dtype, (left, right))
            s = ir.Combine([register], [left], [right], [merged], [s.var])
        assert isinstance(s, (ir.Combine, ir.Scan))
        types = [x.type_of(r.dtype) for r in s.registers]
        arrays = [self._shared_array(ty, types[:i].count(ty)) for i, ty in enumerate(types)]
        for array, register in zip(arrays, s.registers, strict=True):
            x.do(f"{array}[thread] = {x.registers[register]};")
        self._meet()
        totals = self._combine(s, arrays) if isinstance(s, ir.Combine) else self._scan(s, arrays)
        x.do("workgroupBarrier();")
        x.forget(s.registers)
        for var, total in zip(s.results, totals, strict=True):
            x.remember(x.values, var, total)

    def _shared_array(self, ty: str, number: int) -> str:
        name = f"lanes_{ty}_{number}"
        if name not in self.reducing:
            self.reducing.add(name)
            self.globals.append(f"var<workgroup> {name}: array<{ty}, {self.threads}>;")
        return name

    def _merge(self, s: ir.Combine | ir.Scan, arrays: list[str], i: str, j: str) -> list[str]:
        """What the states of threads i and j come to, in the scope of the caller."""
        x = self.x
        for side, at in ((s.left, i), (s.right, j)):
            for var, array in zip(side, arrays, strict=True):
                x.remember(x.values, var, x.new(f"{array}[{at}]"))
        pairs = zip(s.merged, s.registers, strict=True)
        return [x.new(x.carried(e, x.type_of(r.dtype))) for e, r in pairs]

    def _combine(self, s: ir.Combine, arrays: list[str]) -> list[str]:
        """Halves of the group, down to one thread: a fixed tree."""
        x = self.x
        x.open(f"for (var half: u32 = {self.threads // 2}u; half > 0u; half >>= 1u)")
        x.open("if (thread < half)")
        for array, new in zip(
            arrays, self._merge(s, arrays, "thread", "thread + half"), strict=True
        ):
            x.do(f"{array}[thread] = {new};")
        x.close()
        x.do("workgroupBarrier();")
        x.close()
        return [x.new(f"{array}[0]") for array in arrays]

    def _scan(self, s: ir.Scan, arrays: list[str]) -> list[str]:
        """Each thread merges with the one `reach` before it, which has merged as many already."""
        x = self.x
        x.open(f"for (var reach: u32 = 1u; reach < {self.threads}u; reach <<= 1u)")
        names = [x.name() for _ in arrays]
        for name, array in zip(names, arrays, strict=True):
            x.do(f"var {name} = {array}[thread];")
        x.open("if (thread >= reach)")
        for name, new in zip(
            names, self._merge(s, arrays, "thread - reach", "thread"), strict=True
        ):
            x.do(f"{name} = {new};")
        x.close()
        x.do("workgroupBarrier();")
        for name, array in zip(names, arrays, strict=True):
            x.do(f"{array}[thread] = {name};")
        x.do("workgroupBarrier();")
        x.close()
        for array, register, start in zip(arrays, s.registers, s.initial, strict=True):
            first = x.carried(start, x.type_of(register.dtype))
            before = f"{array}[select(thread - 1u, 0u, thread == 0u)]"
            x.do(f"{x.registers[register]} = select({before}, {first}, thread == 0u);")
        return [x.new(f"{array}[{self.threads - 1}]") for array in arrays]


def _trips(s: ir.For) -> int | None:
    """How many iterations a loop has, where that is known."""
    if any(e.op != "const" for e in (s.start, s.stop, s.step)):
        return None
    return len(range(s.start.attr, s.stop.attr, s.step.attr))


def _is_light(s: ir.For) -> bool:
    """Whether a loop is worth writing out several times: straight code, and little of it."""
    if any(isinstance(x, (ir.For, ir.If)) for x in s.body):
        return False
    seen: set[ir.Expr] = set()
    return sum(1 for x in s.body for _ in below(expressions_of(x), seen)) <= LIGHT


def _is_free(e: ir.Expr, changed: list[Any], named: set[ir.Expr]) -> bool:
    """Whether an expression stands on nothing that its loop changes or names."""
    for x in below((e,), set()):
        if (
            x in named
            or x.op in ("read", "lanes_reduce", "guard")
            or (x.op == "load" and x.attr in changed)
        ):
            return False
    return True


_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d"}
_NOBODY: Any = object()  # stands for a lanes loop where one thread works alone


def _bytes(carrier: str) -> int:
    return 8 if carrier.endswith("64") else 4


def _changed(body: Sequence[ir.Stmt]) -> list[Any]:
    """Registers and buffers that statements give new values."""
    out: dict[Any, None] = {}
    for s in statements(body):
        if isinstance(s, ir.Set):
            out[s.register] = None
        elif isinstance(s, ir.Store):
            out[s.buffer] = None
    return list(out)
