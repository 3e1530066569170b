"""Quantisation of whole models: layers are swapped for quantised ones, one after the other.

Algorithms that calibrate run the model once per layer (or per few), with the layers before it
quantised already, so that memory holds the statistics of no more. With a checkpoint, what is done
is on disk, and a second run goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.files import PathLike
from numus.nn.layers.conv import Conv2d
from numus.nn.layers.embedding import Embedding
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.quantized.calibration import InputStatistics, gather, show
from numus.nn.quantized.folding import rounded_together, scale_output_
from numus.nn.quantized.layers import OUTLIERS, QConv2d, QEmbedding, QLinear
from numus.nn.safetensors import SafetensorsFile
from numus.nn.saving import load_safetensors, save_safetensors
from numus.quant import algorithms
from numus.quant.formats import Format, as_format
from numus.quant.integers import Integers
from numus.tensor import Tensor

__all__ = ["LayerReport", "QuantizationReport", "load_quantized", "quantize_", "save_quantized"]

ALGORITHMS = {
    **{"absmax": "rounding", "percentile": "", "mse": "", "hqq": ""},
    **{"hessian": "data", "gptq": "data", "gptqo": "data", "awq": "data"},
    **{"smooth": "data", "llmint8": "data", "spqr": "data"},
}
SCHEMES = {"int8": "int8-row", "int4": "int4-g128", "int3": "int3-g128", "int2": "int2-g64"}
LAYERS = "numus.quant.layers"  # metadata: formats by the names of layers
Filter = Callable[[str, Module], bool]
Layer = Linear | Embedding | Conv2d
QLayer = QLinear | QEmbedding | QConv2d


@dataclass(frozen=True)
class LayerReport:
    """One layer: sizes in bytes, and the error of its weight relative to its norm."""

    name: str
    format: str
    bytes_before: int
    bytes_after: int
    error: float


@dataclass
class QuantizationReport:
    """What `quantize_` did."""

    layers: list[LayerReport] = field(default_factory=list)

    @property
    def bytes_before(self) -> int:
        return sum(x.bytes_before for x in self.layers)

    @property
    def bytes_after(self) -> int:
        return sum(x.bytes_after for x in self.layers)

    def __str__(self) -> str:
        width = max([5, *(len(x.name) for x in self.layers)])
        lines = [f"{'layer':<{width}}  format            before      after    error"]
        for x in self.layers:
            lines.append(
                f"{x.name:<{width}}  {x.format:<12} {x.bytes_before:>10,} {x.bytes_after:>10,} "
                f"{x.error:>8.4f} {'#' * min(40, round(x.error * 200))}"
            )
        lines.append(
            f"{'total':<{width}}  {'':<12} {self.bytes_before:>10,} {self.bytes_after:>10,}"
        )
        return "\n".join(lines)


def parse_scheme(scheme: str | Format) -> tuple[Format, str]:
    """A format and an algorithm of a scheme: "int4-g64-gptq", "int4-awq", "nf4"."""
    if isinstance(scheme, Format):
        return scheme, "absmax"
    head, _, last = scheme.lower().rpartition("-")
    name, algorithm = (head, last) if head and last in ALGORITHMS else (scheme.lower(), "absmax")
    unsigned = "u" if algorithm == "hqq" and name.startswith("int") else ""
    found = as_format(unsigned + SCHEMES.get(name, name))
    if algorithm != "absmax" and not isinstance(found, Integers):
        raise ValueError(f"{scheme!r}: {algorithm} chooses integers, and {found.name} has none")
    return found, algorithm


def _default_filter(name: str, layer: Module) -> bool:
    return isinstance(layer, Linear)


def quantized_linear(
    layer: Linear, format: Format, how: str, seen: InputStatistics | None
) -> QLinear:
    """A linear layer by one of the algorithms; `seen` are the statistics of its inputs."""
    weight = layer.weight.detach()
    if how == "absmax":
        return QLinear.of(layer, format)
    assert isinstance(format, Integers)
    if how in ("percentile", "mse"):
        return QLinear.of(layer, algorithms.search_scales(weight, format, how))
    if how == "hqq":
        return QLinear.of(layer, algorithms.hqq(weight, format))
    assert seen is not None
    if how == "hessian":
        return QLinear.of(layer, algorithms.search_scales(weight, format, how, seen.hessian))
    if how in ("gptq", "gptqo"):
        return QLinear.of(layer, algorithms.gptq(weight, seen.hessian, format, how == "gptqo"))
    if how == "spqr":
        q, single = algorithms.spqr(weight, seen.hessian, format)
        return QLinear.of(layer, q, outliers=single)
    if how == "awq":
        q, scale = algorithms.awq(weight, seen.hessian, seen.magnitude, format)
        return QLinear.of(layer, q, input_scale=scale)
    if how == "smooth":
        by = nm.asarray(
            algorithms.smooth_scale(seen.largest, weight).astype(np.float32), device=weight.device
        )
        return QLinear.of(layer, nm.quant.quantize(weight * by, format), input_scale=1 / by)
    columns = algorithms.outlier_columns(seen.largest)
    if not columns.size:
        return QLinear.of(layer, format)
    at = nm.asarray(columns, device=weight.device)
    kept = nm.take(weight, at, axis=1)
    mask = np.ones(weight.shape[1], np.float32)
    mask[columns] = 0
    rest = weight * nm.asarray(mask, device=weight.device)
    outliers = (at, kept.astype(nm.float16))
    return QLinear.of(layer, nm.quant.quantize(rest, format), outliers=outliers)


def _rounded(layer: Layer, format: str | Format) -> QLayer:
    """A layer with its weight rounded."""
    if isinstance(layer, Linear):
        return QLinear.of(layer, format)
    if isinstance(layer, Embedding):
        return QEmbedding.of(layer, format)
    return QConv2d.of(layer, format)


def layer_report(
    name: str, before: Layer, after: QLayer, scale: Tensor | None = None
) -> LayerReport:
    """Sizes, and how far a quantised layer is from what it was; `scale`: of its inputs, folded."""
    w = np.asarray(before.weight.detach().astype(nm.float32), dtype=np.float64)
    w = w.reshape(w.shape[0], -1)
    dense = after.dense_weight() if isinstance(after, QLinear) else after.weight.dequantize()
    dense = dense if scale is None else dense * scale
    found = np.asarray(dense.astype(nm.float32), dtype=np.float64)
    error = float(np.linalg.norm(found - w)) / max(float(np.linalg.norm(w)), 1e-300)
    held = sum(b.nbytes for n, b in after.named_buffers() if n != "bias")
    return LayerReport(name, after.format, before.weight.nbytes, held, error)


def quantize_(
    model: Module,
    scheme: str | Format = "int4-g128",
    filter: Filter | None = None,
    *,
    data: Iterable[Any] | None = None,
    at_once: int = 1,
    checkpoint: PathLike | None = None,
    fold: Mapping[str, Sequence[str]] | None = None,
    activations: str | None = None,
) -> QuantizationReport:
    """Swap layers of a model for quantised ones, in place.

    >>> from numus import nn
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> report = nm.quant.quantize_(model, "int8")
    >>> type(model[0]).__name__, report.bytes_after < report.bytes_before / 3
    ('QLinear', True)

    Args:
        scheme: a format, and perhaps an algorithm: "int8", "int4-g64-gptq", "int4-awq", "nf4",
            "int4-hqq", "int8-smooth", "int8-llmint8", "int3-spqr", "int4-mse",
            "int4-hessian".
        filter: (name, layer) → whether to quantise it; all `Linear` layers if left out.
        data: batches that the model is called with, for algorithms that calibrate; it is iterated
            once for every `at_once` layers.
        checkpoint: a folder for what is done, which a later call takes up.
        fold: by the name of a norm or linear layer, those of the layers that alone read its
            output: AWQ and SmoothQuant give them one input scale, which goes into the layer before.
        activations: what linear layers round their inputs to: None, "int8" or "fp8".
    """
    format, how = parse_scheme(scheme)
    wanted = filter or _default_filter
    kinds = (Linear, Embedding, Conv2d)
    todo = {
        name: m for name, m in model.named_modules() if isinstance(m, kinds) and wanted(name, m)
    }
    if not todo:
        raise ValueError("quantize_: the filter takes no Linear, Embedding or Conv2d of the model")
    if at_once < 1:
        raise ValueError(f"quantize_: at_once={at_once} must be at least 1")
    calibrates = ALGORITHMS[how] == "data"
    if calibrates and data is None:
        raise ValueError(f"quantize_: {how} calibrates: give data=, batches for the model")
    if fold and checkpoint is not None:
        raise ValueError("quantize_: fold= changes layers that a checkpoint does not hold")
    if activations not in (None, "int8", "fp8"):
        raise ValueError(f'quantize_: activations={activations!r} must be None, "int8" or "fp8"')
    report = QuantizationReport()
    folder = None if checkpoint is None else Path(checkpoint)
    training = model.training
    model.eval()
    names = list(todo)
    before = _folded(model, todo, fold, how)
    for start in range(0, len(names), at_once):
        some = names[start : start + at_once]
        left = [n for n in some if n not in before or n == before[n][1][0]]  # one for all
        left = [n for n in left if not _resume(model, todo[n], n, folder, scheme, format, report)]
        linear = {n: m for n in left if isinstance(m := todo[n], Linear)}
        seen = gather(model, linear, data) if calibrates and linear and data is not None else {}
        for name in left:
            layer = todo[name]
            if name in before:
                previous, together = before[name]
                assert isinstance(format, Integers)
                layers = [m for n in together if isinstance(m := todo[n], Linear)]
                folded, scale = rounded_together(layers, format, how, seen[name])
                scale_output_(model.get_submodule(previous), scale)
                for n, old, own in zip(together, layers, folded, strict=True):
                    own.input_scale = None
                    model.set_submodule(n, own)
                    report.layers.append(layer_report(n, old, own, scale))
                continue
            if isinstance(layer, Linear):
                new: QLayer = quantized_linear(layer, format, how, seen.get(name))
            else:
                new = _rounded(layer, format)
            model.set_submodule(name, new)
            report.layers.append(layer_report(name, layer, new))
            _keep(new, name, folder, scheme, report.layers[-1])
        show(min(start + at_once, len(names)), len(names), some[-1])
    for _, module in model.named_modules():
        if isinstance(module, QLinear) and activations is not None:
            module.activations = activations
    model.train(training)
    return report


def _folded(
    model: Module,
    todo: Mapping[str, Module],
    fold: Mapping[str, Sequence[str]] | None,
    how: str,
) -> dict[str, tuple[str, Sequence[str]]]:
    """By the name of a layer, the one that its input scale folds into, and all that share it."""
    found: dict[str, tuple[str, Sequence[str]]] = {}
    if fold and how not in ("awq", "smooth"):
        raise ValueError(f"quantize_: fold= is for awq and smooth, and the algorithm is {how}")
    modules = dict(model.named_modules())
    for previous, layers in (fold or {}).items():
        for name in layers:
            if previous not in modules or not isinstance(todo.get(name), Linear) or name in found:
                raise ValueError(
                    f"quantize_: fold={{{previous!r}: {tuple(layers)}}} must name a layer and "
                    "linear layers that are quantised, each once"
                )
            found[name] = (previous, layers)
    return found


# -- files ----------------------------------------------------------------------------------------


def _scheme_name(scheme: str | Format) -> str:
    return scheme if isinstance(scheme, str) else scheme.name


def _keep(
    layer: Module, name: str, folder: Path | None, scheme: str | Format, report: LayerReport
) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"scheme": _scheme_name(scheme), "report": json.dumps(report.__dict__)}
    save_safetensors(layer.state_dict(), folder / f"{name}.safetensors", metadata)


def _resume(
    model: Module,
    layer: Layer,
    name: str,
    folder: Path | None,
    scheme: str | Format,
    format: Format,
    report: QuantizationReport,
) -> bool:
    path = None if folder is None else folder / f"{name}.safetensors"
    if path is None or not path.exists():
        return False
    metadata = SafetensorsFile(path).metadata
    if metadata.get("scheme") != _scheme_name(scheme):
        raise ValueError(
            f"{path}: was quantised by {metadata.get('scheme')}, not by {_scheme_name(scheme)}"
        )
    new = _rounded(layer, format)
    _load_layer(new, load_safetensors(path))
    model.set_submodule(name, new)
    report.layers.append(LayerReport(**json.loads(metadata["report"])))
    return True


def _load_layer(layer: Any, state: dict[str, Any]) -> None:
    for name in ("input_order", "input_scale", *OUTLIERS):
        if name in state:
            setattr(layer, name, state[name])
    layer.load_state_dict(state)


def save_quantized(model: Module, path: PathLike) -> None:
    """A model's state dict with the formats of its quantised layers, for `load_quantized`."""
    kinds = (QLinear, QEmbedding, QConv2d)
    formats = {n: m.format for n, m in model.named_modules() if isinstance(m, kinds)}
    save_safetensors(model.state_dict(), path, {LAYERS: json.dumps(formats)})


def load_quantized(model: Module, path: PathLike) -> Module:
    """Swap the layers of a model, not yet quantised, for those in a file; gives back the model."""
    text = SafetensorsFile(path).metadata.get(LAYERS)
    if text is None:
        raise ValueError(f"{path}: has no quantised layers; nn.load_model reads plain weights")
    state = load_safetensors(path)
    modules = dict(model.named_modules())
    for name, format in json.loads(text).items():
        layer = modules.get(name)
        if not isinstance(layer, Linear | Embedding | Conv2d):
            raise ValueError(f"{path}: {name} is quantised there, and no layer of the model")
        new = _rounded(layer, format)
        own = {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
        _load_layer(new, own)
        model.set_submodule(name, new)
    model.load_state_dict(state)
    return model
