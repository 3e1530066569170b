"""Elementwise functions beyond the op table: edges, dtypes, complex numbers, lost gradients."""

import math

import derivatives
import mpmath
import numpy as np
import pytest
import scipy.special

import numus as nm
from numus.errors import DTypeError

inf, nan = math.inf, math.nan
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def T(values, dtype="float64"):
    return nm.asarray(np.asarray(values)).astype(dtype)


def rng(seed=0):
    return np.random.default_rng(seed)


def equal(got, expected):
    """The same numbers, the same signs of zero, NaN in the same places."""
    got = got.numpy().astype(np.float64)
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "floor_divide", "remainder", "fmod", "maximum"]
)
def test_integers_wrap_as_numpy_does(name, dtype):
    info = np.iinfo(dtype)
    a = rng(6).integers(info.min, info.max, 50, dtype=dtype, endpoint=True)
    b = rng(7).integers(info.min, info.max, 50, dtype=dtype, endpoint=True)
    b[b == 0] = 3
    got = getattr(nm, name)(nm.asarray(a), nm.asarray(b))
    np.testing.assert_array_equal(got.numpy(), getattr(np, name)(a, b))
    assert got.dtype.name == dtype


def test_integers_divided_by_zero_are_zero():
    x = nm.asarray([7, -7])
    assert (x // 0).tolist() == [0, 0]
    assert (x % 0).tolist() == [0, 0]


def test_shifts_past_the_width():
    x = nm.asarray([-5, 5], dtype="int8")
    assert (x << 1).tolist() == [-10, 10]
    assert (x << 8).tolist() == [0, 0]
    assert (x >> 1).tolist() == [-3, 2]
    assert (x >> 100).tolist() == [-1, 0]
    assert nm.bitwise_count(nm.asarray([0, 255, -1])).tolist() == [0, 8, 1]


def test_where_and_choices():
    x = nm.asarray([1.0, 2.0, 3.0])
    assert nm.where(x > 1.5, x, 0).tolist() == [0, 2, 3]
    assert nm.where(x > 1.5, 1, 0.5).dtype is nm.float32
    assert nm.where(True, 1, 2).item() == 1
    with pytest.raises(ValueError, match="broadcast"):
        nm.where(nm.asarray([True, False]), x, x)


def test_clip():
    x = nm.asarray([-2.0, 0.5, nan, 9.0])
    equal(nm.clip(x, 0, 1), np.array([0, 0.5, nan, 1]))
    equal(nm.clip(x, min=0), np.array([0, 0.5, nan, 9]))
    equal(nm.clip(x, max=1), np.array([-2, 0.5, nan, 1]))
    equal(nm.clip(x), x.numpy())
    equal(nm.clip(x, nan, 1), np.array([nan] * 4))
    equal(nm.clip(x, nm.asarray([nan, 0.0, 0.0, 0.0]), 1), np.array([nan, 0.5, nan, 1]))
    assert nm.clip(nm.arange(5), 1, 3).dtype is nm.int64
    # the gradient of what lies on a bound is that of what lies inside
    g = derivatives.reverse(lambda t: nm.clip(t, 0, 1), [np.array([-1.0, 0, 1, 2])], np.ones(4))
    np.testing.assert_array_equal(g[0], [0, 1, 1, 0])


def test_round_to_decimals():
    x = np.array([1.2345, -1.5, 2.5, 1234.5])
    np.testing.assert_allclose(nm.round(nm.asarray(x), 2).numpy(), np.round(x, 2))
    np.testing.assert_allclose(nm.round(nm.asarray(x), -2).numpy(), np.round(x, -2))
    whole = np.array([15, 25, 24, -15, -25, 151])
    np.testing.assert_array_equal(nm.round(nm.asarray(whole), -1).numpy(), np.round(whole, -1))
    z = np.array([1.5 + 2.5j])
    np.testing.assert_array_equal(nm.round(nm.asarray(z)).numpy(), np.round(z))


def test_nan_to_num():
    x = nm.asarray([nan, inf, -inf, 1.0])
    top = float(np.finfo(np.float32).max)
    assert nm.nan_to_num(x).tolist() == [0, top, -top, 1]
    assert nm.nan_to_num(x, 5, 6, 7).tolist() == [5, 6, 7, 1]
    assert nm.nan_to_num(nm.asarray([1, 2])).tolist() == [1, 2]


def test_isclose():
    a = np.array([1.0, inf, inf, nan, 1.0, 0.0])
    b = np.array([1.0 + 1e-9, inf, -inf, nan, 1.1, 1e-9])
    for equal_nan in (False, True):
        got = nm.isclose(nm.asarray(a), nm.asarray(b), equal_nan=equal_nan)
        np.testing.assert_array_equal(got.numpy(), np.isclose(a, b, equal_nan=equal_nan))
    assert nm.allclose(nm.asarray(a[:2]), nm.asarray(b[:2]))
    assert not nm.allclose(nm.asarray(a), nm.asarray(b))
    assert nm.allclose(nm.zeros((0, 3)), nm.zeros((0, 3)))
    assert not nm.isclose(nm.asarray(2**53 + 2), nm.asarray(2**53), rtol=0).item()


# -- special values -------------------------------------------------------------------------------


def test_floor_divide_at_infinity_is_the_floor_of_the_quotient():
    a = T([inf, inf, -inf, -inf, 1.0, 1.0, -1.0, -1.0, inf, 0.0, -0.0, 1.0, -1.0])
    b = T([2.0, -2.0, 2.0, -2.0, inf, -inf, inf, -inf, inf, 2.0, 2.0, 0.0, 0.0])
    expected = np.array([inf, -inf, -inf, inf, 0, -0.0, -0.0, 0, nan, 0, -0.0, inf, -inf])
    equal(nm.floor_divide(a, b), expected)


def test_round_halves_to_even_and_keep_the_sign():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -0.2, 0.0, -0.0, inf, nan])
    equal(nm.round(T(x)), np.round(x))


