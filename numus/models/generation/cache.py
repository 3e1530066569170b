"""Key–value caches: preallocated memory of each layer, written where the new tokens belong.

Layers with a sliding window keep a ring of no more tokens than they look at. With a format of
`nm.quant`, keys and values are rounded as they are written, and unpacked inside the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numus as nm
from numus.models.language.attention import Pass
from numus.models.language.base import CacheSpec
from numus.quant.formats import Format, as_format
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

__all__ = ["KVCache"]


class _Held:
    """Keys or values of a layer, (rows, heads, slots, size), as they are or in a format's parts."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, device: Any, format: Format | None
    ) -> None:
        self.shape, self.dtype, self.format = shape, dtype, format
        if format is None:
            self.parts = [nm.zeros(shape, dtype=dtype, device=device)]
            return
        layout = format.layout(shape)
        if any(part[:-1] != shape[:-1] for part, _ in layout.values()):
            raise ValueError(
                f"a cache cannot be held as {format.name}: its groups span several tokens; "
                '"int8-row", "int4-g32" and others of integers or blocks do not'
            )
        self.parts = [nm.zeros(s, dtype=d, device=device) for s, d in layout.values()]

    def write(self, x: Tensor, slots: Tensor) -> None:
        given: tuple[Tensor, ...] = (x.astype(self.dtype, copy=False),)
        if self.format is not None:
            given = self.format.quantize(x.astype(nm.float32, copy=False))
        for part, new in zip(self.parts, given, strict=True):
            part[:, :, slots] = new

    def read(self, slots: int) -> Tensor:
        parts = tuple(p if p.shape[2] == slots else p[:, :, :slots] for p in self.parts)
        if self.format is None:
            return parts[0]
        shape = (*self.shape[:2], slots, self.shape[3])
        return QTensor(self.format, shape, parts, self.dtype).dequantize(self.dtype)

    def reorder(self, rows: Tensor) -> None:
        for part in self.parts:
            part.assign(nm.take(part, rows, axis=0))


class KVCache:
    """Keys and values of all layers for up to `length` tokens.

    Args:
        specs: heads, sizes and windows of the layers.
        longest_pass: tokens that are written at once, which a ring must hold besides its window.
        format: of `nm.quant`, as "int8-row" or "int4-g32"; None keeps `dtype`.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        rows: int,
        length: int,
        dtype: Any,
        device: Any,
        longest_pass: int = 1,
        format: Any = None,
    ) -> None:
        self.length, self.rows = length, rows
        self.format = None if format is None else as_format(format)
        self.rings: list[int | None] = []
        self._ring_of_window: dict[int | None, int | None] = {}
        self.keys, self.values = [], []
        for spec in specs:
            ring = None if spec.window is None else spec.window + longest_pass - 1
            ring = ring if ring is not None and ring < length else None
            self.rings.append(ring)
            self._ring_of_window[spec.window] = ring
            shape = (rows, spec.heads, ring or length, spec.size)
            self.keys.append(_Held(shape, dtype, device, self.format))
            self.values.append(_Held(shape, dtype, device, self.format))

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(p.nbytes for held in (*self.keys, *self.values) for p in held.parts)

    def update(self, layer: int, key: Tensor, value: Tensor, seen: Pass) -> tuple[Tensor, Tensor]:
        """Write the keys and values of a pass; gives all that it may look at."""
        ring = self.rings[layer]
        slots, count = seen.slots, seen.keys
        if ring is not None:
            slots, count = slots % ring, ring
        self.keys[layer].write(key, slots)
        self.values[layer].write(value, slots)
        return self.keys[layer].read(count), self.values[layer].read(count)

    def held_slots(self, window: int | None, seen: Pass) -> Tensor:
        """Which slot each key that `update` gives was written for; negative: none yet."""
        ring = self._ring_of_window.get(window)
        if ring is None:
            return nm.arange(seen.keys, device=seen.slots.device)
        last = seen.slots[-1:]
        return last - (last - nm.arange(ring, device=seen.slots.device)) % ring

    def reorder(self, rows: Tensor) -> None:
        """Let each row continue what another one holds (beam search)."""
        for held in (*self.keys, *self.values):
            held.reorder(rows)
