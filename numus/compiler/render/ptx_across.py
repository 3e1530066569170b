"""What threads of a group come to together: reductions, merges and scans in a fixed order.

Threads of a warp exchange registers by shuffles; what each warp came to goes through shared memory,
one place per warp, which all threads then read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from numus.compiler import ir
from numus.compiler.render.llvm_text import Value, register_type
from numus.dtypes import DType

if TYPE_CHECKING:
    from numus.compiler.render.ptx import Renderer

WARP = 32

State = list[str]
Merge = Callable[[State, State], State]


def lanes_reduce(r: Renderer, op: str, register: ir.Register) -> str:
    def merge(a: State, b: State) -> State:
        return [r.x.combined(op, register, a[0], b[0])]

    return _combine(r, [register], merge)[0]


def from_lane_xor(r: Renderer, dtype: DType, value: str, mask: int) -> str:
    """What the lane of the same warp at this lane's number xor `mask` has."""
    return _shuffle(r, "bfly", dtype, value, mask)


def combine(r: Renderer, s: ir.Combine) -> None:
    _name(r, s.results, _combine(r, s.registers, lambda a, b: _merge(r, s, a, b)))


def _name(r: Renderer, results: Sequence[ir.Expr], names: State) -> None:
    for e, name in zip(results, names, strict=True):
        r.x.remember(r.x.values, e, Value((name,), False, r.x.depth))


