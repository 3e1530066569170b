"""Fourier transforms, and the signal functions that stand on them.

The column of NumPy is SciPy's, with a worker for each core.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

import numus as nm

from .libraries import Function, _module, jax, jnp, torch
from .workloads import Inputs, M, add_workload

scipy = _module("scipy")
if scipy:
    scipy.fft, scipy.signal = _module("scipy.fft"), _module("scipy.signal")
WORKERS = os.cpu_count()


def _complex(*shape: int, dtype: type = np.complex64) -> Callable[..., Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        return [(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)]

    return make


def _real(*shape: int) -> Callable[..., Inputs]:
    return lambda rng: [rng.standard_normal(shape).astype(np.float32)]


def _transform(name: str, inputs: Callable[..., Inputs], function: str = "fft") -> None:
    """A row of a transform that all of them have."""
    functions: dict[str, Function] = {"numus": getattr(nm.fft, function)}
    if scipy:
        functions["numpy"] = lambda x: getattr(scipy.fft, function)(x, workers=WORKERS)
    if torch:
        functions["torch"] = getattr(torch.fft, function)
    if jax:
        functions["jax"] = getattr(jnp.fft, function)
    add_workload(f"{function}_{name}", inputs, **functions)


_transform("c64_2^20", _complex(M))
_transform("c64_2^16", _complex(1 << 16))
_transform("c64_1024x1024", _complex(1024, 1024))
_transform("c64_1000003", _complex(1_000_003))
_transform("c64_1048575", _complex(M - 1))
_transform("c64_64x44100", _complex(64, 44_100))
_transform("f32_2^22", _real(4 * M), "rfft")
_transform("c64_2048x2048", _complex(2048, 2048), "fft2")
_transform("c64_128^3", _complex(128, 128, 128), "fftn")
_transform("c128_2^18", _complex(1 << 18, dtype=np.complex128))
for _n in (8, 16, 32, 64, 100, 128):
    _transform(f"c64_100000x{_n}", _complex(100_000, _n))

add_workload(
    "filter_c64_2^20",
    lambda rng: [*_complex(M)(rng), *_complex(M)(rng)],
    numus=lambda x, h: nm.fft.ifft(nm.fft.fft(x) * h),
    numpy=lambda x, h: scipy.fft.ifft(scipy.fft.fft(x, workers=WORKERS) * h, workers=WORKERS),
    torch=lambda x, h: torch.fft.ifft(torch.fft.fft(x) * h),
    jax=lambda x, h: jnp.fft.ifft(jnp.fft.fft(x) * h),
)
if scipy:
    add_workload(
        "dct_f32_2^20",
        _real(M),
        numus=lambda x: nm.fft.dct(x),
        numpy=lambda x: scipy.fft.dct(x, workers=WORKERS),
        jax=lambda x: jax.scipy.fft.dct(x),
    )
    add_workload(
        "fftconvolve_f32_2^20_4097",
        lambda rng: [*_real(M)(rng), *_real(4097)(rng)],
        numus=lambda x, h: nm.signal.fftconvolve(x, h),
        numpy=lambda x, h: scipy.signal.oaconvolve(x, h),
        jax=lambda x, h: jax.scipy.signal.fftconvolve(x, h),
    )
    add_workload(
        "sosfilt_f32_8x10^7",
        lambda rng: [rng.standard_normal((8, 10_000_000))],
        numus=lambda x: nm.signal.sosfilt(nm.signal.butter(4, 0.2, output="sos"), x),
        numpy=lambda x: scipy.signal.sosfilt(scipy.signal.butter(4, 0.2, output="sos"), x),
    )
_MINUTES = 10
add_workload(
    "stft_f32_10min_16kHz",
    _real(_MINUTES * 60 * 16_000),
    numus=lambda x: nm.signal.stft(x, nperseg=512, noverlap=384)[2],
    numpy=lambda x: scipy.signal.stft(x, nperseg=512, noverlap=384),
    torch=lambda x: torch.stft(
        x, 512, hop_length=128, window=torch.hann_window(512), return_complex=True
    ),
    jax=lambda x: jax.scipy.signal.stft(x, nperseg=512, noverlap=384),
)
