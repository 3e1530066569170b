"""Shards: which parameters of a module are parts of larger ones, over which axes of a mesh.

A layer that holds a part of a parameter says so in its attribute `shards`, by the parameter's name.
Norms of gradients, their averages and state dicts of the whole model follow from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.distributed.collectives import all_gather
from numus.distributed.groups import Group
from numus.errors import ShapeError
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = ["Shard", "full_state_dict", "load_full_state_dict", "shards"]


@dataclass(frozen=True)
class Shard:
    """One rank's part of a parameter.

    Args:
        group: the ranks that have the parts, in order.
        dim: the axis that is cut; -1: not cut, but on some of the ranks alone (stages, experts).
        parts: how many matrices are stacked along the axis, each of which is cut by itself: three
            where queries, keys and values are one projection.
        copies: how many ranks of the group have this very part.
    """

    group: Group
    dim: int = 0
    parts: int = 1
    copies: int = 1

    def of(self, whole: Any, name: str) -> Tensor:
        """This rank's part of the whole parameter."""
        x = nm.asarray(whole)
        size = self.group.size
        if x.shape[self.dim] % (size * self.parts):
            each = f" in each of {self.parts} parts" if self.parts > 1 else ""
            raise ShapeError(
                f"{name}: axis {self.dim} of shape {x.shape} has {x.shape[self.dim]} entries"
                f"{each}, which {size} ranks ({self.group}) cannot share evenly; choose a mesh "
                "whose axis divides it, or pad the layer"
            )
        stacked = x.reshape(self._stacked(x.shape, size))
        mine = stacked[(slice(None),) * (self.dim + 1) + (self.group.rank,)]
        shape = list(x.shape)
        shape[self.dim] //= size
        return mine.reshape(tuple(shape))

    def whole(self, part: Tensor) -> Tensor:
        """The whole parameter, on all ranks."""
        size = self.group.size
        shape = list(part.shape)
        shape[self.dim] *= size
        split = self._stacked(tuple(shape), size)
        mine = (*split[: self.dim + 1], 1, *split[self.dim + 2 :])
        gathered = all_gather(part.reshape(mine), self.dim + 1, group=self.group)
        return gathered.reshape(tuple(shape))

    def _stacked(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The shape with the cut axis as (parts, ranks, rest)."""
        each = shape[self.dim] // (size * self.parts)
        return (*shape[: self.dim], self.parts, size, each, *shape[self.dim + 1 :])


def shards(module: Module) -> dict[str, tuple[Shard, ...]]:
    """The shards of a module's parameters, by name; those that every rank has are left out.

    >>> layer = nm.distributed.parallel.ColumnParallelLinear(2, 4)
    >>> nm.distributed.parallel.shards(layer)["weight"][0].dim
    0
    """
    found: dict[str, tuple[Shard, ...]] = {}
    for path, inner in module.named_modules():
        own: Mapping[str, tuple[Shard, ...]] = getattr(inner, "shards", {})
        for name, shard in own.items():
            key = f"{path}.{name}" if path else name
            found[key] = (*found.get(key, ()), *shard)
    return found


def full_state_dict(module: Module) -> dict[str, Tensor]:
    """The state dict of the whole module: shards come together. All ranks call it.

    >>> layer = nm.distributed.parallel.ColumnParallelLinear(2, 4)
    >>> nm.distributed.parallel.full_state_dict(layer)["weight"].shape
    (4, 2)
    """
    state, cuts = module.state_dict(), shards(module)
    for name in state:
        for shard in cuts.get(name, ()):
            if shard.dim >= 0:
                state[name] = shard.whole(state[name])
    return state


def load_full_state_dict(module: Module, state: Mapping[str, Any]) -> None:
    """Take the values of a whole module's state dict: each rank its parts.

    >>> layer = nm.distributed.parallel.ColumnParallelLinear(2, 4, bias=False)
    >>> nm.distributed.parallel.load_full_state_dict(layer, {"weight": nm.ones((4, 2))})
    >>> layer.weight.sum().item()
    8.0
    """
    cuts = shards(module)
    mine = dict(state)
    for name in mine:
        for shard in cuts.get(name, ()):
            if shard.dim >= 0:
                mine[name] = shard.of(mine[name], f"load_full_state_dict: {name}")
    module.load_state_dict(mine)
