"""A character-level language model that memorises a small text and continues it.

    python examples/characters.py                        # --text FILE for one of your own

Shows `compute=` for single-tensor batches, a learning-rate scheduler, and incremental decoding with
a KV cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import numus as nm
from numus import nn, optim

TEXT = """\
The wind was on the withered heath, but in the forest stirred no leaf.
A rolling stone gathers no moss, and a watched pot never boils.
Many hands make light work; too many cooks spoil the broth.
The early bird catches the worm, the second mouse gets the cheese.
"""


class Writer(nn.Module):
    """Characters (batch, length) to scores for the character after each of them."""

    def __init__(self, characters: int, width: int = 64, layers: int = 2) -> None:
        self.embedding = nn.Embedding(characters, width)
        self.blocks = [
            nn.TransformerBlock(width, 4, 4 * width, causal=True, rotary=True)
            for _ in range(layers)
        ]
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, characters)

    def forward(self, places: nm.Tensor, caches: list[nn.KVCache] | None = None) -> nm.Tensor:
        x = self.embedding(places)
        for i, block in enumerate(self.blocks):
            x = block(x, cache=None if caches is None else caches[i])
        return self.scores(self.norm(x))


def write(model: Writer, start: np.ndarray, count: int, temperature: float, device: str) -> list:
    """Go on behind some characters: each is drawn by the scores that those before it gave."""
    model.eval()
    caches = [nn.KVCache() for _ in model.blocks]
    written = start.tolist()
    seen = start
    with nm.no_grad():
        for _ in range(count):
            scores = model(nm.asarray(seen[None], device=device), caches)[0, -1]
            drawn = nm.random.categorical(nm.log_softmax(scores / temperature, axis=-1))
            written.append(int(drawn))
            seen = np.array(written[-1:])
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a file to learn from")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--length", type=int, default=128, help="of the pieces that are shown")
    parser.add_argument("--write", type=int, default=110, help="how many characters to write")
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    text = options.text.read_text() if options.text else TEXT
    characters = sorted(set(text))
    codes = np.array([characters.index(c) for c in text])
    rng = np.random.default_rng(0)

    def pieces() -> list[np.ndarray]:
        starts = rng.integers(0, len(codes) - options.length - 1, (max(1, options.steps // 4), 16))
        return [codes[s[:, None] + np.arange(options.length + 1)] for s in starts]

    def compute(model: Writer, batch: nm.Tensor) -> nm.Tensor:
        scores = model(batch[:, :-1])
        return nn.cross_entropy(scores.reshape((-1, len(characters))), batch[:, 1:].reshape((-1,)))

    nm.random.seed(0)
    model = Writer(len(characters)).to(options.device)
    optimizer = optim.AdamW(model.parameters(), lr=4e-3)
    schedule = optim.OneCycleLR(optimizer, 4e-3, total_steps=max(4, options.steps) + 1)
    trainer = optim.Trainer(optimizer, model, compute=compute, scheduler=schedule)
    history = trainer.fit(pieces(), epochs=4)
    print(f"loss     {history[-1]['loss']:.3f}")
    start = codes[:12]
    drawn = write(model, start, options.write, options.temperature, options.device)
    print("".join(characters[i] for i in drawn))


if __name__ == "__main__":
    main()
