"""`torch.stft` and `torch.istft` over `numus.signal`, whose spectra are scaled by the window."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.tensor import Tensor
from numus.torch._owned import owning


def _window(given: Any, n_fft: int, win_length: int | None, like: Any) -> Tensor:
    """The window in the middle of a frame."""
    size = n_fft if win_length is None else win_length
    window = nm.ones(size, dtype=like) if given is None else nm.astype(given, like)
    before = (n_fft - size) // 2
    return nm.pad(window, (before, n_fft - size - before))


_STFT = "hop_length win_length window center pad_mode normalized onesided return_complex".split()
_ISTFT = "hop_length win_length window center normalized onesided length return_complex".split()


def _options(names: list[str], args: Any, named: dict[str, Any], n_fft: int) -> dict[str, Any]:
    """PyTorch's options by name, and the stride of frames."""
    unknown = set(named) - set(names)
    if unknown or len(args) > len(names):
        raise TypeError(f"takes input, n_fft, {', '.join(names)}, not {sorted(unknown)}")
    given = {"center": True, "pad_mode": "reflect"} | dict(zip(names, args, strict=False)) | named
    stride = given.get("hop_length")
    return given | {"stride": n_fft // 4 if stride is None else stride}


def stft(input: Any, n_fft: int, *args: Any, **named: Any) -> Tensor:
    """Spectra of overlapping frames: (…, frequencies, frames)."""
    given = _options(_STFT, args, named, n_fft)
    real = nm.real(input).dtype
    if given["center"]:
        sides = [(0, 0)] * (input.ndim - 1) + [(n_fft // 2, n_fft // 2)]
        input = nm.pad(input, sides, given["pad_mode"])
    w = _window(given.get("window"), n_fft, given.get("win_length"), real)
    onesided = given.get("onesided")
    is_half = not input.dtype.is_complex if onesided is None else onesided
    options: dict[str, Any] = {"boundary": None, "padded": False, "return_onesided": is_half}
    found = nm.signal.stft(
        input, window=w, nperseg=n_fft, noverlap=n_fft - given["stride"], **options
    )[2]
    found = found * nm.sum(w)
    found = found / n_fft**0.5 if given.get("normalized") else found
    return found if given.get("return_complex") is not False else nm.view_as_real(found)


def istft(input: Any, n_fft: int, *args: Any, **named: Any) -> Tensor:
    """The signal of overlapping spectra, by least squares."""
    given = _options(_ISTFT, args, named, n_fft)
    w = _window(given.get("window"), n_fft, given.get("win_length"), nm.real(input).dtype)
    scaled = input * (n_fft**0.5 if given.get("normalized") else 1.0) / nm.sum(w)
    found = nm.signal.istft(
        scaled, window=w, nperseg=n_fft, noverlap=n_fft - given["stride"], nfft=n_fft,
        input_onesided=given.get("onesided") is not False, boundary=given["center"],
    )[1]  # fmt: skip
    return found if given.get("length") is None else found[..., : given["length"]]


stft, istft = owning(stft), owning(istft)
