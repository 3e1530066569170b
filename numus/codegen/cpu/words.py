"""SIMD loads of words at byte addresses: blocks of quantised weights, read where they lie.

A block is a few bytes of scales and runs of codes, so lanes that take the words of a row one by one
jump at the end of each run: the address is a sum of quotients and remainders of the lane. Where
these are by powers of two, the distance of each lane from the first is known when code is written,
and a vector is a few shorter ones, joined; a gather would load every lane by itself. Elements that
many lanes share are broadcast.
"""

from __future__ import annotations

import math
from itertools import pairwise

from numus import ir
from numus.codegen.cpu import transposed
from numus.codegen.llvm.builder import Shape, Value, memory_type
from numus.codegen.llvm.context import Context
from numus.codegen.llvm.divergence import loads_of

WORD_BYTES = 4
MAX_BROADCASTS = 4  # elements that are loaded one by one for several lanes each
TRANSPOSED = 4  # adjacent words that are loaded together, 16 bytes


def is_word(e: ir.Expr) -> bool:
    """Whether a load reads a word from a buffer of bytes."""
    return e.dtype is not e.attr.dtype


def lane_offsets(ctx: Context, e: ir.Expr) -> tuple[list[int], int] | None:
    """(distances of the lanes from the first one, a number that divides the first one's value).

    The divisor is 0 of a value that is 0 in the first lane. None: they are not known.
    """
    lane = ctx.current_lane
    width = lane.shape.width
    if e is lane.var:
        return (list(range(width)), width) if lane.aligned else None
    if ctx.lane_stride(e) == 0:
        return [0] * width, abs(int(e.attr)) if e.op == "const" else 1
    if len(e.args) != 2 or e.op not in ("add", "sub", "mul", "idiv", "irem"):
        return None
    found = lane_offsets(ctx, e.args[0])
    if e.op in ("add", "sub"):
        other = lane_offsets(ctx, e.args[1])
        if found is None or other is None:
            return None
        sign = 1 if e.op == "add" else -1
        sums = [a + sign * b for a, b in zip(found[0], other[0], strict=True)]
        return sums, math.gcd(found[1], other[1])
    if found is None or e.args[1].op != "const":
        return None
    offsets, multiple = found
    by = int(e.args[1].attr)
    if e.op == "mul":
        return [x * by for x in offsets], multiple * by
    if by <= 0 or min(offsets) < 0:
        return None
    if multiple % by == 0:  # also where the first value is 0
        if e.op == "irem":
            return [x % by for x in offsets], 0
        return [x // by for x in offsets], multiple // by
    if by % multiple == 0 and max(offsets) < multiple:
        return (offsets, multiple) if e.op == "irem" else ([0] * width, 1)
    return None


def in_first_lane(ctx: Context, e: ir.Expr, vector: int) -> str:
    """The scalar value of an index in the first lane of a vector."""
    if ctx.lane_stride(e) == 0:
        return ctx.value(e).names[0]
    lane, t = ctx.current_lane, ctx.t
    if e is lane.var:
        first = lane.first.names[0]
        return t.new(f"add i64 {first}, {vector * lane.shape.width}") if vector else first
    a, b = (in_first_lane(ctx, x, vector) for x in e.args)
    op = {"idiv": "udiv", "irem": "urem"}.get(e.op, e.op)
    return t.new(f"{op} i64 {a}, {b}")


def few_offsets(ctx: Context, index: ir.Expr) -> list[int]:
    """Known distances of all lanes from the first, if they are few and lanes share them."""
    known = lane_offsets(ctx, index)
    if known is None or len(set(known[0])) > min(MAX_BROADCASTS, len(known[0]) - 1):
        return []
    return known[0]


def load_few(
    ctx: Context, buffer: ir.Buffer, index: ir.Expr, offsets: list[int], vector: int
) -> str:
    """Elements at known distances, of which several lanes share each: broadcasts, selected."""
    t, shape, scalar = ctx.t, ctx.current_lane.shape, memory_type(buffer.dtype)
    access = f"align {buffer.dtype.itemsize}{ctx.tags[buffer]}"
    first = in_first_lane(ctx, index, vector)
    pointer = t.new(f"getelementptr {scalar}, ptr {ctx.buffers[buffer]}, i64 {first}")
    found = ""
    for offset in dict.fromkeys(offsets):
        at = t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {offset}") if offset else pointer
        name = t.new(f"load {scalar}, ptr {at}, {access}")
        wide = ctx.splat(scalar, Value((name,), False, ctx.depth), shape)
        if found:
            lanes = ", ".join(f"i1 {str(o == offset).lower()}" for o in offsets)
            ty = shape.of(scalar)
            wide = t.new(f"select {shape.of('i1')} <{lanes}>, {ty} {wide}, {ty} {found}")
        found = wide
    return found


def load(ctx: Context, e: ir.Expr, masks: tuple[str | None, ...]) -> Value:
    """Words at the byte index of every lane."""
    t, index, shape = ctx.t, e.args[0], ctx.current_lane.shape
    buffer, tags = ctx.buffers[e.attr], ctx.tags[e.attr]
    known = lane_offsets(ctx, index)
    if known is not None and masks == (None,) and (group := _adjacent(ctx, e, known[0])):
        _load_transposed(ctx, group, known[0])
        return ctx.values[e]
    if known is None or any(m is not None for m in masks):
        every = ctx.vectors(ctx.value(index), ir.INDEX)
        names = [_gather(ctx, buffer, i, m, tags) for i, m in zip(every, masks, strict=True)]
        return Value(tuple(names), True)
    names = []
    for u in range(len(masks)):
        first = in_first_lane(ctx, index, u)
        pointer = t.new(f"getelementptr i8, ptr {buffer}, i64 {first}")
        runs: dict[tuple[int, int], str] = {}
        parts = []
        for offset, count in _runs(known[0]):
            if (offset, count) not in runs:
                at = t.new(f"getelementptr i8, ptr {pointer}, i64 {offset}") if offset else pointer
                ty = Shape(count).of("i32")
                runs[offset, count] = t.new(f"load {ty}, ptr {at}, align 1{tags}")
            parts.append(runs[offset, count])
        names.append(_joined(ctx, parts, shape.width // len(parts)))
    return Value(tuple(names), True)


def _adjacent(ctx: Context, e: ir.Expr, offsets: list[int]) -> list[ir.Expr]:
    """Four loads of adjacent words, this one among them, of lanes that lie apart."""
    width = ctx.current_lane.shape.width
    if width % TRANSPOSED or not ctx.blocks or any(b - a < 16 for a, b in pairwise(offsets)):
        return []
    base, own = ir.split_constant(e.args[0])
    found = {}
    for x in loads_of(ctx.blocks[-1].body):
        if x.attr is e.attr and is_word(x) and x not in ctx.values:
            other, at = ir.split_constant(x.args[0])
            if other is base:
                found[at] = x
    for first in range(own - 4 * (TRANSPOSED - 1), own + 1, 4):
        group = [found.get(first + 4 * i) for i in range(TRANSPOSED)]
        if None not in group:
            return [x for x in group if x is not None]
    return []


def _load_transposed(ctx: Context, group: list[ir.Expr], offsets: list[int]) -> None:
    """Adjacent words of each lane by one load, then lanes and words exchanged."""
    t, index, width = ctx.t, group[0].args[0], ctx.current_lane.shape.width
    level = ctx.value(index).level
    first = in_first_lane(ctx, index, 0)
    pointer = t.new(f"getelementptr i8, ptr {ctx.buffers[group[0].attr]}, i64 {first}")
    short = Shape(TRANSPOSED).of("i32")
    rows = []
    for offset in offsets:
        at = t.new(f"getelementptr i8, ptr {pointer}, i64 {offset}") if offset else pointer
        rows.append(t.new(f"load {short}, ptr {at}, align 1{ctx.tags[group[0].attr]}"))
    registers = [_joined(ctx, rows[j::TRANSPOSED], TRANSPOSED) for j in range(TRANSPOSED)]
    names = transposed.transpose(ctx, Shape(width).of("i32"), registers, width)
    for x, name in zip(group, names, strict=True):
        v = Value((name,), True, level)
        ctx.define(x, v, ctx.insertion_point(level)[0])


def load_scalar(ctx: Context, e: ir.Expr) -> Value:
    """The word at an index that is the same in all lanes."""
    at = ctx.base(e.args[0]).names[0]
    pointer = ctx.t.new(f"getelementptr i8, ptr {ctx.buffers[e.attr]}, i64 {at}")
    return Value((ctx.t.new(f"load i32, ptr {pointer}, align 1{ctx.tags[e.attr]}"),), False)


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    """(offset, lanes) of adjacent words: equal powers of two, so that they join pairwise."""
    length = len(offsets)
    breaks = [i for i, (a, b) in enumerate(pairwise(offsets), 1) if b != a + WORD_BYTES]
    while length > 1 and any(i % length for i in breaks):
        length //= 2
    return [(offsets[i], length) for i in range(0, len(offsets), length)]


def _joined(ctx: Context, parts: list[str], width: int) -> str:
    while len(parts) > 1:
        ty, lanes = Shape(width).of("i32"), range(2 * width)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [ctx.t.shuffle(ty, a, b, lanes) for a, b in pairs]
        width *= 2
    return parts[0]


def _gather(ctx: Context, buffer: str, index: str, mask: str | None, tags: str) -> str:
    s = ctx.current_lane.shape
    at = ctx.t.new(f"getelementptr i8, ptr {buffer}, {s.of('i64')} {index}")
    where = (f"{s.of('ptr')} align 1", at), (s.of("i1"), mask or "splat (i1 true)")
    function = f"llvm.masked.gather.{s.suffix('i32')}.v{s.width}p0"
    args = (*where, (s.of("i32"), "zeroinitializer"))
    return ctx.t.call(s.of("i32"), function, *args, tags=tags)
