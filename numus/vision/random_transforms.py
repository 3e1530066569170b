"""Transformations of geometry and colour, fixed and random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numus as nm
from numus.tensor import Tensor
from numus.vision import colour, filters, images, warping
from numus.vision.images import chosen, stored, sub_keys, uniform
from numus.vision.transform import Transform

__all__ = [
    "ColorJitter",
    "GaussianBlur",
    "Normalize",
    "RandomAffine",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomPerspective",
    "RandomRotation",
    "RandomVerticalFlip",
    "ToFloat",
]

Range = float | tuple[float, float]


def _around(
    name: str, value: Range, middle: float, lowest: float | None = None
) -> tuple[float, float]:
    """(low, high) from a distance around the middle, or as given."""
    low, high = (middle - value, middle + value) if isinstance(value, (int, float)) else value
    low = low if lowest is None else max(low, lowest)
    if low > high:
        raise ValueError(f"{name}: {value!r} is an empty range")
    return low, high


@dataclass
class RandomHorizontalFlip(Transform):
    """Left and right exchanged, with probability p.

    >>> nm.vision.RandomHorizontalFlip(1.0)(nm.asarray([[[1.0, 2.0]]])).tolist()
    [[[2.0, 1.0]]]
    """

    p: float = 0.5

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        x = stored(x)
        return nm.where(chosen(x, self.p, key), nm.flip(x, axis=3), x)


@dataclass
class RandomVerticalFlip(Transform):
    """Top and bottom exchanged, with probability p.

    >>> nm.vision.RandomVerticalFlip(1.0)(nm.asarray([[[1.0], [2.0]]])).tolist()
    [[[2.0], [1.0]]]
    """

    p: float = 0.5

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        x = stored(x)
        return nm.where(chosen(x, self.p, key), nm.flip(x, axis=2), x)


# -- maps -----------------------------------------------------------------------------------------


@dataclass
class RandomRotation(Transform):
    """A rotation by an angle of a range of degrees.

    >>> nm.vision.RandomRotation(30)(nm.zeros((3, 8, 8))).shape
    (3, 8, 8)
    """

    degrees: Range
    mode: str = "nearest"
    _: KW_ONLY
    center: tuple[float, float] | None = None
    fill: Any = None

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        low, high = _around("RandomRotation", self.degrees, 0.0)
        angle = uniform(x, low, high, key)
        return warping.rotate(x, angle, self.mode, center=self.center, fill=self.fill)


@dataclass
class RandomAffine(Transform):
    """A random rotation, shift, scale and shear about the middle.

    Args:
        degrees: of rotation.
        translate: the largest shifts, as parts of width and height; whole pixels are drawn.
        scale: (low, high) of the scale.
        shear: degrees along x, or (low, high), or (low, high) of x and then of y.

    >>> warp = nm.vision.RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5.0)
    >>> warp(nm.zeros((2, 3, 8, 8)), key=nm.random.key(0)).shape
    (2, 3, 8, 8)
    """

    degrees: Range
    translate: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None
    shear: float | tuple[float, ...] | None = None
    mode: str = "nearest"
    _: KW_ONLY
    center: tuple[float, float] | None = None
    fill: Any = None

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        keys = sub_keys(key, 6)
        low, high = _around("RandomAffine", self.degrees, 0.0)
        angle = uniform(x, low, high, keys[0])
        moves: list[Any] = [0.0, 0.0]
        if self.translate is not None:
            reach = (self.translate[0] * x.shape[3], self.translate[1] * x.shape[2])
            moves = [nm.round(uniform(x, -r, r, k)) for r, k in zip(reach, keys[1:3], strict=True)]
        scale = 1.0 if self.scale is None else uniform(x, *self.scale, keys[3])
        sheared: list[Any] = [0.0, 0.0]
        if self.shear is not None:
            both = (self.shear,) if isinstance(self.shear, (int, float)) else self.shear
            both = (-both[0], both[0]) if len(both) == 1 else tuple(both)
            sheared[0] = uniform(x, both[0], both[1], keys[4])
            if len(both) == 4:
                sheared[1] = uniform(x, both[2], both[3], keys[5])
        return warping.affine(
            x, angle, (moves[0], moves[1]), scale, (sheared[0], sheared[1]), self.mode,
            fill=self.fill, center=self.center,
        )  # fmt: skip


@dataclass
class RandomPerspective(Transform):
    """Corners moved inwards by up to half of `distortion_scale` of a side, with probability p.

    >>> nm.vision.RandomPerspective(0.3)(nm.zeros((3, 8, 8))).shape
    (3, 8, 8)
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    mode: str = "bilinear"
    _: KW_ONLY
    fill: Any = None

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        first, second = sub_keys(key, 2)
        height, width = x.shape[2:]
        start = [0.0, 0.0, width - 1.0, 0.0, width - 1.0, height - 1.0, 0.0, height - 1.0]
        inward = uniform(x, 0.0, self.distortion_scale, second, 8)
        end = []
        for i, at in enumerate(start):
            size = width if i % 2 == 0 else height
            by = nm.floor(inward[:, i] * (size / 2))
            end.append(at + by if at == 0.0 else at - by)
        points = warping.perspective_points(x, start, end)
        y = warping.warped("RandomPerspective", x, points, self.mode, self.fill)
        return nm.where(chosen(x, self.p, first), y, x)


# -- colours --------------------------------------------------------------------------------------


