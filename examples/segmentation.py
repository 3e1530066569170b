"""A U-Net that finds circles, squares and triangles: which shape each pixel belongs to.

    python examples/segmentation.py                      # --device webgpu, or cuda

The picture has images in the first row, the true shapes in the second, what the network says in
the third.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import data, models, nn, optim
from numus.png import write_png

NAMES = ("nothing", "circle", "square", "triangle")
COLOURS = np.array([(30, 30, 30), (230, 90, 60), (80, 170, 250), (250, 210, 80)], np.uint8)


def draw(count: int, size: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Noisy images (count, 1, size, size) of three shapes each, and the shape of every pixel."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    classes = np.zeros((count, size, size), np.int64)
    for _ in range(3):
        kind = rng.integers(1, len(NAMES), (count, 1, 1))
        x0, y0 = rng.uniform(0.15 * size, 0.85 * size, (2, count, 1, 1))
        radius = rng.uniform(0.12 * size, 0.22 * size, (count, 1, 1))
        dx, dy = (x - x0) / radius, (y - y0) / radius
        square = np.maximum(abs(dx), abs(dy)) < 0.85
        triangle = (dy < 0.8) & (dy > 2 * abs(dx) - 1)
        inside = np.select([kind == 1, kind == 2, kind == 3], [dx**2 + dy**2 < 1, square, triangle])
        classes = np.where(inside, kind, classes)
    images = (classes > 0) * rng.uniform(0.5, 1, (count, 1, 1)) + rng.normal(0, 0.2, classes.shape)
    return images[:, None].astype(np.float32), classes


def overlap(guesses: NDArray[np.int64], classes: NDArray[np.int64]) -> float:
    """The mean over classes of intersection over union."""
    shares = []
    for k in range(len(NAMES)):
        either = ((guesses == k) | (classes == k)).sum()
        shares.append(((guesses == k) & (classes == k)).sum() / max(either, 1))
    return float(np.mean(shares))


def row(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (count, height, width, 3) side by side, four times as large."""
    return np.concatenate(list(images), axis=1).repeat(4, axis=0).repeat(4, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--examples", type=int, default=1600)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/segmentation.png"))
    options = parser.parse_args()

    model = models.unet_segmentation(
        in_channels=1,
        num_classes=len(NAMES),
        width=options.width,
        multipliers=[1 << i for i in range(options.levels)],
        blocks=1,
        key=nm.random.key(0),
    ).to(options.device)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    shapes = draw(options.examples, options.size, seed=0)
    train = data.TensorDataset(*map(nm.asarray, shapes))
    loader = data.DataLoader(train, 16, shuffle=True, drop_last=True, key=nm.random.key(1))
    scheduler = optim.CosineAnnealingLR(optimizer, len(loader) * options.epochs)

    @nm.jit
    def step(images: nm.Tensor, classes: nm.Tensor) -> nm.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        return loss

    for epoch in range(options.epochs):
        losses = []
        for images, classes in loader:
            losses.append(step(images.to(options.device), classes.to(options.device)))
            scheduler.step()
        print(f"epoch {epoch + 1}: loss {np.mean([loss.item() for loss in losses]):.3f}")

    model.eval()
    images, classes = draw(64, options.size, seed=1)
    with nm.no_grad():
        scores = nm.jit(model)(nm.asarray(images).to(options.device))
    guesses = nm.argmax(scores, axis=1).numpy()
    print(f"overlap {overlap(guesses, classes):.3f}")
    grey = np.repeat((np.clip(images[:10, 0], 0, 1) * 255).astype(np.uint8)[..., None], 3, axis=3)
    rows = [row(grey), row(COLOURS[classes[:10]]), row(COLOURS[guesses[:10]])]
    write_png(options.out, np.concatenate(rows))
    print("picture", options.out)


if __name__ == "__main__":
    main()
