"""Arithmetic and comparisons of integers where a conversion, or a wrapped sign, would be wrong."""

import itertools
import operator

import numpy as np
import pytest

import numus as nm

LIMITS = [-(2**63), -(2**53) - 1, -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]
UNSIGNED = [0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]
PAIRS = list(itertools.product(LIMITS, UNSIGNED))


@pytest.mark.parametrize("name", ["lt", "le", "eq", "ne", "gt", "ge"])
def test_int64_and_uint64_are_compared_exactly(name):
    """float64, their common dtype, has 53 bits."""
    compare = getattr(operator, name)
    signed = nm.asarray(np.array([a for a, _ in PAIRS], np.int64))
    unsigned = nm.asarray(np.array([b for _, b in PAIRS], np.uint64))
    assert compare(signed, unsigned).tolist() == [compare(a, b) for a, b in PAIRS]
    assert compare(unsigned, signed).tolist() == [compare(b, a) for a, b in PAIRS]
    assert nm.jit(compare)(signed, unsigned).tolist() == [compare(a, b) for a, b in PAIRS]
    narrow = nm.asarray([-1, 0, 1], dtype=nm.int8)
    wide = nm.asarray(np.array([2**64 - 1, 0, 2], np.uint64))
    expected = [compare(a, b) for a, b in zip([-1, 0, 1], [2**64 - 1, 0, 2], strict=True)]
    assert compare(narrow, wide).tolist() == expected


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_negative_powers_of_units(dtype):
    base = nm.asarray([-1, -1, -1, 1, 2, -2, 0, -1], dtype=dtype)
    exponent = nm.asarray([-3, -2, 3, -5, -1, -1, -1, nm.iinfo(dtype).min], dtype=dtype)
    assert (base**exponent).tolist() == [-1, 1, -1, 1, 0, 0, 0, 1]
    assert ((-1) ** exponent).tolist() == [-1, 1, -1, -1, -1, -1, -1, 1]
    reference = base.to("reference") ** exponent.to("reference")
    assert reference.tolist() == (base**exponent).tolist()


def test_quotients_by_numbers_outside_the_dtype():
    x = nm.asarray([6, 7], dtype=nm.uint8)
    for divide in (operator.truediv, nm.divide, nm.jit(operator.truediv), nm.jit(nm.divide)):
        quotient = divide(x, -3)
        assert quotient.dtype is nm.float32
        np.testing.assert_allclose(quotient.numpy(), np.array([-2, -7 / 3]), rtol=1e-6)
    np.testing.assert_allclose((1000 / x).numpy(), np.array([1000 / 6, 1000 / 7]), rtol=1e-6)
    np.testing.assert_allclose((x / np.int64(-3)).numpy(), np.array([-2, -7 / 3]), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_division_at_the_least_integer(dtype):
    """As NumPy: the quotient of the least integer by -1 wraps, its remainder is 0."""
    low, high = nm.iinfo(dtype).min, nm.iinfo(dtype).max
    a = np.array([low, low, low, high, high, -7, 7, -7], dtype)
    b = np.array([-1, 1, low, -1, low, 2, -2, -2], dtype)
    with np.errstate(all="ignore"):
        for mine, numpys in (
            (nm.floor_divide, np.floor_divide),
            (nm.remainder, np.remainder),
            (nm.fmod, np.fmod),
        ):
            np.testing.assert_array_equal(mine(nm.asarray(a), nm.asarray(b)).numpy(), numpys(a, b))
        np.testing.assert_array_equal((nm.asarray(a) // -1).numpy(), a // -1)
        np.testing.assert_array_equal((nm.asarray(a) % -1).numpy(), a % -1)
