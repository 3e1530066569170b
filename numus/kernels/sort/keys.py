"""Order-preserving sort keys: unsigned integers that compare as the values do, NaN last.

CPU sorts move `Records` of a key and, for argsort, the element's index in the row. Ties are ordered
by index, so results depend neither on the schedule nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select

Record = list[Expr]  # one expression per field
Read = Callable[[Expr], Record]  # the record of an index of the row
Write = Callable[[Expr, Expr], list[Stmt]]  # store the result of a rank


def key_dtype(dtype: DType) -> DType:
    return dt.uint8 if dtype is dt.bool_ else dt.BY_NAME[f"uint{dtype.bits}"]


def infinity_bits(dtype: DType) -> int:
    """The bits of infinity, or of the largest finite number where there is none."""
    with np.errstate(all="ignore"):
        infinite = np.array(np.inf).astype(dtype.np)
    bits = int.from_bytes(infinite.tobytes(), "little")
    return bits if infinite == np.inf else bits - 1


def encode(x: Expr, descending: bool, ties: bool) -> Expr:
    """The key of a value.

    With `ties`, equal values have equal keys: both zeros, all NaNs. Without, keys are unique (but
    for the sign of NaN), so that `decode` inverts them.
    """
    unsigned = key_dtype(x.dtype)
    if x.dtype is dt.bool_:
        key = x.cast(unsigned)
    elif x.dtype.kind == "uint":
        key = x
    elif x.dtype.kind == "int":
        key = x.bitcast(unsigned) ^ const(1 << (x.dtype.bits - 1), unsigned)
    else:
        bits = x.bitcast(unsigned)
        sign = const(1 << (x.dtype.bits - 1), unsigned)
        magnitude = bits & ~sign
        key = select((bits & sign).ne(0), ~bits, bits | sign)
        if ties:
            key = select(magnitude.eq(0), sign, key)
        nan = const(-1, unsigned) if ties else magnitude | sign
        key = select(magnitude > infinity_bits(x.dtype), nan, key)
    return ~key if descending else key


def decode(key: Expr, dtype: DType, descending: bool) -> Expr:
    """The value of a key that was encoded without `ties`."""
    if descending:
        key = ~key
    if dtype is dt.bool_:
        return key.ne(0)
    if dtype.kind == "uint":
        return key
    sign = const(1 << (dtype.bits - 1), key.dtype)
    if dtype.kind == "int":
        return (key ^ sign).bitcast(dtype)
    return select((key & sign).eq(0), ~key, key ^ sign).bitcast(dtype)


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The record of an element: a key; a key with the index in its low bits; a key and an index."""

    dtype: DType  # of the values
    descending: bool
    argsort: bool  # indices are the result, not values
    fields: tuple[DType, ...]
    index_bits: int  # of the first field
    compare_floats: bool  # networks compare values instead of keys, NaN handled apart

    @property
    def key(self) -> DType:
        return self.fields[0]

    @property
    def itemsize(self) -> int:
        return sum(f.itemsize for f in self.fields)

    def record(self, value: Expr, index: Expr) -> Record:
        key = encode(value, self.descending, self.argsort)
        if self.index_bits:
            return [key.cast(self.key) << self.index_bits | index.cast(self.key)]
        return [key, *(index.cast(f) for f in self.fields[1:])]

    def result(self, record: Record) -> Expr:
        """The value of a record, or its index."""
        if not self.argsort:
            return decode(record[0], self.dtype, self.descending)
        if self.index_bits:
            return (record[0] & ((1 << self.index_bits) - 1)).cast(ir.INDEX)
        return record[1].cast(ir.INDEX)

    # -- in the tiles of sorting networks: records, or floats with NaN replaced by an infinity

    @property
    def tile_fields(self) -> tuple[DType, ...]:
        return (self.dtype,) if self.compare_floats else self.fields

    @property
    def padding(self) -> Record:
        """A record that no other comes after."""
        if self.compare_floats:
            return [const(float("inf"), self.dtype)]
        return [const(-1, f) for f in self.fields]

    def tile_record(self, value: Expr, index: Expr) -> Record:
        if not self.compare_floats:
            return self.record(value, index)
        return [-value if self.descending else value]

    def to_tile(self, record: Record) -> Record:
        return [decode(record[0], self.dtype, False)] if self.compare_floats else record

    def tile_result(self, tiled: Record) -> Expr:
        if not self.compare_floats:
            return self.result(tiled)
        return -tiled[0] if self.descending else tiled[0]


def record_layout(
    dtype: DType, length: int, descending: bool, argsort: bool, compare_floats: bool
) -> RecordLayout:
    """The smallest records for rows of `length`; `compare_floats` holds where it can."""
    key = key_dtype(dtype)
    fields: tuple[DType, ...] = (key,)
    index_bits = 0
    if argsort and key.bits <= 16 and length <= 1 << 16:
        fields, index_bits = (dt.uint32,), 16
    elif argsort and key.bits <= 32 and length <= 1 << 32:
        fields, index_bits = (dt.uint64,), 32
    elif argsort:
        fields = (key, dt.uint32 if length <= 1 << 32 else dt.uint64)
    compare_floats = compare_floats and not argsort and dtype in (dt.float32, dt.float64)
    return RecordLayout(dtype, descending, argsort, fields, index_bits, compare_floats)
