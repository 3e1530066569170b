"""Images seen through affine and perspective maps, read backwards: each pixel of the result asks
where it comes from. Signs, centres and fills are torchvision's.

A perspective map of four points to four others goes through the unit square, whose maps to and
from a quadrilateral are known in closed form (Heckbert, Fundamentals of Texture Mapping, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import Number, as_real, as_stored, batched, per_image

__all__ = ["affine", "perspective", "rotate"]

Matrix = Sequence[Number]
MODES = ("nearest", "bilinear")


def affine(
    images: ArrayLike,
    angle: Any = 0.0,
    translate: tuple[Any, Any] = (0.0, 0.0),
    scale: Any = 1.0,
    shear: tuple[Any, Any] = (0.0, 0.0),
    mode: str = "nearest",
    *,
    fill: Any = None,
    center: tuple[float, float] | None = None,
    layout: str = "CHW",
) -> Tensor:
    """Images rotated, moved, scaled and sheared. Each parameter is a number, or one per image.

    Args:
        angle: in degrees, clockwise.
        translate: pixels to the right and down.
        shear: along x and y, in degrees.
        mode: "nearest" or "bilinear".
        fill: the value outside, one or one for each channel; black by default.
        center: (x, y) in pixels from the left upper corner; by default the middle.

    >>> x = nm.arange(9.0).reshape(1, 3, 3)
    >>> nm.vision.affine(x, translate=(1, 0)).tolist()
    [[[0.0, 0.0, 1.0], [0.0, 3.0, 4.0], [0.0, 6.0, 7.0]]]
    """
    op = "affine"
    x, restore = batched(op, images, layout)
    given = {"angle": angle, "translate": translate[0], "translate[1]": translate[1]}
    given |= {"scale": scale, "shear": shear[0], "shear[1]": shear[1]}
    numbers: list[Any] = [per_image(op, name, v, x) for name, v in given.items()]
    cx, cy = _centred(center, x)
    matrix = inverse_matrix(*[*numbers, cx, cy])
    return restore(warped(op, x, affine_points(x, matrix, x.shape[2:]), mode, fill))


def rotate(
    images: ArrayLike,
    angle: Any,
    mode: str = "nearest",
    *,
    expand: bool = False,
    center: tuple[float, float] | None = None,
    fill: Any = None,
    layout: str = "CHW",
) -> Tensor:
    """Images rotated by degrees, counterclockwise: by one angle, or one for each image.

    Args:
        expand: make the result as large as the rotated image (for one angle, a number).

    >>> nm.vision.rotate(nm.arange(4.0).reshape(1, 2, 2), 90).tolist()
    [[[1.0, 3.0], [0.0, 2.0]]]
    """
    op = "rotate"
    x, restore = batched(op, images, layout)
    turn = per_image(op, "angle", angle, x)
    zero = 0.0
    matrix = inverse_matrix(-turn, zero, zero, 1.0, zero, zero, *_centred(center, x))
    size = x.shape[2:]
    if expand:
        if isinstance(turn, Tensor):
            raise ValueError(f"{op}: expand needs one angle as a number: sizes follow from it")
        size = _expanded(turn, *size)
    return restore(warped(op, x, affine_points(x, matrix, size), mode, fill))


def perspective(
    images: ArrayLike,
    startpoints: Any,
    endpoints: Any,
    mode: str = "bilinear",
    *,
    fill: Any = None,
    layout: str = "CHW",
) -> Tensor:
    """Images whose four start points (x, y) move to the end points.

    Points go around from the left upper one to the left lower one: (4, 2), or (images, 4, 2).

    >>> x = nm.arange(9.0).reshape(1, 3, 3)
    >>> corners = [[0, 0], [2, 0], [2, 2], [0, 2]]
    >>> nm.allclose(nm.vision.perspective(x, corners, corners), x, atol=1e-5).item()
    True
    """
    op = "perspective"
    x, restore = batched(op, images, layout)
    start, end = (_corners(op, p, x) for p in (startpoints, endpoints))
    return restore(warped(op, x, perspective_points(x, start, end), mode, fill))


# -- on (count, channels, height, width) ----------------------------------------------------------


def _centred(center: tuple[float, float] | None, x: Tensor) -> tuple[float, float]:
    """A centre relative to the middle of images."""
    if center is None:
        return 0.0, 0.0
    return center[0] - x.shape[3] * 0.5, center[1] - x.shape[2] * 0.5


def inverse_matrix(
    angle: Number, tx: Number, ty: Number, scale: Number, shear_x: Number, shear_y: Number,
    cx: Number, cy: Number,
) -> Matrix:  # fmt: skip
    """Where a pixel comes from, relative to the middle: (a, b, c, d, e, f) of a x + b y + c, …"""
    rot, sx, sy = (v * (math.pi / 180.0) for v in (angle, shear_x, shear_y))
    lib: Any
    own: Any = [nm if isinstance(v, Tensor) else math for v in (rot, sx, sy)]
    tan_x, cos_y = own[1].tan(sx), own[2].cos(sy)
    lib = nm if isinstance(rot - sy, Tensor) else math
    a = lib.cos(rot - sy) / cos_y
    b = -(a * tan_x + own[0].sin(rot))
    c = lib.sin(rot - sy) / cos_y
    d = own[0].cos(rot) - c * tan_x
    m0, m1, m3, m4 = d / scale, -b / scale, -c / scale, a / scale
    return (
        m0, m1, cx - m0 * (cx + tx) - m1 * (cy + ty),
        m3, m4, cy - m3 * (cx + tx) - m4 * (cy + ty),
    )  # fmt: skip


def affine_points(x: Tensor, matrix: Matrix, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The x and y that each pixel of a result of a size is read at, from -1 to 1."""
    real = as_real(x).dtype
    rows, columns = (nm.arange(n, dtype=real, device=x.device) - (n - 1) * 0.5 for n in size)
    rows = nm.reshape(rows, (1, -1, 1))
    a, b, c, d, e, f = (nm.reshape(v, (-1, 1, 1)) if isinstance(v, Tensor) else v for v in matrix)
    height, width = x.shape[2:]
    return (
        (columns * a + rows * b + c) / (0.5 * width),
        (columns * d + rows * e + f) / (0.5 * height),
    )


