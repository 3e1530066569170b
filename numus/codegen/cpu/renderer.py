"""Kernel IR to LLVM IR, for CPUs.

Every kernel becomes one function

    void kernel(i64 begin, i64 end, i64 worker, ptr buffers, ptr scalars)

that runs the blocks [begin, end) of its grid. `buffers` is an array of addresses, `scalars` one of
8-byte slots: integers as they are, floats as doubles. `worker` is the thread's index in its lower
16 bits, and the number of blocks of each thread above them. A scratch buffer is one allocation for
all workers, whose pitch in bytes follows the addresses.

Buffers are noalias, so that LLVM may move loads across stores. An output may still share the memory
of an input if every element is read only by the lane that writes it, before the write: the data
dependence orders them.

Lanes loops use vector types: full vectors (`unroll` per iteration), then a masked remainder.
Results larger than the caches use non-temporal stores, which avoid the read for ownership. Only
generic operations are used, so that one text serves AVX-512, AVX2 and Neon, but for the width.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from numus import ir
from numus.codegen.cpu import memory, transposed
from numus.codegen.cpu.expressions import VectorExpressions
from numus.codegen.cpu.target import LlvmTarget
from numus.codegen.llvm import casts
from numus.codegen.llvm.builder import SCALAR, IRBuilder, Shape, Value, register_type
from numus.codegen.llvm.context import Lane
from numus.codegen.llvm.control_flow import Control
from numus.codegen.llvm.divergence import LaneStrides, is_computable, plan_lanes
from numus.dtypes import float64, int64
from numus.errors import CompileError


@dataclass(frozen=True, slots=True)
class LoopTuning:
    """Copies of a lanes loop by the operations of its body, against compile time. Measured on
    2-core Neoverse N1 and x86-64 machines."""

    nontemporal_max_ops: int = 150  # a second loop with non-temporal stores
    single_vector_loop_max_ops: int = 300  # a loop of single vectors before the masked remainder
    aligned_stack_min_ops: int = 500  # vectors that are spilled are aligned


TUNING = LoopTuning()


def render(kernel: ir.Kernel, target: LlvmTarget, symbol: str = "kernel") -> str:
    """The kernel as an LLVM module with one function, `symbol`."""
    return _Renderer(kernel, target).module(symbol)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment of the iterations of a lanes loop."""

    loop: ir.For
    origin: tuple[str, str]  # the loop's start and step
    bounds: tuple[str, str, str]  # first iteration, end, end of the loop
    width: int
    unroll: int
    live_in: frozenset[ir.Register]
    nontemporal: frozenset[ir.Store] = frozenset()


