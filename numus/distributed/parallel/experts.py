"""Expert parallelism: a mixture of experts whose experts are divided among ranks (GShard, Lepikhin
et al. 2020; Switch Transformer, Fedus et al. 2021).

Each rank routes its own tokens: it lays them into a buffer with as many places for each expert
(the capacity), an all_to_all takes the places to the ranks of the experts, and another one brings
the results back. Without a bound on the capacity no token is dropped.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numus as nm
from numus.distributed.collectives import all_reduce, all_to_all
from numus.distributed.groups import Group, world
from numus.distributed.parallel.linear import divided
from numus.distributed.parallel.shards import Shard
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn import init
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["ExpertParallelMoE", "Routing"]


class Routing(NamedTuple):
    """Where the tokens of a rank go.

    Args:
        chances: of each expert for each token, (tokens, experts).
        which: the experts of each token, (tokens, top_k).
        shares: how much each of them counts.
    """

    chances: Tensor
    which: Tensor
    shares: Tensor


class ExpertParallelMoE(Module):
    """SwiGLU experts, of which a router chooses some for each token: w2(silu(w1(x)) * w3(x)).

    Every rank has another part of the tokens, and some of the experts. In a group of one it is a
    plain mixture of experts. Gradients of its experts are those of the sum of the ranks' losses,
    which `average_gradients` makes a mean.

    Args:
        width, hidden: of tokens, and inside of experts.
        experts: how many there are, on all ranks together.
        top_k: how many of them each token goes to.
        capacity_factor: an expert takes at most capacity_factor * top_k * tokens / experts tokens
            of a rank, first choices first; others pass by it. None: it takes all.
        group: the ranks, such as `mesh.group("expert")`; all by default.

    >>> moe = nm.distributed.parallel.ExpertParallelMoE(8, 16, experts=4, top_k=2)
    >>> y, loss = moe(nm.ones((2, 3, 8)), with_loss=True)
    >>> y.shape, loss.shape
    ((2, 3, 8), ())
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        top_k: int = 2,
        *,
        capacity_factor: float | None = None,
        group: Group | None = None,
    ) -> None:
        if not 1 <= top_k <= experts:
            raise ValueError(f"ExpertParallelMoE: {top_k} of {experts} experts for each token")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"ExpertParallelMoE: capacity_factor {capacity_factor} is not above 0")
        self._group = world() if group is None else group
        divided(experts, self._group, "ExpertParallelMoE: experts")
        self.experts, self.top_k = experts, top_k
        self.capacity_factor = capacity_factor
        self.gate = Linear(width, experts, bias=False)
        shard = Shard(self._group, 0)
        self.shards = dict.fromkeys(("w1", "w2", "w3"), (shard,))
        shapes = {"w1": (hidden, width), "w2": (width, hidden), "w3": (hidden, width)}
        for name, shape in shapes.items():
            whole = nm.empty((experts, *shape))  # drawn whole: as one process draws them
            init.uniform_(whole, -(shape[1] ** -0.5), shape[1] ** -0.5)
            setattr(self, name, Parameter(shard.of(whole, name).clone()))

    w1: Parameter
    w2: Parameter
    w3: Parameter

    @classmethod
    def of(
        cls, moe: Any, *, group: Group | None = None, capacity_factor: float | None = None
    ) -> ExpertParallelMoE:
        """The layer with the weights of a Mixtral's mixture of experts."""
        first = moe.experts[0]
        hidden, width = first.w1.weight.shape
        options: dict[str, Any] = {"capacity_factor": capacity_factor, "group": group}
        made = cls(width, hidden, len(moe.experts), moe.chosen, **options)
        made.gate = moe.gate
        for name, (shard,) in made.shards.items():
            whole = nm.stack([getattr(e, name).weight.detach() for e in moe.experts])
            setattr(made, name, Parameter(shard.of(whole, name).clone()))
        return made

    def route(self, x: Tensor) -> Routing:
        """The experts of each token of x, (tokens, width)."""
        chances = nm.softmax(self.gate(x).astype(nm.float32, copy=False), axis=-1)
        best, which = nm.topk(chances, self.top_k)
        return Routing(chances, which, best / nm.sum(best, axis=-1, keepdims=True))

    def forward(self, x: Any, with_loss: bool = False) -> Any:
        """The weighted results of each token's experts; with `with_loss` also the load-balancing
        loss of the tokens of all ranks."""
        width = self.gate.in_features
        if x.shape[-1] != width:
            raise ShapeError(
                f"ExpertParallelMoE: takes tokens of {width} numbers, not shape {x.shape}"
            )
        flat = x.reshape(-1, width)
        routing = self.route(flat)
        y = self._dispatched(flat, routing).reshape(x.shape)
        return (y, self.balance_loss(routing)) if with_loss else y

    def balance_loss(self, routing: Routing) -> Tensor:
        """Experts times the sum over experts of (share of choices) x (mean chance): 1 where all
        have the same load (Fedus et al. 2021)."""
        hits = nm.sum(self._hits(routing.which), axis=(0, 1)) / routing.which.size
        both = nm.stack([hits, nm.mean(routing.chances, axis=0)])
        load, chance = all_reduce(both, "mean", group=self._group)
        return self.experts * nm.sum(load.detach() * chance)

    def _hits(self, which: Tensor) -> Tensor:
        """1 where a choice of a token is an expert, (tokens, top_k, experts)."""
        numbers = nm.arange(self.experts, device=which.device)
        return (which[..., None] == numbers).astype(nm.float32)

    def _dispatched(self, x: Tensor, routing: Routing) -> Tensor:
        tokens, width = x.shape
        size, own = self._group.size, self.experts // self._group.size
        which = routing.which.T.reshape(-1)  # first choices first: they are served first
        hits = (which[:, None] == nm.arange(self.experts, device=x.device)).astype(nm.int64)
        queue = nm.cumsum(hits, axis=0)
        place = nm.sum(queue * hits, axis=1) - 1  # in the queue of the expert
        capacity = self._capacity(tokens, queue[-1])
        kept = place < capacity
        slots = self.experts * capacity
        slot = nm.where(kept, which * capacity + place, slots)
        # the choice that lies in each slot: none for most, where experts are not full
        numbers = nm.arange(which.size, device=x.device)
        empty = nm.full((slots + 1,), which.size, dtype=nm.int64, device=x.device)
        choice = nm.scatter(empty, 0, slot, numbers)[:-1]
        filled = choice < which.size
        token = nm.where(filled, choice % tokens, 0)
        sent = nm.where(filled[:, None], x[token], 0.0).reshape(size, own * capacity, width)
        got = all_to_all(sent, 0, 0, group=self._group)
        inputs = got.reshape(size, own, capacity, width).permute(1, 0, 2, 3)
        results = self._computed(inputs.reshape(own, size * capacity, width))
        back = results.reshape(own, size, capacity, width).permute(1, 0, 2, 3)
        mine = all_to_all(back.reshape(size, own * capacity, width), 0, 0, group=self._group)
        rows = mine.reshape(slots, width)[nm.where(kept, slot, 0)]
        rows = nm.where(kept[:, None], rows, 0.0).reshape(self.top_k, tokens, width)
        return nm.sum(rows * routing.shares.T[..., None].astype(x.dtype, copy=False), axis=0)

    def _capacity(self, tokens: int, loads: Tensor) -> int:
        """How many tokens of a rank each expert has places for."""
        if self.capacity_factor is not None:
            mean = self.top_k * tokens / self.experts
            return max(1, min(tokens, math.ceil(self.capacity_factor * mean)))
        if loads._node.abstract:  # sizes are not known while tracing: all tokens to one expert
            return tokens
        highest = int(all_reduce(nm.max(loads), "max", group=self._group).item())
        return min(tokens, -(-highest // 8) * 8)  # few sizes

    def _computed(self, x: Tensor) -> Tensor:
        """Each expert of this rank on its tokens, (experts, tokens, width)."""
        gate = F.silu(x @ self.w1.permute(0, 2, 1))
        return (gate * (x @ self.w3.permute(0, 2, 1))) @ self.w2.permute(0, 2, 1)

    def extra_repr(self) -> str:
        return (
            f"{self.gate.in_features}, {self.w1.shape[1]}, experts={self.experts}, "
            f"top_k={self.top_k}, capacity_factor={self.capacity_factor}, ranks={self._group.size}"
        )
