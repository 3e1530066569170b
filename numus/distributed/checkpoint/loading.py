"""Loading: each rank reads the elements that it holds, whatever the ranks that wrote them held."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.distributed.checkpoint import pieces as parts_of
from numus.distributed.checkpoint.pieces import Array, Holder
from numus.distributed.checkpoint.saving import FORMAT, STEM
from numus.distributed.groups import agree, world
from numus.errors import RecordError
from numus.files import PathLike
from numus.nn.saving import GENERATION, generator_state, index_of, indexed, rebuilt
from numus.nn.state import load_all
from numus.tensor import Tensor

__all__ = ["checkpoint_exists", "load_checkpoint"]


def checkpoint_exists(path: PathLike) -> bool:
    """Whether a folder has a checkpoint that was written to its end.

    >>> nm.distributed.checkpoint_exists("a folder that is not there")
    False
    """
    return index_of(Path(path) / STEM).is_file()


def load_checkpoint(path: PathLike, **parts: Any) -> dict[str, Any]:
    """Give each part its state back, on any number of ranks, sharded or not; gives the states of
    those that are neither models nor optimisers. All ranks call it together.

    The random generator of each rank goes on where it was; ranks that there were not get one of
    their own. Nothing changes unless every part can take its state.
    """
    group = world()
    file = _File(Path(path))
    agree(f"load_checkpoint of generation {file.generation}", group)
    models, optimizers, rest = parts_of.split(parts)
    states = file.states
    absent = [n for n in rest if n not in states]
    absent += [n for n in models if f"{n}:buffers" not in states]
    absent += [n for n in optimizers if n not in file.groups]
    if absent:
        known = [*file.groups, *(n.removesuffix(":buffers") for n in states)]
        raise RecordError(f"{path} has no {', '.join(absent)}; it has {', '.join(known)}")
    commits: list[Callable[[], Any]] = []
    for name, model in models.items():
        commits.append(_prepare_model(file, name, model))
        commits.append(_prepare_buffers(path, model, states[f"{name}:buffers"]))
    for name, optimizer in optimizers.items():
        commits.append(_prepare_optimizer(file, name, optimizer, models))
    load_all({n: p for n, p in rest.items() if hasattr(p, "load_state_dict")}, states, path)
    for commit in commits:
        commit()
    nm.random.set_state(_generator(file.random, group.rank))
    return {name: state for name, state in states.items() if not name.endswith(":buffers")}


def _generator(states: list[list[int]], rank: int) -> tuple[int, int, int]:
    """The state of a rank's generator: its own, or a new one from that of another rank."""
    first, second, taken = states[rank % len(states)]
    rounds = rank // len(states)
    return generator_state((first ^ rounds, second, taken))


