"""Single SIMD accesses: a vector at a pointer, masked ones, gathers and scatters."""

from __future__ import annotations

from numus import ir
from numus.codegen.llvm.builder import Shape, memory_type
from numus.codegen.llvm.context import Context
from numus.dtypes import DType


def align(dtype: DType) -> str:
    return f"align {dtype.itemsize}"


def reverse(ctx: Context, shape: Shape, scalar: str, name: str) -> str:
    return ctx.t.shuffle(shape.of(scalar), name, "poison", range(shape.width)[::-1])


def vector_load(
    ctx: Context, buffer: ir.Buffer, pointer: str, mask: str | None, shape: Shape
) -> str:
    if mask is not None:
        return masked(ctx, "load", buffer, pointer, mask, shape)
    ty = shape.of(memory_type(buffer.dtype))
    return ctx.t.new(f"load {ty}, ptr {pointer}, {align(buffer.dtype)}{ctx.tags[buffer]}")


def masked(
    ctx: Context, op: str, buffer: ir.Buffer, at: str, mask: str | None, s: Shape, name: str = ""
) -> str:
    """A masked load or store at a pointer, gather or scatter at indices."""
    scalar = memory_type(buffer.dtype)
    ty, pointers, suffix = s.of(scalar), "ptr", "p0"
    if op in ("gather", "scatter"):
        pointers, suffix = s.of("ptr"), f"v{s.width}p0"
        base = ctx.buffers[buffer]
        at = ctx.t.new(f"getelementptr {scalar}, ptr {base}, {s.of('i64')} {at}")
    where = (f"{pointers} {align(buffer.dtype)}", at), (s.of("i1"), mask or "splat (i1 true)")
    args = ((ty, name), *where) if name else (*where, (ty, "zeroinitializer"))
    function = f"llvm.masked.{op}.{s.suffix(scalar)}.{suffix}"
    return ctx.t.call("void" if name else ty, function, *args, tags=ctx.tags[buffer])


def vector_store(
    ctx: Context, buffer: ir.Buffer, pointer: str, name: str, mask: str | None, shape: Shape
) -> None:
    if mask is None:
        ty, how = shape.of(memory_type(buffer.dtype)), f"{align(buffer.dtype)}{ctx.tags[buffer]}"
        ctx.t.do(f"store {ty} {name}, ptr {pointer}, {how}")
    else:
        masked(ctx, "store", buffer, pointer, mask, shape, name)
