"""Scans of short rows: a few neighbouring threads for each, which meet nobody else.

A thread reads runs of neighbours into its registers, all of them at a time. What the runs of a row
come to is put in order by exchanges in pairs: with each of them a thread learns what twice as many
neighbours come to, and, if it is among the later half, what comes before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis_gpu import Layouts, elements_along, rows_along
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import combine
from numus.kernels.scan.gpu_block import RunningReduction
from numus.target import Target

ZERO, ONE = const(0), const(1)

ACCESS = 16  # bytes of the widest access
WIDEST = 32  # threads that can exchange
EACH = 8  # elements that are worth a thread,
ROOM = 32  # and words of elements that it has registers for
AT_ONCE = 8  # words of elements that are put in order at a time, so that exchanges overlap

Number = list[Expr]


def in_teams(val: Value, target: Target) -> bool:
    """Whether rows of a scan are short enough for a few threads each, and enough of them."""
    op, axis, _ = val.params
    length = val.shape[axis]
    return (
        target.subgroup_size > 0
        and op != "logsumexp"  # so much code to merge two that it is not written out
        and length <= WIDEST * ROOM // _words(val)
        and val.size // length * _width(length) >= target.num_cores * target.block_size
    )


def scan_in_teams(val: Value, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """The kernel."""
    _, axis, _ = val.params
    length = val.shape[axis]
    e = Emitter(layouts, block_size=target.block_size)
    run = _run(val, layouts)
    g = ir.var("g")
    team = _Team(val, e, g, target.block_size, _width(length), run)
    body: list[Stmt]
    if run == 1:
        body = [team.loop(False)]
    else:
        source = val.inputs[0]
        odd = ir.address(e.buffer(source)) & const(run * source.dtype.itemsize - 1)
        aligned = odd.eq(0)
        body = [ir.If(aligned, [team.loop(True)]), ir.If(~aligned, [team.loop(False)])]
    grid = -(-(val.size // length) // team.rows)
    return [e.grid_kernel(f"scan_{val.params[0]}_rows", g, body, grid, (val.op,))]


def _words(val: Value) -> int:
    """Registers of an element."""
    real = dt.compute_dtype(dt.real_of(val.dtype))
    return max(1, real.itemsize // 4) * (2 if val.dtype.is_complex else 1)


def _width(length: int) -> int:
    """Threads that share a row: a power of two."""
    return min(WIDEST, 1 << (-(-length // EACH) - 1).bit_length())


def _run(val: Value, layouts: Layouts) -> int:
    """Neighbours that a thread has at once: as many as one access brings, in all rows."""
    _, axis, _ = val.params
    source = val.inputs[0]
    strides = layouts.get(source)
    beyond = any(n != 1 for n in val.shape[axis + 1 :])
    if strides is None or strides[axis] != 1 or beyond or val.dtype.is_complex:
        return 1
    steps = [val.shape[axis]]
    steps += [s for i, s in enumerate(strides) if i != axis and val.shape[i] != 1]
    run = ACCESS // max(source.dtype.itemsize, val.dtype.itemsize)
    while any(s % run for s in steps):
        run //= 2
    return run


@dataclass(frozen=True, slots=True)
class _Team:
    """Threads that share a row, as statements of a kernel."""

    val: Value
    e: Emitter
    g: Expr
    threads: int
    width: int  # of them
    run: int  # neighbours that a thread has at once

    @property
    def rows(self) -> int:
        """Of a group."""
        return self.threads // self.width

    @property
    def runs(self) -> int:
        """Of a thread."""
        _, axis, _ = self.val.params
        length: int = self.val.shape[axis]
        return -(-length // (self.width * self.run))

    def loop(self, whole: bool) -> Stmt:
        """What a group does; `whole`: runs lie at whole accesses."""
        e, val = self.e, self.val
        op, axis, reverse = val.params
        scan = RunningReduction(self.threads, op, val.dtype)
        lane = ir.var(f"lane{int(whole)}")
        size = val.shape[axis]
        count = e.dim(val.size // size)
        number = ir.add(ir.mul(self.g, const(self.rows)), ir.idiv(lane, const(self.width)))
        row, turn, exists = ir.var("row"), ir.var("turn"), ir.var("exists", dt.bool_)
        e.extents[row] = count
        out: list[Stmt] = [
            ir.Let(exists, number < count),
            ir.Let(turn, ir.irem(lane, const(self.width))),
            ir.Let(row, ir.minimum(number, ir.sub(count, ONE))),  # those past the end go along
        ]
        index = rows_along(e, row, val.shape, axis)
        length, _ = elements_along(e, val)
        firsts: list[tuple[Expr, Expr | None]] = []  # where runs begin, and whether they exist
        for v in range(self.runs):
            own = ir.mul(ir.add(turn, const(v * self.width)), const(self.run))
            there = None if (v + 1) * self.width * self.run <= size else own < length
            first: Expr = ir.var(f"first{v}")
            if there is not None:
                own = ir.minimum(own, ir.sub(length, const(self.run)))
            if reverse:
                own = ir.sub(ir.sub(length, const(self.run)), own)
            out.append(ir.Let(first, own))
            firsts.append((first, there))
        found: list[list[Number]] = []
        for v, (first, _) in enumerate(firsts):
            lets, run = self._brought(scan, index, first, whole, v)
            out += lets
            found.append(run[::-1] if reverse else run)
        carry: Number = []
        at_once = max(1, AT_ONCE // (self.run * _words(val)))
        for start in range(0, self.runs, at_once):
            these = range(start, min(start + at_once, self.runs))
            state = []
            for v in these:
                lets, sums = self._summed(scan, found[v], firsts[v][1], v)
                out += lets
                lets, before, all_ = self._in_order(scan, turn, sums[-1], v)
                out += lets
                state.append((sums, before, all_))
            for v, (sums, before, all_) in zip(these, state, strict=True):
                first, there = firsts[v]
                lets, ahead = _named(combine(op, carry, before) if carry else before, f"ahead{v}")
                out += lets
                results = [combine(op, ahead, x) for x in sums]
                stores: list[Stmt] = []
                for u, result in enumerate(results[::-1] if reverse else results):
                    joined: Any = scan.join(result)
                    value = joined if scan.complex else joined.cast(val.dtype)
                    stores += e.store(val, index(ir.add(first, const(u))), value)
                out.append(ir.If(exists if there is None else exists & there, stores))
                if v + 1 < self.runs:
                    lets, carry = _named(combine(op, carry, all_) if carry else all_, f"carry{v}")
                    out += lets
        return ir.For(lane, ZERO, const(self.threads), "lanes", out)

    def _brought(
        self, scan: RunningReduction, index: Any, first: Expr, whole: bool, v: int
    ) -> tuple[list[Stmt], list[Number]]:
        """The elements of a run, as they lie in memory."""
        source = self.val.inputs[0]
        out: list[Stmt] = []
        run: list[Number] = []
        for u in range(self.run):
            value = self.e.value(source, index(ir.add(first, const(u))))
            if whole:
                name = ir.var(f"x{v}_{u}", source.dtype)
                out.append(ir.Let(name, value, vector=0 if u else self.run))
                run.append(scan.split(name))
            else:
                lets, names = _named(scan.split(value), f"x{v}_{u}")
                out += lets
                run.append(names)
        return out, run

    def _summed(
        self, scan: RunningReduction, run: list[Number], there: Expr | None, v: int
    ) -> tuple[list[Stmt], list[Number]]:
        """What the elements of a run come to, one after the other; nothing where there are none."""
        out: list[Stmt] = []
        sums: list[Number] = []
        for u, x in enumerate(run):
            if there is not None:
                pairs = zip(x, scan.start, strict=True)
                x = [ir.select(there, mine, nothing) for mine, nothing in pairs]
            lets, names = _named(combine(scan.op, sums[-1], x) if sums else x, f"sum{v}_{u}")
            out += lets
            sums.append(names)
        return out, sums

    def _in_order(
        self, scan: RunningReduction, turn: Expr, own: Number, v: int
    ) -> tuple[list[Stmt], Number, Number]:
        """What comes before a thread's run, and what the runs of all its team come to."""
        out: list[Stmt] = []
        before, all_ = list(scan.start), own
        mask = 1
        while mask < self.width:
            lets, other = _named([ir.lanes_xor(x, mask) for x in all_], f"other{v}_{mask}")
            out += lets
            later = (turn & const(mask)).ne(0)
            pairs = zip(combine(scan.op, other, before), before, strict=True)
            lets, before = _named([ir.select(later, x, y) for x, y in pairs], f"before{v}_{mask}")
            out += lets
            lets, all_ = _named(combine(scan.op, all_, other), f"all{v}_{mask}")
            out += lets
            mask *= 2
        return out, before, all_


def _named(values: Number, name: str) -> tuple[list[Stmt], Number]:
    names: Number = [ir.var(f"{name}_{p}", x.dtype) for p, x in enumerate(values)]
    return [ir.Let(n, x) for n, x in zip(names, values, strict=True)], names
