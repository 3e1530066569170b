"""`numus quantize`: the matrices in a file of safetensors or GGUF, rounded to few bits.

Matrices named `NAME.weight` become the buffers of `nn.QLinear`; all else is copied. The result is
what `nm.quant.load_quantized` reads into a model. Algorithms that calibrate take the inputs of each
layer, (rows, columns) under `NAME.input`, from a second file. GGUF's own formats ("q4_k") can be
written as GGUF, with the metadata that was there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numus as nm
from numus import nn
from numus.errors import NumusError
from numus.nn.quantized import models
from numus.nn.quantized.calibration import InputStatistics
from numus.quant.gguf_blocks import Blocks

__all__ = ["run"]


GGUF = ".gguf"


def _dense(tensor: Any) -> Any:
    return tensor.dequantize() if isinstance(tensor, nm.quant.QTensor) else tensor


def _layer(name: str, tensors: dict[str, Any]) -> nn.Linear:
    weight = _dense(tensors[f"{name}.weight"])
    bias = tensors.get(f"{name}.bias")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def _names(tensors: dict[str, Any], only: str | None) -> list[str]:
    found = []
    for key, tensor in tensors.items():
        name = key.removesuffix(".weight")
        is_matrix = tensor.ndim == 2 and tensor.dtype.kind == "float" and tensor.shape[1] >= 32
        if name != key and is_matrix and (only is None or re.search(only, name)):
            found.append(name)
    return found


def run(model: Path, scheme: str, data: Path | None, only: str | None, out: Path | None) -> None:
    """Quantise a file."""
    try:
        _quantize(model, scheme, data, only, out)
    except (NumusError, ValueError, OSError, re.error) as error:
        raise SystemExit(f"numus quantize: {error}") from None


def _quantize(
    model: Path, scheme: str, data: Path | None, only: str | None, out: Path | None
) -> None:
    format, how = models.parse_scheme(scheme)
    calibrates = models.ALGORITHMS[how] == "data"
    if calibrates and data is None:
        raise ValueError(f"{how} calibrates: give --data, a file with the inputs of layers")
    own = isinstance(format, Blocks)
    suffix = GGUF if own and model.suffix == GGUF else ".safetensors"
    to = out or model.with_name(f"{model.stem}-{scheme}{suffix}")
    if to.suffix == GGUF and not own:
        raise ValueError(f"{to}: GGUF has no {format.name}; it has q4_0 … q8_0, q2_k … q6_k")
    metadata: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    if model.suffix == GGUF:
        found, metadata = nm.quant.load_gguf(model)
        tensors.update(found)
    else:
        tensors.update(nn.load_safetensors(model))
    inputs = nn.load_safetensors(data) if data is not None else {}
    names = _names(tensors, only)
    if own:  # whole blocks of its own are all that GGUF has
        names = [n for n in names if tensors[f"{n}.weight"].shape[1] % format.group_size == 0]
    if not names:
        raise ValueError(f"{model}: there is no matrix NAME.weight of floats to quantise")
    missing = [n for n in names if calibrates and f"{n}.input" not in inputs]
    if missing:
        raise ValueError(f"{data}: has no {missing[0]}.input; --only leaves layers out")
    report, formats = models.QuantizationReport(), {}
    for name in names:
        layer, seen = _layer(name, tensors), None
        if calibrates:
            x = inputs[f"{name}.input"]
            if x.shape[-1] != layer.in_features:
                raise ValueError(
                    f"{data}: {name}.input has {x.shape[-1]} columns, the layer {layer.in_features}"
                )
            seen = InputStatistics.empty(layer.in_features)
            seen.add(x)
        new = models.quantized_linear(layer, format, how, seen)
        report.layers.append(models.layer_report(name, layer, new))
        if to.suffix == GGUF:
            tensors[f"{name}.weight"] = new.weight
            continue
        formats[name] = new.format
        del tensors[f"{name}.weight"]
        tensors.update({f"{name}.{k}": v for k, v in new.state_dict().items()})
    if to.suffix == GGUF:
        nm.quant.save_gguf(to, tensors, metadata)
    else:
        tensors = {name: _dense(t) for name, t in tensors.items()}
        nn.save_safetensors(tensors, to, {models.LAYERS: json.dumps(formats)})
    print(f"{report}\n{to}")
