"""SIMD loads and stores, by the stride of the index from lane to lane.

Stride 0 is a scalar access, 1 a vector, -1 a reversed vector, 2 and -2 two shuffled vectors
(interleaved real and imaginary parts); any other is a gather or scatter, or, of adjacent elements,
transposed in registers (transposed.py). An index divided by a power of two (packed codes, scales of
groups) is a short vector whose elements are repeated; by 2, from any number on. Masked
elements are never accessed.
"""

from __future__ import annotations

from contextlib import nullcontext

from numus import dtypes as dt
from numus import ir
from numus.codegen.cpu import strided, transposed, words
from numus.codegen.cpu.accesses import align, masked, reverse, vector_load, vector_store
from numus.codegen.llvm.builder import SCALAR, Shape, Value, literal, memory_type, register_type
from numus.codegen.llvm.context import Context
from numus.codegen.llvm.divergence import are_consecutive, loads_of

VECTOR_STRIDES = (0, 1, -1, 2, -2)  # addressed by their first lane


def _pointer(ctx: Context, buffer: ir.Buffer, index: str) -> str:
    ty = memory_type(buffer.dtype)
    return ctx.t.new(f"getelementptr {ty}, ptr {ctx.buffers[buffer]}, i64 {index}")


def _pointers(ctx: Context, buffer: ir.Buffer, index: str, stride: int) -> list[str]:
    """Pointers to the first lane of each vector, `stride` elements apart."""
    first = _pointer(ctx, buffer, index)
    ty = memory_type(buffer.dtype)
    return [first] + [
        ctx.t.new(f"getelementptr {ty}, ptr {first}, i64 {stride * u}")
        for u in range(1, ctx.current_lane.unroll)
    ]


def _masks(ctx: Context, mask: Value | None) -> tuple[str | None, ...]:
    """The mask of each vector: the access's own and the active lanes; None: all."""
    lane = ctx.current_lane
    there = lane.mask.names[0] if lane.mask is not None else None
    if mask is None or (not mask.vec and mask.names[0] == "true"):
        return (there,) * lane.unroll
    names = ctx.vectors(mask, dt.bool_)
    if there is None:
        return names
    ty = lane.shape.of("i1")
    return tuple(ctx.t.new(f"and {ty} {name}, {there}") for name in names)


