"""Loads and stores of a thread: scalars, or vectors of up to 16 bytes where they are aligned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from numus import ir
from numus.codegen.llvm.builder import Value, literal, memory_type, register_type
from numus.codegen.llvm.divergence import is_multiple
from numus.dtypes import DType
from numus.errors import CompileError

if TYPE_CHECKING:
    from numus.codegen.nvptx.expressions import ThreadExpressions


SHARED = "ptr addrspace(3)"


def level(r: ThreadExpressions, e: ir.Expr) -> int:
    """The innermost scope that a load depends on. What the kernel itself writes stays in place, and
    so does what is loaded only under a condition."""
    if e.attr.access != "read" or len(e.args) > 1:
        return r.depth
    growth = r.growth(e.args[0])
    index = r.base(e.args[0]) if growth is not None else r.values[e.args[0]]
    return index.level


def _from_memory(r: ThreadExpressions, dtype: DType, name: str) -> str:
    return r.t.new(f"icmp ne i8 {name}, 0") if dtype.kind == "bool" else name


def _to_memory(r: ThreadExpressions, dtype: DType, name: str) -> str:
    return r.t.new(f"zext i1 {name} to i8") if dtype.kind == "bool" else name


def _pointer(r: ThreadExpressions, buffer: ir.Buffer, index: str) -> str:
    ty, space = memory_type(buffer.dtype), r.spaces[buffer]
    return r.t.new(f"getelementptr {ty}, {space} {r.buffers[buffer]}, i64 {index}")


def pointers(r: ThreadExpressions, buffer: ir.Buffer, index: ir.Expr) -> list[str]:
    """Where the elements of the thread's iterations lie."""
    growth = r.growth(index)
    lane = r.lane
    if lane is None or growth == 0:
        return [_pointer(r, buffer, r.base(index).names[0])]
    if growth is None:
        return [_pointer(r, buffer, name) for name in r.vectors(r.value(index), ir.INDEX)]
    ty, space = memory_type(buffer.dtype), r.spaces[buffer]
    first = _pointer(r, buffer, r.base(index).names[0])
    return [
        r.t.new(f"getelementptr {ty}, {space} {first}, i64 {growth * offset}") if offset else first
        for offset in r.thread_lane.offsets
    ]


def _guarded(
    r: ThreadExpressions, condition: str, dtype: DType, read: Callable[[], str], vector: str = ""
) -> str:
    """What `read` gives where the condition holds, zero elsewhere; nothing is read there."""
    t = r.t
    zero, ty = literal(0, dtype), register_type(dtype)
    if vector:
        zero, ty = "zeroinitializer", vector
    if condition in ("true", "false"):
        return read() if condition == "true" else zero
    inside, join, before = t.label("load"), t.label("join"), t.block
    t.branch(condition, inside, join)
    t.start(inside)
    name = read()
    t.jump(join)
    t.start(join)
    return t.new(f"phi {ty} [ {zero}, %{before} ], [ {name}, %{inside} ]")


def load(r: ThreadExpressions, e: ir.Expr) -> Value:
    buffer: ir.Buffer = e.attr
    t, dtype = r.t, buffer.dtype
    ty, space, tags = memory_type(dtype), r.spaces[buffer], r.tags[buffer]
    mask = r.values[e.args[1]] if len(e.args) > 1 else None
    growth = r.growth(e.args[0])
    vec = growth != 0 or (mask is not None and mask.vec)
    places = pointers(r, buffer, e.args[0])
    if vec and len(places) == 1:
        assert r.lane is not None
        places = places * r.lane.unroll

    def read(pointer: str) -> str:
        name = t.new(f"load {ty}, {space} {pointer}, align {dtype.itemsize}{tags}")
        return _from_memory(r, dtype, name)

    active = r.thread_lane.active if vec else ()
    if mask is not None:
        conditions = mask.names if len(mask.names) == len(places) else mask.names * len(places)
        if active:
            pairs = zip(conditions, active, strict=True)
            conditions = tuple(t.new(f"and i1 {c}, {a}") for c, a in pairs)
        names = [
            _guarded(r, c, dtype, lambda p=p: read(p))  # type: ignore[misc]
            for p, c in zip(places, conditions, strict=True)
        ]
        return Value(tuple(names), vec)
    conditions = active or ("true",) * len(places)
    width = r.thread_lane.vector if vec else 1
    if width == 1 or growth != 1:
        names = [
            _guarded(r, c, dtype, lambda p=p: read(p))  # type: ignore[misc]
            for p, c in zip(places, conditions, strict=True)
        ]
        return Value(tuple(names), vec)
    align = min(16, width * dtype.itemsize)

    vector = _vector(dtype, width)

    def read_vector(pointer: str) -> str:
        return t.new(f"load {vector}, {space} {pointer}, align {align}{tags}")

    names = []
    for p, c in zip(places[::width], conditions[::width], strict=True):
        whole = _guarded(r, c, dtype, lambda p=p: read_vector(p), vector)  # type: ignore[misc]
        names += _elements(r, dtype, whole, width)
    return Value(tuple(names), True)


