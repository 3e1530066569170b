"""Loads and stores of buffers in WGSL, with sub-word elements packed into 32-bit words.

Elements of 32 and 64 bits are stored as they are, float16 too where the adapter has it. Other
8- and 16-bit elements share words: a store changes its own bits by an atomic XOR, so threads that
write to one word do not disturb each other. Scratch elements take whole words.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from numus import dtypes as dt
from numus import ir
from numus.codegen.wgsl import arithmetic
from numus.codegen.wgsl.context import BufferBinding, ShaderContext
from numus.codegen.wgsl.target import WgslTarget
from numus.codegen.wgsl.vectors import vector_load
from numus.dtypes import DType


def storage_of(buffer: ir.Buffer, target: WgslTarget) -> str:
    if buffer.access == "scratch":
        return "word"
    if buffer.dtype.bits >= 32:
        return "plain"
    if buffer.dtype is dt.float16 and target.f16:
        return "half"
    return "packed" if buffer.access == "read" else "atomic"


def element_type(storage: str, carrier: str) -> str:
    """The WGSL type of an element."""
    return {"half": "f16", "packed": "u32", "atomic": "atomic<u32>"}.get(storage, carrier)


def address(x: ShaderContext, binding: BufferBinding, index: ir.Expr) -> str:
    text = x.index(index)
    return f"{binding.base} + {text}" if binding.base else text


def load(x: ShaderContext, e: ir.Expr) -> str:
    """An element; where the mask is false, the address is that of the first one."""
    dtype, binding = e.dtype, x.bindings[e.attr]
    if binding.width > 1 and (found := vector_load(e, binding.width)) is not None:
        return f"{x.value(found[0])}.{'xyzw'[found[1]]}"
    zero = arithmetic.literal(0, dtype, x.type_of(dtype))
    return _masked(x, e, zero, lambda at: load_element(x, dtype, binding, at))


def load_f16_as_f32(x: ShaderContext, e: ir.Expr) -> str:
    """A float16 cast to float32 directly, not through its bits."""
    return _masked(x, e, "0.0f", lambda at: f"f32({x.bindings[e.attr].load(at)})")


def _masked(x: ShaderContext, e: ir.Expr, zero: str, load: Callable[[str], str]) -> str:
    at = address(x, x.bindings[e.attr], e.args[0])
    if len(e.args) == 1:
        return load(at)
    mask = x.value(e.args[1])
    return f"select({zero}, {load(x.let(f'select(0, {at}, {mask})'))}, {mask})"


def load_element(x: ShaderContext, dtype: DType, binding: BufferBinding, at: str) -> str:
    """The element at an address, in its carrier type."""
    if binding.width > 1:
        at = x.let(at)
    if binding.storage in ("plain", "word"):
        element = binding.load(at)
        return f"({element} != 0u)" if dtype.kind == "bool" else element
    if binding.storage == "half":
        return f"pack2x16float(vec2<f32>(f32({binding.load(at)}), 0.0))"
    at = x.let(f"u32({at})")
    per, bits = 32 // dtype.bits, dtype.bits
    where = f"{at} >> {per.bit_length() - 1}u"
    word = binding.atomic("Load", where) if binding.storage == "atomic" else binding.load(where)
    shift = f"({at} & {per - 1}u) * {bits}u"
    if dtype.kind == "int":
        return f"extractBits(bitcast<i32>({word}), {shift}, {bits}u)"
    value = f"extractBits({word}, {shift}, {bits}u)"
    return f"({value} != 0u)" if dtype.kind == "bool" else value


def store(x: ShaderContext, s: ir.Store) -> None:
    binding, dtype = x.bindings[s.buffer], s.buffer.dtype
    ty = x.type_of(dtype)
    at = address(x, binding, s.index)
    value = x.cast_to(s.value, ty)
    with x.block(f"if ({x.value(s.mask)})") if s.mask is not None else nullcontext():
        if binding.width > 1:
            at = x.let(at)
        if binding.storage in ("plain", "word"):
            x.emit(binding.store(at, bits_of(value, ty) if ty == "bool" else value))
        elif binding.storage == "half":
            x.emit(binding.store(at, f"f16(unpack2x16float({value}).x)"))
        else:
            _store_atomic(x, binding, dtype, at, bits_of(value, ty))


def bits_of(value: str, ty: str) -> str:
    """A sub-word value as the low bits of a u32."""
    if ty == "bool":
        return f"select(0u, 1u, {value})"
    return value if ty == "u32" else f"bitcast<u32>({value})"


def packed_bits(x: ShaderContext, s: ir.Store) -> str:
    """The bits that a store of a sub-word element would write."""
    ty = x.type_of(s.buffer.dtype)
    value = bits_of(x.cast_to(s.value, ty), ty)
    return x.let(f"{value} & {(1 << s.buffer.dtype.bits) - 1}u")


def _store_atomic(
    x: ShaderContext, binding: BufferBinding, dtype: DType, at: str, bits: str
) -> None:
    """XOR the bits that differ: no other thread writes to these bits of the word."""
    per, width = 32 // dtype.bits, dtype.bits
    at = x.let(f"u32({at})")
    where = x.let(f"{at} >> {per.bit_length() - 1}u")
    shift = x.let(f"({at} & {per - 1}u) * {width}u")
    old = x.let(f"{binding.atomic('Load', where)} >> {shift}")
    mask = (1 << width) - 1
    x.emit(binding.atomic("Xor", where, f"(({old} ^ {bits}) & {mask}u) << {shift}") + ";")


def store_packed(x: ShaderContext, s: ir.Store, bits: list[str]) -> None:
    """Store four consecutive elements that fill whole words: no read-modify-write is needed."""
    binding, width = x.bindings[s.buffer], s.buffer.dtype.bits
    per = 32 // width
    at = x.let(f"u32({address(x, binding, s.index)} + 0) >> {per.bit_length() - 1}u")
    for word in range(4 // per):
        own = bits[word * per : (word + 1) * per]
        parts = [f"({b} << {k * width}u)" for k, b in enumerate(own)]
        x.emit(binding.atomic("Store", f"{at} + {word}u", " | ".join(parts)) + ";")
