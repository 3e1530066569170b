"""Weights and whole trainings in files: safetensors alone, in shards, and checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.errors import RecordError
from numus.nn.module import IncompatibleKeys, Module
from numus.nn.safetensors import PathLike, SafetensorsFile, atomically, write
from numus.tensor import Tensor

__all__ = [
    "load_checkpoint", "load_model", "load_safetensors", "save_checkpoint", "save_model",
    "save_safetensors",
]  # fmt: skip

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _bytes(size: int | str) -> int:
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]+)\s*", size)
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"{size!r} is not a size such as 500MB or 5GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


# -- weights --------------------------------------------------------------------------------------


def save_safetensors(
    tensors: Mapping[str, Any],
    path: PathLike,
    metadata: Mapping[str, str] | None = None,
    *,
    max_shard_size: int | str | None = None,
) -> list[Path]:
    """Write tensors by name to a file, or to several and an index; gives the files written.

    >>> import tempfile
    >>> from numus import nn
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> _ = nn.save_safetensors(nn.Linear(2, 3).state_dict(), path)
    >>> sorted(nn.load_safetensors(path))
    ['bias', 'weight']

    Args:
        max_shard_size: how large a file may be ("5GB"); where one is not enough, they are named
            `model-00001-of-00002.safetensors` and so on, listed in `model.safetensors.index.json`.
    """
    path = Path(path)
    shards = list(_shards(tensors, None if max_shard_size is None else _bytes(max_shard_size)))
    if len(shards) == 1:
        write(path, tensors, metadata)
        return [path]
    written: list[Path] = []
    where: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        name = f"{path.stem}-{i:05}-of-{len(shards):05}{path.suffix}"
        write(path.with_name(name), shard, metadata)
        written.append(path.with_name(name))
        where |= dict.fromkeys(shard, name)
    total = sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in tensors.values())
    index = {"metadata": {"total_size": total, **(metadata or {})}, "weight_map": where}
    text = json.dumps(index, indent=2).encode()
    atomically(path.with_name(path.name + ".index.json"), lambda file: file.write(text))
    return [*written, path.with_name(path.name + ".index.json")]


def _shards(tensors: Mapping[str, Any], limit: int | None) -> Iterator[dict[str, Any]]:
    shard: dict[str, Any] = {}
    size = 0
    for name, x in tensors.items():
        own = int(np.prod(x.shape)) * x.dtype.itemsize
        if limit is not None and shard and size + own > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = x
        size += own
    yield shard


def load_safetensors(path: PathLike, device: Any = None) -> dict[str, Tensor]:
    """The tensors of a file, of the index of several, or of a folder with either.

    They share the file's pages: nothing is read before it is used.
    """
    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob("*.safetensors.index.json")) or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise RecordError(f"load_safetensors: {path} has {len(found)} files to choose from")
        path = found[0]
    index = path if path.suffix == ".json" else path.with_name(path.name + ".index.json")
    if index.exists() and (path.suffix == ".json" or not path.exists()):
        where, files = _indexed(index, device)
        absent = [name for name, file in where.items() if name not in files[file]]
        if absent:
            raise RecordError(f"{index} names tensors that its files lack: {', '.join(absent)}")
        return {name: files[file][name] for name, file in where.items()}
    return dict(SafetensorsFile(path, device))


def _indexed(index: Path, device: Any) -> tuple[dict[str, str], dict[str, SafetensorsFile]]:
    """Which file each tensor is in, and the files, in the folder of the index."""
    try:
        where = json.loads(index.read_bytes())["weight_map"]
        names = {str(name): index.with_name(name) for name in set(where.values())}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{index} is not an index of safetensors files: {error}") from None
    absent = [name for name, path in names.items() if not path.is_file()]
    if absent:
        raise RecordError(f"{index} names files that are not there: {', '.join(absent)}")
    return where, {name: SafetensorsFile(path, device) for name, path in names.items()}


def save_model(model: Module, path: PathLike, **options: Any) -> list[Path]:
    """Write a module's state; options are those of `save_safetensors`."""
    return save_safetensors(model.state_dict(), path, **options)


