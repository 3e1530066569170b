"""Kernel IR to LLVM IR, for CPUs.

Every kernel becomes one function

    void kernel(i64 begin, i64 end, i64 worker, ptr buffers, ptr scalars)

that runs the blocks [begin, end) of its grid. `buffers` is an array of addresses, `scalars` one of
8-byte slots: integers as they are, floats as doubles. `worker` is the number of the thread, in its
lower 16 bits, and how many blocks each thread will run, above them. A scratch buffer is given as
one memory for all workers; each takes the part at its number times what follows the addresses: how
many bytes apart these parts are.

Buffers are told to LLVM as not overlapping, so that it may move loads across stores. The memory
of an output may still be that of an input if every element is read only by the lane iteration
that writes it, before it writes: no reordering that LLVM may then do touches such an element,
because what is stored depends on what was loaded.

Lanes loops are written with vector types: full vectors first (`unroll` of them per iteration),
then the remainder, masked. Results larger than a core's cache are stored past it, so that memory is
not read before it is overwritten. Only generic operations are used; what they become is LLVM's
part, so the same text serves AVX-512, AVX2 and Neon, but for the vector width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import ir
from numus.codegen.cpu import memory
from numus.codegen.cpu.target import LlvmTarget
from numus.codegen.llvm import casts
from numus.codegen.llvm.builder import SCALAR, IRBuilder, Shape, Value, register_type
from numus.codegen.llvm.control_flow import Control
from numus.codegen.llvm.divergence import LaneStrides, changed, computed_from, plan
from numus.codegen.llvm.expressions import Block, Expressions, Lane
from numus.dtypes import float64, int64
from numus.errors import CompileError

# Bodies with fewer operations than this may get a second loop that stores past the caches.
_SMALL = 150
# Bodies with more operations than this get one masked loop for what is left over, instead of a
# loop of full vectors and a masked end: a third copy would cost compile time.
_LARGE = 300


def render(kernel: ir.Kernel, target: LlvmTarget, symbol: str = "kernel") -> str:
    """The kernel as an LLVM module with one function, `symbol`."""
    return _Renderer(kernel, target).module(symbol)


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of a lanes loop."""

    origin: tuple[str, str]  # the loop's start and step
    bounds: tuple[str, str, str]  # first iteration, end, end of the whole loop
    width: int
    unroll: int
    outer: frozenset[ir.Register]  # registers that lived before the loop


