"""A variational autoencoder for images of rings.

    python examples/autoencoder.py                       # writes out/rings.png

Its loss draws random numbers inside the compiled step; the picture shows unseen rings above their
reconstructions, and new samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import data, nn, optim
from numus.png import mosaic, write_png

SIZE = 20


def rings(count: int, seed: int) -> NDArray[np.float32]:
    """Pictures (count, size, size) from 0 to 1."""
    rng = np.random.default_rng(seed)
    x0, y0 = rng.uniform(7, SIZE - 7, (2, count, 1, 1))
    radius = rng.uniform(3, 6, (count, 1, 1))
    y, x = np.mgrid[:SIZE, :SIZE]
    distance = abs(np.hypot(x - x0, y - y0) - radius)
    return np.clip(1.5 - distance, 0, 1).astype(np.float32)


class Autoencoder(nn.Module):
    """Pictures to a few numbers with their uncertainty, and back."""

    def __init__(self, width: int = 256, numbers: int = 4) -> None:
        self.numbers = numbers
        self.encoder = nn.Sequential(
            *(nn.Linear(SIZE * SIZE, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, 2 * numbers),
        )
        self.decoder = nn.Sequential(
            *(nn.Linear(numbers, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            nn.Linear(width, SIZE * SIZE),
        )

    def encode(self, images: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        found = self.encoder(images.reshape((-1, SIZE * SIZE)))
        return found[:, : self.numbers], found[:, self.numbers :]

    def decode(self, code: nm.Tensor) -> nm.Tensor:
        return self.decoder(code).reshape((-1, SIZE, SIZE))


def compute(model: Autoencoder, batch: tuple[nm.Tensor]) -> tuple[nm.Tensor, dict[str, nm.Tensor]]:
    """What the pictures cost when drawn from a code with noise, and what the code itself costs."""
    (images,) = batch
    mean, log_variance = model.encode(images)
    noise = nm.random.normal(mean.shape, device=mean.device)
    drawn = model.decode(mean + noise * nm.exp(0.5 * log_variance))
    pixels = nn.functional.binary_cross_entropy_with_logits(drawn, images, reduction="sum")
    code = -0.5 * (1 + log_variance - mean**2 - nm.exp(log_variance)).sum()
    count = images.shape[0]
    return (pixels + code) / count, {"pixels": pixels / count, "code": code / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/rings.png"))
    options = parser.parse_args()

    nm.random.seed(0)
    model = Autoencoder().to(options.device)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    trainer = optim.Trainer(optimizer, model, compute=compute, max_grad_norm=50.0)
    dataset = data.TensorDataset(nm.asarray(rings(options.examples, seed=0)))
    loader = data.DataLoader(dataset, 128, shuffle=True, key=nm.random.key(0))
    history = trainer.fit(loader, options.epochs)
    print(f"loss    {history[0]['loss']:.1f} -> {history[-1]['loss']:.1f}")

    seen = rings(16, seed=1)
    with nm.no_grad():
        mean, _ = model.encode(nm.asarray(seen).to(options.device))
        again = nm.sigmoid(model.decode(mean)).numpy()
        noise = nm.random.normal((16, model.numbers), device=options.device)
        new = nm.sigmoid(model.decode(noise)).numpy()
    write_png(options.out, mosaic(np.concatenate([seen, again, new]), columns=16, zoom=3))
    print(f"picture {options.out}: rings, the same from their codes, new ones")


if __name__ == "__main__":
    main()