def load_model(model: Module, path: PathLike, strict: bool = True) -> IncompatibleKeys:
    """Load a module's state by name."""
    return model.load_state_dict(load_safetensors(path), strict)


# -- checkpoints ----------------------------------------------------------------------------------

_FORMAT = "numus-checkpoint-1"


def save_checkpoint(path: PathLike, **parts: Any) -> None:
    """Write all that a training needs to go on to one file, which appears when it is whole.

    Parts are models, optimisers, schedules, scalers, loaders, whatever has a `state_dict()`, or
    plain containers of tensors, numbers and strings. The random generator's state goes along.

        nn.save_checkpoint("step.ckpt", model=model, optimizer=opt, schedule=schedule, step=step)
    """
    tensors: dict[str, Any] = {}
    states = {n: p.state_dict() if hasattr(p, "state_dict") else p for n, p in parts.items()}
    tree = {"parts": _described(states, "", tensors), "random": list(nm.random.get_state())}
    write(path, tensors, {"format": _FORMAT, "tree": json.dumps(tree)})


def load_checkpoint(path: PathLike, **parts: Any) -> dict[str, Any]:
    """Give each part (what has a `load_state_dict()`) its state back; gives all states.

    The random generator goes on where it was. A part that the file lacks is an error; states that
    are not asked for are only given back.
    """
    file = SafetensorsFile(path)
    if file.metadata.get("format") != _FORMAT:
        raise RecordError(f"{path} is not a checkpoint of numus")
    try:
        tree = json.loads(file.metadata["tree"])
        states = _rebuilt(tree["parts"], file)
        generator = _generator_state(tree["random"])
        if not isinstance(states, dict):
            raise ValueError(f"its states are {type(states).__name__}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: its states cannot be read: {error}") from None
    absent = [name for name in parts if name not in states]
    if absent:
        raise RecordError(f"{path} has no {', '.join(absent)}; it has {', '.join(states)}")
    for name, part in parts.items():
        part.load_state_dict(states[name])
    nm.random.set_state(generator)
    return states


def _generator_state(given: Any) -> tuple[int, int, int]:
    first, second, taken = given
    if any(type(n) is not int or n < 0 for n in given) or max(first, second) >> 32 or taken >> 64:
        raise ValueError(f"no state of a random generator: {given}")
    return first, second, taken


def _described(x: Any, path: str, tensors: dict[str, Any]) -> Any:
    """A tree as JSON, its tensors taken out: what JSON cannot tell apart is marked."""
    if isinstance(x, (Tensor, np.ndarray, np.generic)):
        name = path or "/"
        tensors[name] = x if isinstance(x, Tensor) else np.asarray(x)
        return {"tensor": name}
    if isinstance(x, Mapping):
        items = [[k, _described(v, f"{path}/{k}", tensors)] for k, v in x.items()]
        if any(not isinstance(k, (str, int, float, bool, type(None))) for k in x):
            raise TypeError(f"save_checkpoint: {path or 'the state'} has keys that JSON lacks")
        return {"dict": items}
    if isinstance(x, (list, tuple)):
        kind = "tuple" if isinstance(x, tuple) else "list"
        return {kind: [_described(v, f"{path}/{i}", tensors) for i, v in enumerate(x)]}
    if x is None or isinstance(x, (bool, int, float, str)):
        return {"value": x}
    raise TypeError(
        f"save_checkpoint: {path or 'the state'} is a {type(x).__name__}; a checkpoint holds "
        "tensors, numbers, strings, None and dicts, lists and tuples of them"
    )


def _rebuilt(tree: dict[str, Any], file: SafetensorsFile) -> Any:
    ((kind, x),) = tree.items()
    if kind == "tensor":
        return file[x]
    if kind == "dict":
        return {k: _rebuilt(v, file) for k, v in x}
    if kind == "value":
        return x
    if kind not in ("list", "tuple"):
        raise ValueError(f"there is no {kind!r}")
    parts = [_rebuilt(v, file) for v in x]
    return tuple(parts) if kind == "tuple" else parts
