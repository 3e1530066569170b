"""Groups of values that one kernel computes, and a graph divided into them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numus import ir
from numus.compiler.graph.value import GEMM_KINDS, Value, walk
from numus.compiler.lower.index_rules import Index, is_inline
from numus.shapes import Shape

# Kinds whose kernels compute elementwise values that follow from their results.
EPILOGUE_KINDS = (*GEMM_KINDS, "scan")


def squeeze(shape: Shape) -> Shape:
    """The shape without its axes of extent 1."""
    return tuple(n for n in shape if n != 1)


def index_of(shape: Shape, variables: Sequence[ir.Expr]) -> Index:
    """An index of `shape` whose axes longer than 1 take the variables in order."""
    left = iter(variables)
    return tuple(ir.const(0) if n == 1 else next(left) for n in shape)


class FusionGroup:
    """Values computed by one kernel (or one hand-written schedule).

    Loops run over `space` (squeezed); `axes` are the places in it that reductions run over.
    """

    __slots__ = ("axes", "kind", "low_memory", "members", "position", "space", "stored")

    def __init__(self, val: Value, position: int) -> None:
        self.members = [val]
        self.position = position
        self.stored: set[Value] = set()
        self.low_memory = False  # whether its kernels are to do with less memory
        self.axes: Shape = ()
        if val.kind == "reduce":
            self.kind = "loop"
            shape = val.inputs[0].shape
            self.space = squeeze(shape)
            self.axes = _squeezed_axes(shape, val.params)
        elif is_inline(val) or val.op == "copy":
            self.kind = "loop"
            self.space = squeeze(val.shape)
        else:
            self.kind = val.kind
            self.space = squeeze(val.shape)

    @staticmethod
    def of_stored(val: Value, position: int) -> FusionGroup:
        """A group of one value, which is stored."""
        group = FusionGroup(val, position)
        group.stored = {val}
        return group

    @property
    def outer(self) -> Shape:
        """The space without the axes that are reduced."""
        return tuple(n for i, n in enumerate(self.space) if i not in self.axes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What its kernel is said to do."""
        return tuple(v.op for v in self.members)

    def outside(self, layouts: dict[Value, Shape]) -> dict[Value, Shape]:
        """The layouts of what is in memory before the group runs: of all but its own members."""
        inside = set(self.members)
        return {v: s for v, s in layouts.items() if v not in inside}

    def __repr__(self) -> str:
        return f"<{self.kind} {self.space} over {self.axes}: {self.members}>"


def _squeezed_axes(shape: Shape, axes: Shape) -> Shape:
    places = [i for i, n in enumerate(shape) if n != 1]
    return tuple(places.index(a) for a in axes if shape[a] != 1)


def level(group: FusionGroup, val: Value) -> str:
    """Where a member of a loop group is computed: "reduce", at every point ("full"), or per row."""
    if val.kind == "reduce":
        return "reduce"
    return "full" if squeeze(val.shape) == group.space or not group.axes else "outer"


def leaves_of(val: Value, in_memory: set[Value]) -> set[Value]:
    """The values in memory that an expression reads."""
    return {x for x in walk(val.inputs, lambda x: x not in in_memory) if x in in_memory}


class Grouping:
    """A graph divided into groups, as far as that has come.

    Values that are stored come in, in order: each begins a group or joins one.
    """

    def __init__(self, order: Iterable[Value], stored: set[Value], leaves: set[Value]) -> None:
        self.in_memory = stored | leaves
        self.groups: list[FusionGroup] = []
        self.home: dict[Value, FusionGroup] = {}
        self.reads: dict[FusionGroup, set[Value]] = {}  # from memory
        self.needs: dict[
            FusionGroup, set[FusionGroup]
        ] = {}  # what runs before it, however long before
        self.by_space: dict[Shape, list[FusionGroup]] = {}  # those that others may join
        self.read_by = {v: leaves_of(v, self.in_memory) for v in order if v in stored}
        self.readers: dict[Value, list[Value]] = {}
        for v, reads in self.read_by.items():
            for r in reads:
                self.readers.setdefault(r, []).append(v)

    def producers(self, v: Value) -> set[FusionGroup]:
        """The groups whose members a value reads."""
        return {self.home[r] for r in self.read_by[v] if r in self.home}

    def needed(self, v: Value) -> set[FusionGroup]:
        """The groups that have to run before a value is computed."""
        needs = self.producers(v)
        for n in list(needs):
            needs |= self.needs[n]
        return needs

    def begin(self, group: FusionGroup, v: Value, needs: set[FusionGroup]) -> None:
        """A group of this value alone."""
        self.home[v] = group
        self.groups.append(group)
        self.reads[group] = self.read_by[v]
        self.needs[group] = needs
        if group.kind == "loop" or group.kind in EPILOGUE_KINDS:
            self.by_space.setdefault(group.space, []).append(group)

    def join(
        self, target: FusionGroup, group: FusionGroup, v: Value, needs: set[FusionGroup]
    ) -> None:
        """The value, which by itself would be the other group, becomes a member of the target."""
        target.members.append(v)
        target.position = max(target.position, v.id)
        if v.kind == "reduce" and not target.axes:
            target.axes = group.axes
        self.home[v] = target
        self.reads[target] |= self.read_by[v]
        needs.discard(target)
        self.needs[target] |= needs
        for other in self.groups:  # what needed the target now needs these too
            if target in self.needs[other]:
                self.needs[other] |= needs

    def independent(self, a: FusionGroup, b: FusionGroup) -> bool:
        """Whether neither of two groups waits for the other, not even through a third."""
        return a not in self.needs[b] and b not in self.needs[a]

    def absorb(self, into: FusionGroup, other: FusionGroup) -> None:
        """Make one of two groups that are independent of each other."""
        into.members = sorted([*into.members, *other.members], key=lambda m: m.id)
        into.position = max(into.position, other.position)
        for m in other.members:
            self.home[m] = into
        self.reads[into] |= self.reads.pop(other)
        needs = self.needs[into] | self.needs.pop(other)
        self.needs[into] = needs
        self.groups.remove(other)
        self.by_space[other.space].remove(other)
        for g in self.groups:
            if other in self.needs[g] or into in self.needs[g]:
                self.needs[g] = (self.needs[g] - {other}) | {into} | needs

    def mark_stored(self, roots: set[Value]) -> None:
        """Of each group's members, find those that others read: they go to memory, as roots do."""
        for group in self.groups:
            group.stored = set()
            for m in group.members:
                if m in roots or m.op == "attention_lse":  # which a gradient asks for
                    group.stored.add(m)
        for group in self.groups:
            for r in self.reads[group]:
                home = self.home.get(r)
                if home is not None and home is not group:
                    home.stored.add(r)

    def ordered(self) -> list[FusionGroup]:
        """The groups in an order in which they can run."""
        out: list[FusionGroup] = []
        done: set[FusionGroup] = set()
        waiting = sorted(self.groups, key=lambda g: g.position)
        while waiting:
            rest = []
            for g in waiting:
                direct = {self.home[r] for r in self.reads[g] if r in self.home} - {g}
                if direct <= done:
                    out.append(g)
                    done.add(g)
                else:
                    rest.append(g)
            if len(rest) == len(waiting):
                raise AssertionError("groups wait for each other")
            waiting = rest
        return out
