"""Lanes loops over the threads of a block, vectorised.

Three stages: several aligned vectors of up to 16 bytes per thread, for more loads in flight; single
vectors; and single elements: all of them where memory is unaligned or the body has control flow.
"""

from __future__ import annotations

from numus import ir
from numus.codegen.llvm.builder import SCALAR, Value
from numus.codegen.llvm.divergence import LanePlan, LaneStrides, is_computable
from numus.codegen.nvptx import analysis, memory, occupancy
from numus.codegen.nvptx.context import ACCESS_BYTES, KernelContext, ThreadLane
from numus.ir import statements

Pair = tuple[str, str]
Offsets = tuple[int, ...]


def loop_shapes(kernel: ir.Kernel, plan: LanePlan) -> dict[ir.For, tuple[int, int]]:
    """(vectors, width) of a thread in each lanes loop; sets the plan's vectors per register.

    Loops that share a lanes register must assign iterations to threads alike: one at a time.
    """
    loops_of: dict[ir.Register, set[ir.For]] = {}
    for loop in plan.widths:
        for s in statements(loop.body):
            for register in analysis.registers_of(s):
                if register.lanes:
                    loops_of.setdefault(register, set()).add(loop)
    accumulators = analysis.wgmma_accumulators(kernel)
    several = [x for r, x in loops_of.items() if len(x) > 1 or r in accumulators]
    shared = set().union(*several)

    def shape(loop: ir.For) -> tuple[int, int]:
        if loop.resident:
            return loop.unroll, loop.width
        is_given = loop in shared or loop.width == 1 or kernel.resident_blocks > 0
        if is_given:  # threads share the work as it is written
            return 1, 1
        return occupancy.vectorization(loop, plan.op_counts[loop])

    found = {loop: shape(loop) for loop in plan.widths}
    for register, loops in loops_of.items():
        accumulates = len(loops) == 1 and next(iter(loops)).resident
        counts = [found[s] for s in loops]
        plan.vectors[register] = max(v if accumulates else u * v for u, v in counts)
    return found


def write(r: KernelContext, s: ir.For, start: str, step: str, count: str) -> None:
    """A lanes loop of `count` iterations, in stages."""
    t, threads = r.t, r.block_threads
    vectors, width = r.shapes[s]
    done = "0"
    if width > 1:
        is_aligned = aligned(r, s, start, step, width)
        if is_aligned is None:
            vectors = width = 1
    if width > 1:
        end = t.new(f"and i64 {count}, {-width}")
        end = t.new(f"select i1 {is_aligned}, i64 {end}, i64 0")
        if vectors > 1:
            unrolled_end = t.new(f"and i64 {end}, {-(width * vectors * threads)}")
            offsets = tuple(v * threads * width + u for v in range(vectors) for u in range(width))
            _stage(r, s, (start, step), ("0", unrolled_end), offsets, width)
            done = unrolled_end
        _stage(r, s, (start, step), (done, end), tuple(range(width)), width)
        done = end
    _stage(r, s, (start, step), (done, count), (0,), 1)


def _stage(
    r: KernelContext, s: ir.For, origin: Pair, bounds: Pair, offsets: Offsets, width: int
) -> None:
    """Iterations bounds[0] … bounds[1] of a lanes loop with the start and step `origin`, `offsets`
    of them per thread."""
    t, x, (start, step), (begin, end) = r.t, r.x, origin, bounds

    def single(kind: str) -> None:
        with x.scope(kind):
            enter(r, s, r.thread, step, offsets, width, 0)
            r.write_body(s.body)

    if bounds == ("0", str(r.block_threads)) and (start, step, offsets) == ("0", "1", (0,)):
        single("plain")  # one iteration per thread
        return
    fits = not end.startswith("%") and int(end) <= r.block_threads
    if begin == start == "0" and step == "1" and offsets == (0,) and fits:
        with t.conditional(t.new(f"icmp ult i64 {r.thread}, {end}"), "active"):
            single("branch")
        return
    own = r.thread if width == 1 else t.new(f"mul i64 {r.thread}, {width}")
    first = own if begin == "0" else t.new(f"add i64 {begin}, {own}")

    def body(k: str) -> None:
        enter(r, s, t.affine(k, step, start), step, offsets, width)
        r.write_body(s.body)

    r.loop(first, end, str(r.block_threads * len(offsets)), body)


def enter(
    r: KernelContext, s: ir.For, at: str, step: str, offsets: Offsets, width: int, level: int = -1
) -> None:
    """Begin to emit a stage of a lanes loop, in the current scope."""
    level = r.x.depth if level < 0 else level
    first, by = Value((at,), False, level), Value((step,), False, level)
    lane = ThreadLane(s.var, lane_strides(s), SCALAR, len(offsets), first, by)
    lane.offsets, lane.vector = offsets, width
    r.x.lane = lane


def lane_strides(s: ir.For) -> LaneStrides:
    return LaneStrides(s.var, s.step, s.width if s.resident and s.unroll == 1 else 0)


def aligned(r: KernelContext, s: ir.For, start: str, step: str, width: int) -> str | None:
    """The condition that all vectors are aligned; None: unknown before the loop."""
    x, t = r.x, r.t
    with x.scope():
        for inner in statements(s.body):  # inner loops of resident ones stride by whole vectors
            if s.resident and isinstance(inner, ir.For):
                x.bind(x.values, inner.var, Value(("0",), False, x.depth))
        enter(r, s, start, step, (0,), 1)
        strides, condition = lane_strides(s), "true"
        for buffer, index, _ in analysis.accesses(s):
            if strides.of(index) != 1:
                continue
            if not is_computable(index, x.values, s.var):
                return None
            (pointer,) = memory.pointers(x, buffer, index)
            address = t.new(f"ptrtoint {x.spaces[buffer]} {pointer} to i64")
            low_bits = min(ACCESS_BYTES, width * buffer.dtype.itemsize) - 1
            test = t.new(f"icmp eq i64 {t.new(f'and i64 {address}, {low_bits}')}, 0")
            condition = test if condition == "true" else t.new(f"and i1 {condition}, {test}")
        return condition
