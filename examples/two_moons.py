"""Diffusion and flow matching of two moons: noise in the plane becomes two half circles.

    python examples/two_moons.py                         # --device webgpu, or cuda

Two small networks learn the same points, one to take noise away, one to move points along straight
lines. The picture has the data, then what each of them makes of noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import models, nn, optim
from numus.png import write_png


def moons(count: int, seed: int) -> NDArray[np.float32]:
    """Points on two half circles that reach into each other, with some noise."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, np.pi, count)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    points = np.where(rng.random((count, 1)) < 0.5, upper, lower) - (0.5, 0.25)
    return (2 * (points + rng.normal(0, 0.05, points.shape))).astype(np.float32)


class Denoiser(nn.Module):
    """An MLP of a point and of cosines and sines of its time."""

    def __init__(self, width: int, steps: float) -> None:
        self.steps = steps
        self.layers = nn.Sequential(
            *(nn.Linear(2 + 16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
            *(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)),
        )

    def forward(self, x: nm.Tensor, times: nm.Tensor) -> nm.Tensor:
        part = times.astype(nm.float32, copy=False)[:, None] / self.steps
        angles = part * (np.pi * 2.0 ** nm.arange(8, device=x.device) / 4)
        return self.layers(nm.concat([x, nm.cos(angles), nm.sin(angles)], axis=1))


def train(process: models.Diffusion | models.FlowMatching, steps: int, options: argparse.Namespace):
    """A denoiser that has learned the moons."""
    scale = process.steps if isinstance(process, models.Diffusion) else 1.0
    model = Denoiser(options.width, scale).to(options.device)
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    scheduler = optim.CosineAnnealingLR(optimizer, steps)

    @nm.jit
    def step(x: nm.Tensor, key: nm.Tensor) -> nm.Tensor:
        optimizer.zero_grad()
        loss = process.loss(model, x, key=key)
        loss.backward()
        optimizer.step()
        return loss

    data = nm.asarray(moons(options.batch * 16, seed=0)).to(options.device)
    losses = []
    for i in range(steps):
        rows = data[i % 16 * options.batch : (i % 16 + 1) * options.batch]
        losses.append(step(rows, nm.random.fold_in(nm.random.key(1), i)))
        scheduler.step()
    tail = np.mean([loss.item() for loss in losses[-50:]])
    print(f"{type(process).__name__} loss {losses[0].item():.3f} -> {tail:.3f}")
    return model


def distance(points: NDArray[np.float32]) -> float:
    """The mean distance from the points to the two half circles."""
    angle = np.linspace(0, np.pi, 200)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    curve = 2 * (np.concatenate([upper, lower]) - (0.5, 0.25))
    apart = np.linalg.norm(points[:, None] - curve, axis=-1)
    return float(apart.min(axis=1).mean())


def scatter(points: NDArray[np.float32], size: int = 240) -> NDArray[np.uint8]:
    """Points as a picture: the darker, the more of them."""
    counts, _, _ = np.histogram2d(
        *(-points[:, 1], points[:, 0]), bins=size // 2, range=[(-3, 3), (-4, 4)]
    )
    grey = 255 * np.exp(-0.7 * counts.repeat(2, axis=0).repeat(2, axis=1))
    return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/two_moons.png"))
    options = parser.parse_args()

    nm.random.seed(0)
    pictures = [scatter(moons(options.points, seed=1))]
    shape, key = (options.points, 2), nm.random.key(2)
    runs = {"diffusion": (models.Diffusion(200, "cosine", "velocity"), {"steps": 50})}
    runs |= {"flow": (models.FlowMatching(), {"steps": 30})}
    for name, (process, how) in runs.items():
        model = nm.jit(train(process, options.steps, options))
        drawn = process.sample(model, shape, **how, device=options.device, key=key).numpy()
        print(f"{name} distance {distance(drawn):.3f}")
        pictures.append(scatter(drawn))
    write_png(options.out, np.concatenate(pictures, axis=1))
    print("picture", options.out)


if __name__ == "__main__":
    main()
