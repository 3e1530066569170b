"""GGUF's blocks of 32 values: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and IQ4_NL, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numus as nm
from numus.quant.formats import (
    Format,
    Layout,
    Parts,
    grouped,
    register_format,
    safe_reciprocal,
    ungrouped,
)
from numus.quant.packing import half_from_bytes, half_to_bytes, lookup, nearest, shifted
from numus.shapes import Shape
from numus.tensor import Tensor

IQ4_VALUES = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


@dataclass(frozen=True)
class Blocks(Format):
    """A format of blocks of bytes along the last axis."""

    kind: str

    block: ClassVar[int] = 32  # values of a block
    sizes: ClassVar[dict[str, int]] = {
        "q4_0": 18,
        "q4_1": 20,
        "q5_0": 22,
        "q5_1": 24,
        "q8_0": 34,
        "iq4_nl": 18,
    }

    @property
    def name(self) -> str:
        return self.kind

    @property
    def group_size(self) -> int:
        return self.block

    def layout(self, shape: Shape) -> Layout:
        count = -(-shape[-1] // self.block)
        return {"blocks": ((*shape[:-1], count * self.sizes[self.kind]), nm.uint8)}

    def quantize(self, x: Tensor) -> Parts:
        groups = grouped(x, self.block)
        encoded = getattr(self, f"_encode_{self.kind}")(groups)
        return (encoded.reshape(self.layout(x.shape)["blocks"][0]),)

    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        size = self.sizes[self.kind]
        blocks = parts[0].reshape(*shape[:-1], parts[0].shape[-1] // size, size)
        return ungrouped(getattr(self, f"_decode_{self.kind}")(blocks), shape)


def extreme(groups: Tensor) -> Tensor:
    """The value of largest magnitude, with its sign; the first of several."""
    index = nm.argmax(nm.abs(groups), axis=-1, keepdims=True)
    return nm.take_along_axis(groups, index, axis=-1)


def _nibbles(codes: Tensor) -> Tensor:
    """The first half of a block in the low bits, the second in the high bits."""
    return (codes[..., :16] & 15) | (codes[..., 16:] << 4)


def _from_nibbles(packed: Tensor) -> Tensor:
    fields = shifted(packed, [0, 4], 15)
    return fields.reshape(*packed.shape[:-1], 32)


def _fifth_bits(codes: Tensor) -> Tensor:
    """Bit 4 of 32 codes in four bytes."""
    bits = (codes >> 4).reshape(*codes.shape[:-1], 4, 8)
    shifts = nm.arange(8, dtype=nm.uint8, device=codes.device)
    return nm.sum(bits << shifts, axis=-1, dtype=nm.uint8)


def _from_fifth_bits(packed: Tensor) -> Tensor:
    shifts = nm.arange(8, dtype=nm.uint8, device=packed.device)
    bits = (packed[..., None] >> shifts) & 1
    return bits.reshape(*packed.shape[:-1], 32) << 4


def _truncated(x: Tensor, top: int) -> Tensor:
    return nm.clip(nm.trunc(x), 0, top).astype(nm.uint8)


class Symmetric(Blocks):
    """A float16 scale and codes around the middle: the extreme value becomes the lowest code."""

    def _signed(self, groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        middle = 1 << (bits - 1)
        scale = extreme(groups) / -middle
        codes = _truncated(groups * safe_reciprocal(scale) + (middle + 0.5), 2 * middle - 1)
        return half_to_bytes(scale), codes

    def _encode_q4_0(self, groups: Tensor) -> Tensor:
        scale, codes = self._signed(groups, 4)
        return nm.concat([scale, _nibbles(codes)], axis=-1)

    def _decode_q4_0(self, b: Tensor) -> Tensor:
        codes = _from_nibbles(b[..., 2:]).astype(nm.float32) - 8
        return half_from_bytes(b[..., :2]) * codes

    def _encode_q5_0(self, groups: Tensor) -> Tensor:
        scale, codes = self._signed(groups, 5)
        return nm.concat([scale, _fifth_bits(codes), _nibbles(codes)], axis=-1)

    def _decode_q5_0(self, b: Tensor) -> Tensor:
        codes = _from_nibbles(b[..., 6:]) | _from_fifth_bits(b[..., 2:6])
        return half_from_bytes(b[..., :2]) * (codes.astype(nm.float32) - 16)

    def _encode_q8_0(self, groups: Tensor) -> Tensor:
        scale = nm.max(nm.abs(groups), axis=-1, keepdims=True) / 127
        scaled = groups * safe_reciprocal(scale)
        magnitude = nm.abs(scaled)
        whole = nm.floor(magnitude)
        rounded = whole + nm.floor(2 * (magnitude - whole))  # halves away from zero
        codes = (nm.sign(scaled) * rounded).astype(nm.int32) & 255
        return nm.concat([half_to_bytes(scale), codes.astype(nm.uint8)], axis=-1)

    def _decode_q8_0(self, b: Tensor) -> Tensor:
        codes = (b[..., 2:].astype(nm.int32) ^ 128) - 128
        return codes.astype(nm.float32) * half_from_bytes(b[..., :2])

    def _encode_iq4_nl(self, groups: Tensor) -> Tensor:
        scale = extreme(groups) / IQ4_VALUES[0]
        codes = nearest(groups * safe_reciprocal(scale), [float(v) for v in IQ4_VALUES])
        values = lookup(codes, [float(v) for v in IQ4_VALUES])
        weights = groups * groups  # the best scale for these codes, large values first
        best = nm.sum(weights * values * groups, axis=-1, keepdims=True) * safe_reciprocal(
            nm.sum(weights * values * values, axis=-1, keepdims=True)
        )
        return nm.concat([half_to_bytes(best), _nibbles(codes)], axis=-1)

    def _decode_iq4_nl(self, b: Tensor) -> Tensor:
        values = lookup(_from_nibbles(b[..., 2:]), [float(v) for v in IQ4_VALUES])
        return half_from_bytes(b[..., :2]) * values


class Affine(Blocks):
    """A float16 scale and a float16 minimum."""

    def _affine(self, groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        top = (1 << bits) - 1
        low = nm.min(groups, axis=-1, keepdims=True)
        scale = (nm.max(groups, axis=-1, keepdims=True) - low) / top
        codes = _truncated((groups - low) * safe_reciprocal(scale) + 0.5, top)
        return nm.concat([half_to_bytes(scale), half_to_bytes(low)], axis=-1), codes

    def _encode_q4_1(self, groups: Tensor) -> Tensor:
        header, codes = self._affine(groups, 4)
        return nm.concat([header, _nibbles(codes)], axis=-1)

    def _decode_q4_1(self, b: Tensor) -> Tensor:
        codes = _from_nibbles(b[..., 4:]).astype(nm.float32)
        return half_from_bytes(b[..., :2]) * codes + half_from_bytes(b[..., 2:4])

    def _encode_q5_1(self, groups: Tensor) -> Tensor:
        header, codes = self._affine(groups, 5)
        return nm.concat([header, _fifth_bits(codes), _nibbles(codes)], axis=-1)

    def _decode_q5_1(self, b: Tensor) -> Tensor:
        codes = _from_nibbles(b[..., 8:]) | _from_fifth_bits(b[..., 4:8])
        values = codes.astype(nm.float32)
        return half_from_bytes(b[..., :2]) * values + half_from_bytes(b[..., 2:4])


register_format(r"(q4_0|q5_0|q8_0|iq4_nl)", Symmetric, "q4_0, q5_0, q8_0, iq4_nl")
register_format(r"(q4_1|q5_1)", Affine, "q4_1, q5_1")
