"""Loads of lanes at a constant stride, from vectors of adjacent elements: one after the other,
reversed, or every second one (interleaved real and imaginary parts)."""

from __future__ import annotations

from numus import ir
from numus.codegen.cpu.accesses import reverse, vector_load
from numus.codegen.llvm.builder import Shape, memory_type
from numus.codegen.llvm.context import Context


def contiguous(ctx: Context, buffer: ir.Buffer, pointer: str, mask: str | None) -> str:
    return vector_load(ctx, buffer, pointer, mask, ctx.current_lane.shape)


def reverse_contiguous(ctx: Context, buffer: ir.Buffer, pointer: str, mask: str | None) -> str:
    shape, scalar = ctx.current_lane.shape, memory_type(buffer.dtype)
    low = ctx.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {1 - shape.width}")
    if mask is not None:
        mask = reverse(ctx, shape, "i1", mask)
    return reverse(ctx, shape, scalar, vector_load(ctx, buffer, low, mask, shape))


def stride2(ctx: Context, buffer: ir.Buffer, pointer: str, mask: str | None) -> str:
    """Even elements of two vectors; the upper one ends at the last element needed."""
    if mask is not None:
        return _stride2_masked(ctx, buffer, pointer, mask)
    shape, scalar = ctx.current_lane.shape, memory_type(buffer.dtype)
    width = shape.width
    low = vector_load(ctx, buffer, pointer, None, shape)
    upper = ctx.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {width - 1}")
    high = vector_load(ctx, buffer, upper, None, shape)
    half = width // 2
    numbers = [2 * i for i in range(half)] + [width + 2 * i + 1 for i in range(half)]
    return ctx.t.shuffle(shape.of(scalar), low, high, numbers)


def stride2_reversed(ctx: Context, buffer: ir.Buffer, pointer: str, mask: str | None) -> str:
    shape, scalar = ctx.current_lane.shape, memory_type(buffer.dtype)
    low = ctx.t.new(f"getelementptr {scalar}, ptr {pointer}, i64 {-2 * (shape.width - 1)}")
    mask = None if mask is None else reverse(ctx, shape, "i1", mask)
    return reverse(ctx, shape, scalar, stride2(ctx, buffer, low, mask))


def _stride2_masked(ctx: Context, buffer: ir.Buffer, pointer: str, mask: str) -> str:
    shape, scalar = ctx.current_lane.shape, memory_type(buffer.dtype)
    width = shape.width
    wide = Shape(2 * width)
    # lane i is element 2i; odd elements are masked off
    lanes = [i // 2 if i % 2 == 0 else width for i in range(2 * width)]
    wide_mask = ctx.t.shuffle(shape.of("i1"), mask, "zeroinitializer", lanes)
    name = vector_load(ctx, buffer, pointer, wide_mask, wide)
    return ctx.t.shuffle(wide.of(scalar), name, "poison", range(0, 2 * width, 2))
