"""Fusion groups: values that one kernel computes, and the partition of a graph into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numus import ir
from numus.compiler.graph.value import GEMM_KINDS, Layouts, Value, walk
from numus.compiler.lower.emitter import Index
from numus.compiler.lower.index_rules import is_inline
from numus.shapes import Shape

# Kinds whose kernels take an elementwise epilogue.
EPILOGUE_KINDS = (*GEMM_KINDS, "packed_gemv", "scaled", "scan", "fft")


def squeeze(shape: Shape) -> Shape:
    """The shape without its axes of extent 1."""
    return tuple(n for n in shape if n != 1)


def index_of(shape: Shape, variables: Sequence[ir.Expr]) -> Index:
    """An index of `shape` whose axes longer than 1 take the variables in order."""
    left = iter(variables)
    return tuple(ir.const(0) if n == 1 else next(left) for n in shape)


class FusionGroup:
    """Values computed by one kernel (or one hand-written schedule).

    Loops run over `space` (squeezed); `axes` of it are reduced.
    """

    __slots__ = (
        "axes", "captured", "kind", "low_memory", "members", "position", "space", "stored",
    )  # fmt: skip

    def __init__(self, val: Value, position: int) -> None:
        self.members = [val]
        self.position = position
        self.stored: set[Value] = set()
        self.low_memory = False  # lowered for less packing memory
        # read from memory, and the same in all runs: see `compiler/hoisting.py`
        self.captured: frozenset[Value] = frozenset()
        self.axes: Shape = ()
        shape = val.inputs[0].shape if val.kind == "reduce" else val.shape
        self.space = squeeze(shape)
        if val.kind == "reduce":
            self.kind = "loop"
            axes = [i for i, n in enumerate(shape) if n != 1]
            self.axes = tuple(axes.index(a) for a in val.params if shape[a] != 1)
        else:
            self.kind = "loop" if is_inline(val) or val.op == "copy" else val.kind

    @staticmethod
    def of(members: Sequence[Value], stored: set[Value], position: int) -> FusionGroup:
        """A group of these values, with the space and kind of the first."""
        group = FusionGroup(members[0], position)
        group.members = list(members)
        group.stored = stored
        return group

    @staticmethod
    def of_stored(val: Value, position: int) -> FusionGroup:
        """A group of one value, which is stored."""
        return FusionGroup.of([val], {val}, position)

    @staticmethod
    def union(groups: Sequence[FusionGroup]) -> FusionGroup:
        """The values of several groups, for reports."""
        members = [m for group in groups for m in group.members]
        return FusionGroup.of(members, {m for g in groups for m in g.stored}, groups[0].position)

    def on(self, new: Mapping[Value, Value], space: Shape) -> FusionGroup:
        """The same group of other values."""
        members, stored = [new[v] for v in self.members], {new[v] for v in self.stored}
        copy = FusionGroup.with_state(self.state(), members, stored)
        copy.space = space
        copy.captured = frozenset(new[v] for v in self.captured)
        return copy

    def state(self) -> tuple[object, ...]:
        """All but the values."""
        return self.position, self.kind, self.axes, self.low_memory, self.space

    @staticmethod
    def with_state(state: Sequence[Any], members: list[Value], stored: set[Value]) -> FusionGroup:
        """The group of these values with a `state`."""
        group = FusionGroup.__new__(FusionGroup)
        group.members, group.stored, group.captured = members, stored, frozenset()
        group.position, group.kind, group.axes, group.low_memory, group.space = state
        return group

    @property
    def outer(self) -> Shape:
        """The space without the reduced axes."""
        return tuple(n for i, n in enumerate(self.space) if i not in self.axes)

    @property
    def notes(self) -> tuple[str, ...]:
        """The operations of its kernel, for reports."""
        return tuple(v.op for v in self.members)

    def input_layouts(self, layouts: Layouts) -> Layouts:
        """The layouts of all but its own members."""
        members = set(self.members)
        return {v: s for v, s in layouts.items() if v not in members}

    def __repr__(self) -> str:
        return f"<{self.kind} {self.space} over {self.axes}: {self.members}>"


class Partition:
    """A graph partitioned into groups, as far as that has come.

    Values to be stored are added in order: each begins a group or is fused into one.
    """

    def __init__(self, order: Iterable[Value], stored: set[Value], leaves: set[Value]) -> None:
        self.in_memory = stored | leaves
        self.groups: list[FusionGroup] = []
        self.group_of: dict[Value, FusionGroup] = {}
        self.reads: dict[FusionGroup, set[Value]] = {}  # from memory
        self.ancestors: dict[FusionGroup, set[FusionGroup]] = {}  # transitive dependencies
        self.by_space: dict[Shape, list[FusionGroup]] = {}  # those that others may be fused into
        self.operands = {v: self._operands_in_memory(v) for v in order if v in stored}
        self.users: dict[Value, list[Value]] = {}
        for v, operands in self.operands.items():
            for x in operands:
                self.users.setdefault(x, []).append(v)

    def _operands_in_memory(self, val: Value) -> set[Value]:
        memory = self.in_memory
        return {x for x in walk(val.inputs, lambda x: x not in memory) if x in memory}

    def producers(self, v: Value) -> set[FusionGroup]:
        """The groups whose members a value reads."""
        return {self.group_of[r] for r in self.operands[v] if r in self.group_of}

    def ancestors_of(self, v: Value) -> set[FusionGroup]:
        """The groups that have to run before a value is computed."""
        needs = self.producers(v)
        for n in list(needs):
            needs |= self.ancestors[n]
        return needs

    def add(self, group: FusionGroup, v: Value, needs: set[FusionGroup]) -> None:
        """A group of this value alone."""
        self.group_of[v] = group
        self.groups.append(group)
        self.reads[group] = self.operands[v]
        self.ancestors[group] = needs
        if group.kind == "loop" or group.kind in EPILOGUE_KINDS:
            self.by_space.setdefault(group.space, []).append(group)

    def fuse(
        self, host: FusionGroup, group: FusionGroup, v: Value, needs: set[FusionGroup]
    ) -> None:
        """Fuse a value, by itself the other group, into the host."""
        host.members.append(v)
        host.position = max(host.position, v.id)
        if v.kind == "reduce" and not host.axes:
            host.axes = group.axes
        self.group_of[v] = host
        self.reads[host] |= self.operands[v]
        needs.discard(host)
        new = needs - self.ancestors[host]
        if not new:
            return
        self.ancestors[host] |= new
        for other in self.groups:
            if host in self.ancestors[other]:
                self.ancestors[other] |= new

    def independent(self, a: FusionGroup, b: FusionGroup) -> bool:
        """Neither of two groups depends on the other, even transitively."""
        return a not in self.ancestors[b] and b not in self.ancestors[a]

    def merge(self, into: FusionGroup, other: FusionGroup) -> None:
        """Merge two independent groups."""
        into.members = sorted([*into.members, *other.members], key=lambda m: m.id)
        into.position = max(into.position, other.position)
        for m in other.members:
            self.group_of[m] = into
        self.reads[into] |= self.reads.pop(other)
        needs = self.ancestors[into] | self.ancestors.pop(other)
        self.ancestors[into] = needs
        self.groups.remove(other)
        self.by_space[other.space].remove(other)
        for g in self.groups:
            if other in self.ancestors[g] or into in self.ancestors[g]:
                self.ancestors[g] = (self.ancestors[g] - {other}) | {into} | needs

    def mark_stored(self, roots: set[Value]) -> None:
        """Mark the members that go to memory: roots, and values that other groups read."""
        for group in self.groups:
            # a gradient needs the log-sum-exp
            group.stored = {m for m in group.members if m in roots or m.op == "attention_lse"}
        for group in self.groups:
            for r in self.reads[group]:
                producer = self.group_of.get(r)
                if producer is not None and producer is not group:
                    producer.stored.add(r)

    def topological_order(self) -> list[FusionGroup]:
        out: list[FusionGroup] = []
        done: set[FusionGroup] = set()
        waiting = sorted(self.groups, key=lambda g: g.position)
        while waiting:
            rest = []
            for g in waiting:
                direct = {self.group_of[r] for r in self.reads[g] if r in self.group_of} - {g}
                if direct <= done:
                    out.append(g)
                    done.add(g)
                else:
                    rest.append(g)
            if len(rest) == len(waiting):
                raise AssertionError("fusion groups depend on each other in a cycle")
            waiting = rest
        return out
