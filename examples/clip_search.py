"""CLIP learns shapes and colours with their captions, then finds pictures by what is asked for.

    python examples/clip_search.py                       # --device webgpu, or cuda

Images show one or two coloured shapes, captions say which. A tokenizer is trained on the captions,
and a small CLIP on the pairs: features of an image and of its caption become alike, those of others
differ. Some pairs of colour and shape are never seen in training. The gallery is indexed once, by
a matrix of features; a question is one product with it. The picture has a row for each question:
the pictures found, framed green where they show what was asked for.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import numus as nm
from numus import models, optim, text
from numus.nn import functional as F
from numus.png import write_png

SIZE, LENGTH, END = 24, 10, "<|endoftext|>"
COLOURS = {
    "red": (0.9, 0.2, 0.2), "green": (0.2, 0.8, 0.3), "blue": (0.25, 0.4, 1.0),
    "yellow": (0.95, 0.9, 0.2), "white": (1.0, 1.0, 1.0),
}  # fmt: skip
SHAPES = ("disc", "ring", "square", "cross")
UNSEEN = {("red", "ring"), ("blue", "cross"), ("yellow", "disc")}  # not in training
Shown = set[tuple[str, str]]


def draw(count: int, seed: int, unseen: bool) -> tuple[NDArray[np.float32], list[Shown]]:
    """Images (count, 3, size, size), and what each shows: one or two coloured shapes."""
    rng = np.random.default_rng(seed)
    images = rng.normal(0.08, 0.04, (count, 3, SIZE, SIZE))
    pairs = [(c, s) for c in COLOURS for s in SHAPES if unseen or (c, s) not in UNSEEN]
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE / 2 + 0.5
    shown: list[Shown] = []
    for image in images:
        number = int(rng.integers(1, 3))
        picked = [pairs[i] for i in rng.choice(len(pairs), number, replace=False)]
        side = rng.permutation([-1, 1])
        for (colour, shape), sign in zip(picked, side, strict=False):
            dx = (x - sign * (number == 2) * 6 - rng.uniform(-1, 1)) / 5
            dy = (y - rng.uniform(-4, 4)) / 5
            mask = {
                "disc": np.hypot(dx, dy) < 1,
                "ring": abs(np.hypot(dx, dy) - 0.75) < 0.25,
                "square": np.maximum(abs(dx), abs(dy)) < 0.85,
                "cross": (np.minimum(abs(dx), abs(dy)) < 0.3) & (np.maximum(abs(dx), abs(dy)) < 1),
            }[shape]
            image[:, mask] = np.array(COLOURS[colour])[:, None]
        shown.append(set(picked))
    return images.astype(np.float32), shown


def caption(shown: Shown, rng: np.random.Generator) -> str:
    """What an image shows, in words, in any order."""
    parts = [f"a {colour} {shape}" for colour, shape in sorted(shown)]
    return " and ".join(parts[i] for i in rng.permutation(len(parts)))


def encode(tokenizer: text.Tokenizer, captions: list[str]) -> NDArray[np.int32]:
    """Tokens of captions, (count, length), each closed and filled up by the end token."""
    end = tokenizer.special_tokens[END]
    out = np.full((len(captions), LENGTH), end, np.int32)
    for row, line in zip(out, captions, strict=True):
        tokens = tokenizer.encode(line)[: LENGTH - 1]
        row[: len(tokens)] = tokens
    return out


def build(tokenizer: text.Tokenizer, options: argparse.Namespace) -> models.CLIP:
    """A small CLIP: 4² pixels to a patch."""
    width, end = options.width, tokenizer.special_tokens[END]
    sizes = (width, 2 * width, options.layers, 4)
    words = models.CLIPTower(
        *sizes, vocab_size=end + 1, max_position_embeddings=LENGTH, eos_token_id=end
    )
    pictures = models.CLIPTower(*sizes, image_size=SIZE, patch_size=4)
    return models.CLIP(words, pictures, projection_dim=width).to(options.device)


def train(
    model: models.CLIP,
    tokenizer: text.Tokenizer,
    images: NDArray[np.float32],
    shown: list[Shown],
    options: argparse.Namespace,
) -> None:
    """Train on pairs; two images of a batch that show the same are a little of a wrong lesson."""
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = optim.CosineAnnealingLR(optimizer, options.steps)

    @nm.jit
    def step(tokens: nm.Tensor, pixels: nm.Tensor) -> nm.Tensor:
        optimizer.zero_grad()
        loss = models.clip_loss(model(tokens, pixels))
        loss.backward()
        optimizer.step()
        return loss

    rng = np.random.default_rng(1)
    for number in range(options.steps):
        at = rng.integers(0, len(images), options.batch)
        tokens = encode(tokenizer, [caption(shown[i], rng) for i in at])
        loss = step(
            nm.asarray(tokens, device=options.device),
            nm.asarray(images[at], device=options.device),
        )
        scheduler.step()
        if number % 100 == 0:
            print(f"step {number}: loss {loss.item():.3f}")


class Index:
    """Features of a gallery, of length one: the best for a question are largest in one product."""

    def __init__(self, model: models.CLIP, images: NDArray[np.float32], device: str) -> None:
        self.model = model
        with nm.no_grad():
            features = nm.jit(model.get_image_features)(nm.asarray(images, device=device))
            self.features = F.normalize(features, dim=-1)

    def search(self, tokens: NDArray[np.int32], count: int) -> NDArray[np.int64]:
        """The best images for each question, (questions, count)."""
        with nm.no_grad():
            asked = nm.asarray(tokens, device=self.features.device)
            words = F.normalize(self.model.get_text_features(asked), dim=-1)
            return nm.topk(words @ self.features.T, count).indices.numpy()


def framed(images: NDArray[np.float32], right: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """A row of images for each question, (questions, count, …), within green or red frames."""
    rows, columns = right.shape
    cells = np.empty((rows, columns, SIZE + 4, SIZE + 4, 3), np.uint8)
    colours = np.array([(220, 60, 50), (60, 170, 80)], np.uint8)
    cells[:] = colours[right.astype(int)][..., None, None, :]
    pixels = (np.clip(images, 0, 1) * 255).astype(np.uint8)
    cells[:, :, 2:-2, 2:-2] = pixels.transpose(0, 1, 3, 4, 2)
    whole = cells.transpose(0, 2, 1, 3, 4).reshape(rows * (SIZE + 4), columns * (SIZE + 4), 3)
    return whole.repeat(3, axis=0).repeat(3, axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--gallery", type=int, default=600)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/clip_search.png"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)

    nm.random.seed(0)
    images, shown = draw(options.examples, seed=0, unseen=False)
    rng = np.random.default_rng(0)
    lines = [caption(x, rng) for x in shown]
    tokenizer = text.train_bpe(lines, vocab_size=290, special_tokens=[END])
    model = build(tokenizer, options)
    train(model, tokenizer, images, shown, options)

    model.eval()
    gallery, there = draw(options.gallery, seed=2, unseen=True)
    index = Index(model, gallery, options.device)
    kinds = [(c, s) for c in COLOURS for s in SHAPES]
    asked = encode(tokenizer, [f"a {c} {s}" for c, s in kinds])
    found = index.search(asked, 8)
    right = np.array([[k in there[i] for i in row] for k, row in zip(kinds, found, strict=True)])
    new = np.array([k in UNSEEN for k in kinds])
    print(f"seen {100 * right[~new].mean():.1f} %")
    print(f"unseen {100 * right[new].mean():.1f} %")
    chance = np.mean([[k in x for x in there] for k in kinds])
    print(f"chance {100 * chance:.1f} %")
    write_png(options.out, framed(gallery[found], right))
    print("picture", options.out)


if __name__ == "__main__":
    main()
