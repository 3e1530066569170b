"""Scalar and vector arithmetic of the kernel IR in LLVM IR.

Strict IEEE: no fast-math flags, and a multiply-add is fused only where the IR says `fma`.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.codegen.llvm.builder import IRBuilder, Ops, Shape, register_type
from numus.dtypes import DType

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BINARY = {"add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "roundeven"}
_FLOAT_UNARY = {**_ROUNDING, "sqrt": "sqrt", "abs": "fabs"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_FLAG = (("i1", "false"),)  # zero, or the smallest integer, is not poison
_INT_UNARY = {"popcount": ("ctpop", ()), "clz": ("ctlz", _FLAG), "abs": ("abs", _FLAG)}


class UnsupportedError(Exception):
    """An operation that is not defined for its dtype."""


def _ops(t: IRBuilder, s: Shape, op: str, dtype: DType) -> Ops:
    if dtype.is_low_precision:
        raise UnsupportedError(f"{op} on {dtype}")
    return t.ops(s, register_type(dtype))


def unary(t: IRBuilder, s: Shape, op: str, dtype: DType, x: str) -> str:
    ops = _ops(t, s, op, dtype)
    if dtype.kind == "float":
        if op == "neg":
            return ops("fneg", x)
        if op in _FLOAT_UNARY:
            return ops.call(_FLOAT_UNARY[op], x)
    elif op == "neg":
        return ops("sub", 0, x)
    elif op == "not":
        return ops("xor", x, s.const(ops.scalar, -1 if dtype.is_integer else "true"))
    elif op in _ROUNDING or (op == "abs" and dtype.kind != "int"):
        return x
    elif op in _INT_UNARY:
        name, extra = _INT_UNARY[op]
        return ops.call(name, x, extra=extra)
    raise UnsupportedError(f"{op} on {dtype}")


def compare(t: IRBuilder, s: Shape, op: str, dtype: DType, x: str, y: str) -> str:
    ops = _ops(t, s, op, dtype)
    if dtype.kind == "float":
        return ops(f"fcmp {_FLOAT_COMPARE[op]}", x, y)
    sign = "" if op in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
    return ops(f"icmp {sign}{op}", x, y)


def binary(t: IRBuilder, s: Shape, op: str, dtype: DType, x: str, y: str) -> str:
    """Binary operations except comparisons, integer division, min and max."""
    ops = _ops(t, s, op, dtype)
    if dtype.kind == "float":
        if op in _FLOAT_BINARY:
            return ops(_FLOAT_BINARY[op], x, y)
        if op == "copysign":
            return ops.call("copysign", x, y)
    elif op in _INT_BINARY:
        return ops(op, x, y)
    elif op == "mulhi" and dtype.is_integer:
        return _mulhi(t, s, dtype, x, y)
    raise UnsupportedError(f"{op} on {dtype}")


def min_max(
    t: IRBuilder, s: Shape, op: str, dtype: DType, x: str, y: str, not_nan: str = ""
) -> str:
    """NaN-propagating min or max; the order of zeros is unspecified.

    `not_nan` names an operand ("x" or "y") known not to be NaN.
    """
    ops = _ops(t, s, op, dtype)
    if dtype.kind != "float":
        return ops.call(("s" if dtype.kind == "int" else "u") + op, x, y)
    if t.target.arch == "arm" or (
        t.target.arch == "nvptx" and t.target.has_bf16_conversion and dtype is dt.float32
    ):
        return ops.call(f"{op}imum", x, y)
    # select(a < b, a, b) is one x86 instruction, and gives b where either is NaN
    if not_nan == "y":
        x, y = y, x
    wins = ops("fcmp olt" if op == "min" else "fcmp ogt", x, y)
    result = ops.select(wins, x, y)
    return result if not_nan else ops.select(ops("fcmp uno", x, 0.0), x, result)


def combine(t: IRBuilder, s: Shape, op: str, dtype: DType, x: str, y: str) -> str:
    """One of the operations of `lanes_reduce`."""
    return (min_max if op in ("min", "max") else binary)(t, s, op, dtype, x, y)


def fma(t: IRBuilder, s: Shape, dtype: DType, x: str, y: str, z: str) -> str:
    if dtype.kind != "float":
        raise UnsupportedError(f"fma on {dtype}")
    return _ops(t, s, "fma", dtype).call("fma", x, y, z)


def _mulhi(t: IRBuilder, s: Shape, dtype: DType, x: str, y: str) -> str:
    bits, ops = dtype.bits, t.ops(s, register_type(dtype))
    if bits == 64 and s.width:
        return _mulhi64(ops, dtype, x, y)
    wide = t.ops(s, f"i{2 * bits}")
    extend = "sext" if dtype.kind == "int" else "zext"
    wx, wy = (ops.to(extend, v, wide.scalar) for v in (x, y))
    return wide.to("trunc", wide("lshr", wide("mul", wx, wy), bits), ops.scalar)


def _mulhi64(op: Ops, dtype: DType, x: str, y: str) -> str:
    """By 32-bit halves: LLVM would scalarise a vector i128 product."""
    low32 = 0xFFFFFFFF
    xl, yl = op("and", x, low32), op("and", y, low32)
    xh, yh = op("lshr", x, 32), op("lshr", y, 32)
    ll, hl, lh, hh = op("mul", xl, yl), op("mul", xh, yl), op("mul", xl, yh), op("mul", xh, yh)
    middle = op("add", op("add", op("lshr", ll, 32), op("and", hl, low32)), op("and", lh, low32))
    high = op("add", hh, op("lshr", hl, 32))
    high = op("add", high, op("lshr", lh, 32))
    high = op("add", high, op("lshr", middle, 32))
    if dtype is dt.uint64:
        return high
    for a, b in ((x, y), (y, x)):  # signed: subtract the other operand where one is negative
        high = op("sub", high, op("and", op("ashr", a, 63), b))
    return high
