"""Arithmetic of kernels written in IR by hand, compared with NumPy."""

from __future__ import annotations

import llvm_harness as harness
import numpy as np
import pytest
from llvm_harness import N, buffers, lane, lanes, rand

from numus import dtypes as dt
from numus import ir
from numus.ir import (
    INDEX,
    Buffer,
    Kernel,
    Store,
    const,
    load,
    scalar,
)

f32, f64, i32, i64 = dt.float32, dt.float64, dt.int32, dt.int64


INTEGERS = [dt.uint8, dt.int8, dt.int16, dt.uint16, i32, dt.uint32, i64, dt.uint64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_arithmetic(dtype, target):
    n, bits = 203, dtype.bits
    a, b = rand(n, dtype, 1), rand(n, dtype, 2)
    low, high = dt.int_range(dtype)
    a[:4] = [low, high, low, high]
    b[:4] = [-1 if low < 0 else 1, -1 if low < 0 else 1, 1, high]
    b[b == 0] = 3
    x0, x1, *_ = buffers(dtype, dtype)
    i = lane()
    p, q = load(x0, i), load(x1, i)
    shift = ir.binary("and", q, const(bits - 1, dtype))
    right = "ashr" if dtype.kind == "int" else "lshr"
    s = (b & dtype.np.type(bits - 1)).astype(dtype.np)
    wide = [(int(u), int(v)) for u, v in zip(a, b, strict=True)]

    def wrap(values):
        return np.array([(v - low) % (1 << bits) + low for v in values], dtype.np)

    def quotient(u, v):
        whole = abs(u) // abs(v)
        return whole if (u < 0) == (v < 0) else -whole

    cases = {
        "add": (p + q, wrap(u + v for u, v in wide)),
        "sub": (p - q, wrap(u - v for u, v in wide)),
        "mul": (p * q, wrap(u * v for u, v in wide)),
        "mulhi": (ir.binary("mulhi", p, q), wrap((u * v) >> bits for u, v in wide)),
        "idiv": (ir.binary("idiv", p, q), wrap(quotient(u, v) for u, v in wide)),
        "irem": (ir.binary("irem", p, q), wrap(u - quotient(u, v) * v for u, v in wide)),
        "idiv7": (ir.binary("idiv", p, const(7, dtype)), wrap(quotient(u, 7) for u, _ in wide)),
        "min": (ir.minimum(p, q), np.minimum(a, b)),
        "max": (ir.maximum(p, q), np.maximum(a, b)),
        "and": (p & q, a & b),
        "or": (p | q, a | b),
        "xor": (p ^ q, a ^ b),
        "shl": (
            ir.binary("shl", p, shift),
            wrap(int(u) << int(v) for u, v in zip(a, s, strict=True)),
        ),
        "shr": (ir.binary(right, p, shift), a >> s),
        "neg": (-p, wrap(-u for u, _ in wide)),
        "not": (~p, ~a),
        "abs": (ir.unary("abs", p), wrap(abs(u) for u, _ in wide)),
        "popcount": (
            ir.unary("popcount", p),
            np.array([(u % (1 << bits)).bit_count() for u, _ in wide]).astype(dtype.np),
        ),
        "clz": (
            ir.unary("clz", p),
            np.array([bits - (u % (1 << bits)).bit_length() for u, _ in wide]).astype(dtype.np),
        ),
        "lt": (ir.cast(p < q, dtype), (a < b).astype(dtype.np)),
        "ge": (ir.cast(p >= q, dtype), (a >= b).astype(dtype.np)),
    }
    outs = [Buffer(f"y{k}", dtype, "write") for k in range(len(cases))]
    body = [Store(y, i, e) for y, (e, _) in zip(outs, cases.values(), strict=True)]
    kernel = Kernel("int", (x0, x1, *outs), N, harness.one_block(lanes(body)))
    results = [np.zeros(n, dtype.np) for _ in cases]
    harness.run(kernel, [a, b, *results], (n,), target=target)
    for (name, (_, want)), got in zip(cases.items(), results, strict=True):
        assert np.array_equal(got, want), (name, got[got != want][:3], want[got != want][:3])


@pytest.mark.parametrize("divisor", ["varying", "slot", "constant"])
def test_division_of_64_bit_integers(divisor, target):
    """Small ones go through floats, large ones lane by lane; remainders share the quotient."""
    x0, x1, y = buffers(i64, i64)
    z, w = Buffer("z", i64, "write"), Buffer("w", i64, "write")
    i = lane()
    d = {"varying": load(x1, i), "slot": scalar("d"), "constant": const(12345)}[divisor]
    body = [
        Store(y, i, ir.binary("idiv", load(x0, i), d)),
        Store(z, i, ir.binary("irem", load(x0, i), d)),
        Store(w, i, ir.binary("irem", i * 3 + scalar("s"), d)),
    ]
    slots = (*N, ("d", INDEX), ("s", INDEX))
    kernel = Kernel("divide", (x0, x1, y, z, w), slots, harness.one_block(lanes(body, unroll=2)))
    native = harness.compiled(kernel, target)
    rng = np.random.default_rng(0)
    for bits in (8, 30, 51, 52, 53, 63):
        for n in (5, 64, 83):
            a = rng.integers(-(1 << bits) + 1, 1 << bits, n, dtype=np.int64)
            b = rng.integers(1, 1 << min(bits, 62), n, dtype=np.int64) * rng.choice([-1, 1], n)
            a[: n // 2] //= b[: n // 2]
            a[: n // 2] *= b[: n // 2]  # exact multiples
            many = {"varying": b, "slot": b[:1].repeat(n), "constant": np.full(n, 12345)}[divisor]
            outs = [np.zeros(n, np.int64) for _ in range(3)]
            start = (1 << bits) - 7 * n
            harness.run(kernel, [a, b, *outs], (n, int(b[0]), start), native=native)
            pairs = list(zip(a.tolist(), many.tolist(), strict=True))
            want = [abs(u) // abs(v) * (1 if (u < 0) == (v < 0) else -1) for u, v in pairs]
            assert outs[0].tolist() == want
            assert outs[1].tolist() == [u - q * v for (u, v), q in zip(pairs, want, strict=True)]
            third = [start + 3 * k for k in range(n)]
            assert outs[2].tolist() == [
                u - abs(u) // abs(v) * (1 if (u < 0) == (v < 0) else -1) * v
                for u, v in zip(third, many.tolist(), strict=True)
            ]


@pytest.mark.parametrize("dtype", [f32, f64], ids=lambda d: d.name)
def test_float_arithmetic(dtype, target):
    rng = np.random.default_rng(3)
    n = 301
    a, b, c = (rng.standard_normal(n).astype(dtype.np) * 3 for _ in range(3))
    edges = np.array(
        [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, np.inf, -np.inf, np.nan, 1e-42, 3e9], dtype.np
    )
    a = np.concatenate([a, edges]).astype(dtype.np)
    b, c = (np.concatenate([v, v[: len(edges)]]).astype(dtype.np) for v in (b, c))
    n = len(a)
    x0, x1, x2, _ = buffers(dtype, dtype, dtype)
    i = lane()
    p, q, r = load(x0, i), load(x1, i), load(x2, i)
    with np.errstate(all="ignore"):
        exact = np.array(
            [_fused(u, v, w, dtype) for u, v, w in zip(a, b, c, strict=True)], dtype.np
        )
        cases = {
            "add": (p + q, a + b),
            "sub": (p - q, a - b),
            "mul": (p * q, a * b),
            "div": (p / q, a / b),
            "fma": (ir.fma(p, q, r), exact),
            "sqrt": (ir.sqrt(p), np.sqrt(a)),
            "floor": (ir.unary("floor", p), np.floor(a)),
            "ceil": (ir.unary("ceil", p), np.ceil(a)),
            "trunc": (ir.unary("trunc", p), np.trunc(a)),
            "rint": (ir.unary("rint", p), np.rint(a)),
            "abs": (ir.unary("abs", p), np.abs(a)),
            "neg": (-p, -a),
            "copysign": (ir.binary("copysign", q, p), np.copysign(b, a)),
            "muladd": (p * q + r, a * b + c),
            **{
                op: (ir.cast(ir.binary(op, p, q), dtype), getattr(np, name)(a, b).astype(dtype.np))
                for op, name in {
                    "lt": "less",
                    "le": "less_equal",
                    "gt": "greater",
                    "ge": "greater_equal",
                    "eq": "equal",
                    "ne": "not_equal",
                }.items()
            },
        }
    outs = [Buffer(f"y{k}", dtype, "write") for k in range(len(cases))]
    body = [Store(y, i, e) for y, (e, _) in zip(outs, cases.values(), strict=True)]
    kernel = Kernel("float", (x0, x1, x2, *outs), N, harness.one_block(lanes(body)))
    results = [np.zeros(n, dtype.np) for _ in cases]
    harness.run(kernel, [a, b, c, *results], (n,), target=target)
    for (name, (_, want)), got in zip(cases.items(), results, strict=True):
        assert np.array_equal(got, want, equal_nan=True), name
        real = ~np.isnan(want)
        assert np.array_equal(np.signbit(got[real]), np.signbit(want[real])), name


def _fused(u, v, w, dtype):
    from fractions import Fraction

    if not all(np.isfinite(t) for t in (u, v, w)):
        return u * v + w
    exact = Fraction(float(u)) * Fraction(float(v)) + Fraction(float(w))
    if dtype is f64:
        return float(exact)
    # nearest float32, ties to even
    near = np.float32(float(exact))
    best = min(
        (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))),
        key=lambda t: (abs(Fraction(float(t)) - exact), int(t.view(np.uint32)) & 1),
    )
    return best


def test_bitcasts_selects_and_bools(target):
    x0, x1, y = buffers(f32, dt.bool_)
    z, w = Buffer("z", dt.uint32, "write"), Buffer("w", dt.bool_, "write")
    i = lane()
    v, b = load(x0, i), load(x1, i)
    body = [
        Store(y, i, ir.select(b, v, const(2, f32))),
        Store(z, i, v.bitcast(dt.uint32) ^ 1),
        Store(w, i, ir.binary("and", ~b, v > 0.0)),
    ]
    kernel = Kernel("mixed", (x0, x1, y, z, w), N, harness.one_block(lanes(body, unroll=2)))
    a, c = rand(99, f32), rand(99, dt.bool_)
    outs = [np.zeros(99, np.float32), np.zeros(99, np.uint32), np.zeros(99, bool)]
    harness.run(kernel, [a, c, *outs], (99,), target=target)
    assert np.array_equal(outs[0], np.where(c, a, 2))
    assert np.array_equal(outs[1], a.view(np.uint32) ^ 1)
    assert np.array_equal(outs[2], ~c & (a > 0))


def test_scalar_slots_have_their_dtypes():
    kinds = [f32, f64, dt.bool_, dt.int8, dt.uint64, dt.float16, dt.bfloat16]
    given = (0.1, 0.1, True, -5, -1, 1.5, 1.5)
    outs = [Buffer(f"y{k}", d, "write") for k, d in enumerate(kinds)]
    slots = tuple((f"s{k}", d) for k, d in enumerate(kinds))
    body = [Store(y, const(0), scalar(f"s{k}", y.dtype)) for k, y in enumerate(outs)]
    kernel = Kernel("slots", tuple(outs), slots, harness.one_block(*body))
    results = [np.zeros(1, d.np) for d in kinds]
    harness.run(kernel, results, given)
    assert [r[0] for r in results] == [
        *(np.float32(0.1), 0.1, True, -5, 2**64 - 1),
        *(np.float16(1.5), dt.bfloat16.np.type(1.5)),
    ]


@pytest.mark.parametrize("small", [True, False], ids=["small", "all"])
def test_dot_products_of_bytes(target, small):
    """Sums of pairs of bytes do not saturate."""
    n, rng = 203, np.random.default_rng(0)
    codes = rng.integers(0, 128 if small else 256, (n, 4)).astype(np.uint8)
    x = rng.integers(-128, 128, (n, 4)).astype(np.int8)
    codes[:2], x[0], x[1] = 127 if small else 255, -128, 127
    total = rand(n, i32, 1) >> 8
    words, activations, sums, y = buffers(dt.uint32, dt.uint32, i32, out=i32)
    found = ir.dot4(
        load(sums, lane()), load(words, lane()), load(activations, lane()), 127 if small else 255
    )
    kernel = Kernel(
        "dot", (words, activations, sums, y), N, harness.one_block(lanes([Store(y, lane(), found)]))
    )
    out = np.zeros(n, np.int32)
    given = [codes.view(np.uint32)[:, 0].copy(), x.view(np.uint32)[:, 0].copy(), total, out]
    harness.run(kernel, given, (n,), target=target)
    assert np.array_equal(out, total + (codes.astype(np.int32) * x).sum(1))


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9])
def test_sums_of_dot_products_of_tiny_codes(target, count):
    """Several are added up in 16 bits, which they fit; other sums between them are kept."""
    n, rng = 77, np.random.default_rng(count)
    codes = rng.integers(0, 32, (count, n, 4)).astype(np.uint8)
    x = rng.integers(-128, 128, (count, n, 4)).astype(np.int8)
    codes[:, :2], x[:, 0], x[:, 1] = 31, -128, 127
    given = buffers(*[dt.uint32] * (2 * count), out=i32)
    found = const(7, i32)
    for i, (a, b) in enumerate(zip(given[:-1:2], given[1:-1:2], strict=True)):
        found = ir.dot4(found, load(a, lane()), load(b, lane()), 31)
        found = found << 1 if i == 2 else found
    body = harness.one_block(lanes([Store(given[-1], lane(), found)]))
    out = np.zeros(n, np.int32)
    words = [v.view(np.uint32)[:, 0].copy() for pair in zip(codes, x, strict=True) for v in pair]
    harness.run(Kernel("tiny", tuple(given), N, body), [*words, out], (n,), target=target)
    wanted = 7
    for i in range(count):
        wanted = wanted + (codes[i].astype(np.int32) * x[i]).sum(1)
        wanted = wanted << 1 if i == 2 else wanted
    assert np.array_equal(out, wanted)
