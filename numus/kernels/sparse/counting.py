"""A stable counting sort of small integers, in parallel: keys, or the columns of a pattern, whose
transpose is its entries in that order (Gustavson 1978).

Tasks count their ranges of the keys; counts become positions, first by group and then by task, in
slices of groups; tasks put the numbers of their keys there. The order is the same for any number
of tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

# Statements for each key of a range: visit(its number, the row it is in).
Walk = Callable[[tuple[Expr, Expr], Callable[[Expr, Expr], list[Stmt]]], list[Stmt]]


def keys_alone(span: tuple[Expr, Expr], visit: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
    """Keys without rows."""
    i = ir.var("i")
    return [ir.For(i, *span, "serial", visit(i, ZERO))]


@dataclass(frozen=True)
class Counts:
    """A table (tasks, groups) in memory, the key of a number, and how a range is walked."""

    table: ir.Buffer
    groups: Expr
    tasks: Expr
    key: Callable[[Expr], Expr]
    walk: Walk

    def at(self, task: Expr, group: Expr) -> Expr:
        return ir.add(ir.mul(task, self.groups), group)

    def _number(self, value: Expr) -> Expr:
        return value.cast(self.table.dtype)

    def count(self, task: Expr, span: tuple[Expr, Expr]) -> list[Stmt]:
        """The keys of a range of numbers; no row is asked for."""
        group, slot = ir.var("group"), ir.var("slot")
        clear = ir.Store(self.table, self.at(task, group), self._number(ZERO))
        add = ir.load(self.table, slot) + self._number(ONE)

        def visit(i: Expr, row: Expr) -> list[Stmt]:
            return [ir.Let(slot, self.at(task, self.key(i))), ir.Store(self.table, slot, add)]

        return [
            ir.For(group, ZERO, self.groups, "lanes", [clear]),
            *keys_alone(span, visit),
        ]

    def total(self, span: tuple[Expr, Expr], write: Callable[[Expr], Stmt]) -> list[Stmt]:
        """The number of keys in a slice of groups."""
        total, task, group = ir.Register("total", ir.INDEX), ir.var("task"), ir.var("group")
        count = ir.load(self.table, self.at(task, group)).cast(ir.INDEX)
        inner = ir.For(task, ZERO, self.tasks, "serial", [ir.Set(total, ir.read(total) + count)])
        return [
            ir.Set(total, ZERO),
            ir.For(group, *span, "serial", [inner]),
            write(ir.read(total)),
        ]

    def positions(
        self,
        span: tuple[Expr, Expr],
        before: Callable[[Expr], Expr],
        slices: Expr,
        write: Callable[[Expr, Expr], list[Stmt]],
    ) -> list[Stmt]:
        """Counts of a slice of groups become positions, `write(group, start)` stores its start;
        `before` are the totals of the slices, of which `slices` come first."""
        running = ir.Register("running", ir.INDEX)
        i, task, group, count = (ir.var(n) for n in ("i", "task", "group", "count"))
        slot, now = ir.var("slot"), ir.var("now")
        inner: list[Stmt] = [
            ir.Let(slot, self.at(task, group)),
            ir.Let(count, ir.load(self.table, slot).cast(ir.INDEX)),
            ir.Let(now, ir.read(running)),
            ir.Store(self.table, slot, self._number(now)),
            ir.Set(running, ir.add(now, count)),
        ]
        first = ir.Set(running, ir.add(ir.read(running), before(i)))
        return [
            ir.Set(running, ZERO),
            ir.For(i, ZERO, slices, "serial", [first]),
            ir.For(
                *(group, *span, "serial"),
                [
                    *write(group, ir.read(running)),
                    ir.For(task, ZERO, self.tasks, "serial", inner),
                ],
            ),
        ]

    def place(
        self, task: Expr, span: tuple[Expr, Expr], write: Callable[[Expr, Expr, Expr], list[Stmt]]
    ) -> list[Stmt]:
        """write(position, number, row) for each key of a task's range."""
        slot, position = ir.var("slot"), ir.var("position")

        def visit(i: Expr, row: Expr) -> list[Stmt]:
            return [
                ir.Let(slot, self.at(task, self.key(i))),
                ir.Let(position, ir.load(self.table, slot).cast(ir.INDEX)),
                ir.Store(self.table, slot, self._number(ir.add(position, ONE))),
                *write(position, i, row),
            ]

        return self.walk(span, visit)
