"""What the threads of a warp exchange by shuffles, and states in shared memory that all read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from numus.codegen.llvm.builder import memory_type, register_type
from numus.dtypes import DType

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

WARP = 32

State = list[str]
Merge = Callable[[State, State], State]


def in_pairs(states: list[State], merge: Merge) -> State:
    """Neighbours are merged until one is left."""
    while len(states) > 1:
        pairs = [merge(*states[i : i + 2]) for i in range(0, len(states) - 1, 2)]
        states = pairs + ([states[-1]] if len(states) % 2 else [])
    return states[0]


def within_warp(
    r: Renderer, dtypes: Sequence[DType], state: State, merge: Merge, lanes: int = WARP
) -> State:
    """What so many neighbouring lanes come to, as each of them has it."""
    distance = lanes // 2
    while distance:
        other = [shuffle(r, "bfly", t, v, distance) for t, v in zip(dtypes, state, strict=True)]
        # the lower lane's state is always on the left, so that all lanes come to the same
        upper = _bit(r, r.lane, distance)
        low = select(r, upper, dtypes, other, state)
        high = select(r, upper, dtypes, state, other)
        state = merge(low, high)
        distance //= 2
    return state


def _bit(r: Renderer, name: str, bit: int) -> str:
    masked = r.t.new(f"and i32 {name}, {bit}")
    return r.t.new(f"icmp ne i32 {masked}, 0")


def select(r: Renderer, c: str, dtypes: Sequence[DType], yes: State, no: State) -> State:
    types = [register_type(d) for d in dtypes]
    return [
        r.t.new(f"select i1 {c}, {ty} {y}, {ty} {n}")
        for ty, y, n in zip(types, yes, no, strict=True)
    ]


def shuffle(r: Renderer, how: str, dtype: DType, value: str, lane: int) -> str:
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


# -- places in shared memory ----------------------------------------------------------------------


def put(r: Renderer, places: Sequence[str], dtypes: Sequence[DType], state: State, at: str) -> None:
    """Store a state at one of its places."""
    t = r.t
    for place, d, name in zip(places, dtypes, state, strict=True):
        ty = memory_type(d)
        p = t.new(f"getelementptr {ty}, ptr addrspace(3) {place}, i32 {at}")
        t.do(f"store {ty} {in_memory(r, d, name)}, ptr addrspace(3) {p}")


def in_memory(r: Renderer, dtype: DType, name: str) -> str:
    return r.t.new(f"zext i1 {name} to i8") if dtype.kind == "bool" else name


def read(r: Renderer, places: Sequence[str], dtypes: Sequence[DType], count: int) -> list[State]:
    """The states at all places, as all threads read them."""
    t = r.t
    out: list[State] = []
    for k in range(count):
        found = []
        for place, d in zip(places, dtypes, strict=True):
            p = t.new(f"getelementptr {memory_type(d)}, ptr addrspace(3) {place}, i32 {k}")
            name = t.new(f"load {memory_type(d)}, ptr addrspace(3) {p}")
            found.append(t.new(f"icmp ne i8 {name}, 0") if d.kind == "bool" else name)
        out.append(found)
    return out
