"""Batches of records gathered where they lie, not record by record.

Records of a file mostly have one form, and differ in what their arrays hold and in a few numbers.
When a record is read for the first time, its form and its numbers are noted. From then on a batch
of records of one form is made without a look at any of them: each array of the form is copied from
all records into one array of the batch, and the numbers are picked from what was noted.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from numus.data.encoding import HEAD_SIZE, Layout, head, heads, layout

Array = np.ndarray[Any, Any]

UNREAD, BYTES, ODD = 0, 1, 2  # forms that are none; ODD: such records are read one by one
_MANY_FORMS, _MANY_HEADS = 64, 4096  # more are not kept: such records have little in common
FRAME_SIZE = 16  # bytes of a record before its contents
_COLUMNS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float32, str: np.object_}


class Form:
    """Records that differ in nothing but the contents of arrays, numbers and strings."""

    def __init__(self, found: Layout, start: int, count: int) -> None:
        self._layout = found
        self._start = start  # where arrays begin behind a record's beginning
        self._columns: list[Array] = [np.empty(count, _COLUMNS[type(x)]) for x in found.values]

    def note(self, places: list[int], values: list[list[Any]]) -> None:
        """Remember the numbers and strings of records."""
        for column, part in zip(self._columns, zip(*values, strict=True), strict=True):
            column[places] = part

    def batch(self, data: memoryview, at: Array, places: Array) -> Any:
        """A batch of records, given where they begin."""
        arrays = []
        for dtype, shape, start, size in self._layout.arrays:
            rows = _rows(data, at + (self._start + start), size)
            arrays.append(rows.view(dtype.np).reshape(len(places), *shape))
        picked = (column[places] for column in self._columns)
        values = (x.tolist() if x.dtype == object else x for x in picked)
        return self._layout.build(iter(arrays), values)


def _rows(data: memoryview, starts: Array, size: int) -> Array:
    """So many bytes from each start (a multiple of 8), one row behind the other."""
    if size == 0:
        return np.empty((len(starts), 0), np.uint8)
    # all stretches of this size as single elements, of which few are ever looked at
    count = (len(data) - size) // 8 + 1
    stretches = np.ndarray((count,), np.dtype((np.void, size)), buffer=data, strides=(8,))
    return stretches[starts >> 3].view(np.uint8)


class Forms:
    """The forms of a file's records, as far as they have been read."""

    def __init__(self, count: int) -> None:
        self.of = np.zeros(count, np.int32)  # the form of each record
        self._known: list[Any] = [None, None, None]
        self._numbers: dict[Any, int] = {}
        self._heads: dict[bytes, tuple[int, list[Any], int]] = {}
        self._adding = threading.Lock()

    def learn(self, places: Array, data: memoryview, starts: Array, sizes: Array) -> None:
        """Note the forms of records, whose contents are at these bytes of the file."""
        kinds, lengths, good = heads(data, starts, sizes)
        for begin, size in zip(starts[~good].tolist(), sizes[~good].tolist(), strict=True):
            head(data[begin : begin + size])  # which says what is wrong with it
        trees = kinds != 0
        self.of[places[~trees]] = BYTES
        noted: dict[int, tuple[list[int], list[list[Any]]]] = {}
        known = self._heads
        begins = starts[trees] + HEAD_SIZE
        ends = (begins + lengths[trees]).tolist()
        rows = zip(
            *(places[trees].tolist(), begins.tolist(), ends, sizes[trees].tolist()), strict=True
        )
        for place, begin, end, size in rows:
            text = data[begin:end].tobytes()
            number, values, needed = known.get(text) or self._read(text)
            if needed > size:
                number = ODD
            group = noted.get(number)
            if group is None:
                group = noted[number] = ([], [])
            group[0].append(place)
            group[1].append(values)
        for number, (found, values) in noted.items():
            if number != ODD:
                self._known[number].note(found, values)
            self.of[found] = number

    def _read(self, text: bytes) -> tuple[int, list[Any], int]:
        """The form that a head says, its numbers and strings, and where the last array ends."""
        found = layout(text)
        start = HEAD_SIZE + len(text)
        needed = start + max((at + size for _, _, at, size in found.arrays), default=0)
        noted = self._number(found, start), found.values, needed
        if len(self._heads) < _MANY_HEADS:
            self._heads[text] = noted
        return noted

    def _number(self, found: Layout, start: int) -> int:
        plain = all(type(x) in _COLUMNS and _fits(x) for x in found.values)
        if found.has_bytes or not plain:
            return ODD
        key = found.form, start
        with self._adding:
            if key not in self._numbers and len(self._numbers) < _MANY_FORMS:
                self._known.append(Form(found, FRAME_SIZE + start, len(self.of)))
                self._numbers[key] = len(self._known) - 1
            return self._numbers.get(key, ODD)

    def gathered(self, data: memoryview, index: Array, places: Array) -> Any:
        """A batch of records that have been read before; None where they are not of one form."""
        numbers = self.of[places]
        number = int(numbers[0])
        if number <= ODD or (numbers != number).any():
            return None
        return self._known[number].batch(data, index[places].astype(np.int64), places)


def _fits(x: Any) -> bool:
    return type(x) is not int or -(1 << 63) <= x < 1 << 63
