"""The math library against its bars, special values included, as compiled for this machine."""

from __future__ import annotations

import numpy as np
import pytest

from numus import dtypes as dt
from numus.codegen.cpu.target import LlvmTarget, host
from numus.kernels.math import FUNCTIONS, frexp, ldexp, sincos
from numus.kernels.math import random_bits as rb
from numus.kernels.math._coefficients import EXP, LN2, NORMAL_BELOW, NORMAL_TOP
from tools import accuracy
from tools.lanes import Lanes
from tools.minimax import fit, ratio, split

FLOATS = (dt.float32, dt.float64)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", accuracy.CASES)
def test_error_is_within_its_bar(name, dtype):
    m = accuracy.measure(accuracy.CASES[name], dtype, count=2000, exact_count=100)
    assert m.worst <= m.bar, m
    assert not m.disagree, m


def test_every_function_has_a_bar():
    assert set(FUNCTIONS) == set(accuracy.CASES)


@pytest.mark.skipif(host().vector_bytes < 64, reason="there is no narrower target to compare with")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_narrower_vectors_give_the_same_bits(name):
    narrow = LlvmTarget(host().triple, "haswell", "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt")
    case = accuracy.CASES[name]
    points = accuracy.binary_points if case in accuracy.BINARY else accuracy.unary_points
    arrays = points(case, dt.float32, 500)
    types = [dt.float32] * len(arrays)
    want = Lanes(FUNCTIONS[name], types)(*arrays)
    np.testing.assert_array_equal(Lanes(FUNCTIONS[name], types, narrow)(*arrays), want)


