"""Elementwise primitives as kernel-IR expressions, pairs of them for complex values.

Floats of 16 bits and less are widened to float32, computed and rounded back, so that each operation
rounds once and fusion never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, const, select
from numus.kernels.math import FUNCTIONS, approximate
from numus.kernels.math.random_bits import normal_pair, normal_pair64, threefry2x32

Pair = tuple[Expr, Expr]
Value = Expr | Pair


def lower(op: str, args: list[Any], sources: list[DType], dtype: DType, params: Any) -> Any:
    """The result of an elementwise primitive on operands of the `sources` dtypes."""
    if op == "cast":
        return cast_value(args[0], sources[0], dtype)
    if op == "bitcast":
        return args[0].bitcast(dtype)
    if op == "where":
        return _where(*args)
    if op == "complex":
        return (args[0], args[1])
    if op == "threefry":
        return threefry2x32(*args)[params]
    if op == "normal":
        pair = normal_pair(*args) if dtype is dt.float32 else normal_pair64(*args)
        return pair[params]
    if op == "barrier":
        return args[0]
    if any(s.is_complex for s in sources):
        return _complex(op, args, dtype)
    if params == "approx":
        return approximate.FUNCTIONS[op](args[0].cast(dt.float32)).cast(dtype)
    if sources[0].is_low_precision:
        if op == "nextafter":
            return _small_float_nextafter(*args)
        wide = [a.cast(dt.float32) for a in args]
        result = _real(op, wide, dt.float32)
        return result.cast(dtype) if dtype is not dt.bool_ else result
    return _real(op, args, sources[0])


def cast_value(x: Any, source: DType, target: DType) -> Any:
    """A value in another dtype, complex ones as pairs."""
    if source.is_complex:
        part = dt.real_of(target) if target.is_complex else target
        if target.is_complex:
            return (x[0].cast(part), x[1].cast(part))
        if target is dt.bool_:
            zero = const(0.0, x[0].dtype)
            return x[0].ne(zero) | x[1].ne(zero)
        return x[0].cast(part)
    if target.is_complex:
        part = dt.real_of(target)
        return (x.cast(part), const(0.0, part))
    return x.cast(target)


def _where(condition: Expr, yes: Any, no: Any) -> Any:
    if isinstance(yes, tuple):
        return tuple(select(condition, x, y) for x, y in zip(yes, no, strict=True))
    return select(condition, yes, no)


# -- real -----------------------------------------------------------------------------------------


def _small_float_nextafter(x: Expr, y: Expr) -> Expr:
    """The adjacent float of 16 bits or less: one step in the bits of x."""
    a, b = x.cast(dt.float32), y.cast(dt.float32)
    unsigned = dt.BY_NAME[f"uint{x.dtype.bits}"]
    zero, one = const(0.0, dt.float32), const(1, unsigned)
    bits = x.bitcast(unsigned)
    moved = select((b > a) ^ (a < zero), bits + one, bits - one)
    sign = const(1 << (x.dtype.bits - 1), unsigned)
    smallest = select(b < zero, sign | one, one)
    result = select(a.eq(b), y, select(a.eq(zero), smallest, moved).bitcast(x.dtype))
    return select(a.ne(a) | b.ne(b), (a + b).cast(x.dtype), result)


def _real(op: str, args: list[Expr], dtype: DType) -> Expr:
    if dtype is dt.bool_ and op in _BOOL:
        return _BOOL[op](*args)
    if op in _PLAIN:
        return _PLAIN[op](*args)
    if dtype.is_integer and op in _INTEGER:
        return _INTEGER[op](*args)
    if dtype.kind == "float":
        if op in _FLOAT:
            return _FLOAT[op](*args)
        if op in FUNCTIONS:
            return FUNCTIONS[op](*args)
        # late: few programs need their tables
        if op.startswith("draw_"):
            from numus.kernels import random

            return random.FUNCTIONS[op](*args)
        from numus.kernels import special

        if op in special.FUNCTIONS:
            return special.FUNCTIONS[op](*args)
    raise TypeError(f"{op} is not defined on {dtype.name}")


def _sign(x: Expr) -> Expr:
    zero, one = const(0, x.dtype), const(1, x.dtype)
    if x.dtype.kind == "uint":
        return select(x > zero, one, zero)
    rest = select(x.eq(zero), zero, x) if x.dtype.kind == "float" else zero  # NaN stays, -0 is 0
    return select(x > zero, one, select(x < zero, const(-1, x.dtype), rest))


def _float_divmod(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Floor division and modulo as Python's, with NumPy's special values."""
    zero, one = const(0.0, a.dtype), const(1.0, a.dtype)
    rest = FUNCTIONS["fmod"](a, b)
    quotient = (a - rest) / b
    wrong = rest.ne(zero) & ((b < zero) ^ (rest < zero))
    mod = select(rest.ne(zero), select(wrong, rest + b, rest), ir.binary("copysign", zero, b))
    mod = select(b.eq(zero), const(float("nan"), a.dtype), mod)
    quotient = select(wrong, quotient - one, quotient)
    whole = ir.unary("floor", quotient)
    whole = select(quotient - whole > const(0.5, a.dtype), whole + one, whole)
    floor = select(quotient.ne(zero), whole, ir.binary("copysign", zero, a / b))
    infinite = ir.unary("abs", a).eq(const(float("inf"), a.dtype))
    floor = select(b.eq(zero) | infinite, select(infinite & b.ne(zero), rest, a / b), floor)
    return floor, mod


