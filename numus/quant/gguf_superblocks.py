"""GGUF's K-quants: superblocks of 256 values whose scales are quantised too.

Q2_K, Q4_K and Q5_K have a scale and a minimum for each sub-block, Q3_K and Q6_K a scale alone.
Scales are fitted by least squares to the codes that they give, a few times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numus as nm
from numus.quant.formats import register_format, safe_reciprocal
from numus.quant.gguf_blocks import Blocks, extreme
from numus.quant.packing import half_from_bytes, half_to_bytes, shifted
from numus.tensor import Tensor

ROUNDS = 4  # of fitting scales to codes and codes to scales


@dataclass(frozen=True)
class Superblocks(Blocks):
    """Blocks of 256 values in sub-blocks of 16 or 32."""

    block: ClassVar[int] = 256
    sizes: ClassVar[dict[str, int]] = {
        "q2_k": 84,
        "q3_k": 110,
        "q4_k": 144,
        "q5_k": 176,
        "q6_k": 210,
    }

    # -- scale and minimum ------------------------------------------------------------------------

    def _encode_q2_k(self, groups: Tensor) -> Tensor:
        codes, scales, minima, header = _fit_affine(groups, 16, 3, 15)
        packed = _pack_fields(codes.reshape(*codes.shape[:-2], 2, 4, 32), 2)
        return nm.concat([scales | (minima << 4), packed, header], axis=-1)

    def _decode_q2_k(self, b: Tensor) -> Tensor:
        scales, packed = b[..., :16], b[..., 16:80]
        codes = shifted(packed.reshape(*b.shape[:-1], 2, 32), [0, 2, 4, 6], 3)
        codes = codes.reshape(*b.shape[:-1], 16, 16).astype(nm.float32)
        step = half_from_bytes(b[..., 80:82]) * (scales & 15).astype(nm.float32)
        low = half_from_bytes(b[..., 82:84]) * (scales >> 4).astype(nm.float32)
        return _joined(step[..., None] * codes - low[..., None])

    def _encode_q4_k(self, groups: Tensor) -> Tensor:
        codes, scales, minima, header = _fit_affine(groups, 32, 15, 63)
        packed = _pack_fields(codes.reshape(*codes.shape[:-2], 4, 2, 32), 4)
        return nm.concat([header, _pack_six_bits(scales, minima), packed], axis=-1)

    def _decode_q4_k(self, b: Tensor) -> Tensor:
        codes = shifted(b[..., 16:].reshape(*b.shape[:-1], 4, 32), [0, 4], 15)
        return _affine(b, codes.reshape(*b.shape[:-1], 8, 32))

    def _encode_q5_k(self, groups: Tensor) -> Tensor:
        codes, scales, minima, header = _fit_affine(groups, 32, 31, 63)
        low = _pack_fields((codes & 15).reshape(*codes.shape[:-2], 4, 2, 32), 4)
        high = _pack_fields((codes >> 4)[..., None, :, :], 1)
        return nm.concat([header, _pack_six_bits(scales, minima), high, low], axis=-1)

    def _decode_q5_k(self, b: Tensor) -> Tensor:
        low = shifted(b[..., 48:].reshape(*b.shape[:-1], 4, 32), [0, 4], 15)
        high = shifted(b[..., 16:48], list(range(8)), 1)
        return _affine(b, low.reshape(*b.shape[:-1], 8, 32) | (high << 4))

    # -- scale alone ------------------------------------------------------------------------------

    def _encode_q3_k(self, groups: Tensor) -> Tensor:
        codes, scales, header = _fit_symmetric(groups, 4, 32)  # codes 0 … 7, scales 0 … 63
        low = _pack_fields((codes & 3).reshape(*codes.shape[:-2], 2, 4, 32), 2)
        high = _pack_fields((codes >> 2).reshape(*codes.shape[:-2], 1, 8, 32), 1)
        scale_low = _pack_fields((scales & 15).reshape(*scales.shape[:-1], 1, 2, 8), 4)
        scale_high = _pack_fields((scales >> 4).reshape(*scales.shape[:-1], 1, 4, 4), 2)
        return nm.concat([high, low, scale_low, scale_high, header], axis=-1)

    def _decode_q3_k(self, b: Tensor) -> Tensor:
        low = shifted(b[..., 32:96].reshape(*b.shape[:-1], 2, 32), [0, 2, 4, 6], 3)
        high = shifted(b[..., :32], list(range(8)), 1)
        codes = low.reshape(*b.shape[:-1], 16, 16) | (high.reshape(*b.shape[:-1], 16, 16) << 2)
        scale_low = shifted(b[..., 96:104], [0, 4], 15).reshape(*b.shape[:-1], 16)
        scale_high = shifted(b[..., 104:108], [0, 2, 4, 6], 3).reshape(*b.shape[:-1], 16)
        scales = (scale_low | (scale_high << 4)).astype(nm.float32) - 32
        step = half_from_bytes(b[..., 108:110]) * scales
        return _joined(step[..., None] * (codes.astype(nm.float32) - 4))

    def _encode_q6_k(self, groups: Tensor) -> Tensor:
        codes, scales, header = _fit_symmetric(groups, 32, 128)  # codes 0 … 63, scales 0 … 255
        halves = codes.reshape(*codes.shape[:-2], 2, 4, 32)
        low = halves & 15
        low = low[..., :2, :] | (low[..., 2:, :] << 4)
        high = _pack_fields(halves >> 4, 2)
        low = low.reshape(*codes.shape[:-2], 128)
        return nm.concat([low, high, scales ^ 128, header], axis=-1)

    def _decode_q6_k(self, b: Tensor) -> Tensor:
        low = shifted(b[..., :128].reshape(*b.shape[:-1], 2, 64), [0, 4], 15)
        high = shifted(b[..., 128:192].reshape(*b.shape[:-1], 2, 32), [0, 2, 4, 6], 3)
        codes = low.reshape(*b.shape[:-1], 256) | (high.reshape(*b.shape[:-1], 256) << 4)
        scales = (b[..., 192:208].astype(nm.int32) ^ 128) - 128
        step = half_from_bytes(b[..., 208:210]) * scales.astype(nm.float32)
        values = codes.reshape(*b.shape[:-1], 16, 16).astype(nm.float32) - 32
        return _joined(step[..., None] * values)


def _joined(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:-2], 256)


def _pack_fields(codes: Tensor, bits: int) -> Tensor:
    """(..., runs, fields, bytes) with field after field in the bits of each byte, runs joined."""
    fields = codes.shape[-2]
    shifts = nm.arange(fields, dtype=nm.uint8, device=codes.device) * bits
    packed = nm.sum(codes << shifts[:, None], axis=-2, dtype=nm.uint8)
    return packed.reshape(*packed.shape[:-2], packed.shape[-2] * packed.shape[-1])


def _pack_six_bits(scales: Tensor, minima: Tensor) -> Tensor:
    """Eight scales and eight minima of 6 bits in 12 bytes."""
    low = (scales[..., :4] & 63) | ((scales[..., 4:] >> 4) << 6)
    middle = (minima[..., :4] & 63) | ((minima[..., 4:] >> 4) << 6)
    high = (scales[..., 4:] & 15) | ((minima[..., 4:] & 15) << 4)
    return nm.concat([low, middle, high], axis=-1)


def _affine(b: Tensor, codes: Tensor) -> Tensor:
    """Values of Q4_K and Q5_K: codes with the scales and minima in bytes 0 to 16."""
    low, middle, high = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scales = nm.concat([low & 63, (high & 15) | ((low >> 2) & 48)], axis=-1)
    minima = nm.concat([middle & 63, (high >> 4) | ((middle >> 2) & 48)], axis=-1)
    step = half_from_bytes(b[..., 0:2]) * scales.astype(nm.float32)
    least = half_from_bytes(b[..., 2:4]) * minima.astype(nm.float32)
    return _joined(step[..., None] * codes.astype(nm.float32) - least[..., None])


# -- fitting --------------------------------------------------------------------------------------


def _fit_affine(
    groups: Tensor, size: int, top: int, scale_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes of values ~ scale * code - minimum, the quantised scales and minima, and the header."""
    x = groups.reshape(*groups.shape[:-1], 256 // size, size)
    low = nm.minimum(nm.min(x, axis=-1, keepdims=True), 0.0)
    scale = (nm.max(x, axis=-1, keepdims=True) - low) / top
    for _ in range(ROUNDS):
        codes = nm.clip(nm.round((x - low) * safe_reciprocal(scale)), 0, top)
        mean_c, mean_x = nm.mean(codes, axis=-1, keepdims=True), nm.mean(x, axis=-1, keepdims=True)
        spread = nm.sum((codes - mean_c) ** 2, axis=-1, keepdims=True)
        cross = nm.sum((codes - mean_c) * (x - mean_x), axis=-1, keepdims=True)
        slope = nm.where(spread > 0, cross * safe_reciprocal(spread), scale)
        slope = nm.where(slope > 0, slope, scale)
        low = nm.minimum(mean_x - slope * mean_c, 0.0)
        scale = slope
    scale, low = scale[..., 0], low[..., 0]
    step = _half(nm.max(scale, axis=-1, keepdims=True) / scale_top)
    low_step = _half(nm.max(-low, axis=-1, keepdims=True) / scale_top)
    scales = nm.clip(nm.round(scale * safe_reciprocal(step)), 0, scale_top)
    minima = nm.clip(nm.round(-low * safe_reciprocal(low_step)), 0, scale_top)
    stored, stored_low = (step * scales)[..., None], (low_step * minima)[..., None]
    codes = nm.clip(nm.round((x + stored_low) * safe_reciprocal(stored)), 0, top)
    header = nm.concat([half_to_bytes(step), half_to_bytes(low_step)], axis=-1)
    as_bytes = (codes, scales, minima)
    return (*(v.astype(nm.uint8) for v in as_bytes), header)  # type: ignore[return-value]


def _fit_symmetric(groups: Tensor, middle: int, scale_middle: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of values ~ scale * (code - middle), the signed scales plus `scale_middle`, the header.

    The extreme value of a sub-block is the lowest code, which reaches one further.
    """
    x = groups.reshape(*groups.shape[:-1], 16, 16)
    scale = extreme(x) / -middle
    for _ in range(ROUNDS):
        codes = nm.clip(nm.round(x * safe_reciprocal(scale)), -middle, middle - 1)
        norm = nm.sum(codes * codes, axis=-1, keepdims=True)
        fitted = nm.sum(codes * x, axis=-1, keepdims=True) * safe_reciprocal(norm)
        scale = nm.where(norm > 0, fitted, scale)
    scale = scale[..., 0]
    step = _half(extreme(scale) / -scale_middle)
    scales = nm.clip(nm.round(scale * safe_reciprocal(step)), -scale_middle, scale_middle - 1)
    stored = (step * scales)[..., None]
    codes = nm.clip(nm.round(x * safe_reciprocal(stored)), -middle, middle - 1) + middle
    signed = (scales + scale_middle).astype(nm.uint8)
    return codes.astype(nm.uint8), signed, half_to_bytes(step)


def _half(x: Tensor) -> Tensor:
    """Rounded to float16."""
    return x.astype(nm.float16).astype(nm.float32)


register_format(r"(q[2-6]_k)", Superblocks, "q2_k … q6_k")
