"""Checkpoints in shards of safetensors: checked as a whole, then read tensor by tensor.

Names and shapes come from the files' headers, so that all that is missing, unexpected, of another
shape or cut off is known, and said at once, before a tensor is read. Memory is that of the model
and of one tensor in the file's dtype; with quantisation, of one layer in full.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numus as nm
from numus import nn
from numus.dtypes import DType
from numus.errors import RecordError
from numus.models.language.blocks import Conv1D
from numus.nn.parameter import replace
from numus.nn.quantized.models import parse_scheme, quantized_linear
from numus.nn.safetensors import SafetensorsFile
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor
from numus.terminal import Line, bar, bytes_text

__all__ = ["Shards", "progress_bar", "read_into"]

# Buffers that older files hold, and that a model computes.
_COMPUTED = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|attn\.(bias|masked_bias)|position_ids|token_type_ids)$"
)
# TensorFlow's names, in the oldest files.
_OLD_NORMS, _NORMS = re.compile(r"(LayerNorm\.)(gamma|beta)$"), {"gamma": "weight", "beta": "bias"}
_MAX_LISTED = 40  # names of a kind in an error


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


class Shards(Mapping[str, Tensor]):
    """The tensors of a folder's safetensors files, by name; read when they are asked for.

    Files that are missing or cut off are problems, of which `problems` has all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._where: dict[str, SafetensorsFile] = {}
        listed: dict[str, str] = {}
        index = next(iter(sorted(folder.glob("*.safetensors.index.json"))), None)
        single = folder / "model.safetensors"
        if single.is_file():
            names = [single.name]
        elif index is not None:
            listed = self._read_index(index)
            names = sorted(set(listed.values()))
        else:
            names = sorted(path.name for path in folder.glob("*.safetensors"))
        if not names and not self.problems:
            self.problems.append(f"there is no *.safetensors file in {folder}")
        files = {name: file for name in names if (file := self._opened(name)) is not None}
        for name, file in files.items():
            self._where |= {key: file for key in file if listed.get(key, name) == name}
        lacking = [k for k, name in listed.items() if name in files and k not in files[name]]
        if lacking:
            self.problems.append(f"listed in the index, and not in its file: {_listed(lacking)}")

    def _read_index(self, index: Path) -> dict[str, str]:
        try:
            found = json.loads(index.read_bytes())["weight_map"]
            return {str(k): Path(str(v)).name for k, v in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.problems.append(f"{index.name} is not an index of safetensors files: {error!r}")
            return {}

    def _opened(self, name: str) -> SafetensorsFile | None:
        try:
            return SafetensorsFile(self.folder / name)
        except FileNotFoundError:
            self.problems.append(f"{name} is missing")
        except RecordError as error:
            self.problems.append(str(error))
        return None

    def shape(self, name: str) -> tuple[int, ...]:
        return self._where[name].shape(name)

    def __getitem__(self, name: str) -> Tensor:
        return self._where[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


@contextmanager
def progress_bar(shown: bool | None, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of bytes on the error stream; None: if that is a terminal."""
    began, done = time.monotonic(), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        pace = bytes_text(done / max(time.monotonic() - began, 1e-9))
        of = f"{bytes_text(done)} of {bytes_text(total)}"
        line.show(f"{label} {bar(done / max(total, 1))} {of}  {pace}/s", now=done >= total)

    with Line(sys.stderr, shown) as line:
        yield advance


# -- names ----------------------------------------------------------------------------------------


def _own_names(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by every name they have; tied ones have several."""
    return model.state_dict(keep_vars=True)


def _renamed(names: Sequence[str], own: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Names of a file as the model has them: files of a bare model lack the prefix of its body."""
    found = {}
    for name in names:
        new = _OLD_NORMS.sub(lambda m: m[1] + _NORMS[m[2]], name)
        added = f"{prefix}.{new}"
        found[name] = added if prefix and new not in own and added in own else new
    return found


def _fits(
    model: nn.Module, names: dict[str, str], shape: Callable[[str], tuple[int, ...]]
) -> tuple[dict[str, str], list[str]]:
    """Which name of the model each name of a file is loaded to, and all that does not fit."""
    own = _own_names(model)
    given = {new: old for old, new in names.items()}
    there = {id(own[name]) for name in given if name in own}
    missing = [n for n, x in own.items() if n not in given and id(x) not in there]
    ignored = getattr(model, "ignored", _COMPUTED)  # of heads for other tasks
    extra = [n for n in given if n not in own]
    unexpected = [n for n in extra if not _COMPUTED.search(n) and not ignored.search(n)]
    shapes = [
        f"{n} is {shape(old)}, and {own[n].shape} in the model"
        for n, old in given.items()
        if n in own and shape(old) != own[n].shape
    ]
    problems = []
    for kind, found in (("missing", missing), ("unexpected", unexpected), ("shapes", shapes)):
        if found:
            problems.append(f"{kind} ({len(found)}): {_listed(found)}")
    return {old: new for new, old in given.items() if new in own}, problems


# -- reading --------------------------------------------------------------------------------------


class _Quantizer:
    """Rounds linear layers as soon as all their tensors are there."""

    def __init__(self, model: nn.Module, scheme: Any, head: Any) -> None:
        self.model = model
        self.format, self.how = parse_scheme(scheme)
        self.head_format, self.head_how = parse_scheme(head)
        self.left: dict[str, set[str]] = {}
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear | Conv1D):
                self.left[name] = {n for n, _ in layer.named_parameters()}

    def loaded(self, name: str) -> None:
        """A tensor of the model has been read."""
        owner, _, own = name.rpartition(".")
        left = self.left.get(owner)
        if left is None:
            return
        left.discard(own)
        if not left:
            self.round(owner)

    def round(self, name: str) -> None:
        del self.left[name]
        layer: Any = self.model.get_submodule(name)
        layer = layer.as_linear() if isinstance(layer, Conv1D) else layer
        is_head = name.rpartition(".")[2] == "lm_head"
        how = (self.head_format, self.head_how) if is_head else (self.format, self.how)
        new = quantized_linear(layer, *how, None)
        nm.eval(*new.buffers())
        self.model.set_submodule(name, new)

    def finish(self) -> None:
        """Round what was tied to another tensor, and was not read by its own name."""
        for name in list(self.left):
            self.round(name)


def read_into(
    model: nn.Module,
    source: Mapping[str, Any],
    where: str,
    *,
    problems: Sequence[str] = (),
    shape: Callable[[str], tuple[int, ...]],
    dtype: DType | None = None,
    device: Any = None,
    quantize: Any = None,
    progress: bool | None = None,
) -> None:
    """Let a model take tensors by name, one at a time; an error names all that does not fit."""
    prefix = getattr(model, "base_prefix", "")
    names = _renamed(list(source), _own_names(model), prefix)
    fitting, found = _fits(model, names, shape)
    found = [*problems, *found]
    if found:
        head = f"{where} does not fit {type(model).__name__}:"
        raise RecordError("\n  ".join([head, *found]))
    rounds = None if quantize is None else _Quantizer(model, quantize, "int8")
    own = _own_names(model)
    blocks: dict[str, QTensor] = {}  # weights that come quantised, by their names
    total = sum(math.prod(shape(old)) * 4 for old in fitting)
    with progress_bar(progress, Path(where).name, total) as advance:
        for old, new in fitting.items():
            tensor = source[old]
            if isinstance(tensor, QTensor) and rounds is not None:
                tensor = tensor.dequantize()  # to be rounded again
            if isinstance(tensor, QTensor):
                blocks[new] = tensor if device is None else tensor.to(device)
            else:
                _take(own[new], tensor, dtype, device)
            if rounds is not None:
                del own[new]
                rounds.loaded(new)
            advance(math.prod(shape(old)) * 4)
        tied = _own_names(model)
        for new, weight in blocks.items():
            same = [name for name, x in tied.items() if x is tied[new]]
            for name in same:
                _hold_blocks(model, name, weight, where)
        if rounds is not None:
            rounds.finish()
    for value in (*model.parameters(), *model.buffers()):  # those that no file holds
        if device is not None and value.device != nm.device(device):
            replace(value, value.detach().to(device=device))


def _take(parameter: Tensor, tensor: Tensor, dtype: DType | None, device: Any) -> None:
    if tensor.dtype.is_floating and parameter.dtype.is_floating:
        tensor = tensor.to(dtype=dtype or tensor.dtype, device=device)
    else:
        tensor = tensor.to(dtype=parameter.dtype, device=device)
    nm.eval(tensor)
    replace(parameter, tensor)


def _hold_blocks(model: nn.Module, name: str, weight: QTensor, where: str) -> None:
    """Swap a layer for one that holds a weight of few bits as it is."""
    owner, _, own = name.rpartition(".")
    layer = model.get_submodule(owner)
    if own == "weight" and isinstance(layer, nn.Linear):
        model.set_submodule(owner, nn.QLinear.of(layer, weight))
    elif own == "weight" and isinstance(layer, nn.Embedding):
        model.set_submodule(owner, nn.QEmbedding.of(layer, weight))
    else:
        raise RecordError(f"{where}: {name} is in blocks of {weight.format.name}, and no matrix")
