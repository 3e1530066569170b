"""Small floats with scales: FP8 in blocks, and the microscaling formats of OCP and NVIDIA."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

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
from numus.quant.packing import bitcast, lookup, nearest, pack, unpack
from numus.shapes import Shape
from numus.tensor import Tensor

LARGEST = {nm.float8_e4m3fn: 448.0, nm.float8_e5m2: 57344.0}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # FP4, without its sign
LARGEST_E2M1 = 6.0


@dataclass(frozen=True)
class BlockFP8(Format):
    """float8 values with a float32 scale for each block of the last two axes."""

    dtype: DType = nm.float8_e4m3fn
    block: int = 128

    @property
    def name(self) -> str:
        return f"fp8-{'e4m3' if self.dtype is nm.float8_e4m3fn else 'e5m2'}-b{self.block}"

    @property
    def group_size(self) -> int:
        return self.block

    def layout(self, shape: Shape) -> Layout:
        if len(shape) < 2:
            raise ValueError(f"{self.name} has blocks of two axes, and the shape is {shape}")
        blocks = (*shape[:-2], *(-(-n // self.block) for n in shape[-2:]))
        return {"codes": (shape, self.dtype), "scales": (blocks, nm.float32)}

    def _spread(self, scales: Tensor, shape: Shape) -> Tensor:
        """The scale of each element."""
        wide = nm.repeat(nm.repeat(scales, self.block, axis=-1), self.block, axis=-2)
        return wide[..., : shape[-2], : shape[-1]]

    def quantize(self, x: Tensor) -> Parts:
        self.layout(x.shape)
        rows = nm.max(nm.abs(grouped(x, self.block)), axis=-1)
        blocks = nm.max(grouped(rows.mT, self.block), axis=-1).mT
        scales = blocks / LARGEST[self.dtype]
        codes = x * self._spread(safe_reciprocal(scales), x.shape)
        return codes.astype(self.dtype), scales

    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        return parts[0].astype(nm.float32) * self._spread(parts[1], shape)


def _encode_e2m1(x: Tensor) -> Tensor:
    """Codes of FP4: the nearest magnitude, of two as near the even code, and the sign in bit 3."""
    magnitude = nm.abs(x)
    code = nearest(magnitude, E2M1)
    odd = (code & 1) != 0  # ties went to the lower code: those between an odd and an even go up
    ties = nm.zeros_like(x, dtype=nm.bool)
    for low, high in pairwise(E2M1):
        ties = ties | (magnitude == (low + high) / 2)
    code = nm.where(odd & ties, code + 1, code)
    return (code | (nm.signbit(x).astype(nm.uint8) << 3)).astype(nm.uint32)


def _decode_e2m1(codes: Tensor) -> Tensor:
    return lookup(codes, [*E2M1, *(-v for v in E2M1)])


def _e8m0(largest: Tensor, top_exponent: int) -> Tensor:
    """Codes of power-of-two scales: of the largest magnitude, less that of the element format."""
    exponent = (bitcast(largest.astype(nm.float32), nm.uint32) >> 23).astype(nm.int32)
    return nm.clip(exponent - top_exponent, 0, 254).astype(nm.uint8)


def _decode_e8m0(codes: Tensor) -> Tensor:
    """2**(code - 127), and NaN for 255."""
    bits = codes.astype(nm.uint32)
    bits = nm.where(bits == 0, 1 << 22, nm.where(bits == 255, 0x7FC00000, bits << 23))
    return bitcast(bits.astype(nm.uint32, copy=False), nm.float32)


@dataclass(frozen=True)
class MX(Format):
    """OCP microscaling: groups of 32 with a power-of-two scale, elements FP8 or FP4."""

    element: str = "fp4"  # fp4, fp8 (e4m3) or fp8-e5m2

    @property
    def name(self) -> str:
        return f"mx{self.element}"

    @property
    def group_size(self) -> int:
        return 32

    @property
    def _dtype(self) -> DType:
        return nm.float8_e5m2 if self.element == "fp8-e5m2" else nm.float8_e4m3fn

    def layout(self, shape: Shape) -> Layout:
        count = -(-shape[-1] // 32)
        scales = ((*shape[:-1], count), nm.uint8)
        if self.element == "fp4":
            return {"codes": ((*shape[:-1], 4 * count), nm.uint32), "scales": scales}
        return {"codes": ((*shape[:-1], 32 * count), self._dtype), "scales": scales}

    def quantize(self, x: Tensor) -> Parts:
        groups = grouped(x, 32)
        largest = nm.max(nm.abs(groups), axis=-1, keepdims=True)
        top = {"fp4": 2, "fp8": 8, "fp8-e5m2": 15}[self.element]
        scales = _e8m0(largest, top)
        scaled = groups / _decode_e8m0(scales)
        codes_shape, codes_dtype = self.layout(x.shape)["codes"]
        if self.element == "fp4":
            codes = pack(_encode_e2m1(scaled), 4)
        else:
            limit = LARGEST[self._dtype]
            codes = nm.clip(scaled, -limit, limit).astype(codes_dtype)
        return codes.reshape(codes_shape), scales[..., 0]

    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        codes, scales = parts
        if self.element == "fp4":
            values = _decode_e2m1(unpack(codes, 4))
        else:
            values = codes.astype(nm.float32)
        return ungrouped(values.reshape(*scales.shape, 32) * _decode_e8m0(scales)[..., None], shape)


@dataclass(frozen=True)
class NVFP4(Format):
    """NVIDIA's FP4: groups of 16 with an e4m3 scale, and one float32 scale for the tensor."""

    @property
    def name(self) -> str:
        return "nvfp4"

    @property
    def group_size(self) -> int:
        return 32  # two groups fill whole words

    def layout(self, shape: Shape) -> Layout:
        count = -(-shape[-1] // 32)
        return {
            "codes": ((*shape[:-1], 4 * count), nm.uint32),
            "scales": ((*shape[:-1], 2 * count), nm.float8_e4m3fn),
            "scale": ((1,) * len(shape), nm.float32),
        }

    def quantize(self, x: Tensor) -> Parts:
        layout = self.layout(x.shape)
        groups = grouped(grouped(x, 32).reshape(*x.shape[:-1], -1), 16)
        largest = nm.max(nm.abs(groups), axis=-1, keepdims=True)
        scale = nm.max(largest) / (LARGEST_E2M1 * LARGEST[nm.float8_e4m3fn])
        scales = (largest / LARGEST_E2M1 * safe_reciprocal(scale)).astype(nm.float8_e4m3fn)
        codes = _encode_e2m1(groups * safe_reciprocal(scales.astype(nm.float32) * scale))
        words = pack(codes.reshape(*x.shape[:-1], -1), 4)
        return words, scales[..., 0], scale.reshape(layout["scale"][0])

    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        codes, scales, scale = parts
        values = _decode_e2m1(unpack(codes, 4)).reshape(*scales.shape, 16)
        return ungrouped(values * (scales.astype(nm.float32) * scale)[..., None], shape)


register_format(
    r"fp8(?:-(e4m3|e5m2))?(?:-b(\d+))?",
    lambda kind, block: BlockFP8(
        nm.float8_e5m2 if kind == "e5m2" else nm.float8_e4m3fn, int(block or 128)
    ),
    "fp8-e4m3-b128",
)
register_format(r"mx(fp4|fp8|fp8-e5m2)", MX, "mxfp4, mxfp8")
register_format(r"nvfp4", NVFP4, "nvfp4")
