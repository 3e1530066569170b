"""Block reductions and scans in a fixed order: warp shuffles, then shared memory between warps."""

from __future__ import annotations

from collections.abc import Sequence

from numus import ir
from numus.codegen.llvm import arithmetic
from numus.codegen.llvm.builder import SCALAR, memory_type, register_type
from numus.codegen.nvptx import cluster, warp
from numus.codegen.nvptx.context import KernelContext
from numus.codegen.nvptx.warp import WARP, Merge, State, select, shuffle_state
from numus.dtypes import DType


def lanes_reduce(r: KernelContext, op: str, register: ir.Register) -> str:
    def merge(a: State, b: State) -> State:
        return [arithmetic.combine(r.t, SCALAR, op, register.dtype, a[0], b[0])]

    return _reduce(r, [register], merge)[0]


def reduce(r: KernelContext, s: ir.BlockReduce) -> None:
    _bind(r, s.results, _reduce(r, s.registers, lambda a, b: _merge(r, s, a, b)))


def _bind(r: KernelContext, results: Sequence[ir.Expr], names: State) -> None:
    for e, name in zip(results, names, strict=True):
        r.x.bind_result(e, name)


def _merge(r: KernelContext, s: ir.BlockReduce | ir.BlockScan, a: State, b: State) -> State:
    with r.x.scope():
        _bind(r, (*s.left, *s.right), [*a, *b])
        return [r.x.value(e).names[0] for e in s.merged]


def _reduce(r: KernelContext, registers: Sequence[ir.Register], merge: Merge) -> State:
    dtypes = [register.dtype for register in registers]
    cluster.arrive_again(r)
    slots = [r.x.load_slots(register) for register in registers]
    state = warp.tree_reduce([list(state) for state in zip(*slots, strict=True)], merge)
    state = warp.warp_reduce(r.t, r.lane, dtypes, state, merge)
    if r.warps > 1:
        state = warp.tree_reduce(_exchange_warps(r, dtypes, state, last=False), merge)
    return cluster.reduce(r, dtypes, state, merge)


def scan(r: KernelContext, s: ir.BlockScan) -> None:
    x, t = r.x, r.t
    dtypes = [register.dtype for register in s.registers]
    state = [x.load_slots(register)[0] for register in s.registers]
    initial = [x.value(e).names[0] for e in s.initial]

    def merge(a: State, b: State) -> State:
        return _merge(r, s, a, b)

    distance = 1
    while distance < WARP:  # inclusive, within the warp
        other = shuffle_state(t, "up", dtypes, state, distance)
        in_range = t.new(f"icmp uge i32 {r.lane}, {distance}")
        state = select(t, in_range, dtypes, merge(other, state), state)
        distance *= 2
    before = shuffle_state(t, "up", dtypes, state, 1)
    first = t.new(f"icmp eq i32 {r.lane}, 0")
    if r.block_threads == WARP:
        total = shuffle_state(t, "idx", dtypes, state, WARP - 1)
        result = select(t, first, dtypes, initial, before)
    else:
        warps = _exchange_warps(r, dtypes, state, last=True)
        total, prefix = warps[0], initial
        for w in range(1, len(warps)):
            own = t.new(f"icmp eq i32 {r.warp}, {w}")
            prefix = select(t, own, dtypes, total, prefix)
            total = merge(total, warps[w])
        lowest = t.new(f"icmp eq i32 {r.warp}, 0")
        joined = select(t, lowest, dtypes, before, merge(prefix, before))
        result = select(t, first, dtypes, prefix, joined)
    for register, name in zip(s.registers, result, strict=True):
        t.do(f"store {register_type(register.dtype)} {name}, ptr {x.storage(register)[0]}")
    x.invalidate(s.registers)
    _bind(r, s.results, total)


def _exchange_warps(
    r: KernelContext, dtypes: Sequence[DType], state: State, *, last: bool
) -> list[State]:
    """The states of all warps, in all threads; the first (or last) lane of a warp stores its."""
    t = r.t
    arrays = [r.shared(f"[{r.warps} x {memory_type(d)}]") for d in dtypes]
    if r.loop_depth > 0:  # others may still read the exchange of the previous iteration
        r.barrier()
    leader = t.new(f"icmp eq i32 {r.lane}, {WARP - 1 if last else 0}")
    with t.conditional(leader, "leader"):
        warp.store_state(t, arrays, dtypes, state, r.warp)
    r.barrier()
    return warp.load_states(t, arrays, dtypes, r.warps)
