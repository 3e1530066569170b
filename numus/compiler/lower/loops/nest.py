"""Loop nests: adjacent axes that are contiguous in all accesses are collapsed into one loop.

The group is emitted once with a variable per axis, to analyse the strides of its accesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import (
    AffineAnalysis,
    Coefficients,
    accesses,
    collapsible,
    unit_stride_count,
)
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, const

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop over collapsed axes, of which `axis` is the last: its index grows by `step`, that of
    the others stays 0."""

    extent: int
    reduced: bool
    axis: int
    step: int = 1


Position = dict[Loop, Expr]  # the iteration of each loop


@dataclass(slots=True)
class LoopNest:
    """All loops of a group, outermost first, and the strides of its accesses."""

    axes: int  # of the space, before collapsing
    reduced: Sequence[int]  # of these, the reduced ones
    loops: list[Loop]
    accesses: list[Coefficients]
    variables: list[Expr]  # of the axes, in `accesses`
    divides: bool = False  # whether addresses need divisions, whatever the loops

    @property
    def rows(self) -> list[Loop]:
        """The loops over rows."""
        return [d for d in self.loops if not d.reduced]

    @property
    def inner(self) -> list[Loop]:
        """The loops within a row."""
        return [d for d in self.loops if d.reduced]

    @property
    def row_count(self) -> int:
        return iterations(self.rows)

    @property
    def row_size(self) -> int:
        return iterations(self.inner)

    def unit_strides(self, loop: Loop) -> float:
        """Contiguous accesses along a loop; accesses that happen once per row count for little."""
        variable = self.variables[loop.axis]
        along = [self.variables[i] for i in self.reduced]
        within = [p for p in self.accesses if any(p.get(v, 0) for v in along)]
        found = unit_stride_count(within, variable)
        return found + (unit_stride_count(self.accesses, variable) - found) / max(1, self.row_size)

    def loads_with_gaps(self, loop: Loop) -> tuple[float, float]:
        """Accesses with gaps along a loop: those that other rows repeat, and the rest. Accesses
        that happen once per row count for little."""
        variable = self.variables[loop.axis]
        along = [self.variables[i] for i in self.reduced]
        others = [self.variables[d.axis] for d in self.rows if d is not loop]
        found = [0.0, 0.0]
        for p in self.accesses:
            if abs(p.get(variable, 0)) > 1:
                within = any(p.get(v, 0) for v in along)
                once = all(p.get(v, 0) for v in others)
                found[once] += 1 if within else 1 / max(1, self.row_size)
        return found[0], found[1]

    def strided_along(self, lane: Loop, other: Loop) -> bool:
        """Some access is contiguous along the other loop and strided along the lanes."""
        v, w = self.variables[other.axis], self.variables[lane.axis]
        return any(abs(p.get(v, 0)) == 1 and abs(p.get(w, 0)) > 1 for p in self.accesses)

    def vectorizable(self, loop: Loop, width: int) -> bool:
        """All accesses along a loop are contiguous and aligned to vectors of this width."""
        variable = self.variables[loop.axis]
        for strides in self.accesses:
            along = strides.get(variable, 0)
            others = (s for v, s in strides.items() if v is not variable)
            if along not in (0, 1) or (along and any(s % width for s in others)):
                return False
        return True

    def index(self, at: Position) -> list[Expr]:
        """One index per axis; of collapsed axes, that of the last."""
        out: list[Expr] = [ZERO] * self.axes
        for d, v in at.items():
            out[d.axis] = ir.mul(v, const(d.step))
        return out

    def row_index(self, at: Position) -> list[Expr]:
        """The index of a row: one per axis that is not reduced."""
        return [v for i, v in enumerate(self.index(at)) if i not in self.reduced]