def _vector(dtype: DType, width: int) -> str:
    """The type by which so many neighbours are loaded. Halves are loaded by words: of those in the
    upper half, one instruction makes a float of 32 bits."""
    by_words = dtype.itemsize == 2
    return f"<{width // 2} x i32>" if by_words else f"<{width} x {memory_type(dtype)}>"


def _elements(r: ThreadExpressions, dtype: DType, whole: str, width: int) -> list[str]:
    """The elements of a vector that was loaded."""
    t, vector, names = r.t, _vector(dtype, width), []
    for u in range(width):
        if dtype.itemsize == 2:
            word = t.new(f"extractelement {vector} {whole}, i64 {u // 2}")
            half = t.new(f"lshr i32 {word}, 16") if u % 2 else word
            names.append(t.new(f"trunc i32 {half} to {memory_type(dtype)}"))
            r.halves[names[-1]] = word, u % 2
            continue
        name = t.new(f"extractelement {vector} {whole}, i64 {u}")
        names.append(_from_memory(r, dtype, name))
    return names


def load_whole(r: ThreadExpressions, lets: list[ir.Stmt]) -> None:
    """What statements name of neighbours that are known to lie at a whole access, by one."""
    first, count = lets[0], len(lets)
    assert isinstance(first, ir.Let)
    buffer: ir.Buffer = first.value.attr
    base, start = _offset(first.value.args[0])
    if r.lane is None or r.thread_lane.unroll != 1:
        raise CompileError("runs of neighbours are for single iterations of a thread")
    for i, s in enumerate(lets):
        loads = isinstance(s, ir.Let) and s.value.op == "load" and s.value.attr is buffer
        if not loads or _offset(s.value.args[0]) != (base, start + i):  # type: ignore[attr-defined]
            raise CompileError(f"no neighbours in {buffer.name}: {s!r:.200}")
    (pointer,) = pointers(r, buffer, first.value.args[0])
    dtype, space, tags = buffer.dtype, r.spaces[buffer], r.tags[buffer]
    align = count * dtype.itemsize
    whole = r.t.new(f"load {_vector(dtype, count)}, {space} {pointer}, align {align}{tags}")
    for s, name in zip(lets, _elements(r, dtype, whole, count), strict=True):
        assert isinstance(s, ir.Let)
        r.keep(s.value, Value((name,), True, r.depth))


RUN = 4  # neighbours in shared memory that are loaded at a time


def _offset(index: ir.Expr) -> tuple[ir.Expr, int]:
    """An index without its constant, and the constant."""
    if index.op == "add" and index.args[1].op == "const":
        return index.args[0], int(index.args[1].attr)
    return index, 0


