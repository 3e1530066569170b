"""NumPy's Fourier transforms over `numus.fft`: float64 unless the data is float32."""

from __future__ import annotations

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy._array import adopt, result, write_out
from numus.numpy._convert import cast, renamed, to_tensor

_ONE = "fft ifft rfft irfft hfft ihfft".split()
_MANY = "fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split()


def _data(a, real):
    x = to_tensor(a)
    if not x.dtype.is_inexact:
        x = cast(x, dt.float64)
    if x.dtype.is_low_precision:
        x = cast(x, dt.float32)
    if real and x.dtype.is_complex:
        raise TypeError("ufunc 'rfft' did not contain a loop with a complex signature")
    return x


def _check(name, norm, n):
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"Invalid norm value {norm}; should be 'backward', 'ortho' or 'forward'.")
    if n is not None and any(m is not None and m < 1 and m != -1 for m in n):
        raise ValueError(f"Invalid number of FFT data points ({min(n)}) specified.")


def _along(name):
    engine = getattr(nm.fft, name)

    def transform(a, n=None, axis=-1, norm=None, out=None):
        x = _data(a, name in ("rfft", "ihfft"))
        _check(name, norm, None if n is None else [n])
        extent = x.shape[axis] if n is None and x.ndim else 1
        if n is None and (extent < 1 or (name in ("irfft", "hfft") and extent < 2)):
            raise ValueError(f"Invalid number of FFT data points ({extent - 1}) specified.")
        found = engine(x, None if n is None else int(n), axis, norm)
        return write_out(found, out, name)

    return renamed(transform, name)


def _over(name):
    engine = getattr(nm.fft, name)
    default = (-2, -1) if name.endswith("2") else None

    def transform(a, s=None, axes=default, norm=None, out=None):
        x = _data(a, name.startswith("rfft"))
        _check(name, norm, s)
        if s is not None:
            if axes is None:
                axes = tuple(range(-len(s), 0))
            if len(s) != len(axes):
                raise ValueError("Shape and axes have different lengths.")
            s = tuple(
                x.shape[axis] if n in (-1, None) else int(n)
                for n, axis in zip(s, axes, strict=True)
            )
        if axes is not None and not len(axes):
            if name.startswith(("rfft", "irfft")):
                raise IndexError("at least 1 axis must be transformed")
            return result(cast(x, dt.complex_of(x.dtype)))
        axes = None if axes is None else tuple(axes)
        if axes is not None and len({i % x.ndim for i in axes}) < len(axes):
            # one axis after the other, the last first, as often as it is named
            one = name.rstrip("n2")
            found = x
            for i in reversed(range(len(axes))):
                size = None if s is None else s[i]
                step = one.replace("rfft", "fft") if found is not x and one == "rfft" else one
                found = getattr(nm.fft, step)(found, size, axes[i], norm)
            return write_out(found, out, name)
        return write_out(engine(x, s, axes, norm), out, name)

    return renamed(transform, name)


def fftshift(x, axes=None):
    """The zero frequency in the middle."""
    return adopt(nm.fft.fftshift(to_tensor(x), axes=_axes(axes)))


def ifftshift(x, axes=None):
    """The inverse of fftshift."""
    return adopt(nm.fft.ifftshift(to_tensor(x), axes=_axes(axes)))


def _axes(axes):
    return axes if axes is None or isinstance(axes, int) else tuple(axes)


def fftfreq(n, d=1.0, device=None):
    """The frequencies of a transform."""
    return _frequencies("fftfreq", n, d)


def rfftfreq(n, d=1.0, device=None):
    """The frequencies of a transform of real data."""
    return _frequencies("rfftfreq", n, d)


def _frequencies(name, n, d):
    if not isinstance(n, (int, host.integer)):
        raise ValueError("n should be an integer")
    return adopt(getattr(nm.fft, name)(int(n), float(d), dtype=dt.float64))


globals().update({name: _along(name) for name in _ONE} | {name: _over(name) for name in _MANY})

__all__ = [*_ONE, *_MANY, "fftfreq", "fftshift", "ifftshift", "rfftfreq"]