# Arguments that come close to a multiple of pi/2, and huge ones: the worst for the reduction.
HARD_32 = [16367173.0 * 2.0**72, 3.4e38, 2.0**127, 1.5e30, 11.0, 22.0, 355.0, 103993.0, 65536.0]
HARD_64 = [6381956970095103.0 * 2.0**797, 1e22, 1.7e308, 2.0**1023, 355.0, 1073741824.0, 2.0**60]


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_hard_arguments(name):
    mp = accuracy.mp
    for dtype, points in ((dt.float32, HARD_32), (dt.float64, HARD_64)):
        x = np.array([*points, *np.negative(points)], dtype.np)
        with mp.workprec(1500):
            exact = [getattr(mp, name)(mp.mpf(float(v))) for v in x]
        want = np.array([np.longdouble(float(e)) + float(e - float(e)) for e in exact])
        assert accuracy.errors(Lanes(FUNCTIONS[name], [dtype])(x), want, dtype).max() < 1.6


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_sincos_is_sin_and_cos(dtype):
    x = np.linspace(-1e6, 1e6, 1001).astype(dtype.np)
    both = Lanes(sincos, [dtype])(x)
    for got, name in zip(both, ("sin", "cos"), strict=True):
        np.testing.assert_array_equal(got, Lanes(FUNCTIONS[name], [dtype])(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exact_powers(dtype):
    power = Lanes(FUNCTIONS["pow"], [dtype, dtype])
    base, exponent = (a.ravel() for a in np.meshgrid(np.arange(-30.0, 31), np.arange(0.0, 5)))
    np.testing.assert_array_equal(power(base, exponent), base**exponent)
    whole = np.arange(-149.0, 128)
    np.testing.assert_array_equal(power(np.full_like(whole, 2), whole), 2.0**whole)
    np.testing.assert_array_equal(Lanes(FUNCTIONS["exp2"], [dtype])(whole), 2.0**whole)
    np.testing.assert_array_equal(Lanes(FUNCTIONS["log2"], [dtype])(2.0**whole), whole)
    np.testing.assert_array_equal(Lanes(FUNCTIONS["cbrt"], [dtype])(np.arange(9.0) ** 3), range(9))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_subnormals_are_not_flushed(dtype):
    tiny = np.finfo(dtype.np).smallest_subnormal * np.arange(1, 50)
    for name in ("sin", "tan", "asin", "atan", "sinh", "tanh", "expm1", "log1p", "asinh", "atanh"):
        np.testing.assert_array_equal(Lanes(FUNCTIONS[name], [dtype])(tiny), tiny, err_msg=name)
    exponents = np.log(tiny.astype(np.longdouble)).astype(dtype.np)
    results = Lanes(FUNCTIONS["exp"], [dtype])(exponents)
    np.testing.assert_array_equal(results, np.exp(exponents.astype(np.longdouble)).astype(dtype.np))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_ldexp_and_frexp(dtype):
    rng = np.random.default_rng(3)
    x = accuracy.random_bits(rng, dtype, 3000, (-np.inf, np.inf))
    x[:3] = 0.0, np.inf, -np.inf
    n = rng.integers(-2300, 2300, 3000).astype(np.int32)
    signed = dt.BY_NAME[f"int{dtype.bits}"]
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(Lanes(ldexp, [dtype, signed])(x, n), np.ldexp(x, n))
    mantissa, exponent = Lanes(frexp, [dtype])(x)
    want = np.frexp(x)
    np.testing.assert_array_equal(mantissa, want[0])
    np.testing.assert_array_equal(exponent, want[1])


# -- random bits ----------------------------------------------------------------------------------

# Random123's known answers: key, counter, result.
THREEFRY = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def test_threefry_gives_the_published_bits():
    run = Lanes(rb.threefry2x32, [dt.uint32] * 4)
    for key, counter, want in THREEFRY:
        got = run(*(np.array([v], np.uint32) for v in (*key, *counter)))
        assert tuple(int(g[0]) for g in got) == want


def words(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    counter = np.arange(count, dtype=np.uint32)
    same = [np.full(count, v, np.uint32) for v in (seed, 7)]
    return Lanes(rb.threefry2x32, [dt.uint32] * 4)(*same, counter, np.zeros_like(counter))


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
def test_normal_pair(wide):
    n = 200_000
    x0, x1 = words(n)
    if wide:
        more0, more1 = words(n, seed=1)
        x0 = x0.astype(np.uint64) << np.uint64(32) | more0
        x1 = x1.astype(np.uint64) << np.uint64(32) | more1
    pair = rb.normal_pair64 if wide else rb.normal_pair
    z0, z1 = Lanes(pair, [dt.uint64 if wide else dt.uint32] * 2)(x0, x1)
    bits = 64 if wide else 32
    # the formula in more precision, up to the reflections that choose the quarter of the circle
    long = np.longdouble
    u = ((x0 >> x0.dtype.type(1)).astype(long) + long(0.5)) * long(2) ** (1 - bits)
    turned = (x1 << x1.dtype.type(2)).view(f"int{bits}").astype(long) * long(2) ** (1 - bits)
    radius, angle = np.sqrt(-2 * np.log(u)), turned * long(np.pi) / 4
    flipped = np.where(x1 >> x1.dtype.type(bits - 1), -np.cos(angle), np.cos(angle))
    swapped = (x1 >> x1.dtype.type(bits - 2) & x1.dtype.type(1)).astype(bool)
    want0 = radius * np.where(swapped, np.sin(angle), flipped)
    want1 = radius * np.where(swapped, flipped, np.sin(angle))
    if not wide:  # float64's formula needs pi beyond float64
        outer = u < 0.5  # further in, u is rounded to 24 bits and the radius coarser
        for got, want in ((z0, want0), (z1, want1)):
            assert accuracy.errors(got[outer], want[outer], dt.float32).max() < 4
    for z, want in ((z0, want0), (z1, want1)):
        np.testing.assert_allclose(z, want.astype(z.dtype), rtol=1e-3, atol=1e-4)
        assert abs(z.mean()) < 0.01
        assert abs(z.std() - 1) < 0.005
        assert abs((z**4).mean() - 3) < 0.08
        assert np.abs(z).max() > 4.2
    assert abs(np.corrcoef(z0, z1)[0, 1]) < 0.01


def test_normal_pair_at_its_ends():
    x0 = np.array([0, 0, 0xFFFFFFFF], np.uint32)
    z0, z1 = Lanes(rb.normal_pair, [dt.uint32] * 2)(x0, np.array([0, 1 << 30, 5], np.uint32))
    assert z0[0] == pytest.approx(np.sqrt(64 * np.log(2)), rel=1e-6)
    assert z1[1] == pytest.approx(np.sqrt(64 * np.log(2)), rel=1e-6)
    assert z0[2] == 0
    assert z1[2] == 0


# -- coefficients ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_coefficients_can_be_made_again():
    from tools.coefficients import FITS, RATIOS

    mp = accuracy.mp
    want = next(f for f in FITS if f.name == "EXP")
    with mp.workprec(240):
        c, error = fit(want.of, *want.interval(24), want.degrees[0], 24, want.weighted)
        assert error < 2.0**-28
        np.testing.assert_array_equal(np.float32(c), np.float32(EXP[0]))
        np.testing.assert_array_equal(np.float32(split(mp.log(2), 24, 2)), np.float32(LN2[0]))
        made = RATIOS[0]
        *parts, error = ratio(made.of, *made.on[0], made.degrees[0], 24)
        assert error < 2.0**-25
        for c, table in zip(parts, (NORMAL_TOP, NORMAL_BELOW), strict=True):
            np.testing.assert_array_equal(np.float32(c), np.float32(table[0]))
