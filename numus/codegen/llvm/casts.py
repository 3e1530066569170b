"""Casts between dtypes in LLVM IR.

Every conversion rounds once, to nearest even. Float to integer saturates and takes NaN to 0;
anything to bool is `!= 0`. Low-precision floats are integer bits: float16 uses the hardware's
conversion where there is one, the others integer code that agrees with ml_dtypes.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.codegen.llvm.builder import (
    IRBuilder,
    Shape,
    float_literal,
    literal,
    register_type,
)
from numus.dtypes import DType


def cast(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    """`x`, a scalar or vector of `source`, converted to `to`."""
    if source is to:
        return x
    if to.kind == "bool":
        return _to_bool(t, s, x, source)
    if source.kind == "bool":
        ty = s.of(register_type(to))
        one = s.const(register_type(to), literal(1, to))
        zero = s.const(register_type(to), literal(0, to))
        return t.new(f"select {s.of('i1')} {x}, {ty} {one}, {ty} {zero}")
    if source.is_integer:
        if to.is_integer:
            return _int_to_int(t, s, x, source, to)
        if to.is_narrow_float:
            return _int_to_low_precision(t, s, x, source, to)
        op = "sitofp" if source.kind == "int" else "uitofp"
        return t.new(f"{op} {s.type(source)} {x} to {s.type(to)}")
    if source.is_narrow_float:
        wide = _decode(t, s, x, source)
        return cast(t, s, wide, dt.float32, to)
    if to.is_integer:
        return _float_to_int(t, s, x, source, to)
    if to.is_narrow_float:
        if source is dt.float64:
            x = _to_float32_odd(t, s, x)
        return _encode(t, s, x, to)
    op = "fpext" if to is dt.float64 else "fptrunc"
    return t.new(f"{op} {s.type(source)} {x} to {s.type(to)}")


def bitcast(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    """The bits as another dtype of the same size."""
    if source.itemsize != to.itemsize:
        raise ValueError(f"bitcast from {source} to {to}: their sizes differ")
    if to.kind == "bool":
        return t.new(f"icmp ne {s.type(source)} {x}, {s.const('i8', 0)}")
    if source.kind == "bool":
        return t.new(f"zext {s.of('i1')} {x} to {s.of('i8')}")
    if register_type(source) == register_type(to):
        return x
    return t.new(f"bitcast {s.type(source)} {x} to {s.type(to)}")


def _to_bool(t: IRBuilder, s: Shape, x: str, source: DType) -> str:
    ty = register_type(source)
    if source.is_narrow_float:  # any bit but the sign
        rest = s.const(ty, (1 << (source.bits - 1)) - 1)
        x = t.new(f"and {s.of(ty)} {x}, {rest}")
    elif source.kind == "float":
        return t.new(f"fcmp une {s.of(ty)} {x}, {s.const(ty, float_literal(0.0, source))}")
    return t.new(f"icmp ne {s.of(ty)} {x}, {s.const(ty, 0)}")


def _int_to_int(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    if source.bits == to.bits:
        return x
    op = "trunc" if to.bits < source.bits else "sext" if source.kind == "int" else "zext"
    return t.new(f"{op} {s.type(source)} {x} to {s.type(to)}")


def _int_to_low_precision(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    if source.itemsize >= 4 and to is dt.bfloat16:
        # float32 would round a first time within the range of bfloat16: round to odd instead
        if source.itemsize == 8:
            x = _keep_53_bits_odd(t, s, x, source)
        x = cast(t, s, x, source, dt.float64)
        return _encode(t, s, _to_float32_odd(t, s, x), to)
    # the others overflow below 2**24, where float32 is exact
    return _encode(t, s, cast(t, s, x, source, dt.float32), to)


def _keep_53_bits_odd(t: IRBuilder, s: Shape, x: str, source: DType) -> str:
    """A 64-bit integer rounded to odd to what float64 represents."""
    ty = s.of("i64")

    def c(value: int) -> str:
        return s.const("i64", value)

    low = t.new(f"and {ty} {x}, {c(2047)}")
    sticky = t.new(f"add {ty} {low}, {c(2047)}")  # bit 11 where any of the low bits is set
    sticky = t.new(f"and {ty} {sticky}, {c(2048)}")
    high = t.new(f"and {ty} {x}, {c(-2048)}")
    odd = t.new(f"or {ty} {high}, {sticky}")
    if source.kind == "int":
        size = t.call(ty, f"llvm.abs.{s.suffix('i64')}", (ty, x), ("i1", "false"))
    else:
        size = x
    large = t.new(f"icmp uge {ty} {size}, {c(1 << 53)}")
    return t.new(f"select {s.of('i1')} {large}, {ty} {odd}, {ty} {x}")


def _float_to_int(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    if to.bits < 32:  # through int32: no target converts vectors to fewer bits
        wide = _float_to_int(t, s, x, source, dt.int32)
        low, high = dt.int_range(to)
        ty = s.of("i32")
        for op, bound in (("smax", low), ("smin", high)):
            name = f"llvm.{op}.{s.suffix('i32')}"
            wide = t.call(ty, name, (ty, wide), (ty, s.const("i32", bound)))
        return t.new(f"trunc {ty} {wide} to {s.type(to)}")
    op = "fptosi" if to.kind == "int" else "fptoui"
    ft, it = s.type(source), s.type(to)
    fs, is_ = register_type(source), register_type(to)
    if t.target.arch == "arm":  # one instruction; elsewhere LLVM scalarises vectors
        return t.call(it, f"llvm.{op}.sat.{s.suffix(is_)}.{s.suffix(fs)}", (ft, x))
    low, high = dt.int_range(to)

    def f(value: float) -> str:
        return s.const(fs, float_literal(value, source))

    def pick(condition: str, yes: int, no: str) -> str:
        return t.new(f"select {s.of('i1')} {condition}, {it} {s.const(is_, yes)}, {it} {no}")

    # an out-of-range conversion is poison, discarded by the selects
    r = t.new(f"{op} {ft} {x} to {it}")
    r = pick(t.new(f"fcmp oge {ft} {x}, {f(float(high + 1))}"), high, r)
    if to.kind == "uint":
        return pick(t.new(f"fcmp ule {ft} {x}, {f(0.0)}"), 0, r)
    r = pick(t.new(f"fcmp olt {ft} {x}, {f(float(low))}"), low, r)
    return pick(t.new(f"fcmp uno {ft} {x}, {f(0.0)}"), 0, r)


def _to_float32_odd(t: IRBuilder, s: Shape, x: str) -> str:
    """float64 to float32 rounded to odd, so that a second rounding is exact."""
    ft, dd, it, b = s.of("float"), s.of("double"), s.of("i32"), s.of("i1")
    near = t.new(f"fptrunc {dd} {x} to {ft}")
    back = t.new(f"fpext {ft} {near} to {dd}")
    exact = t.new(f"fcmp ueq {dd} {back}, {x}")  # NaN counts as exact
    size_x = t.call(dd, f"llvm.fabs.{s.suffix('double')}", (dd, x))
    size_back = t.call(dd, f"llvm.fabs.{s.suffix('double')}", (dd, back))
    over = t.new(f"fcmp ogt {dd} {size_back}, {size_x}")
    bits = t.new(f"bitcast {ft} {near} to {it}")
    step = t.new(f"sext {b} {over} to {it}")
    down = t.new(f"add {it} {bits}, {step}")  # toward zero
    odd = t.new(f"or {it} {down}, {s.const('i32', 1)}")
    chosen = t.new(f"select {b} {exact}, {it} {bits}, {it} {odd}")
    return t.new(f"bitcast {it} {chosen} to {ft}")


def _bias(dtype: DType) -> int:
    return (1 << (dtype.exponent - 1)) - 1


def _decode(t: IRBuilder, s: Shape, x: str, source: DType) -> str:
    """Exact float32 value of a low-precision float's bits."""
    it, ft, b = s.of("i32"), s.of("float"), s.of("i1")
    if source is dt.float16 and t.target.has_f16_conversion:
        half = t.new(f"bitcast {s.of('i16')} {x} to {s.of('half')}")
        return t.new(f"fpext {s.of('half')} {half} to {ft}")
    wide = t.new(f"zext {s.type(source)} {x} to {it}")
    if source is dt.bfloat16:
        bits = t.new(f"shl {it} {wide}, {s.const('i32', 16)}")
        return t.new(f"bitcast {it} {bits} to {ft}")

    def c(value: int) -> str:
        return s.const("i32", value)

    sign_bit = 1 << (source.bits - 1)
    bias = _bias(source)
    sign = t.new(f"and {it} {wide}, {c(sign_bit)}")
    sign = t.new(f"shl {it} {sign}, {c(32 - source.bits)}")
    size = t.new(f"and {it} {wide}, {c(sign_bit - 1)}")
    shifted = t.new(f"shl {it} {size}, {c(23 - source.mantissa)}")
    normal = t.new(f"add {it} {shifted}, {c((127 - bias) << 23)}")
    # a subnormal: set an implicit one above the fraction, then subtract its value
    first = (128 - bias) << 23
    raised = t.new(f"or {it} {shifted}, {c(first)}")
    raised_f = t.new(f"bitcast {it} {raised} to {ft}")
    worth = s.const("float", float_literal(2.0 ** (1 - bias), dt.float32))
    subnormal_f = t.new(f"fsub {ft} {raised_f}, {worth}")
    subnormal = t.new(f"bitcast {ft} {subnormal_f} to {it}")
    small = t.new(f"icmp ult {it} {size}, {c(1 << source.mantissa)}")
    bits = t.new(f"select {b} {small}, {it} {subnormal}, {it} {normal}")
    if source is dt.float8_e4m3fn:  # all ones is the only NaN; no infinity
        special = t.new(f"icmp eq {it} {size}, {c(0x7F)}")
        beyond = c(0x7FC00000)
    else:
        infinity = ((1 << source.exponent) - 1) << source.mantissa
        special = t.new(f"icmp uge {it} {size}, {c(infinity)}")
        beyond = t.new(f"or {it} {shifted}, {c(0x7F800000)}")
    bits = t.new(f"select {b} {special}, {it} {beyond}, {it} {bits}")
    bits = t.new(f"or {it} {bits}, {sign}")
    return t.new(f"bitcast {it} {bits} to {ft}")


