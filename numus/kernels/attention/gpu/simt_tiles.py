"""Tiles of sums that the threads of a group share out, and the group's memory they read from.

Threads stand in rows and columns; each has a few rows and a few columns of every tile. Operands lie
line by line along the inner axis, so that what a step needs are neighbours: runs of 4 are one
access. The threads of a row of threads are neighbours, and compare notes by `lanes_xor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

RUN = 4  # neighbours that a thread reads from the group's memory at a time
STEPS = 4  # of an inner axis that are written out
BATCH = 8  # elements that a thread brings at a time

Element = Callable[[Expr, Expr, Expr], Expr]  # (row, column, mask)


def rounded(n: int, to: int) -> int:
    return -(-n // to) * to


@dataclass(frozen=True, slots=True)
class Threads:
    """How the threads of a group stand."""

    down: int
    across: int

    @staticmethod
    def of(count: int) -> Threads:
        across = 16 if count >= 256 else 8
        return Threads(count // across, across)

    @property
    def count(self) -> int:
        return self.down * self.across

    def row(self, lane: Expr) -> Expr:
        return ir.idiv(lane, const(self.across))

    def column(self, lane: Expr) -> Expr:
        return ir.irem(lane, const(self.across))

    def loop(self, name: str, make: Callable[[Expr], list[Stmt]]) -> Stmt:
        lane = ir.var(name)
        return ir.For(lane, ZERO, const(self.count), "lanes", make(lane))

    def over_row(self, value: Expr, merge: Callable[[Expr, Expr], Expr]) -> Expr:
        """Merge what the threads of a row have."""
        mask = 1
        while mask < self.across:
            value = merge(value, ir.lanes_xor(value, mask))
            mask *= 2
        return value


def place(own: int, among: int, lane: Expr, number: int) -> Expr:
    """Which line of a tile is the `number`-th of a thread: runs of neighbours, spread over it."""
    run = RUN if own % RUN == 0 else 1
    away = number // run * (among * run) + number % run
    return ir.add(ir.mul(lane, const(run)), const(away))


class Lines:
    """A matrix in the group's memory: `depth` lines along the inner axis, `width` elements each."""

    def __init__(self, name: str, dtype: DType, depth: int, width: int) -> None:
        self.depth, self.width = depth, width
        self.pitch = rounded(width, RUN) + RUN  # shifts the banks of the next line
        self.buffer = ir.Buffer(name, dtype, "scratch", const(depth * self.pitch))

    def at(self, line: Expr, element: Expr) -> Expr:
        return ir.add(ir.mul(line, const(self.pitch)), element)

    @staticmethod
    def bytes(dtype: DType, depth: int, width: int) -> int:
        return depth * (rounded(width, RUN) + RUN) * dtype.itemsize


def fill(
    name: str,
    threads: Threads,
    dtype: DType,
    read: Element,
    rows: int,
    columns: int,
    exists: Callable[[Expr, Expr], Expr],
    *,
    turned: Lines | None = None,
    plain: Lines | None = None,
) -> Stmt:
    """Bring a block of a matrix: its columns as lines (`turned`), its rows, or both; zeros for what
    does not exist."""
    total = rows * columns
    each = -(-total // threads.count)  # elements of a thread
    batch = min(BATCH, each)
    part = ir.var(f"{name}_part")

    def bring(lane: Expr) -> list[Stmt]:
        body: list[Stmt] = []
        found: list[tuple[Expr, Expr, Expr, Expr]] = []
        for number in range(batch):
            # what depends on the part is not kept in registers from block to block
            at = ir.add(
                ir.add(lane, ir.mul(part, const(threads.count))), const(number * threads.count)
            )
            row, column = ir.idiv(at, const(columns)), ir.irem(at, const(columns))
            there = exists(row, column)
            if each * threads.count != total or each % batch:
                there = there & (at < total)
            held = ir.var(f"{name}_held{number}", dtype)
            value = ir.select(there, read(row, column, there), const(0, dtype))
            body.append(ir.Let(held, value))
            found.append((at, row, column, held))
        for at, row, column, held in found:
            stores: list[Stmt] = []
            if turned is not None:
                stores.append(ir.Store(turned.buffer, turned.at(column, row), held))
            if plain is not None:
                stores.append(ir.Store(plain.buffer, plain.at(row, column), held))
            if each * threads.count != total or each % batch:
                stores = [ir.If(at < total, stores)]
            body += stores
        return [ir.For(part, ZERO, const(each), "serial", body, step=const(batch))]

    return threads.loop(f"{name}_thread", bring)


class Sums:
    """A tile of sums in registers: `rows` by `columns`, shared out among the threads."""

    def __init__(self, name: str, threads: Threads, dtype: DType, rows: int, columns: int) -> None:
        self.name, self.threads, self.dtype = name, threads, dtype
        self.rows, self.columns = rows, columns
        self.down, self.across = rows // threads.down, columns // threads.across
        self.registers = [
            [ir.Register(f"{name}{i}_{j}", dtype, lanes=True) for j in range(self.across)]
            for i in range(self.down)
        ]

    def places(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.down) for j in range(self.across)]

    def clear(self) -> list[Stmt]:
        return [ir.Set(self.registers[i][j], const(0, self.dtype)) for i, j in self.places()]

    def read(self, i: int, j: int) -> Expr:
        return ir.read(self.registers[i][j])

    def row(self, lane: Expr, i: int) -> Expr:
        return place(self.down, self.threads.down, self.threads.row(lane), i)

    def column(self, lane: Expr, j: int) -> Expr:
        return place(self.across, self.threads.across, self.threads.column(lane), j)

    def add(self, lane: Expr, left: Lines, right: Lines) -> Stmt:
        """Add the product of two matrices over all their lines."""
        assert left.depth == right.depth
        k = ir.var(f"{self.name}_k")
        body: list[Stmt] = []
        for u in range(STEPS):
            step = ir.add(k, const(u))
            sides: list[Sequence[Expr]] = []
            for tag, lines, count in (("a", left, self.down), ("b", right, self.across)):
                names = []
                for i in range(count):
                    line = self.row(lane, i) if tag == "a" else self.column(lane, i)
                    name = ir.var(f"{self.name}{tag}{u}_{i}", self.dtype)
                    body.append(ir.Let(name, ir.load(lines.buffer, lines.at(step, line))))
                    names.append(name)
                sides.append(names)
            for i, j in self.places():
                register = self.registers[i][j]
                new = ir.fma(sides[0][i], sides[1][j], ir.read(register), allow_unfused=True)
                body.append(ir.Set(register, new))
        return ir.For(k, ZERO, const(left.depth), "serial", body, step=const(STEPS))