class _Renderer(Control):
    x: VectorExpressions

    def __init__(self, kernel: ir.Kernel, target: LlvmTarget) -> None:
        self.kernel = kernel
        self.target = target
        self.t = IRBuilder(target)
        self.plan = plan_lanes(kernel, target.vector_bytes)
        count = len(kernel.buffers)
        # metadata: 0 marks non-temporal stores, 1 is the alias domain; then per buffer its scope,
        # the list of that, the list of the others
        self.tags = {
            b: f", !alias.scope !{2 + count + i}, !noalias !{2 + 2 * count + i}"
            if count > 1
            else ""
            for i, b in enumerate(kernel.buffers)
        }
        self.x = VectorExpressions(self.plan, self.t, {}, {}, self.tags)

    def module(self, symbol: str) -> str:
        self._arguments()
        if self.kernel.copies:
            source, result = (self.x.buffers[b] for b in self.kernel.buffers)
            with self.t.conditional(self.t.new(f"icmp ne ptr {source}, {result}"), "copy"):
                self.write_kernel(self.kernel.body, needs_grid=False)
        else:
            self.write_kernel(self.kernel.body, needs_grid=False)
        bits = self.target.vector_bytes * 8
        # cpu and features are those of the target machine; no calls to memset or memcpy
        widths = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
        # else LLVM, which notices too late that vectors are spilled, lets them cross cache lines
        spills = max(self.plan.op_counts.values(), default=0) > TUNING.aligned_stack_min_ops
        aligned = '"stackrealign" ' if spills and self.target.vector_bytes > 16 else ""
        arguments = "i64 %begin, i64 %end, i64 %worker, ptr %buffers, ptr %scalars"
        lines = [
            *(f'target triple = "{self.target.triple}"', ""),
            *self.t.define_function(f"define void @{symbol}({arguments}) #0"),
            f'attributes #0 = {{ nounwind {widths} {aligned}"no-builtins" }}',
            *self._metadata(),
        ]
        return "\n".join([*lines, ""])

    def _metadata(self) -> list[str]:
        count = len(self.kernel.buffers)
        nontemporal = f"!{transposed.NONTEMPORAL} = !{{i32 1}}"
        if count < 2:
            return [nontemporal]
        scopes = [f"!{2 + i}" for i in range(count)]
        others = [scopes[:i] + scopes[i + 1 :] for i in range(count)]
        return [
            nontemporal,
            "!1 = distinct !{!1}",
            *(f"{s} = distinct !{{{s}, !1}}" for s in scopes),
            *(f"!{2 + count + i} = !{{{s}}}" for i, s in enumerate(scopes)),
            *(f"!{2 + 2 * count + i} = !{{{', '.join(o)}}}" for i, o in enumerate(others)),
        ]

    def _arguments(self) -> None:
        t, x = self.t, self.x
        for i, (slot, dtype) in enumerate(self.kernel.scalars):
            p = t.new(f"getelementptr i64, ptr %scalars, i64 {i}")
            given = float64 if dtype.kind == "float" else int64
            name = t.new(f"load {register_type(given)}, ptr {p}, align 8")
            x.scalars[slot] = casts.cast(t, SCALAR, name, given, dtype)
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

    def merge(self, body: list[ir.Stmt], first: int) -> int:
        s, other = body[first], body[first + 1] if first + 1 < len(body) else None
        if count := transposed.store_count(self.x, body, first):
            stores = [s for s in body[first : first + count] if isinstance(s, ir.Store)]
            transposed.store(self.x, stores)
            return count
        if not (isinstance(s, ir.Store) and isinstance(other, ir.Store)):
            return 0
        if not memory.are_pair(self.x, s, other):
            return 0
        memory.store_pair(self.x, s, other)
        return 2

    def _grid(self, s: ir.For, start: str, stop: str, step: str) -> None:
        if self.x.depth > 0:
            self._serial(s, start, stop, step)
            return

        def block(i: str) -> None:
            self.iteration(s, self.t.affine(self._opaque(i), step, start))

        self.loop("%begin", "%end", "1", block)

    def _opaque(self, name: str) -> str:
        """A copy that LLVM cannot see through. It would otherwise keep an induction variable per
        access, which costs compile time and registers, and gains nothing over addressing modes."""
        return self.t.new(f'call i64 asm "", "=r,0"(i64 {name})')

    # -- lanes ------------------------------------------------------------------------------------

    def _lanes(self, s: ir.For, start: str, stop: str, step: str) -> None:
        """Full vectors, `unroll` at a time; single vectors; a remainder, masked where the target
        has masked stores and by vectors of one element where not."""
        x = self.x
        width = self.plan.widths[s]
        unroll = max(1, s.unroll)
        live_in = frozenset(x.registers)
        count = self.trip_count(start, stop, step)
        done = "0"  # iterations emitted so far
        masks = self.target.masked_store_min_bytes <= self.plan.min_itemsize[s]
        single_loop = (
            self.target.masked_store_min_bytes == 1
            or self.plan.op_counts[s] > TUNING.single_vector_loop_max_ops
        )
        counts: tuple[int, ...] = (unroll, 1)
        if unroll == 1 or (masks and single_loop):
            counts = (unroll,)
        even = not count.startswith("%") and int(count) % (width * unroll) == 0
        if self.kernel.small and masks and not even:
            counts = ()  # one masked loop is the shortest
        for u in counts:
            end = self._round_down(count, width * u)
            segment = _Segment(s, (start, step), (done, end, count), width, u, live_in)
            stores = self._nontemporal_stores(s) if u == unroll else None
            if stores:
                self._nontemporal_or_not(segment, stores)
            else:
                self._vectors(segment)
            done = end
        bounds, width = (done, count, count), width if masks else 1
        segment = _Segment(s, (start, step), bounds, width, 1, live_in)
        self._vectors(segment, masked=masks, once=masks and counts[-1:] == (1,))

    def _round_down(self, count: str, multiple: int) -> str:
        if not count.startswith("%"):
            return str(int(count) // multiple * multiple)
        if multiple & (multiple - 1) == 0:
            return self.t.new(f"and i64 {count}, {-multiple}")
        left = self.t.new(f"urem i64 {count}, {multiple}")
        return self.t.new(f"sub i64 {count}, {left}")

    def _vectors(self, segment: _Segment, masked: bool = False, once: bool = False) -> None:
        """A segment of a lanes loop; `once`: one iteration at most."""
        x, t = self.x, self.t
        (start, step), (begin, end, count) = segment.origin, segment.bounds
        width, unroll = segment.width, segment.unroll

        def body(k: str) -> None:
            if k.startswith("%i") and self.target.arch == "x86":
                k = self._opaque(k)
            name = t.affine(k, step, start)
            mask = self._mask(count, k, width) if masked else None
            self._enter(segment, name, mask)
            self.write_body(segment.loop.body)

        known = not begin.startswith("%") and not end.startswith("%")
        if known and 0 < int(end) - int(begin) <= width * unroll:
            with x.scope():
                body(begin)
        elif once and not known:
            in_range = t.new(f"icmp slt i64 {begin}, {end}")
            with t.conditional(in_range, "rest"), x.scope("branch"):
                body(begin)
        else:
            self.loop(begin, end, str(width * unroll), body)

    def _mask(self, count: str, k: str, width: int) -> Value:
        """Active lanes of the vector at iteration k."""
        t = self.t
        bits = max(8, self.target.vector_bytes * 8 // width)
        left = t.new(f"sub i64 {count}, {k}")
        left = t.call("i64", "llvm.umin.i64", ("i64", left), ("i64", str(width)))
        if bits < 64:
            left = t.new(f"trunc i64 {left} to i{bits}")
        shape = Shape(width)
        ty = shape.of(f"i{bits}")
        every = self.x.splat(f"i{bits}", Value((left,), False, self.x.depth), shape)
        iota = f"<{', '.join(f'i{bits} {i}' for i in range(width))}>"
        return Value((t.new(f"icmp ugt {ty} {every}, {iota}"),), True, self.x.depth)

    # -- non-temporal stores ----------------------------------------------------------------------

    def _nontemporal_stores(self, s: ir.For) -> frozenset[ir.Store]:
        """Candidates of a small lanes loop: unit-stride stores to buffers that are neither read
        nor prefetched."""
        if (
            not self.target.nontemporal_stores
            or self.plan.op_counts[s] > TUNING.nontemporal_max_ops
            or any(isinstance(x, (ir.For, ir.If)) for x in s.body)
        ):
            return frozenset()
        strides = LaneStrides(s.var, s.step)
        fetched = {x.buffer for x in s.body if isinstance(x, ir.Prefetch) and x.write}
        return frozenset(
            x
            for x in s.body
            if isinstance(x, ir.Store)
            and x.buffer not in fetched
            and x.mask is None
            and strides.of(x.index) == 1
            and x.buffer.access == "write"
            and x.buffer not in self.plan.loaded
            and is_computable(x.index, self.x.values, s.var)
        )

    def _nontemporal_condition(self, stores: frozenset[ir.Store], segment: _Segment) -> str:
        """Whether each thread's results exceed its caches, are vector-aligned, and do not
        overwrite an input (which is cached already)."""
        x, t = self.x, self.t
        item = sum(store.buffer.dtype.itemsize for store in stores)
        blocks = t.new("lshr i64 %worker, 16")
        written = t.new(f"mul i64 {blocks}, {segment.bounds[2]}")
        written = t.new(f"mul i64 {written}, {item}")
        condition = t.new(f"icmp ugt i64 {written}, {self.target.nontemporal_min_bytes}")
        inputs = [x.buffers[b] for b in self.kernel.buffers if b.access == "read"]
        with x.scope():
            self._enter(segment, segment.origin[0])
            for store in sorted(stores, key=segment.loop.body.index):
                size, buffer = store.buffer.dtype.itemsize, x.buffers[store.buffer]
                first = x.base(store.index).names[0]
                address = t.new(f"getelementptr [{size} x i8], ptr {buffer}, i64 {first}")
                address = t.new(f"ptrtoint ptr {address} to i64")
                odd = t.new(f"and i64 {address}, {segment.width * size - 1}")
                distinct = [f"icmp ne ptr {buffer}, {other}" for other in inputs]
                for test in (f"icmp eq i64 {odd}, 0", *distinct):
                    condition = t.new(f"and i1 {condition}, {t.new(test)}")
        return condition

    def _enter(self, segment: _Segment, first: str, mask: Value | None = None) -> None:
        """Begin to emit lanes of a loop, in the current scope."""
        x, s = self.x, segment.loop
        at, step = (Value((name,), False, x.depth) for name in (first, segment.origin[1]))
        strides, shape = LaneStrides(s.var, s.step), Shape(segment.width)
        lane = (s.var, strides, shape, segment.unroll, at, step)
        aligned = segment.origin == ("0", "1")
        x.lane = Lane(*lane, mask, segment.live_in, segment.nontemporal, aligned)

    def _nontemporal_or_not(self, segment: _Segment, stores: frozenset[ir.Store]) -> None:
        def emit(nontemporal: frozenset[ir.Store]) -> None:
            with self.x.scope("branch"):
                self._vectors(dataclasses.replace(segment, nontemporal=nontemporal))

        condition = self._nontemporal_condition(stores, segment)
        arms = ("stream", lambda: emit(stores)), ("plain", lambda: emit(frozenset()))
        self.t.either(condition, *arms)


_Renderer.handlers = {
    ir.Store: lambda r, s: memory.store(r.x, s),
    ir.Prefetch: lambda r, s: memory.prefetch(r.x, s),
}
