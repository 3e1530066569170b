"""Stages of a fused reduction: the group's values by the passes over a row they need.

Sums of squared deviations become two plain sums, and every member gets the number of reduction
passes that must finish before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup, squeeze
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Layouts, Value, walk
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.compiler.lower.reducers import reducer
from numus.shapes import row_major, size_of
from numus.target import Target

Redirect = dict[Value, tuple[Value, int, int]]  # slice -> (whole, axis, start)


class StagedGroup:
    """The values of a loop group, in stages. The arguments are those of `lower_loops`."""

    def __init__(
        self,
        group: FusionGroup,
        layouts: Layouts,
        target: Target,
        redirect: Redirect | None = None,
        aliases: dict[Value, Value] | None = None,
    ) -> None:
        self.group = group
        self.target = target
        self.redirect = redirect or {}
        self.members, sqdevs = expand_sqdevs(group.members)
        self.aliases = {**(aliases or {}), **sqdevs}
        self.sqdevs = set(sqdevs.values())  # sums of squared deviations from a mean
        self.residuals: dict[Value, Value] = {}  # of each, the plain sum of the deviations
        own = {*self.members, *group.members, *self.aliases}
        self.layouts = {v: s for v, s in layouts.items() if v not in own}
        self.reductions = [m for m in self.members if m.kind == "reduce"]
        self.stored = [m for m in group.members if m in group.stored]  # always in this order
        self.stage = self._stages()
        self.notes = group.notes
        self.relaid: dict[Value, tuple[Value, tuple[int, ...]]] = {}  # operand -> copy, axis order
        # element counts of means: known only where the loops are
        self.counts = [v for v in self.inlined(self.members) if v.op == "count"]

    def _stages(self) -> dict[Value, int]:
        """The number of reduction passes that must finish before each member."""
        stage: dict[Value, int] = {}
        inverse = {b: a for a, b in self.aliases.items()}
        for m in self.members:
            passes = 0
            seen: set[Value] = set()
            stack = list(m.inputs)
            while stack:
                x = stack.pop()
                if x in seen:
                    continue
                seen.add(x)
                x = self.aliases.get(x, x)
                if x.kind == "reduce" and x in stage:
                    passes = max(passes, stage[x] + 1)
                elif x not in self.layouts:
                    stack.extend(x.inputs)
            stage[m] = passes
            if m in inverse:
                stage[inverse[m]] = passes
        return stage

    def with_residuals(self) -> StagedGroup:
        """A copy that also sums the deviations. That sum would be 0 for an exact mean; it corrects
        the squares around a rounded one."""
        if not self.sqdevs:
            return self
        found = copy(self)
        found.residuals = {r: _residual(r) for r in self.members if r in self.sqdevs}
        found.members = [
            x
            for m in self.members
            for x in ((found.residuals[m], m) if m in found.residuals else (m,))
        ]
        found.reductions = [m for m in found.members if m.kind == "reduce"]
        found.stage = {**self.stage, **{v: self.stage[r] for r, v in found.residuals.items()}}
        return found

    def one_pass(self) -> StagedGroup:
        """A copy that reduces in one pass, around a mean estimated from a sample."""
        found = self.with_residuals()
        sums = {sum_of(r) for r in self.sqdevs}
        found.stage = {m: 0 if m in sums else max(1, n) for m, n in found.stage.items()}
        return found

    def inlined(self, values: Iterable[Value]) -> Iterator[Value]:
        """Values and their transitive operands that are not in memory, each once."""
        found = walk(values, lambda x: x not in self.layouts)
        return (x for x in found if x not in self.layouts)

    def emitter(self, partials: Layouts | None = None) -> Emitter:
        """An emitter of one kernel; `partials` are further values in memory."""
        e = Emitter({**self.layouts, **(partials or {})}, self.is_small, self.threads)
        e.redirect = self.redirect
        e.relaid = self.relaid
        e.layouts.update((copied, row_major(copied.shape)) for copied, _ in self.relaid.values())
        return e

    def with_relaid(self, relaid: dict[Value, tuple[Value, tuple[int, ...]]]) -> StagedGroup:
        """A copy that reads copies of operands, whose axes are in another order."""
        found = copy(self)
        found.relaid = relaid
        return found

    @property
    def threads(self) -> int:
        """Threads of a block, 0 where lanes are SIMD."""
        return self.target.block_size

    def threads_for(self, lanes: int, maximum: int = 0) -> int:
        """Threads of a block with this many lanes to fill: a power of two."""
        return max(WARP, min(maximum or self.threads, 1 << max(0, lanes - 1).bit_length()))

    @property
    def is_small(self) -> bool:
        """So little data that short code beats fast code."""
        return size_of(self.group.space) <= self.target.small_elements

    # -- members ----------------------------------------------------------------------------------

    def is_full(self, m: Value) -> bool:
        """The member is computed at every point: not a reduction, nor once per row."""
        if m.kind == "reduce":
            return False
        return not self.group.axes or squeeze(m.shape) == self.group.space

    def is_load(self, x: Value) -> bool:
        """In memory, or all of what is there in another shape: groups of channels are an axis."""
        found = self._loaded(x)
        reshaped = found is not x and squeeze(found.shape) != self.group.space
        return found in self.layouts and (found is x or reshaped)

    def _loaded(self, x: Value) -> Value:
        while x not in self.layouts and x.kind == "view" and x.inputs[0].size == x.size:
            x = x.inputs[0]
        return x

    def reads_in_order(self, stage: int) -> bool:
        """The threads of a block reduce rows that are contiguous, whatever axes they have."""
        space, axes = self.group.space, self.group.axes
        trailing = tuple(range(len(space) - len(axes), len(space)))
        if not self.threads or self.stores_in(stage) or tuple(axes) != trailing:
            return False
        pending = [r.inputs[0] for r in self.reductions_in(stage)]
        while pending:
            x = pending.pop()
            found = self._loaded(x)
            if found in self.layouts:
                strides = self.layouts[found]
                whole = squeeze(x.shape) == space and strides == row_major(found.shape)
                if not whole and x.size > 1:
                    return False
            elif x.kind != "reduce":
                pending += x.inputs
        return True

    @property
    def passes(self) -> int:
        return 1 + max(self.stage.values())

    def reductions_in(self, stage: int) -> list[Value]:
        return [r for r in self.reductions if self.stage[r] == stage]

    def stores_in(self, stage: int) -> list[Value]:
        """Members stored at every point that this stage computes."""
        return [
            m
            for m in self.members
            if m in self.group.stored and self.is_full(m) and self.stage[m] == stage
        ]

    @property
    def splittable(self) -> bool:
        """Parts of a row can be reduced independently and combined: nothing needs a whole row but
        squared deviations, which can be taken around another mean."""
        return not any(
            self.stage[m] > 0
            for m in self.members
            if (m.kind == "reduce" and m not in self.sqdevs) or self.is_full(m)
        )

    def has_wide_totals(self, stage: int) -> bool:
        """SIMD sums of float32 only: those of short blocks are added up in float64."""
        found = [reducer(r) for r in self.reductions_in(stage)]
        sums = all(r.op == "sum" and r.total_dtypes(self.target) != r.dtypes for r in found)
        return not self.threads and bool(found) and sums

    # -- cost -------------------------------------------------------------------------------------

    def cost(self) -> int:
        """Arithmetic of an element, as a multiple of a memory-bound one."""
        expensive = sum(x.op in EXPENSIVE_OPS for x in self.inlined(self.members))
        return min(16, 1 + expensive * 2)

    def block_elements(self) -> int:
        return self.threads * TUNING.elements_per_thread or TUNING.block_elements // self.cost()

    def rows_per_block(self) -> int:
        """Rows that a block takes at a time, so that enough loads are in flight."""
        light = [x for x in self.inlined(self.members) if x.kind == "elementwise"]
        ops = len(light) + 8 * (self.cost() - 1)
        return next((n for n in (4, 2) if n * ops <= TUNING.multi_row_max_ops), 1)

    def saturating_blocks(self) -> int:
        return self.target.num_cores * TUNING.blocks_per_sm

    def vector_lanes(self) -> int:
        """Elements of a vector register, of the widest dtype."""
        return max(1, self.target.vector_bytes // self.widest_bytes())

    def widest_bytes(self) -> int:
        """Of an element of the widest dtype, or four."""
        sizes = [dt.real_of(m.dtype).itemsize for m in self.members if m.dtype is not dt.bool_]
        return max(4, max(sizes, default=4))


# -- sums of squared deviations -------------------------------------------------------------------


def expand_sqdevs(members: Sequence[Value]) -> tuple[list[Value], dict[Value, Value]]:
    """Members with each sum of squared deviations as two plain sums, and the second of these."""
    out: list[Value] = []
    expanded: dict[Value, Value] = {}
    sums = {(m.inputs[0], m.params): m for m in members if m.op == "reduce_sum"}
    for m in members:
        if m in out:  # a sum that squared deviations needed before
            continue
        if m.op != "reduce_sqdev":
            out.append(m)
            continue
        x = m.inputs[0]
        wide = dt.compute_dtype(x.dtype)
        if wide is not x.dtype:
            x = Value.fresh("cast", "elementwise", (x,), None, x.shape, wide)
        total = sums.get((x, m.params))
        if total is None:
            total = Value.fresh("reduce_sum", "reduce", (x,), m.params, m.shape, wide)
            sums[x, m.params] = total
        if total not in out:
            out.append(total)
        count = Value.fresh("count", "source", (), None, (), wide)
        mean = Value.fresh("div", "elementwise", (total, count), None, m.shape, wide)
        keepdims = tuple(1 if i in m.params else n for i, n in enumerate(x.shape))
        mean = Value.fresh("reshape", "view", (mean,), keepdims, keepdims, wide)
        deviation = Value.fresh("sub", "elementwise", (x, mean), None, x.shape, wide)
        square = Value.fresh("mul", "elementwise", (deviation, deviation), None, x.shape, wide)
        expanded[m] = Value.fresh("reduce_sum", "reduce", (square,), m.params, m.shape, m.dtype)
        out.append(expanded[m])
    return out, expanded


def _deviation(sqdev: Value) -> Value:
    return sqdev.inputs[0].inputs[0]


def _residual(sqdev: Value) -> Value:
    x = _deviation(sqdev)
    return Value.fresh("reduce_sum", "reduce", (x,), sqdev.params, sqdev.shape, x.dtype)


def source_of(sqdev: Value) -> Value:
    """The value whose deviations are summed."""
    return _deviation(sqdev).inputs[0]


def mean_of(sqdev: Value) -> Value:
    return _deviation(sqdev).inputs[1].inputs[0]


def sum_of(sqdev: Value) -> Value:
    """The plain sum of which the mean is taken."""
    return mean_of(sqdev).inputs[0]
