"""A CNN that classifies shapes: circles, squares, triangles and crosses.

    python examples/images.py                            # --device webgpu, or cuda

The images are generated with random position, size and noise. `Trainer.fit` does the rest:
progress, validation, early stopping, checkpoints (run it again to resume) and plots.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import data, nn, optim
from numus.png import mosaic, write_png

SIZE = 24
NAMES = ("circle", "square", "triangle", "cross")


def draw(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pictures (count, 1, size, size), and which shape each shows."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(NAMES), count)
    x0, y0 = rng.uniform(8, SIZE - 8, (2, count, 1, 1))
    radius = rng.uniform(4, 7, (count, 1, 1))
    y, x = np.mgrid[:SIZE, :SIZE]
    dx, dy = (x - x0) / radius, (y - y0) / radius
    shapes = [
        np.hypot(dx, dy) < 1,
        np.maximum(abs(dx), abs(dy)) < 0.85,
        (dy < 0.8) & (dy > 2 * abs(dx) - 1),
        (np.minimum(abs(dx), abs(dy)) < 0.25) & (np.maximum(abs(dx), abs(dy)) < 1),
    ]
    images = np.select([labels[:, None, None] == i for i in range(4)], shapes)
    noisy = images * rng.uniform(0.5, 1, (count, 1, 1)) + rng.normal(0, 0.25, images.shape)
    return noisy[:, None].astype(np.float32), labels


class Classifier(nn.Sequential):
    """Three convolutions, each with half the size of the one before, and a mean over places."""

    def __init__(self, width: int = 16) -> None:
        layers: list[nn.Module] = []
        for n, m in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(n, m, 3, padding=1), nn.BatchNorm2d(m), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, len(NAMES)))
        super().__init__(*layers, *head)


def accuracy(scores: nm.Tensor, labels: nm.Tensor) -> nm.Tensor:
    return (nm.argmax(scores, axis=-1) == labels).mean(dtype=nm.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/images"))
    options = parser.parse_args()

    nm.random.seed(0)
    model = Classifier().to(options.device)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    train = data.TensorDataset(*map(nm.asarray, draw(options.examples, seed=0)))
    images, labels = draw(400, seed=1)
    test = data.TensorDataset(nm.asarray(images), nm.asarray(labels))
    loader = data.DataLoader(train, 64, shuffle=True, key=nm.random.key(0))
    trainer = optim.Trainer(
        *(optimizer, model, nn.CrossEntropyLoss(label_smoothing=0.05)),
        metrics={"accuracy": accuracy},
        scheduler=optim.CosineAnnealingLR(optimizer, len(loader) * options.epochs),
    )
    history = trainer.fit(
        *(loader, options.epochs),
        validation=data.DataLoader(test, 200),
        callbacks=[optim.EarlyStopping("val_accuracy", patience=3, mode="max")],
        folder=options.out,
    )
    print(f"accuracy {history[-1]['val_accuracy']:.1%}")

    model.eval()
    with nm.no_grad():
        guesses = nm.argmax(model(nm.asarray(images[:40]).to(options.device)), axis=-1).numpy()
    write_png(options.out / "shapes.png", mosaic(images[:40, 0], columns=10, zoom=3))
    print("pictures", options.out / "shapes.png")
    for row in guesses.reshape(4, 10):
        print("  ".join(f"{NAMES[i]:8}" for i in row))


if __name__ == "__main__":
    main()
