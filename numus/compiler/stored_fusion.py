"""Fused graphs on disk: what another process fused is not fused again.

A traced graph for a GPU is fused for its own sizes, which takes half of a first step whose kernels
are on disk. Its groups are stored under the graph's structure and sizes. Values refer to each other
a thousand deep, so they are stored as a table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from numus import ir
from numus.compiler.fused_graph import FusedGraph
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.graph.value import Value
from numus.compiler.lower import stored_templates
from numus.ir.stored_kernel import pack, unpack
from numus.kernels.vendor.registry import kernel_choice_key
from numus.target import Target

_MIN_NODES = 100  # smaller graphs are fused in no time


class StoredFusion:
    """A fused graph as what `pickle` takes."""

    def __init__(self, fused: FusedGraph) -> None:
        values = fused.values()
        number = {v: i for i, v in enumerate(values)}
        self._table = [
            (v.id, v.op, v.kind, tuple([number[x] for x in v.inputs]), v.params, v.shape, v.dtype)
            for v in values
        ]
        self._rest = pack(fused.__dict__, lambda x: number[x] if x.__class__ is Value else None)

    def fused(self) -> FusedGraph:
        ir.new_build()
        values: list[Value] = []
        for number, op, kind, inputs, *rest in self._table:
            values.append(Value(number, op, kind, tuple([values[i] for i in inputs]), *rest))
        found = FusedGraph.__new__(FusedGraph)
        found.__dict__.update(unpack(self._rest, values))
        return found


def fused_or_stored(
    graph: GraphSignature,
    donated: Sequence[tuple[int, int]],
    target: Target,
    fuse: Callable[[], FusedGraph],
) -> FusedGraph:
    """The fused graph of a structure, from disk where it is there. `donated`: pairs of numbers of
    nodes; `fuse` makes it."""
    name = None
    if target.simt and stored_templates.enabled and len(graph.nodes) >= _MIN_NODES:
        key = _plain((kernel_choice_key(), graph.skeleton.parts, tuple(donated)))
        name = stored_templates.digest("fusion", key, list(graph.numbers), target)
    stored: StoredFusion | None = stored_templates.load(name)
    if stored is not None:
        return stored.fused()
    found = fuse()
    if name is not None:
        stored_templates.store(name, StoredFusion(found))
    return found


def _plain(key: Any) -> Any:
    """A key in which parameters that are dataclasses are tuples."""
    if isinstance(key, tuple):
        return tuple(map(_plain, key))
    if dataclasses.is_dataclass(key) and not isinstance(key, type):
        fields = (getattr(key, f.name) for f in dataclasses.fields(key))
        return (type(key).__qualname__, *map(_plain, fields))
    return key
