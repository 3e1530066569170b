"""Loads and stores of a thread: scalars, or aligned vectors of up to 16 bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from numus import ir
from numus.codegen.llvm.builder import SCALAR, Value, literal, memory_type, register_type
from numus.codegen.llvm.divergence import are_consecutive, is_multiple
from numus.codegen.nvptx.context import ACCESS_BYTES, SHARED, ThreadContext, per_iteration
from numus.dtypes import DType
from numus.errors import CompileError

SHARED_VECTOR = 4  # elements loaded from shared memory at a time


def level(r: ThreadContext, e: ir.Expr) -> int:
    """The innermost scope that a load depends on; masked loads and loads of written buffers are not
    moved."""
    if e.attr.access != "read" or len(e.args) > 1:
        return r.depth
    stride = r.lane_stride(e.args[0])
    index = r.base(e.args[0]) if stride is not None else r.values[e.args[0]]
    return index.level


def _pointer(r: ThreadContext, buffer: ir.Buffer, index: str) -> str:
    ty, space = memory_type(buffer.dtype), r.spaces[buffer]
    return r.t.new(f"getelementptr {ty}, {space} {r.buffers[buffer]}, i64 {index}")


def pointers(r: ThreadContext, buffer: ir.Buffer, index: ir.Expr) -> list[str]:
    """Pointers of the thread's iterations."""
    stride = r.lane_stride(index)
    lane = r.lane
    if lane is None or stride == 0:
        return [_pointer(r, buffer, r.base(index).names[0])]
    if stride is None:
        return [_pointer(r, buffer, name) for name in r.vectors(r.value(index), ir.INDEX)]
    ty, space = memory_type(buffer.dtype), r.spaces[buffer]
    first = _pointer(r, buffer, r.base(index).names[0])
    return [
        r.t.new(f"getelementptr {ty}, {space} {first}, i64 {stride * offset}") if offset else first
        for offset in r.thread_lane.offsets
    ]


def _predicated(
    r: ThreadContext, condition: str, dtype: DType, read: Callable[[], str], vector: str = ""
) -> str:
    """`read` under a condition, zero elsewhere."""
    zero, ty = literal(0, dtype), register_type(dtype)
    if vector:
        zero, ty = "zeroinitializer", vector
    if condition in ("true", "false"):
        return read() if condition == "true" else zero
    return r.t.value_if(condition, "load", read, ty, zero)


def load(r: ThreadContext, e: ir.Expr) -> Value:
    buffer: ir.Buffer = e.attr
    t, dtype = r.t, buffer.dtype
    ty, space, tags = memory_type(dtype), r.spaces[buffer], r.tags[buffer]
    mask = r.values[e.args[1]] if len(e.args) > 1 else None
    stride = r.lane_stride(e.args[0])
    vec = stride != 0 or (mask is not None and mask.vec)
    addresses = pointers(r, buffer, e.args[0])
    if vec and len(addresses) == 1:
        assert r.lane is not None
        addresses = addresses * r.lane.unroll

    def read(pointer: str) -> str:
        if buffer in r.streamed:
            return _streamed(r, dtype, f"{space} {pointer}")
        name = t.new(f"load {ty}, {space} {pointer}, align {dtype.itemsize}{tags}")
        return r.t.from_memory(SCALAR, dtype, name)

    active = r.thread_lane.active if vec else ()
    conditions: Sequence[str] = active or ("true",) * len(addresses)
    if mask is not None:
        conditions = per_iteration(mask.names, len(addresses))
        if active:
            pairs = zip(conditions, active, strict=True)
            conditions = [t.new(f"and i1 {c}, {a}") for c, a in pairs]
    width = r.thread_lane.vector if vec and mask is None else 1
    names: list[str] = []
    if width == 1 or stride != 1:
        for p, c in zip(addresses, conditions, strict=True):
            names.append(_predicated(r, c, dtype, functools.partial(read, p)))
        return Value(tuple(names), vec)
    vector, align = _vector(dtype, width), min(ACCESS_BYTES, width * dtype.itemsize)
    for p, c in zip(addresses[::width], conditions[::width], strict=True):
        load = f"load {vector}, {space} {p}, align {align}{tags}"
        whole = _predicated(r, c, dtype, functools.partial(t.new, load), vector)
        names += _elements(r, dtype, whole, width)
    return Value(tuple(names), True)


def _streamed(r: ThreadContext, dtype: DType, pointer: str) -> str:
    """A load that leaves no line in L1, and one in L2 that is evicted first."""
    # a side effect keeps it after the wait for earlier kernels
    policy = 'asm "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", "=l"()'
    hint = r.t.new(f"call i64 {policy}")
    ty, bits = register_type(dtype), 8 * dtype.itemsize
    to = {"float": "f", "double": "d", "i64": "l"}.get(ty, "r")
    load = f"ld.global.L1::no_allocate.L2::cache_hint.b{bits} $0, [$1], $2;"
    return r.t.new(f'call {ty} asm sideeffect "{load}", "={to},l,l"({pointer}, i64 {hint})')


