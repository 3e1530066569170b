"""The loops of a group: neighbouring axes that memory sees as one become one loop.

The group is emitted once with a variable per axis, only to see by which strides it touches memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import Coefficients, accesses, collapsible, unit_stride_count
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.loops.stages import Work
from numus.ir import Expr, const

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True, eq=False)
class Dim:
    """A loop. `axis` is the last of the axes it runs over: the index of the others stays 0. With
    each step, the index of that one grows by `step`."""

    extent: int
    reduced: bool
    axis: int
    step: int = 1


At = dict[Dim, Expr]  # where each loop stands


@dataclass(slots=True)
class Space:
    """All loops of a group, outermost first, and how memory is touched along them."""

    axes: int  # of the space, before any were merged
    reduced: Sequence[int]  # those that reductions run over
    dims: list[Dim]
    accesses: list[Coefficients]
    variables: list[Expr]  # by which `accesses` names the axes

    @property
    def rows(self) -> list[Dim]:
        """The loops over rows."""
        return [d for d in self.dims if not d.reduced]

    @property
    def inner(self) -> list[Dim]:
        """The loops within a row."""
        return [d for d in self.dims if d.reduced]

    @property
    def row_count(self) -> int:
        return count(self.rows)

    @property
    def row_size(self) -> int:
        return count(self.inner)

    def neighbours(self, d: Dim) -> float:
        """How many accesses have neighbours along this loop next to each other in memory; those
        that happen once per row count for little.
        """
        variable = self.variables[d.axis]
        along = [self.variables[i] for i in self.reduced]
        inside = [p for p in self.accesses if any(p.get(v, 0) for v in along)]
        found = unit_stride_count(inside, variable)
        return found + (unit_stride_count(self.accesses, variable) - found) / max(1, self.row_size)

    def crosses(self, d: Dim, other: Dim) -> bool:
        """Whether some access has its neighbours along `d` and jumps along `other`."""
        v, w = self.variables[d.axis], self.variables[other.axis]
        return any(abs(p.get(v, 0)) == 1 and abs(p.get(w, 0)) > 1 for p in self.accesses)

    def in_runs(self, d: Dim, run: int) -> bool:
        """Whether all memory that a loop goes along begins at whole runs of so many neighbours,
        wherever the other loops are."""
        variable = self.variables[d.axis]
        for strides in self.accesses:
            along = strides.get(variable, 0)
            others = (s for v, s in strides.items() if v is not variable)
            if along not in (0, 1) or (along and any(s % run for s in others)):
                return False
        return True

    def index(self, at: At) -> list[Expr]:
        """One index per axis; of merged axes only the last counts."""
        out: list[Expr] = [ZERO] * self.axes
        for d, v in at.items():
            out[d.axis] = ir.mul(v, const(d.step))
        return out

    def row_index(self, at: At) -> list[Expr]:
        """The index of a row: one per axis that is not reduced."""
        return [v for i, v in enumerate(self.index(at)) if i not in self.reduced]


def analyse(work: Work) -> Space:
    """The loops of a group."""
    group = work.group
    e = work.emitter()
    names = [e.variable(f"p{i}", e.dim(n)) for i, n in enumerate(group.space)]
    rows = [v for i, v in enumerate(names) if i not in group.axes]
    for v in (*work.reduces, *work.aliases, *work.counts):
        e.bind(v, _dummy(v))
    for m in work.members:
        source = m.inputs[0] if m.kind == "reduce" else m
        full = m.kind == "reduce" or work.is_full(m)
        e.value(source, index_of(source.shape, names if full else rows))
    for m in work.stored:
        e.store(m, index_of(m.shape, names if work.is_full(m) else rows), (None, None))
    touched = accesses(e)
    for r in work.reduces:  # positions of arg reductions count along their axis
        if r.op in ("argmax", "argmin"):
            touched.append({names[a]: 1 for a in group.axes})
    dims: list[Dim] = []
    for i, n in enumerate(group.space):
        d = Dim(n, i in group.axes, i)
        alike = bool(dims) and dims[-1].reduced == d.reduced
        if alike and collapsible(names[i - 1], names[i], n, touched):
            d = Dim(dims.pop().extent * n, d.reduced, i)
        dims.append(d)
    return Space(len(group.space), group.axes, dims, touched, names)


def _dummy(v: Value) -> Expr | tuple[Expr, Expr]:
    """Stands for what the kernel will hold in registers."""
    slot = ir.scalar(f"k{v.id}", dt.real_of(v.dtype))
    return (slot, slot) if v.dtype.is_complex else slot


# -- numbers of loops -----------------------------------------------------------------------------


def count(dims: Sequence[Dim]) -> int:
    """How many steps these loops have together."""
    return math.prod(d.extent for d in dims)


def extent_of(e: Emitter, dims: Sequence[Dim]) -> Expr:
    """The same, as a value of the kernel."""
    total = ONE
    for d in dims:
        total = ir.mul(total, e.dim(d.extent))
    return total


def joined(e: Emitter, dims: Sequence[Dim], at: At) -> Expr:
    """Where several loops stand, as one running number."""
    number = ZERO
    for d in dims:
        number = ir.add(ir.mul(number, e.dim(d.extent)), at[d])
    return number


def digits(e: Emitter, number: Expr, dims: Sequence[Dim]) -> At:
    """The reverse: one running number split over several loops, the last running fastest."""
    at: At = {}
    for i, d in enumerate(dims):
        digit = number
        below = extent_of(e, dims[i + 1 :])
        if below is not ONE:
            digit = ir.idiv(digit, below)
        if i:
            digit = ir.irem(digit, e.dim(d.extent))
        e.extents[digit] = e.dim(d.extent)
        at[d] = digit
    return at


def blocks_of(total: int, size: int) -> int:
    """How many blocks of a size cover a total."""
    return -(-total // size)


def block(start: Expr, size: Expr, end: Expr) -> tuple[Expr, Expr]:
    """The range of a block that begins at `start`; the last one is cut off."""
    return start, ir.minimum(ir.add(start, size), end)
