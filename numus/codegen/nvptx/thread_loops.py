"""Lanes loops dealt to the threads of a group.

There are three stages: several aligned vectors of up to 16 bytes for each thread at a time, so that
many loads are under way; single vectors; and what is left, one element for each thread at a time:
everything, where memory is not aligned or the body is not straight code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus import ir
from numus.codegen.llvm.builder import SCALAR, Value
from numus.codegen.llvm.divergence import LaneStrides, Plan, computed_from
from numus.codegen.nvptx import analysis, memory, occupancy
from numus.codegen.nvptx.expressions import ThreadLane
from numus.ir import statements

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer


def shapes(kernel: ir.Kernel, plan: Plan) -> dict[ir.For, tuple[int, int]]:
    """How many vectors of how many iterations a thread has of each lanes loop at a time. The plan
    learns how many iterations each register with lanes holds: its loop's at most.

    A register that several lanes loops know carries something from one to the next: which
    thread has which iteration must then be the same in all of them, one at a time.
    """
    homes: dict[ir.Register, set[ir.For]] = {}
    for loop in plan.widths:
        for s in statements(loop.body):
            for register in analysis.registers_of(s):
                if register.lanes:
                    homes.setdefault(register, set()).add(loop)
    tiles = analysis.tile_sums(kernel)
    shared = {
        loop
        for register, loops in homes.items()
        if len(loops) > 1 or register in tiles
        for loop in loops
    }

    def shape(loop: ir.For) -> tuple[int, int]:
        if loop.resident:
            return loop.unroll, loop.width
        if loop in shared:
            return 1, 1
        return occupancy.shape(loop, plan.sizes[loop])

    found = {loop: shape(loop) for loop in plan.widths}
    for register, loops in homes.items():
        running = len(loops) == 1 and next(iter(loops)).resident
        each = [found[s] for s in loops]
        plan.vectors[register] = max(v if running else u * v for u, v in each)
    return found


def write(r: Renderer, s: ir.For, start: str, step: str, count: str) -> None:
    """A lanes loop of `count` iterations, dealt to the threads in stages."""
    t = r.t
    many, width = r.shapes[s]
    done = "0"
    if width > 1:
        whole_vectors = aligned(r, s, start, step, width)
        if whole_vectors is None:
            many = width = 1
    if width > 1:
        vectors = t.new(f"and i64 {count}, {-width}")
        vectors = t.new(f"select i1 {whole_vectors}, i64 {vectors}, i64 0")
        if many > 1:
            whole = t.new(f"and i64 {vectors}, {-(width * many * r.group)}")
            offsets = tuple(v * r.group * width + u for v in range(many) for u in range(width))
            _stage(r, s, start, step, ("0", whole), offsets, width)
            done = whole
        _stage(r, s, start, step, (done, vectors), tuple(range(width)), width)
        done = vectors
    _stage(r, s, start, step, (done, count), (0,), 1)


def _stage(
    r: Renderer,
    s: ir.For,
    start: str,
    step: str,
    bounds: tuple[str, str],
    offsets: tuple[int, ...],
    width: int,
) -> None:
    """Iterations bounds[0] … bounds[1] of a lanes loop, `offsets` of them for each thread."""
    t, x = r.t, r.x
    begin, end = bounds
    if bounds == ("0", str(r.group)) and (start, step, offsets) == ("0", "1", (0,)):
        # one iteration for each thread: nothing to loop over, and its number is known early
        x.push()
        enter(r, s, r.thread, step, offsets, width, 0)
        r._block(s.body)
        x.lane = None
        x.pop()
        return
    if begin == start == "0" and step == "1" and offsets == (0,) and _few(end, r.group):
        mine_too, done = t.label("mine"), t.label("done")
        t.branch(t.new(f"icmp ult i64 {r.thread}, {end}"), mine_too, done)
        t.start(mine_too)
        x.push("branch")
        enter(r, s, r.thread, step, offsets, width, 0)
        r._block(s.body)
        x.lane = None
        x.pop()
        t.jump(done)
        t.start(done)
        return
    mine = r.thread if width == 1 else t.new(f"mul i64 {r.thread}, {width}")
    first = mine if begin == "0" else t.new(f"add i64 {begin}, {mine}")

    def body(k: str) -> None:
        name = k if step == "1" else t.new(f"mul i64 {k}, {step}")
        if start != "0":
            name = t.new(f"add i64 {name}, {start}")
        enter(r, s, name, step, offsets, width)
        r._block(s.body)
        x.lane = None

    r.loop(first, end, str(r.group * len(offsets)), body)


def enter(
    r: Renderer,
    s: ir.For,
    first: str,
    step: str,
    offsets: tuple[int, ...],
    width: int,
    level: int | None = None,
) -> None:
    """Begin to write a stage of a lanes loop, in the current scope."""
    x = r.x
    level = x.depth if level is None else level
    x.lane = ThreadLane(
        s.var,
        growths(s),
        SCALAR,
        len(offsets),
        Value((first,), False, level),
        Value((step,), False, level),
        None,
        frozenset(),
        frozenset(),
        offsets,
        width,
    )


def growths(s: ir.For) -> LaneStrides:
    """How expressions grow along a lanes loop."""
    return LaneStrides(s.var, s.step, s.width if s.resident and s.unroll == 1 else 0)


def aligned(r: Renderer, s: ir.For, start: str, step: str, width: int) -> str | None:
    """Whether every run of neighbours begins at a whole vector; None: that cannot be told."""
    x, t = r.x, r.t
    x.push()
    for inner in statements(s.body):  # what they count lies whole vectors apart, if it is held
        if s.resident and isinstance(inner, ir.For):
            x.remember(x.values, inner.var, Value(("0",), False, x.depth))
    enter(r, s, start, step, (0,), 1)
    found = growths(s)
    condition = "true"
    for buffer, index, _ in analysis.accesses(s):
        if found.of(index) != 1:
            continue
        if not computed_from(index, x.values, s.var):
            x.lane = None
            x.pop()
            return None
        size = buffer.dtype.itemsize
        (pointer,) = memory.pointers(x, buffer, index)
        address = t.new(f"ptrtoint {x.spaces[buffer]} {pointer} to i64")
        odd = t.new(f"and i64 {address}, {min(occupancy.ACCESS, width * size) - 1}")
        test = t.new(f"icmp eq i64 {odd}, 0")
        condition = test if condition == "true" else t.new(f"and i1 {condition}, {test}")
    x.lane = None
    x.pop()
    return condition


def _few(count: str, group: int) -> bool:
    """Whether a loop is known to have no more iterations than there are threads."""
    return not count.startswith("%") and int(count) <= group
