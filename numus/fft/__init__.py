"""Fourier transforms of any length, along any axes, on every device (docs/fft.md)."""

from numus.fft.cosine import dct, dctn, dst, dstn, idct, idctn, idst, idstn
from numus.fft.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from numus.fft.functions import fft, hfft, ifft, ihfft, irfft, rfft
from numus.fft.hankel import fht, fhtoffset, ifht
from numus.fft.lengths import next_fast_len, prev_fast_len
from numus.fft.multidimensional import (
    fft2,
    fftn,
    hfft2,
    hfftn,
    ifft2,
    ifftn,
    ihfft2,
    ihfftn,
    irfft2,
    irfftn,
    rfft2,
    rfftn,
)

__all__ = [
    "dct", "dctn", "dst", "dstn", "fft", "fft2", "fftfreq", "fftn", "fftshift", "fht",
    "fhtoffset", "hfft", "hfft2", "hfftn", "idct", "idctn", "idst", "idstn", "ifft", "ifft2",
    "ifftn", "ifftshift", "ifht", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn",
    "next_fast_len", "prev_fast_len", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip
