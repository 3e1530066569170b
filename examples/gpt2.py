"""Train GPT-2 on a file or on noise: 124 million parameters, or a tiny variant.

    python examples/gpt2.py                                # tiny, on the CPU, on its own source
    python examples/gpt2.py --device webgpu
    python examples/gpt2.py --device cuda --size 124M --batch 16 --length 1024 --precision bf16

Weights are float32; with `--precision bf16` matmuls run in bfloat16 (`nm.autocast`). A step is
jitted as it stands: loss, gradients and AdamW are one program.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import numus as nm
from numus import nn, optim


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int
    vocabulary: int
    length: int  # of the longest sequence
    dropout: float = 0.0


SIZES = {
    "tiny": Size(layers=2, heads=4, width=64, vocabulary=256, length=128),
    "124M": Size(layers=12, heads=12, width=768, vocabulary=50304, length=1024),
}


class Attention(nn.Module):
    """Every token looks at itself and those before it."""

    def __init__(self, size: Size) -> None:
        self.heads, self.dropout = size.heads, size.dropout
        self.c_attn = nn.Linear(size.width, 3 * size.width)
        self.c_proj = nn.Linear(size.width, size.width)

    def forward(self, x: nm.Tensor) -> nm.Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (parts[:, :, i].permute(0, 2, 1, 3) for i in range(3))
        dropped = self.dropout if self.training else 0.0
        y = nm.scaled_dot_product_attention(query, key, value, dropout_p=dropped, is_causal=True)
        return self.c_proj(y.permute(0, 2, 1, 3).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        self.ln_1, self.ln_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attn = Attention(size)
        self.c_fc = nn.Linear(size.width, 4 * size.width)
        self.c_proj = nn.Linear(4 * size.width, size.width)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: nm.Tensor) -> nm.Tensor:
        x = x + self.dropout(self.attn(self.ln_1(x)))
        hidden = nn.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.dropout(self.c_proj(hidden))


class GPT2(nn.Module):
    """Tokens (batch, length) to scores (batch, length, vocabulary); the weights of both are one."""

    def __init__(self, size: Size) -> None:
        self.wte = nn.Embedding(size.vocabulary, size.width)
        self.wpe = nn.Embedding(size.length, size.width)
        self.h = [Block(size) for _ in range(size.layers)]
        self.ln_f = nn.LayerNorm(size.width)
        for name, parameter in self.named_parameters():
            if name.endswith("weight") and parameter.ndim == 2:
                deep = (2 * size.layers) ** -0.5 if "c_proj" in name else 1.0
                nn.init.normal_(parameter, 0.0, 0.02 * deep)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: nm.Tensor) -> nm.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def loss_of(model: GPT2, tokens: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
    """How badly the next tokens are told, in nats."""
    scores = model(tokens)
    return nn.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1))


class Training:
    """A model, its optimiser, and a jitted step.

    The rate grows to `rate` over the first `warmup` steps; gradients longer than `clip` are cut.
    """

    def __init__(
        self,
        size: Size,
        device: str,
        precision: str = "",
        rate: float = 3e-4,
        warmup: int = 0,
        clip: float = 0.0,
    ) -> None:
        nm.random.seed(0)
        self.model = GPT2(size).to(device)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=rate, weight_decay=0.1)
        self.rates = optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup))
        )
        self.precision, self.clip = precision, clip
        self._jitted = nm.jit(self._step)

    def step(self, tokens: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
        loss = self._jitted(tokens, targets)
        self.rates.step()
        return loss

    def _step(self, tokens: nm.Tensor, targets: nm.Tensor) -> nm.Tensor:
        self.optimizer.zero_grad()
        with nm.autocast(self.precision or "bf16", enabled=bool(self.precision)):
            loss = loss_of(self.model, tokens, targets)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss


def tokens_of(path: Path | None, vocabulary: int, count: int) -> np.ndarray:
    """A file's bytes, or its numbers if it is an .npy file; noise where there is none."""
    if path is None:
        return np.random.default_rng(0).integers(0, vocabulary, count)
    if path.suffix == ".npy":
        return np.load(path).reshape(-1)
    return np.frombuffer(path.read_bytes(), np.uint8)


def options(description: str) -> argparse.ArgumentParser:
    """What is trained, where, and how."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("", "bf16", "f16"), default="")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--warmup", type=int, default=0, help="steps in which the rate grows")
    parser.add_argument("--clip", type=float, default=0.0, help="longest gradient; 0: any")
    return parser


def main() -> None:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=Path(__file__), help="a text, or tokens (.npy)"
    )
    parser.add_argument("--noise", action="store_true", help="random tokens instead of a file's")
    given = parser.parse_args()

    size = SIZES[given.size]
    schedule = (given.rate, given.warmup, given.clip)
    training = Training(size, given.device, given.precision, *schedule)
    print(f"{training.model.num_parameters() / 1e6:.1f} million parameters on {given.device}")
    wanted = given.batch * given.length
    stream = tokens_of(None if given.noise else given.data, size.vocabulary, 8 * (wanted + 1))
    rng = np.random.default_rng(1)
    began = time.perf_counter()
    loss = None
    for number in range(given.steps):
        starts = rng.integers(0, len(stream) - given.length, given.batch)
        rows = np.stack([stream[s : s + given.length + 1] for s in starts]).astype(np.int64)
        batch = nm.asarray(rows, device=given.device)
        loss = training.step(batch[:, :-1], batch[:, 1:])
        if number in (0, 2) or number % 10 == 9:
            value = loss.item()  # synchronises
            now = time.perf_counter()
            print(f"step {number + 1:4}  loss {value:.4f}")
            if number == 2:  # traced and compiled
                began, counted = now, number
    if given.steps > 3 and loss is not None:
        loss.item()
        speed = wanted * (given.steps - 1 - counted) / (time.perf_counter() - began)
        print(f"{speed:.0f} tokens/s")
    print(f"memory: {nm.memory_stats(given.device).get('peak', 0) / 2**30:.2f} GiB at the peak")


if __name__ == "__main__":
    main()
