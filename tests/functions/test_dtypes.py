"""Dtypes: promotion, casts, and the questions of the array API."""

import itertools
import math
import pickle

import ml_dtypes
import numpy as np
import pytest

import numus as nm
from numus.dtypes import ALL, as_dtype
from numus.errors import DTypeError

NUMPYS = [d for d in ALL if d.name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]
FLOATS = [d for d in ALL if d.kind == "float"]


@pytest.mark.parametrize("a", NUMPYS, ids=lambda d: d.name)
def test_promotion(a):
    """NumPy's within a kind, and between floats and complex numbers; between integers and those,
    PyTorch's and JAX's: the float or complex dtype, whatever the integer's width."""
    for b in NUMPYS:
        expected = np.result_type(a.np, b.np).name
        if a.is_inexact != b.is_inexact:
            expected = (a if a.is_inexact else b).name
        assert nm.promote_types(a, b).name == expected
        assert nm.result_type(a, b).name == expected
        x, y = nm.ones(2, dtype=a), nm.ones(2, dtype=b)
        if a is not nm.bool or b is not nm.bool:
            assert (x + y).dtype.name == expected


def test_promotion_of_the_other_floats():
    bf16, e4, e5 = nm.bfloat16, nm.float8_e4m3fn, nm.float8_e5m2
    assert nm.promote_types(bf16, nm.float16) is nm.float32
    assert nm.promote_types(bf16, nm.float32) is nm.float32
    assert nm.promote_types(bf16, nm.int8) is nm.promote_types(bf16, nm.int64) is bf16
    assert nm.promote_types(e4, nm.uint32) is e4
    assert nm.promote_types(e4, e5) is nm.float16
    assert nm.promote_types(e4, bf16) is bf16
    for a, b in itertools.product(ALL, ALL):
        assert nm.promote_types(a, b) is nm.promote_types(b, a)
        assert nm.can_cast(a, nm.promote_types(a, b))


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_python_scalars_are_weak(dtype):
    x = nm.ones(2, dtype=dtype)
    assert (x * True).dtype is dtype or dtype is nm.bool
    expected_int = nm.int64 if dtype is nm.bool else dtype
    assert (x * 1).dtype is expected_int
    assert nm.result_type(x, 1) is expected_int
    expected_float = dtype if dtype.is_inexact else nm.float32
    assert (x * 1.0).dtype is expected_float
    assert (1.0 * x).dtype is expected_float
    expected = dtype if dtype.is_complex else nm.complex128 if dtype is nm.float64 else nm.complex64
    assert (x * 1j).dtype is expected


NUMPY_SCALARS = [np.bool_(True), np.int64(1), np.uint8(1), np.float64(1), np.float32(1)]


@pytest.mark.parametrize("scalar", [*NUMPY_SCALARS, np.complex128(1)], ids=lambda s: s.dtype.name)
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_numpy_scalars_are_weak(dtype, scalar):
    """np.sqrt(2) * x has the dtype of 1.4142 * x, from either side, in functions and in jit."""
    x, number = nm.ones(2, dtype=dtype), scalar.item()
    expected = (x * number).dtype
    assert (x * scalar).dtype is (scalar * x).dtype is expected
    assert nm.multiply(x, scalar).dtype is nm.multiply(scalar, x).dtype is expected
    assert nm.jit(lambda x, s: x * s)(x, scalar).dtype is expected
    assert nm.jit(lambda x: x * scalar)(x).dtype is expected
    assert nm.result_type(x, scalar) is nm.result_type(x, number)
    assert nm.where(x == x, x, scalar).dtype is nm.where(x == x, x, number).dtype


def test_numpy_scalars_alone():
    """As Python's in functions; converted for their own sake they keep their dtype."""
    assert nm.sin(np.float64(1)).dtype is nm.float32
    assert nm.asarray(np.float64(1)).dtype is nm.float64
    assert nm.asarray([np.float64(1), np.float64(2)]).dtype is nm.float64