def _encode(t: IRBuilder, s: Shape, x: str, to: DType) -> str:
    """Bits of a float32 rounded to a low-precision float."""
    it, ft, b = s.of("i32"), s.of("float"), s.of("i1")
    if to is dt.float16 and t.target.has_f16_conversion:
        half = t.new(f"fptrunc {ft} {x} to {s.of('half')}")
        return t.new(f"bitcast {s.of('half')} {half} to {s.of('i16')}")
    if to is dt.bfloat16 and t.target.has_bf16_conversion:
        narrow = t.new(f"fptrunc {ft} {x} to {s.of('bfloat')}")
        return t.new(f"bitcast {s.of('bfloat')} {narrow} to {s.of('i16')}")

    def c(value: int) -> str:
        return s.const("i32", value)

    bits = t.new(f"bitcast {ft} {x} to {it}")
    shift = 23 - to.mantissa
    last = t.new(f"lshr {it} {bits}, {c(shift)}")
    last = t.new(f"and {it} {last}, {c(1)}")
    if to is dt.bfloat16:
        rounded = t.new(f"add {it} {bits}, {c(0x7FFF)}")
        rounded = t.new(f"add {it} {rounded}, {last}")
        is_nan = t.new(f"fcmp uno {ft} {x}, {s.const('float', float_literal(0.0, dt.float32))}")
        quiet = t.new(f"and {it} {bits}, {c(-0x80000000)}")
        quiet = t.new(f"or {it} {quiet}, {c(0x7FC00000)}")
        rounded = t.new(f"select {b} {is_nan}, {it} {quiet}, {it} {rounded}")
        high = t.new(f"lshr {it} {rounded}, {c(16)}")
        return t.new(f"trunc {it} {high} to {s.of('i16')}")

    bias = _bias(to)
    sign = t.new(f"lshr {it} {bits}, {c(32 - to.bits)}")
    sign = t.new(f"and {it} {sign}, {c(1 << (to.bits - 1))}")
    size = t.new(f"and {it} {bits}, {c(0x7FFFFFFF)}")
    rounded = t.new(f"add {it} {size}, {c((1 << (shift - 1)) - 1)}")
    rounded = t.new(f"add {it} {rounded}, {last}")
    rounded = t.new(f"lshr {it} {rounded}, {c(shift)}")
    normal = t.new(f"sub {it} {rounded}, {c((127 - bias) << to.mantissa)}")
    # subnormal: adding a power of two with the result's ulp rounds it
    magic = 2.0 ** (1 - bias - to.mantissa + 23)
    magic_bits = (127 + 1 - bias - to.mantissa + 23) << 23
    size_f = t.new(f"bitcast {it} {size} to {ft}")
    sum_f = t.new(f"fadd {ft} {size_f}, {s.const('float', float_literal(magic, dt.float32))}")
    sum_bits = t.new(f"bitcast {ft} {sum_f} to {it}")
    subnormal = t.new(f"sub {it} {sum_bits}, {c(magic_bits)}")
    small = t.new(f"icmp ult {it} {size}, {c((128 - bias) << 23)}")
    if to is dt.float8_e4m3fn:  # overflow and infinity are NaN
        largest = 0x7F
    else:
        largest = ((1 << to.exponent) - 1) << to.mantissa
    normal = t.call(it, f"llvm.umin.{s.suffix('i32')}", (it, normal), (it, c(largest)))
    result = t.new(f"select {b} {small}, {it} {subnormal}, {it} {normal}")
    if to is not dt.float8_e4m3fn:
        is_nan = t.new(f"icmp ugt {it} {size}, {c(0x7F800000)}")
        nan = c(largest | (1 << (to.mantissa - 1)))
        result = t.new(f"select {b} {is_nan}, {it} {nan}, {it} {result}")
    result = t.new(f"or {it} {result}, {sign}")
    return t.new(f"trunc {it} {result} to {s.type(to)}")
