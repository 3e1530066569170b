"""Corners in which the primitives' references must be exact."""

import enum
import math

import numpy as np
import pytest

from numus import dtypes as dt
from numus.evaluation.evaluate import from_host, host_array
from numus.primitives import elementwise as ew
from numus.primitives.source import constant
from numus.runtime.devices import device

REFERENCE = device("reference")


def node(array, dtype=None):
    array = np.asarray(array)
    dtype = dt.as_dtype(array.dtype) if dtype is None else dtype
    return from_host(array.astype(dtype.np), dtype, REFERENCE)


def test_complex_keeps_infinities_and_negative_zero():
    a = np.array([np.inf, -0.0, 1.0, np.nan], np.float32)
    b = np.array([1.0, -0.0, -np.inf, np.inf], np.float32)
    out = host_array(ew.complex_(node(a), node(b)))
    np.testing.assert_array_equal(out.real, a)
    np.testing.assert_array_equal(out.imag, b)
    assert np.signbit(out.real[1])
    assert np.signbit(out.imag[1])


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16, dt.float32, dt.float64])
def test_nextafter_steps_in_its_own_dtype(dtype):
    out = host_array(ew.nextafter(node([1.0], dtype), node([2.0], dtype)))
    assert float(out[0]) == 1.0 + 2.0**-dtype.mantissa


def test_cast_of_a_constant_stays_on_its_device():
    pinned = constant(1.5, dt.float32)
    pinned.device = REFERENCE
    assert ew.cast(pinned, dt.float64).device is REFERENCE


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_atan2_gradient_survives_lengths_whose_square_does_not(scale):
    a, b = node(np.float32([3 * scale])), node(np.float32([4 * scale]))
    a.tracked = b.tracked = True
    y = ew.atan2(a, b)
    da, db = y.prim.vjp(y, node(np.float32([1.0])))
    np.testing.assert_allclose(host_array(da), 4 / 25 / scale, rtol=1e-5)
    np.testing.assert_allclose(host_array(db), -3 / 25 / scale, rtol=1e-5)


def test_scalar_kinds():
    class Level(enum.IntEnum):
        LOW = 1

    assert dt.scalar_kind(Level.LOW) == "int"
    assert dt.scalar_kind(True) == "bool"
    assert dt.scalar_kind(math.pi) == "float"
    assert dt.scalar_kind(np.float64(1)) == "float"
    assert dt.scalar_kind(np.zeros(())) is None
