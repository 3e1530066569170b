"""Weights and whole trainings in files: safetensors alone, in shards, and checkpoints."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.errors import RecordError
from numus.files import PathLike, atomically, folder_lock
from numus.nn.module import IncompatibleKeys, Module
from numus.nn.safetensors import SafetensorsFile, write
from numus.nn.state import load_all
from numus.tensor import Tensor

__all__ = [
    "load_checkpoint", "load_model", "load_safetensors", "save_checkpoint", "save_model",
    "save_safetensors",
]  # fmt: skip

GENERATION = "numus.generation"  # of a sharded save, in the metadata of its files
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
            Files of an earlier save are not touched before the new index takes their place.
    """
    path = Path(path)
    shards = list(_shards(tensors, None if max_shard_size is None else _bytes(max_shard_size)))
    with folder_lock(path.parent):
        if len(shards) > 1:
            return _write_shards(path, shards, metadata)
        write(path, tensors, metadata)
        index_of(path).unlink(missing_ok=True)
        remove_shards(path, keep=())
    return [path]


# -- shards ---------------------------------------------------------------------------------------


def index_of(path: Path) -> Path:
    """The file that lists the shards of a save."""
    return path.with_name(path.name + ".index.json")


def _write_shards(
    path: Path, shards: list[dict[str, Any]], metadata: Mapping[str, str] | None
) -> list[Path]:
    """A new generation of files beside the old one; the index switches from one to the other.

    Every shard and the index name their generation: a mixture is refused when it is loaded.
    """
    generation = os.urandom(8).hex()
    names = [f"{path.stem}-{i:05}-of-{len(shards):05}" for i in range(1, len(shards) + 1)]
    if any(path.with_name(name + path.suffix).exists() for name in names):
        names = [f"{name}-{generation}" for name in names]
    written = [path.with_name(name + path.suffix) for name in names]
    where: dict[str, str] = {}
    try:
        for file, shard in zip(written, shards, strict=True):
            write(file, shard, {**(metadata or {}), GENERATION: generation})
            where |= dict.fromkeys(shard, file.name)
        total = sum(math.prod(x.shape) * x.dtype.itemsize for s in shards for x in s.values())
        notes = {"total_size": total, **(metadata or {}), GENERATION: generation}
        text = json.dumps({"metadata": notes, "weight_map": where}, indent=2).encode()
        atomically(index_of(path), lambda file: file.write(text))
    except BaseException:
        if generation not in _text(index_of(path)):  # else an interrupt came after the switch
            for file in written:
                file.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)  # an earlier save in one file, which would be loaded first
    remove_shards(path, keep=written)
    return [*written, index_of(path)]


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def remove_shards(path: Path, keep: Sequence[Path]) -> None:
    """Remove the shards of other generations, and what killed writers left of some."""
    shard = (
        rf"{re.escape(path.stem)}-\d{{5,}}-of-\d{{5,}}(-[0-9a-f]{{16}})?{re.escape(path.suffix)}"
    )
    ours = re.compile(rf"{shard}|\.{shard}\.[0-9a-f]+\.part")
    kept = {file.name for file in keep}
    for entry in list(os.scandir(path.parent)):
        if ours.fullmatch(entry.name) and entry.name not in kept:
            with suppress(OSError):  # it is in the way of nobody
                os.unlink(entry.path)


def _shards(tensors: Mapping[str, Any], limit: int | None) -> Iterator[dict[str, Any]]:
    shard: dict[str, Any] = {}
    size = 0
    for name, x in tensors.items():
        own = math.prod(x.shape) * x.dtype.itemsize
        if limit is not None and shard and size + own > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = x
        size += own
    yield shard