def _doubled(ctx: Context, shape: Shape, mask: str | None) -> str | None:
    lanes = [i // 2 for i in range(2 * shape.width)]
    return None if mask is None else ctx.t.shuffle(shape.of("i1"), mask, "poison", lanes)


# -- loads ----------------------------------------------------------------------------------------


def level(ctx: Context, e: ir.Expr) -> int:
    """The innermost scope that a load depends on; loads of written buffers are not moved."""
    buffer: ir.Buffer = e.attr
    stride = ctx.lane_stride(e.args[0])
    mask = ctx.values[e.args[1]] if len(e.args) > 1 else None
    if buffer.access != "read" or (stride == 0 and mask is not None):
        return ctx.depth
    index = ctx.base(e.args[0]) if stride in VECTOR_STRIDES else ctx.values[e.args[0]]
    found = max(index.level, mask.level if mask is not None else 0)
    if stride != 0 and ctx.lane is not None and ctx.lane.mask is not None:
        found = max(found, ctx.lane.mask.level)
    return found


def load(ctx: Context, e: ir.Expr) -> Value:
    buffer: ir.Buffer = e.attr
    index = e.args[0]
    mask = ctx.values[e.args[1]] if len(e.args) > 1 else None
    stride = ctx.lane_stride(index)
    if words.is_word(e):
        return words.load(ctx, e, _masks(ctx, mask)) if stride != 0 else words.load_scalar(ctx, e)
    if stride == 0:
        return _load_uniform(ctx, buffer, index, mask)
    lane = ctx.current_lane
    shape, dtype, width = lane.shape, buffer.dtype, lane.shape.width
    if stride in (2, -2):
        pair = _pair(ctx, e)
        if pair is not None:
            return _load_pair(ctx, e, pair, mask)
    masks = _masks(ctx, mask)
    if stride in VECTOR_STRIDES:
        first = ctx.base(index).names[0]
        accesses = {1: strided.contiguous, -1: strided.reverse_contiguous, 2: strided.stride2}
        write = accesses.get(stride or 0, strided.stride2_reversed)
        if width == 1:
            write = strided.contiguous
        pointers = _pointers(ctx, buffer, first, stride * width)
        names = [write(ctx, buffer, p, m) for p, m in zip(pointers, masks, strict=True)]
    elif mask is None and (repeated := _repeated(ctx, index)) is not None:
        names = _load_repeated(ctx, buffer, *repeated, masks)
    elif masks == (None,) * lane.unroll and (few := words.few_offsets(ctx, index)):
        names = [words.load_few(ctx, buffer, index, few, u) for u in range(lane.unroll)]
    elif (halved := _halved(ctx, index)) is not None:
        names = _load_halved(ctx, buffer, *halved, masks)
    elif mask is None and (group := transposed.load_group(ctx, e)) is not None:
        transposed.load(ctx, group, level(ctx, e))
        return ctx.values[e]
    else:
        names = [
            masked(ctx, "gather", buffer, i, m, shape)
            for i, m in zip(ctx.vectors(ctx.values[index], ir.INDEX), masks, strict=True)
        ]
    return Value(tuple(ctx.t.from_memory(shape, dtype, n) for n in names), True)


def _repeated(ctx: Context, index: ir.Expr) -> tuple[list[ir.Expr], int] | None:
    """(uniform terms, c) of an index that is their sum and the lane variable divided by c."""
    lane = ctx.current_lane
    if not lane.aligned or lane.shape.width <= 1:
        return None
    uniform: list[ir.Expr] = []
    count, pending = 0, [index]
    while pending:
        e = pending.pop()
        if ctx.lane_stride(e) == 0:
            uniform.append(e)
        elif e.op == "add":
            pending += e.args
        elif count or e.op != "idiv" or e.args[0] is not lane.var or e.args[1].op != "const":
            return None
        else:
            count = int(e.args[1].attr)
    width = lane.shape.width
    fits = count > 0 and count & (count - 1) == 0 and width & (width - 1) == 0
    return (uniform, count) if fits else None


def _load_repeated(
    ctx: Context,
    buffer: ir.Buffer,
    uniform: list[ir.Expr],
    count: int,
    masks: tuple[str | None, ...],
) -> list[str]:
    t, lane = ctx.t, ctx.current_lane
    width, scalar = lane.shape.width, memory_type(buffer.dtype)
    short = Shape(max(1, width // count))
    names = []
    for u, mask in enumerate(masks):
        at = lane.first.names[0] if not u else t.new(f"add i64 {lane.first.names[0]}, {u * width}")
        at = t.new(f"lshr i64 {at}, {count.bit_length() - 1}")
        for e in uniform:
            at = t.new(f"add i64 {at}, {ctx.value(e).names[0]}")
        if mask is not None:  # a lane's element is there if one of its lanes is: the first
            firsts = [i * count for i in range(short.width)]
            mask = t.shuffle(lane.shape.of("i1"), mask, "poison", firsts)
        loaded = vector_load(ctx, buffer, _pointer(ctx, buffer, at), mask, short)
        lanes = [min(i // count, short.width - 1) for i in range(width)]
        names.append(t.shuffle(short.of(scalar), loaded, "poison", lanes))
    return names


def _halved(ctx: Context, index: ir.Expr) -> tuple[list[ir.Expr], ir.Expr] | None:
    """(uniform terms, dividend) of an index that is their sum and consecutive numbers over 2."""
    width = ctx.current_lane.shape.width
    uniform: list[ir.Expr] = []
    dividend: ir.Expr | None = None
    pending = [index]
    while pending:
        e = pending.pop()
        if ctx.lane_stride(e) == 0:
            uniform.append(e)
        elif e.op == "add":
            pending += e.args
        elif dividend is None and e.op == "idiv" and e.args[1].op == "const":
            if e.args[1].attr != 2 or ctx.lane_stride(e.args[0]) != 1:
                return None
            dividend = e.args[0]
        else:
            return None
    return (uniform, dividend) if dividend is not None and width > 2 and width % 2 == 0 else None


def _load_halved(
    ctx: Context,
    buffer: ir.Buffer,
    uniform: list[ir.Expr],
    dividend: ir.Expr,
    masks: tuple[str | None, ...],
) -> list[str]:
    """Each element for two lanes, the first of them for one if its number is odd: two short vectors
    that begin at the elements of the first and, then, of the second lane."""
    t, lane = ctx.t, ctx.current_lane
    shape, scalar = lane.shape, memory_type(buffer.dtype)
    width = shape.width
    half = Shape(width // 2)
    first = ctx.base(dividend).names[0]
    odd = t.new(f"trunc i64 {first} to i1")
    start = t.new(f"ashr i64 {first}, 1")  # rounds down, as masked lanes before 0 may need
    for e in uniform:
        start = t.new(f"add i64 {start}, {ctx.value(e).names[0]}")
    step = t.new(f"zext i1 {odd} to i64")
    evens = [i // 2 for i in range(width)]
    odds = [0, *(half.width + (i - 1) // 2 for i in range(1, width))]
    names = []
    for u, mask in enumerate(masks):
        at = start if not u else t.new(f"add i64 {start}, {u * half.width}")
        parts = []
        for k, place in enumerate((at, t.new(f"add i64 {at}, {step}"))):
            there = None if mask is None else _half_mask(ctx, shape, half, mask, odd, k)
            parts.append(vector_load(ctx, buffer, _pointer(ctx, buffer, place), there, half))
        low, high = parts
        both = (t.shuffle(half.of(scalar), low, high, lanes) for lanes in (odds, evens))
        typed = (f"{shape.of(scalar)} {name}" for name in both)
        names.append(t.new(f"select i1 {odd}, {', '.join(typed)}"))
    return names


def _half_mask(ctx: Context, shape: Shape, half: Shape, mask: str, odd: str, k: int) -> str:
    """The elements that active lanes need of the first (k = 0) or second short vector."""
    t, bits, count = ctx.t, shape.of("i1"), half.width

    def lanes(numbers: list[int]) -> str:
        return t.shuffle(bits, mask, "zeroinitializer", numbers)

    first, second = lanes([2 * i for i in range(count)]), lanes([2 * i + 1 for i in range(count)])
    ty = half.of("i1")
    pair = t.new(f"or {ty} {first}, {second}")
    if k == 0:
        shifted = lanes([0, *[shape.width] * (count - 1)])
    else:
        third = lanes([2 * i + 2 for i in range(count)])  # beyond the last lane: false
        shifted = t.new(f"or {ty} {second}, {third}")
    return t.new(f"select i1 {odd}, {ty} {shifted}, {ty} {pair}")


def _load_uniform(ctx: Context, buffer: ir.Buffer, index: ir.Expr, mask: Value | None) -> Value:
    t, dtype = ctx.t, buffer.dtype
    ty = memory_type(dtype)
    where = ctx.base(index).names[0]

    def read() -> str:
        p = _pointer(ctx, buffer, where)
        name = t.new(f"load {ty}, ptr {p}, {align(dtype)}{ctx.tags[buffer]}")
        return ctx.t.from_memory(SCALAR, dtype, name)

    if mask is None or mask.names[0] == "true":
        return Value((read(),), False)
    scalar = register_type(dtype)
    name = t.value_if(ctx.any(mask), "load", read, scalar, literal(0, dtype))
    if not mask.vec:
        return Value((name,), False)
    ops = t.ops(ctx.current_lane.shape, scalar)
    vector = ctx.splat(scalar, Value((name,), False, ctx.depth), ops.shape)
    return Value(tuple(ops.select(m, vector, "zeroinitializer") for m in mask.names), True)


# -- pairs: real and imaginary parts --------------------------------------------------------------


def _pair(ctx: Context, e: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """The (even, odd) loads of one interleaved element, if this block loads both."""
    if not ctx.blocks or e.attr.access != "read":
        return None
    block = ctx.blocks[-1]
    if block.pairs is None:
        block.pairs = _find_pairs(ctx, block.body)
    pair = block.pairs.get(e)
    if pair is None or any(x in ctx.values for x in pair):
        return None
    return pair


def _find_pairs(ctx: Context, body: list[ir.Stmt]) -> dict[ir.Expr, tuple[ir.Expr, ir.Expr]]:
    by_base: dict[tuple[ir.Buffer, ir.Expr, ir.Expr | None], dict[int, ir.Expr]] = {}
    for e in loads_of(body):
        if ctx.lane_stride(e.args[0]) in (2, -2):
            rest, offset = ir.split_constant(e.args[0])
            mask = e.args[1] if len(e.args) > 1 else None
            by_base.setdefault((e.attr, rest, mask), {})[offset] = e
    pairs: dict[ir.Expr, tuple[ir.Expr, ir.Expr]] = {}
    for loads in by_base.values():
        for offset in sorted(loads):
            first, second = loads[offset], loads.get(offset + 1)
            if second is not None and first not in pairs:
                pairs[first] = pairs[second] = (first, second)
    return pairs


def _load_pair(
    ctx: Context, e: ir.Expr, pair: tuple[ir.Expr, ir.Expr], mask: Value | None
) -> Value:
    lane = ctx.current_lane
    buffer: ir.Buffer = e.attr
    shape, scalar, width = lane.shape, memory_type(buffer.dtype), lane.shape.width
    wide = Shape(2 * width)
    masks = _masks(ctx, mask)
    first = ctx.base(pair[0].args[0]).names[0]
    parts: tuple[list[str], list[str]] = ([], [])
    down = ctx.lane_stride(e.args[0]) == -2
    pointers = _pointers(ctx, buffer, first, (-2 if down else 2) * width)
    for pointer, m in zip(pointers, masks, strict=True):
        if down:
            pointer = ctx.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {-2 * (width - 1)}")
            m = None if m is None else reverse(ctx, shape, "i1", m)
        whole = vector_load(ctx, buffer, pointer, _doubled(ctx, shape, m), wide)
        for k in (0, 1):
            numbers = range(k, 2 * width, 2)[:: -1 if down else 1]
            name = ctx.t.shuffle(wide.of(scalar), whole, "poison", numbers)
            parts[k].append(ctx.t.from_memory(shape, buffer.dtype, name))
    for k in (0, 1):
        v = Value(tuple(parts[k]), True, level(ctx, e))
        ctx.define(pair[k], v, ctx.insertion_point(v.level)[0])
    return ctx.values[e]


# -- stores ---------------------------------------------------------------------------------------


def store(ctx: Context, s: ir.Store) -> None:
    value = ctx.value(s.value)
    mask = ctx.value(s.mask) if s.mask is not None else None
    stride = ctx.lane_stride(s.index)
    if stride == 0 and not value.vec and not (mask is not None and mask.vec):
        _store_uniform(ctx, s, value.names[0], mask)
        return
    lane = ctx.current_lane
    shape, dtype, width = lane.shape, s.buffer.dtype, lane.shape.width
    values = [ctx.t.to_memory(shape, dtype, n) for n in ctx.vectors(value, dtype)]
    masks = _masks(ctx, mask)
    if stride in (1, -1):
        first = ctx.base(s.index).names[0]
        pointers = _pointers(ctx, s.buffer, first, stride * width)
        for pointer, name, m in zip(pointers, values, masks, strict=True):
            if stride == -1:
                scalar = memory_type(dtype)
                name = reverse(ctx, shape, scalar, name)
                m = None if m is None else reverse(ctx, shape, "i1", m)
                pointer = ctx.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {1 - width}")
            if s in lane.nontemporal:
                what = f"{shape.of(memory_type(dtype))} {name}, ptr {pointer}"
                how = f"align {width * dtype.itemsize}{ctx.tags[s.buffer]}"
                ctx.t.do(f"store {what}, {how}, !nontemporal !{transposed.NONTEMPORAL}")
            else:
                vector_store(ctx, s.buffer, pointer, name, m, shape)
        return
    for name, i, m in zip(values, ctx.vectors(ctx.value(s.index), ir.INDEX), masks, strict=True):
        # lanes that collide write in order: the last one wins
        masked(ctx, "scatter", s.buffer, i, m, shape, name)


def prefetch(ctx: Context, s: ir.Prefetch) -> None:
    """llvm.prefetch: into L1 (locality 3) or L2 (locality 2)."""
    t, lane = ctx.t, ctx.lane
    stride = ctx.lane_stride(s.index) if s.lanes and lane is not None else 0
    if lane is None or stride == 0:
        pointers = [_pointer(ctx, s.buffer, words.in_first_lane(ctx, s.index, 0))]
    elif stride is None or abs(stride) * s.buffer.dtype.itemsize > transposed.LINE_BYTES:
        pointers, _ = transposed.pointers_of(ctx, s.buffer, s.index)
    else:  # lanes share lines
        first = _pointer(ctx, s.buffer, words.in_first_lane(ctx, s.index, 0))
        span = lane.shape.width * stride * s.buffer.dtype.itemsize
        offsets = range(0, span, transposed.LINE_BYTES if span > 0 else -transposed.LINE_BYTES)
        pointers = [t.new(f"getelementptr i8, ptr {first}, i64 {n}") for n in offsets]
    flags = [("i32", str(n)) for n in (int(s.write), 4 - s.level, 1)]
    for pointer in pointers:
        t.call("void", "llvm.prefetch.p0", ("ptr", pointer), *flags)
    if s.lanes:  # each stays with its access: many in a row would wait for each other
        t.do('call void asm sideeffect "", "~{memory}"()')


def _store_uniform(ctx: Context, s: ir.Store, name: str, mask: Value | None) -> None:
    t, dtype = ctx.t, s.buffer.dtype
    where = ctx.base(s.index).names[0]
    name = ctx.t.to_memory(SCALAR, dtype, name)
    condition = "true" if mask is None else mask.names[0]
    with nullcontext() if condition == "true" else t.conditional(condition, "store"):
        p = _pointer(ctx, s.buffer, where)
        t.do(f"store {memory_type(dtype)} {name}, ptr {p}, {align(dtype)}{ctx.tags[s.buffer]}")


def are_pair(ctx: Context, a: ir.Store, b: ir.Store) -> bool:
    """Whether two stores write both halves of interleaved elements."""
    if a.buffer is not b.buffer or a.mask is not b.mask:
        return False
    if ctx.lane is None or ctx.lane_stride(a.index) != 2 or ctx.lane_stride(b.index) != 2:
        return False
    return are_consecutive((a.index, b.index))


def store_pair(ctx: Context, a: ir.Store, b: ir.Store) -> None:
    """Two interleaved stores of stride 2 as one; both values are computed before either store."""
    lane = ctx.current_lane
    shape, dtype, width = lane.shape, a.buffer.dtype, lane.shape.width
    scalar, wide = memory_type(dtype), Shape(2 * width)
    mask = ctx.value(a.mask) if a.mask is not None else None
    parts = [
        [ctx.t.to_memory(shape, dtype, n) for n in ctx.vectors(ctx.value(s.value), dtype)]
        for s in (a, b)
    ]
    masks = _masks(ctx, mask)
    first = ctx.base(a.index).names[0]
    zipped = [i // 2 + (i % 2) * width for i in range(2 * width)]
    pointers = _pointers(ctx, a.buffer, first, 2 * width)
    for pointer, m, one, other in zip(pointers, masks, *parts, strict=True):
        m = _doubled(ctx, shape, m)
        whole = ctx.t.shuffle(shape.of(scalar), one, other, zipped)

        def plain(pointer: str = pointer, m: str | None = m, whole: str = whole) -> None:
            vector_store(ctx, a.buffer, pointer, whole, m, wide)

        def streamed(pointer: str = pointer, whole: str = whole) -> None:
            what = f"{wide.of(scalar)} {whole}, ptr {pointer}, align {transposed.LINE_BYTES}"
            ctx.t.do(f"store {what}, !nontemporal !{transposed.NONTEMPORAL}")

        nbytes = 2 * width * dtype.itemsize
        if m is None and transposed.goes_around_caches(ctx, a, nbytes):
            aligned = transposed.are_aligned(ctx, [pointer])
            ctx.t.either(aligned, ("stream", streamed), ("plain", plain))
        else:
            plain()
