"""Grids of pictures, as a tensor or a PNG file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.png import write_png
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import batched, quantized

__all__ = ["make_grid", "save_grid"]


def make_grid(
    images: ArrayLike,
    columns: int = 8,
    *,
    padding: int = 2,
    fill: float = 0.0,
    normalize: bool = False,
    layout: str = "CHW",
) -> Tensor:
    """Pictures (count, channels, height, width) in rows of `columns`, as one (3, height, width).

    Args:
        padding: pixels between pictures, of the value `fill`.
        normalize: stretch the values of all pictures to 0 … 1.

    >>> nm.vision.make_grid(nm.ones((5, 1, 4, 4)), 3, padding=1).shape
    (3, 11, 16)
    """
    x, _ = batched("make_grid", images, layout)
    if x.shape[1] not in (1, 3) or x.shape[0] == 0:
        raise ShapeError(
            f"make_grid: takes at least one picture of 1 or 3 channels, not shape {x.shape}"
        )
    if columns < 1 or padding < 0:
        raise ValueError(f"make_grid: columns={columns} and padding={padding} make no grid")
    if normalize:
        y = x.astype(nm.float32)
        low, high = nm.min(y), nm.max(y)
        x = (y - low) / nm.where(high > low, high - low, 1.0)
    count, _, h, w = x.shape
    x = nm.broadcast_to(x, (count, 3, h, w))
    columns = min(columns, count)
    rows = -(-count // columns)
    cells = nm.pad(
        x,
        [(0, 0), (0, 0), (padding, 0), (padding, 0)],
        constant_values=fill,
    )
    cells = nm.pad(cells, [(0, rows * columns - count)] + [(0, 0)] * 3, constant_values=fill)
    h, w = h + padding, w + padding
    sheet = nm.permute_dims(nm.reshape(cells, (rows, columns, 3, h, w)), (2, 0, 3, 1, 4))
    sheet = nm.reshape(sheet, (3, rows * h, columns * w))
    return nm.pad(sheet, [(0, 0), (0, padding), (0, padding)], constant_values=fill)


def save_grid(path: str | Path, images: ArrayLike, columns: int = 8, **options: Any) -> None:
    """Write pictures as a grid to a PNG file; options are those of `make_grid`.

    >>> import tempfile
    >>> nm.vision.save_grid(tempfile.mkdtemp() + "/grid.png", nm.ones((4, 3, 8, 8)))
    """
    sheet = make_grid(images, columns, **options)
    pixels = sheet if sheet.dtype is nm.uint8 else quantized(sheet)
    write_png(path, np.ascontiguousarray(np.moveaxis(np.asarray(pixels.to_device("cpu")), 0, -1)))
