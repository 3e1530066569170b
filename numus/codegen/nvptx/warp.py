"""Warp shuffles, tree reductions, and states in shared memory. A state is one value per dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numus.codegen.llvm.builder import (
    SCALAR,
    IRBuilder,
    from_memory,
    memory_type,
    register_type,
    to_memory,
)
from numus.dtypes import DType

WARP = 32

State = list[str]
Merge = Callable[[State, State], State]


def tree_reduce(states: list[State], merge: Merge) -> State:
    """Adjacent pairs are merged until one is left."""
    while len(states) > 1:
        pairs = [merge(*states[i : i + 2]) for i in range(0, len(states) - 1, 2)]
        states = pairs + ([states[-1]] if len(states) % 2 else [])
    return states[0]


def warp_reduce(
    t: IRBuilder,
    lane: str,
    dtypes: Sequence[DType],
    state: State,
    merge: Merge,
    lanes: int = WARP,
) -> State:
    """Butterfly reduction over `lanes` consecutive lanes; all of them get the result."""
    distance = lanes // 2
    while distance:
        other = [shuffle(t, "bfly", d, v, distance) for d, v in zip(dtypes, state, strict=True)]
        # the lower lane's state is always on the left, so that all lanes get the same bits
        upper = t.new(f"icmp ne i32 {t.new(f'and i32 {lane}, {distance}')}, 0")
        low = select(t, upper, dtypes, other, state)
        high = select(t, upper, dtypes, state, other)
        state = merge(low, high)
        distance //= 2
    return state


def select(t: IRBuilder, c: str, dtypes: Sequence[DType], yes: State, no: State) -> State:
    types = [register_type(d) for d in dtypes]
    return [
        t.new(f"select i1 {c}, {ty} {y}, {ty} {n}") for ty, y, n in zip(types, yes, no, strict=True)
    ]


def shuffle(t: IRBuilder, mode: str, dtype: DType, value: str, lane: int) -> str:
    """shfl.sync of any dtype."""
    ty = register_type(dtype)
    clamp = "0" if mode == "up" else "31"
    name = f"llvm.nvvm.shfl.sync.{mode}.i32"

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


# -- states in shared memory ----------------------------------------------------------------------


def store_state(
    t: IRBuilder, arrays: Sequence[str], dtypes: Sequence[DType], state: State, index: str
) -> None:
    for array, d, name in zip(arrays, dtypes, state, strict=True):
        ty = memory_type(d)
        p = t.new(f"getelementptr {ty}, ptr addrspace(3) {array}, i32 {index}")
        t.do(f"store {ty} {to_memory(t, SCALAR, d, name)}, ptr addrspace(3) {p}")


def load_states(
    t: IRBuilder, arrays: Sequence[str], dtypes: Sequence[DType], count: int
) -> list[State]:
    """The first `count` states, read by all threads."""
    states: list[State] = []
    for k in range(count):
        state = []
        for array, d in zip(arrays, dtypes, strict=True):
            p = t.new(f"getelementptr {memory_type(d)}, ptr addrspace(3) {array}, i32 {k}")
            name = t.new(f"load {memory_type(d)}, ptr addrspace(3) {p}")
            state.append(from_memory(t, SCALAR, d, name))
        states.append(state)
    return states
