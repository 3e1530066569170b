"""Batches of records, gathered array by array from the mapped file.

Records of a file mostly have one form, and differ in the elements of their arrays and in a few
numbers. When a record is read for the first time, its form and its numbers are cached. From then on
a batch of records of one form is made without parsing any: each array of the form is gathered from
all records into one array of the batch, and the numbers come from the cache.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from typing import Any

import numpy as np

from numus import runtime
from numus.data.encoding import HEAD_SIZE, Layout, head, heads, layout
from numus.dtypes import DType, as_dtype
from numus.graph import Storage, View
from numus.primitives.source import value
from numus.runtime.cpu.byte_ops import Source
from numus.runtime.devices import device
from numus.shapes import Shape, row_major
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]

UNREAD, BYTES, ODD = 0, 1, 2  # not forms; ODD: such records are read one by one
_MAX_FORMS, _MAX_HEADS = 64, 4096  # beyond these, records have too little in common
FRAME_SIZE = 16  # bytes of a record before its contents
_COLUMNS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float32, str: np.object_}


class Form:
    """Records that differ in nothing but the contents of arrays, numbers and strings."""

    def __init__(self, forms: Forms, number: int, found: Layout, start: int) -> None:
        self._build = found.build
        count = len(forms.of)
        self._columns: list[Array] = [np.empty(count, _COLUMNS[type(x)]) for x in found.values]
        first = forms.data.ctypes.data + FRAME_SIZE + start
        starts = forms.index.ctypes.data
        sources = [Source(first + at, starts, size) for _, _, at, size in found.arrays]
        kinds: list[tuple[DType, Shape]] = [(dtype, shape) for dtype, shape, _, _ in found.arrays]
        for column in self._columns:
            if column.dtype != object:
                sources.append(Source(column.ctypes.data, 0, column.itemsize))
                kinds.append((as_dtype(column.dtype), ()))
        # dtype, axes after the batch axis, and the strides of all
        self._kinds = [(d, s, (math.prod(s), *row_major(s))) for d, s in kinds]
        self._has_strings = any(c.dtype == object for c in self._columns)
        self._gather = runtime.get("cpu").byte_ops.gatherer(sources, forms.of, number)
        self._arrays = len(found.arrays)

    def note(self, positions: list[int], values: list[list[Any]]) -> None:
        """Cache the numbers and strings of records."""
        for column, part in zip(self._columns, zip(*values, strict=True), strict=True):
            column[positions] = part

    def batch(self, positions: Array) -> Any:
        """A batch of records; None where not all of them have this form."""
        memories = self._gather(positions)
        if memories is None:
            return None
        made = self._arrays_in(memories, len(positions))
        numbers = values = iter(made[self._arrays :])
        if self._has_strings:
            values = (
                column[positions].tolist() if column.dtype == object else next(numbers)
                for column in self._columns
            )
        return self._build(iter(made), values)

    def _arrays_in(self, memories: list[Any], count: int) -> list[Any]:
        """Host memory as tensors if the default device is the CPU, else as arrays."""
        dev = device()
        found = zip(memories, self._kinds, strict=True)
        if dev.kind == "cpu":
            return [
                Tensor(value(View(Storage(m), 0, strides), (count, *shape), dtype, dev))
                for m, (dtype, shape, strides) in found
            ]
        return [
            m.view(dtype.np, count * strides[0]).reshape(count, *shape)
            for m, (dtype, shape, strides) in found
        ]


class Forms:
    """The forms of a file's records, as far as they have been read."""

    def __init__(self, data: memoryview, index: Array) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.index = index.astype(np.uint64, copy=False)
        self.of = np.zeros(len(index), np.int32)  # the form of each record
        self._known: list[Any] = [None, None, None]
        self._numbers: dict[Any, int] = {}
        self._heads: dict[bytes, tuple[int, list[Any], int]] = {}
        self._adding = threading.Lock()

    def learn(self, positions: Array, starts: Array, sizes: Array) -> None:
        """Cache the forms of records, whose contents are at these bytes of the file."""
        data = self.data.data
        kinds, lengths, good = heads(data, starts, sizes)
        for begin, size in zip(starts[~good].tolist(), sizes[~good].tolist(), strict=True):
            head(data[begin : begin + size])  # raises
        trees = kinds != 0
        self.of[positions[~trees]] = BYTES
        noted: dict[int, tuple[list[int], list[list[Any]]]] = defaultdict(lambda: ([], []))
        begins = starts[trees] + HEAD_SIZE
        columns = positions[trees], begins, begins + lengths[trees], sizes[trees]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for position, begin, end, size in rows:
            text = data[begin:end].tobytes()
            number, values, needed = self._heads.get(text) or self._read(text)
            group = noted[ODD if needed > size else number]
            group[0].append(position)
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
        if len(self._heads) < _MAX_HEADS:
            self._heads[text] = noted
        return noted

    def _number(self, found: Layout, start: int) -> int:
        plain = all(
            type(x) in _COLUMNS and (type(x) is not int or -(1 << 63) <= x < 1 << 63)
            for x in found.values
        )
        gathers = found.arrays or any(type(x) is not str for x in found.values)
        if found.has_bytes or not plain or not gathers:
            return ODD
        key = found.form, start
        with self._adding:
            if key not in self._numbers and len(self._numbers) < _MAX_FORMS:
                number = self._numbers[key] = len(self._known)
                self._known.append(Form(self, number, found, start))
            return self._numbers.get(key, ODD)

    def gathered(self, positions: Array) -> Any:
        """A batch of records that have been read before; None where they are not of one form."""
        try:
            number = self.of[positions[0]]
        except IndexError:
            return None
        return self._known[number].batch(positions) if number > ODD else None
