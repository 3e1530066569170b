"""A small GPT, trained and then quantised five ways: its loss against the bits of a weight.

    python examples/quantization.py                      # writes out/quantization.png

Shows `nm.quant.quantize_` with plain rounding, GPTQ, AWQ and HQQ, and training with rounded
weights.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import numus as nm
from numus import nn, optim
from numus.png import curves, write_png

WAYS = {"rounding": "", "gptq": "-gptq", "awq": "-awq", "hqq": "-hqq", "training": None}
LENGTH = 48


class GPT(nn.Module):
    """Tokens (batch, length) to scores for the token after each of them."""

    def __init__(self, tokens: int, width: int, layers: int) -> None:
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = [
            nn.TransformerBlock(width, 4, 4 * width, causal=True, rotary=True)
            for _ in range(layers)
        ]
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, tokens)

    def forward(self, places: nm.Tensor) -> nm.Tensor:
        x = self.embedding(places)
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))


def text() -> np.ndarray:
    """Sums written out: enough to learn from, and small."""
    rng = np.random.default_rng(0)
    sums = [f"{a}+{b}={a + b}; " for a, b in rng.integers(0, 100, (4000, 2))]
    return np.unique(np.frombuffer("".join(sums).encode(), np.uint8), return_inverse=True)[1]


def pieces(tokens: np.ndarray, count: int, seed: int) -> Iterator[tuple[nm.Tensor, nm.Tensor]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        at = rng.integers(0, len(tokens) - LENGTH - 1, 16)[:, None] + np.arange(LENGTH + 1)
        yield nm.asarray(tokens[at][:, :-1]), nm.asarray(tokens[at][:, 1:])


def loss_of(model: GPT, x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
    scores = model(x)
    return nn.cross_entropy(scores.reshape((-1, scores.shape[-1])), y.reshape((-1,)))


def train(model: GPT, tokens: np.ndarray, steps: int, lr: float, seed: int = 1) -> None:
    optimizer = optim.AdamW(model.parameters(), lr=lr)

    @nm.jit
    def step(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss

    model.train()
    for x, y in pieces(tokens, steps, seed):
        step(x, y)
    model.eval()


def measure(model: GPT, tokens: np.ndarray) -> float:
    with nm.no_grad():
        return float(np.mean([loss_of(model, x, y).item() for x, y in pieces(tokens, 4, 9)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--bits", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--out", type=Path, default=Path("out/quantization.png"))
    options = parser.parse_args()

    tokens = text()
    nm.random.seed(0)
    model = GPT(int(tokens.max()) + 1, options.width, options.layers)
    train(model, tokens, options.steps, 2e-3)
    full = measure(model, tokens)
    print(f"full     {full:.4f}")
    data = [x for x, _ in pieces(tokens, 4, 5)]
    lines: dict[str, list[tuple[float, float]]] = {}
    for way, algorithm in WAYS.items():
        lines[way] = []
        for bits in options.bits:
            other = copy.deepcopy(model)
            if algorithm is None:
                nn.prepare_qat_(other, f"int{bits}-g32")
                train(other, tokens, options.steps // 4, 2e-4, seed=3)
                nn.convert_(other)
            else:
                nm.quant.quantize_(other, f"int{bits}-g32{algorithm}", data=data, at_once=8)
            lines[way].append((bits, measure(other, tokens)))
        print(f"{way:<8}", "  ".join(f"{b} bits {loss:.4f}" for b, loss in lines[way]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_png(options.out, curves({"loss by bits": {k: np.array(v) for k, v in lines.items()}}))


if __name__ == "__main__":
    main()
