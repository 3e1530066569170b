"""Columns by descending degree, so that elements of a vector that are read often share cache lines
(hub sorting; Balaji & Lucia, "When is graph reordering an optimization?", 2018)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MIN_ENTRIES = 1 << 20
MIN_COLUMNS = 1 << 17  # fewer are near in any order
SAMPLE = 1 << 16  # entries
WINDOW = 256  # entries that follow each other
LINE_COLUMNS = 8  # elements of a sector of 32 bytes
MIN_SKEW = 8.0  # how much more often two entries share a column than in a uniform matrix
MIN_DISTINCT_LINES = 0.5  # of the entries of a window: with fewer, neighbours are near already


def is_skewed(indices: Array, columns: int) -> bool:
    """Whether some columns have most of the entries, in no order, by a sample of a fixed seed."""
    if indices.size < MIN_ENTRIES or columns < MIN_COLUMNS:
        return False
    starts = np.random.default_rng(0).integers(0, indices.size - WINDOW, SAMPLE // WINDOW)
    sample = indices[starts[:, None] + np.arange(WINDOW)]
    lines = np.sort(sample // LINE_COLUMNS, axis=1)
    distinct = (lines[:, 1:] != lines[:, :-1]).mean()
    if distinct < MIN_DISTINCT_LINES:
        return False
    _, counts = np.unique(sample, return_counts=True)
    pairs = float((counts * (counts - 1.0)).sum())
    return pairs >= MIN_SKEW * sample.size * (sample.size - 1.0) / columns


def by_degree(indices: Array, columns: int) -> tuple[Array, Array]:
    """The columns in their new order, and the new number of each."""
    counts = np.bincount(indices, minlength=columns)
    order = np.argsort(-counts, kind="stable").astype(indices.dtype)
    number = np.empty_like(order)
    number[order] = np.arange(columns, dtype=indices.dtype)
    return order, number
