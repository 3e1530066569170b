"""Records: examples in one .rrec file, read from its memory-mapped pages.

    header    64 bytes: "RREC", version (u32), number of records (u64), where the index begins
              (u64), checksum of the index (u32), checksum of the header (u32), zeros
    records   each: length (u64), checksum of the contents (u32), checksum of these 12 bytes (u32),
              contents, zeros up to a multiple of 8
    index     where each record begins (u64)

All numbers are little-endian; checksums are CRC-32. A new file is written beside the old one and
takes its place when it is finished. Records that are appended follow the index, and another index
follows them; the header, written last, switches to it. Readers of what was there before keep it,
and every record that an interrupted writer had flushed can be found by its own checksums
(`RecordWriter.recover`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from numus import runtime
from numus.data.batches import BYTES, FRAME_SIZE, UNREAD, Forms
from numus.data.collate import stacked
from numus.data.datasets import Dataset
from numus.data.encoding import HEAD_SIZE, decode, encode
from numus.errors import RecordError
from numus.files import (
    PathLike,
    Replacement,
    abandoned,
    locked,
    open_regular,
    refusals,
    sync_folder,
)

__all__ = ["RecordDataset", "RecordWriter"]

_MAGIC, _VERSION = b"RREC", 1
_HEADER = struct.Struct("<4sIQQI")  # without its own checksum
_HEADER_SIZE = 64
_FRAME = struct.Struct("<QI")  # likewise
_CHECK = struct.Struct("<I")
_READAHEAD_BYTES = 1 << 17  # that systems read at once


def _header(count: int, index_at: int, index_sum: int) -> bytes:
    head = _HEADER.pack(_MAGIC, _VERSION, count, index_at, index_sum)
    head += _CHECK.pack(zlib.crc32(head))
    return head.ljust(_HEADER_SIZE, b"\0")


_UNFINISHED = _header(0, 0, 0)


def _read_header(data: Any, path: PathLike, size: int) -> tuple[int, int, int]:
    """The number of records, where the index begins, and its checksum."""
    if size < _HEADER_SIZE:
        raise RecordError(f"{path} is not a record file: it has {size} bytes, a header alone 64")
    magic, version, count, index_at, index_sum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise RecordError(f"{path} is not a record file: it begins with {magic!r}, not {_MAGIC!r}")
    (check,) = _CHECK.unpack_from(data, _HEADER.size)
    if check != zlib.crc32(bytes(data[: _HEADER.size])):
        raise RecordError(
            f"{path}: the header is damaged (its checksum is wrong); RecordWriter.recover(path) "
            "finds the records that are whole"
        )
    if version != _VERSION:
        raise RecordError(f"{path}: version {version} of the format is not known, {_VERSION} is")
    return count, index_at, index_sum


# -- writing --------------------------------------------------------------------------------------


class RecordWriter:
    """Writes a record file; as a context manager it finishes the file, unless an error occurred.

    Until it is finished, `path` is what it was.

    >>> import tempfile, os
    >>> from numus.data import RecordDataset, RecordWriter
    >>> path = os.path.join(tempfile.mkdtemp(), "train.rrec")
    >>> with RecordWriter.create(path) as writer:
    ...     for i in range(3):
    ...         writer.write_record({"x": nm.full((2,), i), "y": i})
    >>> RecordDataset.open(path)[2]["y"]
    2
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._offsets: list[int] = []
        self._end = _HEADER_SIZE
        self._bytes = 0  # of records
        self._changed = True  # the index of the file, if it has one, is another
        with refusals(path, kept=True):
            self._replacement: Replacement | None = Replacement(path)
            self._file: BinaryIO = self._replacement.file
            self._file.write(_UNFINISHED)

    @classmethod
    def create(cls, path: PathLike) -> RecordWriter:
        """A new file; replaces one that exists when it is finished."""
        return cls(path)

    @classmethod
    def append(cls, path: PathLike) -> RecordWriter:
        """A writer that continues after the last whole record of a file, finished or not."""
        found = _whole_records(path)
        writer = object.__new__(cls)
        writer.path, writer._replacement = Path(path), None
        writer._offsets, writer._end = found.offsets, found.end
        writer._bytes, writer._changed = found.bytes, found.changed
        with refusals(path):
            writer._file = open(path, "r+b")  # noqa: SIM115
            if not locked(writer._file.fileno(), wait=False):
                writer._file.close()
                raise RecordError(f"{path}: another RecordWriter is appending to it")
            if not found.finished:
                writer._file.write(_UNFINISHED)
            writer._file.truncate(found.end)
            writer._file.seek(found.end)
        return writer

    @classmethod
    def recover(cls, path: PathLike) -> int:
        """Finish a file whose writer was interrupted: gives how many whole records it has.

        Where there is no file yet, the one that an interrupted `create` left beside it is taken.
        """
        path = Path(os.path.realpath(path))
        part = None if path.exists() else _left_behind(path)
        with cls.append(path if part is None else part) as writer:
            count = len(writer)
        if part is not None:
            with refusals(path):
                os.replace(part, path)
                sync_folder(path.parent)
        return count

    def __len__(self) -> int:
        return len(self._offsets)

    def write_record(self, example: Any) -> None:
        """Add a record: bytes, or tensors, arrays, numbers and strings in dicts, lists, tuples."""
        if self._file.closed:
            raise ValueError(f"RecordWriter: {self.path} is finished")
        contents = encode(example)
        frame = _FRAME.pack(len(contents), zlib.crc32(contents))
        frame += _CHECK.pack(zlib.crc32(frame))
        self._add(frame + contents + b"\0" * (-len(contents) % 8))

    def _add(self, record: bytes) -> None:
        with self._refusals():
            self._file.write(record)
        self._offsets.append(self._end)
        self._end += len(record)
        self._bytes += len(record)
        self._changed = True

    def _refusals(self) -> contextlib.AbstractContextManager[None]:
        return refusals(self.path, kept=self._replacement is not None)

    def flush(self) -> None:
        """Hand all that was written to the disk: it can be recovered from then on."""
        with self._refusals():
            self._file.flush()
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write the index, and the header that says that the file is whole."""
        if self._file.closed:
            return
        if self._changed:
            index = np.asarray(self._offsets, "<u8").tobytes()
            with self._refusals():
                self._file.write(index)
            self.flush()
            with self._refusals():
                self._file.seek(0)
                self._file.write(_header(len(self._offsets), self._end, zlib.crc32(index)))
            self.flush()
        if self._replacement is not None:
            with self._refusals():
                self._replacement.commit()
        self._file.close()
        if self._replacement is None and self._end - _HEADER_SIZE > 2 * self._bytes:
            with contextlib.suppress(OSError):  # the file is good as it is
                _compact(self.path)

    def close(self) -> None:
        """Close the file: unfinished, unless `finish` was called."""
        with self._refusals():
            self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
            self.close()


def _compact(path: PathLike) -> None:
    """Write a file anew, without the indices that appending has left between its records."""
    new = RecordWriter(path)
    try:
        with open_regular(path) as old:
            for at in _whole_records(path).offsets:
                old.seek(at)
                frame = old.read(FRAME_SIZE)
                (length, _) = _FRAME.unpack_from(frame)
                new._add(frame + old.read(length + (-length % 8)))
        new.finish()
    except BaseException:
        assert new._replacement is not None
        new._replacement.discard()
        raise


class _Found(NamedTuple):
    """The whole records of a file."""

    offsets: list[int]
    end: int  # where the next may begin
    bytes: int  # of all
    finished: bool  # the file can be opened
    changed: bool  # its index has other records


def _whole_records(path: PathLike) -> _Found:
    """Find whole records: those of the index, and those that follow one another after it."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(4) != _MAGIC:
            raise RecordError(f"{path} is not a record file")
        listed = _listed(file, size)
        known, end = listed or ([], _HEADER_SIZE)
        ends = [(at, _record_end(file, at, end)) for at in known]
        found = [(at, stop) for at, stop in ends if stop is not None]
        at = end
        while True:
            stop = _record_end(file, at, size)
            if stop is not None:
                found.append((at, stop))
                at = end = stop
                continue
            index = np.asarray([at for at, _ in found], "<u8").tobytes()
            file.seek(at)
            if not found or file.read(len(index)) != index:  # of a file that was appended to
                break
            at += len(index)
    offsets = [at for at, _ in found]
    total = sum(stop - at for at, stop in found)
    return _Found(offsets, end, total, listed is not None, listed is None or offsets != known)


