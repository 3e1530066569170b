"""Attention: weighted means of values, and rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.functions._base import as_number
from numus.functions.layers.attention import scaled_dot_product_attention
from numus.tensor import Tensor

__all__ = ["causal_mask", "rotary_embedding", "scaled_dot_product_attention"]


def causal_mask(queries: int, keys: int, *, device: Any = None) -> Tensor:
    """Which keys a query may look at: no later ones. The last query goes with the last key."""
    rows = nm.arange(queries, device=device)[:, None] + (keys - queries)
    return nm.arange(keys, device=device)[None, :] <= rows


def rotary_embedding(
    x: Any,
    positions: Any = None,
    *,
    base: float = 10000.0,
    dim: int | None = None,
    interleaved: bool = False,
) -> Tensor:
    """x (..., length, size) with pairs of its elements rotated by angles proportional to position.

    Args:
        positions: of the tokens, (length,) or a row for each of the first axis; 0, 1, …
            unless they are given.
        base: the longest wavelength is about 2π times it.
        dim: the number of elements that are rotated; all by default.
        interleaved: pairs are adjacent; otherwise element i goes with element i + dim / 2.
    """
    x = nm.asarray(x)
    width = x.shape[-1] if dim is None else dim
    if width % 2 or width > x.shape[-1]:
        raise ShapeError(f"rotary_embedding: {width} of {x.shape[-1]} elements do not form pairs")
    if positions is None:
        positions = nm.arange(x.shape[-2], device=x.device)
    wide = nm.float64 if x.dtype is nm.float64 else nm.float32
    rates = nm.exp(
        nm.arange(0, width, 2, dtype=wide, device=x.device)
        * (-math.log(as_number(base, "base", "rotary_embedding")) / width)
    )
    angles = nm.asarray(positions).astype(wide, copy=False)[..., None] * rates
    while angles.ndim < x.ndim:  # axes between the leading ones and the length: heads
        angles = nm.expand_dims(angles, -3) if angles.ndim > 2 else angles[None]
    cos, sin = nm.cos(angles), nm.sin(angles)
    rotated = x[..., :width].astype(wide, copy=False)
    if interleaved:
        pairs = rotated.reshape((*x.shape[:-1], width // 2, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        out = nm.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
        out = out.reshape((*x.shape[:-1], width))
    else:
        a, b = rotated[..., : width // 2], rotated[..., width // 2 :]
        out = nm.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
    out = out.astype(x.dtype, copy=False)
    return out if width == x.shape[-1] else nm.concat([out, x[..., width:]], axis=-1)
