"""Matrices on their way into the group's memory, where units multiply tiles of them.

Rows of a tile lie there in blocks of 64 columns, in runs of 8 that are exchanged by the row's
number (`ir.TileOperand`): such a tile can be multiplied along its columns and along its rows. What
is nothing but memory is copied without passing through registers; anything else is read through
its expression. Zeros stand for what lies beyond a matrix's ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

RUN = 8  # elements that are copied at a time
BLOCK = 64  # columns of a row that lie together
STEP = 16  # by which the depth of a product grows


def rounded(n: int, to: int) -> int:
    return -(-n // to) * to


def tile_bytes(rows: int, columns: int) -> int:
    """Of a tile of 16-bit floats."""
    return rows * rounded(columns, BLOCK) * 2


@dataclass(slots=True)
class Plain:
    """Where a matrix of a stack lies, if it is nothing but memory: rows of neighbours."""

    buffer: ir.Buffer
    first: Callable[[Expr], Expr]  # element of the n-th matrix
    stride: Expr  # from row to row
    aligned: Callable[[Expr], Expr]  # whether the runs of the n-th matrix lie at whole places


@dataclass(slots=True)
class Matrix:
    """A stack of matrices; `read(n, row, column, mask)` is an element."""

    read: Callable[[Expr, Expr, Expr, Expr], Expr]
    columns: Expr
    plain: Plain | None


class Tile:
    """Room for some rows of a matrix, all its columns, in one or several stages."""

    def __init__(
        self, name: str, matrix: Matrix, dtype: DType, rows: int, columns: int, stages: int = 1
    ) -> None:
        self.name, self.matrix, self.rows = name, matrix, rows
        self.columns = rounded(columns, STEP)
        self.size = rows * rounded(columns, BLOCK)
        self.stages = stages
        self.buffer = ir.Buffer(name, dtype, "scratch", const(stages * self.size))

    def along(self, stage: Expr = ZERO) -> ir.MmaOperand:
        """To be multiplied along its columns."""
        return ir.MmaOperand(self.buffer, ir.mul(stage, const(self.size)), True, self.rows)

    def across(self, stage: Expr = ZERO) -> ir.MmaOperand:
        """To be multiplied along its rows, all of them."""
        return ir.MmaOperand(self.buffer, ir.mul(stage, const(self.size)), False)

    def bring(
        self, tag: str, threads: int, n: Expr, first: Expr, limit: Expr, stage: Expr = ZERO
    ) -> list[Stmt]:
        """Begin to bring the rows from `first` on, of which those before `limit` exist."""
        tag = f"{self.name}_{tag}"
        plain = self.matrix.plain
        if plain is None:
            return self._read(tag, threads, n, first, limit, stage)
        aligned = plain.aligned(n)
        whole = ir.add(first, const(self.rows)) <= limit
        whole = whole & self.matrix.columns.eq(const(self.columns))
        quick, cut = (
            self._copy(f"{tag}{how}", threads, n, first, limit, stage, how == "whole")
            for how in ("whole", "cut")
        )
        return [
            ir.If(aligned & whole, quick),
            ir.If(aligned & ~whole, cut),
            ir.If(~aligned, self._read(tag, threads, n, first, limit, stage)),
        ]

    # -- who brings what --------------------------------------------------------------------------

    def _runs(self) -> int:
        """Runs of a row, counted up to a power of two."""
        return 1 << (self.columns // RUN - 1).bit_length()

    def _share(self, threads: int) -> tuple[int, int]:
        """How many runs a thread brings, and how many rows lie between one and the next."""
        return max(1, self.rows * self._runs() // threads), threads // self._runs()

    def _place(self, row: Expr, column: Expr) -> Expr:
        block, inner = ir.idiv(column, const(BLOCK)), ir.irem(column, const(BLOCK))
        run = ir.binary("xor", ir.idiv(inner, const(RUN)), ir.irem(row, const(RUN)))
        at = ir.add(ir.mul(block, const(BLOCK * self.rows)), ir.mul(row, const(BLOCK)))
        return ir.add(at, ir.mul(run, const(RUN)))

    def _mine(self, threads: int, lane: Expr, body: list[Stmt]) -> list[Stmt]:
        """A lanes loop in which threads that have no run of their own do nothing."""
        runs = self._runs()
        if self.rows * runs < threads:
            body = [ir.If(lane < self.rows * runs, body)]
        if runs > self.columns // RUN:
            body = [ir.If(ir.irem(lane, const(runs)) < self.columns // RUN, body)]
        return [ir.For(lane, ZERO, const(threads), "lanes", body)]

    def _copy(
        self,
        tag: str,
        threads: int,
        n: Expr,
        first: Expr,
        limit: Expr,
        stage: Expr,
        whole: bool,
    ) -> list[Stmt]:
        plain = self.matrix.plain
        assert plain is not None
        lane, runs = ir.var(tag), const(self._runs())
        row, column = ir.idiv(lane, runs), ir.mul(ir.irem(lane, runs), const(RUN))
        base = ir.add(plain.first(n), ir.mul(first, plain.stride))
        mine = ir.add(ir.mul(row, plain.stride), column)
        place = self._place(row, column)
        count, apart = self._share(threads)
        body: list[Stmt] = []
        for number in range(count):
            down = const(number * apart)
            to = ir.add(place, ir.mul(down, const(BLOCK)))
            if apart % RUN:
                to = self._place(ir.add(row, down), column)
            to = ir.add(ir.mul(stage, const(self.size)), to)
            index = ir.add(ir.add(base, ir.mul(down, plain.stride)), mine)
            left = const(RUN)
            if not whole:
                exists = ir.add(ir.add(first, row), down) < limit
                left = ir.select(exists, ir.sub(self.matrix.columns, column), ZERO)
            body.append(ir.AsyncCopy(self.buffer, to, plain.buffer, index, left))
        return self._mine(threads, lane, body)

    def _read(
        self, tag: str, threads: int, n: Expr, first: Expr, limit: Expr, stage: Expr
    ) -> list[Stmt]:
        lane, number, runs = ir.var(f"{tag}read"), ir.var(f"{tag}number"), const(self._runs())
        count, apart = self._share(threads)
        row = ir.add(ir.idiv(lane, runs), ir.mul(number, const(apart)))
        column = ir.mul(ir.irem(lane, runs), const(RUN))
        to = ir.add(ir.mul(stage, const(self.size)), self._place(row, column))
        zero = const(0.0, float32).cast(self.buffer.dtype)
        body: list[Stmt] = []
        for u in range(RUN):
            at = ir.add(column, const(u))
            exists = (ir.add(first, row) < limit) & (at < self.matrix.columns)
            value = self.matrix.read(n, ir.add(first, row), at, exists)
            value = ir.select(exists, value, zero)
            body.append(ir.Store(self.buffer, ir.add(to, const(u)), value))
        loop = ir.For(number, ZERO, const(count), "serial", body)
        return [*self._mine(threads, lane, [loop]), ir.AsyncFence()]


@dataclass(slots=True)
class Vector:
    """A number for each row of a stack of matrices; `read(n, row, mask)` is one of them."""

    read: Callable[[Expr, Expr, Expr], Expr]
    plain: Plain | None  # whose rows are the vectors


class Line:
    """Room for a run of a vector of float32, in several stages."""

    def __init__(self, name: str, vector: Vector, rows: int, stages: int) -> None:
        self.name, self.vector, self.rows = name, vector, rows
        self.buffer = ir.Buffer(name, float32, "scratch", const(stages * rows))

    def bring(
        self, tag: str, threads: int, n: Expr, first: Expr, limit: Expr, stage: Expr
    ) -> list[Stmt]:
        """Begin to bring the numbers from `first` on, zeros for those from `limit` on."""
        start = ir.mul(stage, const(self.rows))
        lane = ir.var(f"{self.name}_{tag}read")
        row = ir.add(first, lane)
        value = self.vector.read(n, row, row < limit)
        store = ir.Store(self.buffer, ir.add(start, lane), value)
        read = ir.For(lane, ZERO, const(self.rows), "lanes", [store])
        plain = self.vector.plain
        if plain is None:
            return [read]
        lane, run = ir.var(f"{self.name}_{tag}copy"), const(16 // float32.itemsize)
        row = ir.add(first, ir.mul(lane, run))
        index, left = ir.add(plain.first(n), row), ir.sub(limit, row)
        copy = ir.AsyncCopy(
            self.buffer, ir.add(start, ir.mul(lane, run)), plain.buffer, index, left
        )
        few = ir.If(lane < self.rows // 4, [copy])
        aligned = plain.aligned(n)
        copies = ir.For(lane, ZERO, const(threads), "lanes", [few])
        return [ir.If(aligned, [copies]), ir.If(~aligned, [read])]

    def at(self, row: Expr, stage: Expr) -> Expr:
        return ir.load(self.buffer, ir.add(ir.mul(stage, const(self.rows)), row))


# -- results ---------------------------------------------------------------------------------------

STRIP = 32  # columns that leave at a time
_PITCH = STRIP + 8  # of the rows of a strip: shifts their banks


def stage_buffer(rows: int) -> ir.Buffer:
    """Room through which sums leave."""
    return ir.Buffer("stage", float32, "scratch", const(rows * _PITCH))


def stage_bytes(rows: int) -> int:
    return rows * _PITCH * 4


def leave(
    tag: str,
    threads: int,
    stage: ir.Buffer,
    columns: int,
    value: Callable[[int, Expr], Expr],
    write: Callable[[Expr, Expr, Expr], list[Stmt]],
    exists: Callable[[Expr, Expr], Expr],
) -> list[Stmt]:
    """Send sums through the group's memory to where neighbours are written by neighbours.

    `value(number, lane)` is a thread's sum; `write(row, column, value)` stores an element of those
    that exist.
    """
    rows = threads // 2
    out: list[Stmt] = []
    for first in range(0, columns, STRIP):
        wide = min(STRIP, columns - first)
        lane, at = ir.var(f"{tag}_lay{first}"), ir.var(f"{tag}_out{first}")
        lay: list[Stmt] = []
        for i in range(wide // 2):
            row, column = ir.accumulator_element(lane, i)
            to = ir.add(ir.mul(row, const(_PITCH)), column)
            lay.append(ir.Store(stage, to, value(first // 2 + i, lane)))
        out.append(ir.For(lane, ZERO, const(threads), "lanes", lay))
        across = const(wide // RUN)
        row, column = ir.idiv(at, across), ir.mul(ir.irem(at, across), const(RUN))
        place = ir.add(ir.mul(row, const(_PITCH)), column)
        column = ir.add(column, const(first))
        names = [ir.var(f"{tag}_v{first}_{u}", float32) for u in range(RUN)]
        found: list[Stmt] = [
            ir.Let(name, ir.load(stage, ir.add(place, const(u)))) for u, name in enumerate(names)
        ]
        each = [write(row, ir.add(column, const(u)), name) for u, name in enumerate(names)]
        whole = [stores[k] for k in range(len(each[0])) for stores in each]
        one = ir.var(f"{tag}_one{first}")
        here = ir.add(column, one)
        alone = write(row, here, ir.load(stage, ir.add(place, one)))
        last = exists(row, ir.add(column, const(RUN - 1)))
        rest = ir.For(one, ZERO, const(RUN), "serial", [ir.If(exists(row, here), alone)])
        body: list[Stmt] = [ir.If(last, [*found, *whole]), ir.If(~last, [rest])]
        out.append(ir.For(at, ZERO, const(rows * wide // RUN), "lanes", body))
    return out