class _File:
    """An index, and the files that it lists."""

    def __init__(self, folder: Path) -> None:
        index = index_of(folder / STEM)
        if not index.is_file():
            raise RecordError(f"{folder} has no checkpoint: there is no {index.name}")
        self.path = index
        where, files = indexed(index, None, True)
        metadata = json.loads(index.read_bytes())["metadata"]
        if metadata.get("format") != FORMAT:
            raise RecordError(f"{index} is not the index of a checkpoint of several ranks")
        self.generation: str = metadata[GENERATION]
        self._tensor = lambda key: files[where[key]][key]
        self._parts: dict[str, list[tuple[int, str]]] = {}
        for key in where:
            kind, _, rest = key.partition(":")
            if kind == "part":
                place, _, low = rest.rpartition(":")
                self._parts.setdefault(place, []).append((int(low), key))
        for found in self._parts.values():
            found.sort()
        self._wholes = {key for key in where if key.startswith("whole:")}
        try:
            tree = json.loads(metadata["tree"])
            names = [key for key in where if key.startswith("whole/")]
            stored = {key.removeprefix("whole"): self._tensor(key) for key in names}
            self.states: dict[str, Any] = rebuilt(tree["parts"], stored)
            self.groups: dict[str, Any] = {
                name: [rebuilt(g, {}) for g in groups] for name, groups in tree["groups"].items()
            }
            self.shapes: dict[str, dict[str, list[int]]] = tree["shapes"]
            self.random: list[list[int]] = tree["random"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(f"{index} is damaged: its states cannot be read: {error}") from None

    def has(self, place: str, name: str) -> bool:
        """Whether a parameter was written in parts at a place."""
        return f"{place}:{name}" in self._parts

    def whole(self, place: str, name: str) -> Tensor | None:
        """What was written whole for a parameter."""
        key = f"whole:{place}:{name}"
        return self._tensor(key) if key in self._wholes else None

    def elements(self, place: str, name: str, low: int, high: int) -> Array:
        """Elements of a flattened parameter."""
        found = []
        end = low
        for begin, key in self._parts.get(f"{place}:{name}", ()):
            part = self._tensor(key).numpy()
            if begin <= end < begin + part.size and end < high:
                found.append(part[end - begin : high - begin])
                end += found[-1].size
        if end != high:
            raise RecordError(
                f"{self.path}: {place} has no elements {end} to {high} of {name!r}: it was written "
                "of another model"
            )
        return np.concatenate(found) if len(found) != 1 else found[0]

    def filled(self, place: str, holder: Holder) -> Array:
        """The values of a tensor; what belongs to no parameter is zero."""
        out: Array = np.zeros(holder.tensor.size, holder.tensor.dtype.np)
        for piece in holder.pieces:
            values = self.elements(place, piece.name, piece.low, piece.high)
            if values.dtype != out.dtype:
                raise RecordError(
                    f"{self.path}: {place} has {piece.name!r} in {values.dtype}, not {out.dtype}"
                )
            out[piece.at : piece.at + values.size] = values
        return out.reshape(holder.tensor.shape)


def _prepare_model(file: _File, name: str, model: Any) -> Callable[[], None]:
    saved, shapes = file.shapes.get(name, {}), parts_of.shapes(model)
    if saved != shapes:
        differ = [n for n in {**saved, **shapes} if saved.get(n) != shapes.get(n)]
        shown = "; ".join(f"{n}: {saved.get(n)} there, {shapes.get(n)} here" for n in differ[:5])
        raise RecordError(f"{file.path}: {name} is another model: {shown}")
    own = parts_of.holders(model, world())
    values = [(holder.tensor, file.filled(name, holder)) for holder in own]

    def commit() -> None:
        with nm.no_grad():
            for tensor, array in values:
                tensor.assign(nm.asarray(array, dtype=tensor.dtype, device=tensor.device))

    return commit


def _prepare_buffers(path: Any, model: Any, given: Mapping[str, Any]) -> Callable[[], None]:
    own = parts_of.buffers(model)
    for name, x in own.items():
        if name not in given or given[name].shape != x.shape:
            raise RecordError(f"{path} has no buffer {name!r} of shape {x.shape}")

    def commit() -> None:
        with nm.no_grad():
            for name, x in own.items():
                x.assign(given[name].to(x.device))

    return commit


def _prepare_optimizer(
    file: _File, name: str, optimizer: Any, models: Mapping[str, Any]
) -> Callable[[], None]:
    held = {id(h.tensor): h for m in models.values() for h in parts_of.holders(m, world())}
    names = {i: n for m in models.values() for i, n in parts_of.names_of(m).items()}
    numbers = {id(p): i for i, p in enumerate(optimizer._parameters())}
    saved = file.groups[name]
    own = [[numbers[id(p)] for p in g["params"]] for g in optimizer.param_groups]
    if len(saved) != len(own):
        raise RecordError(f"{file.path}: {name} has {len(saved)} groups, not {len(own)}")
    groups = [{**options, "params": ps} for options, ps in zip(saved, own, strict=True)]
    state: dict[int, dict[str, Any]] = {}
    for p in optimizer._parameters():
        entries: dict[str, Any] = {}
        for key, value in optimizer.state[p].items():
            first = names[id(p)][0]
            if value.shape == p.shape and p.ndim and file.has(f"{name}/{key}", first):
                holder = held[id(p)]
                like = Holder(value, holder.pieces, holder.is_sharded)
                entries[key] = nm.asarray(file.filled(f"{name}/{key}", like), dtype=value.dtype)
            else:
                whole = file.whole(f"{name}/{key}", first)
                if whole is None:
                    raise RecordError(f"{file.path}: {name} has no {key!r} of {first!r}")
                entries[key] = whole
        state[numbers[id(p)]] = entries
    found: Callable[[], None] = optimizer._prepare_state({"param_groups": groups, "state": state})
    return found