def _record_end(file: BinaryIO, at: int, limit: int) -> int | None:
    """Where the record that begins at a position ends; None if it is not whole."""
    if at < _HEADER_SIZE or at % 8 or at + FRAME_SIZE > limit:
        return None
    file.seek(at)
    frame = file.read(FRAME_SIZE)
    length, check = _FRAME.unpack_from(frame)
    (own,) = _CHECK.unpack_from(frame, _FRAME.size)
    stop: int = at + FRAME_SIZE + length + (-length % 8)
    if own != zlib.crc32(frame[: _FRAME.size]) or stop > limit:
        return None
    return stop if zlib.crc32(file.read(length)) == check else None


def _listed(file: BinaryIO, size: int) -> tuple[list[int], int] | None:
    """The records of a finished file's index, and its end; None where there is none."""
    file.seek(0)
    try:
        count, index_at, index_sum = _read_header(file.read(_HEADER_SIZE), file.name, size)
    except RecordError:
        return None
    end = index_at + 8 * count
    if index_at < _HEADER_SIZE or index_at % 8 or end > size:
        return None
    file.seek(index_at)
    index = file.read(8 * count)
    if zlib.crc32(index) != index_sum:
        return None
    return np.frombuffer(index, "<u8").tolist(), end


def _left_behind(path: Path) -> Path | None:
    """What an interrupted `create` left beside a file that is not there."""
    found = [p for p in abandoned(path) if p.stat().st_size >= _HEADER_SIZE]
    return found[0] if found else None


