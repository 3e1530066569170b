"""Long elementwise expressions, cut into pieces.

A loop in Python may leave hundreds of elementwise operations behind one value. As one kernel their
code would grow with the number of turns, and the time to compile it faster than that. Such an
expression is cut where the fewest values cross, which in a loop is after a turn: the pieces are
alike, and share one kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from numus.compiler.fusion.tuning import TUNING
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Value


def _code_size(v: Value, expensive: int) -> int:
    """A measure of the code that an operation adds to a kernel."""
    if v.kind != "elementwise":
        return 0
    return expensive if v.op in EXPENSIVE_OPS else 1


class LongChains:
    """The pieces of the long expressions of a graph.

    Attributes:
        stored: values that one piece passes to another.
        piece: the number of a value's piece. Values of different pieces share no kernel.
    """

    def __init__(self, order: Sequence[Value], in_memory: Collection[Value]) -> None:
        self.stored: set[Value] = set()
        self.piece: dict[Value, int] = {}
        self._count = 0
        self._in_memory = in_memory
        inline = [v for v in order if v not in in_memory]
        if _total(inline) <= TUNING.max_code_size:
            return
        for values in _connected(inline):
            if _total(values) > TUNING.max_code_size:
                self._cut(values)
        for v in order:
            if v not in self.piece:
                pieces = [self.piece[x] for x in v.inputs if x in self.piece]
                if pieces:
                    self.piece[v] = max(pieces)

    def _cut(self, values: list[Value]) -> None:
        """Cut one expression, whose values are in order."""
        source: dict[Value, Value] = {}  # of views, what they show
        for v in values:
            source[v] = source.get(v.inputs[0], v) if v.kind == "view" else v
        last_use: dict[Value, int] = {}
        for i, v in enumerate(values):
            last_use.update((source[x], i) for x in v.inputs if x in source)
        expiring: dict[int, list[Value]] = {}
        for v, i in last_use.items():
            expiring.setdefault(i, []).append(v)
        i = 0
        while i < len(values):
            i = self._cut_piece(values, i, last_use, expiring)

    def _cut_piece(
        self,
        values: list[Value],
        start: int,
        last_use: dict[Value, int],
        expiring: dict[int, list[Value]],
    ) -> int:
        """Cut off the piece from `start`; gives its end."""
        live: set[Value] = set()  # values of this piece that later ones read
        crossing: set[Value] = set()  # those at the best end so far
        end, size = len(values), 0
        for i in range(start, len(values)):
            v = values[i]
            size += _code_size(v, TUNING.expensive_piece_size)
            if size > 2 * TUNING.min_piece_size and end < len(values):
                break
            live.difference_update(expiring.get(i, ()))
            here = v.kind in ("view", "source") or self._is_widened_load(v)  # in each piece
            if not here and last_use.get(v, 0) > i:
                live.add(v)
            if size >= TUNING.min_piece_size and (end == len(values) or len(live) < len(crossing)):
                end, crossing = i + 1, set(live)
        else:
            end, crossing = len(values), set()
        self.stored |= crossing
        self.piece.update(dict.fromkeys(values[start:end], self._count))
        self._count += 1
        return end

    def _is_widened_load(self, v: Value) -> bool:
        """A cast of what is in memory to a wider dtype, which every piece computes as it loads."""
        source = v.inputs[0] if v.op == "cast" else v
        narrower = source.dtype.is_floating and source.dtype.itemsize < v.dtype.itemsize
        while narrower and source.kind == "view" and source not in self._in_memory:
            source = source.inputs[0]
        return narrower and source in self._in_memory


def _total(values: Collection[Value]) -> int:
    return sum([_code_size(v, TUNING.expensive_code_size) for v in values])


def _connected(inline: Sequence[Value]) -> list[list[Value]]:
    """Values that read each other, in order. Sources and views of them connect nothing."""
    free: set[Value] = set()
    parent = {v: v for v in inline}

    def root(v: Value) -> Value:
        while parent[v] is not v:
            parent[v] = v = parent[parent[v]]
        return v

    for v in inline:
        if v.kind == "source" or (v.kind == "view" and free.issuperset(v.inputs)):
            free.add(v)
            continue
        for x in v.inputs:
            if x in parent and x not in free:
                parent[root(x)] = root(v)
    found: dict[Value, list[Value]] = {}
    for v in inline:
        if v not in free:
            found.setdefault(root(v), []).append(v)
    return list(found.values())
