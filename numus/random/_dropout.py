"""Dropout."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.functions._base import method, node_of, require, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.random import _bits
from numus.random._keys import Words, key_words
from numus.random._sampling import below, threshold
from numus.runtime.devices import Device
from numus.shapes import Shape, as_shape, size_of
from numus.tensor import Tensor


def _keep_mask(key: Words, shape: Shape, rate: float, device: Device) -> Node:
    """The mask of kept elements. One counter per element, its second word unused: the mask is a
    function of the element's index, recomputed by every kernel and never stored.
    """
    first, _ = _bits.words(key, size_of(shape), device)
    return reshape(below(first, (1 << 32) - threshold("dropout", rate)), shape)


def dropout_mask(
    shape: Any, rate: float = 0.5, *, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """Booleans that are false with probability `rate`: the elements that dropout keeps."""
    source = key_words("dropout_mask", key)
    dev = _bits.device_of(device, *source)
    return wrap(_keep_mask(source, as_shape(shape, "dropout_mask"), rate, dev))


@method()
def dropout(
    x: Any, /, p: float = 0.5, training: bool = True, *, key: Tensor | None = None
) -> Tensor:
    """x with each element zero with probability p, the others divided by 1 - p.

    Outside training it is x itself.
    """
    node = require("dropout", node_of(x, "dropout"), "float", "complex")
    threshold("dropout", p)
    if not training or p == 0:
        return wrap(node)
    source = key_words("dropout", key)
    kept = _keep_mask(source, node.shape, p, _bits.device_of(None, node, *source))
    wide = ew.cast(node, dt.compute_dtype(node.dtype))
    scaled = ew.mul(wide, constant(0.0 if p == 1 else 1 / (1 - p), wide.dtype))
    return wrap(ew.cast(ew.where(kept, scaled, constant(0.0, wide.dtype)), node.dtype))