def analyse(work: StagedGroup) -> LoopNest:
    group = work.group
    e = work.emitter()
    names = [e.variable(f"p{i}", e.dim(n)) for i, n in enumerate(group.space)]
    rows = [v for i, v in enumerate(names) if i not in group.axes]
    for v in (*work.reductions, *work.aliases, *work.counts):
        e.bind(v, _dummy(v))
    for m in work.members:
        source = m.inputs[0] if m.kind == "reduce" else m
        full = m.kind == "reduce" or work.is_full(m)
        e.value(source, index_of(source.shape, names if full else rows))
    for m in work.stored:
        e.store(m, index_of(m.shape, names if work.is_full(m) else rows), (None, None))
    found = accesses(e)
    divides = any(x.op == "idiv" for at in e.accesses for x in ir.walk(at, lambda x: True))
    for r in work.reductions:  # arg-reductions count positions along their axis
        if r.op in ("argmax", "argmin"):
            found.append({names[a]: 1 for a in group.axes})
    loops: list[Loop] = []
    for i, n in enumerate(group.space):
        d = Loop(n, i in group.axes, i)
        adjacent = bool(loops) and loops[-1].reduced == d.reduced
        if adjacent and collapsible(names[i - 1], names[i], n, found):
            d = Loop(loops.pop().extent * n, d.reduced, i)
        loops.append(d)
    return LoopNest(len(group.space), group.axes, loops, found, names, divides)


def orders_along(work: StagedGroup, nest: LoopNest, lane: Loop) -> dict[Value, tuple[int, ...]]:
    """Operands of the reductions that have gaps along a loop, and of which each element is read
    many times, with an order of their axes that has none; nothing where others have gaps, too."""
    e = work.emitter()
    for v in (*work.reductions, *work.aliases, *work.counts):
        e.bind(v, _dummy(v))
    names = {d: e.variable(f"p{i}", e.dim(d.extent)) for i, d in enumerate(nest.loops)}
    index = nest.index(dict(names))
    for r in work.reductions:
        e.value(r.inputs[0], index_of(r.inputs[0].shape, index))
    analysis, name = AffineAnalysis(e), names[lane]
    most = nest.row_count * nest.row_size // TUNING.pair_min_reads  # elements of an operand
    orders: dict[Value, tuple[int, ...]] = {}
    for v, at in dict.fromkeys(e.loads):
        along = [analysis.coefficients(x) for x in at or ()]
        if at is None or None in along:
            return {}
        axes = [a for a, c in enumerate(along) if c and c.get(name)]
        if not axes or (len(axes) == 1 and work.layouts[v][axes[0]] in (0, 1)):
            continue
        last = axes[-1]
        if len(axes) > 1 or (along[last] or {}).get(name) != 1 or v.size > most:
            return {}
        order = (*(a for a in range(len(along)) if a != last), last)
        if orders.setdefault(v, order) != order:
            return {}
    return orders


def _dummy(v: Value) -> Expr | tuple[Expr, Expr]:
    """A placeholder of a value that the kernel will have in registers."""
    slot = ir.scalar(f"k{v.id}", dt.real_of(v.dtype))
    return (slot, slot) if v.dtype.is_complex else slot


# -- iteration counts -----------------------------------------------------------------------------


def iterations(loops: Sequence[Loop]) -> int:
    return math.prod(d.extent for d in loops)


def total_extent(e: Emitter, loops: Sequence[Loop]) -> Expr:
    """The iterations, as a value of the kernel."""
    total = ONE
    for d in loops:
        total = ir.mul(total, e.dim(d.extent))
    return total


def linearize(e: Emitter, loops: Sequence[Loop], at: Position) -> Expr:
    """The position of several loops as one index."""
    number = ZERO
    for d in loops:
        number = ir.add(ir.mul(number, e.dim(d.extent)), at[d])
    return number


def delinearize(e: Emitter, number: Expr, loops: Sequence[Loop]) -> Position:
    """An index as the position of several loops, the last running fastest."""
    at: Position = {}
    for i, d in enumerate(loops):
        digit = number
        inner = total_extent(e, loops[i + 1 :])
        if inner is not ONE:
            digit = ir.idiv(digit, inner)
        if i:
            digit = ir.irem(digit, e.dim(d.extent))
        e.extents[digit] = e.dim(d.extent)
        at[d] = digit
    return at


def ceil_div(total: int, size: int) -> int:
    return -(-total // size)
