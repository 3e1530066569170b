"""Integers with a scale, and perhaps a zero point, for each group, row or tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numus as nm
from numus.dtypes import DType
from numus.quant.formats import (
    Format,
    Layout,
    Parts,
    grouped,
    register_format,
    safe_reciprocal,
    ungrouped,
)
from numus.quant.packing import CHUNK, pack, unpack
from numus.shapes import Shape
from numus.tensor import Tensor


@dataclass(frozen=True)
class Integers(Format):
    """Integers of 2, 3, 4 or 8 bits.

    Args:
        group: values that share a scale along the last axis; 0: those of a row (per channel);
            -1: all (per tensor).
        symmetric: codes stand for -2**(bits-1) … 2**(bits-1)-1 times the scale; else for
            (code - zero) * scale, with a zero point for each group.
    """

    bits: int = 4
    group: int = 128
    symmetric: bool = True
    scale_dtype: DType = nm.float16

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4, 8):
            raise ValueError(f"Integers: bits={self.bits} must be 2, 3, 4 or 8")
        if self.group > 0 and self.group % CHUNK:
            raise ValueError(f"Integers: group={self.group} must be a multiple of {CHUNK}")
        if self.group < -1:
            raise ValueError(f"Integers: group={self.group} must be positive, 0 (rows) or -1 (all)")
        if self.scale_dtype not in (nm.float16, nm.float32):
            raise ValueError(f"Integers: scales are float16 or float32, not {self.scale_dtype}")

    @property
    def name(self) -> str:
        span = {0: "-row", -1: "-tensor"}.get(self.group, f"-g{self.group}")
        wide = "" if self.scale_dtype is nm.float16 else "-f32"
        return f"{'' if self.symmetric else 'u'}int{self.bits}{span}{wide}"

    @property
    def group_size(self) -> int:
        return self.group if self.group > 0 else 1

    def _groups(self, shape: Shape) -> tuple[int, int]:
        """Groups of a row, and codes that are stored for it."""
        if self.group > 0:
            count = -(-shape[-1] // self.group)
            return count, count * self.group
        return 1, -(-shape[-1] // CHUNK) * CHUNK

    def layout(self, shape: Shape) -> Layout:
        count, stored = self._groups(shape)
        scales = (1,) * len(shape) if self.group == -1 else (*shape[:-1], count)
        found: Layout = {
            "codes": ((*shape[:-1], stored // CHUNK * self.bits), nm.uint32),
            "scales": (scales, self.scale_dtype),
        }
        if not self.symmetric:
            found["zeros"] = (scales, nm.uint8)
        return found

    def quantize(self, x: Tensor) -> Parts:
        count, stored = self._groups(x.shape)
        groups = grouped(x, stored // count)  # (..., groups, size)
        axes = None if self.group == -1 else -1
        top = (1 << self.bits) - 1
        if self.symmetric:
            largest = nm.max(nm.abs(groups), axis=axes, keepdims=True)
            scales = (largest / (top >> 1)).astype(self.scale_dtype)
            by = safe_reciprocal(scales.astype(nm.float32))
            codes = nm.clip(nm.round(groups * by) + (top + 1) // 2, 0, top)
        else:
            low = nm.minimum(nm.min(groups, axis=axes, keepdims=True), 0.0)
            high = nm.maximum(nm.max(groups, axis=axes, keepdims=True), 0.0)
            scales = ((high - low) / top).astype(self.scale_dtype)
            by = safe_reciprocal(scales.astype(nm.float32))
            zeros = nm.clip(nm.round(-low * by), 0, top)
            codes = nm.clip(nm.round(groups * by) + zeros, 0, top)
        words = pack(codes.reshape(*x.shape[:-1], stored).astype(nm.uint32), self.bits)
        shape = self.layout(x.shape)["scales"][0]
        if self.symmetric:
            return words, scales.reshape(shape)
        return words, scales.reshape(shape), zeros.reshape(shape).astype(nm.uint8)

    def of_codes(self, codes: Tensor, scales: Tensor, zeros: Tensor | None, shape: Shape) -> Parts:
        """The parts of codes that were found elsewhere, in the shape of the values.

        Args:
            codes: 0 … 2**bits - 1; of a symmetric format, the value plus 2**(bits - 1).
            scales, zeros: for each group, (..., groups).
        """
        stored = self._groups(shape)[1]
        short = stored - shape[-1]
        if short:
            middle = (1 << (self.bits - 1)) if self.symmetric else 0
            codes = nm.pad(
                codes, [(0, 0)] * (codes.ndim - 1) + [(0, short)], constant_values=middle
            )
        words = pack(codes.astype(nm.uint32), self.bits)
        scales = scales.astype(self.scale_dtype)
        if self.symmetric:
            return words, scales
        assert zeros is not None
        return words, scales, zeros.astype(nm.uint8)

    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        count, stored = self._groups(shape)
        codes = unpack(parts[0], self.bits).reshape(*shape[:-1], count, stored // count)
        scales = parts[1].astype(nm.float32, copy=False)[..., None]
        if self.symmetric:
            values = codes.astype(nm.int32) - (1 << (self.bits - 1))
        else:
            values = codes.astype(nm.int32) - parts[2].astype(nm.int32)[..., None]
        return ungrouped(values.astype(nm.float32) * scales, shape)


def _integers(unsigned: str, bits: str, span: str | None, wide: str | None) -> Integers:
    group = {None: 128, "row": 0, "tensor": -1}.get(span)
    if group is None:
        group = int(str(span)[1:])
    return Integers(int(bits), group, not unsigned, nm.float32 if wide else nm.float16)


register_format(
    r"(u?)int([2348])(?:-(g\d+|row|tensor))?(-f32)?", _integers, "int4-g128, uint4-g64, int8-row"
)
