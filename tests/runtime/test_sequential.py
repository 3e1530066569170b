"""Sequential functions: native code agrees with the Python that it was translated from."""

from __future__ import annotations

import numpy as np
import pytest

from numus.codegen.cpu.sequential import (
    FLOAT64,
    INDEX32,
    INDEX64,
    NUMBERS,
    Number,
    conj,
    real,
    sqrt,
)
from numus.codegen.cpu.sequential_vectors import vector_fma, vector_load, vector_splat, vector_store
from numus.errors import CompileError, DTypeError
from numus.runtime.cpu.sequential import sequential

STEP = 3


@sequential
def helper(x: INDEX32, n: int) -> int:
    """A loop with all its ways out."""
    total = 0
    for i in range(n):
        if x[i] < 0:
            continue
        elif (x[i] > 50 and total > 0) or x[i] == 17:
            break
        total += x[i] * STEP
    return total


@sequential
def mixed(x: INDEX32, n: int, scale: float, out: FLOAT64, count: INDEX64) -> float:
    found = helper(x, n)
    for i in range(n - 1, -1, -1):
        out[i] = sqrt(abs(scale * x[i])) / 2
        count[i] = (x[i] & 7) ^ 1 if x[i] >= 0 else -x[i] // 3
    i = 0
    while i + 8 <= n:
        v = vector_load(out, i)
        vector_store(out, i, vector_fma(v, vector_splat(2.0), v) + v)
        i += 8
    tail = out[i:]
    for k in range(n - i):
        tail[k] -= min(tail[k], 0.25) * float(k)
    a, b = 1, 2
    a, b = b, a
    is_odd = n % 2 == 1 and not (a < b)
    return max(float(found), out[0]) + (0.5 if is_odd else 0.0) + a


def test_native_code_computes_what_python_does():
    for n in (1, 7, 8, 21):
        x = np.random.default_rng(n).integers(-40, 60, n).astype(np.int32)
        results = []
        for call in (mixed, mixed.python):
            out, count = np.zeros(n), np.zeros(n, np.int64)
            results.append((call(x, n, 1.5, out, count), out, count))
        for native, python in zip(*results, strict=True):
            np.testing.assert_allclose(native, python, rtol=1e-15)


def test_arguments_of_another_dtype_or_layout_are_errors():
    with pytest.raises(DTypeError, match="x must be a contiguous array of int32, not int64"):
        helper(np.arange(3), 3)
    with pytest.raises(DTypeError, match="contiguous"):
        helper(np.arange(6, dtype=np.int32)[::2], 3)


@sequential
def outside(x: INDEX32) -> int:
    return sum(x[i] for i in range(3))


@sequential
def narrowed(x: FLOAT64) -> int:
    return x[0]


def test_what_is_not_of_the_subset_is_named():
    with pytest.raises(CompileError, match="outside, line 3"):
        outside(np.zeros(3, np.int32))
    with pytest.raises(CompileError, match="double where i64 is wanted"):
        narrowed(np.zeros(3))


@sequential
def numbers(n: int, x: NUMBERS, y: NUMBERS, out: NUMBERS, size: FLOAT64) -> int:
    """Every operation of real or complex numbers."""
    total: Number = 0.0
    zeros = 0
    for i in range(n):
        if x[i] == 0.0:
            zeros += 1
        if y[i] != 0.0:
            total += x[i] / y[i] - 2 * conj(x[i]) * y[i]
        size[i] = abs(x[i]) + real(x[i] * conj(y[i]))
        out[i] = -total if real(y[i]) < 0.0 else total + scaled(x[i], 3)
    return zeros


@sequential
def scaled(x: Number, by: int) -> Number:
    return x * by


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_numbers_are_real_or_complex(dtype):
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 60)), rng.standard_normal((2, 60))
    if dtype is np.complex128:
        x, y = x + 1j * rng.standard_normal((2, 60)), y + 1j * rng.standard_normal((2, 60))
    (x, y), found = (x[0], y[0]), []
    x[::7], y[::11] = 0, 0
    for function in (numbers, numbers.python):
        out, size = np.zeros(60, dtype), np.zeros(60)
        with np.errstate(all="ignore"):
            found.append((function(60, x, y, out, size), out, size))
    (zeros, out, size), (same, wanted, sizes) = found
    assert zeros == same > 0
    np.testing.assert_allclose(out, wanted, rtol=1e-12)
    np.testing.assert_allclose(size, sizes, rtol=1e-12, atol=1e-12)


def test_moduli_and_quotients_do_not_overflow():
    big = np.array([1e300 + 1e300j, 1e-300 - 1e-300j, 3e250 + 4e250j])
    out, size = np.zeros(3, complex), np.zeros(3)
    quotients(3, big, out, size)
    np.testing.assert_allclose(out, np.ones(3), rtol=1e-15)
    np.testing.assert_allclose(size, np.abs(big), rtol=1e-15)


@sequential
def quotients(n: int, x: NUMBERS, out: NUMBERS, size: FLOAT64) -> None:
    for i in range(n):
        out[i] = x[i] / x[i]
        size[i] = abs(x[i])
