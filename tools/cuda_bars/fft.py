"""Transforms against cuFFT, as PyTorch calls it, at sizes that fill the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from tools.cuda_bars.bars import Bar, Comparison
from tools.cuda_timing import Bench, drawn

NATIVE = 0.85  # asked of every transform
# Function, shape, dtype, what is asked, order.
TRANSFORMS: tuple[tuple[str, tuple[int, ...], str, float, int], ...] = (
    ("fft2", (8192, 8192), "complex64", NATIVE, 0),
    ("fft", (8, 1_048_575), "complex64", NATIVE, 0),
    ("fft", (1 << 24,), "complex64", NATIVE, 0),
    ("fftn", (512, 512, 512), "complex64", NATIVE, 0),
    ("fft", (4096, 4096), "complex64", NATIVE, 1),
    ("fft", (16, 1_000_003), "complex64", 1.0, 1),
    ("fft", (1 << 20,), "complex64", NATIVE, 2),
    ("fft", (640, 44_100), "complex64", NATIVE, 1),
    ("rfft", (1 << 25,), "float32", NATIVE, 1),
    ("rfft", (4096, 8192), "float32", NATIVE, 2),
    ("fft", (1 << 22,), "complex128", NATIVE, 1),
    ("fft", (8192, 1001), "complex128", NATIVE, 2),
    *(("fft", ((1 << 24) // n, n), "complex64", NATIVE, 2) for n in (8, 16, 32, 64, 100, 128)),
    # lengths that cuFFT has no kernels of its own for
    *(("fft", ((1 << 24) // n, n), "complex64", 1.0, 1) for n in (131, 1009, 10_007)),
)


def _dct(torch: Any, x: Any) -> Any:
    """A cosine transform of type 2 by one of half the work (Makhoul 1980)."""
    n = x.shape[-1]
    mixed = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], -1)
    angle = -math.pi / (2 * n) * torch.arange(n, dtype=x.dtype)
    spectrum = torch.fft.fft(mixed) * torch.polar(torch.ones_like(angle), angle)
    return 2 * spectrum.real


def bars(bench: Bench) -> Iterator[Bar]:
    torch, nm = bench.torch, bench.nm

    def signals(*shapes: tuple[int, ...], dtype: str = "complex64") -> Any:
        return drawn(torch, dtype, *bench.fit(shapes))

    compared = partial(Comparison, family="fft", tolerance=1e-4)
    for name, shape, dtype, asked, order in TRANSFORMS:
        told = f"{name} {'x'.join(map(str, shape))} {dtype}"
        ours, theirs = getattr(nm.fft, name), getattr(torch.fft, name)
        inputs = signals(shape, dtype=dtype)
        yield compared(
            name=told, inputs=inputs, ours=ours, theirs=theirs, asked=asked, order=order
        ).bar()
    yield compared(
        name="ifft(fft(x) * h) 2^24 complex64",
        inputs=signals((1 << 24,), (1 << 24,)),
        ours=lambda x, h: nm.fft.ifft(nm.fft.fft(x) * h),
        theirs=lambda x, h: torch.fft.ifft(torch.fft.fft(x) * h),
        asked=1.3,
        order=0,
    ).bar()
    yield compared(
        name="ifft(fft(x) * h) 4096x4096 complex64",
        inputs=signals((4096, 4096), (4096,)),
        ours=lambda x, h: nm.fft.ifft(nm.fft.fft(x) * h),
        theirs=lambda x, h: torch.fft.ifft(torch.fft.fft(x) * h),
        asked=1.3,
    ).bar()
    yield compared(
        name="dct 2^24 float32",
        inputs=signals((1 << 24,), dtype="float32"),
        ours=nm.fft.dct,
        theirs=partial(_dct, torch),
        asked=NATIVE,
        order=2,
    ).bar()
    taps = 4097
    length = (1 << 24) + taps - 1
    fast = 1 << length.bit_length()
    if bench.most:
        taps, length, fast = bench.most, 2 * bench.most - 1, 2 * bench.most
    yield compared(
        name="fftconvolve 2^24 with 4097 taps float32",
        inputs=signals((1 << 24,), (taps,), dtype="float32"),
        ours=nm.signal.fftconvolve,
        theirs=lambda x, h: torch.fft.irfft(
            torch.fft.rfft(x, fast) * torch.fft.rfft(h, fast), fast
        )[:length],
        asked=NATIVE,
        order=2,
    ).bar()
    window = torch.hann_window(512)
    own, total = window.cpu().numpy(), float(window.sum())
    frames = {"nperseg": 512, "noverlap": 384, "boundary": "even", "padded": False}
    yield compared(
        name="stft of 10 minutes at 16 kHz",
        inputs=lambda: [torch.randn(2048 if bench.most else 600 * 16_000)],
        ours=lambda x: nm.signal.stft(x, window=own, **frames)[2] * total,
        theirs=lambda x: torch.stft(x, 512, hop_length=128, window=window, return_complex=True),
        order=2,
    ).bar()