@pytest.mark.parametrize("dtype", [*FLOATS, "float8_e4m3fn", "float8_e5m2", "complex64"])
def test_kinds_of_numbers(dtype):
    x = T([0.0, 1.0, -3.5, nan], dtype)
    assert nm.isfinite(x).tolist() == [True, True, True, False]
    assert nm.isnan(x).tolist() == [False, False, False, True]
    assert nm.isinf(x).tolist() == [False] * 4
    if dtype != "float8_e4m3fn":
        ends = T([inf, -inf], dtype)
        assert nm.isinf(ends).tolist() == [True, True]
        assert nm.isfinite(ends).tolist() == [False, False]
    assert nm.isfinite(nm.asarray([1, 2])).tolist() == [True, True]


def test_signbit_and_nextafter():
    x = T([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, -nan])
    np.testing.assert_array_equal(nm.signbit(x).numpy(), np.signbit(x.numpy()))
    assert nm.signbit(nm.asarray([-1, 1])).tolist() == [True, False]
    assert nm.nextafter(nm.asarray(1.0), 2).item() == np.nextafter(np.float32(1), np.float32(2))


def test_powers_with_known_exponents():
    x = np.array([0.0, -0.0, 2.0, -3.0, inf, -inf, nan, 1e20])
    for exponent in (0, 1, 2, 3, 4, 0.5, -1, -0.5, 1.5, -2):
        used = x if exponent >= 0 else x[x != 0]
        with np.errstate(all="ignore"):
            expected = np.power(used, np.full(len(used), exponent))
        got = (T(used) ** exponent).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-14)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])
    assert (nm.asarray([2, 3]) ** 10).tolist() == [1024, 59049]
    assert (nm.asarray([True, False]) ** 2).tolist() == [1, 0]
    z = np.array([1 + 2j, 0.5 - 1j])
    for exponent in (0, 1, 2, 5, 0.5, -1, 1.5, 2 + 0j, 1j):
        np.testing.assert_allclose((nm.asarray(z) ** exponent).numpy(), z**exponent, rtol=1e-13)
    with pytest.raises(ValueError, match="negative power"):
        nm.asarray([1, 2]) ** -1
    np.testing.assert_allclose((2 ** nm.asarray([1.0, 2.0])).numpy(), [2, 4])
    derivatives.check(lambda t: t**3 + t**0.5 + t**-1 + 2**t, rng(3).uniform(0.5, 2, 4))


# -- complex numbers ------------------------------------------------------------------------------

