"""Plans of a known structure for other sizes.

Loops over growing lengths evaluate one structure in ever new sizes. Where a structure comes in a
second size, its fusion is recorded on symbols for the sizes that differ; a third size evaluates the
recording instead of fusing again. Guards hold wherever fusing would decide the same, so a plan
depends on its own sizes alone, not on those that came before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from numus.compiler.fused_graph import FusedGraph
from numus.compiler.graph.signature import GraphSignature, split_sizes
from numus.compiler.hooks import on_clear_plans
from numus.ir.symbolic_size import Recorder
from numus.kernels.vendor.registry import kernel_choice_key
from numus.lru import LruTable

_MAX_STRUCTURES = 64
_MAX_TEMPLATES = 16  # of one structure
_MAX_VALUES = 1 << 15  # of all templates together, about 30 MB
_MAX_SEEN = 4  # sizes of a structure that tell which of its numbers vary

Numbers = tuple[int, ...]


class _Template:
    """A recorded fusion: the numbers it is made for, and those that may vary."""

    def __init__(
        self, graph: GraphSignature, roots: Sequence[Any], target: Any, seen: list[Numbers]
    ) -> None:
        numbers = seen[-1]
        columns = list(zip(*seen, strict=True))
        symbols: dict[Any, int] = {}  # numbers that were equal in all sizes share one
        self._symbol_of: list[int | None] = [None] * len(numbers)
        for i, column in enumerate(columns):
            if column.count(column[0]) < len(column):
                self._symbol_of[i] = symbols.setdefault(column, len(symbols))
        self._first = [self._symbol_of.index(s) for s in range(len(symbols))]
        self._numbers = numbers
        recorder = Recorder([numbers[i] for i in self._first], interned=True)
        sizes = [
            n if s is None else recorder.symbols[s]
            for n, s in zip(numbers, self._symbol_of, strict=True)
        ]
        self._fused = FusedGraph(graph, roots, target, sizes=iter(sizes))
        self.size = len(self._fused.values())
        found = self._fused.numbers()
        self._position = {n.name: i for i, n in enumerate(found)}
        self._function = recorder.function(found)

    def fused(self, numbers: Numbers) -> FusedGraph | None:
        """The fused graph for these numbers; None where fusing would decide otherwise."""
        values = [numbers[i] for i in self._first]
        for n, own, s in zip(numbers, self._numbers, self._symbol_of, strict=True):
            if n != (own if s is None else values[s]):
                return None
        try:
            found: Any = self._function(*values)
        except ZeroDivisionError:  # ahead of the guard that excludes it
            return None
        if found is None:
            return None
        position = self._position
        return self._fused.with_numbers(lambda x: found[position[x.name]])


class _Structure:
    """The sizes in which a structure came, last ones, and its templates."""

    def __init__(self) -> None:
        self.seen: list[Numbers] = []
        self.templates: list[_Template] = []


_structures: LruTable[Any, _Structure] = LruTable(_MAX_STRUCTURES)
_made: deque[tuple[_Structure, _Template]] = deque()  # in order
on_clear_plans += [_structures.clear, _made.clear]


def _keep(structure: _Structure, template: _Template) -> None:
    """Add a template, and drop the oldest ones where there are too many."""
    structure.templates = [*structure.templates, template]
    _made.append((structure, template))
    total = sum(made.size for _, made in _made)
    while total > _MAX_VALUES and len(_made) > 1:
        owner, oldest = _made.popleft()
        owner.templates = [x for x in owner.templates if x is not oldest]
        total -= oldest.size


def fuse(device: Any, graph: GraphSignature, roots: Sequence[Any]) -> FusedGraph:
    """The fused graph of pending nodes, by a template where there is one."""
    target = device.runtime.target
    if target.simt:
        return FusedGraph(graph, roots, target)
    skeleton, numbers = split_sizes(graph.key)
    structure = _structures.setdefault((device.name, kernel_choice_key(), skeleton), _Structure)
    for template in reversed(structure.templates):
        found = template.fused(numbers)
        if found is not None:
            return found
    seen = structure.seen = [*structure.seen[1 - _MAX_SEEN :], numbers]
    varying = [column[-1] for column in zip(*seen, strict=True) if len(set(column)) > 1]
    if not varying or min(varying) < 2 or len(structure.templates) >= _MAX_TEMPLATES:
        return FusedGraph(graph, roots, target)
    made = _Template(graph, roots, target, seen)
    _keep(structure, made)
    found = made.fused(numbers)
    assert found is not None, "a template does not serve the sizes it was recorded for"
    return found
