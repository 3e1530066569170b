"""A small transformer that learns the most frequent token of a sequence.

    python examples/tiny_transformer.py                  # --device webgpu, or cuda

A usual training script: modules, `Trainer.train_step` with a loss function, the mean loss of each
epoch, weights saved as safetensors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import numus as nm
from numus import data, nn, optim


class TinyTransformer(nn.Module):
    """Tokens (batch, length) to scores (batch, vocabulary)."""

    def __init__(self, vocab_size: int, d_model: int, n_heads: int, ff_dim: int) -> None:
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.block1 = nn.TransformerBlock(d_model, n_heads, ff_dim, 0.1)
        self.block2 = nn.TransformerBlock(d_model, n_heads, ff_dim, 0.1)
        self.ln_final = nn.LayerNorm(d_model)
        self.fc_out = nn.Linear(d_model, vocab_size)

    def forward(self, tokens: nm.Tensor) -> nm.Tensor:
        x = self.embedding(tokens)  # [B, T] -> [B, T, D]
        x = self.block1(x)  # attention and feed-forward net
        x = self.block2(x)
        x = self.ln_final(x)
        last = x.select(1, -1)  # the last token's state: [B, D]
        return self.fc_out(last)


def sequences(count: int, length: int, vocab_size: int, seed: int) -> data.TensorDataset:
    """Sequences in which one token, the label, comes more often than any other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, vocab_size, count)
    tokens = rng.integers(0, vocab_size, (count, length))
    often = rng.random((count, length)) < 0.4
    tokens = np.where(often, labels[:, None], tokens)
    return data.TensorDataset(nm.asarray(tokens), nm.asarray(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/transformer.safetensors"))
    options = parser.parse_args()

    nm.random.seed(0)
    model = TinyTransformer(options.vocabulary, 64, 4, 128).to(options.device)
    model.train()
    optimizer = optim.AdamW(model.parameters(), 3e-3)
    trainer = optim.Trainer(optimizer, max_grad_norm=1.0)
    dataset = sequences(options.examples, 24, options.vocabulary, seed=0)
    loader = data.DataLoader(dataset, 64, shuffle=True, key=nm.random.key(0), device=options.device)

    for epoch in range(options.epochs):
        for tokens, labels in loader:
            trainer.train_step(lambda: nn.cross_entropy_loss(model(tokens), labels))
        print(f"epoch {epoch}: loss = {trainer.epoch_avg_loss():.4f}")

    model.eval()
    test = sequences(512, 24, options.vocabulary, seed=1)
    tokens, labels = (x.to(options.device) for x in test.tensors)
    with nm.no_grad():
        guesses = nm.argmax(model(tokens), axis=-1)
    print(f"accuracy {(guesses == labels).mean(dtype=nm.float32).item():.1%}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    nn.save_safetensors(model.state_dict(), options.out)
    print(f"weights  {options.out}")


if __name__ == "__main__":
    main()
