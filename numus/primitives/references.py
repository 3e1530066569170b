"""NumPy references of elementwise primitives that are not a single NumPy function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.graph import Array


def widen(x: Array) -> Array:
    """Floats below 32 bits as float32, in which kernels compute."""
    return x.astype(dt.compute_dtype(dt.as_dtype(x.dtype)).np, copy=False)


def for_sums(x: Array) -> Array:
    """Terms as float64 or complex128, where float32 would leave a long sum few correct digits:
    NumPy adds along outer axes one by one."""
    dtype = dt.as_dtype(x.dtype)
    if dtype.is_complex:
        return x.astype(np.complex128, copy=False)
    return x.astype(np.float64, copy=False) if dtype.kind == "float" else x


def special(name: str) -> Callable[..., Array]:
    """A function of scipy.special, which is imported when it is called."""

    def reference(*arrays: Array) -> Array:
        try:
            import scipy.special
        except ImportError as error:
            raise ImportError(
                f"{name} on the reference device is SciPy's: pip install 'numus[scipy]'; "
                "compiled kernels, device='cpu' among them, do not need it"
            ) from error
        out: Array = getattr(scipy.special, name)(*arrays)
        return out

    return reference


def sigmoid(x: Array) -> Array:
    """As SciPy's, but its lower tail does not end where exp(-x) overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, np.ones_like(x)) / (1 + e)


def _zero_by_zero(divide: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """A division of integers that is 0 where the divisor is, as the kernels have it."""

    def reference(a: Array, b: Array) -> Array:
        if a.dtype.kind not in "iu":
            return divide(a, b)
        safe = np.where(b == 0, np.ones_like(b), b)
        return np.where(b == 0, np.zeros_like(a), divide(a, safe))

    return reference


floor_divide = _zero_by_zero(np.floor_divide)
mod = _zero_by_zero(np.remainder)


def power(a: Array, b: Array) -> Array:
    """Negative powers of integers are 0, but of 1 and -1."""
    if a.dtype.kind in "iu":
        unit = np.abs(a) == 1
        exponent = np.where(b < 0, np.where(unit, b & 1, np.ones_like(b)), b)
        return np.where((b < 0) & ~unit, np.zeros_like(a), np.power(a, exponent))
    return np.power(a, b)


def shift_left(a: Array, b: Array) -> Array:
    """By the width or more: nothing is left."""
    bits = a.dtype.itemsize * 8
    big = (b < 0) | (b >= bits)
    return np.where(big, np.zeros_like(a), np.left_shift(a, np.where(big, 0, b).astype(b.dtype)))


def shift_right(a: Array, b: Array) -> Array:
    """By the width or more: only the sign is left."""
    bits = a.dtype.itemsize * 8
    top = np.where((b < 0) | (b >= bits), bits - 1, b).astype(b.dtype)
    out = np.right_shift(a, top)
    if a.dtype.kind == "u":
        out = np.where((b < 0) | (b >= bits), np.zeros_like(a), out)
    return out


def saturate(x: Array, dtype: DType) -> Array:
    """Float to integer as the kernels do it: clamped at the ends, NaN becomes 0."""
    low, high = dt.int_range(dtype)
    x = x.astype(np.float64)
    out = np.where(np.isnan(x), 0, np.clip(np.trunc(x), float(low), float(high)))
    top = out >= float(high)
    safe = np.where(top, 0, out).astype(dtype.np)
    return np.where(top, np.array(high, dtype.np), safe)


def sign(x: Array) -> Array:
    return np.where(x == 0, np.zeros_like(x), np.sign(x))  # ml_dtypes' own keeps -0


def cast(x: Array, dtype: DType) -> Array:
    """Complex to real takes the real part."""
    if dtype.kind == "bool":
        return np.not_equal(x, 0)
    with np.errstate(all="ignore"):
        if np.iscomplexobj(x) and not dtype.is_complex:
            x = x.real
        if dtype.is_integer and x.dtype.kind not in "iub":
            return saturate(x, dtype)
        return x.astype(dtype.np)
