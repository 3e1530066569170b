"""Pictures as PNG files, with nothing but the standard library: an image, images side by side, or
curves with their axes.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numus.files import atomically

Image = NDArray[np.uint8]
Points = Sequence[tuple[float, float]] | NDArray[Any]


def write_png(path: str | Path, pixels: Image) -> None:
    """Write an image of shape (height, width, 3), eight bits per channel, to `path`."""
    height, width, channels = pixels.shape
    if channels != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"expected (height, width, 3) uint8, got {pixels.shape} {pixels.dtype}")

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    # 8 bits, colour type 2 (RGB), and the only compression, filter and no-interlace there are.
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    # Each row begins with a byte that names its filter; 0 is "none".
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = pixels.reshape(height, 3 * width)

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
    atomically(path, lambda file: file.write(b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")))


def mosaic(images: NDArray[Any], columns: int, *, zoom: int = 1) -> Image:
    """Images of shape (count, height, width), from 0 to 1, in rows of `columns`."""
    count, height, width = images.shape
    rows = -(-count // columns)
    sheet = np.ones((rows * (height + 1) + 1, columns * (width + 1) + 1))
    for i, image in enumerate(images):
        top, left = i // columns * (height + 1) + 1, i % columns * (width + 1) + 1
        sheet[top : top + height, left : left + width] = image
    grey = (np.clip(sheet, 0, 1) * 255).astype(np.uint8)
    grey = grey.repeat(zoom, axis=0).repeat(zoom, axis=1)
    return np.repeat(grey[:, :, None], 3, axis=2)


# -- curves ---------------------------------------------------------------------------------------

INK, GRID = (40, 40, 40), (225, 225, 225)
COLOURS = ((43, 110, 178), (226, 116, 41), (60, 150, 80), (160, 70, 160), (120, 120, 120))
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 34, 34  # margins of a panel


def curves(
    panels: Mapping[str, Mapping[str, Points]],
    *,
    logarithmic: Sequence[str] = (),
    size: tuple[int, int] = (900, 420),
) -> Image:
    """An image with a panel for each title, and in it a line for each label's (x, y) points.

    >>> from numus.png import curves
    >>> curves({"loss": {"training": [(1, 2.0), (2, 1.0)]}}, logarithmic=["loss"]).shape
    (420, 900, 3)
    """
    width, height = size
    image = np.full((height, width * max(1, len(panels)), 3), 255, np.uint8)
    for i, (title, lines) in enumerate(panels.items()):
        _panel(image[:, i * width : (i + 1) * width], title, lines, title in logarithmic)
    return image


def _panel(image: Image, title: str, lines: Mapping[str, Points], logarithmic: bool) -> None:
    height, width, _ = image.shape
    scaled = {label: _scaled(points, logarithmic) for label, points in lines.items()}
    every = np.concatenate([*scaled.values(), np.zeros((0, 2))])
    low, high = (every.min(0), every.max(0)) if len(every) else (np.zeros(2), np.ones(2))
    span = np.where(high > low, high - low, 1)
    text(image, LEFT, 10, title, INK)
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = round(TOP + (1 - part) * (height - TOP - BOTTOM))
        image[y, LEFT : width - RIGHT] = INK if part == 0 else GRID
        value = low[1] + part * span[1]
        _right_text(image, LEFT - 8, y - 5, _number(10**value if logarithmic else value))
        x = round(LEFT + part * (width - LEFT - RIGHT))
        _right_text(image, x + 10, height - BOTTOM + 10, _number(low[0] + part * span[0]))
    image[TOP : height - BOTTOM, LEFT] = INK
    at = LEFT + 12 * (len(title) + 3)
    for (label, points), colour in zip(scaled.items(), COLOURS * len(scaled), strict=False):
        if len(lines) > 1:
            text(image, at, 10, label, colour)
            at += 12 * (len(label) + 2)
        relative = (points - low) / span
        xs = LEFT + relative[:, 0] * (width - LEFT - RIGHT)
        ys = height - BOTTOM - relative[:, 1] * (height - TOP - BOTTOM)
        _line(image, xs, ys, colour)


def _scaled(points: Points, logarithmic: bool) -> NDArray[Any]:
    """The points that can be drawn, in the order of x."""
    found = np.asarray(points, float).reshape(-1, 2).copy()
    if logarithmic:
        with np.errstate(all="ignore"):
            found[:, 1] = np.log10(found[:, 1])
    found = found[np.isfinite(found).all(axis=1)]
    return found[np.argsort(found[:, 0], kind="stable")]


def _line(image: Image, xs: NDArray[Any], ys: NDArray[Any], colour: Any) -> None:
    if len(xs) == 1:
        x, y = round(xs[0]), round(ys[0])
        image[max(0, y - 2) : y + 3, x - 2 : x + 3] = colour
    if len(xs) < 2:
        return
    columns = np.arange(math.floor(xs[0]), math.ceil(xs[-1]) + 1)
    rows = np.interp(columns, xs, ys)
    top, bottom = np.minimum(rows[:-1], rows[1:]), np.maximum(rows[:-1], rows[1:])
    for column, upper, lower in zip(columns, top, bottom, strict=False):
        image[max(0, int(upper) - 1) : int(lower) + 2, column] = colour


def _number(x: float) -> str:
    """A number in at most six characters."""
    return f"{x:.0f}" if abs(x) >= 1000 and abs(x) < 1e6 else f"{x:.3g}"


# -- letters --------------------------------------------------------------------------------------

# Each letter is five rows of three dots; a row's digit has the bits of its dots.
_LETTERS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717",
    "6": "74757", "7": "71222", "8": "75757", "9": "75717", ".": "00002", "-": "00700",
    "+": "02720", "e": "07747", "a": "03575", "b": "46556", "c": "03443", "d": "13553",
    "f": "34644", "g": "35713", "h": "44655", "i": "20222", "j": "10116", "k": "45655",
    "l": "62227", "m": "05775", "n": "06555", "o": "02552", "p": "06564", "q": "03531",
    "r": "06544", "s": "03616", "t": "27223", "u": "05553", "v": "05552", "w": "05772",
    "x": "05225", "y": "05716", "z": "07247", "_": "00007", "/": "11244", "%": "51245",
    " ": "00000",
}  # fmt: skip


def text(image: Image, x: int, y: int, words: str, colour: Any, zoom: int = 3) -> None:
    """Write on an image, small letters and digits, from a left upper corner on."""
    for letter in words.lower():
        rows = [[int(r) >> k & 1 for k in (2, 1, 0)] for r in _LETTERS.get(letter, "77777")]
        dots = np.array(rows, bool).repeat(zoom, axis=0).repeat(zoom, axis=1)
        spot = image[y : y + dots.shape[0], x : x + dots.shape[1]]
        spot[dots[: spot.shape[0], : spot.shape[1]]] = colour
        x += 4 * zoom


def _right_text(image: Image, x: int, y: int, words: str) -> None:
    text(image, max(0, x - 8 * len(words)), y, words, INK, zoom=2)
