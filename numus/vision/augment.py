"""RandAugment and TrivialAugment (Cubuk et al. 2019, Müller and Hutter 2021), a batch at a time.

Each image gets an operation of its own. The geometric ones are one warp with a matrix for each
image, those of colour one blend with an image that differs (black, its mean grey, its grey, itself
smoothed); so a step computes a few images in place of fourteen, and each takes its own.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

import numus as nm
from numus.tensor import Tensor
from numus.vision import colour, filters, warping
from numus.vision.images import as_real, as_stored, bound, require_colours, sub_keys, uniform
from numus.vision.transform import Transform

__all__ = ["RandAugment", "TrivialAugmentWide"]

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness",
    "saturation", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_NUMBER = {name: i for i, name in enumerate(OPERATIONS)}
_SIGNED = range(_NUMBER["shear_x"], _NUMBER["sharpness"] + 1)


@dataclass
class _Augment(Transform):
    """What both have: images given an operation and a magnitude each."""

    _: KW_ONLY
    mode: str = "nearest"
    fill: Any = None

    def _magnitudes(self, x: Tensor, bins: int) -> np.ndarray[Any, Any]:
        raise TypeError(f"{type(self).__name__} has no table of magnitudes")

    def _step(self, x: Tensor, bins: int, bin_: int | None, key: Tensor | None) -> Tensor:
        require_colours(type(self).__name__, x)
        keys = sub_keys(key, 3)
        count = len(OPERATIONS)
        which = nm.minimum(uniform(x, 0.0, count, keys[0]).astype(nm.int32), count - 1)
        if bin_ is None:
            at = nm.minimum(uniform(x, 0.0, bins, keys[1]).astype(nm.int32), bins - 1)
        else:
            at = nm.full((x.shape[0],), bin_, dtype=nm.int32, device=x.device)
        table = nm.asarray(self._magnitudes(x, bins), dtype=nm.float32, device=x.device)
        magnitude = nm.reshape(table, (-1,))[which * bins + at]
        signed = (which >= _SIGNED[0]) & (which <= _SIGNED[-1])
        negative = signed & (uniform(x, 0.0, 1.0, keys[2]) < 0.5)
        return augmented(x, which, nm.where(negative, -magnitude, magnitude), self.mode, self.fill)


def augmented(x: Tensor, which: Tensor, magnitude: Tensor, mode: str, fill: Any) -> Tensor:
    """Each image after its operation, a number into OPERATIONS."""
    which, m = nm.reshape(which, (-1, 1, 1, 1)), nm.reshape(magnitude, (-1, 1, 1, 1))

    def of(name: str) -> Tensor:
        return which == _NUMBER[name]

    def only(name: str, value: Tensor | float, other: float = 0.0) -> Tensor:
        return nm.where(of(name), value, other)

    height, width = x.shape[2:]
    degrees = nm.arctan(m) * (180.0 / math.pi)
    sheared = of("shear_x") | of("shear_y")
    matrix = warping.inverse_matrix(
        only("rotate", -m), only("translate_x", nm.trunc(m)), only("translate_y", nm.trunc(m)),
        1.0, only("shear_x", degrees), only("shear_y", degrees),
        nm.where(sheared, -0.5 * width, 0.0), nm.where(sheared, -0.5 * height, 0.0),
    )  # fmt: skip
    points = warping.affine_points(x, matrix, x.shape[2:])
    moved = warping.warped("augment", x, points, mode, fill)
    y = nm.where((which >= _NUMBER["shear_x"]) & (which <= _NUMBER["rotate"]), moved, x)

    grey = colour.grey(x)
    mean = nm.mean(grey, axis=(1, 2, 3), keepdims=True)
    other = nm.where(of("contrast"), mean, nm.where(of("brightness"), 0.0, grey))
    other = nm.where(of("sharpness"), filters.smoothed(x), other)
    blend = as_stored(as_real(x) * (1.0 + m) + other * -m, x)
    mixed = (which >= _NUMBER["brightness"]) & (which <= _NUMBER["sharpness"])
    y = nm.where(mixed, blend, y)

    y = nm.where(of("posterize"), colour.posterized(x, only("posterize", m, 8.0)), y)
    y = nm.where(of("solarize"), colour.solarized(x, m * bound(x)), y)
    y = nm.where(of("autocontrast"), colour.stretched(x), y)
    return nm.where(of("equalize"), colour.equalized(x), y)


def _table(
    bins: int, shear: float, move: tuple[float, float], turn: float, blend: float, bits: int
) -> np.ndarray[Any, Any]:
    """Magnitudes (operations, bins)."""
    ramp = np.linspace(0.0, 1.0, bins)
    flat = np.zeros(bins)
    posterized = np.round(8 - np.arange(bins) / ((bins - 1) / bits))
    rows = [flat, shear * ramp, shear * ramp, move[0] * ramp, move[1] * ramp, turn * ramp]
    return np.stack([*rows, *[blend * ramp] * 4, posterized, 1.0 - ramp, flat, flat])


@dataclass
class RandAugment(_Augment):
    """`num_ops` operations of fourteen, all of one magnitude, drawn for each image.

    Args:
        magnitude: a number below `num_magnitude_bins`.
        mode: of the warps, "nearest" or "bilinear".

    >>> nm.vision.RandAugment()(nm.zeros((2, 3, 8, 8), dtype=nm.uint8)).shape
    (2, 3, 8, 8)
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude < self.num_magnitude_bins or self.num_magnitude_bins < 2:
            raise ValueError(
                f"RandAugment: magnitude {self.magnitude} of {self.num_magnitude_bins} bins"
            )
        if self.num_ops < 0:
            raise ValueError(f"RandAugment: num_ops must not be negative: {self.num_ops}")

    def _magnitudes(self, x: Tensor, bins: int) -> np.ndarray[Any, Any]:
        move = (150.0 / 331.0 * x.shape[3], 150.0 / 331.0 * x.shape[2])
        return _table(bins, 0.3, move, 30.0, 0.9, 4)

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        for k in sub_keys(key, self.num_ops) if self.num_ops else ():
            x = self._step(x, self.num_magnitude_bins, self.magnitude, k)
        return x


@dataclass
class TrivialAugmentWide(_Augment):
    """One operation of fourteen with a magnitude of a wide range, drawn for each image.

    >>> nm.vision.TrivialAugmentWide()(nm.zeros((2, 3, 8, 8), dtype=nm.uint8)).shape
    (2, 3, 8, 8)
    """

    num_magnitude_bins: int = 31

    def _magnitudes(self, x: Tensor, bins: int) -> np.ndarray[Any, Any]:
        return _table(bins, 0.99, (32.0, 32.0), 135.0, 0.99, 6)

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        return self._step(x, self.num_magnitude_bins, None, key)
