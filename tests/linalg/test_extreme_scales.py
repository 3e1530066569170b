"""Factorisations of matrices whose elements are subnormal, or near the largest number."""

import numpy as np
import pytest

import numus as nm


@pytest.fixture(autouse=True)
def _native():
    with nm.kernels.prefer("native"):
        yield


def _scales(dtype):
    info = np.finfo(dtype)
    return {"subnormal": info.tiny / 64, "normal": info.tiny, "large": info.max / 100}


def _matrix(shape, dtype, scale):
    rng = np.random.default_rng(shape[-1])
    a = rng.uniform(-1, 1, shape)
    if np.dtype(dtype).kind == "c":
        a = (a + 1j * rng.uniform(-1, 1, shape)) / 2
    return (a * _scales(dtype)[scale]).astype(dtype)


def _adjoint(a):
    return a.conj().swapaxes(-1, -2)


def _normalised(a):
    """A function that multiplies by the power of two that takes the largest element to about 1: in
    two steps, neither of which overflows."""
    exponent = -int(np.frexp(np.abs(a).max())[1])
    steps = [a.real.dtype.type(2.0**k) for k in (exponent // 2, exponent - exponent // 2)]
    return lambda x: x * steps[0] * steps[1]


def _check(found, a):
    """Rounding errors of subnormal numbers count, too."""
    info = np.finfo(a.dtype)
    bound = 100 * a.shape[-1] * (info.eps + _normalised(a)(info.smallest_subnormal))
    np.testing.assert_allclose(found, _normalised(a)(a), rtol=0, atol=bound)


@pytest.mark.parametrize("scale", ["subnormal", "normal", "large"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(3, 3), (9, 6), (20, 4, 4), (20, 7, 5)])
def test_products_of_factors(shape, dtype, scale):
    a = _matrix(shape, dtype, scale)
    normalised = _normalised(a)
    q, r = (x.numpy() for x in nm.linalg.qr(nm.asarray(a)))
    _check(q @ normalised(r), a)
    u, s, vh = (x.numpy() for x in nm.linalg.svd(nm.asarray(a), full_matrices=False))
    _check((u * normalised(s)[..., None, :]) @ vh, a)
    if shape[-1] != shape[-2]:
        return
    a = a / 2 + _adjoint(a) / 2
    w, v = (x.numpy() for x in nm.linalg.eigh(nm.asarray(a)))
    _check((v * _normalised(a)(w)[..., None, :]) @ _adjoint(v), a)
