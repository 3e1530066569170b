"""A small GPT as a module, for any library with PyTorch's names: `torch.nn` or `numus.nn`.

In a file of its own: processes that measure first calls import neither peers nor workloads.
"""

from __future__ import annotations

from typing import Any

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 65, 128, 4, 4, 64


def gpt_module(t: Any, width: int = WIDTH, layers: int = LAYERS, length: int = LENGTH) -> Any:
    f = t.functional

    class Block(t.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = t.LayerNorm(width), t.LayerNorm(width)
            self.qkv, self.out = t.Linear(width, 3 * width), t.Linear(width, width)
            self.up, self.down = t.Linear(width, 4 * width), t.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, n, d = x.shape
            h = self.qkv(self.norm1(x)).reshape((b, n, 3, HEADS, d // HEADS))
            q, k, v = (h[:, :, i].swapaxes(1, 2) for i in range(3))
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.swapaxes(1, 2).reshape((b, n, d)))
            return x + self.down(f.gelu(self.up(self.norm2(x))))

    class Gpt(t.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = t.Embedding(WORDS, width), t.Embedding(length, width)
            self.blocks = t.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.out = t.LayerNorm(width), t.Linear(width, WORDS)

        def forward(self, x: Any) -> Any:
            return self.out(
                self.norm(self.blocks(self.words(x) + self.places.weight[: x.shape[1]]))
            )

    return Gpt()
