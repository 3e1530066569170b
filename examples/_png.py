"""A PNG writer in a few lines: what the examples need, with nothing but the standard library."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

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
