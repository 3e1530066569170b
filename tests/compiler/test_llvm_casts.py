"""Every conversion between real dtypes, over all values where they are few."""

from __future__ import annotations

import llvm_harness as harness
import ml_dtypes  # noqa: F401  (registers its dtypes with NumPy)
import numpy as np
import pytest

from numus import dtypes as dt
from numus import ir

REAL = [d for d in dt.ALL if d.kind != "complex"]


def samples(dtype):
    """All values of a small dtype, many of a large one: random bits, edges, halves."""
    rng = np.random.default_rng(7)
    if dtype is dt.bool_:
        return np.array([False, True])
    if dtype.itemsize <= 2:
        return np.arange(1 << dtype.bits).astype(f"uint{dtype.bits}").view(dtype.np)
    unsigned = np.dtype(f"uint{dtype.bits}")
    bits = rng.integers(0, 1 << dtype.bits, 20000, dtype=unsigned, endpoint=False)
    if dtype.is_integer:
        small = bits >> rng.integers(0, dtype.bits, bits.size).astype(unsigned)
        edges = [0, 1, 127, 128, 255, 256, 32767, 65535, 65536, 2**24 + 1, 2**31 - 1, 2**31]
        if dtype.bits == 64:
            edges += [2**53 - 1, 2**53 + 1, 2**63 - 1, 2**62 + 2**54, 2**62 + 2**54 + 1]
        edges = np.array([e for e in edges if e <= dt.int_range(dtype)[1]]).astype(dtype.np)
        return np.concatenate(
            [bits.view(dtype.np), small.view(dtype.np), edges, (0 - edges).astype(dtype.np)]
        )
    # floats: random bits; values near every low-precision float's ties; adjacent integers
    values = [bits.view(dtype.np)]
    for narrow in (dt.float16, dt.bfloat16, dt.float8_e4m3fn, dt.float8_e5m2):
        codes = np.arange(1 << (narrow.bits - 1)).astype(f"uint{narrow.bits}").view(narrow.np)
        with np.errstate(invalid="ignore"):
            exact = codes.astype(np.float64)
        exact = np.unique(exact[np.isfinite(exact)])
        middle = np.append((exact[1:] + exact[:-1]) / 2, exact[-1] + (exact[-1] - exact[-2]) / 2)
        for v in (exact, middle):
            w = v.astype(dtype.np)
            w = w[np.isfinite(w)]
            values += [w, np.nextafter(w, dtype.np.type(np.inf)), np.nextafter(w, dtype.np.type(0))]
    whole = rng.integers(-300, 300, 1000) / 4
    powers = 2.0 ** np.arange(-150, 70)
    extra = np.concatenate([whole, powers, powers - 1, [np.inf, np.nan, 0.0, -0.0, 1e300, 3e38]])
    with np.errstate(over="ignore"):
        values += [extra.astype(dtype.np)]
    everything = np.concatenate(values)
    return np.concatenate([everything, -everything])


def round_to(values, dtype):
    """Values rounded once to a narrow float: scaled so that its last place is 1, then `rint`."""
    if values.dtype.kind in "iu":
        large = np.abs(values.astype(np.float64)) >= 2.0**53
        wide = np.where(large, 0, values).astype(np.float64)
        # beyond float64: drop low bits but remember, in the last one kept, that there were some
        wide[large] = [float((v >> 11 | bool(v & 2047)) << 11) for v in values[large].tolist()]
    else:
        wide = values
    bias = (1 << (dtype.exponent - 1)) - 1
    exponent = np.maximum(np.frexp(wide)[1] - 1, 1 - bias)
    shift = dtype.mantissa - exponent
    rounded = np.ldexp(np.rint(np.ldexp(wide, shift)), -shift)
    return np.where(np.isfinite(wide), rounded, wide).astype(dtype.np)


def expected(values, source, to):
    with np.errstate(all="ignore"):
        if to is dt.bool_:
            return values.astype(np.float64) != 0 if source.is_low_precision else values != 0
        if to.is_integer and source.kind == "float":
            wide = values.astype(np.float64)
            low, high = dt.int_range(to)
            whole = np.nan_to_num(np.trunc(wide), nan=0.0)
            inside = (whole >= low) & (whole < float(high + 1))
            result = np.where(inside, whole, 0).astype(to.np)
            result[whole < low] = low
            result[whole >= float(high + 1)] = high
            return result
        if to.is_low_precision and source.itemsize >= 4 and source is not dt.float32:
            return round_to(values, to)  # NumPy goes through float32 and rounds twice
        if source.is_low_precision:
            values = values.astype(np.float32)
        return values.astype(to.np)


def same(got, want):
    if want.dtype.kind in "biu":
        return got == want
    bits = np.dtype(f"uint{want.dtype.itemsize * 8}")
    return (got.view(bits) == want.view(bits)) | ((got != got) & (want != want))


@pytest.mark.parametrize("target", harness.targets())
@pytest.mark.parametrize("source", REAL, ids=lambda d: d.name)
def test_casts(source, target):
    ir.new_build()
    values = samples(source)
    if target != "host":
        values = values[:: max(1, len(values) // 5000)].copy()
    x = ir.Buffer("x", source, "read")
    others = [d for d in REAL if d is not source]
    outs = [ir.Buffer(f"y{i}", d, "write") for i, d in enumerate(others)]
    i, n = ir.var("i"), ir.scalar("n")
    stores = [ir.Store(y, i, ir.cast(ir.load(x, i), y.dtype)) for y in outs]
    loop = ir.For(i, ir.const(0), n, "lanes", list(stores))
    kernel = ir.Kernel("casts", (x, *outs), (("n", ir.INDEX),), harness.one_block(loop))
    results = [np.zeros(len(values), d.np) for d in others]
    harness.run(kernel, [values, *results], (len(values),), target=harness.targets()[target])
    for to, got in zip(others, results, strict=True):
        want = expected(values, source, to)
        wrong = ~same(got, want)
        assert not wrong.any(), (to, values[wrong][:5], got[wrong][:5], want[wrong][:5])


def test_scalar_casts_agree():
    """The same code without lanes, on a few values."""
    ir.new_build()
    values = np.array([0.0, -1.5, 1e-40, 7e4, 300.7, np.inf, np.nan], np.float64)
    x = ir.Buffer("x", dt.float64, "read")
    outs = [ir.Buffer(f"y{i}", d, "write") for i, d in enumerate(REAL)]
    i = ir.var("i")
    stores = [ir.Store(y, i, ir.cast(ir.load(x, i), y.dtype)) for y in outs]
    loop = ir.For(i, ir.const(0), ir.const(len(values)), "serial", list(stores))
    kernel = ir.Kernel("casts", (x, *outs), (), harness.one_block(loop))
    results = [np.zeros(len(values), d.np) for d in REAL]
    harness.run(kernel, [values, *results])
    for to, got in zip(REAL, results, strict=True):
        assert same(got, expected(values, dt.float64, to)).all(), to