def load_safetensors(
    path: PathLike, device: Any = None, *, mmap: bool = False
) -> dict[str, Tensor]:
    """The tensors of a file, of the index of several, or of a folder with either.

    >>> import tempfile
    >>> from numus import nn
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> _ = nn.save_safetensors({"x": nm.arange(3)}, path)
    >>> nn.load_safetensors(path)["x"].tolist()
    [0, 1, 2]

    Args:
        mmap: map the file instead of reading it: nothing is read before it is used, and processes
            share memory. The file must stay as it is while its tensors are in use: one that is
            overwritten in place changes them, and one that is cut off ends the process.
    """
    path = Path(path)
    while True:
        version = _version(path)
        try:
            return _loaded(_chosen(path), device, mmap)
        except (RecordError, FileNotFoundError):
            if _version(path) == version:  # else a save has replaced the files meanwhile
                raise


def _version(path: Path) -> list[Any]:
    """What differs after a save: the identities of the file, or folder, and of the index."""
    found: list[Any] = []
    for file in (path, index_of(path)):
        try:
            status = os.stat(file)
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            found.append(None)
    return found


def _loaded(file: Path, device: Any, mmap: bool) -> dict[str, Tensor]:
    if file.suffix != ".json":
        return dict(SafetensorsFile(file, device, mmap=mmap))
    where, files = indexed(file, device, mmap)
    return {name: files[shard][name] for name, shard in where.items()}


def _chosen(path: Path) -> Path:
    """The file to load: itself, or the index of several."""
    if path.is_dir():
        found = sorted(path.glob("*.safetensors.index.json")) or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise RecordError(f"load_safetensors: {path} has {len(found)} files to choose from")
        return found[0]
    return index_of(path) if not path.exists() and index_of(path).exists() else path


def indexed(
    index: Path, device: Any, mmap: bool
) -> tuple[dict[str, str], dict[str, SafetensorsFile]]:
    """Which file each tensor is in, and the files, in the folder of the index."""
    try:
        head = json.loads(index.read_bytes())
        where = head["weight_map"]
        names = {str(name): index.with_name(name) for name in set(where.values())}
        generation = head.get("metadata", {}).get(GENERATION)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{index} is not an index of safetensors files: {error}") from None
    absent = [name for name, path in names.items() if not path.is_file()]
    if absent:
        raise RecordError(f"{index} names files that are not there: {', '.join(absent)}")
    try:
        files = {n: SafetensorsFile(path, device, mmap=mmap) for n, path in names.items()}
    except FileNotFoundError as error:
        raise RecordError(f"{index} names a file that is not there: {error.filename}") from None
    for name, file in files.items():
        if generation is not None and file.metadata.get(GENERATION) != generation:
            raise RecordError(
                f"{name} is not of the save that {index} lists (generation "
                f"{file.metadata.get(GENERATION)}, not {generation}): the files are a mixture"
            )
    lacking = [name for name, file in where.items() if name not in files[file]]
    if lacking:
        raise RecordError(f"{index} names tensors that its files lack: {', '.join(lacking)}")
    return where, files


def save_model(model: Module, path: PathLike, **options: Any) -> list[Path]:
    """Write a module's state; options are those of `save_safetensors`."""
    return save_safetensors(model.state_dict(), path, **options)


def load_model(
    model: Module, path: PathLike, strict: bool = True, *, mmap: bool = False
) -> IncompatibleKeys:
    """Load a module's state by name; `mmap` as for `load_safetensors`."""
    return model.load_state_dict(load_safetensors(path, mmap=mmap), strict)


# -- checkpoints ----------------------------------------------------------------------------------

_FORMAT, _TREE = "numus-checkpoint-1", "numus-tree-1"


def save_checkpoint(path: PathLike, **parts: Any) -> None:
    """Write all that a training needs to go on to one file, which appears when it is whole.

    Parts are models, optimisers, schedules, scalers, loaders, whatever has a `state_dict()`, or
    plain containers of tensors, numbers and strings. The random generator's state goes along.

        nn.save_checkpoint("step.ckpt", model=model, optimizer=opt, schedule=schedule, step=step)
    """
    tensors: dict[str, Any] = {}
    states = {n: p.state_dict() if hasattr(p, "state_dict") else p for n, p in parts.items()}
    tree = {"parts": described(states, "", tensors), "random": list(nm.random.get_state())}
    write(path, tensors, {"format": _FORMAT, "tree": json.dumps(tree)})


