"""Sort groups: which schedule of `kernels/sort.py` the rows get, and the code around it."""

from __future__ import annotations

import math
from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import At, Rows, temporary, without
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import SMALL
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.sort import cpu as cpu_sort
from numus.kernels.sort import cpu_bucket, cpu_radix
from numus.kernels.sort.cpu_bitonic import GROUP
from numus.shapes import Shape
from numus.target import Target

ZERO, ONE = const(0), const(1)

LINE = 64  # bytes of memory that move together
WORTH_BLOCKS = 1 << 14  # elements of a row that is worth several threads
FILLED = 0.85  # of a bucket's room, on average, so that few of them run over
CELLS_PER_BUCKET = 16  # how finely the keys are counted before they are dealt into buckets


def lower_sort(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Rows side by side in lanes, one after another, or, where they are few and long, in parts."""
    return _Sort(group, layouts, target).steps()


class _Sort:
    def __init__(self, group: FusionGroup, layouts: dict[Value, Shape], target: Target) -> None:
        (self.val,) = group.members
        self.source = self.val.inputs[0]
        self.axis, self.descending = self.val.params
        self.layouts = without(layouts, self.val)
        self.target = target
        self.length = self.source.shape[self.axis]
        self.rows = math.prod(n for i, n in enumerate(self.source.shape) if i != self.axis)
        self.places = self.val.op == "argsort"
        # the widest vectors compare twice as many floats as integers, others lack large integers
        floats = target.vector_bytes >= 64 or self.source.dtype is dt.float64
        self.order = cpu_sort.order(
            self.source.dtype, self.length, self.descending, self.places, floats
        )
        self.lanes = target.vector_bytes // max(f.itemsize for f in self.order.fields)
        # a tile and what it is filled from stay in the second cache
        self.tile = 1 << (target.l2_bytes // 4 // self.order.itemsize).bit_length() - 1
        self.digit_bits = (target.l1_bytes // LINE).bit_length() - 1

    def steps(self) -> list[LoweredKernel]:
        if self._many_short_rows():
            return [self._side_by_side()]
        if self.length >= WORTH_BLOCKS and self.rows < 4 * self.target.num_cores:
            return self._partitioned()
        return [self._in_tiles() if self.length <= self.tile else self._by_radix()]

    def _many_short_rows(self) -> bool:
        """Whether a vector's lanes can have a row each, and all of them stay near."""
        memory = self.length * self.lanes * self.order.itemsize
        return 2 * self.rows >= self.lanes and memory <= self.target.l2_bytes // 4

    # -- what is sorted ---------------------------------------------------------------------------

    def _emitter(self) -> Emitter:
        return Emitter(self.layouts, self.val.size <= SMALL)

    def _read(self, e: Emitter, index: At, tiled: bool) -> cpu_sort.Read:
        make = self.order.tiled_value if tiled else self.order.record
        return lambda place: make(e.value(self.source, index(place)), place)

    def _write(self, e: Emitter, index: At) -> cpu_sort.Write:
        return lambda rank, value: e.store(self.val, index(rank), value)

    # -- schedules --------------------------------------------------------------------------------

    def _side_by_side(self) -> LoweredKernel:
        e = self._emitter()
        g, lane = ir.var("g"), ir.var("lane")
        rows = Rows(e, self.source.shape, self.axis)
        index, _, count, grid = rows.side_by_side(g, lane, self.lanes)
        row_bits = e.scalar_arg(_row_bits(self.length))
        body, scratch = cpu_sort.side_by_side(
            e.dim(self.length),
            row_bits,
            self.order,
            self.lanes,
            lane,
            count,
            self._read(e, index, tiled=True),
            self._write(e, index),
        )
        e.scratch += scratch
        return e.grid_kernel(f"{self.val.op}_side_by_side", g, body, grid, (self.val.op,))

    def _in_tiles(self) -> LoweredKernel:
        e = self._emitter()
        g = ir.var("g")
        index = Rows(e, self.source.shape, self.axis).one(g)
        rows = -(-self.length // self.lanes)
        tile = cpu_sort.tile_buffers(self.order, e.scalar_arg(self.lanes << _row_bits(rows)))
        body = cpu_sort.block(
            tile,
            self.order,
            e.dim(self.length),
            self.lanes,
            self._read(e, index, tiled=True),
            self._write(e, index),
        )
        e.scratch += tile
        return e.grid_kernel(f"{self.val.op}_tile", g, body, self.rows, (self.val.op,))

    def _by_radix(self) -> LoweredKernel:
        e = self._emitter()
        g = ir.var("g")
        index = Rows(e, self.source.shape, self.axis).one(g)
        body, scratch = cpu_radix.radix_row(
            e.dim(self.length),
            self.order,
            self.digit_bits,
            self._read(e, index, tiled=False),
            self._write(e, index),
        )
        e.scratch += scratch
        return e.grid_kernel(f"{self.val.op}_radix", g, body, self.rows, (self.val.op,))

    def _partitioned(self) -> list[LoweredKernel]:
        rows, units = self.rows, self.target.num_cores
        blocks = -(-2 * units // rows)
        # a bucket fills most of the first cache; not more buckets than it has lines to write to
        room = (1 << (self.target.l1_bytes // 2).bit_length() - 1) // self.order.itemsize
        wanted = -(-self.length // int(FILLED * room))
        buckets = max(4 * units, min(wanted, 1 << self.digit_bits))
        cell_bits = (CELLS_PER_BUCKET * buckets - 1).bit_length()
        memory = self._memory(rows, blocks, buckets, 1 << cell_bits)

        Build = Callable[[Emitter, cpu_bucket.Partition, Expr, Expr], list[Stmt]]
        block = -(-self.length // blocks)

        def kernel(name: str, writes: tuple[str, ...], per_row: int, build: Build) -> LoweredKernel:
            e = self._emitter()
            s = cpu_bucket.Partition(
                self.order,
                e.dim(self.length),
                e.scalar_arg(blocks),
                e.scalar_arg(block),
                e.scalar_arg(buckets),
                cell_bits,
                self.digit_bits,
                lambda part: e.buffer(memory[part], "write" if part in writes else "read"),
            )
            g = ir.var("g")
            each = e.scalar_arg(per_row)
            row, part = (ir.idiv(g, each), ir.irem(g, each)) if rows > 1 else (ZERO, g)
            body = build(e, s, row, part)
            return e.grid_kernel(f"{self.val.op}_{name}", g, body, rows * per_row, (self.val.op,))

        def index(e: Emitter, row: Expr) -> At:
            return Rows(e, self.source.shape, self.axis).one(row)

        def collect(e: Emitter, s: cpu_bucket.Partition, row: Expr, part: Expr) -> list[Stmt]:
            return cpu_bucket.collect(s, row, part, self._read(e, index(e, row), tiled=False))

        def finish(e: Emitter, s: cpu_bucket.Partition, row: Expr, bucket: Expr) -> list[Stmt]:
            write = self._write(e, index(e, row))
            tile = e.scalar_arg(self.tile)
            body, scratch = cpu_bucket.sort_bucket(s, row, bucket, self.lanes, tile, write)
            e.scratch += scratch
            return body

        records = tuple(f"records{k}" for k in range(len(self.order.fields)))
        return [
            kernel("collect", (*records, "limits"), blocks, collect),
            kernel(
                "count", ("cells", "counts"), blocks, lambda e, *at: cpu_bucket.count_cells(*at)
            ),
            kernel(
                "assign",
                ("homes", "offsets", "starts"),
                1,
                lambda e, s, row, part: cpu_bucket.assign_buckets(s, row),
            ),
            kernel("deal", (*records, "offsets"), blocks, lambda e, *at: cpu_bucket.deal(*at)),
            kernel("bucket", records, buckets, finish),
        ]

    def _memory(self, rows: int, blocks: int, buckets: int, cells: int) -> dict[str, Value]:
        counter = dt.uint32 if self.length < 1 << 32 else dt.uint64
        parts: dict[str, tuple[Shape, DType]] = {
            **{f"records{k}": ((rows, 2, self.length), f) for k, f in enumerate(self.order.fields)},
            "limits": ((rows, blocks, 2), cpu_sort.key_dtype(self.source.dtype)),
            "cells": ((rows, self.length), dt.uint16),
            "counts": ((rows, blocks, cells), counter),
            "homes": ((rows, cells), dt.uint16),
            "offsets": ((rows, blocks, buckets), dt.int64),
            "starts": ((rows, buckets + 1), dt.int64),
        }
        return {name: temporary(shape, dtype) for name, (shape, dtype) in parts.items()}


def _row_bits(rows: int) -> int:
    """The bits of a network's row numbers."""
    return max((rows - 1).bit_length(), (GROUP - 1).bit_length())
