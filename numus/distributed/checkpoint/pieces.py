"""Which elements of which parameters a tensor of this rank holds.

A checkpoint knows parameters by the names that the whole model has, and elements by their index in
the flattened parameter: so it can be read by any number of ranks, sharded or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from numus import nn
from numus.distributed.data_parallel import DistributedDataParallel
from numus.distributed.fsdp import FullyShardedDataParallel
from numus.distributed.groups import Group
from numus.optim.optimizer import Optimizer
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Piece:
    """Elements `low` to `high` of a flattened parameter, from `at` on in a flattened tensor."""

    name: str
    shape: tuple[int, ...]
    at: int
    low: int
    high: int


@dataclass(frozen=True)
class Holder:
    """A tensor that an optimiser knows, and what it holds."""

    tensor: Tensor
    pieces: tuple[Piece, ...]
    is_sharded: bool  # else all ranks have the same

    def own(self, piece: Piece, group: Group) -> tuple[int, int]:
        """The elements of a piece that this rank writes."""
        if self.is_sharded:
            return piece.low, piece.high
        size = piece.high - piece.low
        first, last = (size * r // group.size for r in (group.rank, group.rank + 1))
        return piece.low + first, piece.low + last


def inner(model: nn.Module) -> nn.Module:
    """The model within one that trains it on several ranks."""
    wrappers = (DistributedDataParallel, FullyShardedDataParallel)
    return model.module if isinstance(model, wrappers) else model


def holders(model: nn.Module, group: Group) -> list[Holder]:
    """The parameters of a model, or this rank's parts of them."""
    if isinstance(model, FullyShardedDataParallel):
        found = []
        for unit in model._units:
            for flat in unit.flats:
                pieces = tuple(
                    Piece(entry.name, entry.shape, at, low, high)
                    for entry, at, low, high in flat.own_slices(model._group.rank)
                )
                found.append(Holder(flat.shard, pieces, True))
        return found
    named = inner(model).named_parameters()
    return [Holder(p, (Piece(name, p.shape, 0, 0, p.size),), False) for name, p in named]


def names_of(model: nn.Module) -> dict[int, list[str]]:
    """For each tensor of a model that optimisers know, the names of all parameters in it."""
    if isinstance(model, FullyShardedDataParallel):
        flats = [flat for unit in model._units for flat in unit.flats]
        return {id(flat.shard): [e.name for e in flat.entries] for flat in flats}
    return {id(p): [name] for name, p in inner(model).named_parameters()}


def shapes(model: nn.Module) -> dict[str, list[int]]:
    """The shapes of a model's parameters by name."""
    if isinstance(model, FullyShardedDataParallel):
        flats = [flat for unit in model._units for flat in unit.flats]
        return {e.name: list(e.shape) for flat in flats for e in flat.entries}
    return {name: list(p.shape) for name, p in inner(model).named_parameters()}


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a state dict holds."""
    module = inner(model)
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    if isinstance(model, FullyShardedDataParallel):  # modules hold no parameters now
        named = dict(module.named_buffers())
        return {name: named[name] for name in module.state_dict() if name in named}
    return {n: x for n, x in module.state_dict(keep_vars=True).items() if n not in parameters}


def split(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Models, optimisers of their parameters, and all the rest."""
    models = {n: p for n, p in parts.items() if isinstance(p, nn.Module)}
    known = {i for model in models.values() for i in names_of(model)}
    optimizers = {
        name: part
        for name, part in parts.items()
        if isinstance(part, Optimizer) and all(id(p) in known for p in part._parameters())
    }
    rest = {n: p for n, p in parts.items() if n not in models and n not in optimizers}
    return models, optimizers, rest
