"""Casts between dtypes in LLVM IR.

Every conversion rounds once, to nearest even. Float to integer saturates and takes NaN to 0;
anything to bool is `!= 0`. Low-precision floats are integer bits: float16 uses the hardware's
conversion where there is one, the others integer code that agrees with ml_dtypes.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.codegen.llvm.builder import IRBuilder, Shape, literal, register_type
from numus.dtypes import DType


def cast(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    """`x`, a scalar or vector of `source`, converted to `to`."""
    ops, target = t.ops(s, register_type(source)), register_type(to)
    if source is to:
        return x
    if to.kind == "bool":
        if source.is_low_precision:  # any bit but the sign
            x = ops("and", x, (1 << (source.bits - 1)) - 1)
        is_float = source.kind == "float" and not source.is_low_precision
        return ops("fcmp une" if is_float else "icmp ne", x, 0)
    if source.kind == "bool":
        one, zero = (s.const(target, literal(n, to)) for n in (1, 0))
        return t.ops(s, target).select(x, one, zero)
    if source.is_integer:
        if to.is_low_precision:
            return _int_to_low_precision(t, s, x, source, to)
        sign = "s" if source.kind == "int" else "u"
        if not to.is_integer:
            return ops.to(f"{sign}itofp", x, target)
        if source.bits == to.bits:
            return x
        extend = "sext" if source.kind == "int" else "zext"
        return ops.to("trunc" if to.bits < source.bits else extend, x, target)
    if source.is_low_precision:
        return cast(t, s, _decode(t, s, x, source), dt.float32, to)
    if to.is_integer:
        return _float_to_int(t, s, x, source, to)
    if to.is_low_precision:
        return _encode(t, s, _to_float32_odd(t, s, x) if source is dt.float64 else x, to)
    return ops.to("fpext" if to is dt.float64 else "fptrunc", x, target)


def bitcast(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    """The bits as another dtype of the same size."""
    ops = t.ops(s, register_type(source))
    if source.itemsize != to.itemsize:
        raise ValueError(f"bitcast from {source} to {to}: their sizes differ")
    if to.kind == "bool":
        return ops("icmp ne", x, 0)
    if source.kind == "bool":
        return ops.to("zext", x, "i8")
    return x if ops.scalar == register_type(to) else ops.to("bitcast", x, register_type(to))


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
    """A 64-bit integer rounded to odd to the precision of float64."""
    i64 = t.ops(s, "i64")
    low = i64("and", x, 2047)
    sticky = i64("and", i64("add", low, 2047), 2048)  # bit 11 where any of the low bits is set
    odd = i64("or", i64("and", x, -2048), sticky)
    size = i64.call("abs", x, extra=(("i1", "false"),)) if source.kind == "int" else x
    return i64.select(i64("icmp uge", size, 1 << 53), odd, x)


def _float_to_int(t: IRBuilder, s: Shape, x: str, source: DType, to: DType) -> str:
    low, high = dt.int_range(to)
    if to.bits < 32:  # through int32: no target converts vectors to fewer bits
        i32, wide = t.ops(s, "i32"), _float_to_int(t, s, x, source, dt.int32)
        for op, bound in (("smax", low), ("smin", high)):
            wide = i32.call(op, wide, i32.const(bound))
        return i32.to("trunc", wide, register_type(to))
    op = "fptosi" if to.kind == "int" else "fptoui"
    f, i = t.ops(s, register_type(source)), t.ops(s, register_type(to))
    if t.target.arch == "arm":  # one instruction; elsewhere LLVM scalarises vectors
        name = f"llvm.{op}.sat.{s.suffix(i.scalar)}.{s.suffix(f.scalar)}"
        return t.call(i.ty, name, (f.ty, x))
    # an out-of-range conversion is poison, discarded by the selects
    r = f.to(op, x, i.scalar)
    r = i.select(f("fcmp oge", x, float(high + 1)), high, r)
    if to.kind == "uint":
        return i.select(f("fcmp ule", x, 0.0), 0, r)
    r = i.select(f("fcmp olt", x, float(low)), low, r)
    return i.select(f("fcmp uno", x, 0.0), 0, r)


def _to_float32_odd(t: IRBuilder, s: Shape, x: str) -> str:
    """float64 to float32 rounded to odd, so that a second rounding is exact."""
    f32, f64, i32 = (t.ops(s, scalar) for scalar in ("float", "double", "i32"))
    near = f64.to("fptrunc", x, "float")
    back = f32.to("fpext", near, "double")
    exact = f64("fcmp ueq", back, x)  # NaN counts as exact
    size_x, size_back = f64.call("fabs", x), f64.call("fabs", back)
    over = f64("fcmp ogt", size_back, size_x)
    bits = f32.to("bitcast", near, "i32")
    down = i32("add", bits, t.ops(s, "i1").to("sext", over, "i32"))  # toward zero
    return i32.to("bitcast", i32.select(exact, bits, i32("or", down, 1)), "float")


def _bias(dtype: DType) -> int:
    return (1 << (dtype.exponent - 1)) - 1


def _infinity(dtype: DType) -> int:
    """The bits of infinity; of float8_e4m3fn, which has none, those of its only NaN."""
    return 0x7F if dtype is dt.float8_e4m3fn else ((1 << dtype.exponent) - 1) << dtype.mantissa


def _decode(t: IRBuilder, s: Shape, x: str, source: DType) -> str:
    """Exact float32 value of a low-precision float's bits."""
    i32, f32 = t.ops(s, "i32"), t.ops(s, "float")
    if source is dt.float16 and t.target.has_f16_conversion:
        half = t.ops(s, "i16").to("bitcast", x, "half")
        return t.ops(s, "half").to("fpext", half, "float")
    wide = t.ops(s, register_type(source)).to("zext", x, "i32")
    if source is dt.bfloat16:
        return i32.to("bitcast", i32("shl", wide, 16), "float")
    sign_bit, bias = 1 << (source.bits - 1), _bias(source)
    sign = i32("shl", i32("and", wide, sign_bit), 32 - source.bits)
    size = i32("and", wide, sign_bit - 1)
    shifted = i32("shl", size, 23 - source.mantissa)
    normal = i32("add", shifted, (127 - bias) << 23)
    # a subnormal: set an implicit one above the fraction, then subtract its value
    raised = i32.to("bitcast", i32("or", shifted, (128 - bias) << 23), "float")
    subnormal = f32.to("bitcast", f32("fsub", raised, 2.0 ** (1 - bias)), "i32")
    bits = i32.select(i32("icmp ult", size, 1 << source.mantissa), subnormal, normal)
    if source is dt.float8_e4m3fn:
        special, beyond = i32("icmp eq", size, _infinity(source)), i32.const(0x7FC00000)
    else:
        special = i32("icmp uge", size, _infinity(source))
        beyond = i32("or", shifted, 0x7F800000)
    bits = i32("or", i32.select(special, beyond, bits), sign)
    return i32.to("bitcast", bits, "float")