def test_result_type():
    assert nm.result_type(nm.int8, nm.ones(1, dtype="int16"), 3) is nm.int16
    assert nm.result_type(np.float32, "int8") is nm.float32
    assert nm.result_type(np.ones(2, np.int16), nm.uint8) is nm.int16
    with pytest.raises(ValueError, match="at least one"):
        nm.result_type(1, 2.0)


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "complex64", "complex128"])
def test_finfo_is_numpys(name):
    got, expected = nm.finfo(name), np.finfo(name)
    for field in ("bits", "eps", "max", "min", "smallest_normal", "smallest_subnormal", "tiny"):
        assert getattr(got, field) == float(getattr(expected, field))
    assert got.dtype.kind == "float"
    assert type(got.max) is float


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_finfo_is_ml_dtypes(name):
    got, expected = nm.finfo(name), ml_dtypes.finfo(name)
    for field in ("bits", "eps", "max", "min", "smallest_normal", "smallest_subnormal"):
        assert getattr(got, field) == float(getattr(expected, field))


def test_iinfo_and_isdtype():
    assert (nm.iinfo("int8").min, nm.iinfo(nm.uint64).max) == (-128, 2**64 - 1)
    assert nm.iinfo(nm.ones(1, dtype="int16")).bits == 16
    with pytest.raises(DTypeError, match="finfo"):
        nm.iinfo("float32")
    with pytest.raises(DTypeError, match="iinfo"):
        nm.finfo("int32")
    assert nm.isdtype(nm.bfloat16, "real floating")
    assert nm.isdtype(nm.int8, ("bool", "integral"))
    assert nm.isdtype(nm.int8, nm.int8)
    assert not nm.isdtype(nm.bool, "numeric")
    with pytest.raises(ValueError, match="kind"):
        nm.isdtype(nm.int8, "imaginary")


@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
def test_casts(source):
    values = [0, 1, 1, 0] if source is nm.bool else [0, 1, 3, 100]
    x = nm.asarray(np.array(values).astype(source.np))
    for target in ALL:
        if source.is_complex and target.kind not in ("complex", "bool"):
            with pytest.raises(TypeError, match="imaginary"):
                x.astype(target)
            continue
        got = x.astype(target)
        assert got.dtype is target
        expected = np.array(values) != 0 if target is nm.bool else x.numpy().astype(target.np)
        np.testing.assert_array_equal(got.numpy().astype(complex), expected.astype(complex))


def test_floats_become_integers_within_their_range():
    x = nm.asarray([1e10, -1e10, math.nan, math.inf, -math.inf, -1.9, 1.9], dtype="float64")
    assert x.astype("int8").tolist() == [127, -128, 0, 127, -128, -1, 1]
    assert x.astype("uint8").tolist() == [255, 0, 0, 255, 0, 0, 1]
    assert x.astype("int64").tolist()[3] == 2**63 - 1


def test_astype_copies_and_gradients():
    x = nm.ones(2)
    assert x.astype("float32", copy=False) is x
    assert x.astype("float32") is not x
    assert nm.astype(x, nm.int8).dtype is nm.int8
    w = nm.asarray([1.0, 2.0], requires_grad=True)
    w.astype("float64").astype("float16").sum().backward()
    assert w.grad.tolist() == [1, 1]
    assert w.grad.dtype is nm.float32


def test_dtypes_are_singletons():
    for d in ALL:
        assert pickle.loads(pickle.dumps(d)) is d
        assert as_dtype(d.np) is d
        assert np.dtype(d) == d.np
        assert getattr(nm, d.name) is d
    assert as_dtype(float) is nm.float32
    assert as_dtype("bf16") is nm.bfloat16


def test_floating_kinds():
    assert [d.name for d in FLOATS if d.is_low_precision] == [
        *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
    ]
