"""Scalar and vector arithmetic of the kernel IR in LLVM IR.

Strict IEEE: no fast-math flags, and a multiply-add is fused only where the IR says `fma`.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.codegen.llvm.builder import (
    IRBuilder,
    Shape,
    float_literal,
    register_type,
)
from numus.dtypes import DType

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BINARY = {"add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr"}
_FLOAT_UNARY = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "rint": "roundeven",
    "abs": "fabs",
}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}


class UnsupportedError(Exception):
    """An operation that is not defined for its dtype."""


def _float(dtype: DType) -> bool:
    return dtype.kind == "float"


def unary(t: IRBuilder, s: Shape, op: str, dtype: DType, x: str) -> str:
    ty, scalar = s.type(dtype), register_type(dtype)
    if dtype.is_narrow_float:
        raise UnsupportedError(f"{op} on {dtype}")
    if _float(dtype):
        if op == "neg":
            return t.new(f"fneg {ty} {x}")
        if op in _FLOAT_UNARY:
            return t.call(ty, f"llvm.{_FLOAT_UNARY[op]}.{s.suffix(scalar)}", (ty, x))
        raise UnsupportedError(f"{op} on {dtype}")
    if op == "neg":
        return t.new(f"sub {ty} {s.const(scalar, 0)}, {x}")
    if op == "not":
        return t.new(f"xor {ty} {x}, {s.const(scalar, -1 if dtype.is_integer else 'true')}")
    if op in ("floor", "ceil", "trunc", "rint") or (op == "abs" and dtype.kind != "int"):
        return x
    if op == "abs":
        return t.call(ty, f"llvm.abs.{s.suffix(scalar)}", (ty, x), ("i1", "false"))
    if op == "popcount":
        return t.call(ty, f"llvm.ctpop.{s.suffix(scalar)}", (ty, x))
    if op == "clz":
        return t.call(ty, f"llvm.ctlz.{s.suffix(scalar)}", (ty, x), ("i1", "false"))
    raise UnsupportedError(f"{op} on {dtype}")


def compare(t: IRBuilder, s: Shape, op: str, dtype: DType, x: str, y: str) -> str:
    ty = s.type(dtype)
    if dtype.is_narrow_float:
        raise UnsupportedError(f"{op} on {dtype}")
    if _float(dtype):
        return t.new(f"fcmp {_FLOAT_COMPARE[op]} {ty} {x}, {y}")
    if op not in ("eq", "ne"):
        op = ("s" if dtype.kind == "int" else "u") + op
    return t.new(f"icmp {op} {ty} {x}, {y}")


def binary(t: IRBuilder, s: Shape, op: str, dtype: DType, x: str, y: str) -> str:
    """Binary operations except comparisons, integer division, min and max."""
    ty, scalar = s.type(dtype), register_type(dtype)
    if dtype.is_narrow_float:
        raise UnsupportedError(f"{op} on {dtype}")
    if _float(dtype):
        if op in _FLOAT_BINARY:
            return t.new(f"{_FLOAT_BINARY[op]} {ty} {x}, {y}")
        if op == "copysign":
            return t.call(ty, f"llvm.copysign.{s.suffix(scalar)}", (ty, x), (ty, y))
        raise UnsupportedError(f"{op} on {dtype}")
    if op in _INT_BINARY:
        return t.new(f"{op} {ty} {x}, {y}")
    if op == "mulhi" and dtype.is_integer:
        return _mulhi(t, s, dtype, x, y)
    raise UnsupportedError(f"{op} on {dtype}")


def min_max(
    t: IRBuilder,
    s: Shape,
    op: str,
    dtype: DType,
    x: str,
    y: str,
    not_nan: str = "",
) -> str:
    """NaN-propagating min or max; the order of zeros is unspecified.

    `not_nan` names an operand ("x" or "y") known not to be NaN.
    """
    ty, scalar = s.type(dtype), register_type(dtype)
    if dtype.is_narrow_float:
        raise UnsupportedError(f"{op} on {dtype}")
    if not _float(dtype):
        name = ("s" if dtype.kind == "int" else "u") + op
        return t.call(ty, f"llvm.{name}.{s.suffix(scalar)}", (ty, x), (ty, y))
    if t.target.arch == "arm" or (
        t.target.arch == "nvptx" and t.target.has_bf16_conversion and dtype is dt.float32
    ):
        return t.call(ty, f"llvm.{op}imum.{s.suffix(scalar)}", (ty, x), (ty, y))
    # select(a < b, a, b) is one x86 instruction, and gives b where either is NaN
    if not_nan == "y":
        x, y = y, x
    order = "olt" if op == "min" else "ogt"
    wins = t.new(f"fcmp {order} {ty} {x}, {y}")
    result = t.new(f"select {s.of('i1')} {wins}, {ty} {x}, {ty} {y}")
    if not_nan:
        return result
    is_nan = t.new(f"fcmp uno {ty} {x}, {s.const(scalar, float_literal(0.0, dtype))}")
    return t.new(f"select {s.of('i1')} {is_nan}, {ty} {x}, {ty} {result}")


def fma(t: IRBuilder, s: Shape, dtype: DType, x: str, y: str, z: str) -> str:
    ty, scalar = s.type(dtype), register_type(dtype)
    if not _float(dtype) or dtype.is_narrow_float:
        raise UnsupportedError(f"fma on {dtype}")
    return t.call(ty, f"llvm.fma.{s.suffix(scalar)}", (ty, x), (ty, y), (ty, z))


def _mulhi(t: IRBuilder, s: Shape, dtype: DType, x: str, y: str) -> str:
    """High half of the product."""
    bits, ty = dtype.bits, s.type(dtype)
    if bits == 64 and s.width:
        return _mulhi64(t, s, dtype, x, y)
    wide = s.of(f"i{2 * bits}")
    extend = "sext" if dtype.kind == "int" else "zext"
    wx = t.new(f"{extend} {ty} {x} to {wide}")
    wy = t.new(f"{extend} {ty} {y} to {wide}")
    product = t.new(f"mul {wide} {wx}, {wy}")
    high = t.new(f"lshr {wide} {product}, {s.const(f'i{2 * bits}', bits)}")
    return t.new(f"trunc {wide} {high} to {ty}")


def _mulhi64(t: IRBuilder, s: Shape, dtype: DType, x: str, y: str) -> str:
    """By 32-bit halves: LLVM would scalarise a vector i128 product."""
    ty = s.of("i64")
    low32 = s.const("i64", 0xFFFFFFFF)
    by32 = s.const("i64", 32)

    def op(name: str, a: str, b: str) -> str:
        return t.new(f"{name} {ty} {a}, {b}")

    xl, yl = op("and", x, low32), op("and", y, low32)
    xh, yh = op("lshr", x, by32), op("lshr", y, by32)
    ll, hl, lh, hh = op("mul", xl, yl), op("mul", xh, yl), op("mul", xl, yh), op("mul", xh, yh)
    middle = op("add", op("add", op("lshr", ll, by32), op("and", hl, low32)), op("and", lh, low32))
    high = op("add", hh, op("lshr", hl, by32))
    high = op("add", high, op("lshr", lh, by32))
    high = op("add", high, op("lshr", middle, by32))
    if dtype is dt.uint64:
        return high
    by63 = s.const("i64", 63)
    for a, b in ((x, y), (y, x)):  # signed: subtract the other operand where one is negative
        high = op("sub", high, op("and", op("ashr", a, by63), b))
    return high
