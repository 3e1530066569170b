"""Arithmetic of the kernel IR as WGSL expressions.

8- and 16-bit integers are carried in 32 bits and wrapped after every operation that can overflow;
8- and 16-bit floats as their bits in a u32.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.errors import CompileError

SUFFIX = {"f32": "f", "f64": "lf", "i32": "i", "u32": "u", "i64": "li", "u64": "lu"}


def carrier(dtype: DType) -> str:
    """The WGSL type that carries values of a dtype."""
    if dtype.kind == "bool":
        return "bool"
    if dtype.kind == "float":
        return {4: "f32", 8: "f64"}.get(dtype.itemsize, "u32")
    return ("i" if dtype.kind == "int" else "u") + ("64" if dtype.bits == 64 else "32")


def integer(value: int, ty: str) -> str:
    """An integer literal; the most negative ones cannot be written as such."""
    if ty[0] == "i" and value == -(1 << (int(ty[1:]) - 1)):
        return f"({value + 1}{SUFFIX[ty]} - 1{SUFFIX[ty]})"
    return f"{value}{SUFFIX[ty]}" if value >= 0 else f"({value}{SUFFIX[ty]})"


def float_bits(value: float, ty: str) -> int:
    if ty == "f64":
        return int.from_bytes(struct.pack("<d", value), "little")
    try:
        data = struct.pack("<f", value)
    except OverflowError:
        data = struct.pack("<f", math.copysign(math.inf, value))
    return int.from_bytes(data, "little")


def floating(value: float, ty: str, exposed: bool) -> str:
    """A float literal. Values that are not finite and normal are hidden from the compiler, and so
    are 0 and 1 where `exposed` to arithmetic that could be simplified."""
    bits = float_bits(value, ty)
    if ty == "f32":
        value = struct.unpack("<f", struct.pack("<I", bits))[0]
    smallest = 2.0**-126 if ty == "f32" else 2.0**-1022
    usual = math.isfinite(value) and abs(value) >= smallest and abs(value) != 1.0
    positive_zero = bits == 0
    if usual or ((positive_zero or abs(value) == 1.0) and not exposed):
        return f"{value!r}{SUFFIX[ty]}" if value >= 0 else f"({value!r}{SUFFIX[ty]})"
    return f"bits32({bits}u)" if ty == "f32" else f"bits64({bits}lu)"


def literal(value: Any, dtype: DType, ty: str, exposed: bool = False) -> str:
    """A constant of a dtype, carried as `ty`."""
    if ty == "bool":
        return "true" if value else "false"
    if dtype.is_low_precision:
        import numpy as np

        bits = np.array(value, np.float64).astype(dtype.np).tobytes()
        return f"{int.from_bytes(bits, 'little')}u"
    return floating(value, ty, exposed) if dtype.kind == "float" else integer(int(value), ty)


def wrapped(text: str, dtype: DType) -> str:
    """A result of 32-bit arithmetic as an integer of 8 or 16 bits."""
    if not dtype.is_integer or dtype.bits >= 32:
        return text
    if dtype.kind == "uint":
        return f"({text} & {(1 << dtype.bits) - 1}u)"
    return f"extractBits({text}, 0u, {dtype.bits}u)"


_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "idiv": "/", "irem": "%"},
    **{"and": "&", "or": "|", "xor": "^"},
}
_WRAPS = frozenset("add sub mul neg shl not abs".split())


_FLOAT_UNARY = {
    **{"neg": "-", "sqrt": "sqrt", "abs": "abs", "rint": "round"},
    **{"floor": "floor", "ceil": "ceil", "trunc": "trunc"},
}


def _unsupported(op: str, dtype: DType) -> CompileError:
    return CompileError(f"the kernel IR has no {op} on {dtype}")


def unary(op: str, dtype: DType, ty: str, x: str) -> str:
    if dtype.kind == "float":
        if dtype.is_low_precision or op not in _FLOAT_UNARY:
            raise _unsupported(op, dtype)
        function = "sqrt32" if op == "sqrt" and ty == "f32" else _FLOAT_UNARY[op]
        return f"-{x}" if op == "neg" else f"{function}({x})"
    if op == "not":
        return f"!hidden({x})" if ty == "bool" else wrapped(f"~{x}", dtype)
    if op in ("floor", "ceil", "trunc", "rint") or (op == "abs" and dtype.kind != "int"):
        return x
    zero = integer(0, ty)
    if op == "neg":
        return wrapped(f"({zero} - {x})", dtype)
    if op == "abs":
        return wrapped(f"select({x}, {zero} - {x}, {x} < {zero})", dtype)
    if op in ("popcount", "clz") and dtype.bits == 64:
        return f"bitcast<{ty}>({op}64(bitcast<u64>({x})))"
    own = (1 << dtype.bits) - 1
    if op == "popcount":
        return f"countOneBits({x}{f' & {own}' if dtype.bits < 32 else ''})"
    if op == "clz":
        count = f"countLeadingZeros(bitcast<u32>({x}) & {own}u) - {32 - dtype.bits}u"
        return f"bitcast<{ty}>({count})"
    raise _unsupported(op, dtype)


def compare(op: str, dtype: DType, ty: str, x: str, y: str) -> str:
    if dtype.is_low_precision:
        raise _unsupported(op, dtype)
    if op == "ne" and dtype.kind == "float":
        if x == y:
            return f"nan{ty[1:]}({x})"
        return f"!hidden({x} == {y})"  # unlike WGSL's own, true of NaN
    sign = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}[op]
    if ty == "bool" and op in ("lt", "le", "gt", "ge"):
        return f"(u32({x}) {sign} u32({y}))"
    return f"({x} {sign} {y})"


def binary(op: str, dtype: DType, ty: str, x: str, y: str) -> str:
    """Any binary operation but comparisons."""
    if dtype.is_low_precision:
        raise _unsupported(op, dtype)
    if dtype.kind == "float":
        if op in ("add", "sub", "mul"):
            return f"({x} {_INFIX[op]} {y})"
        if op == "div":
            return f"div32({x}, {y})" if ty == "f32" else f"({x} / {y})"
        if op in ("min", "max", "copysign"):
            return f"{op}{ty[1:]}({x}, {y})"
        raise _unsupported(op, dtype)
    if ty == "bool":
        return {"and": f"({x} && {y})", "or": f"({x} || {y})", "xor": f"({x} != {y})"}[op]
    if op in _INFIX:
        text = f"({x} {_INFIX[op]} {y})"
        return wrapped(text, dtype) if op in _WRAPS else text
    if op in ("min", "max"):
        return f"{op}({x}, {y})"
    if op == "mulhi" and dtype.bits >= 32:
        return f"mulhi_{ty}({x}, {y})"
    if op == "mulhi":
        return wrapped(f"(({x} * {y}) >> {dtype.bits}u)", dtype)
    raise _unsupported(op, dtype)


def shift(op: str, dtype: DType, ty: str, x: str, by: str) -> str:
    if op == "shl":
        return wrapped(f"({x} << {by})", dtype)
    other = ("u" if op == "lshr" else "i") + ty[1:]
    if other == ty:
        return f"({x} >> {by})"
    if dtype.bits < 32:  # its own bits alone
        unsigned = f"(bitcast<u32>({x}) & {(1 << dtype.bits) - 1}u)"
        signed = f"extractBits(bitcast<i32>({x}), 0u, {dtype.bits}u)"
        own = unsigned if op == "lshr" else signed
        return wrapped(f"bitcast<{ty}>({own} >> {by})", dtype)
    return f"bitcast<{ty}>(bitcast<{other}>({x}) >> {by})"


# -- conversions ----------------------------------------------------------------------------------


def cast(x: str, source: DType, from_type: str, to: DType, to_type: str) -> str:
    """`x` of dtype `source`, carried as `from_type`, as dtype `to`, carried as `to_type`."""
    if source is to:
        return x if from_type == to_type else f"{to_type}({x})"
    if to_type == "bool":
        if source.is_low_precision:  # any bit but the sign
            return f"(({x} & {(1 << (source.bits - 1)) - 1}u) != 0u)"
        if source.kind == "float":
            return f"!hidden({x} == {floating(0.0, from_type, False)})"
        return f"({x} != {integer(0, from_type)})"
    if from_type == "bool":
        one, zero = literal(1, to, to_type), literal(0, to, to_type)
        return f"select({zero}, {one}, {x})"
    if source.is_integer:
        if to.is_integer:
            return _resized(x, from_type, to, to_type)
        if to.is_low_precision:
            if source.itemsize >= 4 and to is dt.bfloat16:
                # float32 would round once already, and bfloat16 reaches that far
                return f"bfloat16_encode(odd_{from_type}({x}))"
            return f"{to.name}_encode(f32({x}))"
        return f"{to_type}({x})"
    if source.is_low_precision:
        return cast(f"{source.name}_decode({x})", dt.float32, "f32", to, to_type)
    if to.is_integer:
        if to.bits < 32:
            low, high = dt.int_range(to)
            clamped = f"clamp(i32_{from_type}({x}), {low}, {high})"
            return clamped if to_type == "i32" else f"u32({clamped})"
        return f"{to_type}_{from_type}({x})"
    if to.is_low_precision:
        return f"{to.name}_encode({f'odd_f64({x})' if from_type == 'f64' else x})"
    return f"{to_type}({x})"


def _resized(x: str, from_type: str, to: DType, to_type: str) -> str:
    """An integer of another width, truncated or extended."""
    if from_type[1:] != to_type[1:]:
        # keep the sign first: extension depends on the source
        x = f"{from_type[0]}{to_type[1:]}({x})"
        from_type = from_type[0] + to_type[1:]
    if from_type != to_type:
        x = f"bitcast<{to_type}>({x})"
    return wrapped(x, to)


def bitcast(x: str, source: DType, from_type: str, to: DType, to_type: str) -> str:
    """The same bits as another dtype of the same size."""
    if source.itemsize != to.itemsize:
        raise CompileError(f"bitcast from {source} to {to}: their sizes differ")
    if source.bits == 64:  # small indices are carried in 32
        x = x if from_type[1:] == "64" else f"{from_type[0]}64({x})"
        whole = to_type[0] + "64"
        x = x if carrier(source) == whole else f"bitcast<{whole}>({x})"
        return x if whole == to_type else f"{to_type}({x})"
    if source.bits == 32:
        return x if from_type == to_type else f"bitcast<{to_type}>({x})"
    mask = (1 << source.bits) - 1
    if from_type == "bool":
        x = f"select(0u, 1u, {x})"
    elif from_type == "i32":
        x = f"(bitcast<u32>({x}) & {mask}u)"
    if to_type == "bool":
        return f"({x} != 0u)"
    if to_type == "i32":
        return f"extractBits(bitcast<i32>({x}), 0u, {to.bits}u)"
    return x


def is_float(e: ir.Expr) -> bool:
    return e.dtype.kind == "float" and not e.dtype.is_low_precision
