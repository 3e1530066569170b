"""A picture through the transformations of `nm.vision`, a row for each, as a grid in a PNG file.

    python examples/augmentations.py                     # --device webgpu, or cuda

The picture is drawn here: a sun over hills. Each row is one transformation of a whole batch, with
parameters drawn for each picture from a key.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import numus as nm
from numus import vision


def landscape(size: int) -> nm.Tensor:
    """A picture (3, size, size) of uint8."""
    y, x = np.mgrid[:size, :size] / size
    sky = np.stack([0.4 + 0.3 * y, 0.6 + 0.2 * y, 0.95 - 0.1 * y])
    sun = ((x - 0.7) ** 2 + (y - 0.25) ** 2 < 0.012)[None]
    picture = np.where(sun, np.array([1.0, 0.85, 0.2])[:, None, None], sky)
    for height, colour in ((0.55, (0.35, 0.5, 0.35)), (0.72, (0.2, 0.4, 0.15))):
        hill = (y > height + 0.08 * np.sin(9 * x + 20 * height))[None]
        picture = np.where(hill, np.array(colour)[:, None, None] * (0.7 + 0.5 * x), picture)
    return nm.asarray(np.round(picture * 255).astype(np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("augmentations.png"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    nm.set_default_device(options.device)

    picture = landscape(options.size)
    batch = nm.broadcast_to(picture, (options.columns, *picture.shape))
    transforms = {
        "crop": vision.RandomResizedCrop(options.size, (0.2, 1.0)),
        "affine": vision.RandomAffine(30, (0.1, 0.1), (0.7, 1.2), 15.0, "bilinear"),
        "perspective": vision.RandomPerspective(0.6, p=1.0),
        "jitter": vision.ColorJitter(0.5, 0.5, 0.5, 0.2),
        "blur": vision.GaussianBlur(9, (0.1, 4.0)),
        "randaugment": vision.RandAugment(2, 15),
        "erasing": vision.RandomErasing(1.0),
    }
    rows = []
    for number, (name, transform) in enumerate(transforms.items()):
        rows.append(transform(batch, key=nm.random.key(number)))
        change = nm.mean(nm.abs(rows[-1].astype(nm.float32) - batch.astype(nm.float32)))
        print(f"{name:12} {change.item():6.1f}")  # how far from the picture, of 255
    vision.save_grid(options.out, nm.concat(rows, axis=0), options.columns)
    print(options.out)


if __name__ == "__main__":
    main()
