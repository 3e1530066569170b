"""Products with one vector on GPUs: joined where they share it, with its reductions inside.

The step of a decoder is a chain of such products, each of which waits for the kernel before. A norm
between two of them is a reduction of a few KiB, which the warps of the second product compute again
and again faster than a kernel of its own would run (`lower/matmul/row_gemv.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from numus.compiler.fusion.tuning import TUNING
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Layouts, Value, walk
from numus.compiler.lower.index_rules import is_inline
from numus.shapes import row_major
from numus.target import Target

_REDUCTIONS = ("reduce_sum", "reduce_sqdev", "reduce_max", "reduce_min")


@dataclass
class RowProducts:
    """Of a graph whose `stored` values will be in memory.

    Attributes:
        products: that warps compute row by row.
        statistics: reductions of their vectors that they compute, too.
        between: what vectors compute from these, which is never stored.
    """

    products: set[Value] = field(default_factory=set)
    statistics: set[Value] = field(default_factory=set)
    between: set[Value] = field(default_factory=set)

    @staticmethod
    def of(
        order: Sequence[Value],
        stored: set[Value],
        roots: set[Value],
        strides: Layouts,
        target: Target,
    ) -> RowProducts:
        found = RowProducts()
        kinds = ("contract", "packed_gemv")
        candidates = [v for v in order if v.kind in kinds and v not in strides]
        if not (candidates and target.subgroup_size and target.vector_access_bytes):
            return found
        from numus.compiler.lower.matmul.row_products import streams_rows, vector_of  # for GPUs

        layouts = {**{v: row_major(v.shape) for v in stored}, **strides}
        found.products = {v for v in candidates if streams_rows(v, layouts, target)}
        vectors = {v: vector_of(v) for v in found.products}
        users: dict[Value, list[Value]] = {}
        for v in order:
            for x in dict.fromkeys(v.inputs if v not in strides else ()):
                users.setdefault(x, []).append(v)
        for v in reversed(order):
            if v not in stored or v in roots or not _is_statistic(v, layouts):
                continue
            between = _until_products(v, users, vectors, stored, found.statistics)
            if between is not None:
                found.statistics.add(v)
                found.between |= between
        return found


def _is_statistic(v: Value, layouts: Layouts) -> bool:
    """A cheap reduction of all elements of a short vector."""
    if v.op not in _REDUCTIONS or v.size != 1 or v.dtype.kind != "float":
        return False
    source = v.inputs[0]
    extents = [n for n in source.shape if n != 1]
    if len(extents) != 1 or source.size > TUNING.row_statistic_max_elements:
        return False
    terms = [x for x in walk([source], lambda x: x not in layouts) if x not in layouts]
    long = [x for x in terms if x.size > 1]
    plain = all(is_inline(x) or x.size == 1 for x in terms)
    return plain and len(long) <= TUNING.row_statistic_max_ops and _is_cheap(long)


def _is_cheap(values: list[Value]) -> bool:
    return not any(x.op in EXPENSIVE_OPS or x.kind == "gather" for x in values)


def _until_products(
    v: Value,
    users: dict[Value, list[Value]],
    vectors: dict[Value, Value],
    stored: set[Value],
    statistics: set[Value],
) -> set[Value] | None:
    """What is computed from a reduction on the way to products and their other statistics; None if
    anything else reads it."""
    extent = v.inputs[0].size
    between: set[Value] = set()
    stack = [(v, u) for u in users.get(v, ())]
    while stack:
        x, u = stack.pop()
        if u in vectors:
            # only as the vector, of the same extent
            if u.inputs.count(x) != 1 or vectors[u] is not x or x.size != extent:
                return None
        elif u in stored:
            if u not in statistics or u.inputs[0].size != extent:
                return None
        elif u not in between:
            if u.size > extent or not _is_cheap([u]) or u.dtype.is_complex:
                return None
            between.add(u)
            stack += [(u, w) for w in users.get(u, ())]
    return between if users.get(v) else None
