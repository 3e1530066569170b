"""A blurred, noisy image made sharp by gradient descent through `nm.signal.fftconvolve`.

    python examples/deconvolution.py                     # --device webgpu, or cuda

The image sought is the one whose blur is the picture at hand, with a penalty on its variation. The
three pictures are the original, its blur and the result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import numus as nm
from numus import optim
from numus.png import mosaic, write_png


def shapes(size: int) -> nm.Tensor:
    """Discs, a ring and bars, between 0 and 1."""
    y, x = np.mgrid[:size, :size] / size
    image = (np.hypot(x - 0.3, y - 0.3) < 0.15) * 0.9
    image += (np.abs(np.hypot(x - 0.68, y - 0.65) - 0.18) < 0.04) * 1.0
    image += ((np.abs(y - 0.75) < 0.12) & (np.abs(x - 0.22) < 0.14) & (x * 25 % 2 < 1)) * 0.8
    image += (np.hypot(x - 0.75, y - 0.2) < 0.06) * 0.6
    return nm.asarray(np.clip(image, 0, 1), dtype=nm.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--penalty", type=float, default=3e-4)
    parser.add_argument("--out", type=Path, default=Path("deconvolution.png"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    nm.set_default_device(options.device)
    nm.random.seed(0)

    truth = shapes(options.size)
    profile = nm.signal.windows.gaussian(21, 2.5)
    blur = profile[:, None] * profile[None]
    blur = blur / nm.sum(blur)
    seen = nm.signal.fftconvolve(truth, blur, mode="same")
    seen = seen + 0.005 * nm.random.normal(seen.shape)

    def loss(image: nm.Tensor) -> nm.Tensor:
        misfit = nm.signal.fftconvolve(image, blur, mode="same") - seen
        steps = [image[1:] - image[:-1], image[:, 1:] - image[:, :-1]]
        variation = sum(nm.mean(nm.sqrt(s * s + 1e-6)) for s in steps)
        return nm.mean(misfit**2) + options.penalty * variation

    image = nm.asarray(seen.numpy(), requires_grad=True)
    optimizer = optim.Adam([image], lr=0.03)

    @nm.jit
    def step() -> nm.Tensor:
        optimizer.zero_grad()
        value = loss(image)
        value.backward()
        optimizer.step()
        return value

    for _ in range(options.steps):
        step()
    before, after = (nm.mean((x - truth) ** 2).item() for x in (seen, image.detach()))
    print(f"error {before:.5f} -> {after:.5f}")
    print(f"ratio {before / after:.2f}")
    pictures = np.stack([p.numpy() for p in (truth, seen, image.detach())])
    write_png(options.out, mosaic(pictures, 3, zoom=2))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
