"""Rows of the op table in the dtypes that take the same way as others: 16-bit floats, complex64."""

import functools

import numpy as np
import pytest
import test_ops
from ops import linalg, linalg_spectral

import numus as nm
from numus import dtypes as dt

MORE = [
    row
    for row in (*linalg.SOLVERS, *linalg.SPECTRA, *linalg_spectral.ROWS)
    if "float64" in row.dtypes and "int32" not in row.dtypes
]
NARROW = ("float16", "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("row", [r for r in MORE if "complex128" in r.dtypes], ids=lambda r: r.name)
def test_complex64(row):
    test_ops.check_values(row.replace(dtypes=("complex64",)), "cpu", lambda calls: calls)


@pytest.fixture
def calls(monkeypatch):
    """The calls of functions of nm.linalg, and their results."""
    made = []

    def noted(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            made.append((function, args, kwargs, result))
            return result

        return call

    for name in nm.linalg.__all__:
        if not isinstance(found := getattr(nm.linalg, name), type) and callable(found):
            monkeypatch.setattr(nm.linalg, name, noted(found))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("row", MORE, ids=lambda r: r.name)
def test_narrow_floats_are_computed_in_float32(row, name, calls):
    """Each call gives what it gives for the same numbers in float32, rounded once: the table has
    compared that with the reference. What a row computes around its calls rounds more often."""
    with test_ops.on("cpu") as place:
        narrow = row.replace(dtypes=(name,))
        for _, _, drawn, make in test_ops.value_calls(narrow, place):
            test_ops.call(narrow, drawn, make)
        assert calls
        for function, args, kwargs, result in list(calls):
            wide_args, wide_kwargs = nm.tree.map(widened, (args, kwargs))
            wide = tensors(function(*wide_args, **wide_kwargs))
            found = tensors(result)
            assert found
            assert len(found) == len(wide)
            for i, (got, want) in enumerate(zip(found, wide, strict=True)):
                compare(f"{function.__name__}, result {i}", got, want)


def widened(leaf):
    is_narrow = isinstance(leaf, nm.Tensor) and leaf.dtype.name in NARROW
    return leaf.astype(nm.float32) if is_narrow else leaf


def tensors(result):
    return [r for r in nm.tree.leaves(result) if isinstance(r, nm.Tensor)]


def compare(what, got, want):
    """Equal but for the rounding, and for last digits of float32 where kernels are fused anew."""
    assert got.shape == want.shape, what
    if not got.dtype.is_inexact:
        assert got.dtype is want.dtype, what
        np.testing.assert_array_equal(got.numpy(), want.numpy(), what)
        return
    rounding = 2.0 ** -dt.real_of(got.dtype).mantissa if got.dtype is not want.dtype else 0.0
    common = np.complex128 if got.dtype.is_complex else np.float64
    g, w = got.numpy().astype(common), want.numpy().astype(common)
    finite = np.isfinite(w)
    np.testing.assert_array_equal(g[~finite], w[~finite], what)
    g, w = g[finite], w[finite]
    last = 64 * 2.0**-23 * np.max(np.abs(w), initial=0.0)
    np.testing.assert_array_less(
        np.abs(g - w), rounding * np.abs(w) + last + float(nm.finfo(got.dtype).tiny), what
    )