def _int_divide(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Floor division and modulo; by zero both are zero, and the most negative by -1 wraps."""
    zero, one = const(0, a.dtype), const(1, a.dtype)
    by_zero = b.eq(zero)
    if a.dtype.kind == "uint":
        safe = select(by_zero, one, b)
        q, r = divmod(a, safe)
        return select(by_zero, zero, q), select(by_zero, zero, r)
    minus = b.eq(const(-1, a.dtype))
    safe = select(by_zero | minus, one, b)
    q, r = divmod(a, safe)
    wrong = r.ne(zero) & ((r < zero) ^ (b < zero))
    q = select(wrong, q - one, q)
    r = select(wrong, r + b, r)
    q = select(by_zero, zero, select(minus, -a, q))
    return q, select(by_zero | minus, zero, r)


def _int_pow(a: Expr, b: Expr) -> Expr:
    """Square and multiply, wrapping; a negative exponent gives 0, but of the bases 1 and -1, whose
    powers depend on its parity alone."""
    zero, one = const(0, a.dtype), const(1, a.dtype)
    result, base, exponent = one, a, b
    unsigned = dt.BY_NAME[f"uint{a.dtype.bits}"]
    bits = exponent.bitcast(unsigned)
    for i in range(a.dtype.bits):
        odd = (bits & (1 << i)).ne(const(0, unsigned))
        result = select(odd, result * base, result)
        base = base * base
    if a.dtype.kind == "int":
        result = select((b < zero) & a.ne(one) & a.ne(-one), zero, result)
    return result


def _shift_left(a: Expr, b: Expr) -> Expr:
    unsigned = dt.BY_NAME[f"uint{a.dtype.bits}"]
    big = b.bitcast(unsigned) >= const(a.dtype.bits, unsigned)
    shift = select(big, const(0, b.dtype), b)
    return select(big, const(0, a.dtype), ir.binary("shl", a, shift))


def _shift_right(a: Expr, b: Expr) -> Expr:
    unsigned = dt.BY_NAME[f"uint{a.dtype.bits}"]
    big = b.bitcast(unsigned) >= const(a.dtype.bits, unsigned)
    shift = select(big, const(a.dtype.bits - 1, b.dtype), b)
    if a.dtype.kind == "uint":
        return select(big, const(0, a.dtype), ir.binary("lshr", a, shift))
    return ir.binary("ashr", a, shift)


Table = dict[str, Callable[..., Expr]]


def _identity(a: Expr) -> Expr:
    return a


_BITWISE: Table = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "invert": lambda a: ~a,
}
_ROUNDING = ("floor", "ceil", "trunc", "rint")

_PLAIN: Table = {
    "add": ir.add,
    "sub": ir.sub,
    "mul": ir.mul,
    "neg": lambda a: ir.unary("neg", a),
    "maximum": lambda a, b: ir.binary("max", a, b),
    "minimum": lambda a, b: ir.binary("min", a, b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a.eq(b),
    "ne": lambda a, b: a.ne(b),
    "sign": _sign,
    "real": _identity,
    "conj": _identity,
    "imag": lambda a: const(0, a.dtype),
}

_BOOL: Table = {
    **_BITWISE,
    **dict.fromkeys((*_ROUNDING, "abs", "sign"), _identity),
    **dict.fromkeys(("add", "maximum"), _BITWISE["or"]),
    **dict.fromkeys(("mul", "minimum"), _BITWISE["and"]),
    **dict.fromkeys(("sub", "ne"), _BITWISE["xor"]),
    "lt": lambda a, b: ~a & b,
    "le": lambda a, b: ~a | b,
    "eq": lambda a, b: ~(a ^ b),
    "pow": lambda a, b: a | ~b,
}

_INTEGER: Table = {
    **_BITWISE,
    **dict.fromkeys(_ROUNDING, _identity),
    "abs": lambda a: a if a.dtype.kind == "uint" else ir.unary("abs", a),
    "floor_divide": lambda a, b: _int_divide(a, b)[0],
    "mod": lambda a, b: _int_divide(a, b)[1],
    "pow": _int_pow,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "popcount": lambda a: ir.unary("popcount", a),
}

_FLOAT: Table = {
    **{op: partial(ir.unary, op) for op in (*_ROUNDING, "abs", "sqrt")},
    "div": lambda a, b: a / b,
    "copysign": lambda a, b: ir.binary("copysign", a, b),
    "floor_divide": lambda a, b: _float_divmod(a, b)[0],
    "mod": lambda a, b: _float_divmod(a, b)[1],
}


# -- complex --------------------------------------------------------------------------------------


def _complex(op: str, args: list[Any], dtype: DType) -> Any:
    if op not in _COMPLEX:
        raise TypeError(f"{op} is not defined on {dtype.name} as one operation")
    return _COMPLEX[op](*args)


def _complex_sign(a: Pair) -> Pair:
    size = FUNCTIONS["hypot"](*a)
    zero = const(0.0, size.dtype)
    return (select(size.eq(zero), zero, a[0] / size), select(size.eq(zero), zero, a[1] / size))


def complex_mul(a: Pair, b: Pair) -> Pair:
    return (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])


def _complex_div(a: Pair, b: Pair) -> Pair:
    """Smith's method: scaled by the larger part of the divisor against overflow."""
    wide = ir.unary("abs", b[0]) >= ir.unary("abs", b[1])
    big, small = select(wide, b[0], b[1]), select(wide, b[1], b[0])
    zero = const(0.0, big.dtype)
    ratio = select(big.eq(zero), zero, small / big)
    scale = big + small * ratio
    first, second = select(wide, a[0], a[1]), select(wide, a[1], a[0])
    real = (first + second * ratio) / scale
    cross = (second - first * ratio) / scale
    return real, select(wide, cross, -cross)


_COMPLEX: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: (ir.add(a[0], b[0]), ir.add(a[1], b[1])),
    "sub": lambda a, b: (ir.sub(a[0], b[0]), ir.sub(a[1], b[1])),
    "mul": complex_mul,
    "div": _complex_div,
    "neg": lambda a: (-a[0], -a[1]),
    "conj": lambda a: (a[0], -a[1]),
    "real": lambda a: a[0],
    "imag": lambda a: a[1],
    "abs": lambda a: FUNCTIONS["hypot"](*a),
    "eq": lambda a, b: a[0].eq(b[0]) & a[1].eq(b[1]),
    "ne": lambda a, b: a[0].ne(b[0]) | a[1].ne(b[1]),
    "lt": lambda a, b: (a[0] < b[0]) | (a[0].eq(b[0]) & (a[1] < b[1])),
    "le": lambda a, b: (a[0] < b[0]) | (a[0].eq(b[0]) & (a[1] <= b[1])),
    "sign": _complex_sign,
    "square": lambda a: complex_mul(a, a),
}