def load_checkpoint(path: PathLike, **parts: Any) -> dict[str, Any]:
    """Give each part (what has a `load_state_dict()`) its state back; gives all states.

    The random generator goes on where it was. A part that the file lacks is an error; states that
    are not asked for are only given back. Nothing changes unless every part can take its state.
    """
    file = SafetensorsFile(path)
    if file.metadata.get("format") != _FORMAT:
        raise RecordError(f"{path} is not a checkpoint of numus")
    try:
        tree = json.loads(file.metadata["tree"])
        states = rebuilt(tree["parts"], file)
        generator = generator_state(tree["random"])
        if not isinstance(states, dict):
            raise ValueError(f"its states are {type(states).__name__}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: its states cannot be read: {error}") from None
    absent = [name for name in parts if name not in states]
    if absent:
        raise RecordError(f"{path} has no {', '.join(absent)}; it has {', '.join(states)}")
    load_all(parts, states, path)
    nm.random.set_state(generator)
    return states


def save_tree(tree: Any, path: PathLike) -> None:
    """Write tensors, numbers, strings and containers of them to one file, as they are nested."""
    tensors: dict[str, Any] = {}
    text = json.dumps(described(tree, "", tensors))
    write(path, tensors, {"format": _TREE, "tree": text})


def load_tree(path: PathLike, device: Any = None) -> Any:
    """What `save_tree` wrote; the tensors by name of any other safetensors file."""
    file = SafetensorsFile(path, device)
    if file.metadata.get("format") != _TREE:
        return dict(file)
    try:
        return rebuilt(json.loads(file.metadata["tree"]), file)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: its tree cannot be read: {error}") from None


def generator_state(given: Any) -> tuple[int, int, int]:
    """The state of a random generator that a file has, checked."""
    first, second, taken = given
    if any(type(n) is not int or n < 0 for n in given) or max(first, second) >> 32 or taken >> 64:
        raise ValueError(f"no state of a random generator: {given}")
    return first, second, taken


def described(x: Any, path: str, tensors: dict[str, Any]) -> Any:
    """A tree as JSON, its tensors taken out: what JSON cannot tell apart is marked."""
    if isinstance(x, (Tensor, np.ndarray, np.generic)):
        name = path or "/"
        tensors[name] = x if isinstance(x, Tensor) else np.asarray(x)
        return {"tensor": name}
    if isinstance(x, Mapping):
        items = [[k, described(v, f"{path}/{k}", tensors)] for k, v in x.items()]
        if any(not isinstance(k, (str, int, float, bool, type(None))) for k in x):
            raise TypeError(f"save_checkpoint: {path or 'the state'} has keys that JSON lacks")
        return {"dict": items}
    if isinstance(x, (list, tuple)):
        kind = "tuple" if isinstance(x, tuple) else "list"
        return {kind: [described(v, f"{path}/{i}", tensors) for i, v in enumerate(x)]}
    if x is None or isinstance(x, (bool, int, float, str)):
        return {"value": x}
    raise TypeError(
        f"save_checkpoint: {path or 'the state'} is a {type(x).__name__}; a checkpoint holds "
        "tensors, numbers, strings, None and dicts, lists and tuples of them"
    )


def rebuilt(tree: dict[str, Any], file: Mapping[str, Any]) -> Any:
    """What `described` has taken apart."""
    ((kind, x),) = tree.items()
    if kind == "tensor":
        return file[x]
    if kind == "dict":
        return {k: rebuilt(v, file) for k, v in x}
    if kind == "value":
        return x
    if kind not in ("list", "tuple"):
        raise ValueError(f"there is no {kind!r}")
    parts = [rebuilt(v, file) for v in x]
    return tuple(parts) if kind == "tuple" else parts