COMPLEX = (
    "exp expm1 sinh cosh tanh sin cos tan log log1p log2 log10 sqrt asin acos asinh acosh atanh "
    "atan exp2 abs sign conj square reciprocal"
).split()
ALIASES = {n: "arc" + n[1:] for n in ("asin", "acos", "asinh", "acosh", "atanh", "atan")}
MEETING = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 20.0, 1e30, -1e30, inf, -inf, nan]
# signs that annex G leaves open, and places where NumPy does without it
OPEN = {
    "exp": lambda z: np.isneginf(z.real) & ~np.isfinite(z.imag),
    "exp2": lambda z: ~np.isfinite(z),
    "expm1": lambda z: ~np.isfinite(z) | (np.abs(z) > 1e20) | (z == 0),
    "sinh": lambda z: np.isinf(z.real) & ~np.isfinite(z.imag),
    "cosh": lambda z: ~np.isfinite(z),
    "tanh": lambda z: np.isinf(z.real) & ~np.isfinite(z.imag),
    "sin": lambda z: np.isinf(z.imag) & ~np.isfinite(z.real),
    "cos": lambda z: ~np.isfinite(z),
    "tan": lambda z: np.isinf(z.imag) & ~np.isfinite(z.real),
    "log2": lambda z: ~np.isfinite(z),
    "log10": lambda z: ~np.isfinite(z),
    "sign": lambda z: np.isinf(z),
    "reciprocal": lambda z: z == 0,
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_special_values(name):
    z = np.array([complex(a, b) for a in MEETING for b in MEETING])
    function = np.divide if name == "reciprocal" else getattr(np, ALIASES.get(name, name))
    with np.errstate(all="ignore"):
        expected = function(1, z) if name == "reciprocal" else function(z)
    got = getattr(nm, name)(nm.asarray(z)).numpy()
    kept = ~OPEN[name](z) if name in OPEN else np.ones(len(z), bool)
    finite = np.isfinite(expected) & kept
    assert np.all(np.abs(got[finite] - expected[finite]) <= 1e-13 * np.abs(expected[finite]))
    for part in (np.real, np.imag):
        g, e = part(got)[kept], part(expected)[kept]
        special = ~np.isfinite(e)
        np.testing.assert_array_equal(g[special], e[special])
        zero = e == 0
        np.testing.assert_array_equal(np.signbit(g)[zero], np.signbit(e)[zero])


def test_complex_special_values_that_numpy_does_not_have():
    def at(function, *places):
        return [complex(v) for v in function(nm.asarray(np.array(places))).numpy()]

    got = at(nm.expm1, complex(inf, 0), complex(-inf, inf), complex(nan, 0), complex(-inf, 1))
    assert got[0] == complex(inf, 0)
    assert got[1] == -1
    assert math.isnan(got[2].real)
    assert got[2].imag == 0
    assert got[3] == -1
    assert at(nm.sign, 0j, -0j) == [0, 0]
    (got,) = at(nm.sinh, complex(inf, nan))
    assert math.isinf(got.real)
    assert math.isnan(got.imag)
    (got,) = at(nm.tanh, complex(-inf, inf))
    assert got == -1
    (got,) = at(nm.cosh, complex(0, inf))
    assert math.isnan(got.real)
    assert got.imag == 0


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_values(name, dtype):
    r = rng(10)
    z = r.normal(size=200) * 2 + 1j * r.normal(size=200) * 2
    z = np.concatenate([z, np.exp(1j * r.uniform(0, 6, 50)) * (1 + 1e-3 * r.normal(size=50))])
    z = z.astype(dtype)
    got = getattr(nm, name)(nm.asarray(z)).numpy()
    expected = getattr(np, ALIASES.get(name, name))(z.astype(np.complex128))
    eps = np.finfo(dtype).eps
    assert np.max(np.abs(got - expected) / np.abs(expected)) < 8 * eps


@pytest.mark.parametrize("name", [n for n in COMPLEX if n not in ("abs", "conj", "sign")])
def test_complex_derivatives(name):
    z = rng(11).normal(size=6) + 1j * rng(12).normal(size=6)
    derivatives.check(getattr(nm, name), z, rtol=1e-4, atol=1e-6)
    derivatives.check(getattr(nm, name), z * 1e-3, rtol=1e-4, atol=1e-6, step=1e-8)
    derivatives.check_batched(getattr(nm, name), z)


def test_complex_power():
    z = np.array([1 + 2j, -1 - 0.5j, 0, 0, 0, 2 + 0j])
    w = np.array([0.5 - 1j, 2 + 1j, 0, 2, -1, 3.5])
    got = nm.pow(nm.asarray(z), nm.asarray(w)).numpy()
    np.testing.assert_allclose(got[[0, 1, 2, 3, 5]], z[[0, 1, 2, 3, 5]] ** w[[0, 1, 2, 3, 5]])
    assert np.isnan(got[4])
    derivatives.check(nm.pow, z[:2], w[:2], rtol=1e-4)


def test_parts():
    z = nm.asarray([3 + 4j, -1 + 0j])
    assert z.real.tolist() == [3, -1]
    assert z.imag.tolist() == [4, 0]
    assert nm.conj(z).tolist() == [3 - 4j, -1 - 0j]
    np.testing.assert_allclose(nm.angle(z).numpy(), [math.atan2(4, 3), math.pi], rtol=1e-6)
    x = nm.asarray([1.0, -2.0])
    assert x.imag.tolist() == [0, 0]
    np.testing.assert_allclose(nm.angle(x).numpy(), [0, math.pi], rtol=1e-6)


# -- gradients where they are easily lost ---------------------------------------------------------


def gradient(f, x):
    return derivatives.reverse(f, [x], np.ones(x.shape, x.real.dtype))[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "below", "above"),
    [
        ("sigmoid", 0, 0),
        ("softplus", 0, 1),
        ("gelu", 0, 1),
        ("silu", 0, 1),
        ("elu", 0, 1),
        ("relu", 0, 1),
        ("tanh", 0, 0),
        ("erf", 0, 0),
        ("asinh", 0, 0),
        ("atan", 0, 0),
    ],
)
def test_gradients_far_out(name, below, above, dtype):
    x = np.array([-1e4, -1e20, 1e4, 1e20], dtype)
    got = gradient(getattr(nm, name), x)
    np.testing.assert_allclose(got, [below, below, above, above], atol=2e-4)
    if name == "gelu":
        got = gradient(lambda t: nm.gelu(t, approximate="tanh"), x)
        np.testing.assert_allclose(got, [0, 0, 1, 1], atol=1e-6)


