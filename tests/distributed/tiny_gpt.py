"""A small GPT and its training, for checks that several ranks run."""

import numpy as np

import numus as nm
from numus import nn

VOCABULARY, LENGTH = 32, 8


class Block(nn.Module):
    def __init__(self, width):
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # no bias: the gradient of that of keys is zero, and rounding errors are what Adam sees
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).reshape(batch, length, 3, 2, width // 2)
        q, k, v = (parts[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(0, 2, 1, 3).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Embeddings whose weights are those of the last layer, and blocks between."""

    def __init__(self, width=16, layers=2):
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        h = self.tokens(x) + self.positions(nm.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.tokens.weight.T


def model(**sizes):
    nm.random.seed(3)
    return GPT(**sizes)


def loss_of(model, x, y):
    scores = model(x)
    return nn.functional.cross_entropy(scores.reshape(-1, VOCABULARY), y.reshape(-1))


def batches(steps, size):
    rng = np.random.default_rng(1)
    for _ in range(steps):
        text = rng.integers(0, VOCABULARY, (size, LENGTH + 1))
        yield text[:, :-1], text[:, 1:]


def part(x, rank, size):
    return nm.asarray(np.ascontiguousarray(np.split(x, size)[rank]))


def difference(one, other):
    """The greatest between two state dicts."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[k].numpy() - other[k].numpy()).max()) for k in one)


def digest(state):
    """The bits of a state dict."""
    import hashlib

    found = hashlib.sha256()
    for name in sorted(state):
        found.update(name.encode() + np.ascontiguousarray(state[name].numpy()).tobytes())
    return found.hexdigest()
