"""Hugging Face's layouts of quantised weights: AWQ, GPTQ and bitsandbytes, loaded by name.

GPTQ packs eight codes along the inputs, AWQ eight along the outputs in the order 0 2 4 6 1 3 5 7;
both have zero points, GPTQ's less by one. bitsandbytes has NF4 in blocks, the first of two codes in
the high bits, with scales quantised once more, or int8 with a scale per row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import numus as nm
from numus.errors import RecordError
from numus.files import PathLike
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.quantized.layers import QLinear
from numus.nn.saving import load_safetensors
from numus.quant.integers import Integers
from numus.quant.nf4 import NF4, nf4_values
from numus.quant.packing import pack
from numus.quant.qtensor import QTensor

__all__ = ["load_pretrained_quantized"]

Array = np.ndarray[Any, Any]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which output is in a word's lowest bits, then the next …


def _fields(words: Array, axis: int, order: tuple[int, ...] = tuple(range(8))) -> Array:
    """Eight 4-bit fields of each word, joined along an axis."""
    raw = words.astype(np.uint32)
    places = np.argsort(np.array(order))
    parts = [(raw >> np.uint32(4 * int(p))) & np.uint32(15) for p in places]
    shape = list(raw.shape)
    shape[axis] *= 8
    return np.stack(parts, axis=axis + 1).reshape(shape)


def _check(name: str, ok: bool, why: str) -> None:
    if not ok:
        raise RecordError(f"{name}: {why}")


def _four_bits(name: str, state: Mapping[str, Array], layer: Linear) -> QLinear:
    """GPTQ or AWQ, by the shape of the packed weight."""
    outputs, inputs = layer.weight.shape
    words, scales = state[f"{name}.qweight"], state[f"{name}.scales"]
    packed_zeros = state[f"{name}.qzeros"]
    _check(name, scales.ndim == 2 and scales.shape[1] == outputs, f"scales are {scales.shape}")
    groups = scales.shape[0]
    _check(name, inputs % groups == 0, f"{groups} groups do not divide {inputs} inputs")
    if words.shape == (inputs, outputs // 8):
        codes, zeros = (_fields(x, 1, _AWQ_ORDER) for x in (words, packed_zeros))
    else:
        wanted = (inputs // 8, outputs)
        _check(name, words.shape == wanted, f"qweight is {words.shape}, not {wanted} of 4 bits")
        codes, zeros = _fields(words, 0), _fields(packed_zeros, 1) + 1
    _check(name, zeros.shape == scales.shape, f"qzeros are {zeros.shape}")
    order, size = None, inputs // groups
    index = state.get(f"{name}.g_idx")
    if index is not None and not np.array_equal(index, np.arange(inputs) // size):
        _check(name, bool((np.bincount(index) == size).all()), "groups of unequal sizes")
        order = np.argsort(index, kind="stable").astype(np.int32)  # groups next to each other
        codes = codes[order]
    format, shape = Integers(4, size, symmetric=False), (outputs, inputs)
    by_row = (np.ascontiguousarray(x.T) for x in (codes, scales.astype(np.float32), zeros))
    own, steps, middles = (nm.asarray(x) for x in by_row)
    parts = format.of_codes(own, steps, middles, shape)
    new = QLinear.of(layer, QTensor(format, shape, parts, layer.weight.dtype))
    new.input_order = None if order is None else nm.asarray(order)
    return new


def _nf4(name: str, state: Mapping[str, Array], layer: Linear) -> QLinear:
    own = f"{name}.weight"
    described = json.loads(state[f"{own}.quant_state.bitsandbytes__nf4"].astype(np.uint8).tobytes())
    shape, block = tuple(described["shape"]), int(described["blocksize"])
    _check(name, shape == tuple(layer.weight.shape), f"weight is {shape}")
    _check(name, shape[1] % block == 0, f"blocks of {block} do not divide rows of {shape[1]}")
    absmax = state[f"{own}.absmax"]
    if f"{own}.nested_absmax" in state:
        nested = state[f"{own}.nested_absmax"]
        wide = np.repeat(nested, int(described["nested_blocksize"]))[: absmax.size]
        values = state[f"{own}.nested_quant_map"][absmax.reshape(-1)]
        absmax = values * wide + described["nested_offset"]
    table = state.get(f"{own}.quant_map")
    if table is not None:
        _check(name, np.allclose(table, nf4_values(), atol=1e-6), "another map than NF4's")
    packed = state[own].reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(shape)
    words = pack(nm.asarray(codes.astype(np.uint32)), 4)
    scales = nm.asarray(absmax.astype(np.float32).reshape(shape[0], -1))
    q = QTensor(NF4(block, double=False), shape, (words, scales), layer.weight.dtype)
    return QLinear.of(layer, q)


def _int8(name: str, state: Mapping[str, Array], layer: Linear) -> QLinear:
    codes, scale = state[f"{name}.weight"], state[f"{name}.SCB"].astype(np.float32)
    shape = tuple(layer.weight.shape)
    _check(name, codes.shape == shape, f"weight is {codes.shape}, not {shape}")
    format = Integers(8, 0, True, nm.float32)
    given = nm.asarray((codes.astype(np.int32) + 128).astype(np.uint32))
    parts = format.of_codes(given, nm.asarray(scale[:, None] / 127), None, shape)
    return QLinear.of(layer, QTensor(format, shape, parts, layer.weight.dtype))


def load_pretrained_quantized(model: Module, weights: PathLike | Mapping[str, Any]) -> Module:
    """Weights in the layout of AWQ, GPTQ or bitsandbytes; gives back the model.

    Linear layers whose weights are quantised there become `nn.QLinear`, all else is loaded as it
    is. Names must be those of the model.

    Args:
        weights: a file of safetensors, or arrays by name.
    """
    given = weights if isinstance(weights, Mapping) else load_safetensors(weights)
    layers = {n: m for n, m in model.named_modules() if isinstance(m, Linear)}
    used: set[str] = set()
    for name, layer in layers.items():
        own = {k: v for k, v in given.items() if k.startswith(f"{name}.")}
        if f"{name}.qweight" in own:
            make = _four_bits
        elif f"{name}.weight.quant_state.bitsandbytes__nf4" in own:
            make = _nf4
        elif f"{name}.SCB" in own:
            make = _int8
        else:
            continue
        arrays = {k: np.asarray(v) for k, v in own.items() if not k.endswith(".bias")}
        try:
            new = make(name, arrays, layer)
        except KeyError as error:
            raise RecordError(f"{name}: {error.args[0]} is missing") from None
        if f"{name}.bias" in own:
            new.bias = nm.asarray(own[f"{name}.bias"])
        used |= set(own)
        model.set_submodule(name, new)
    if not used:
        raise ValueError("load_pretrained_quantized: no quantised weight has a layer's name")
    rest = {k: v for k, v in given.items() if k not in used}
    model.load_state_dict({**model.state_dict(), **rest})
    return model
