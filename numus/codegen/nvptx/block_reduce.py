"""What threads of a group come to together: reductions, merges and scans in a fixed order.

Threads of a warp exchange registers by shuffles; what each warp came to goes through shared memory,
one place per warp, which all threads then read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numus import ir
from numus.codegen.llvm.builder import Value, memory_type, register_type
from numus.codegen.nvptx import cluster, warp
from numus.codegen.nvptx.warp import WARP, Merge, State, select, shuffle
from numus.dtypes import DType

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer


def lanes_reduce(r: Renderer, op: str, register: ir.Register) -> str:
    def merge(a: State, b: State) -> State:
        return [r.x.combined(op, register, a[0], b[0])]

    return _combine(r, [register], merge)[0]


def from_lane_xor(r: Renderer, dtype: DType, value: str, mask: int) -> str:
    """What the lane of the same warp at this lane's number xor `mask` has."""
    return shuffle(r, "bfly", dtype, value, mask)


def combine(r: Renderer, s: ir.BlockReduce) -> None:
    _name(r, s.results, _combine(r, s.registers, lambda a, b: _merge(r, s, a, b)))


def _name(r: Renderer, results: Sequence[ir.Expr], names: State) -> None:
    for e, name in zip(results, names, strict=True):
        r.x.remember(r.x.values, e, Value((name,), False, r.x.depth))


def _merge(r: Renderer, s: ir.BlockReduce | ir.BlockScan, a: State, b: State) -> State:
    """Two states merged by the expressions that the statement gives."""
    x = r.x
    x.push()
    for e, name in zip((*s.left, *s.right), (*a, *b), strict=True):
        x.remember(x.values, e, Value((name,), False, x.depth))
    out = [x.value(e).names[0] for e in s.merged]
    x.pop()
    return out


def _combine(r: Renderer, registers: Sequence[ir.Register], merge: Merge) -> State:
    dtypes = [x.dtype for x in registers]
    slots = [r.x.own(x) for x in registers]
    state = warp.in_pairs([list(state) for state in zip(*slots, strict=True)], merge)
    state = warp.within_warp(r, dtypes, state, merge)
    if r.warps > 1:
        state = warp.in_pairs(_through_warps(r, dtypes, state, last=False), merge)
    return cluster.combined(r, dtypes, state, merge)


def scan(r: Renderer, s: ir.BlockScan) -> None:
    x, t = r.x, r.t
    dtypes = [register.dtype for register in s.registers]
    state = [x.own(register)[0] for register in s.registers]
    initial = [x.value(e).names[0] for e in s.initial]

    def merge(a: State, b: State) -> State:
        return _merge(r, s, a, b)

    distance = 1
    while distance < WARP:  # inclusive, within the warp
        other = [shuffle(r, "up", d, v, distance) for d, v in zip(dtypes, state, strict=True)]
        reaches = t.new(f"icmp uge i32 {r.lane}, {distance}")
        state = select(r, reaches, dtypes, merge(other, state), state)
        distance *= 2
    before = [shuffle(r, "up", d, v, 1) for d, v in zip(dtypes, state, strict=True)]
    first = t.new(f"icmp eq i32 {r.lane}, 0")
    if r.group == WARP:
        last = [shuffle(r, "idx", d, v, WARP - 1) for d, v in zip(dtypes, state, strict=True)]
        result, total = select(r, first, dtypes, initial, before), last
    else:
        parts = _through_warps(r, dtypes, state, last=True)
        total, ahead = parts[0], initial
        for w in range(1, len(parts)):
            mine = t.new(f"icmp eq i32 {r.warp}, {w}")
            ahead = select(r, mine, dtypes, total, ahead)
            total = merge(total, parts[w])
        lowest = t.new(f"icmp eq i32 {r.warp}, 0")
        joined = select(r, lowest, dtypes, before, merge(ahead, before))
        result = select(r, first, dtypes, ahead, joined)
    for register, name in zip(s.registers, result, strict=True):
        t.do(f"store {register_type(register.dtype)} {name}, ptr {x.storage(register)[0]}")
    x.forget(s.registers)
    _name(r, s.results, total)


def _through_warps(
    r: Renderer, dtypes: Sequence[DType], state: State, *, last: bool
) -> list[State]:
    """What every warp has, as all threads read it; the first (or last) lane of a warp speaks."""
    t = r.t
    places = [r.shared(f"[{r.warps} x {memory_type(d)}]") for d in dtypes]
    if r.in_loop:  # somebody may still be reading what was exchanged last time
        r.barrier()
    speaks = t.new(f"icmp eq i32 {r.lane}, {WARP - 1 if last else 0}")
    yes, done = t.label("speak"), t.label("done")
    t.branch(speaks, yes, done)
    t.start(yes)
    warp.put(r, places, dtypes, state, r.warp)
    t.jump(done)
    t.start(done)
    r.barrier()
    return warp.read(r, places, dtypes, r.warps)
