"""Q8 blocks: a header word with the float16 scale, then int8 values, four to a word.

The layout is that of RUMUS's `quantize.wgsl`: blocks run over the elements in row-major order and
do not stop at the end of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numus as nm
from numus.quant.formats import Format, Layout, Parts, grouped, register_format
from numus.quant.packing import bitcast
from numus.shapes import Shape, size_of
from numus.tensor import Tensor


@dataclass(frozen=True)
class Q8(Format):
    """Symmetric blocks of int8."""

    block: int = 32

    def __post_init__(self) -> None:
        if self.block <= 0 or self.block % 4:
            raise ValueError(f"Q8: block={self.block} must be a positive multiple of 4")

    @property
    def name(self) -> str:
        return f"q8-b{self.block}"

    def _blocks(self, shape: Shape) -> int:
        return -(-size_of(shape) // self.block)

    def layout(self, shape: Shape) -> Layout:
        return {"blocks": ((self._blocks(shape), 1 + self.block // 4), nm.uint32)}

    def quantize(self, x: Tensor) -> Parts:
        groups = grouped(x.reshape(-1), self.block)[: self._blocks(x.shape)]
        largest = nm.max(nm.abs(groups), axis=-1, keepdims=True)
        is_zero = largest == 0
        scale = nm.where(is_zero, nm.ones_like(largest), largest / 127)
        inverse = nm.where(is_zero, 0.0, 127 / nm.where(is_zero, 1.0, largest))
        codes = nm.clip(nm.round(groups * inverse), -128, 127)
        header = bitcast(scale.astype(nm.float16), nm.uint16).astype(nm.uint32)
        fields = codes.astype(nm.int32).reshape(-1, self.block // 4, 4) & 255
        shifts = nm.arange(4, dtype=nm.uint32, device=x.device) * 8
        words = nm.sum(fields.astype(nm.uint32) << shifts, axis=-1, dtype=nm.uint32)
        return (nm.concat([header, words], axis=-1),)

    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        (blocks,) = parts
        scale = bitcast((blocks[:, :1] & 0xFFFF).astype(nm.uint16), nm.float16)
        shifts = nm.arange(4, dtype=nm.uint32, device=blocks.device) * 8
        fields = (blocks[:, 1:, None] >> shifts) & 255
        values = (fields.astype(nm.int32) ^ 128) - 128  # sign extension
        flat = values.reshape(-1, self.block).astype(nm.float32) * scale.astype(nm.float32)
        return flat.reshape(-1)[: size_of(shape)].reshape(shape)


register_format(r"q8(?:-b(\d+))?", lambda block: Q8(int(block or 32)), "q8-b128")
