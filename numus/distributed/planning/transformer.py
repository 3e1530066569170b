"""The transformer that is planned: a decoder (Radford et al., 2019), cut among the ranks of a
tensor-parallel group as Shoeybi et al. (2019) do: columns of the first product, rows of the second,
a part of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numus as nm
from numus import nn, optim
from numus.distributed.collectives import all_reduce
from numus.distributed.groups import Group
from numus.tensor import Tensor


@dataclass(frozen=True)
class Transformer:
    """Sizes of a model and of its training.

    Args:
        batch: sequences of a step, over all ranks.
        dtype: of products; parameters are float32.
        checkpointing: whether blocks are computed again backwards.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    length: int
    batch: int
    feedforward: int = 0  # 4 × width by default
    dtype: str = "float32"
    optimizer: str = "AdamW"
    checkpointing: bool = False

    @property
    def hidden(self) -> int:
        """The width between the two products of a block."""
        return self.feedforward or 4 * self.width

    def new_optimizer(self, parameters: Any) -> Any:
        """The optimiser of these parameters."""
        return getattr(optim, self.optimizer)(parameters, lr=1e-3)


class Block(nn.Module):
    """Attention and two products, of which this rank has its part."""

    def __init__(self, sizes: Transformer, group: Group) -> None:
        super().__init__()
        width, n = sizes.width, group.size
        self._heads, self._group = sizes.heads // n, group
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width // n), nn.Linear(width // n, width)
        self.up = nn.Linear(width, sizes.hidden // n)
        self.down = nn.Linear(sizes.hidden // n, width)

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        h = self.qkv(self.norm1(x)).reshape((b, n, 3, self._heads, -1))
        q, k, v = (h[:, :, i].swapaxes(1, 2) for i in range(3))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + _summed(self.out(a.swapaxes(1, 2).reshape((b, n, -1))), self._group)
        hidden = nn.functional.gelu(self.up(self.norm2(x)))
        return x + _summed(self.down(hidden), self._group)


class Model(nn.Module):
    """A decoder with this many blocks."""

    def __init__(self, sizes: Transformer, layers: int, group: Group) -> None:
        super().__init__()
        self._group, self._checkpointing = group, sizes.checkpointing
        self._words = sizes.vocabulary // group.size
        self.words = nn.Embedding(self._words, sizes.width)
        self.places = nn.Embedding(sizes.length, sizes.width)
        self.blocks = nn.ModuleList([Block(sizes, group) for _ in range(layers)])
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, self._words)

    def forward(self, x: Any) -> Any:
        found = _summed(self.words(x), self._group)
        h = found + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = nm.checkpoint(block)(h) if self._checkpointing else block(h)
        return self.head(self.norm(h))


def loss_of(logits: Tensor, targets: Tensor, group: Group) -> Any:
    """The mean cross entropy, where each rank of a group has the scores of a part of the words."""
    flat, wanted = logits.reshape((-1, logits.shape[-1])), targets.reshape((-1,))
    if group.size == 1:
        return nn.functional.cross_entropy(flat, wanted)
    highest = all_reduce(nm.max(flat, axis=-1).detach(), "max", group=group)
    total = all_reduce(nm.sum(nm.exp(flat - highest[:, None]), axis=-1), group=group)
    own = nm.take_along_axis(flat, wanted[:, None], axis=-1)[:, 0]
    return (nm.log(total) + highest - all_reduce(own, group=group)).mean()


def _summed(x: Any, group: Group) -> Any:
    return x if group.size == 1 else all_reduce(x, group=group)
