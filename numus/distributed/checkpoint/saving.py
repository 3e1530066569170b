"""Saving: each rank writes what it holds, and the first one switches to the new files at the end.

Files are safetensors, listed by an index with a generation, as those of `nn.save_safetensors`: the
files of the last checkpoint are not touched before the new index has taken the place of the old.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.distributed.checkpoint import pieces as parts_of
from numus.distributed.checkpoint.pieces import Holder
from numus.distributed.collectives import all_gather, broadcast
from numus.distributed.groups import Group, agree, world
from numus.errors import ShapeError
from numus.files import PathLike, atomically
from numus.nn.safetensors import write
from numus.nn.saving import GENERATION, described, index_of, remove_shards
from numus.tensor import Tensor

__all__ = ["save_checkpoint"]

FORMAT = "numus-ranks-1"
STEM = "checkpoint.safetensors"


def save_checkpoint(path: PathLike, **parts: Any) -> None:
    """Write all that a training needs to go on into a folder. All ranks call it together, each of
    them writes what it has, and a rank or machine that fails meanwhile leaves the last checkpoint.

    Parts are models (`FSDP`, `DistributedDataParallel`, others that are alike on all ranks), their
    optimisers, whatever else has a `state_dict()` that is alike on all ranks, or plain containers
    of tensors, numbers and strings. The random generators of all ranks go along.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> model = nm.distributed.FSDP(nm.nn.Linear(2, 1))
    >>> nm.distributed.save_checkpoint(folder, model=model, step=3)
    >>> nm.distributed.load_checkpoint(folder, model=model)["step"]
    3
    """
    group = world()
    folder = Path(path)
    models, optimizers, rest = parts_of.split(parts)
    tensors: dict[str, Any] = {}  # that this rank writes
    for name, model in models.items():
        for holder in parts_of.holders(model, group):
            _add(tensors, name, holder, holder.tensor, group)
    groups = {
        name: _optimizer(tensors, name, optimizer, models, group)
        for name, optimizer in optimizers.items()
    }
    states = {n: p.state_dict() if hasattr(p, "state_dict") else p for n, p in rest.items()}
    for name, model in models.items():
        states[f"{name}:buffers"] = parts_of.buffers(model)
    whole: dict[str, Any] = {}
    tree: dict[str, Any] = {"parts": described(states, "", whole), "groups": groups}
    tree["shapes"] = {name: parts_of.shapes(model) for name, model in models.items()}
    tree["random"] = _of_all_ranks(nm.random.get_state(), group)
    names = sorted(whole)
    tensors |= {f"whole{n}": whole[n] for n in names[group.rank :: group.size]}
    _write(folder, tensors, {"format": FORMAT, "tree": json.dumps(tree)}, group)


def _add(tensors: dict[str, Any], place: str, holder: Holder, values: Tensor, group: Group) -> None:
    """The elements of a tensor that this rank writes, by parameter."""
    flat = None
    for piece in holder.pieces:
        low, high = holder.own(piece, group)
        if low < high:
            flat = values.detach().numpy().reshape(-1) if flat is None else flat
            at = piece.at + low - piece.low
            part = np.ascontiguousarray(flat[at : at + high - low])
            tensors[f"part:{place}:{piece.name}:{low}"] = nm.asarray(part, dtype=values.dtype)


def _optimizer(
    tensors: dict[str, Any], name: str, optimizer: Any, models: Any, group: Group
) -> list[dict[str, Any]]:
    """State by parameter; gives the hyperparameters of the groups."""
    held = {id(h.tensor): h for m in models.values() for h in parts_of.holders(m, group)}
    names = {i: n for m in models.values() for i, n in parts_of.names_of(m).items()}
    for p in optimizer._parameters():
        holder = held[id(p)]
        for key, value in optimizer.state[p].items():
            if value.shape == p.shape and p.ndim:
                _add(tensors, f"{name}/{key}", holder, value, group)
            elif holder.is_sharded and value.size != 1:
                raise ShapeError(
                    f"save_checkpoint: {type(optimizer).__name__} has a state {key!r} of shape "
                    f"{value.shape} for a part of {p.size} elements: only a state with a number "
                    "for each element, or one for all, can be divided among ranks"
                )
            elif group.rank == 0:
                for parameter in names[id(p)]:
                    tensors[f"whole:{name}/{key}:{parameter}"] = value
    described_groups = []
    for entry in optimizer.param_groups:
        options = {k: v for k, v in entry.items() if k != "params"}
        described_groups.append(described(options, "", {}))
    return described_groups


def _of_all_ranks(numbers: Any, group: Group) -> list[list[int]]:
    """A few integers of each rank."""
    given = np.array([list(numbers)], dtype=np.uint64).view(np.uint8)
    found: list[list[int]] = (
        all_gather(nm.asarray(given), group=group).numpy().view(np.uint64).tolist()
    )
    return found


def _write(folder: Path, tensors: dict[str, Any], notes: dict[str, str], group: Group) -> None:
    """Write this rank's file; the first rank writes the index when all files are there."""
    drawn = np.frombuffer(os.urandom(8), np.uint8).copy()
    generation = broadcast(nm.asarray(drawn), group.ranks[0], group=group).numpy().tobytes().hex()
    path = folder / STEM
    names = [
        f"{path.stem}-{r + 1:05}-of-{group.size:05}-{generation}{path.suffix}"
        for r in range(group.size)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    mine = folder / names[group.rank]
    write(mine, tensors, {GENERATION: generation})
    agree(f"save_checkpoint of generation {generation}: all files are written", group)
    if group.rank == 0:
        where = {name: file for file in names for name in _keys(folder / file)}
        head = {"metadata": {**notes, GENERATION: generation}, "weight_map": where}
        text = json.dumps(head).encode()
        atomically(index_of(path), lambda file: file.write(text))
        remove_shards(path, keep=[folder / n for n in names])
    agree(f"save_checkpoint of generation {generation}: the index is written", group)


def _keys(path: Path) -> list[str]:
    from numus.nn.safetensors import SafetensorsFile

    return list(SafetensorsFile(path))