def _merge(r: Renderer, s: ir.Combine | ir.Scan, a: State, b: State) -> State:
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
    states = [list(state) for state in zip(*slots, strict=True)]
    while len(states) > 1:
        pairs = [merge(*states[i : i + 2]) for i in range(0, len(states) - 1, 2)]
        states = pairs + ([states[-1]] if len(states) % 2 else [])
    state = states[0]
    distance = WARP // 2
    while distance:
        other = [_shuffle(r, "bfly", t, v, distance) for t, v in zip(dtypes, state, strict=True)]
        # the lower lane's state is always on the left, so that all lanes come to the same
        upper = _bit(r, r.lane, distance)
        low = _select(r, upper, dtypes, other, state)
        high = _select(r, upper, dtypes, state, other)
        state = merge(low, high)
        distance //= 2
    if r.group == WARP:
        return state
    parts = _through_warps(r, dtypes, state, last=False)
    while len(parts) > 1:
        pairs = [merge(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def scan(r: Renderer, s: ir.Scan) -> None:
    x, t = r.x, r.t
    dtypes = [register.dtype for register in s.registers]
    state = [x.own(register)[0] for register in s.registers]
    initial = [x.value(e).names[0] for e in s.initial]

    def merge(a: State, b: State) -> State:
        return _merge(r, s, a, b)

    distance = 1
    while distance < WARP:  # inclusive, within the warp
        other = [_shuffle(r, "up", d, v, distance) for d, v in zip(dtypes, state, strict=True)]
        reaches = t.new(f"icmp uge i32 {r.lane}, {distance}")
        state = _select(r, reaches, dtypes, merge(other, state), state)
        distance *= 2
    before = [_shuffle(r, "up", d, v, 1) for d, v in zip(dtypes, state, strict=True)]
    first = t.new(f"icmp eq i32 {r.lane}, 0")
    if r.group == WARP:
        last = [_shuffle(r, "idx", d, v, WARP - 1) for d, v in zip(dtypes, state, strict=True)]
        result, total = _select(r, first, dtypes, initial, before), last
    else:
        parts = _through_warps(r, dtypes, state, last=True)
        total, ahead = parts[0], initial
        for w in range(1, len(parts)):
            mine = t.new(f"icmp eq i32 {r.warp}, {w}")
            ahead = _select(r, mine, dtypes, total, ahead)
            total = merge(total, parts[w])
        lowest = t.new(f"icmp eq i32 {r.warp}, 0")
        joined = _select(r, lowest, dtypes, before, merge(ahead, before))
        result = _select(r, first, dtypes, ahead, joined)
    for register, name in zip(s.registers, result, strict=True):
        t.do(f"store {register_type(register.dtype)} {name}, ptr {x.storage(register)[0]}")
    x.forget(s.registers)
    _name(r, s.results, total)


# -- between threads ------------------------------------------------------------------------------


def _bit(r: Renderer, name: str, bit: int) -> str:
    masked = r.t.new(f"and i32 {name}, {bit}")
    return r.t.new(f"icmp ne i32 {masked}, 0")


def _select(r: Renderer, c: str, dtypes: Sequence[DType], yes: State, no: State) -> State:
    types = [register_type(d) for d in dtypes]
    return [
        r.t.new(f"select i1 {c}, {ty} {y}, {ty} {n}")
        for ty, y, n in zip(types, yes, no, strict=True)
    ]


def _shuffle(r: Renderer, how: str, dtype: DType, value: str, lane: int) -> str:
    """The value that another lane of the warp has."""
    t, ty = r.t, register_type(dtype)
    clamp = "0" if how == "up" else "31"
    name = f"llvm.nvvm.shfl.sync.{how}.i32"

    def move(word: str) -> str:
        return t.call("i32", name, ("i32", "-1"), ("i32", word), ("i32", str(lane)), ("i32", clamp))

    if dtype.bits == 64 and dtype.kind != "bool":
        bits = t.new(f"bitcast {ty} {value} to i64") if ty == "double" else value
        low = t.new(f"trunc i64 {bits} to i32")
        high = t.new(f"lshr i64 {bits}, 32")
        high = t.new(f"trunc i64 {high} to i32")
        low, high = (t.new(f"zext i32 {move(w)} to i64") for w in (low, high))
        whole = t.new(f"or i64 {low}, {t.new(f'shl i64 {high}, 32')}")
        return t.new(f"bitcast i64 {whole} to double") if ty == "double" else whole
    if ty == "float":
        return t.new(f"bitcast i32 {move(t.new(f'bitcast float {value} to i32'))} to float")
    if ty == "i32":
        return move(value)
    return t.new(f"trunc i32 {move(t.new(f'zext {ty} {value} to i32'))} to {ty}")


def _through_warps(
    r: Renderer, dtypes: Sequence[DType], state: State, *, last: bool
) -> list[State]:
    """What every warp has, as all threads read it; the first (or last) lane of a warp speaks."""
    t = r.t
    warps = r.group // WARP
    places = [r.shared(f"[{warps} x {_stored(d)}]") for d in dtypes]
    if r.in_loop:  # somebody may still be reading what was exchanged last time
        r.barrier()
    speaks = t.new(f"icmp eq i32 {r.lane}, {WARP - 1 if last else 0}")
    yes, done = t.label("speak"), t.label("done")
    t.branch(speaks, yes, done)
    t.start(yes)
    for place, d, name in zip(places, dtypes, state, strict=True):
        ty = _stored(d)
        if d.kind == "bool":
            name = t.new(f"zext i1 {name} to i8")
        p = t.new(f"getelementptr {ty}, ptr addrspace(3) {place}, i32 {r.warp}")
        t.do(f"store {ty} {name}, ptr addrspace(3) {p}")
    t.jump(done)
    t.start(done)
    r.barrier()
    out: list[State] = []
    for w in range(warps):
        found = []
        for place, d in zip(places, dtypes, strict=True):
            p = t.new(f"getelementptr {_stored(d)}, ptr addrspace(3) {place}, i32 {w}")
            name = t.new(f"load {_stored(d)}, ptr addrspace(3) {p}")
            found.append(t.new(f"icmp ne i8 {name}, 0") if d.kind == "bool" else name)
        out.append(found)
    return out


def _stored(dtype: DType) -> str:
    return "i8" if dtype.kind == "bool" else register_type(dtype)
