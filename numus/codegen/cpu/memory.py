"""Loads and stores: which of LLVM's memory operations an access becomes.

By how its index grows from lane to lane: not at all, a scalar access; by 1, a vector; by -1, a
vector reversed; by 2, two vectors shuffled (complex numbers lie so, real and imaginary parts in
turn); otherwise a gather or scatter. Masked elements are never touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import (
    SCALAR,
    Shape,
    Value,
    literal,
    memory_type,
    register_type,
)
from numus.dtypes import DType

if TYPE_CHECKING:
    from numus.codegen.llvm.expressions import Expressions

WIDE = (0, 1, -1, 2)  # growths that are addressed by their first lane
STREAM = 0  # number of the metadata that marks a store past the caches


def _align(dtype: DType) -> str:
    return f"align {dtype.itemsize}"


def _pointer(r: Expressions, buffer: ir.Buffer, index: str) -> str:
    ty = memory_type(buffer.dtype)
    return r.t.new(f"getelementptr {ty}, ptr {r.buffers[buffer]}, i64 {index}")


def _pointers(r: Expressions, buffer: ir.Buffer, index: str, stride: int) -> list[str]:
    """Where the first lane of each vector is, `stride` elements apart."""
    first = _pointer(r, buffer, index)
    assert r.lane is not None
    ty = memory_type(buffer.dtype)
    return [first] + [
        r.t.new(f"getelementptr {ty}, ptr {first}, i64 {stride * u}")
        for u in range(1, r.lane.unroll)
    ]


def _from_memory(r: Expressions, shape: Shape, dtype: DType, name: str) -> str:
    if dtype.kind != "bool":
        return name
    return r.t.new(f"icmp ne {shape.of('i8')} {name}, {shape.const('i8', 0)}")


def _to_memory(r: Expressions, shape: Shape, dtype: DType, name: str) -> str:
    if dtype.kind != "bool":
        return name
    return r.t.new(f"zext {shape.of('i1')} {name} to {shape.of('i8')}")


def _masks(r: Expressions, mask: Value | None) -> tuple[str | None, ...]:
    """The mask of each vector: what the access says and which lanes exist; None for all."""
    lane = r.lane
    assert lane is not None
    there = lane.mask.names[0] if lane.mask is not None else None
    if mask is None or (not mask.vec and mask.names[0] == "true"):
        return (there,) * lane.unroll
    names = r.vectors(mask, dt.bool_)
    if there is None:
        return names
    ty = lane.shape.of("i1")
    return tuple(r.t.new(f"and {ty} {name}, {there}") for name in names)


def _indices(numbers: list[int]) -> str:
    return f"<{len(numbers)} x i32> <{', '.join(f'i32 {n}' for n in numbers)}>"


def _shuffle(r: Expressions, ty: str, a: str, b: str, numbers: list[int]) -> str:
    return r.t.new(f"shufflevector {ty} {a}, {ty} {b}, {_indices(numbers)}")


def _reverse(r: Expressions, shape: Shape, scalar: str, name: str) -> str:
    return _shuffle(r, shape.of(scalar), name, "poison", list(reversed(range(shape.width))))


# -- loads ----------------------------------------------------------------------------------------


def level(r: Expressions, e: ir.Expr) -> int:
    """The innermost scope that a load depends on. What the kernel itself writes stays in place."""
    buffer: ir.Buffer = e.attr
    growth = r.growth(e.args[0])
    mask = r.values[e.args[1]] if len(e.args) > 1 else None
    if buffer.access != "read" or (growth == 0 and mask is not None):
        return r.depth
    index = r.base(e.args[0]) if growth in WIDE else r.values[e.args[0]]
    found = max(index.level, mask.level if mask is not None else 0)
    if growth != 0 and r.lane is not None and r.lane.mask is not None:
        found = max(found, r.lane.mask.level)
    return found


def load(r: Expressions, e: ir.Expr) -> Value:
    buffer: ir.Buffer = e.attr
    index = e.args[0]
    mask = r.values[e.args[1]] if len(e.args) > 1 else None
    growth = r.growth(index)
    if growth == 0:
        return _load_uniform(r, buffer, index, mask)
    lane = r.lane
    assert lane is not None
    shape, dtype, width = lane.shape, buffer.dtype, lane.shape.width
    if growth == 2:
        pair = _pair(r, e)
        if pair is not None:
            return _load_pair(r, e, pair, mask)
    masks = _masks(r, mask)
    if growth in WIDE:
        first = r.base(index).names[0]
        write = {1: _load_plain, -1: _load_reversed, 2: _load_second}[growth or 0]
        if width == 1:
            write = _load_plain
        pointers = _pointers(r, buffer, first, growth * width)
        names = [write(r, buffer, p, m) for p, m in zip(pointers, masks, strict=True)]
    else:
        names = [
            _gather(r, buffer, i, m)
            for i, m in zip(r.vectors(r.values[index], ir.INDEX), masks, strict=True)
        ]
    return Value(tuple(_from_memory(r, shape, dtype, n) for n in names), True)


def _load_uniform(r: Expressions, buffer: ir.Buffer, index: ir.Expr, mask: Value | None) -> Value:
    t, dtype = r.t, buffer.dtype
    ty = memory_type(dtype)
    where = r.base(index).names[0]

    def read() -> str:
        p = _pointer(r, buffer, where)
        name = t.new(f"load {ty}, ptr {p}, {_align(dtype)}{r.tags[buffer]}")
        return _from_memory(r, SCALAR, dtype, name)

    if mask is None or mask.names[0] == "true":
        return Value((read(),), False)
    inside, join, before = t.label("load"), t.label("join"), t.block
    t.branch(r.any(mask), inside, join)
    t.start(inside)
    name = read()
    t.jump(join)
    t.start(join)
    zero, scalar = literal(0, dtype), register_type(dtype)
    name = t.new(f"phi {scalar} [ {zero}, %{before} ], [ {name}, %{inside} ]")
    if not mask.vec:
        return Value((name,), False)
    assert r.lane is not None
    shape = r.lane.shape
    vector, vt = r.splat(scalar, Value((name,), False, r.depth), shape), shape.of(scalar)
    return Value(
        tuple(
            t.new(f"select {shape.of('i1')} {m}, {vt} {vector}, {vt} zeroinitializer")
            for m in mask.names
        ),
        True,
    )


def _vector_load(
    r: Expressions, buffer: ir.Buffer, pointer: str, mask: str | None, shape: Shape
) -> str:
    scalar, tags = memory_type(buffer.dtype), r.tags[buffer]
    ty = shape.of(scalar)
    if mask is None:
        return r.t.new(f"load {ty}, ptr {pointer}, {_align(buffer.dtype)}{tags}")
    return r.t.call(
        ty,
        f"llvm.masked.load.{shape.suffix(scalar)}.p0",
        (f"ptr {_align(buffer.dtype)}", pointer),
        (shape.of("i1"), mask),
        (ty, "zeroinitializer"),
        tags=tags,
    )


def _load_plain(r: Expressions, buffer: ir.Buffer, pointer: str, mask: str | None) -> str:
    assert r.lane is not None
    return _vector_load(r, buffer, pointer, mask, r.lane.shape)


def _load_reversed(r: Expressions, buffer: ir.Buffer, pointer: str, mask: str | None) -> str:
    assert r.lane is not None
    shape, scalar = r.lane.shape, memory_type(buffer.dtype)
    low = r.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {1 - shape.width}")
    if mask is not None:
        mask = _reverse(r, shape, "i1", mask)
    return _reverse(r, shape, scalar, _vector_load(r, buffer, low, mask, shape))


def _load_second(r: Expressions, buffer: ir.Buffer, pointer: str, mask: str | None) -> str:
    """Every second element, from two vectors; the upper one ends at the last element wanted."""
    assert r.lane is not None
    if mask is not None:
        return _load_second_masked(r, buffer, pointer, mask)
    shape, scalar = r.lane.shape, memory_type(buffer.dtype)
    width = shape.width
    low = _vector_load(r, buffer, pointer, None, shape)
    upper = r.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {width - 1}")
    high = _vector_load(r, buffer, upper, None, shape)
    half = width // 2
    numbers = [2 * i for i in range(half)] + [width + 2 * i + 1 for i in range(half)]
    return _shuffle(r, shape.of(scalar), low, high, numbers)


def _load_second_masked(r: Expressions, buffer: ir.Buffer, pointer: str, mask: str) -> str:
    assert r.lane is not None
    shape, scalar, width = r.lane.shape, memory_type(buffer.dtype), r.lane.shape.width
    wide = Shape(2 * width)
    # lane i becomes element 2i; the elements between are left alone
    spread = [i // 2 if i % 2 == 0 else width for i in range(2 * width)]
    wide_mask = _shuffle(r, shape.of("i1"), mask, "zeroinitializer", spread)
    name = _vector_load(r, buffer, pointer, wide_mask, wide)
    return _shuffle(r, wide.of(scalar), name, "poison", [2 * i for i in range(width)])


def _gather(r: Expressions, buffer: ir.Buffer, index: str, mask: str | None) -> str:
    assert r.lane is not None
    shape, scalar = r.lane.shape, memory_type(buffer.dtype)
    ty, pointers = shape.of(scalar), shape.of("ptr")
    p = r.t.new(f"getelementptr {scalar}, ptr {r.buffers[buffer]}, {shape.of('i64')} {index}")
    return r.t.call(
        ty,
        f"llvm.masked.gather.{shape.suffix(scalar)}.v{shape.width}p0",
        (f"{pointers} {_align(buffer.dtype)}", p),
        (shape.of("i1"), mask or "splat (i1 true)"),
        (ty, "zeroinitializer"),
        tags=r.tags[buffer],
    )


# -- pairs: real and imaginary parts --------------------------------------------------------------


def _offset(index: ir.Expr) -> tuple[ir.Expr, int]:
    """An index without its constant, and the constant."""
    if index.op == "add" and index.args[1].op == "const":
        return index.args[0], index.args[1].attr
    return index, 0


def _pair(r: Expressions, e: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """This load and its neighbour, where the statements of this block load both anyway."""
    if not r.blocks or e.attr.access != "read":
        return None
    block = r.blocks[-1]
    if block.pairs is None:
        block.pairs = _find_pairs(r, block.body)
    pair = block.pairs.get(e)
    if pair is None or any(x in r.values for x in pair):
        return None
    return pair


def _find_pairs(r: Expressions, body: list[ir.Stmt]) -> dict[ir.Expr, tuple[ir.Expr, ir.Expr]]:
    seen: set[ir.Expr] = set()
    stack: list[ir.Expr] = []
    for s in body:
        if isinstance(s, (ir.Let, ir.Set)):
            stack.append(s.value)
        elif isinstance(s, ir.Store):
            stack.extend((s.index, s.value))
    groups: dict[tuple[ir.Buffer, ir.Expr, ir.Expr | None], dict[int, ir.Expr]] = {}
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.op == "load" and r.growth(e.args[0]) == 2:
            rest, offset = _offset(e.args[0])
            mask = e.args[1] if len(e.args) > 1 else None
            groups.setdefault((e.attr, rest, mask), {})[offset] = e
        # what only the slow side of a guard loads may not be there to be loaded
        stack.extend((e.args[0], e.args[2]) if e.op == "slow_path" else e.args)
    pairs: dict[ir.Expr, tuple[ir.Expr, ir.Expr]] = {}
    for group in groups.values():
        for offset in sorted(group):
            first, second = group[offset], group.get(offset + 1)
            if second is not None and first not in pairs:
                pairs[first] = pairs[second] = (first, second)
    return pairs


def _load_pair(
    r: Expressions, e: ir.Expr, pair: tuple[ir.Expr, ir.Expr], mask: Value | None
) -> Value:
    lane = r.lane
    assert lane is not None
    buffer: ir.Buffer = e.attr
    shape, scalar, width = lane.shape, memory_type(buffer.dtype), lane.shape.width
    wide = Shape(2 * width)
    masks = _masks(r, mask)
    first = r.base(pair[0].args[0]).names[0]
    parts: tuple[list[str], list[str]] = ([], [])
    pointers = _pointers(r, buffer, first, 2 * width)
    for pointer, m in zip(pointers, masks, strict=True):
        if m is not None:
            m = _shuffle(r, shape.of("i1"), m, "poison", [i // 2 for i in range(2 * width)])
        whole = _vector_load(r, buffer, pointer, m, wide)
        for k in (0, 1):
            numbers = [2 * i + k for i in range(width)]
            name = _shuffle(r, wide.of(scalar), whole, "poison", numbers)
            parts[k].append(_from_memory(r, shape, buffer.dtype, name))
    for k in (0, 1):
        v = Value(tuple(parts[k]), True, level(r, e))
        r.keep(pair[k], v, r.place(v.level)[0])
    return r.values[e]


# -- stores ---------------------------------------------------------------------------------------


def store(r: Expressions, s: ir.Store) -> None:
    value = r.value(s.value)
    mask = r.value(s.mask) if s.mask is not None else None
    growth = r.growth(s.index)
    lane = r.lane
    if growth == 0 and not value.vec and not (mask is not None and mask.vec):
        _store_uniform(r, s, value.names[0], mask)
        return
    assert lane is not None
    shape, dtype, width = lane.shape, s.buffer.dtype, lane.shape.width
    values = [_to_memory(r, shape, dtype, n) for n in r.vectors(value, dtype)]
    masks = _masks(r, mask)
    if growth in (1, -1):
        first = r.base(s.index).names[0]
        pointers = _pointers(r, s.buffer, first, growth * width)
        for pointer, name, m in zip(pointers, values, masks, strict=True):
            if growth == -1:
                scalar = memory_type(dtype)
                name = _reverse(r, shape, scalar, name)
                m = None if m is None else _reverse(r, shape, "i1", m)
                pointer = r.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {1 - width}")
            _vector_store(r, s.buffer, pointer, name, m, shape, s in lane.streamed)
        return
    for name, i, m in zip(values, r.vectors(r.value(s.index), ir.INDEX), masks, strict=True):
        _scatter(r, s.buffer, i, name, m)


def prefetch(r: Expressions, s: ir.Prefetch) -> None:
    """The line of an element into the nearest cache (3), to be written (the first 1); or into the
    second (2), to be read.
    """
    pointer = _pointer(r, s.buffer, r.uniform(s.index, "where to prefetch"))
    flags = [("i32", n) for n in ("131" if s.write else "021")]
    r.t.call("void", "llvm.prefetch.p0", ("ptr", pointer), *flags)


def _store_uniform(r: Expressions, s: ir.Store, name: str, mask: Value | None) -> None:
    t, dtype = r.t, s.buffer.dtype
    where = r.base(s.index).names[0]
    name = _to_memory(r, SCALAR, dtype, name)

    def write() -> None:
        p = _pointer(r, s.buffer, where)
        ty = memory_type(dtype)
        t.do(f"store {ty} {name}, ptr {p}, {_align(dtype)}{r.tags[s.buffer]}")

    if mask is None or mask.names[0] == "true":
        write()
        return
    inside, join = t.label("store"), t.label("join")
    t.branch(mask.names[0], inside, join)
    t.start(inside)
    write()
    t.jump(join)
    t.start(join)


def _vector_store(
    r: Expressions,
    buffer: ir.Buffer,
    pointer: str,
    name: str,
    mask: str | None,
    shape: Shape,
    streamed: bool = False,
) -> None:
    scalar, tags = memory_type(buffer.dtype), r.tags[buffer]
    ty = shape.of(scalar)
    if streamed:
        whole = f"align {shape.width * buffer.dtype.itemsize}"
        r.t.do(f"store {ty} {name}, ptr {pointer}, {whole}{tags}, !nontemporal !{STREAM}")
        return
    if mask is None:
        r.t.do(f"store {ty} {name}, ptr {pointer}, {_align(buffer.dtype)}{tags}")
        return
    r.t.call(
        "void",
        f"llvm.masked.store.{shape.suffix(scalar)}.p0",
        (ty, name),
        (f"ptr {_align(buffer.dtype)}", pointer),
        (shape.of("i1"), mask),
        tags=tags,
    )


def _scatter(r: Expressions, buffer: ir.Buffer, index: str, name: str, mask: str | None) -> None:
    """Lanes that meet in one element write in their order: the last one stays."""
    assert r.lane is not None
    shape, scalar = r.lane.shape, memory_type(buffer.dtype)
    p = r.t.new(f"getelementptr {scalar}, ptr {r.buffers[buffer]}, {shape.of('i64')} {index}")
    r.t.call(
        "void",
        f"llvm.masked.scatter.{shape.suffix(scalar)}.v{shape.width}p0",
        (shape.of(scalar), name),
        (f"{shape.of('ptr')} {_align(buffer.dtype)}", p),
        (shape.of("i1"), mask or "splat (i1 true)"),
        tags=r.tags[buffer],
    )


def are_pair(r: Expressions, a: ir.Store, b: ir.Store) -> bool:
    """Whether two stores fill both halves of the same interleaved elements."""
    if a.buffer is not b.buffer or a.mask is not b.mask:
        return False
    if r.lane is None or r.growth(a.index) != 2 or r.growth(b.index) != 2:
        return False
    (rest_a, offset_a), (rest_b, offset_b) = _offset(a.index), _offset(b.index)
    return rest_a is rest_b and offset_b == offset_a + 1


def store_pair(r: Expressions, a: ir.Store, b: ir.Store) -> None:
    """Two stores of stride 2, next to each other, as one of complex numbers: both parts are
    computed before either is written."""
    lane = r.lane
    assert lane is not None
    shape, dtype, width = lane.shape, a.buffer.dtype, lane.shape.width
    scalar, wide = memory_type(dtype), Shape(2 * width)
    mask = r.value(a.mask) if a.mask is not None else None
    parts = [
        [_to_memory(r, shape, dtype, n) for n in r.vectors(r.value(s.value), dtype)] for s in (a, b)
    ]
    masks = _masks(r, mask)
    first = r.base(a.index).names[0]
    zipped = [i // 2 + (i % 2) * width for i in range(2 * width)]
    pointers = _pointers(r, a.buffer, first, 2 * width)
    for pointer, m, one, other in zip(pointers, masks, *parts, strict=True):
        if m is not None:
            m = _shuffle(r, shape.of("i1"), m, "poison", [i // 2 for i in range(2 * width)])
        whole = _shuffle(r, shape.of(scalar), one, other, zipped)
        _vector_store(r, a.buffer, pointer, whole, m, wide)
