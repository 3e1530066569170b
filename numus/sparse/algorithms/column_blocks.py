"""Propagation blocking of products with a vector (Beamer, Asanović & Patterson 2017), by gathers.

A panel of rows reads the vector by blocks of columns that fit the L2 cache, and puts the element of
each entry into a scratch array, which it then multiplies by the values row by row. Both passes are
streams but for the elements of one block, and rows are added up as they are without blocks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from numus import config
from numus.codegen.cpu.sequential import INDEX32, Array
from numus.kernels.sparse.rows import BLOCK_COLUMNS, PANEL_ENTRIES
from numus.runtime.cpu.sequential import sequential
from numus.target import Target

# Measured on a 2-core x86-64 (Cascade Lake, 1 MiB of L2).
MAX_COLUMNS = 1 << 20  # beyond, a panel has too few entries for each line of the vector
MIN_ROW_ENTRIES = 8  # on average; shorter rows take as long without blocks
PANELS_PER_CORE = 4
MAX_ROW_SHARE = 8  # a row has at most one of this many parts of a panel
ELEMENT_BYTES = 4  # of a vector of which the size is compared with the L2 cache

SAMPLES = 8
SAMPLE_ENTRIES = 1 << 14
LINE_COLUMNS = 16
MIN_LINES = 0.5  # different ones for each entry of a sample, where columns are in random order


@dataclass(frozen=True)
class ColumnBlocks:
    """Panel t has the rows panels[t] … panels[t + 1] - 1. Its scratch array has the elements of
    block b from starts[t · blocks + b] on, relative to the panel's first entry; `offsets` are their
    columns within the block, and places[e] is where in the scratch array that of entry e is."""

    panels: Array
    starts: Array
    offsets: Array
    places: Array


@sequential
def fill_panel(
    begin: int, end: int, width: int, blocks: int, indices: INDEX32, next_place: INDEX32,
    starts: INDEX32, offsets: INDEX32, places: INDEX32,
) -> None:  # fmt: skip
    """A counting sort of the entries begin … end - 1 by their block."""
    for b in range(blocks + 1):
        next_place[b] = 0
    for entry in range(begin, end):
        next_place[indices[entry] // width + 1] += 1
    for b in range(blocks):
        next_place[b + 1] += next_place[b]
        starts[b] = begin + next_place[b]
    for entry in range(begin, end):
        b = indices[entry] // width
        place = next_place[b]
        next_place[b] = place + 1
        offsets[place] = indices[entry] - b * width
        places[entry] = place


def column_blocks(
    columns: int, pointers: Array, indices: Array, target: Target
) -> ColumnBlocks | None:
    """The blocks of a pattern of int32; None where the vector fits the L2 cache or is not read in
    random order, and where there are too few entries for all cores. About as much work as two or
    three products."""
    nnz, longest = indices.size, int(np.diff(pointers).max(initial=0))
    is_large = target.l2_bytes <= ELEMENT_BYTES * columns and columns <= MAX_COLUMNS
    least = PANELS_PER_CORE * PANEL_ENTRIES * max(1, target.num_cores)
    is_long = nnz >= max(least, MIN_ROW_ENTRIES * (pointers.size - 1))
    if not (is_large and is_long) or longest * MAX_ROW_SHARE > PANEL_ENTRIES:
        return None
    if not (_is_scattered(indices) and _is_valid(columns, pointers, indices)):
        return None
    goals = np.arange(0, nnz, PANEL_ENTRIES - longest)[1:]
    cuts = np.searchsorted(pointers, goals)
    panels = np.unique(np.concatenate([[0], cuts, [pointers.size - 1]])).astype(np.int32)
    count, blocks = panels.size - 1, -(-columns // BLOCK_COLUMNS)
    starts = np.full(count * blocks + 1, nnz, np.int32)
    offsets, places = np.empty(nnz, np.uint16), np.empty(nnz, np.int32)

    def fill(t: int) -> None:
        begin, end = (int(pointers[panels[i]]) for i in (t, t + 1))
        own, next_place = np.empty(end - begin + 1, np.int32), np.empty(blocks + 1, np.int32)
        first = starts[t * blocks : (t + 1) * blocks]
        fill_panel(begin, end, BLOCK_COLUMNS, blocks, indices, next_place, first, own, places)
        offsets[begin:end] = own[:-1]

    with ThreadPoolExecutor(config.default_threads()) as pool:
        list(pool.map(fill, range(count)))
    return ColumnBlocks(panels, starts, offsets, places)


def _is_scattered(indices: Array) -> bool:
    """Most entries read other lines of the vector than those beside them."""
    begins = np.linspace(0, indices.size - SAMPLE_ENTRIES, SAMPLES).astype(np.int64)
    lines = (np.unique(indices[b : b + SAMPLE_ENTRIES] // LINE_COLUMNS).size for b in begins)
    return sum(lines) >= MIN_LINES * SAMPLES * SAMPLE_ENTRIES


def _is_valid(columns: int, pointers: Array, indices: Array) -> bool:
    """Every entry is in one row, and within the columns."""
    ends = pointers[0] == 0 and pointers[-1] == indices.size
    rows = bool((pointers[1:] >= pointers[:-1]).all())
    return bool(ends) and rows and bool(indices.min() >= 0) and bool(indices.max() < columns)