def _encode(t: IRBuilder, s: Shape, x: str, to: DType) -> str:
    """Bits of a float32 rounded to a low-precision float."""
    i32, f32 = t.ops(s, "i32"), t.ops(s, "float")
    f16 = "half" if to is dt.float16 and t.target.has_f16_conversion else ""
    f16 = "bfloat" if to is dt.bfloat16 and t.target.has_bf16_conversion else f16
    if f16:
        return t.ops(s, f16).to("bitcast", f32.to("fptrunc", x, f16), "i16")
    bits = f32.to("bitcast", x, "i32")
    shift = 23 - to.mantissa
    last = i32("and", i32("lshr", bits, shift), 1)
    if to is dt.bfloat16:
        rounded = i32("add", i32("add", bits, 0x7FFF), last)
        is_nan = f32("fcmp uno", x, 0.0)
        quiet = i32("or", i32("and", bits, -0x80000000), 0x7FC00000)
        rounded = i32.select(is_nan, quiet, rounded)
        return i32.to("trunc", i32("lshr", rounded, 16), "i16")
    bias = _bias(to)
    sign = i32("and", i32("lshr", bits, 32 - to.bits), 1 << (to.bits - 1))
    size = i32("and", bits, 0x7FFFFFFF)
    rounded = i32("add", i32("add", size, (1 << (shift - 1)) - 1), last)
    normal = i32("sub", i32("lshr", rounded, shift), (127 - bias) << to.mantissa)
    # subnormal: adding a power of two with the result's ulp rounds it
    exponent = 1 - bias - to.mantissa + 23
    total = f32("fadd", i32.to("bitcast", size, "float"), 2.0**exponent)
    subnormal = i32("sub", f32.to("bitcast", total, "i32"), (127 + exponent) << 23)
    small = i32("icmp ult", size, (128 - bias) << 23)
    largest = _infinity(to)  # float8_e4m3fn: overflow and infinity are NaN
    normal = i32.call("umin", normal, i32.const(largest))
    result = i32.select(small, subnormal, normal)
    if to is not dt.float8_e4m3fn:
        is_nan = i32("icmp ugt", size, 0x7F800000)
        result = i32.select(is_nan, largest | (1 << (to.mantissa - 1)), result)
    return i32.to("trunc", i32("or", result, sign), register_type(to))