def _expanded(angle: float, height: int, width: int) -> tuple[int, int]:
    """The size of a rotated image's bounding box, as Pillow computes it."""
    turn = math.radians(-angle)
    cos, sin = math.cos(turn), math.sin(turn)
    sizes = []
    for p, q, half in ((-sin, cos, height), (cos, sin, width)):
        ends = [p * sx * width / 2 + q * sy * height / 2 for sx in (-1, 1) for sy in (-1, 1)]
        # a ten thousandth of a pixel is rounding, not another row
        low, high = (math.trunc((end + half / 2) * 1e4) * 1e-4 for end in (min(ends), max(ends)))
        sizes.append(math.ceil(high) - math.floor(low))
    return sizes[0], sizes[1]


def _corners(op: str, points: Any, x: Tensor) -> list[Any]:
    """Eight numbers x0, y0, x1, …: each one number, or one for each image."""
    given: Any = points if isinstance(points, Tensor) else np.asarray(points, np.float64)
    if given.shape[-2:] != (4, 2) or given.ndim not in (2, 3):
        raise ShapeError(f"{op}: takes four points (4, 2), or (images, 4, 2), not {given.shape}")
    if given.ndim == 3 and given.shape[0] not in (1, x.shape[0]):
        raise ShapeError(f"{op}: points of {given.shape[0]} images for {x.shape[0]}")
    flat = given.reshape(-1, 8)
    return [flat[:, i] for i in range(8)]


def _square_to_quad(p: Sequence[Any]) -> list[Any]:
    """The map of the unit square to a quadrilateral, as nine numbers by rows."""
    x0, y0, x1, y1, x2, y2, x3, y3 = p
    dx1, dy1, dx2, dy2 = x1 - x2, y1 - y2, x3 - x2, y3 - y2
    sx, sy = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    area = dx1 * dy2 - dx2 * dy1
    g, h = (sx * dy2 - dx2 * sy) / area, (dx1 * sy - sx * dy1) / area
    return [
        x1 - x0 + g * x1,
        x3 - x0 + h * x3,
        x0,
        y1 - y0 + g * y1,
        y3 - y0 + h * y3,
        y0,
        g,
        h,
        1.0,
    ]


def perspective_points(
    x: Tensor, start: Sequence[Any], end: Sequence[Any]
) -> tuple[Tensor, Tensor]:
    """Where pixels come from if the start points move to the end points, from -1 to 1."""
    s, t = _square_to_quad(start), _square_to_quad(end)
    a, b, c, d, e, f, g, h, i = t
    inverse = [  # up to a factor, which the quotients below cancel
        e * i - f * h, c * h - b * i, b * f - c * e,
        f * g - d * i, a * i - c * g, c * d - a * f,
        d * h - e * g, b * g - a * h, a * e - b * d,
    ]  # fmt: skip
    m = [
        s[3 * r] * inverse[k] + s[3 * r + 1] * inverse[3 + k] + s[3 * r + 2] * inverse[6 + k]
        for r in range(3)
        for k in range(3)
    ]
    real = as_real(x).dtype

    def placed(v: Any) -> Tensor:
        return nm.reshape(nm.asarray(v, dtype=real, device=x.device), (-1, 1, 1))

    p = [placed(v / m[8]) for v in m[:8]]
    height, width = x.shape[2:]
    rows = nm.reshape(nm.arange(height, dtype=real, device=x.device) + 0.5, (-1, 1))
    columns = nm.arange(width, dtype=real, device=x.device) + 0.5
    depth = columns * p[6] + rows * p[7] + 1.0
    px = (columns * p[0] + rows * p[1] + p[2]) / (0.5 * width) / depth - 1.0
    py = (columns * p[3] + rows * p[4] + p[5]) / (0.5 * height) / depth - 1.0
    return px, py


def warped(op: str, x: Tensor, points: tuple[Tensor, Tensor], mode: str, fill: Any) -> Tensor:
    """Images read at points; `fill` outside."""
    if mode not in MODES:
        raise ValueError(f"{op}: no mode {mode!r}; modes: {', '.join(MODES)}")
    grid = nm.stack(points, axis=-1)
    grid = nm.broadcast_to(grid, (x.shape[0], *grid.shape[1:]))
    y = nm.grid_sample(as_real(x), grid.astype(as_real(x).dtype), mode=mode)
    if fill is not None:
        outside = nm.asarray(fill, dtype=y.dtype, device=x.device).reshape(-1, 1, 1)
        if outside.shape[0] not in (1, x.shape[1]):
            raise ShapeError(f"{op}: fill={fill!r} for {x.shape[1]} channels")
        whole = nm.ones((1, 1, *x.shape[2:]), dtype=y.dtype, device=x.device)
        whole = nm.broadcast_to(whole, (x.shape[0], *whole.shape[1:]))
        there = nm.grid_sample(whole, grid.astype(y.dtype), mode=mode)
        y = (
            nm.where(there < 0.5, outside, y)
            if mode == "nearest"
            else (y - outside) * there + outside
        )
    return as_stored(y, x, rounded=True, clipped=False)