def _vector(dtype: DType, width: int) -> str:
    """The vector type of a load. 16-bit elements are loaded as words: one instruction converts a
    bfloat16 in an upper half."""
    return f"<{width // 2} x i32>" if dtype.itemsize == 2 else f"<{width} x {memory_type(dtype)}>"


def _elements(r: ThreadContext, dtype: DType, whole: str, width: int) -> list[str]:
    t, vector, names = r.t, _vector(dtype, width), []
    for u in range(width):
        if dtype.itemsize == 2:
            if u % 2 == 0:  # once: LLVM sees that both halves are of one word
                word = t.new(f"extractelement {vector} {whole}, i64 {u // 2}")
            half = t.new(f"lshr i32 {word}, 16") if u % 2 else word
            names.append(t.new(f"trunc i32 {half} to {memory_type(dtype)}"))
            r.halves[names[-1]] = word, u % 2
            continue
        name = t.new(f"extractelement {vector} {whole}, i64 {u}")
        names.append(r.t.from_memory(SCALAR, dtype, name))
    return names


def load_vector(r: ThreadContext, lets: list[ir.Stmt]) -> None:
    """Lets of consecutive, aligned elements (`Let.vector`) as one vector load."""
    first, count = lets[0], len(lets)
    assert isinstance(first, ir.Let)
    buffer: ir.Buffer = first.value.attr
    if r.lane is None or r.thread_lane.unroll != 1:
        raise CompileError("vector loads must be in lanes loops of single iterations")
    if not _are_consecutive_loads(lets):
        raise CompileError(f"not consecutive elements of {buffer.name}: {first!r:.200}")
    (pointer,) = pointers(r, buffer, first.value.args[0])
    dtype, space, tags = buffer.dtype, r.spaces[buffer], r.tags[buffer]
    align = count * dtype.itemsize
    whole = r.t.new(f"load {_vector(dtype, count)}, {space} {pointer}, align {align}{tags}")
    for s, name in zip(lets, _elements(r, dtype, whole, count), strict=True):
        assert isinstance(s, ir.Let)
        r.define(s.value, Value((name,), True, r.depth))


def _are_consecutive_loads(lets: list[ir.Stmt]) -> bool:
    loads = [s.value for s in lets if isinstance(s, ir.Let) and s.value.op == "load"]
    return (
        len(loads) == len(lets)
        and all(e.attr is loads[0].attr and len(e.args) == 1 for e in loads)
        and are_consecutive([e.args[0] for e in loads])
    )


