"""A GPT that tests train: bytes of a text, pre-norm blocks of causal attention and an MLP."""

import numpy as np

import numus as nm
from numus import nn, optim

CONTEXT = 64


class Block(nn.Module):
    def __init__(self, width, heads):
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        h = self.norm1(x)

        def split(y):
            return y.reshape(batch, length, self.heads, width // self.heads).swapaxes(1, 2)

        parts = (split(f(h)) for f in (self.query, self.key, self.value))
        y = nn.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.swapaxes(1, 2).reshape(batch, length, width))
        return x + self.down(nn.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, width=128, layers=6, heads=4):
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(nm.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text_tokens(size=200_000):
    """Sentences of a small grammar with arithmetic, so that there is something to learn."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(2, 7))) for _ in range(300)]
    out = []
    while sum(map(len, out)) < size:
        a, b = rng.integers(0, 50, 2)
        start = int(rng.integers(0, 290))
        out.append(" ".join(words[start : start + int(rng.integers(3, 9))]) + f" {a}+{b}={a + b}. ")
    data = np.frombuffer("".join(out).encode(), np.uint8)
    _, tokens = np.unique(data, return_inverse=True)
    return tokens.astype(np.int32)


def batches(tokens, count, size, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        at = rng.integers(0, len(tokens) - CONTEXT - 1, size)
        both = np.stack([tokens[i : i + CONTEXT + 1] for i in at])
        yield nm.asarray(both[:, :-1]), nm.asarray(both[:, 1:])


def loss_of(model, x, y):
    logits = model(x)
    return nn.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def train(model, tokens, steps, lr=1e-3, seed=1, size=16):
    opt = optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)

    @nm.jit
    def step(x, y):
        opt.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        opt.step()
        return loss

    model.train()
    loss = None
    for x, y in batches(tokens, steps, size, seed):
        loss = step(x, y)
    return float(loss)


def evaluate(model, tokens, count=16):
    model.eval()
    with nm.no_grad():
        run = nm.jit(lambda x, y: loss_of(model, x, y))
        return float(np.mean([run(x, y).item() for x, y in batches(tokens, count, 32, seed=99)]))
