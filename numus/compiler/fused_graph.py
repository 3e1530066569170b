"""Fused graphs: a graph as the compiler's values, partitioned into fusion groups.

All that is decided about a graph before its groups are lowered. Sizes may be symbolic: then the
decisions are recorded, and the fused graph of other sizes is a copy with their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from numus import ir
from numus.compiler.fusion.fuser import Fuser
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.approx_math import approximated
from numus.compiler.graph.builder import GraphBuilder
from numus.compiler.graph.channels_last import channels_last
from numus.compiler.graph.strided_view import (
    StridedView,
    bijective_views,
    reads_in_order,
    storage_view,
)
from numus.compiler.graph.value import SIZED_OPS, Layouts, Value, walk
from numus.compiler.hoisting import mark_captured
from numus.compiler.lower.dedup import Equal, equal_groups
from numus.ir.symbolic_size import SymbolicSize
from numus.shapes import row_major
from numus.target import Target


class FusedGraph:
    """The groups of a graph, its leaves, and the layouts of its results.

    Args:
        graph: a graph's signature.
        donated: pairs of a leaf and a root that is best written over it.
        sizes: instead of the graph's own, in the order of its `numbers`.
        captured: leaves, by number, that are the same in all runs.
        changing: the number of constants, the first ones, that are given for each run.

    Attributes:
        views: layouts of the roots, the live-out nodes and those saved for gradients, in the
            memory of values.
    """

    def __init__(
        self,
        graph: Any,
        roots: Sequence[Any],
        target: Target,
        donated: Sequence[tuple[Any, Any]] = (),
        sizes: Iterator[Any] | None = None,
        captured: Sequence[int] = (),
        changing: int = 0,
    ) -> None:
        ir.new_build()
        self.leaves: list[Value] = []
        self.leaf_strides: Layouts = {}
        number = graph.number
        pairs = [(number[old], number[new]) for old, new in donated]
        values = self._build(graph, roots, target, sizes, pairs)
        results = [values[number[r]] for r in roots] + [values[i] for i in graph.live_out]
        uses = Counter(x for v in values for x in set(v.inputs))
        self.views = [
            StridedView(v, 0, row_major(v.shape))
            if not target.simt and uses[bijective_views(v)[0]] == 1 and self._in_order(v)
            else storage_view(v, self.leaf_strides)
            for v in results
        ]
        base = {v: view.base for v, view in zip(results, self.views, strict=True)}
        self.donated = {base[values[new]]: values[old] for old, new in pairs}
        self.roots = [x.base for x in self.views if x.base not in self.leaf_strides]
        self.groups: list[FusionGroup] = Fuser(self.roots, self.leaf_strides, target).run()
        self.in_memory = {v for group in self.groups for v in group.stored}
        # Materialised anyway: saved for gradients that may need them.
        done = {*graph.live_out, *(number[r] for r in roots)}
        self.saved_for_backward = tuple(
            i for i in graph.tracked if i not in done and values[i] in self.in_memory
        )
        saved = (values[i] for i in self.saved_for_backward)
        self.views += [StridedView(v, 0, row_major(v.shape)) for v in saved]
        self.captured = [self.leaves[i] for i in captured]
        self.changing = changing
        mark_captured(self.groups, {*self.in_memory, *self.leaves}, self.captured, changing)
        # where known: see `numbers` and `with_numbers`
        self.equal_groups: Equal = {}
        self.layouts: Layouts = {}

    def _build(
        self,
        graph: Any,
        roots: Sequence[Any],
        target: Target,
        sizes: Iterator[Any] | None,
        donated: Sequence[tuple[int, int]],
    ) -> list[Value]:
        """The compiler's values of the nodes; `donated` as above, by number."""

        def sized(numbers: Any) -> Any:
            if sizes is None:
                return numbers
            if numbers.__class__ is tuple:
                return tuple([sized(n) for n in numbers])
            return next(sizes)

        builder = GraphBuilder(stores_views=target.wgmma)
        values: list[Value] = []
        leaves, constants = set(graph.leaves), {n: i for i, n in enumerate(graph.constants)}
        for node in graph.nodes:
            if node in leaves:
                number, shape = len(self.leaves), sized(node.shape)
                v = builder.make("leaf", "leaf", (), (number,), shape, node.dtype)
                self.leaf_strides[v] = sized(graph.leaf_strides[number])
                self.leaves.append(v)
            elif node in constants:
                params = (graph.classes[constants[node]], constants[node])
                v = builder.make("constant", "source", (), params, (), node.dtype)
            else:
                inputs = tuple([values[graph.number[x]] for x in node.inputs])
                name, shape = node.prim.name, sized(node.shape)
                params = sized(node.params) if name in SIZED_OPS else node.params
                v = builder.make(name, node.prim.kind, inputs, params, shape, node.dtype)
            values.append(v)
        made = builder.values
        copies = channels_last(made, self.leaf_strides, target)
        if copies:
            values = [copies[v] for v in values]
            self.leaves = [copies[v] for v in self.leaves]
            self.leaf_strides = {copies[v]: s for v, s in self.leaf_strides.items()}
            made = sorted(walk(values, lambda v: True), key=lambda v: v.id)
        pairs = [(values[old], values[new]) for old, new in donated]
        copies = {}
        if pairs:  # imported late: few graphs have any
            from numus.compiler.graph.updated_rows import read_around_updates

            copies = read_around_updates(made, pairs, target)
        if copies:
            values = [copies.get(v, v) for v in values]
            made = sorted(walk(values, lambda v: True), key=lambda v: v.id)
        results = [values[graph.number[r]] for r in roots] + [values[i] for i in graph.live_out]
        copies = approximated(made, results, target)
        return [copies.get(v, v) for v in values] if copies else values

    def _in_order(self, v: Value) -> bool:
        return v not in self.leaf_strides and reads_in_order(v, self.leaf_strides)

    def memory_layouts(self) -> Layouts:
        """The layouts of all values in memory."""
        return {**self.leaf_strides, **{v: row_major(v.shape) for v in self.in_memory}}

    # -- other sizes ------------------------------------------------------------------------------

    def values(self) -> list[Value]:
        """All values, operands first."""
        members = [v for group in self.groups for v in group.members]
        bases = [view.base for view in self.views]
        found = walk([*members, *bases, *self.leaves], lambda v: v not in self.leaf_strides)
        return sorted(found, key=lambda v: v.id)

    def numbers(self) -> list[SymbolicSize]:
        """The symbolic sizes that `with_numbers` replaces."""
        layouts = self.layouts = self.memory_layouts()
        self.equal_groups = equal_groups(self.groups, layouts)
        found: dict[str, SymbolicSize] = {}

        def collect(x: Any) -> None:
            if x.__class__ is tuple:
                for y in x:
                    collect(y)
            elif x.__class__ is SymbolicSize:
                found[x.name] = x

        for v in self.values():
            collect((v.shape, v.params, self.leaf_strides.get(v, ())))
        for view in self.views:
            collect((view.offset, view.strides))
        for group in self.groups:
            collect(group.space)
        collect(tuple(layouts.values()))
        return list(found.values())

    def with_numbers(self, value: Callable[[SymbolicSize], int]) -> FusedGraph:
        """The fused graph with numbers for symbolic sizes."""

        def number(x: Any) -> Any:
            if x.__class__ is tuple:
                return tuple([number(y) for y in x])
            return value(x) if x.__class__ is SymbolicSize else x

        new: dict[Value, Value] = {}
        for v in self.values():
            inputs = tuple([new[x] for x in v.inputs])
            new[v] = Value(v.id, v.op, v.kind, inputs, number(v.params), number(v.shape), v.dtype)
        out = FusedGraph.__new__(FusedGraph)
        out.leaves = [new[v] for v in self.leaves]
        out.leaf_strides = {new[v]: number(s) for v, s in self.leaf_strides.items()}
        out.views = [
            StridedView(new[x.base], number(x.offset), number(x.strides)) for x in self.views
        ]
        out.donated = {new[v]: new[x] for v, x in self.donated.items()}
        out.roots = [new[v] for v in self.roots]
        out.groups = [group.on(new, number(group.space)) for group in self.groups]
        out.in_memory = {new[v] for v in self.in_memory}
        out.equal_groups = {
            copy: (first, [new[v] for v in values])
            for copy, (first, values) in zip(out.groups, self.equal_groups.values(), strict=True)
        }
        out.saved_for_backward = self.saved_for_backward
        out.captured, out.changing = [], 0  # graphs of several sizes are not traced
        return out

    # -- as bytes ---------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        """Values by number: graphs are deeper than `pickle` follows."""
        values = self.values()
        number = {v: i for i, v in enumerate(values)}

        def numbers(given: Iterable[Value]) -> list[int]:
            return [number[v] for v in given]

        groups = [
            (group.state(), numbers(group.members), numbers(group.stored)) for group in self.groups
        ]
        return (
            [(v.id, v.op, v.kind, numbers(v.inputs), v.params, v.shape, v.dtype) for v in values],
            *(numbers(self.leaves), {number[v]: s for v, s in self.leaf_strides.items()}),
            [(number[x.base], x.offset, x.strides) for x in self.views],
            {number[v]: number[x] for v, x in self.donated.items()},
            *(numbers(self.roots), groups, numbers(self.in_memory), self.saved_for_backward),
            [(first, numbers(given)) for first, given in self.equal_groups.values()],
            {number[v]: s for v, s in self.layouts.items()},
        )

    def __setstate__(self, state: Any) -> None:
        own, leaves, leaf_strides, views, donated, roots, groups, in_memory, *rest = state
        self.saved_for_backward, equal, layouts = rest
        new: list[Value] = []
        for key, op, kind, inputs, params, shape, dtype in own:
            operands = tuple([new[i] for i in inputs])
            new.append(Value(key, op, kind, operands, params, shape, dtype))
        self.leaves = [new[i] for i in leaves]
        self.leaf_strides = {new[i]: s for i, s in leaf_strides.items()}
        self.views = [StridedView(new[i], offset, strides) for i, offset, strides in views]
        self.donated = {new[i]: new[k] for i, k in donated.items()}
        self.roots = [new[i] for i in roots]
        self.groups = [
            FusionGroup.with_state(given, [new[i] for i in members], {new[i] for i in stored})
            for given, members, stored in groups
        ]
        self.in_memory = {new[i] for i in in_memory}
        self.equal_groups = {
            group: (first, [new[i] for i in values])
            for group, (first, values) in zip(self.groups, equal, strict=True)
        }
        self.layouts = {new[i]: s for i, s in layouts.items()}
        self.captured, self.changing = [], 0