def merge_shared_loads(r: ThreadContext, lets: list[ir.Stmt]) -> None:
    """Lets of consecutive elements of shared memory, provably aligned, as one vector load: their
    values are then defined."""
    first = lets[0]
    if isinstance(first, ir.Let) and first.value in r.values:
        return
    for count in (SHARED_VECTOR, SHARED_VECTOR // 2):
        if len(lets) >= count and _load_consecutive(r, lets[:count]):
            return


def _load_consecutive(r: ThreadContext, lets: list[ir.Stmt]) -> bool:
    first, count = lets[0], len(lets)
    if not isinstance(first, ir.Let) or first.value.op != "load":
        return False
    buffer: ir.Buffer = first.value.attr
    dtype = buffer.dtype
    if r.spaces[buffer] != SHARED or count * dtype.itemsize > ACCESS_BYTES or dtype.kind == "bool":
        return False
    base, start = ir.split_constant(first.value.args[0])
    if not is_multiple(base, count) or start % count or r.thread_lane.unroll != 1:
        return False
    if not _are_consecutive_loads(lets):
        return False
    ty, t = memory_type(dtype), r.t
    (pointer,) = pointers(r, buffer, first.value.args[0])
    align = count * dtype.itemsize
    # volatile: not sunk to its use, which would expose the latency
    how = "load volatile" if first.early else "load"
    whole = t.new(f"{how} <{count} x {ty}>, {SHARED} {pointer}, align {align}")
    for i, s in enumerate(lets):
        assert isinstance(s, ir.Let)
        name = t.new(f"extractelement <{count} x {ty}> {whole}, i64 {i}")
        vec = r.lane_stride(s.value.args[0]) != 0
        r.define(s.value, Value((name,), vec, r.depth))
    return True


def prefetch(r: ThreadContext, s: ir.Prefetch) -> None:
    """Into L2 alone: other warps hide the latency of that."""
    if s.level != 2:
        return
    for pointer in pointers(r, s.buffer, s.index):
        address = f"{r.spaces[s.buffer]} {pointer}"
        r.t.do(f'call void asm sideeffect "prefetch.global.L2 [$0];", "l"({address})')


def store(r: ThreadContext, s: ir.Store) -> None:
    """A store of the thread's iterations."""
    t, dtype = r.t, s.buffer.dtype
    ty, space, tags = memory_type(dtype), r.spaces[s.buffer], r.tags[s.buffer]
    value = r.value(s.value)
    mask = r.value(s.mask) if s.mask is not None else None
    stride = r.lane_stride(s.index)
    addresses = pointers(r, s.buffer, s.index)
    names = [r.t.to_memory(SCALAR, dtype, n) for n in value.names]
    count = max(len(addresses), len(names), len(mask.names) if mask is not None else 1)
    masks = mask.names if mask is not None else ("true",)
    columns = [per_iteration(column, count) for column in (addresses, names, masks)]
    width = r.thread_lane.vector if r.lane is not None else 1
    if mask is None and width > 1 and stride == 1 and count > 1:
        align = min(ACCESS_BYTES, width * dtype.itemsize)
        for at in range(0, count, width):
            whole = _build_vector(r, ty, columns[1][at : at + width])
            t.do(f"store {whole}, {space} {columns[0][at]}, align {align}{tags}")
        return
    for pointer, name, condition in zip(*columns, strict=True):
        with nullcontext() if condition == "true" else t.conditional(condition, "store"):
            t.do(f"store {ty} {name}, {space} {pointer}, align {dtype.itemsize}{tags}")


def _build_vector(r: ThreadContext, ty: str, names: Sequence[str]) -> str:
    """A vector of elements, with its type."""
    vector, whole = f"<{len(names)} x {ty}>", "poison"
    for u, name in enumerate(names):
        whole = r.t.new(f"insertelement {vector} {whole}, {ty} {name}, i64 {u}")
    return f"{vector} {whole}"


def merge_stores(r: ThreadContext, stores: list[ir.Stmt]) -> int:
    """Stores of consecutive elements as one vector store, where aligned (tested at run time in
    global memory); returns how many statements are emitted."""
    first = stores[0]
    assert isinstance(first, ir.Store)
    if r.thread_lane.unroll != 1:
        return 0
    is_shared = r.spaces[first.buffer] == SHARED
    size = first.buffer.dtype.itemsize
    if first.vector and not _store_consecutive(r, stores[: first.vector], first.vector, is_shared):
        raise CompileError(f"not consecutive elements of {first.buffer.name}: {first!r:.200}")
    if first.vector:
        return first.vector
    for nbytes in (16, 8, 4) if is_shared else (16, 8):
        count = nbytes // size
        fewest = 2 if is_shared or (size >= 4 and count * size == 16) else 4
        if count >= fewest and _store_consecutive(r, stores[:count], count, is_shared):
            return count
    return 0


def _store_consecutive(
    r: ThreadContext, stores: list[ir.Stmt], count: int, is_shared: bool
) -> bool:
    first = stores[0]
    assert isinstance(first, ir.Store)
    dtype = first.buffer.dtype
    base, start = ir.split_constant(first.index)
    same = [s for s in stores if isinstance(s, ir.Store) and s.buffer is first.buffer]
    if len(same) < count or any(s.mask is not None for s in same):
        return False
    if not are_consecutive([s.index for s in same]):
        return False
    is_aligned = first.vector == count or (
        is_shared and is_multiple(base, count) and start % count == 0
    )
    if is_shared and not is_aligned and count * dtype.itemsize < 16:
        return False
    t, ty, space = r.t, memory_type(dtype), r.spaces[first.buffer]
    names = [t.to_memory(SCALAR, dtype, r.value(s.value).names[0]) for s in same]
    (pointer,) = pointers(r, first.buffer, first.index)
    align = count * dtype.itemsize

    def store_whole() -> None:
        t.do(f"store {_build_vector(r, ty, names)}, {space} {pointer}, align {align}")

    def store_each() -> None:
        for u, name in enumerate(names):
            at = t.new(f"getelementptr {ty}, {space} {pointer}, i64 {u}")
            t.do(f"store {ty} {name}, {space} {at}, align {dtype.itemsize}")

    if is_aligned:
        store_whole()
        return True
    address = t.new(f"ptrtoint {space} {pointer} to i64")
    odd = t.new(f"and i64 {address}, {align - 1}")
    is_zero = t.new(f"icmp eq i64 {odd}, 0")
    t.either(is_zero, ("vector", store_whole), ("scalar", store_each))
    return True
