"""The Kuramoto–Sivashinsky equation, u_t = -u u_x - u_xx - u_xxxx, by a spectral method.

    python examples/kuramoto_sivashinsky.py              # --device webgpu, or cuda

The linear part is solved exactly in Fourier space, the rest by a fourth-order Runge–Kutta scheme
(ETDRK4, Cox and Matthews 2002, with the contour integrals of Kassam and Trefethen 2005). All steps
are one `nm.scan`; the picture shows u, space to the right and time downwards.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus.png import mosaic, write_png


def coefficients(linear: NDArray[np.float64], h: float) -> list[nm.Tensor]:
    """Of the scheme, as means over a circle around each eigenvalue: no digits are cancelled."""
    circle = np.exp(1j * np.pi * (np.arange(1, 33) - 0.5) / 32)
    z = h * linear[:, None] + circle
    e = np.exp(z)
    parts = [
        (np.exp(z / 2) - 1) / z,
        (-4 - z + e * (4 - 3 * z + z**2)) / z**3,
        (2 + z + e * (-2 + z)) / z**3,
        (-4 - 3 * z - z**2 + e * (4 - z)) / z**3,
    ]
    means = [h * part.mean(axis=1).real for part in parts]
    whole, half = np.exp(h * linear), np.exp(h * linear / 2)
    return [nm.asarray(c, dtype=nm.float32) for c in (whole, half, *means)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--length", type=float, default=32 * np.pi)
    parser.add_argument("--out", type=Path, default=Path("kuramoto_sivashinsky.png"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    nm.set_default_device(options.device)

    n, h = options.points, 0.25
    wave = 2 * np.pi / options.length * np.arange(n // 2 + 1)
    whole, half, q, f1, f2, f3 = coefficients(wave**2 - wave**4, h)
    smooth = np.arange(n // 2 + 1) < n / 3  # the others alias in the product
    slope = nm.asarray(-0.5j * wave * smooth, dtype=nm.complex64)

    def advection(v: nm.Tensor) -> nm.Tensor:
        return slope * nm.fft.rfft(nm.fft.irfft(v, n) ** 2)

    def step(v: nm.Tensor, _: None) -> tuple[nm.Tensor, nm.Tensor]:
        nv = advection(v)
        a = half * v + q * nv
        na = advection(a)
        b = half * v + q * na
        nb = advection(b)
        c = half * a + q * (2 * nb - nv)
        new = whole * v + f1 * nv + 2 * f2 * (na + nb) + f3 * advection(c)
        return new, nm.fft.irfft(new, n)

    x = nm.arange(n) * (2 * np.pi / n)
    start = nm.cos(x) * (1 + nm.sin(x))
    _, u = nm.scan(step, nm.fft.rfft(start), None, length=options.steps)

    energy = nm.mean(u[-options.steps // 4 :] ** 2).item()
    print(f"energy {energy:.3f}")
    print(f"mean {nm.mean(u).item():.5f}")
    picture = u.numpy()[:: max(1, options.steps // 300)]
    scaled = (picture - picture.min()) / (picture.max() - picture.min())
    write_png(options.out, mosaic(scaled[None], 1, zoom=2))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
