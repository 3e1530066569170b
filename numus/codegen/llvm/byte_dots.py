"""Dot products of bytes: one instruction (VNNI, usdot, dp4a), or products of pairs (pmaddubsw).

Codes are unsigned and activations signed. Without an instruction for both, codes below 128 are
signed bytes (sdot), or their products add up to 16 bits in pairs (pmaddubsw, as in llama.cpp's
kernels); others are widened to pairs of 16 bits (pmaddwd), or taken less 128 (sdot), so that sums
are exact in all cases. LLVM's own partial reduction may put a product into any lane.
"""

from __future__ import annotations

from numus.codegen.llvm.builder import IRBuilder, Ops, Shape

_USDOT, _SDOT = (f"llvm.aarch64.neon.{name}.v4i32.v16i8" for name in ("usdot", "sdot"))
# Products of bytes in pairs, and of 16-bit integers in pairs, by words of a vector.
_BYTE_PAIRS = {
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    16: "llvm.x86.avx512.pmaddubs.w.512",
}
_SHORT_PAIRS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}


def dot4(t: IRBuilder, s: Shape, total: str, codes: str, x: str, small: bool) -> str:
    """`small`: codes are below 128."""
    how, width = t.target.byte_dot, s.width
    if how == "dp4a":
        words = (("i32", codes), ("i32", x), ("i32", total))
        return t.call("i32", "llvm.nvvm.idp4a.u.s", *words)
    if how == "vnni" and width in _BYTE_PAIRS:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * width}"
        return _by_bytes(t, s, name, total, _as_bytes(t, s, codes), _as_bytes(t, s, x))
    if how == "usdot" and width == 4:
        return _by_bytes(t, s, _USDOT, total, _as_bytes(t, s, codes), _as_bytes(t, s, x))
    if how == "sdot" and width == 4:
        return _signed(t, s, total, codes, x, small)
    if how == "pmadd" and width in _BYTE_PAIRS:
        return _pairs(t, s, total, codes, x, small)
    return _one_by_one(t.ops(s, "i32"), total, codes, x)


def _as_bytes(t: IRBuilder, s: Shape, words: str) -> str:
    return t.new(f"bitcast {s.of('i32')} {words} to {Shape(4 * s.width).of('i8')}")


def _by_bytes(t: IRBuilder, s: Shape, name: str, total: str, codes: str, x: str) -> str:
    own, bytes_ = s.of("i32"), Shape(4 * s.width).of("i8")
    return t.call(own, name, (own, total), (bytes_, codes), (bytes_, x))


def _signed(t: IRBuilder, s: Shape, total: str, codes: str, x: str, small: bool) -> str:
    """Σ (c - 128) x + 2 Σ 64 x."""
    x = _as_bytes(t, s, x)
    if not small:
        codes = t.ops(s, "i32")("xor", codes, 0x80808080 - (1 << 32))
        for _ in range(2):
            sixty_four = Shape(4 * s.width).const("i8", 64)
            total = _by_bytes(t, s, _SDOT, total, sixty_four, x)
    return _by_bytes(t, s, _SDOT, total, _as_bytes(t, s, codes), x)


def _pairs(t: IRBuilder, s: Shape, total: str, codes: str, x: str, small: bool) -> str:
    own, op = s.of("i32"), t.ops(Shape(2 * s.width), "i16")
    bytes_, name = Shape(4 * s.width).of("i8"), _SHORT_PAIRS[s.width]
    if small:  # 2 * 127 * 128 is below 1 << 15
        pairs = t.call(
            *(op.ty, _BYTE_PAIRS[s.width]), *((bytes_, _as_bytes(t, s, v)) for v in (codes, x))
        )
        found = t.call(own, name, (op.ty, pairs), (op.ty, op.const(1)))
        return t.ops(s, "i32")("add", total, found)
    a, b = (t.new(f"bitcast {own} {v} to {op.ty}") for v in (codes, x))
    even = op("and", a, 255), op("ashr", op("shl", b, 8), 8)
    odd = op("lshr", a, 8), op("ashr", b, 8)
    for pair in (even, odd):
        found = t.call(own, name, *((op.ty, v) for v in pair))
        total = t.ops(s, "i32")("add", total, found)
    return total


def tiny(t: IRBuilder, s: Shape, total: str, *words: str) -> str:
    """A few dot products of codes that are so small that all are added up in 16 bits, by pairs of
    products (pmaddubsw). `words`: of codes and of activations in turn."""
    pairs = list(zip(words[::2], words[1::2], strict=True))
    if s.width not in _BYTE_PAIRS:
        for codes, x in pairs:
            total = _one_by_one(t.ops(s, "i32"), total, codes, x)
        return total
    op, bytes_, found = t.ops(Shape(2 * s.width), "i16"), Shape(4 * s.width).of("i8"), ""
    for pair in pairs:
        operands = ((bytes_, _as_bytes(t, s, v)) for v in pair)
        product = t.call(op.ty, _BYTE_PAIRS[s.width], *operands)
        found = op("add", found, product) if found else product
    name = _SHORT_PAIRS[s.width]
    wide = t.call(s.of("i32"), name, (op.ty, found), (op.ty, op.const(1)))
    return t.ops(s, "i32")("add", total, wide)


def _one_by_one(op: Ops, total: str, codes: str, x: str) -> str:
    for i in range(4):
        code = op("and", op("lshr", codes, 8 * i), 255)
        total = op("add", total, op("mul", code, op("ashr", op("shl", x, 24 - 8 * i), 24)))
    return total
