"""Rotary position embeddings (Su et al. 2021), and how they are scaled to longer texts.

Pairs of elements (i, i + size / 2) turn by an angle proportional to the position. Scaling changes
the rates: `linear` (Chen et al. 2023), `dynamic` (NTK-aware, by the length at hand), `yarn` (Peng
et al. 2023) and `llama3` (Grattafiori et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import numus as nm
from numus.models.language.config import RopeParameters
from numus.tensor import Tensor

__all__ = ["Rope", "rotate"]

Rates = np.ndarray[Any, Any]


class Rope:
    """Cosines and sines of positions, by a configuration's parameters."""

    def __init__(self, parameters: RopeParameters, size: int, longest: int) -> None:
        self.kind = parameters.rope_type
        self.options, self.theta = parameters.options, parameters.rope_theta
        self.size = int(size * float(self.options.get("partial_rotary_factor", 1.0)))
        self.longest = longest
        if self.kind not in _RATES:
            raise ValueError(
                f"rope_type {self.kind!r} is not known; {', '.join(sorted(_RATES))} are"
            )
        missing = [name for name in _REQUIRED.get(self.kind, ()) if name not in self.options]
        if missing:
            raise ValueError(f"rope_type {self.kind!r} needs {', '.join(missing)}")
        plain = self.theta ** -(np.arange(0, self.size, 2, dtype=np.float32) / self.size)
        self.rates = _RATES[self.kind](plain, self).astype(np.float32)
        self.magnitude = _yarn_magnitude(self) if self.kind == "yarn" else 1.0

    def __call__(self, positions: Tensor, dtype: Any) -> tuple[Tensor, Tensor]:
        """Cosines and sines (rows, 1, length, size) of positions (rows, length); sines of the first
        half are negative."""
        at = positions.astype(nm.float32)[..., None]
        angles = at * self._rates(at)
        angles = nm.concat([angles, angles], axis=-1)[:, None]
        cos, sin = nm.cos(angles), nm.sin(angles) * self._signs(at.device)
        if self.magnitude != 1.0:
            cos, sin = cos * self.magnitude, sin * self.magnitude
        return cos.astype(dtype, copy=False), sin.astype(dtype, copy=False)

    def _signs(self, device: Any) -> Tensor:
        half = np.ones(self.size // 2, np.float32)
        return nm.asarray(np.concatenate([-half, half]), device=device)

    def _rates(self, at: Tensor) -> Tensor:
        if self.kind != "dynamic":
            return nm.asarray(self.rates, device=at.device)
        # the base grows with the length at hand, once that is beyond the trained one
        factor = float(self.options["factor"])
        length = nm.maximum(nm.max(at) + 1, float(self.longest))
        stretch = factor * length / self.longest - (factor - 1)
        exponents = np.arange(0, self.size, 2, dtype=np.float32) / self.size
        base = self.theta * stretch ** (self.size / (self.size - 2))
        return base ** nm.asarray(-exponents, device=at.device)


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """x (rows, heads, length, size) rotated; elements beyond those of the angles stay."""
    cos, sin = angles
    size = cos.shape[-1]
    part, rest = (x, None) if size == x.shape[-1] else (x[..., :size], x[..., size:])
    # halves exchanged by a view of negative stride: a concatenation would be stored
    halves = nm.flip(part.reshape(*part.shape[:-1], 2, size // 2), axis=-2)
    out = part * cos + halves.reshape(part.shape) * sin
    return out if rest is None else nm.concat([out, rest], axis=-1)


# -- rates of the kinds ---------------------------------------------------------------------------


def _linear(plain: Rates, rope: Rope) -> Rates:
    return plain / np.float32(rope.options["factor"])


def _yarn(plain: Rates, rope: Rope) -> Rates:
    """Fast pairs keep their rate, slow ones are interpolated, a ramp lies between them."""
    o, size = rope.options, rope.size
    trained = o["original_max_position_embeddings"]

    def pair_of(rotations: float) -> float:
        return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(o.get("beta_fast") or 32), pair_of(o.get("beta_slow") or 1)
    if o.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(size // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    return plain / _yarn_factor(rope) * ramp + plain * (1 - ramp)


def _yarn_factor(rope: Rope) -> float:
    factor = rope.options.get("factor")
    trained = rope.options["original_max_position_embeddings"]
    return float(factor if factor is not None else rope.longest / trained)


def _yarn_magnitude(rope: Rope) -> float:
    o, factor = rope.options, _yarn_factor(rope)

    def magnitude(scale: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if o.get("attention_factor") is not None:
        return float(o["attention_factor"])
    if o.get("mscale") and o.get("mscale_all_dim"):
        return magnitude(o["mscale"]) / magnitude(o["mscale_all_dim"])
    return magnitude()


def _llama3(plain: Rates, rope: Rope) -> Rates:
    o = rope.options
    trained, factor = o["original_max_position_embeddings"], o["factor"]
    low, high = o["low_freq_factor"], o["high_freq_factor"]
    turns = trained * plain / (2 * math.pi)  # within the trained length
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * plain / factor + smooth * plain


_RATES: Mapping[str, Any] = {
    "default": lambda plain, rope: plain,
    "linear": _linear,
    "dynamic": lambda plain, rope: plain,
    "yarn": _yarn,
    "llama3": _llama3,
}
_REQUIRED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("original_max_position_embeddings",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}