# -- reading --------------------------------------------------------------------------------------


class RecordDataset(Dataset):
    """The records of a file, with random access.

    Arrays are views of the file's memory-mapped pages; reading takes no lock, so any number of
    threads may read.

    Args:
        verify: check each record's checksum when it is read for the first time.
    """

    def __init__(self, path: PathLike, verify: bool = True) -> None:
        self.path = Path(path)
        self.verify = verify
        self._map()

    def _map(self) -> None:
        """Open the file."""
        if not self.path.exists() and _left_behind(self.path) is not None:
            raise RecordError(
                f"{self.path} was not finished by its writer; RecordWriter.recover(path) keeps the "
                "records that are whole"
            )
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER_SIZE:
                _read_header(b"", self.path, size)
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = memoryview(self._pages)
        self._index = self._checked(size)
        self._words = np.frombuffer(self._data, "<u8", size // 8)
        self._verified = np.zeros(len(self._index), np.bool_)
        self._forms = Forms(self._data, self._index)

    @classmethod
    def open(cls, path: PathLike, verify: bool = True) -> RecordDataset:
        """The records of a file."""
        return cls(path, verify)

    def _checked(self, size: int) -> np.ndarray[Any, Any]:
        count, index_at, index_sum = _read_header(self._data, self.path, size)
        way_out = "RecordWriter.recover(path) keeps the records that are whole"
        if index_at == 0:
            raise RecordError(f"{self.path} was not finished by its writer; {way_out}")
        end = index_at + 8 * count
        self._end = index_at  # of the records
        if index_at < _HEADER_SIZE or index_at % 8:
            raise RecordError(f"{self.path}: the header puts the index at {index_at}")
        if end > size:
            raise RecordError(
                f"{self.path} is cut off: it has {size} bytes, its index ends at {end}; {way_out}"
            )
        if zlib.crc32(self._data[index_at:end]) != index_sum:
            raise RecordError(f"{self.path}: the index is damaged (wrong checksum); {way_out}")
        return np.frombuffer(self._data, "<u8", count, index_at)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"{self.path}: there is no record {index} among {len(self)}")
        contents = self.contents(position)
        try:
            return decode(contents)
        except RecordError as error:
            raise RecordError(f"{self.path}: record {position}: {error}") from None

    def contents(self, position: int) -> memoryview:
        """The bytes of a record, which are what they were."""
        at = int(self._index[position])
        start = at + FRAME_SIZE
        what = f"{self.path}: record {position} is"
        if at < _HEADER_SIZE or at % 8 or start > self._end:
            raise RecordError(f"{what} said to begin at {at}, where none can be")
        length, check = _FRAME.unpack_from(self._data, at)
        if start + length > self._end:
            raise RecordError(f"{what} said to have {length} bytes, more than there are")
        contents = self._data[start : start + length]
        if self.verify and not self._verified[position]:
            if zlib.crc32(contents) != check:
                raise RecordError(f"{what} damaged (its checksum is wrong)")
            self._verified[position] = True
        return contents

    def _read(self, indices: Any) -> np.ndarray[Any, Any]:
        """Positions of records, all of which have been read."""
        positions = np.asarray(indices, np.int64)
        try:
            unread = self._forms.of[positions] == UNREAD
        except IndexError:
            outside = positions[(positions < -len(self)) | (positions >= len(self))]
            raise IndexError(
                f"{self.path}: there is no record {outside[0]} among {len(self)}"
            ) from None
        if unread.any():
            self._learn(np.unique(positions[unread] % len(self)))
        return positions

    def _learn(self, wanted: np.ndarray[Any, Any]) -> None:
        """Check records read for the first time, with those read ahead, and cache their forms."""
        positions = self._with_adjacent(wanted)
        at = self._index[positions]
        good = (at >= _HEADER_SIZE) & (at % 8 == 0) & (at <= self._end - FRAME_SIZE)
        words = np.where(good, at, 0) >> 3
        lengths = self._words[words]
        good &= lengths <= self._end - FRAME_SIZE - (words << 3)
        starts = np.where(good, at + FRAME_SIZE, 0).astype(np.int64)
        sizes = np.where(good, lengths, 0).astype(np.int64)
        if self.verify:
            sums = self._words[words + 1] & 0xFFFFFFFF
            good &= runtime.get("cpu").byte_ops.checksums(self._forms.data, starts, sizes) == sums
        for position in np.intersect1d(positions[~good], wanted).tolist():
            self.contents(position)  # raises
        self._verified[positions[good]] = self.verify
        try:
            self._forms.learn(positions[good], starts[good], sizes[good])
        except RecordError:
            for position in wanted.tolist():
                self[position]  # raises if it cannot be read; else a neighbour cannot
            mine = np.isin(positions, wanted)
            self._forms.learn(positions[mine], starts[mine], sizes[mine])

    def _with_adjacent(self, wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Positions of records, and of unread ones that are read ahead with them."""
        count = _READAHEAD_BYTES * len(self) // max(self._end, 1)
        if count < 2:
            return wanted
        groups = np.unique(wanted // count) * count
        positions = (groups[:, None] + np.arange(count)).ravel()
        positions = positions[positions < len(self)]
        return positions[self._forms.of[positions] == UNREAD]

    def get_batch(self, indices: Sequence[int]) -> Any:
        """Many records at once, collated: arrays of one shape are gathered by whole batches."""
        if not len(indices):
            raise ValueError(f"{self.path}: a batch of no records has no structure")
        positions = np.ascontiguousarray(indices, np.int64)
        batch = self._forms.gathered(positions)
        if batch is None:
            batch = self._forms.gathered(self._read(positions))
        return stacked(self.__getitems__(positions), "") if batch is None else batch

    def __getitems__(self, indices: Any) -> list[Any]:
        """Many records at once, one by one."""
        positions = self._read(indices)
        if (self._forms.of[positions] != BYTES).any():
            return [self[i] for i in positions.tolist()]
        at = self._index[positions]
        starts = (at + (FRAME_SIZE + HEAD_SIZE)).tolist()
        stops = (at + FRAME_SIZE + self._words[at >> 3]).tolist()
        pages = self._pages
        return [pages[a:b] for a, b in zip(starts, stops, strict=True)]

    def __getstate__(self) -> dict[str, Any]:  # a worker process opens the file for itself
        return {k: v for k, v in self.__dict__.items() if k not in _OF_THE_FILE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()


_OF_THE_FILE = ("_pages", "_data", "_index", "_end", "_words", "_verified", "_forms")
