"""Key–value caches of few bits: each token's keys and values are rounded as they are appended."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.quant.formats import as_format
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

__all__ = ["QuantizedKVCache"]


class QuantizedKVCache:
    """Keys and values of attention in int8 or int4, groups along the head dimension.

    >>> cache = nm.nn.QuantizedKVCache("int8-g32")
    >>> keys, values = cache.append(nm.ones((1, 2, 3, 32)), nm.ones((1, 2, 3, 32)))
    >>> keys.shape, len(cache)
    ((1, 2, 3, 32), 3)

    Args:
        format: of integers with groups or rows: "int8-row", "int4-g32", "uint4-g64" …
    """

    def __init__(self, format: Any = "int8-row") -> None:
        self.format = as_format(format)
        self._held: tuple[QTensor, QTensor] | None = None

    def __len__(self) -> int:
        """Tokens that are held."""
        return 0 if self._held is None else self._held[0].stored_shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        return 0 if self._held is None else sum(q.nbytes for q in self._held)

    def append(self, keys: Any, values: Any) -> tuple[Tensor, Tensor]:
        """Add tokens, (..., heads, tokens, size); gives all keys and values that are held."""
        given = []
        for x in (nm.asarray(keys), nm.asarray(values)):
            if x.ndim < 2:
                raise ShapeError(f"QuantizedKVCache: (…, tokens, size), not shape {x.shape}")
            given.append(nm.quant.quantize(x, self.format))
        if self._held is not None:
            given = [_joined(a, b) for a, b in zip(self._held, given, strict=True)]
        self._held = (given[0], given[1])
        return given[0].dequantize(), given[1].dequantize()


def _joined(a: QTensor, b: QTensor) -> QTensor:
    rows = a.stored_shape[:-1]
    layout = a.format.layout(a.stored_shape)
    if any(shape[:-1] != rows for shape, _ in layout.values()):
        raise ValueError(f"QuantizedKVCache: {a.format.name} cannot be appended to")
    same = a.stored_shape[:-2] == b.stored_shape[:-2] and a.stored_shape[-1] == b.stored_shape[-1]
    if not same:
        raise ShapeError(f"QuantizedKVCache holds {a.shape}, and was given {b.shape}")
    parts = tuple(nm.concat([p, q], axis=-2) for p, q in zip(a.parts, b.parts, strict=True))
    tokens = a.stored_shape[-2] + b.stored_shape[-2]
    shape = (*a.stored_shape[:-2], tokens, a.stored_shape[-1])
    return QTensor(a.format, shape, parts, a.dtype)
