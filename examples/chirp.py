"""A spectrogram of a chirp in noise, before and after a band-pass filter.

    python examples/chirp.py                             # --device webgpu, or cuda

Two seconds of a tone that rises from 200 to 3,000 Hz, `nm.signal.sosfiltfilt` with a Butterworth
filter, and `nm.signal.spectrogram`; the picture shows decibels, time to the right, pitch upwards.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus.png import mosaic, write_png

RATE = 8000.0


def decibels(power: nm.Tensor) -> NDArray[np.float64]:
    """Between 0 (70 dB below the peak) and 1, high frequencies first."""
    level = 10 * np.log10(np.maximum(power.numpy(), 1e-20))
    return np.clip((level - level.max() + 70) / 70, 0, 1)[::-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--out", type=Path, default=Path("chirp.png"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    nm.set_default_device(options.device)
    nm.random.seed(0)

    t = nm.arange(int(options.seconds * RATE)) / RATE
    rise = 2800 / (2 * options.seconds)  # Hz per second, halved: the phase is an integral
    clean = nm.sin(2 * nm.pi * (200 * t + rise * t * t))
    noisy = clean + options.noise * nm.random.normal(t.shape)

    band = nm.signal.butter(4, [150, 3100], "bandpass", output="sos", fs=RATE)
    filtered = nm.signal.sosfiltfilt(band, noisy)

    frequencies, times, power = nm.signal.spectrogram(
        nm.stack([noisy, filtered]), fs=RATE, nperseg=256, noverlap=192
    )
    ridge = frequencies[nm.argmax(power[1], axis=0)]  # the loudest frequency of each frame
    error = nm.mean(nm.abs(ridge - (200 + 2 * rise * times)))
    print(f"frames {power.shape[-1]}, frequencies {power.shape[-2]}")
    print(f"pitch error {error.item():.1f} Hz")
    pictures = np.stack([decibels(power[0]), decibels(power[1])])
    write_png(options.out, mosaic(pictures, 2, zoom=2))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
