"""Pictures as PNG files, with nothing but the standard library: an image, or curves."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_png(path: str | Path, pixels: NDArray[np.uint8]) -> None:
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
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


INK, GRID = np.array([40, 40, 40], np.float32), np.array([225, 225, 225], np.float32)
COLOURS = np.array([[43, 110, 178], [226, 116, 41], [60, 150, 80]], np.float32)


def curves(
    *series: NDArray[np.floating[Any]], size: tuple[int, int] = (900, 420)
) -> NDArray[np.uint8]:
    """An image with one panel for each series of (x, y) points, each scaled to its own range."""
    width, height = size
    image = np.full((height, width * len(series), 3), 255, np.float32)
    for i, points in enumerate(series):
        _panel(image[:, i * width : (i + 1) * width], np.asarray(points, float), COLOURS[i % 3])
    return image.astype(np.uint8)


def _panel(image: NDArray[np.float32], points: NDArray[Any], colour: NDArray[np.float32]) -> None:
    height, width, _ = image.shape
    margin = 30
    image[margin:-margin, [margin, width - margin]] = INK
    image[[margin, height - margin], margin:-margin] = INK
    for part in (0.25, 0.5, 0.75):
        image[int(margin + part * (height - 2 * margin)), margin + 1 : width - margin] = GRID
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) < 2:
        return
    low, high = points.min(axis=0), points.max(axis=0)
    place = (points - low) / np.where(high > low, high - low, 1)
    x = margin + place[:, 0] * (width - 2 * margin)
    y = height - margin - place[:, 1] * (height - 2 * margin)
    columns = np.arange(margin, width - margin)
    rows = np.interp(columns, x, y)
    top, bottom = np.minimum(rows[:-1], rows[1:]), np.maximum(rows[:-1], rows[1:])
    for column, upper, lower in zip(columns, top, bottom, strict=False):
        image[max(margin, int(upper) - 1) : int(lower) + 2, column] = colour