def load_run(r: ThreadExpressions, lets: list[ir.Stmt]) -> None:
    """Where statements name neighbours in shared memory, starting at a whole vector, load them by
    one access; the statements then find their values written."""
    first = lets[0]
    if isinstance(first, ir.Let) and first.value in r.values:
        return
    for count in (RUN, RUN // 2):
        if len(lets) >= count and _load_neighbours(r, lets[:count]):
            return


def _load_neighbours(r: ThreadExpressions, lets: list[ir.Stmt]) -> bool:
    first, count = lets[0], len(lets)
    if not isinstance(first, ir.Let) or first.value.op != "load":
        return False
    buffer: ir.Buffer = first.value.attr
    dtype = buffer.dtype
    if r.spaces[buffer] != SHARED or count * dtype.itemsize > 16 or dtype.kind == "bool":
        return False
    base, start = _offset(first.value.args[0])
    if not is_multiple(base, count) or start % count or r.thread_lane.unroll != 1:
        return False
    for i, s in enumerate(lets):
        if not isinstance(s, ir.Let) or s.value.op != "load" or s.value.attr is not buffer:
            return False
        if len(s.value.args) > 1 or _offset(s.value.args[0]) != (base, start + i):
            return False
    ty, t = memory_type(dtype), r.t
    (pointer,) = pointers(r, buffer, first.value.args[0])
    align = count * dtype.itemsize
    # what is volatile is not moved to where it is needed: the latency passes meanwhile
    how = "load volatile" if first.early else "load"
    whole = t.new(f"{how} <{count} x {ty}>, {SHARED} {pointer}, align {align}")
    for i, s in enumerate(lets):
        assert isinstance(s, ir.Let)
        name = t.new(f"extractelement <{count} x {ty}> {whole}, i64 {i}")
        vec = r.growth(s.value.args[0]) != 0
        r.keep(s.value, Value((name,), vec, r.depth))
    return True


def store(r: ThreadExpressions, s: ir.Store) -> None:
    """A store in a lanes loop, by every thread for its own iterations."""
    t, dtype = r.t, s.buffer.dtype
    ty, space, tags = memory_type(dtype), r.spaces[s.buffer], r.tags[s.buffer]
    value = r.value(s.value)
    mask = r.value(s.mask) if s.mask is not None else None
    growth = r.growth(s.index)
    places = pointers(r, s.buffer, s.index)
    names = [_to_memory(r, dtype, n) for n in value.names]
    count = max(len(places), len(names), len(mask.names) if mask is not None else 1)
    places, names = (x if len(x) == count else x * count for x in (places, names))
    width = r.thread_lane.vector if r.lane is not None else 1
    conditions = ("true",) * count
    if mask is not None:
        conditions = mask.names if len(mask.names) == count else mask.names * count

    def write(text: str, condition: str) -> None:
        if condition == "true":
            t.do(text)
            return
        inside, join = t.label("store"), t.label("join")
        t.branch(condition, inside, join)
        t.start(inside)
        t.do(text)
        t.jump(join)
        t.start(join)

    if mask is None and width > 1 and growth == 1 and count > 1:
        for at in range(0, count, width):
            whole = "poison"
            for u in range(width):
                element = f"{ty} {names[at + u]}, i64 {u}"
                whole = t.new(f"insertelement <{width} x {ty}> {whole}, {element}")
            align = min(16, width * dtype.itemsize)
            text = f"store <{width} x {ty}> {whole}, {space} {places[at]}, align {align}{tags}"
            write(text, conditions[at])
        return
    for place, name, condition in zip(places, names, conditions, strict=True):
        write(f"store {ty} {name}, {space} {place}, align {dtype.itemsize}{tags}", condition)


def store_run(r: ThreadExpressions, stores: list[ir.Stmt]) -> int:
    """Where statements store to neighbours in memory, store them by one access of up to 16 bytes if
    they turn out to lie at a whole one; gives how many have been written so, or not at all."""
    first = stores[0]
    assert isinstance(first, ir.Store)
    if r.thread_lane.unroll != 1:
        return 0
    near = r.spaces[first.buffer] == SHARED
    size = first.buffer.dtype.itemsize
    if first.vector and not _store_neighbours(r, stores[: first.vector], first.vector, near):
        raise CompileError(f"no neighbours in {first.buffer.name}: {first!r:.200}")
    if first.vector:
        return first.vector
    for nbytes in (16, 8, 4) if near else (16, 8):
        count = nbytes // size
        least = 2 if near or (size >= 4 and count * size == 16) else 4
        if count >= least and _store_neighbours(r, stores[:count], count, near):
            return count
    return 0


def _store_neighbours(r: ThreadExpressions, stores: list[ir.Stmt], count: int, near: bool) -> bool:
    first = stores[0]
    assert isinstance(first, ir.Store)
    dtype = first.buffer.dtype
    base, start = _offset(first.index)
    if len(stores) < count:
        return False
    for i, s in enumerate(stores):
        if not isinstance(s, ir.Store) or s.buffer is not first.buffer or s.mask is not None:
            return False
        if _offset(s.index) != (base, start + i):
            return False
    known = first.vector == count or (near and is_multiple(base, count) and start % count == 0)
    if near and not known and count * dtype.itemsize < 16:
        return False
    t, ty, space = r.t, memory_type(dtype), r.spaces[first.buffer]
    names = []
    for s in stores:
        assert isinstance(s, ir.Store)
        (name,) = r.value(s.value).names
        names.append(_to_memory(r, dtype, name))
    (pointer,) = pointers(r, first.buffer, first.index)
    align = count * dtype.itemsize

    def store_whole() -> None:
        whole = "poison"
        for u, name in enumerate(names):
            whole = t.new(f"insertelement <{count} x {ty}> {whole}, {ty} {name}, i64 {u}")
        t.do(f"store <{count} x {ty}> {whole}, {space} {pointer}, align {align}")

    if known:
        store_whole()
        return True
    address = t.new(f"ptrtoint {space} {pointer} to i64")
    odd = t.new(f"and i64 {address}, {align - 1}")
    wide, narrow, done = t.label("wide"), t.label("narrow"), t.label("done")
    t.branch(t.new(f"icmp eq i64 {odd}, 0"), wide, narrow)
    t.start(wide)
    store_whole()
    t.jump(done)
    t.start(narrow)
    for u, name in enumerate(names):
        at = t.new(f"getelementptr {ty}, {space} {pointer}, i64 {u}")
        t.do(f"store {ty} {name}, {space} {at}, align {dtype.itemsize}")
    t.jump(done)
    t.start(done)
    return True
