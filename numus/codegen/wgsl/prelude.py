"""Prelude: WGSL functions for IEEE arithmetic that the language lacks or does not promise.

WGSL lets a compiler contract, reassociate and assume that there is no NaN. Results that must not be
optimised so are *hidden*: XORed with a zero known only at run time (`Z`). Constants use a second
zero (`Y`), since `x ^ Z ^ Z` would fold to `x`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from numus import dtypes as dt
from numus.codegen.wgsl.arithmetic import SUFFIX as _SUFFIX
from numus.codegen.wgsl.target import WgslTarget
from numus.dtypes import DType

FUNCTIONS: dict[str, str] = {}  # by name; those that depend on the target are below


def _add(text: str) -> None:
    for source in re.split(r"\n(?=fn )", text.strip()):
        name = source[3 : source.index("(")]
        FUNCTIONS[name] = source


_add("""
fn hide32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ Z); }
fn hide64(x: f64) -> f64 { return bitcast<f64>(bitcast<u64>(x) ^ u64(Z)); }
fn hide_i64(x: i64) -> i64 { return x ^ i64(Z); }
fn hidden(x: bool) -> bool { return x != (Z != 0u); }
fn bits32(x: u32) -> f32 { return bitcast<f32>(x ^ Y); }
fn bits64(x: u64) -> f64 { return bitcast<f64>(x ^ u64(Y)); }
fn nan32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn nan64(x: f64) -> bool {
  return (bitcast<u64>(x) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu;
}
fn copysign32(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}
fn copysign64(x: f64, y: f64) -> f64 {
  let sign = bitcast<u64>(y) & 0x8000000000000000lu;
  return bitcast<f64>((bitcast<u64>(x) & 0x7ffffffffffffffflu) | sign);
}
""")

for _bits in ("32", "64"):
    for _op, _order in (("min", "<"), ("max", ">")):
        _f = f"f{_bits}"
        _add(f"""
fn {_op}{_bits}(a: {_f}, b: {_f}) -> {_f} {{
  return select(select(a, b, !hidden(a {_order}= b)), a, nan{_bits}(a));
}}
""")

# -- correctly rounded fma, division and square root ----------------------------------------------

_SPLITTERS = {"32": "4097.0f", "64": "134217729.0lf"}
_SAFE = {"32": ("1e-25f", "1e30f"), "64": ("1e-250lf", "1e270lf")}


def _emulated_fma(bits: str) -> str:
    """a * b + c by Dekker's product and Knuth's two-sum; two roundings where those overflow."""
    f, h, splitter = f"f{bits}", f"hide{bits}", _SPLITTERS[bits]
    low, high = _SAFE[bits]
    return f"""
fn fma{bits}(a: {f}, b: {f}, c: {f}) -> {f} {{
  let p = {h}(a * b);
  let s = {h}(p + c);
  if (!(abs(p) > {low} && abs(p) < {high} && abs(a) < {high} && abs(b) < {high})) {{ return s; }}
  let ta = {h}(a * {splitter});
  let ah = {h}(ta - {h}(ta - a));
  let al = {h}(a - ah);
  let tb = {h}(b * {splitter});
  let bh = {h}(tb - {h}(tb - b));
  let bl = {h}(b - bh);
  let first = {h}({h}(ah * bh) - p);
  let second = {h}({h}(first + {h}(ah * bl)) + {h}(al * bh));
  let e = {h}(second + {h}(al * bl));
  let v = {h}(s - p);
  let t = {h}({h}(p - {h}(s - v)) + {h}(c - v));
  return s + {h}(t + e);
}}
"""


_NATIVE_FMA = {
    bits: f"fn fma{bits}(a: {f}, b: {f}, c: {f}) -> {f} {{ return fma(a, b, c); }}"
    for bits, f in (("32", "f32"), ("64", "f64"))
}
# the product is exact in float64; the sum is rounded there and once more
_FMA32_BY_64 = """
fn fma32(a: f32, b: f32, c: f32) -> f32 { return f32(hide64(f64(a) * f64(b)) + f64(c)); }
"""
_NATIVE_DIVIDE = "fn div32(a: f32, b: f32) -> f32 { return a / b; }"
_QUOTIENT = """
fn quotient32(a: f32, b: f32) -> f32 {
  let q = a / b;
  return fma32(fma32(-q, b, a), 1.0f / b, q);
}
"""
_EXACT_DIVIDE = """
fn div32(a: f32, b: f32) -> f32 {
  let big = max(abs(a), abs(b));
  let small = min(abs(a), abs(b));
  if (small > 1e-15f && big < 1e15f) { return quotient32(a, b); }
  if (!(small > 0.0f && big <= 3.4028234e38f) || nan32(a) || nan32(b)) {
    // one is zero, infinite or no number: the other is as good as 1, whose reciprocal is exact
    let usual_a = abs(a) > 0.0f && abs(a) <= 3.4028234e38f && !nan32(a);
    let usual_b = abs(b) > 0.0f && abs(b) <= 3.4028234e38f && !nan32(b);
    let ua = select(a, select(-1.0f, 1.0f, a > 0.0f), usual_a);
    let ub = select(b, select(-1.0f, 1.0f, b > 0.0f), usual_b);
    return ua / ub;
  }
  // far apart: both are brought near 1, and the result is moved back in two steps
  let x = select(a, a * 16777216.0f, abs(a) < 1e-30f);
  let y = select(b, b * 16777216.0f, abs(b) < 1e-30f);
  let ex = i32((bitcast<u32>(x) >> 23u) & 255u) - 127;
  let ey = i32((bitcast<u32>(y) >> 23u) & 255u) - 127;
  let mx = bitcast<f32>(bitcast<u32>(x) - (u32(ex) << 23u));
  let my = bitcast<f32>(bitcast<u32>(y) - (u32(ey) << 23u));
  let n = ex - ey - select(0, 24, abs(a) < 1e-30f) + select(0, 24, abs(b) < 1e-30f);
  let half = clamp(n / 2, -126, 127);
  let rest = clamp(n - half, -126, 127);
  let q = quotient32(mx, my) * bitcast<f32>(u32(half + 127) << 23u);
  return hide32(q) * bitcast<f32>(u32(rest + 127) << 23u);
}
"""
_UNPACK = "fn float16_decode(x: u32) -> f32 { return unpack2x16float(x).x; }"
_NATIVE_SQRT = "fn sqrt32(x: f32) -> f32 { return sqrt(x); }"
_EXACT_SQRT = """
fn sqrt32(x: f32) -> f32 {
  // remainders of remainders must not be subnormal: small numbers are brought up first
  let low = x < 1e-20f;
  let y = select(x, x * 18446744073709551616.0f, low);
  let s = sqrt(y);
  // a step of Newton's, then the neighbour where that is nearer (Tuckerman's test)
  let near = fma32(fma32(-s, s, y), 0.5f / s, s);
  let down = bitcast<f32>(bitcast<u32>(near) - 1u);
  let up = bitcast<f32>(bitcast<u32>(near) + 1u);
  let nearer = select(near, down, fma32(-near, down, y) <= 0.0f);
  let nearest = select(nearer, up, fma32(-near, up, y) > 0.0f);
  let root = select(s, nearest, y > 0.0f && y <= 3.4028234e38f);
  return select(root, root * 2.3283064365386963e-10f, low);
}
"""


def _target_functions(target: WgslTarget) -> dict[str, str]:
    by_64 = _FMA32_BY_64 if target.f64 and target.i64 else _emulated_fma("32")
    return {
        "quotient32": _QUOTIENT,
        "fma32": _NATIVE_FMA["32"] if target.exact_fma32 else by_64,
        "fma64": _NATIVE_FMA["64"] if target.exact_fma64 else _emulated_fma("64"),
        **({"float16_decode": _UNPACK} if target.exact_unpack16 else {}),
        "div32": _NATIVE_DIVIDE if target.exact_div32 else _EXACT_DIVIDE,
        "sqrt32": _NATIVE_SQRT if target.exact_sqrt32 else _EXACT_SQRT,
    }


# -- integers -------------------------------------------------------------------------------------

for _bits, _half, _mask, _0, _0u in (
    ("32", "16u", "0xffffu", "0", "0u"),
    ("64", "32u", "0xfffffffflu", "0li", "0lu"),
):
    _i, _u = f"i{_bits}", f"u{_bits}"
    _add(f"""
fn mulhi_{_u}(a: {_u}, b: {_u}) -> {_u} {{
  let al = a & {_mask}; let ah = a >> {_half};
  let bl = b & {_mask}; let bh = b >> {_half};
  let low = al * bl; let first = ah * bl; let second = al * bh;
  let middle = (low >> {_half}) + (first & {_mask}) + (second & {_mask});
  return ah * bh + (first >> {_half}) + (second >> {_half}) + (middle >> {_half});
}}
fn mulhi_{_i}(a: {_i}, b: {_i}) -> {_i} {{
  let high = mulhi_{_u}(bitcast<{_u}>(a), bitcast<{_u}>(b));
  let off = select({_0u}, bitcast<{_u}>(b), a < {_0}) + select({_0u}, bitcast<{_u}>(a), b < {_0});
  return bitcast<{_i}>(high - off);
}}
""")
_add("""
fn dot4(total: i32, codes: u32, x: u32) -> i32 {
  let a = vec4<i32>((vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
  let b = bitcast<vec4<i32>>(vec4<u32>(x) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
  return total + dot(a, b);
}
""")
_add("""
fn popcount64(x: u64) -> u64 {
  return u64(countOneBits(u32(x & 0xfffffffflu)) + countOneBits(u32(x >> 32u)));
}
fn clz64(x: u64) -> u64 {
  let high = u32(x >> 32u);
  let low = countLeadingZeros(u32(x & 0xfffffffflu)) + 32u;
  return u64(select(low, countLeadingZeros(high), high != 0u));
}
""")

# -- floats to integers: saturating, NaN to zero --------------------------------------------------


def _to_int(source: str, to: str) -> str:
    bits, signed = int(to[1:]), to[0] == "i"
    high = 1 << (bits - signed)
    low = f"{to}(-{high - 1}{_SUFFIX[to]} - 1{_SUFFIX[to]})" if signed else f"0{_SUFFIX[to]}"
    f = _SUFFIX[source]
    floor = f"-{float(high)!r}{f}" if signed else f"0.0{f}"
    # the conversion is only given what it can take
    return f"""
fn {to}_{source}(x: {source}) -> {to} {{
  let over = x >= {float(high)!r}{f};
  let under = x < {floor};
  let r = {to}(select(x, 0.0{f}, over || under || nan{source[1:]}(x)));
  return select(select(r, {high - 1}{_SUFFIX[to]}, over), {low}, under);
}}
"""


for _source in ("f32", "f64"):
    for _to in ("i32", "u32", "i64", "u64"):
        _add(_to_int(_source, _to))

# -- 8- and 16-bit floats: bits in a u32 ----------------------------------------------------------

_add("""
fn odd_f64(x: f64) -> f32 {
  let near = f32(x);
  let back = f64(near);
  let bits = bitcast<u32>(near);
  let down = select(bits, bits - 1u, abs(back) > abs(x));
  return bitcast<f32>(select(down | 1u, bits, back == x || nan64(x)));
}
fn odd_u32(x: u32) -> f32 {
  let over = max(8u - min(countLeadingZeros(x), 8u), 0u);
  let kept = x >> over;
  return f32((kept | select(0u, 1u, (kept << over) != x)) << over);
}
fn odd_i32(x: i32) -> f32 {
  let f = odd_u32(u32(select(x, -x, x < 0)));
  return select(f, -f, x < 0);
}
fn odd_u64(x: u64) -> f32 {
  let over = 40u - min(u32(clz64(x)), 40u);
  let kept = x >> over;
  return f32((kept | select(0lu, 1lu, (kept << over) != x)) << over);
}
fn odd_i64(x: i64) -> f32 {
  let f = odd_u64(bitcast<u64>(select(x, -x, x < 0li)));
  return select(f, -f, x < 0li);
}
fn bfloat16_encode(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let rounded = bits + 0x7fffu + ((bits >> 16u) & 1u);
  return select(rounded, (bits & 0x80000000u) | 0x7fc00000u, nan32(x)) >> 16u;
}
fn bfloat16_decode(x: u32) -> f32 { return bitcast<f32>(x << 16u); }
""")


def _decode(d: DType) -> str:
    """Exact: a subnormal is an integer times a power of two."""
    bias, m, sign_bit = (1 << (d.exponent - 1)) - 1, d.mantissa, 1 << (d.bits - 1)
    if d is dt.float8_e4m3fn:  # all ones is its only NaN, and it has no infinity
        special, beyond = "size == 0x7fu", "0x7fc00000u"
    else:
        infinity = ((1 << d.exponent) - 1) << m
        special, beyond = f"size >= {infinity}u", f"((size << {23 - m}u) | 0x7f800000u)"
    return f"""
fn {d.name}_decode(x: u32) -> f32 {{
  let size = x & {sign_bit - 1}u;
  let normal = (size << {23 - m}u) + {(127 - bias) << 23}u;
  let small = bitcast<u32>(f32(size) * {2.0 ** (1 - bias - m)!r}f);
  let finite = select(normal, small, size < {1 << m}u);
  let bits = select(finite, {beyond}, {special});
  return bitcast<f32>(bits | ((x & {sign_bit}u) << {32 - d.bits}u));
}}
"""


def _encode(d: DType) -> str:
    """Round to nearest even in integers; a subnormal's significand is shifted explicitly."""
    bias, m = (1 << (d.exponent - 1)) - 1, d.mantissa
    shift = 23 - m
    largest = 0x7F if d is dt.float8_e4m3fn else ((1 << d.exponent) - 1) << m
    nan = largest if d is dt.float8_e4m3fn else largest | (1 << (m - 1))
    return f"""
fn {d.name}_encode(x: f32) -> u32 {{
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  let rounded = (size + {(1 << (shift - 1)) - 1}u + ((size >> {shift}u) & 1u)) >> {shift}u;
  let normal = min(rounded - {(127 - bias) << m}u, {largest}u);
  let drop = min({127 - bias + shift + 1}u - min(size >> 23u, {127 - bias + shift + 1}u), 31u);
  let whole = (size & 0x7fffffu) | 0x800000u;
  let kept = whole >> drop;
  let rest = whole - (kept << drop);
  let half = (1u << drop) >> 1u;
  let small = kept + select(0u, 1u, rest > half || (rest == half && (kept & 1u) == 1u));
  let finite = select(normal, small, size < {(128 - bias) << 23}u);
  let result = select(finite, {nan}u, size > 0x7f800000u);
  return result | ((bits >> {32 - d.bits}u) & {1 << (d.bits - 1)}u);
}}
"""


for _d in (dt.float16, dt.float8_e4m3fn, dt.float8_e5m2):
    _add(_decode(_d))
    _add(_encode(_d))


_CALL = re.compile(r"\b[a-z]\w+(?=\()")


def prelude(used: Iterable[str], target: WgslTarget) -> str:
    """The functions with these names, preceded by those that they call."""
    table = {**FUNCTIONS, **_target_functions(target)}
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done or name not in table:
            return
        source = table[name].strip()
        for other in _CALL.findall(source):
            if other != name:
                add(other)
        done[name] = source

    for name in used:
        add(name)
    return "\n".join(done.values())


def called_functions(text: str) -> list[str]:
    """The names of the functions that WGSL text calls, each once."""
    return list(dict.fromkeys(_CALL.findall(text)))
