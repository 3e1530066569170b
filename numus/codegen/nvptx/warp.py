"""Warp shuffles, tree reductions, and states in shared memory. A state is one value per dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from numus.codegen.llvm.builder import SCALAR, IRBuilder, memory_type, register_type
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
    t: IRBuilder, lane: str, dtypes: Sequence[DType], state: State, merge: Merge, lanes: int = WARP
) -> State:
    """Butterfly reduction over `lanes` consecutive lanes; all of them get the result."""
    distance = lanes // 2
    while distance:
        other = shuffle_state(t, "bfly", dtypes, state, distance)
        # the lower lane's state is always on the left, so that all lanes get the same bits
        upper = t.new(f"icmp ne i32 {t.new(f'and i32 {lane}, {distance}')}, 0")
        low = select(t, upper, dtypes, other, state)
        high = select(t, upper, dtypes, state, other)
        state = merge(low, high)
        distance //= 2
    return state


def select(t: IRBuilder, c: str, dtypes: Sequence[DType], yes: State, no: State) -> State:
    ops = (t.ops(SCALAR, register_type(d)) for d in dtypes)
    return [o.select(c, y, n) for o, y, n in zip(ops, yes, no, strict=True)]


def shuffle_state(
    t: IRBuilder, mode: str, dtypes: Sequence[DType], state: State, lane: int
) -> State:
    return [shuffle(t, mode, d, v, lane) for d, v in zip(dtypes, state, strict=True)]


def shuffle(t: IRBuilder, mode: str, dtype: DType, value: str, lane: int | str) -> str:
    """shfl.sync of any dtype; `lane` is a number, or the name of an i32."""
    name = f"llvm.nvvm.shfl.sync.{mode}.i32"
    rest = (("i32", str(lane)), ("i32", "0" if mode == "up" else "31"))
    words = to_words(t, dtype, value)
    moved = (t.call("i32", name, ("i32", "-1"), ("i32", word), *rest) for word in words)
    return from_words(t, dtype, moved)


def redux_max(t: IRBuilder, dtype: DType, value: str) -> str:
    """The maximum of signed integers over a warp by redux.sync: of wide ones by halves."""
    *low, high = to_words(t, dtype, value)
    most = _redux(t, "max", high)
    if not low:
        return most
    is_most = t.new(f"icmp eq i32 {high}, {most}")
    rest = t.new(f"select i1 {is_most}, i32 {low[0]}, i32 0")
    return from_words(t, dtype, [_redux(t, "umax", rest), most])


def _redux(t: IRBuilder, op: str, word: str) -> str:
    return t.call("i32", f"llvm.nvvm.redux.sync.{op}", ("i32", word), ("i32", "-1"))


def butterfly_max(t: IRBuilder, dtype: DType, value: str) -> str:
    """As `redux_max`, by shuffles."""
    ty, distance = register_type(dtype), WARP // 2
    while distance:
        other = shuffle(t, "bfly", dtype, value, distance)
        value = t.call(ty, f"llvm.smax.{ty}", (ty, value), (ty, other))
        distance //= 2
    return value


def to_words(t: IRBuilder, dtype: DType, name: str) -> list[str]:
    """The bits of a value as i32 words, the lower one first."""
    ty = register_type(dtype)
    if dtype.itemsize == 8:
        bits = t.new(f"bitcast {ty} {name} to i64") if ty == "double" else name
        low = t.new(f"trunc i64 {bits} to i32")
        return [low, t.new(f"trunc i64 {t.new(f'lshr i64 {bits}, 32')} to i32")]
    if ty == "float":
        return [t.new(f"bitcast float {name} to i32")]
    return [name if ty == "i32" else t.new(f"zext {ty} {name} to i32")]


def from_words(t: IRBuilder, dtype: DType, words: Iterable[str]) -> str:
    ty = register_type(dtype)
    if dtype.itemsize == 8:
        low, high = (t.new(f"zext i32 {word} to i64") for word in words)
        whole = t.new(f"or i64 {low}, {t.new(f'shl i64 {high}, 32')}")
        return t.new(f"bitcast i64 {whole} to double") if ty == "double" else whole
    (word,) = words
    if ty == "i32":
        return word
    return t.new(f"{'bitcast' if ty == 'float' else 'trunc'} i32 {word} to {ty}")


# -- states in shared memory ----------------------------------------------------------------------


def store_state(
    t: IRBuilder, arrays: Sequence[str], dtypes: Sequence[DType], state: State, index: str
) -> None:
    for array, d, name in zip(arrays, dtypes, state, strict=True):
        ty = memory_type(d)
        p = t.new(f"getelementptr {ty}, ptr addrspace(3) {array}, i32 {index}")
        t.do(f"store {ty} {t.to_memory(SCALAR, d, name)}, ptr addrspace(3) {p}")


def load_states(
    t: IRBuilder, arrays: Sequence[str], dtypes: Sequence[DType], count: int
) -> list[State]:
    """The first `count` states, read by all threads."""

    def element(array: str, d: DType, index: int) -> str:
        p = t.new(f"getelementptr {memory_type(d)}, ptr addrspace(3) {array}, i32 {index}")
        return t.from_memory(SCALAR, d, t.new(f"load {memory_type(d)}, ptr addrspace(3) {p}"))

    return [[element(*x, k) for x in zip(arrays, dtypes, strict=True)] for k in range(count)]
