"""Fit a two-layer network to two interleaved spirals, with plain tensors and `backward()`.

    python examples/spirals.py            # or: make demo

It shows a training step written by hand (Adam included), the kernels that numus compiled for it,
and writes a picture of the decision boundary to out/spirals.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus.png import write_png
from numus.terminal import Line, bar, table

POINTS = 400  # per spiral
HIDDEN = 64
RATE, BETA1, BETA2, TINY = 0.02, 0.9, 0.99, 1e-8  # Adam's constants


def spirals(count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """`count` points on each of two arms, one and a half turns, and which arm each is on."""
    rng = np.random.default_rng(seed)
    radius = np.sqrt(rng.uniform(0.02, 1.0, count))
    angle = 3 * np.pi * radius
    arm = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    points = np.concatenate([arm, -arm]) + rng.normal(0, 0.02, (2 * count, 2))
    labels = np.repeat([0.0, 1.0], count)[:, None]
    return points.astype(np.float32), labels.astype(np.float32)


class Network:
    """tanh(x @ w1 + b1) @ w2 + b2: a score above 0 means the second spiral."""

    def __init__(self) -> None:
        # Large first-layer weights place the bends of tanh across the spirals.
        w1 = 5.0 * nm.random.normal((2, HIDDEN))
        b1 = 2.5 * nm.random.normal((HIDDEN,))
        w2 = nm.random.normal((HIDDEN, 1)) / HIDDEN**0.5
        self.parameters = [w1, b1, w2, nm.zeros((1,))]
        for parameter in self.parameters:
            parameter.requires_grad = True

    def __call__(self, x: nm.Tensor) -> nm.Tensor:
        w1, b1, w2, b2 = self.parameters
        return (x @ w1 + b1).tanh() @ w2 + b2


class Adam:
    """The optimiser by hand, to show that a training loop needs nothing but tensors."""

    def __init__(self, parameters: list[nm.Tensor]) -> None:
        self.parameters = parameters
        self.means = [nm.zeros(p.shape) for p in parameters]
        self.squares = [nm.zeros(p.shape) for p in parameters]
        self.steps = 0
        nm.eval(*self.state)  # so that all steps have the same structure

    @property
    def state(self) -> list[nm.Tensor]:
        return [*self.parameters, *self.means, *self.squares]

    def step(self) -> None:
        self.steps += 1
        # Adam's bias correction.
        mean_scale = 1 / (1 - BETA1**self.steps)
        square_scale = 1 / (1 - BETA2**self.steps)
        with nm.no_grad():
            for i, p in enumerate(self.parameters):
                self.means[i] = BETA1 * self.means[i] + (1 - BETA1) * p.grad
                self.squares[i] = BETA2 * self.squares[i] + (1 - BETA2) * p.grad**2
                spread = (self.squares[i] * square_scale).sqrt() + TINY
                p -= RATE * mean_scale * self.means[i] / spread
                p.grad = None


def loss_of(scores: nm.Tensor, labels: nm.Tensor) -> nm.Tensor:
    """Binary cross-entropy of the scores, in the form that cannot overflow."""
    return (nm.softplus(scores) - labels * scores).mean()


def train_step(network: Network, optimiser: Adam, x: nm.Tensor, labels: nm.Tensor) -> nm.Tensor:
    loss = loss_of(network(x), labels)
    loss.backward()
    optimiser.step()
    # One evaluation of the whole step fuses across forward, backward and update.
    nm.eval(loss, *optimiser.state)
    return loss


def train(network: Network, x: nm.Tensor, labels: nm.Tensor, steps: int) -> float:
    """Fit the network with a progress bar, and return the last loss."""
    optimiser = Adam(network.parameters)
    with Line() as line:
        for i in range(1, steps + 1):
            loss = train_step(network, optimiser, x, labels)
            line.show(f"training {bar(i / steps)} step {i}/{steps}  loss {float(loss):.4f}")
    return float(loss)


def kernels_per_step(x: nm.Tensor, labels: nm.Tensor) -> int:
    network = Network()
    optimiser = Adam(network.parameters)
    return len(nm.explain(lambda: train_step(network, optimiser, x, labels), timed=False).kernels)


def kernel_table() -> str:
    """What numus compiled on the way, or found in its cache from an earlier run."""
    rows = [
        [record.name, " ".join(record.notes), record.cause, f"{record.seconds * 1e3:.1f}"]
        for record in nm.compile_log()
    ]
    return table("kernels", ["kernel", "fuses", "made by", "ms"], rows, numbers=["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/spirals.png"))
    options = parser.parse_args()

    nm.set_default_device(options.device)
    nm.random.seed(0)
    points, labels = spirals(POINTS)
    x, y = nm.asarray(points), nm.asarray(labels)
    network = Network()
    loss = train(network, x, y, options.steps)
    with nm.no_grad():
        accuracy = float(((network(x) > 0) == (y > 0.5)).mean())

    write_png(options.out, picture(network, points, labels))
    print(kernel_table())
    print(f"loss     {loss:.4f}")
    print(f"accuracy {accuracy:.1%}")
    print(f"kernels  {kernels_per_step(x, y)} in a training step")
    print(f"picture  {options.out}")


# --- The picture: plain NumPy on the network's answers ----------------------------------------

SIZE = 640  # pixels
REACH = 1.15  # the picture shows [-REACH, REACH] in both directions
COLOURS = np.array([[43, 110, 178], [226, 116, 41]], np.float32)  # one for each spiral
PAPER, INK = np.float32(255), np.float32(40)


def picture(
    network: Network, points: NDArray[np.float32], labels: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Colour the plane by the network's answers and draw the points on it."""
    axis = np.linspace(-REACH, REACH, SIZE, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, -axis), axis=-1).reshape(-1, 2)
    with nm.no_grad():
        score = np.asarray(network(nm.asarray(grid))).reshape(SIZE, SIZE)

    belief = (0.5 + 0.5 * np.tanh(score / 2))[..., None]  # the sigmoid, without its overflow
    tint = COLOURS[0] * (1 - belief) + COLOURS[1] * belief
    image = PAPER + 0.35 * (tint - PAPER)
    # Distance to the boundary in pixels, to first order, makes a line of even width.
    slope = np.hypot(*np.gradient(score)) + 1e-6
    image += np.clip(2.0 - np.abs(score) / slope, 0, 1)[..., None] * (INK - image)

    pixels = (points * [1, -1] / REACH + 1) * (SIZE - 1) / 2
    for (column, row), label in zip(pixels, labels[:, 0], strict=True):
        _disc(image, column, row, 4.5, np.broadcast_to(PAPER, 3))
        _disc(image, column, row, 3.5, COLOURS[int(label)])
    return np.clip(image, 0, 255).astype(np.uint8)


def _disc(
    image: NDArray[np.float32],
    column: float,
    row: float,
    radius: float,
    colour: NDArray[np.float32],
) -> None:
    """Blend a disc into the image; its edge is one pixel soft."""
    x0, y0 = (max(0, int(centre - radius) - 1) for centre in (column, row))
    reach = 2 * int(radius) + 4
    patch = image[y0 : y0 + reach, x0 : x0 + reach]
    y, x = np.ogrid[y0 : y0 + patch.shape[0], x0 : x0 + patch.shape[1]]
    cover = np.clip(radius + 0.5 - np.hypot(x - column, y - row), 0, 1)[..., None]
    patch += cover * (colour - patch)


if __name__ == "__main__":
    main()