def test_gradients_at_zero():
    at = np.array([0.0])
    assert gradient(nm.relu, at) == 0
    assert gradient(nm.abs, at) == 0
    assert gradient(nm.sqrt, at) == inf
    assert gradient(lambda t: t**0.5, at) == inf
    assert gradient(nm.sinc, at) == 0
    assert gradient(nm.elu, at) == 1
    assert gradient(nm.softplus, at) == 0.5
    assert gradient(nm.abs, np.array([0j])) == 0
    np.testing.assert_allclose(
        derivatives.reverse(nm.logaddexp, [at, at], np.ones(1)), [[0.5], [0.5]]
    )


def test_logaddexp_gradient_beside_infinities():
    a, b = np.array([-inf, -inf, 1.0, inf]), np.array([-inf, 1.0, -inf, 1.0])
    da, db = derivatives.reverse(nm.logaddexp, [a, b], np.ones(4))
    assert not np.isnan(da).any()
    assert not np.isnan(db).any()
    np.testing.assert_array_equal(da[1:], [0, 1, 1])
    np.testing.assert_array_equal(db[1:], [1, 0, 0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_composites_round_once(dtype):
    x = T(np.linspace(-6, 6, 200), dtype)
    wide = x.astype("float64")
    for f in (nm.gelu, nm.softplus, nm.silu, nm.elu, lambda t: nm.gelu(t, approximate="tanh")):
        exact = f(wide).astype(dtype).numpy().astype(np.float64)
        got = f(x).numpy().astype(np.float64)
        np.testing.assert_allclose(got, exact, rtol=float(nm.finfo(dtype).eps), atol=1e-7)


def test_relu_keeps_nan():
    assert math.isnan(nm.relu(nm.asarray(nan)).item())


def test_gelu_tail_keeps_its_digits():
    got = nm.gelu(nm.asarray([-10.0], dtype="float64")).item()
    assert got == pytest.approx(-10 * scipy.special.ndtr(-10.0), rel=1e-12)
    with pytest.raises(ValueError, match="approximate"):
        nm.gelu(nm.asarray([1.0]), approximate="fast")


# -- dtypes ---------------------------------------------------------------------------------------


def test_fractions_of_integers_are_default_floats():
    x = nm.asarray([1, 2])
    for f in (nm.exp, nm.sqrt, nm.sin, nm.reciprocal, lambda t: t / 2, lambda t: t / t):
        assert f(x).dtype is nm.float32
    assert nm.floor(x).dtype is nm.int64
    assert nm.abs(nm.asarray([1], dtype="uint8")).dtype is nm.uint8


@pytest.mark.parametrize(
    "call",
    [
        lambda: nm.asarray([True]) - True,
        lambda: -nm.asarray([True]),
        lambda: nm.asarray([1.0]) & 1,
        lambda: nm.asarray([1j]) < 1,
        lambda: nm.floor(nm.asarray([1j])),
        lambda: nm.erf(nm.asarray([1j])),
        lambda: nm.maximum(nm.asarray([1j]), 1),
        lambda: nm.remainder(nm.asarray([1j]), 1),
        lambda: nm.hypot(nm.asarray([1j]), 1),
        lambda: nm.asarray([1]) << 1.5,
    ],
)
def test_dtypes_that_do_not_fit(call):
    with pytest.raises((DTypeError, TypeError)):
        call()


def test_booleans():
    a, b = nm.asarray([True, True, False]), nm.asarray([True, False, False])
    assert (a + b).tolist() == [True, True, False]
    assert (a * b).tolist() == [True, False, False]
    assert (a // nm.asarray([True])).dtype is nm.int8
    assert nm.maximum(a, b).tolist() == [True, True, False]
    assert (~a).tolist() == [False, False, True]


def test_empty_and_scalar_operands():
    for f in (nm.exp, nm.relu, nm.square, nm.isnan):
        assert f(nm.zeros((0, 3))).shape == (0, 3)
        assert f(nm.asarray(1.0)).shape == ()
    assert nm.add(1, 2.5).item() == 3.5
    assert (nm.zeros((0, 1)) + nm.zeros((1, 3))).shape == (0, 3)


def test_errors_name_what_went_wrong():
    with pytest.raises(ValueError, match=r"add.*\(2,\).*\(3,\)"):
        nm.ones(2) + nm.ones(3)
    with pytest.raises(TypeError, match=r"exp.*str"):
        nm.exp("1")
    with pytest.raises(OverflowError, match="300"):
        nm.asarray([1], dtype="uint8") + 300


def test_lerp():
    a, b = nm.asarray([0.0, 10.0]), nm.asarray([1.0, 20.0])
    assert nm.lerp(a, b, 0.5).tolist() == [0.5, 15]
    assert nm.lerp(a, b, nm.asarray([0.0, 1.0])).tolist() == [0, 20]
    derivatives.check(nm.lerp, np.array([1.0, 2]), np.array([3.0, 5]), np.array([0.2, 0.7]))


def test_heaviside_divmod_float_power():
    assert nm.heaviside(nm.asarray([-1.0, 0.0, 2.0]), 0.5).tolist() == [0, 0.5, 1]
    q, r = divmod(nm.asarray([7, -7]), 2)
    assert (q.tolist(), r.tolist()) == ([3, -4], [1, 1])
    assert nm.float_power(nm.asarray([2, 3]), -1).dtype is nm.float64


@pytest.mark.parametrize(("dtype", "last"), [("float32", -12.9), ("float64", -37.4)])
def test_the_lower_tail_of_gelu(dtype, last):
    """All digits as long as the share is a normal number, 0 below; so are its slopes."""
    x = T([last, last / 2, last - 0.2, -100.0, -inf, inf], dtype)
    y, slope = np.asarray(nm.gelu(x)), np.asarray(nm.vmap(nm.grad(nm.gelu))(x[:4]))
    exact = [v * float(mpmath.ncdf(v)) for v in map(float, np.asarray(x[:2]))]
    np.testing.assert_allclose(y[:2], exact, rtol=8 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(y[2:], [0.0, 0.0, 0.0, inf])
    assert np.all(np.isfinite(slope))
    np.testing.assert_array_equal(slope[2:], 0.0)


@pytest.mark.parametrize("dtype", [nm.complex64, nm.complex128])
def test_expm1_of_complex_zeros(dtype):
    """The real part is 0 even of -0, as the standard has it; the imaginary part keeps its sign."""
    zeros = np.array([complex(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0)])
    found = nm.expm1(nm.asarray(zeros, dtype=dtype)).numpy()
    assert not np.signbit(found.real).any()
    np.testing.assert_array_equal(np.signbit(found.imag), np.signbit(zeros.imag))