class _Renderer(Control):
    def __init__(self, kernel: ir.Kernel, target: LlvmTarget) -> None:
        self.kernel = kernel
        self.target = target
        self.t = IRBuilder()
        self.plan = plan(kernel, target.lanes_bytes)
        count = len(kernel.buffers)
        # metadata: 0 marks streams, 1 is the domain; then per buffer its scope, the list of that,
        # the list of the others
        self.tags = {
            b: f", !alias.scope !{2 + count + i}, !noalias !{2 + 2 * count + i}"
            if count > 1
            else ""
            for i, b in enumerate(kernel.buffers)
        }
        self.x = Expressions(target, self.plan, self.t, {}, {}, self.tags)

    def module(self, symbol: str) -> str:
        self._arguments()
        self._top(self.kernel.body)
        t = self.t
        target = self.target
        bits = target.lanes_bytes * 8
        # cpu and features are those of the machine that compiles: no need to repeat them here
        attributes = [
            "nounwind",
            f'"prefer-vector-width"="{bits}"',
            f'"min-legal-vector-width"="{bits}"',
            '"no-builtins"',  # a loop stays a loop: nothing outside is called
        ]
        return "\n".join(
            [
                f'target triple = "{target.triple}"',
                "",
                f"define void @{symbol}"
                "(i64 %begin, i64 %end, i64 %worker, ptr %buffers, ptr %scalars) #0 {",
                "entry:",
                *t.allocas,
                *t.text_lines(),
                "  ret void",
                "}",
                "",
                *t.functions.values(),
                *t.declares.values(),
                "",
                f"attributes #0 = {{ {' '.join(attributes)} }}",
                *self._metadata(),
                "",
            ]
        )

    def _metadata(self) -> list[str]:
        count = len(self.kernel.buffers)
        stream = f"!{memory.STREAM} = !{{i32 1}}"
        if count < 2:
            return [stream]
        scopes = [f"!{2 + i}" for i in range(count)]
        return [
            stream,
            "!1 = distinct !{!1}",
            *(f"{s} = distinct !{{{s}, !1}}" for s in scopes),
            *(f"!{2 + count + i} = !{{{s}}}" for i, s in enumerate(scopes)),
            *(
                f"!{2 + 2 * count + i} = !{{{', '.join(scopes[:i] + scopes[i + 1 :])}}}"
                for i in range(count)
            ),
        ]

    def _arguments(self) -> None:
        t, x = self.t, self.x
        for i, (slot, dtype) in enumerate(self.kernel.scalars):
            p = t.new(f"getelementptr i64, ptr %scalars, i64 {i}")
            given = float64 if dtype.kind == "float" else int64
            name = t.new(f"load {register_type(given)}, ptr {p}, align 8")
            x.scalars[slot] = casts.cast(t, self.target, SCALAR, name, given, dtype)
        for i, buffer in enumerate(self.kernel.buffers):
            p = t.new(f"getelementptr ptr, ptr %buffers, i64 {i}")
            x.buffers[buffer] = t.new(f"load ptr, ptr {p}, align 8")
            if buffer.access == "scratch":
                self._scratch(buffer)

    def _scratch(self, buffer: ir.Buffer) -> None:
        t, x = self.t, self.x
        if buffer.size is None:
            raise CompileError(f"scratch buffer {buffer.name!r} has no size")
        p = t.new(f"getelementptr i64, ptr %buffers, i64 {len(self.kernel.buffers)}")
        pitch = t.new(f"load i64, ptr {p}, align 8")
        number = t.new("and i64 %worker, 65535")
        offset = t.new(f"mul i64 {pitch}, {number}")
        x.buffers[buffer] = t.new(f"getelementptr i8, ptr {x.buffers[buffer]}, i64 {offset}")

    # -- statements -------------------------------------------------------------------------------

    def _top(self, body: list[ir.Stmt]) -> None:
        grids = [s for s in body if isinstance(s, ir.For) and s.kind == "grid"]
        if len(grids) > 1:
            raise CompileError("a kernel has one grid loop, not several")
        if grids and not all(s is grids[0] or isinstance(s, ir.Let) for s in body):
            raise CompileError("beside its grid loop a kernel may only name values (Let)")
        self._block(body)

    def _block(self, body: list[ir.Stmt]) -> None:
        x = self.x
        x.blocks.append(Block(body))
        i = 0
        while i < len(body):
            s = body[i]
            i += 1
            if isinstance(s, ir.Let):
                self._let(s)
            elif isinstance(s, ir.Set):
                self._set(s)
            elif isinstance(s, ir.Store):
                other = body[i] if i < len(body) else None
                if isinstance(other, ir.Store) and memory.are_pair(x, s, other):
                    memory.store_pair(x, s, other)
                    i += 1
                else:
                    memory.store(x, s)
                x.forget((s.buffer,))
            elif isinstance(s, ir.Prefetch):
                memory.prefetch(x, s)
            elif isinstance(s, ir.If):
                self._if(s)
            elif isinstance(s, ir.For):
                self._for(s)
            else:
                raise CompileError(f"no statement of the kernel IR: {s!r}")
        x.blocks.pop()

    def _set(self, s: ir.Set) -> None:
        x, t = self.x, self.t
        register, lane = s.register, x.lane
        v = x.value(s.value)
        slots = x.storage(register)
        shape = x.register_shape(register)
        ty = shape.type(register.dtype)
        if not register.lanes:
            if v.vec:
                raise CompileError(f"register {register.name!r} is uniform, its new value is not")
            names: Sequence[str] = v.names
        elif lane is None:
            name = x.splat(register_type(register.dtype), v, shape)
            names = [name] * len(slots)
        else:
            names = x.vectors(v, register.dtype)
            if lane.shape.width != shape.width:
                names = [x.into_first_lane(register, names[0])]
            elif lane.mask is not None and register in lane.outer:
                old = t.new(f"load {ty}, ptr {slots[0]}")
                there = f"{shape.of('i1')} {lane.mask.names[0]}"
                names = [t.new(f"select {there}, {ty} {names[0]}, {ty} {old}")]
        for slot, name in zip(slots, names, strict=False):
            t.do(f"store {ty} {name}, ptr {slot}")
        x.forget((register,))

    def _for(self, s: ir.For) -> None:
        x = self.x
        start, stop, step = (x.uniform(e, "a loop bound") for e in (s.start, s.stop, s.step))
        if s.kind == "unroll":
            self._unrolled(s)
            return
        x.forget(changed(s.body))
        if s.kind == "lanes":
            self._lanes(s, start, stop, step)
        elif s.kind == "grid" and x.depth == 0:
            self._grid(s, start, step)
        elif s.kind in ("serial", "grid"):
            self.loop(
                start, stop, step, lambda i: self._iteration(s, i), register_type(s.var.dtype)
            )
        else:
            raise CompileError(f"no kind of loop: {s.kind!r}")

    def _grid(self, s: ir.For, start: str, step: str) -> None:
        t = self.t

        def block(i: str) -> None:
            i = self._opaque(i)
            if step != "1":
                i = t.new(f"mul i64 {i}, {step}")
            if start != "0":
                i = t.new(f"add i64 {i}, {start}")
            self._iteration(s, i)

        self.loop("%begin", "%end", "1", block)

    def _opaque(self, name: str) -> str:
        """A copy that LLVM cannot see through. It would otherwise carry an address per access from
        iteration to iteration, which costs it time, takes registers from the loops inside, and
        gains nothing where an instruction adds base, index and offset itself."""
        return self.t.new(f'call i64 asm "", "=r,0"(i64 {name})')

    # -- lanes ------------------------------------------------------------------------------------

    def _lanes(self, s: ir.For, start: str, stop: str, step: str) -> None:
        """Full vectors, `unroll` at a time; full vectors one at a time; the rest, masked where the
        target has masks for it and element by element (vectors of one) where not."""
        x = self.x
        if x.lane is not None:
            raise CompileError("a lanes loop inside a lanes loop")
        width = self.plan.widths[s]
        unroll = max(1, s.unroll)
        outer = frozenset(x.registers)
        count = self.trips(start, stop, step)
        done = "0"  # iterations written so far
        masks = self.target.masks_from <= self.plan.narrowest[s]
        alone = self.target.masks_from == 1 or self.plan.sizes[s] > _LARGE
        counts: tuple[int, ...] = (unroll, 1)
        if unroll == 1 or (masks and alone):
            counts = (unroll,)
        even = not count.startswith("%") and int(count) % (width * unroll) == 0
        if self.kernel.small and masks and not even:
            counts = ()  # one masked loop is the shortest
        for u in counts:
            end = self._round_down(count, width * u)
            part = _Part((start, step), (done, end, count), width, u, outer)
            streamed = self._streamable(s) if u == unroll else None
            if streamed:
                self._stream_or_not(s, part, streamed)
            else:
                self._vectors(s, part)
            done = end
        part = _Part((start, step), (done, count, count), width if masks else 1, 1, outer)
        self._vectors(s, part, masked=masks, once=masks and counts[-1:] == (1,))

    def _round_down(self, count: str, multiple: int) -> str:
        if not count.startswith("%"):
            return str(int(count) // multiple * multiple)
        if multiple & (multiple - 1) == 0:
            return self.t.new(f"and i64 {count}, {-multiple}")
        left = self.t.new(f"urem i64 {count}, {multiple}")
        return self.t.new(f"sub i64 {count}, {left}")

    def _vectors(
        self,
        s: ir.For,
        part: _Part,
        masked: bool = False,
        once: bool = False,
        streamed: frozenset[ir.Store] = frozenset(),
    ) -> None:
        """A part of a lanes loop, `unroll` vectors at a time; `once`: one iteration at most."""
        x, t = self.x, self.t
        (start, step), (begin, end, count) = part.origin, part.bounds
        width, unroll = part.width, part.unroll

        def body(k: str) -> None:
            if k.startswith("%i") and self.target.arch == "x86":
                k = self._opaque(k)
            name = k if step == "1" else t.new(f"mul i64 {k}, {step}")
            if start != "0":
                name = t.new(f"add i64 {name}, {start}")
            mask = self._mask(count, k, width) if masked else None
            self._enter(s, part, name, mask, streamed)
            self._block(s.body)
            x.lane = None

        known = not begin.startswith("%") and not end.startswith("%")
        if known and 0 < int(end) - int(begin) <= width * unroll:
            x.push()
            body(begin)
            x.pop()
        elif once and not known:
            some, done = t.label("rest"), t.label("done")
            t.branch(t.new(f"icmp slt i64 {begin}, {end}"), some, done)
            t.start(some)
            x.push("branch")
            body(begin)
            x.pop()
            t.jump(done)
            t.start(done)
        else:
            self.loop(begin, end, str(width * unroll), body)

    def _mask(self, count: str, k: str, width: int) -> Value:
        """Which lanes of the vector at iteration k exist."""
        t = self.t
        bits = max(8, self.target.lanes_bytes * 8 // width)
        left = t.new(f"sub i64 {count}, {k}")
        left = t.call("i64", "llvm.umin.i64", ("i64", left), ("i64", str(width)))
        if bits < 64:
            left = t.new(f"trunc i64 {left} to i{bits}")
        shape = Shape(width)
        ty = shape.of(f"i{bits}")
        every = self.x.splat(f"i{bits}", Value((left,), False, self.x.depth), shape)
        iota = f"<{', '.join(f'i{bits} {i}' for i in range(width))}>"
        return Value((t.new(f"icmp ugt {ty} {every}, {iota}"),), True, self.x.depth)

    # -- stores past the caches -------------------------------------------------------------------

    def _streamable(self, s: ir.For) -> frozenset[ir.Store]:
        """Stores of a small lanes loop that could go past the caches: whole vectors in a row, to
        buffers that this kernel does not read."""
        if not self.target.streams or self.plan.sizes[s] > _SMALL:
            return frozenset()
        if any(isinstance(x, (ir.For, ir.If)) for x in s.body):
            return frozenset()
        growths = LaneStrides(s.var, s.step)
        return frozenset(
            x
            for x in s.body
            if isinstance(x, ir.Store)
            and x.mask is None
            and growths.of(x.index) == 1
            and x.buffer.access == "write"
            and x.buffer not in self.plan.loaded
            and computed_from(x.index, self.x.values, s.var)
        )

    def _stream_condition(self, stores: frozenset[ir.Store], part: _Part, s: ir.For) -> str:
        """Whether the results of each thread exceed its cache, start at whole vectors, and do not
        overwrite what is read (which is in the cache already)."""
        x, t = self.x, self.t
        item = sum(store.buffer.dtype.itemsize for store in stores)
        blocks = t.new("lshr i64 %worker, 16")
        written = t.new(f"mul i64 {blocks}, {part.bounds[2]}")
        written = t.new(f"mul i64 {written}, {item}")
        condition = t.new(f"icmp ugt i64 {written}, {self.target.cache_l2}")
        x.push()
        self._enter(s, part, part.origin[0])
        for store in sorted(stores, key=s.body.index):
            size = store.buffer.dtype.itemsize
            first = x.base(store.index).names[0]
            address = t.new(
                f"getelementptr [{size} x i8], ptr {x.buffers[store.buffer]}, i64 {first}"
            )
            address = t.new(f"ptrtoint ptr {address} to i64")
            odd = t.new(f"and i64 {address}, {part.width * size - 1}")
            tests = [f"icmp eq i64 {odd}, 0"]
            tests += [
                f"icmp ne ptr {x.buffers[store.buffer]}, {x.buffers[other]}"
                for other in self.kernel.buffers
                if other.access == "read"
            ]
            for test in tests:
                condition = t.new(f"and i1 {condition}, {t.new(test)}")
        x.lane = None
        x.pop()
        return condition

    def _enter(
        self,
        s: ir.For,
        part: _Part,
        first: str,
        mask: Value | None = None,
        streamed: frozenset[ir.Store] = frozenset(),
    ) -> None:
        """Begin to write lanes of a loop, in the current scope."""
        x = self.x
        x.lane = Lane(
            s.var,
            LaneStrides(s.var, s.step),
            Shape(part.width),
            part.unroll,
            Value((first,), False, x.depth),
            Value((part.origin[1],), False, x.depth),
            mask,
            part.outer,
            streamed,
        )

    def _stream_or_not(self, s: ir.For, part: _Part, streamed: frozenset[ir.Store]) -> None:
        t, x = self.t, self.x
        condition = self._stream_condition(streamed, part, s)
        past, plain, done = t.label("stream"), t.label("plain"), t.label("done")
        t.branch(condition, past, plain)
        for label, chosen in ((past, streamed), (plain, frozenset[ir.Store]())):
            t.start(label)
            x.push("branch")
            self._vectors(s, part, streamed=chosen)
            x.pop()
            t.jump(done)
        t.start(done)