@dataclass
class ColorJitter(Transform):
    """Random brightness, contrast, saturation and hue, in an order drawn for each image.

    Args:
        brightness, contrast, saturation: factors from 1 - value to 1 + value, or (low, high).
        hue: shifts from -value to value, at most 0.5, or (low, high).
        random_order: False applies them in the order of the arguments, which takes less time.

    >>> jitter = nm.vision.ColorJitter(0.4, 0.4, 0.4, 0.1)
    >>> jitter(nm.ones((2, 3, 8, 8)), key=nm.random.key(0)).shape
    (2, 3, 8, 8)
    """

    brightness: Range = 0.0
    contrast: Range = 0.0
    saturation: Range = 0.0
    hue: Range = 0.0
    _: KW_ONLY
    random_order: bool = True

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        keys = sub_keys(key, 5)
        images.require_colours("ColorJitter", x)
        factors: dict[str, Tensor] = {}
        for name, k in zip(_CHANGES, keys, strict=False):
            given: Range = getattr(self, name)
            if not given or (x.shape[1] == 1 and name in ("saturation", "hue")):
                continue
            middle, lowest = (0.0, None) if name == "hue" else (1.0, 0.0)
            low, high = _around(name, given, middle, lowest)
            if name == "hue" and not -0.5 <= low <= high <= 0.5:
                raise ValueError(f"ColorJitter: hue must be within -0.5 … 0.5, not {given!r}")
            factors[name] = nm.reshape(uniform(x, low, high, k), (-1, 1, 1, 1))
        if self.random_order and len(factors) > 1:
            return _in_random_order(x, factors, keys[4])
        for name, factor in factors.items():
            x = _CHANGES[name](x, factor)
        return x


_CHANGES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "brightness": colour.brightened,
    "contrast": colour.contrasted,
    "saturation": colour.saturated,
    "hue": colour.shifted,
}


def _in_random_order(x: Tensor, factors: dict[str, Tensor], key: Tensor | None) -> Tensor:
    """Changes in an order drawn for each image.

    All but the hue are blends with black, grey or mean grey: a place of the order is one blend,
    whose factor and other image differ from image to image. Hue is the costly one and is computed
    once, between blends that come before it and those that come after; others are by 1 there.
    """
    drawn = uniform(x, 0.0, 1.0, key, len(factors))
    time = {name: nm.reshape(drawn[:, i], (-1, 1, 1, 1)) for i, name in enumerate(factors)}
    blends = [name for name in factors if name != "hue"]
    places = {}
    for j, name in enumerate(blends):
        earlier = [
            (time[other] <= time[name] if i < j else time[other] < time[name]).astype(nm.int32)
            for i, other in enumerate(blends)
            if i != j
        ]
        places[name] = sum(earlier[1:], earlier[0]) if earlier else nm.zeros_like(time[name])
    sides: list[Any] = [None]
    if "hue" in factors:
        sides = [lambda name: time[name] < time["hue"], lambda name: time[name] >= time["hue"]]
    for number, side in enumerate(sides):
        if number == 1:
            x = colour.shifted(x, factors["hue"])
        for place in range(len(blends)):
            here = {
                name: places[name] == place
                if side is None
                else (places[name] == place) & side(name)
                for name in blends
            }
            x = _blend_of_each(x, factors, here)
    return x


def _blend_of_each(x: Tensor, factors: dict[str, Tensor], here: dict[str, Tensor]) -> Tensor:
    """The blend that each image has at a place of its order; none: x."""
    factor: Any = 1.0
    for name, at in here.items():
        factor = nm.where(at, factors[name], factor)
    y = images.as_real(x)
    total = y * factor
    if "contrast" in here or "saturation" in here:
        grey = colour.grey(x)
    if "saturation" in here:
        total = total + grey * nm.where(here["saturation"], 1.0 - factor, 0.0)
    if "contrast" in here:
        mean = nm.mean(grey, axis=(1, 2, 3), keepdims=True)
        total = total + mean * nm.where(here["contrast"], 1.0 - factor, 0.0)
    return stored(images.as_stored(total, x))


@dataclass
class RandomGrayscale(Transform):
    """Grey of as many channels, with probability p.

    >>> nm.vision.RandomGrayscale(1.0)(nm.ones((3, 1, 1))).shape
    (3, 1, 1)
    """

    p: float = 0.1

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        y = colour.rgb_to_grayscale(x, x.shape[1])
        return nm.where(chosen(x, self.p, key), y, x)


@dataclass
class GaussianBlur(Transform):
    """`gaussian_blur` with a deviation drawn for each image.

    >>> nm.vision.GaussianBlur(3, (0.1, 2.0))(nm.zeros((3, 8, 8))).shape
    (3, 8, 8)
    """

    kernel_size: int | tuple[int, int]
    sigma: Range = (0.1, 2.0)

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        if isinstance(self.sigma, (int, float)):
            return filters.gaussian_blur(x, self.kernel_size, self.sigma)
        low, high = self.sigma
        if not 0 < low <= high:
            raise ValueError(f"GaussianBlur: sigma must be a positive range, not {self.sigma!r}")
        return filters.gaussian_blur(x, self.kernel_size, uniform(x, low, high, key))


@dataclass
class Normalize(Transform):
    """`normalize` by the mean and the deviation of each channel.

    >>> nm.vision.Normalize([0.5], [0.25])(nm.ones((1, 1, 1))).item()
    2.0
    """

    mean: Any
    std: Any

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        return colour.standardized(x, self.mean, self.std)


@dataclass
class ToFloat(Transform):
    """`to_float`: uint8 as floats from 0 to 1.

    >>> nm.vision.ToFloat()(nm.full((1, 1, 1), 255, dtype=nm.uint8)).item()
    1.0
    """

    dtype: Any = nm.float32

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        return images.to_float(x, self.dtype)
