"""Layouts: how many ranks share the batch, the parameters, the products and the layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

AXES = ("pipe", "data", "shard", "tensor")  # from the slowest links to the fastest


@dataclass(frozen=True)
class Layout:
    """Ranks on a mesh.

    Args:
        data: copies of the model, each with a part of the batch (DistributedDataParallel).
        shard: ranks that share parameters, gradients and optimiser state, and the batch (FSDP).
        tensor: ranks that share each product and its operands.
        pipe: stages of layers (1F1B).
        microbatch: sequences that a rank computes at once.

    >>> from numus.distributed.planning import Layout
    >>> Layout(data=64, tensor=8, pipe=2).ranks
    1024
    """

    data: int = 1
    shard: int = 1
    tensor: int = 1
    pipe: int = 1
    microbatch: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.data * self.shard * self.tensor * self.pipe

    def stride(self, axis: str) -> int:
        """How far apart neighbours along an axis are, in ranks."""
        later = AXES[AXES.index(axis) + 1 :]
        return math.prod(getattr(self, name) for name in later)

    def microbatches(self, batch: int) -> int:
        """Of a step, on each rank."""
        return batch // (self.data * self.shard * self.microbatch)

    def problem(self, batch: int, layers: int, heads: int, widths: tuple[int, ...]) -> str:
        """Why it does not divide a model; empty where it does."""
        if batch % (self.data * self.shard * self.microbatch):
            return (
                f"a batch of {batch} is not to be divided among {self.data} × {self.shard} ranks "
                f"in microbatches of {self.microbatch}"
            )
        if layers % self.pipe:
            return f"{layers} layers are not to be divided into {self.pipe} stages"
        if heads % self.tensor or any(w % self.tensor for w in widths):
            return f"{heads} heads and widths {widths} are not to be divided by {self.tensor}"
        return ""

    def __str__(self) -> str:
        axes = ", ".join(f"{n}={getattr(self, n)}" for n in AXES if getattr(self, n) > 1)
        return f"{axes or 'one rank'}, microbatch {self.microbatch}"
