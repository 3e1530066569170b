"""NumPy's Fourier transforms over `numus.fft`: float64 unless the data is float32."""

from __future__ import annotations

from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy._bind import bind
from numus.numpy._convert import adopt

_TRANSFORMS = """
    fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn
""".split()
_SHIFTS, _FREQUENCIES = ["fftshift", "ifftshift"], ["fftfreq", "rfftfreq"]
__all__ = [*_TRANSFORMS, *_SHIFTS, *_FREQUENCIES]


def _frequencies(name: str) -> Any:
    engine = getattr(nm.fft, name)

    def make(n: Any, d: Any = 1.0, device: Any = None) -> Any:
        if not isinstance(n, (int, host.integer)):
            raise ValueError("n should be an integer")
        return adopt(engine(int(n), float(d), dtype=dt.float64))

    return make


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'numus.numpy.fft' has no attribute {name!r}", name=name)
    if name in _FREQUENCIES:
        return globals().setdefault(name, _frequencies(name))
    kind = "same" if name in _SHIFTS else "float"
    found = bind(name, kind, getattr(nm.fft, name), getattr(host.fft, name), False)
    return globals().setdefault(name, found)
