"""What a loop group computes, and in which rounds: the part of lowering that knows no loops yet.

Sums of squared deviations become two plain sums here, and every member learns how many rounds of
reductions over the row must be finished before its own turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup, squeeze
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import Emitter
from numus.shapes import Shape, size_of
from numus.target import Target

SMALL = 1 << 13  # elements up to which a kernel's code is kept short
BLOCK = 1 << 15  # elements that one block of a cheap kernel handles, at least
PER_THREAD = 16  # the same for a thread of a group: enough loads under way to hide their latency
MOST_AT_ONCE = 160  # operations on a column of several rows
BLOCKS_PER_UNIT = 16  # of groups: enough to keep a unit busy while some of them wait

Redirect = dict[Value, tuple[Value, int, int]]  # part -> (whole, axis, where it starts)


class Work:
    """The values of a loop group, made ready to be laid out as loops.

    `redirect` stores a member as part of another value; `aliases` says which member computes a
    value that others of the group refer to.
    """

    def __init__(
        self,
        group: FusionGroup,
        layouts: dict[Value, Shape],
        target: Target,
        redirect: Redirect | None = None,
        aliases: dict[Value, Value] | None = None,
    ) -> None:
        self.group = group
        self.target = target
        self.redirect = redirect or {}
        self.members, deviations = _expanded(group.members)
        self.aliases = {**(aliases or {}), **deviations}
        self.squares = set(deviations.values())  # sums that are taken around a mean
        self.leans: dict[Value, Value] = {}  # for each of them, the plain sum of the deviations
        inside = {*self.members, *group.members, *self.aliases}
        self.layouts = {v: s for v, s in layouts.items() if v not in inside}
        self.reduces = [m for m in self.members if m.kind == "reduce"]
        self.stored = [m for m in group.members if m in group.stored]  # always in this order
        self.stage = self._stages()
        self.notes = tuple(m.op for m in group.members)
        # how many elements a mean is taken over: known only where the loops are
        self.counts = [v for v in self._inlined(self.members) if v.op == "count"]

    def _stages(self) -> dict[Value, int]:
        """For each member, how many rounds of reductions must have run before it is computed."""
        after: dict[Value, int] = {}
        inverse = {b: a for a, b in self.aliases.items()}
        for m in self.members:
            rounds = 0
            seen: set[Value] = set()
            stack = list(m.inputs)
            while stack:
                x = stack.pop()
                if x in seen:
                    continue
                seen.add(x)
                x = self.aliases.get(x, x)
                if x.kind == "reduce" and x in after:
                    rounds = max(rounds, after[x] + 1)
                elif x not in self.layouts:
                    stack.extend(x.inputs)
            after[m] = rounds
            if m in inverse:
                after[inverse[m]] = rounds
        return after

    def leaning(self) -> Work:
        """The same, with the deviations summed up beside their squares. The sum would be 0, were
        the mean exact; it tells what squares around a rounded one lack.
        """
        if not self.squares:
            return self
        found = copy(self)
        found.leans = {r: _lean(r) for r in self.members if r in self.squares}
        found.members = [
            x for m in self.members for x in ((found.leans[m], m) if m in found.leans else (m,))
        ]
        found.reduces = [m for m in found.members if m.kind == "reduce"]
        found.stage = {**self.stage, **{v: self.stage[r] for r, v in found.leans.items()}}
        return found

    def sampling(self) -> Work:
        """The same, leaning, for one walk of all there is to reduce, after one of a sample, of
        which the sums are that deviations are taken around the mean of."""
        found = self.leaning()
        sums = {sum_behind(r) for r in self.squares}
        found.stage = {m: 0 if m in sums else max(1, n) for m, n in found.stage.items()}
        return found

    def _inlined(self, values: Iterable[Value]) -> Iterator[Value]:
        """These values and all that is computed for them, each once; nothing that is in memory."""
        found = walk(values, lambda x: x not in self.layouts)
        return (x for x in found if x not in self.layouts)

    def read(self) -> list[Value]:
        """What the members are computed from that is in memory."""
        found = walk(self.members, lambda x: x not in self.layouts)
        return [x for x in found if x in self.layouts]

    def emitter(self, partials: dict[Value, Shape] | None = None) -> Emitter:
        """What builds one kernel of this work; `partials` are more values that are in memory."""
        e = Emitter({**self.layouts, **(partials or {})}, self.is_small, self.threads)
        e.redirect = self.redirect
        return e

    @property
    def threads(self) -> int:
        """Threads of a group, 0 where lanes are SIMD."""
        return self.target.block_size

    def threads_for(self, lanes: int, most: int = 0) -> int:
        """Threads of a group that has this many lanes to fill: a power of two."""
        return max(32, min(most or self.threads, 1 << max(0, lanes - 1).bit_length()))

    @property
    def is_small(self) -> bool:
        """Whether there is so little data that short code beats quick code."""
        return size_of(self.group.space) <= SMALL

    # -- members ----------------------------------------------------------------------------------

    def is_full(self, m: Value) -> bool:
        """Whether a member is computed at every point: it is no reduction, nor once per row."""
        return m.kind != "reduce" and (not self.group.axes or squeeze(m.shape) == self.group.space)

    @property
    def rounds(self) -> int:
        """How many times a row is walked."""
        return 1 + max(self.stage.values())

    def reduces_of(self, stage: int) -> list[Value]:
        return [r for r in self.reduces if self.stage[r] == stage]

    def maps_of(self, stage: int) -> list[Value]:
        """What is stored at every point and can be computed in this round."""
        return [
            m
            for m in self.members
            if m in self.group.stored and self.is_full(m) and self.stage[m] == stage
        ]

    @property
    def in_one_pass(self) -> bool:
        """Whether parts of a row can be walked by themselves and their results merged: nothing
        waits for a whole row, but squared deviations, which can be taken around another mean.
        """
        return not any(
            self.stage[m] > 0
            for m in self.members
            if (m.kind == "reduce" and m not in self.squares) or self.is_full(m)
        )

    # -- how much there is to do ------------------------------------------------------------------

    def cost(self) -> int:
        """How heavy an element is, as a multiple of a plain memory-bound one."""
        heavy = sum(x.op in EXPENSIVE_OPS for x in self._inlined(self.members))
        return min(16, 1 + heavy * 2)

    def share(self) -> int:
        """How many elements a block handles."""
        return self.threads * PER_THREAD or BLOCK // self.cost()

    def rows_at_once(self) -> int:
        """How many rows a group maps at a time, so that enough loads are under way."""
        light = [x for x in self._inlined(self.members) if x.kind == "elementwise"]
        work = len(light) + 8 * (self.cost() - 1)
        return next((n for n in (4, 2) if n * work <= MOST_AT_ONCE), 1)

    def enough_blocks(self) -> int:
        """How many groups keep the whole device busy."""
        return self.target.num_cores * BLOCKS_PER_UNIT

    def lanes(self) -> int:
        """How many elements a vector register holds, going by the widest."""
        sizes = [dt.real_of(m.dtype).itemsize for m in self.members if m.dtype is not dt.bool_]
        return max(1, self.target.vector_bytes // max(4, max(sizes, default=4)))


# -- squared deviations ---------------------------------------------------------------------------


def _expanded(members: Sequence[Value]) -> tuple[list[Value], dict[Value, Value]]:
    """Members with each sum of squared deviations written as two sums over the row; and which sum
    stands for which of them.
    """
    out: list[Value] = []
    stands_for: dict[Value, Value] = {}
    sums = {(m.inputs[0], m.params): m for m in members if m.op == "reduce_sum"}
    for m in members:
        if m in out:  # a sum that had to come before its squared deviations
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
        kept = tuple(1 if i in m.params else n for i, n in enumerate(x.shape))
        flat = Value.fresh("reshape", "view", (mean,), kept, kept, wide)
        off = Value.fresh("sub", "elementwise", (x, flat), None, x.shape, wide)
        square = Value.fresh("mul", "elementwise", (off, off), None, x.shape, wide)
        result = Value.fresh("reduce_sum", "reduce", (square,), m.params, m.shape, m.dtype)
        stands_for[m] = result
        out.append(result)
    return out, stands_for


def _lean(square: Value) -> Value:
    off = square.inputs[0].inputs[0]
    shape = square.shape
    return Value.fresh("reduce_sum", "reduce", (off,), square.params, shape, off.dtype)


def deviating(square: Value) -> Value:
    """What deviates."""
    off = square.inputs[0].inputs[0]
    return off.inputs[0]


def mean_behind(square: Value) -> Value:
    """The mean that squared deviations are taken around."""
    off = square.inputs[0].inputs[0]
    flat = off.inputs[1]
    return flat.inputs[0]


def sum_behind(square: Value) -> Value:
    """The plain sum that this mean is taken of."""
    return mean_behind(square).inputs[0]
