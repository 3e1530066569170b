"""Dropout: elements left out at random."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.functions._base import method, node_of, require, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.random import _words
from numus.random._draws import below, threshold
from numus.random._keys import Words, words_of
from numus.runtime.devices import Device
from numus.shapes import Shape, as_shape, size_of
from numus.tensor import Tensor


def _kept(key: Words, shape: Shape, rate: float, place: Device) -> Node:
    """Which elements stay. One counter each, its second word unused: so the mask is an expression
    of the element's own place, which every kernel that needs it computes anew and none stores.
    """
    first, _ = _words.words(key, size_of(shape), place)
    return reshape(below(first, (1 << 32) - threshold("dropout", rate)), shape)


def dropout_mask(
    shape: Any, rate: float = 0.5, *, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """Booleans that are false with probability `rate`: the elements that dropout keeps."""
    source = words_of("dropout_mask", key)
    place = _words.device_of(device, *source)
    return wrap(_kept(source, as_shape(shape, "dropout_mask"), rate, place))


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
    source = words_of("dropout", key)
    kept = _kept(source, node.shape, p, _words.device_of(None, node, *source))
    wide = ew.cast(node, dt.compute_dtype(node.dtype))
    scaled = ew.mul(wide, constant(0.0 if p == 1 else 1 / (1 - p), wide.dtype))
    return wrap(ew.cast(ew.where(kept, scaled, constant(0.0, wide.dtype)), node.dtype))
