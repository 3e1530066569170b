"""How many columns a panel of a tall matrix has, so that registers of a GPU hold it."""

from __future__ import annotations

from numus.dtypes import DType
from numus.target import Target

ROW_WORDS = 64  # registers of a thread for elements: as many again are left for the rest
MIN_WIDTH, MAX_WIDTH = 4, 32


def panel_threads(target: Target) -> int:
    """Of a block: half of what it can have, for which registers hold more than 64 words each."""
    return max(target.max_block_size // 2, target.block_size)


def register_rows(width: int, dtype: DType) -> int:
    """Rows of a panel that a thread holds."""
    return ROW_WORDS // (width * dtype.itemsize // 4)


def panel_width(target: Target, rows: int, most: int, dtype: DType) -> int:
    """The most columns of a panel of so many rows, a power of two; `most` where none fits."""
    threads = target.max_cluster_size * panel_threads(target)
    width = most
    while width >= MIN_WIDTH:
        if register_rows(width, dtype) * threads >= rows:
            return width
        width //= 2
    return most


def holds_panels(target: Target, rows: int, dtype: DType) -> bool:
    """Whether registers of a cluster hold panels of this many rows."""
    if not target.simt or target.max_cluster_size == 1:
        return False
    width = panel_width(target, rows, MAX_WIDTH, dtype)
    return register_rows(width, dtype) * target.max_cluster_size * panel_threads(target) >= rows
