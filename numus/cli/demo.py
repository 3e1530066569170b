"""`numus demo`: a small transformer learns to add, from sums that it is shown.

Answers are written last digit first, as one adds by hand: each digit then follows from what is
already there.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import nn, optim
from numus.png import curves, write_png
from numus.tensor import Tensor
from numus.terminal import Line, bar, left_text

__all__ = ["run"]

PLUS, EQUALS, TOKENS = 10, 11, 12  # after the digits
BATCH, RATE, WIDTH, HEADS, LAYERS = 128, 3e-3, 96, 4, 2
UNSEEN = 0.1  # of all sums, never trained on


Ints = NDArray[np.int64]


class Sums:
    """Sums of numbers of this many digits, as rows of tokens: 123+456=9750."""

    def __init__(self, digits: int) -> None:
        if not 1 <= digits <= 6:
            raise SystemExit(f"numus demo: --digits is from 1 to 6, not {digits}")
        self.digits = digits
        self.answer = 2 * digits + 2  # where it begins
        self.length = self.answer + digits + 1

    def draw(self, rng: np.random.Generator, count: int, *, unseen: bool) -> tuple[Ints, Ints]:
        """Pairs of numbers, of the held-out or of the training set."""
        draws = (2 if not unseen else 20) * count + 100  # enough that some are left over
        a, b = rng.integers(0, 10**self.digits, (2, draws))
        # the set of a pair is decided by a hash, so that no list is needed
        held_out = (a * 2_654_435_761 + b * 40_503) % 1000 < UNSEEN * 1000
        where = np.flatnonzero(held_out == unseen)[:count]
        return a[where], b[where]

    def encode(self, a: Ints, b: Ints) -> Ints:
        """Rows of tokens, answers included."""
        powers = 10 ** np.arange(self.digits + 1)
        down = powers[:-1][::-1]
        columns = [a[:, None] // down % 10, np.full((len(a), 1), PLUS)]
        columns += [b[:, None] // down % 10, np.full((len(a), 1), EQUALS)]
        return np.concatenate([*columns, (a + b)[:, None] // powers % 10], axis=1)

    def decode(self, rows: Ints) -> Ints:
        """The numbers of the answers."""
        total: Ints = rows[:, self.answer :] @ 10 ** np.arange(self.digits + 1)
        return total


class Adder(nn.Module):
    """A decoder: tokens and their positions, transformer blocks, and scores for the next token."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(TOKENS, WIDTH)
        self.position = nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(
            [nn.TransformerBlock(WIDTH, HEADS, 4 * WIDTH, causal=True) for _ in range(LAYERS)]
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores


def answers(model: nn.Module, sums: Sums, a: Ints, b: Ints, device: str) -> Ints:
    """The model's answers, digit by digit from its own output."""
    rows = sums.encode(a, b)
    rows[:, sums.answer :] = 0
    predict = nm.jit(model.forward)
    model.eval()
    with nm.no_grad():
        for i in range(sums.answer, sums.length):
            scores = predict(nm.asarray(rows[:, :-1], device=device))
            rows[:, i] = np.asarray(nm.argmax(scores[:, i - 1], axis=-1).cpu())
    model.train()
    return sums.decode(rows)


def accuracy(model: nn.Module, sums: Sums, count: int, device: str) -> float:
    """The part of unseen sums that are answered exactly."""
    a, b = sums.draw(np.random.default_rng(1), count, unseen=True)
    return float((answers(model, sums, a, b, device) == a + b).mean())


def run(device: str | None, digits: int, steps: int, out: Path) -> float:
    """Train, save, load and ask; gives the accuracy on sums that were never shown."""
    nm.random.seed(0)
    sums = Sums(digits)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"numus demo: --out: {error}") from None
    if device is None:
        device = next((str(d) for d in nm.devices() if str(d).startswith("cuda")), "cpu")
    model = Adder(sums.length).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=RATE)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=max(2, steps))

    @nm.jit
    def step(rows: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = model(rows[:, :-1])[:, sums.answer - 1 :]
        targets = rows[:, sums.answer :].reshape((-1,))
        loss: Tensor = nn.functional.cross_entropy(scores.reshape((-1, TOKENS)), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    rng = np.random.default_rng(0)
    losses: list[tuple[int, float]] = []
    exact: list[tuple[int, float]] = []
    print(f"{model.num_parameters():,} parameters on {device}")
    began = time.monotonic()
    with Line() as line:
        for i in range(1, steps + 1):
            a, b = sums.draw(rng, BATCH, unseen=False)
            loss = step(nm.asarray(sums.encode(a, b), device=device))
            if i < steps:
                schedule.step()
            if i % 10 == 0 or i == steps:
                losses.append((i, float(loss)))
                rate = i * BATCH / (time.monotonic() - began)
                seen = f"unseen sums right {exact[-1][1]:.1%}" if exact else ""
                now = f"{i}/{steps}  loss {losses[-1][1]:.4f}  {seen}  {rate:,.0f} sums/s"
                line.show(f"training {bar(i / steps)} {now}  {left_text(began, i / steps)}")
            if i % max(1, steps // 8) == 0:
                exact.append((i, accuracy(model, sums, 256, device)))

    weights = out / "addition.safetensors"
    nn.save_model(model, weights)
    again = Adder(sums.length)
    nn.load_model(again, weights)
    again.to(device)
    right = accuracy(again, sums, 2000, device)
    picture = out / "addition.png"
    panels = {"loss": {"training": losses}, "exact answers": {"unseen sums": exact}}
    write_png(picture, curves(panels, logarithmic=["loss"]))
    a, b = sums.draw(np.random.default_rng(2), 5, unseen=True)
    for x, y, z in zip(a, b, answers(again, sums, a, b, device), strict=True):
        print(f"  {x} + {y} = {z}" + ("" if x + y == z else f"   (no: {x + y})"))
    print(f"{right:.2%} of 2000 unseen sums are right, after saving and loading")
    print(f"weights {weights}\ncurves  {picture}")
    return right
