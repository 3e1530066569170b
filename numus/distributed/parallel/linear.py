"""Tensor-parallel linear layers (Megatron-LM, Shoeybi et al. 2019): each rank has some of the
outputs (column), or some of the inputs (row), of a linear map.

A column layer, a function of single elements and a row layer make a feed-forward block with one sum
over ranks; heads of attention likewise. With `sequence`, activations between blocks are cut along
the sequence (Korthikanti et al. 2022): all_gather and reduce_scatter take the place of all_reduce.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.distributed.collectives import all_gather, all_reduce, reduce_scatter
from numus.distributed.groups import Group, world
from numus.distributed.parallel.regions import enter, join, leave
from numus.distributed.parallel.shards import Shard
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "sum_gradients"]


def sum_gradients(parameter: Tensor, group: Group) -> None:
    """Let a parameter that each rank uses for a part of the sequence have the gradient of all."""
    if group.size > 1 and parameter.requires_grad:
        parameter.register_hook(lambda g: all_reduce(g, group=group))


def divided(count: int, group: Group, what: str) -> int:
    """A rank's share of a number of things."""
    if count % group.size:
        raise ShapeError(
            f"{what}: {count} are not divisible by the {group.size} ranks of {group} (ranks "
            f"{', '.join(map(str, group.ranks))}); choose a mesh whose axis divides {count}"
        )
    return count // group.size


class _ParallelLinear(Module):
    """What column and row layers share."""

    shards: dict[str, tuple[Shard, ...]]
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        *,
        group: Group | None,
        sequence: bool,
        parts: int,
        layer: Linear | None,
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        self._group = world() if group is None else group
        self._sequence = sequence
        # drawn as a whole on all ranks, so that the layer starts as a Linear of one process does
        layer = layer or Linear(in_features, out_features, bias)
        self.shards = self._shards(parts, layer.bias is not None)
        with nm.no_grad():
            for name in ("weight", "bias"):
                whole = getattr(layer, name)
                if whole is not None and name in self.shards:
                    what = f"{type(self).__name__}: {name}"
                    part = self.shards[name][0].of(whole.detach(), what).clone()
                    whole = Parameter(part, whole.requires_grad)
                setattr(self, name, whole)

    def _shards(self, parts: int, bias: bool) -> dict[str, tuple[Shard, ...]]:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, ranks={self._group.size}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """`nn.Linear` whose outputs are divided among ranks.

    Args:
        group: the ranks, such as `mesh.group("tensor")`; all by default.
        gather_output: give all outputs to all ranks.
        sequence: what comes in is cut along the sequence, axis -2.
        parts: of how many matrices the outputs are stacked, each of which is divided by itself.
        layer: a `Linear` to take the values of.

    >>> layer = nm.distributed.parallel.ColumnParallelLinear(3, 4)
    >>> layer(nm.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: Group | None = None,
        gather_output: bool = False,
        sequence: bool = False,
        parts: int = 1,
        layer: Linear | None = None,
    ) -> None:
        self._gather = gather_output
        options: dict[str, Any] = {"sequence": sequence, "parts": parts, "layer": layer}
        super().__init__(in_features, out_features, bias, group=group, **options)
        divided(out_features // parts, self._group, "ColumnParallelLinear: out_features")
        if gather_output and parts > 1:
            raise ValueError(
                "ColumnParallelLinear: gather_output puts ranks one after the other, which is not "
                f"the order of {parts} stacked matrices; leave gather_output out"
            )

    def _shards(self, parts: int, bias: bool) -> dict[str, tuple[Shard, ...]]:
        shard = (Shard(self._group, 0, parts),)
        return {"weight": shard, "bias": shard} if bias else {"weight": shard}

    def forward(self, x: Any) -> Tensor:
        if self._sequence:
            x = all_gather(x, -2, group=self._group)
        else:
            x = enter(x, group=self._group)
        y = F.linear(x, self.weight, self.bias)
        return join(y, -1, group=self._group) if self._gather else y


class RowParallelLinear(_ParallelLinear):
    """`nn.Linear` whose inputs are divided among ranks, and whose outputs are their sum.

    Args:
        group: the ranks, such as `mesh.group("tensor")`; all by default.
        sequence: the sum is cut along the sequence, axis -2.
        layer: a `Linear` to take the values of.

    >>> layer = nm.distributed.parallel.RowParallelLinear(4, 3)
    >>> layer(nm.ones((2, 4))).shape
    (2, 3)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: Group | None = None,
        sequence: bool = False,
        layer: Linear | None = None,
    ) -> None:
        options: dict[str, Any] = {"sequence": sequence, "parts": 1, "layer": layer}
        super().__init__(in_features, out_features, bias, group=group, **options)
        if sequence and self.bias is not None:
            sum_gradients(self.bias, self._group)

    def _shards(self, parts: int, bias: bool) -> dict[str, tuple[Shard, ...]]:
        return {"weight": (Shard(self._group, 1),)}  # the bias is added once, to the sum

    def forward(self, x: Any) -> Tensor:
        y = F.linear(x, self.weight)
        if self._sequence:
            y = reduce_scatter(y, axis=-2, group=self._group)
        else:
            y = leave(y, group=self._group)
        return y if self.bias is None else y + self.bias
