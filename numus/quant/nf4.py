"""NF4: quantiles of a normal distribution (Dettmers et al., QLoRA), scales quantised too."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

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
from numus.quant.packing import CHUNK, lookup, nearest, pack, unpack
from numus.shapes import Shape, size_of
from numus.tensor import Tensor

SCALE_BLOCK = 256  # scales that share theirs


@functools.cache
def nf4_values() -> list[float]:
    """The 16 values: quantiles of both halves of a normal distribution, and 0.

    >>> [round(v, 3) for v in nf4_values()][:4]
    [-1.0, -0.696, -0.525, -0.395]
    """
    quantile = NormalDist().inv_cdf
    end = 0.5 * ((1 - 1 / 30) + (1 - 1 / 32))  # of probability, so that the tails stay finite
    upper = [quantile(end + (0.5 - end) * i / 8) for i in range(8)]
    lower = [-quantile(end + (0.5 - end) * i / 7) for i in range(7)]
    return sorted(v / upper[0] for v in [*lower, 0.0, *upper])


@functools.cache
def _dynamic_values() -> list[float]:
    """256 signed values whose exponents are unary: bitsandbytes' map for quantised scales."""
    found = [0.0, 1.0]
    for exponent in range(7):
        steps = 1 << exponent
        edges = [0.1 + 0.9 * i / steps for i in range(steps + 1)]
        means = [(a + b) / 2 for a, b in pairwise(edges)]
        found += [sign * 10.0 ** (exponent - 6) * m for m in means for sign in (1, -1)]
    return sorted(found)


@dataclass(frozen=True)
class NF4(Format):
    """4-bit normal floats in groups; `double` quantises the scales, 256 of them to a scale."""

    group: int = 64
    double: bool = True

    def __post_init__(self) -> None:
        if self.group <= 0 or self.group % CHUNK:
            raise ValueError(f"NF4: group={self.group} must be a multiple of {CHUNK}")

    @property
    def name(self) -> str:
        return f"nf4-g{self.group}{'' if self.double else '-single'}"

    @property
    def group_size(self) -> int:
        return self.group

    def layout(self, shape: Shape) -> Layout:
        count = -(-shape[-1] // self.group)
        scales = (*shape[:-1], count)
        found: Layout = {"codes": ((*shape[:-1], count * self.group // 8), nm.uint32)}
        if not self.double:
            return {**found, "scales": (scales, nm.float32)}
        blocks = -(-size_of(scales) // SCALE_BLOCK)
        return {
            **found,
            "scales": (scales, nm.uint8),
            "block_scales": ((blocks,), nm.float32),
            "offset": ((1,), nm.float32),
        }

    def quantize(self, x: Tensor) -> Parts:
        groups = grouped(x, self.group)
        scales = nm.max(nm.abs(groups), axis=-1, keepdims=True)
        codes = nearest(groups * safe_reciprocal(scales), nf4_values())
        words = pack(codes.reshape(*x.shape[:-1], -1), 4)
        if not self.double:
            return words, scales[..., 0]
        flat = scales.reshape(-1)
        offset = nm.mean(flat) if flat.size else nm.asarray(0.0, device=x.device)
        blocks = grouped(flat - offset, SCALE_BLOCK)[: -(-flat.size // SCALE_BLOCK)]
        block_scales = nm.max(nm.abs(blocks), axis=-1)
        table = nm.asarray(_dynamic_values(), dtype=nm.float32, device=x.device)
        middles = (table[1:] + table[:-1]) / 2
        found = nm.searchsorted(middles, blocks * safe_reciprocal(block_scales)[:, None])
        stored = found.astype(nm.uint8).reshape(-1)[: flat.size].reshape(scales.shape[:-1])
        return words, stored, block_scales, offset.reshape(1)

    def _scales(self, parts: Parts) -> Tensor:
        if not self.double:
            return parts[1]
        _, stored, block_scales, offset = parts
        table = nm.asarray(_dynamic_values(), dtype=nm.float32, device=stored.device)
        flat = nm.take(table, stored.reshape(-1).astype(nm.int32))
        wide = nm.repeat(block_scales, SCALE_BLOCK)[: flat.size]
        return (flat * wide + offset).reshape(stored.shape)

    def dequantize(self, parts: Parts, shape: Shape) -> Tensor:
        scales = self._scales(parts)
        values = lookup(unpack(parts[0], 4), nf4_values()).reshape(*scales.shape, self.group)
        return ungrouped(values * scales[..., None], shape)


register_format(r"nf4(?:-g(\d+))?(-single)?", lambda g, one: NF4(int(g or 64), not one), "nf4-g64")
