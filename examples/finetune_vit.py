"""A vision transformer fine-tuned: trained on coarse classes of shapes, then on finer ones.

    python examples/finetune_vit.py                      # --device webgpu, or cuda

First it learns to tell round shapes from those with corners. Its weights go through a file into
a model with four classes, whose head is new; that one learns from few examples, and the same model
with random weights learns from the same ones for comparison. The picture has images, framed green
where the fine-tuned model is right and red where it is wrong.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import data, models, nn, optim
from numus.png import write_png

SIZE = 24
NAMES = ("disc", "ring", "square", "triangle")


def draw(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images (count, 3, size, size) in random colours, and which shape each shows."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(NAMES), count)
    x0, y0 = rng.uniform(8, SIZE - 8, (2, count, 1, 1))
    radius = rng.uniform(5, 8, (count, 1, 1))
    y, x = np.mgrid[:SIZE, :SIZE]
    dx, dy = (x - x0) / radius, (y - y0) / radius
    shapes = [
        np.hypot(dx, dy) < 1,
        abs(np.hypot(dx, dy) - 0.8) < 0.2,
        np.maximum(abs(dx), abs(dy)) < 0.85,
        (dy < 0.8) & (dy > 2 * abs(dx) - 1),
    ]
    masks = np.select([labels[:, None, None] == i for i in range(len(NAMES))], shapes)
    colours = rng.uniform(0.4, 1, (count, 3, 1, 1))
    noisy = masks[:, None] * colours + rng.normal(0, 0.1, (count, 3, SIZE, SIZE))
    return noisy.astype(np.float32), labels


def build(num_classes: int, options: argparse.Namespace) -> models.VisionTransformer:
    """A small vision transformer: patches of 4² pixels."""
    width = options.width
    sizes = (SIZE, 4, options.layers, 4, width, 2 * width)
    return models.VisionTransformer(*sizes, num_classes=num_classes).to(options.device)


def train(
    model: models.VisionTransformer,
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    rates: dict[str, float],
    epochs: int,
    options: argparse.Namespace,
) -> None:
    """Train all epochs; the head may have another rate than the body."""
    heads = list(model.heads.parameters())
    body = [p for p in model.parameters() if all(p is not head for head in heads)]
    groups = [{"params": body, "lr": rates["body"]}, {"params": heads, "lr": rates["head"]}]
    optimizer = optim.AdamW(groups, weight_decay=0.01)
    rows = data.TensorDataset(nm.asarray(images), nm.asarray(labels))
    loader = data.DataLoader(rows, 32, shuffle=True, drop_last=True, key=nm.random.key(0))
    scheduler = optim.CosineAnnealingLR(optimizer, len(loader) * epochs)

    @nm.jit
    def step(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(epochs):
        for x, y in loader:
            step(x.to(options.device), y.to(options.device))
            scheduler.step()


def guesses(
    model: models.VisionTransformer, images: NDArray[np.float32], device: str
) -> NDArray[np.int64]:
    """The class that a model takes each image for."""
    model.eval()
    with nm.no_grad():
        return nm.argmax(model(nm.asarray(images).to(device)), axis=-1).numpy()


def framed(images: NDArray[np.float32], right: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Images in rows of ten, each within a green or red frame."""
    pixels = (np.clip(images, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    cells = np.empty((len(images), SIZE + 4, SIZE + 4, 3), np.uint8)
    colours = np.array([(220, 60, 50), (60, 170, 80)], np.uint8)
    cells[:] = colours[right.astype(int)][:, None, None]
    cells[:, 2:-2, 2:-2] = pixels
    rows = [np.concatenate(list(cells[i : i + 10]), axis=1) for i in range(0, len(cells), 10)]
    return np.concatenate(rows).repeat(3, axis=0).repeat(3, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=3000)
    parser.add_argument("--few", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/finetune_vit"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    nm.random.seed(0)
    images, labels = draw(options.examples, seed=0)
    first = build(2, options)
    train(first, images, labels // 2, {"body": 1e-3, "head": 1e-3}, options.epochs, options)
    test, wanted = draw(400, seed=1)
    share = (guesses(first, test, options.device) == wanted // 2).mean()
    print(f"coarse {100 * share:.1f} %")
    nn.save_model(first, options.out / "coarse.safetensors")

    few = draw(options.few, seed=2)
    tuned, fresh = build(len(NAMES), options), build(len(NAMES), options)
    state = nn.load_safetensors(options.out / "coarse.safetensors")
    body = {name: value for name, value in state.items() if not name.startswith("heads.")}
    print("new:", *tuned.load_state_dict(body, strict=False).missing_keys)
    epochs = 2 * options.epochs
    train(tuned, *few, {"body": 5e-4, "head": 3e-3}, epochs, options)
    train(fresh, *few, {"body": 1e-3, "head": 1e-3}, epochs, options)
    found = guesses(tuned, test, options.device)
    print(f"fine-tuned {100 * (found == wanted).mean():.1f} %")
    print(
        f"from random weights {100 * (guesses(fresh, test, options.device) == wanted).mean():.1f} %"
    )
    write_png(options.out / "shapes.png", framed(test[:40], (found == wanted)[:40]))
    print("picture", options.out / "shapes.png")


if __name__ == "__main__":
    main()
