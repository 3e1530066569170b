"""The same graph on the CPU and on the reference device, compared."""

from __future__ import annotations

import numpy as np

from numus import dtypes as dt
from numus.evaluation.evaluate import evaluate, from_host, host_array
from numus.runtime.devices import device

CPU, REFERENCE = device("cpu"), device("reference")


def sample(shape, dtype, seed=0):
    """Normal numbers of either sign, as the dtype has them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 3
    if dtype.is_complex:
        x = x + 1j * rng.standard_normal(shape)
    if dtype is dt.bool_:
        x = x > 0
    if dtype.kind == "uint":
        x = np.abs(x)
    return np.asarray(x).astype(dtype.np)


def both(build, *arrays):
    """What `build` gives on either device, its results evaluated together."""
    out = []
    for place in (CPU, REFERENCE):
        nodes = [from_host(a, dt.as_dtype(a.dtype), place) for a in arrays]
        results = build(*nodes)
        results = results if isinstance(results, tuple) else (results,)
        evaluate(results)
        out.append([np.array(host_array(r)) for r in results])
    return list(zip(*out, strict=True))


def check(build, *arrays, rtol=None):
    """Both devices agree: integers exactly, others within a few roundings."""
    for got, want in both(build, *arrays):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        kind = dt.as_dtype(got.dtype)
        if kind.is_inexact:
            eps = {1: 0.07, 2: 5e-3}.get(kind.itemsize, 2e-6) if not kind.is_complex else 2e-6
            if kind in (dt.float64, dt.complex128):
                eps = 1e-12
            eps = rtol or eps
            wide = np.complex128 if kind.is_complex else np.float64
            got, want = got.astype(wide), want.astype(wide)
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1e-3)
            np.testing.assert_allclose(got, want, rtol=eps, atol=eps * scale)
        else:
            np.testing.assert_array_equal(got, want)
