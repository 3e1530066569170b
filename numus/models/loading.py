"""Models from folders as Hugging Face lays them out, and from GGUF files; `save` writes a folder.

A folder has a `config.json`, whose `model_type` says which family it is, and safetensors files,
whose names are those of the model's parameters. Nothing is downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numus as nm
from numus import dtypes as dt
from numus import nn
from numus.errors import RecordError
from numus.files import PathLike, atomically
from numus.models.checkpoint import Shards, read_into
from numus.models.language.blocks import Conv1D
from numus.models.language.config import Config
from numus.models.language.families import family_of

__all__ = ["from_config", "load", "save"]

_QUANTIZED = "numus_quantization"  # formats by the names of layers, in config.json


def from_config(config: Any, **changes: Any) -> Any:
    """A language model, or CLIP, of random weights: by a configuration, a dict, or a `config.json`.

    >>> sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2}
    >>> type(nm.models.from_config({"model_type": "gpt2"}, **sizes)).__name__
    'GPT2LMHeadModel'

    Args:
        changes: fields to set instead of the configuration's own.
    """
    if isinstance(config, Config):
        config = config.to_dict()
    elif not isinstance(config, dict):
        config = _read_config(Path(config))
    config = {**config, **changes}
    make_config, make_model = family_of(config, "from_config").load()
    return make_model(make_config.from_dict(config))


def _read_config(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"load: there is no {path}: a model is a folder with a config.json and safetensors "
            "files, or a GGUF file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RecordError(f"{path} is a {type(found).__name__}, not a configuration")
    return found


def _skeleton(config: dict[str, Any], where: str) -> Any:
    """A model of a configuration; its random weights are never computed."""
    make_config, make_model = family_of(config, where).load()
    generator = nm.random.get_state()
    try:
        return make_model(make_config.from_dict(config))
    finally:
        nm.random.set_state(generator)


def load(
    path: PathLike,
    *,
    dtype: Any = None,
    device: Any = None,
    quantize: Any = None,
    progress: bool | None = None,
) -> Any:
    """A language model, or CLIP, from a folder (config.json, safetensors) or from a GGUF file.

    Tensors are read one after the other; memory is that of the model and one tensor.

    Args:
        dtype: of floating parameters; that of the file if left out.
        device: where to.
        quantize: a scheme that linear layers are rounded by while they are read, as "int4-g128" or
            "int4-hqq" (docs/quantization.md); the head that scores tokens gets 8 bits.
        progress: show a bar; on a terminal, if left out.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> sizes = {"vocab_size": 50, "n_embd": 32, "n_layer": 1, "n_head": 2}
    >>> nm.models.save(nm.models.from_config({"model_type": "gpt2"}, **sizes), folder)
    >>> nm.models.load(folder).num_parameters()
    47136
    """
    source = Path(path)
    wanted = None if dtype is None else dt.as_dtype(dtype)
    if wanted is not None and not wanted.is_floating:
        raise TypeError(f"load: parameters are floats, not {wanted.name}")
    options: dict[str, Any] = {"dtype": wanted, "device": device, "progress": progress}
    if source.is_file() and source.suffix == ".gguf":
        from numus.models.gguf import load_gguf_model

        return load_gguf_model(source, quantize=quantize, **options)
    config = _read_config(source)
    model = _skeleton(config, str(source))
    formats = config.get(_QUANTIZED) or {}
    if formats:
        if quantize is not None:
            raise ValueError(f"load: {source} is quantised already, and quantize={quantize!r}")
        _swap(model, formats)
    shards = Shards(source)
    read_into(
        *(model, shards, str(source)),
        problems=shards.problems,
        shape=shards.shape,
        quantize=quantize,
        **options,
    )
    return model.eval()


def _swap(model: nn.Module, formats: dict[str, str]) -> None:
    """Quantised layers, to be loaded into, in the place of those that a file holds quantised."""
    for name, format in formats.items():
        layer = model.get_submodule(name)
        if isinstance(layer, Conv1D):
            layer = layer.as_linear()
        if not isinstance(layer, nn.Linear):
            raise RecordError(f"load: {name} is quantised in the file, and no linear layer here")
        sizes = (layer.in_features, layer.out_features, layer.bias is not None)
        model.set_submodule(name, nn.QLinear(*sizes, format=format))


def save(model: Any, folder: PathLike, *, max_shard_size: int | str | None = "5GB") -> None:
    """Write a model as `load` reads it: config.json and safetensors files.

    Tied parameters are written once, as transformers does, which reads the result.

    Args:
        max_shard_size: how large a file may be.
    """
    config = getattr(model, "config", None)
    if not isinstance(config, Config):
        raise TypeError(f"save: {type(model).__name__} has no configuration; nn.save_model does")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.QLinear)}
    described = {k: v for k, v in config.to_dict().items() if k != _QUANTIZED}
    described["architectures"] = [getattr(model, "architecture", type(model).__name__)]
    if layers:
        described[_QUANTIZED] = {name: layer.format for name, layer in layers.items()}
    state = model.state_dict(keep_vars=True)
    unique: dict[int, str] = {}
    for name, x in state.items():
        unique.setdefault(id(x), name)
    tensors = {name: state[name].detach() for name in unique.values()}
    path = target / "model.safetensors"
    nn.save_safetensors(tensors, path, {"format": "pt"}, max_shard_size=max_shard_size)
    text = json.dumps(described, indent=2).encode()
    atomically(target / "config.json", lambda file: file.write(text))
