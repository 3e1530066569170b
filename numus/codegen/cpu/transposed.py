"""Adjacent elements of every lane, where lanes lie apart: vector accesses transposed in registers.

A row per lane, or the interleaved results of a butterfly: lane l accesses `count` adjacent elements
at address a_l. Instead of `count` gathers, a vector of adjacent elements is accessed for each lane
and the matrix of lanes and elements is transposed by log2(count) stages of two-operand shuffles
(Eklundh 1972), each of which exchanges a bit of the register's number with one of the lane's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from numus import ir
from numus.codegen.llvm.builder import Shape, Value, memory_type
from numus.codegen.llvm.context import Context
from numus.codegen.llvm.divergence import loads_of, written_by

LINE_BYTES = 64  # of a cache line
NONTEMPORAL = 0  # metadata node of non-temporal stores
MIN_COUNT = 4  # adjacent elements that are worth a transpose
PREFETCH_LOCALITY = 3  # of llvm.prefetch: L1
PREFETCH_VECTORS = 2  # ahead: rows of 12 take 0.46 ms, and 0.58 with the next vector's alone
Element = tuple[ir.Buffer, ir.Expr, int, ir.Expr | None]  # buffer, base, its factor, mask


def _scaled(index: ir.Expr) -> tuple[ir.Expr, int, int]:
    """(base, factor, offset) of base * factor + offset."""
    base, factor, offset = index, 1, 0
    while base.op in ("add", "mul") and base.args[1].op == "const":
        number = int(base.args[1].attr)
        if base.op == "add":
            offset += factor * number
        else:
            factor *= number
        base = base.args[0]
    return base, factor, offset


def _element(buffer: ir.Buffer, index: ir.Expr, mask: ir.Expr | None) -> tuple[Element, int]:
    base, factor, offset = _scaled(index)
    return (buffer, base, factor, mask), offset


def _runs(offsets: Sequence[int], width: int) -> list[list[int]]:
    """Consecutive offsets in groups of a power of two, at most `width`."""
    found: list[list[int]] = []
    at = 0
    while at < len(offsets):
        count = 1
        while at + count < len(offsets) and offsets[at + count] == offsets[at] + count:
            count += 1
        count = min(width, 1 << (count.bit_length() - 1))
        found.append(list(offsets[at : at + count]))
        at += count
    return [run for run in found if len(run) >= MIN_COUNT]


def _applies(ctx: Context) -> bool:
    lane = ctx.lane
    return lane is not None and lane.mask is None and lane.unroll == 1 and lane.shape.width > 2


# -- addresses ------------------------------------------------------------------------------------


def _stride(ctx: Context, e: ir.Expr) -> str | None:
    """The stride of an index from lane to lane as a scalar, None where it is not uniform."""
    known = ctx.lane_stride(e)
    if known is not None:
        return str(known)
    if e.op in ("add", "sub"):
        a, b = (_stride(ctx, x) for x in e.args)
        if a is None or b is None:
            return None
        return a if b == "0" else ctx.t.new(f"{e.op} i64 {a}, {b}")
    if e.op == "mul":
        for x, by in (e.args, e.args[::-1]):
            if ctx.lane_stride(by) == 0:
                a = _stride(ctx, x)
                return None if a is None else ctx.t.new(f"mul i64 {a}, {ctx.value(by).names[0]}")
    return None


def _first(ctx: Context, e: ir.Expr) -> str:
    """The index of the first lane."""
    (name,) = ctx.vectors(ctx.values[e], ir.INDEX)
    return ctx.t.new(f"extractelement {ctx.current_lane.shape.of('i64')} {name}, i64 0")


def pointers_of(ctx: Context, buffer: ir.Buffer, index: ir.Expr) -> tuple[list[str], str | None]:
    """A pointer to the first element of each lane, and how many elements lie between the first
    lanes of this vector and of the next, where that is known."""
    t, width = ctx.t, ctx.current_lane.shape.width
    scalar = memory_type(buffer.dtype)
    stride = _stride(ctx, index)
    whole = ctx.value(index)
    if stride is None:
        (name,) = ctx.vectors(whole, ir.INDEX)
        ty = ctx.current_lane.shape.of("i64")
        each = [t.new(f"extractelement {ty} {name}, i64 {i}") for i in range(width)]
        base = ctx.buffers[buffer]
        return [t.new(f"getelementptr {scalar}, ptr {base}, i64 {i}") for i in each], None
    first = _first(ctx, index)
    pointer = t.new(f"getelementptr {scalar}, ptr {ctx.buffers[buffer]}, i64 {first}")
    found = [pointer]
    for _ in range(1, width):
        found.append(t.new(f"getelementptr {scalar}, ptr {found[-1]}, i64 {stride}"))
    known = buffer.access != "scratch"
    return found, t.new(f"mul i64 {stride}, {PREFETCH_VECTORS * width}") if known else None


def _is_prefetched(ctx: Context, buffer: ir.Buffer, write: bool) -> bool:
    """Whether the statements around say themselves what comes next."""
    fetches = (s for s in ctx.blocks[-1].body if isinstance(s, ir.Prefetch)) if ctx.blocks else ()
    return any(s.buffer is buffer and s.write == write for s in fetches)


def _prefetch(
    ctx: Context, buffer: ir.Buffer, pointer: str, distance: str | None, write: bool
) -> None:
    """What the next vector of lanes accesses, which hardware does not find: lanes lie too far
    apart. Each stays with an access of this vector: many in a row would wait for each other, and
    with them the loads behind."""
    if distance is not None and not _is_prefetched(ctx, buffer, write):
        ty = memory_type(buffer.dtype)
        where = ctx.t.new(f"getelementptr {ty}, ptr {pointer}, i64 {distance}")
        flags = [("i32", str(n)) for n in (int(write), PREFETCH_LOCALITY, 1)]
        ctx.t.call("void", "llvm.prefetch.p0", ("ptr", where), *flags)
        ctx.t.do('call void asm sideeffect "", "~{memory}"()')


# -- transposes -----------------------------------------------------------------------------------


def transpose(ctx: Context, ty: str, registers: list[str], width: int) -> list[str]:
    """Registers and lanes exchanged, within groups of as many lanes as there are registers."""
    count, bit = len(registers), 1
    while bit < count:
        low = [i if not i & bit else width + (i ^ bit) for i in range(width)]
        high = [i | bit if not i & bit else width + i for i in range(width)]
        new = list(registers)
        for i in range(count):
            if not i & bit:
                a, b = registers[i], registers[i | bit]
                new[i] = ctx.t.shuffle(ty, a, b, low)
                new[i | bit] = ctx.t.shuffle(ty, a, b, high)
        registers, bit = new, 2 * bit
    return registers


def _joined(ctx: Context, scalar: str, parts: list[str], count: int) -> str:
    """Vectors of `count` elements, end to end."""
    while len(parts) > 1:
        ty = Shape(count).of(scalar)
        parts = [
            ctx.t.shuffle(ty, parts[i], parts[i + 1], range(2 * count))
            for i in range(0, len(parts), 2)
        ]
        count *= 2
    return parts[0]


# -- loads ----------------------------------------------------------------------------------------


def load_group(ctx: Context, e: ir.Expr) -> list[ir.Expr] | None:
    """The loads of adjacent elements by the same lanes that this block makes, with this one."""
    if not ctx.blocks or not _applies(ctx) or e.attr.dtype.kind == "bool":
        return None
    block = ctx.blocks[-1]
    if block.groups is None:
        block.groups = _find_groups(ctx, block.body)
    group = block.groups.get(e)
    if group is None or any(x in ctx.values for x in group):
        return None
    return group


def _find_groups(ctx: Context, body: list[ir.Stmt]) -> dict[ir.Expr, list[ir.Expr]]:
    by_base: dict[Element, dict[int, ir.Expr]] = {}
    lane, written = ctx.current_lane, written_by(body)
    for e in loads_of(body):
        is_whole = len(e.args) == 1 and e.attr not in written
        if is_whole and ctx.lane_stride(e.args[0]) not in (0, 1, -1, 2, -2):
            key, offset = _element(e.attr, e.args[0], None)
            by_base.setdefault(key, {})[offset] = e
    groups: dict[ir.Expr, list[ir.Expr]] = {}
    for loads in by_base.values():
        for run in _runs(sorted(loads), lane.shape.width):
            group = [loads[offset] for offset in run]
            groups.update(dict.fromkeys(group, group))
    return groups


def load(ctx: Context, group: list[ir.Expr], level: int) -> None:
    """Define all loads of a group."""
    buffer: ir.Buffer = group[0].attr
    t, shape, count = ctx.t, ctx.current_lane.shape, len(group)
    width, scalar = shape.width, memory_type(buffer.dtype)
    piece, ty = Shape(count).of(scalar), shape.of(scalar)
    pointers, distance = pointers_of(ctx, buffer, group[0].args[0])
    how = f"align {buffer.dtype.itemsize}{ctx.tags[buffer]}"
    pieces = []
    for p in pointers:
        _prefetch(ctx, buffer, p, distance, False)
        pieces.append(t.new(f"load {piece}, ptr {p}, {how}"))
    registers = [_joined(ctx, scalar, pieces[i::count], count) for i in range(count)]
    for e, name in zip(group, transpose(ctx, ty, registers, width), strict=True):
        v = Value((t.from_memory(shape, buffer.dtype, name),), True, level)
        ctx.define(e, v, ctx.insertion_point(level)[0])


# -- stores ---------------------------------------------------------------------------------------


def store_count(ctx: Context, body: Sequence[ir.Stmt], first: int) -> int:
    """How many stores from this one on are of adjacent elements by the same lanes: a power of two,
    0 where there are too few."""
    s = body[first]
    if not isinstance(s, ir.Store) or s.mask is not None or not _applies(ctx):
        return 0
    if s.buffer.dtype.kind == "bool" or ctx.lane_stride(s.index) in (0, 1, -1):
        return 0
    key, start = _element(s.buffer, s.index, None)
    width, count = ctx.current_lane.shape.width, 1
    while count < width and first + count < len(body):
        other = body[first + count]
        if not isinstance(other, ir.Store) or other.mask is not None:
            break
        if _element(other.buffer, other.index, None) != (key, start + count):
            break
        count += 1
    count = 1 << (count.bit_length() - 1)
    stride = ctx.lane_stride(s.index)
    overlap = stride is not None and abs(stride) < count  # the order of the stores matters
    return count if count >= MIN_COUNT and not overlap else 0


def store(ctx: Context, stores: Sequence[ir.Store]) -> None:
    """Stores of adjacent elements; all values are computed before the first store."""
    buffer, count = stores[0].buffer, len(stores)
    t, shape, dtype = ctx.t, ctx.current_lane.shape, buffer.dtype
    width, scalar = shape.width, memory_type(dtype)
    ty = shape.of(scalar)
    columns = []
    for s in stores:
        (name,) = ctx.vectors(ctx.value(s.value), dtype)
        columns.append(t.to_memory(shape, dtype, name))
    pointers, distance = pointers_of(ctx, buffer, stores[0].index)
    registers = transpose(ctx, ty, columns, width)
    how = f"align {dtype.itemsize}{ctx.tags[buffer]}"
    piece, pieces = Shape(count).of(scalar), []
    for i in range(width):
        name, start = registers[i % count], i // count * count
        if count < width:
            name = t.shuffle(ty, name, "poison", range(start, start + count))
        pieces.append(name)

    def plain() -> None:
        for name, pointer in zip(pieces, pointers, strict=True):
            t.do(f"store {piece} {name}, ptr {pointer}, {how}")
            _prefetch(ctx, buffer, pointer, distance, True)

    def streamed() -> None:
        for name, pointer in zip(pieces, pointers, strict=True):
            what = f"{piece} {name}, ptr {pointer}, align {LINE_BYTES}"
            t.do(f"store {what}, !nontemporal !{NONTEMPORAL}")

    if goes_around_caches(ctx, stores[0], count * dtype.itemsize):
        t.either(are_aligned(ctx, pointers[:2]), ("stream", streamed), ("plain", plain))
    else:
        plain()


def goes_around_caches(ctx: Context, s: ir.Store, nbytes: int) -> bool:
    """A store of `nbytes` adjacent bytes has a non-temporal form where lines begin."""
    return s.streams and ctx.t.target.arch == "x86" and nbytes % LINE_BYTES == 0


def are_aligned(ctx: Context, pointers: list[str]) -> str:
    """Whether lines of the caches begin at these addresses."""
    t = ctx.t
    numbers = [t.new(f"ptrtoint ptr {p} to i64") for p in pointers]
    joined = reduce(lambda a, b: t.new(f"or i64 {a}, {b}"), numbers)
    return t.new(f"icmp eq i64 {t.new(f'and i64 {joined}, {LINE_BYTES - 1}')}, 0")
