"""NumPy's Fourier transforms over `numus.fft`: float64 unless the data is float32."""

from __future__ import annotations

from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy._array import adopt
from numus.numpy._bind import bind
from numus.numpy._convert import cast
from numus.tensor import Tensor

_ONE = "fft ifft rfft irfft hfft ihfft".split()
_MANY = "fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split()
_SHIFTS, _FREQUENCIES = ["fftshift", "ifftshift"], ["fftfreq", "rfftfreq"]
__all__ = [*_ONE, *_MANY, *_SHIFTS, *_FREQUENCIES]


def _checked(name: str, a: Tensor, sizes: Any) -> Tensor:
    if a.dtype.is_complex and name.startswith(("rfft", "ihfft")):
        raise TypeError(f"ufunc '{name}' did not contain a loop with a complex signature")
    if any(n is not None and n < 1 for n in sizes):
        raise ValueError(f"Invalid number of FFT data points ({min(sizes)}) specified.")
    return cast(a, dt.float32) if a.dtype.is_low_precision else a


def _along(name: str) -> Any:
    engine = getattr(nm.fft, name)

    def transform(a: Tensor, n: Any = None, axis: int = -1, norm: Any = None) -> Tensor:
        extent = a.shape[axis] - (name in ("irfft", "hfft")) if a.ndim else 1
        x = _checked(name, a, [extent if n is None else int(n)])
        found: Tensor = engine(x, None if n is None else int(n), axis, norm)
        return found

    return transform


def _over(name: str) -> Any:
    engine = getattr(nm.fft, name)
    default = (-2, -1) if name.endswith("2") else None

    def transform(a: Tensor, s: Any = None, axes: Any = default, norm: Any = None) -> Tensor:
        if s is not None:
            axes = tuple(range(-len(s), 0)) if axes is None else axes
            if len(s) != len(axes):
                raise ValueError("Shape and axes have different lengths.")
            s = [a.shape[i] if n in (-1, None) else int(n) for n, i in zip(s, axes, strict=True)]
        x = _checked(name, a, s or ())
        axes = None if axes is None else tuple(axes)
        if axes == ():
            if "rfft" in name:
                raise IndexError("at least 1 axis must be transformed")
            return cast(x, dt.complex_of(x.dtype))
        if axes is None or len({i % x.ndim for i in axes}) == len(axes):
            found: Tensor = engine(x, s, axes, norm)
            return found
        # one axis after the other, the last first, as often as it is named
        for i in reversed(range(len(axes))):
            step = name.rstrip("n2")
            step = "fft" if step == "rfft" and x.dtype.is_complex else step
            x = getattr(nm.fft, step)(x, None if s is None else s[i], axes[i], norm)
        return x

    return transform


def _frequencies(name: str) -> Any:
    engine = getattr(nm.fft, name)

    def make(n: Any, d: Any = 1.0, device: Any = None) -> Any:
        if not isinstance(n, (int, host.integer)):
            raise ValueError("n should be an integer")
        return adopt(engine(int(n), float(d), dtype=dt.float64))

    return make


def _shift(name: str) -> Any:
    engine = getattr(nm.fft, name)

    def shift(x: Tensor, axes: Any = None) -> Tensor:
        found: Tensor = engine(x, axes=tuple(axes) if isinstance(axes, list) else axes)
        return found

    return shift


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'numus.numpy.fft' has no attribute {name!r}", name=name)
    if name in _FREQUENCIES:
        return globals().setdefault(name, _frequencies(name))
    made = _shift if name in _SHIFTS else _along if name in _ONE else _over
    kind = "same" if name in _SHIFTS else "float"
    found = bind(name, kind, made(name), getattr(host.fft, name), False)
    return globals().setdefault(name, found)
