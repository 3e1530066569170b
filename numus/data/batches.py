"""Batches of records gathered where they lie, not record by record.

Records of a file mostly have one structure, and differ in what their arrays hold and in a few
numbers. Then each array of the structure is copied from all records into one array of the batch; of
the rest, only the numbers have to be looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numus.data.collate import stacked
from numus.data.encoding import HEAD_SIZE, Layout, head, layout

_LONG_ROW = 32 << 10  # bytes that are worth a call of their own for each record


def gathered(records: Any, places: np.ndarray[Any, Any]) -> Any:
    """A batch of records; None where they are not alike enough, and have to be read one by one."""
    if not len(places):
        return None
    words, firsts, lengths = records.find(places)
    length = int(lengths[0])
    if (lengths != length).any() or length < HEAD_SIZE:
        return None
    contents = records.contents(int(places[0]))
    kind, start = head(contents)
    heads = words[firsts[:, None] + np.arange(start // 8)]
    if kind == 0 or (heads[:, 0] != heads[0, 0]).any():  # kinds and lengths of heads
        return None
    first = layout(bytes(contents[HEAD_SIZE:start]))
    layouts, which = _distinct(heads)
    unlike = any(x.form != first.form for x in layouts)
    too_long = any(at + size > length - start for _, _, at, size in first.arrays)
    if first.has_bytes or unlike or too_long:
        return None
    arrays = [
        _rows(words, firsts + (start + at) // 8, size, len(places)).view(dtype.np)
        for dtype, _, at, size in first.arrays
    ]
    shaped = [
        a.reshape(len(places), *shape)
        for a, (_, shape, _, _) in zip(arrays, first.arrays, strict=True)
    ]
    return first.build(iter(shaped), iter(_values(layouts, which)))


def _distinct(heads: np.ndarray[Any, Any]) -> tuple[list[Layout], np.ndarray[Any, Any]]:
    """The layouts of heads, each once, and which of them each record has."""
    differing = (heads != heads[0]).any(axis=0)
    if not differing.any():
        which = np.zeros(len(heads), np.intp)
        unique = which[:1]
    else:
        keys = np.ascontiguousarray(heads[:, differing])
        if keys.shape[1] > 1:
            keys = keys.view(np.dtype((np.void, keys.shape[1] * 8)))
        _, unique, which = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    texts = heads[unique].view(np.uint8)[:, HEAD_SIZE:]
    return [layout(text.tobytes()) for text in texts], which


def _rows(
    words: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], size: int, count: int
) -> np.ndarray[Any, Any]:
    """So many bytes from each start, one row behind the other."""
    width = -(-size // 8)
    if width * 8 > _LONG_ROW:
        out = np.empty((count, size), np.uint8)
        for row, start in zip(out, starts.tolist(), strict=True):
            row[:] = words[start : start + width].view(np.uint8)[:size]
        return out
    if size == 0:
        return np.empty((count, 0), np.uint8)
    # all windows of this width, of which only those that are asked for are ever looked at
    shape = len(words) - width + 1, width
    windows = np.ndarray(shape, words.dtype, buffer=words.data, strides=(8, 8))
    found = windows[starts].view(np.uint8)
    return found if size == width * 8 else np.ascontiguousarray(found[:, :size])


def _values(layouts: list[Layout], which: np.ndarray[Any, Any]) -> list[Any]:
    """The numbers and strings of all records, each collated."""
    found = []
    for column in zip(*(x.values for x in layouts), strict=True):
        values = stacked(column, "")
        alike = isinstance(values, np.ndarray)
        found.append(values[which] if alike else [values[i] for i in which.tolist()])
    return found
