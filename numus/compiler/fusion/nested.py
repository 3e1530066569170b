"""Nested reductions: short sums within the terms of a longer one, recomputed rather than stored.

`((x[:, None] - y[None]) ** 2).sum(-1).min(1)` has a sum over few elements for every pair of rows.
In memory there would be a value for each pair, though all of them follow from two small operands.
As an expression of its terms, the sum is a part of the kernel that reduces the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from numus.compiler.fusion.tuning import TUNING
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.index_rules import REDUCTIONS_OF_TERMS, is_inline
from numus.target import Target

SIZE_RATIO = 16  # operands and results smaller than 1/n of the pairs are small


def nested_reductions(
    order: Sequence[Value], roots: set[Value], leaves: set[Value], target: Target
) -> set[Value]:
    """Reductions of few terms, of which only other reductions make use."""
    if not target.vector_access_bytes:
        return set()
    found = {v for v in order if v not in leaves and v not in roots and _has_few_terms(v, leaves)}
    if not found:
        return found
    users: dict[Value, list[Value]] = {}
    for v in order:
        if v not in leaves:
            for x in dict.fromkeys(v.inputs):
                users.setdefault(x, []).append(v)
    return {v for v in found if _is_reduced(v, users, roots)}


def _has_few_terms(v: Value, leaves: set[Value]) -> bool:
    """The terms are few, cheap, and follow from operands much smaller than the result."""
    if v.op not in REDUCTIONS_OF_TERMS or v.dtype.is_complex or v.size < TUNING.nested_min_results:
        return False
    source = v.inputs[0]
    terms = math.prod(source.shape[a] for a in v.params)
    if not 2 <= terms <= TUNING.nested_max_terms:
        return False
    inline = list(walk([source], lambda x: x not in leaves and is_inline(x)))
    small = all(SIZE_RATIO * x.size <= v.size for x in inline if x in leaves or not is_inline(x))
    large = [x for x in inline if x.size > v.size and x.kind == "elementwise"]
    cheap = not any(x.op in EXPENSIVE_OPS or x.kind == "gather" for x in inline)
    return small and cheap and len(large) * terms <= TUNING.nested_max_ops


def _is_reduced(v: Value, users: dict[Value, list[Value]], roots: set[Value]) -> bool:
    """All uses of a value end in independent reductions to much less."""
    ends: set[Value] = set()
    seen: set[Value] = set()
    stack = [v]
    while stack:
        for u in users.get(stack.pop(), ()):
            if u in seen:
                continue
            seen.add(u)
            if u in roots and u.kind != "reduce":
                return False
            if not is_inline(u):
                ends.add(u)
            else:
                stack.append(u)
    if not 1 <= len(ends) <= TUNING.nested_max_users:
        return False
    if any(u.kind != "reduce" or SIZE_RATIO * u.size > v.size for u in ends):
        return False
    if any(u.inputs[0].size > TUNING.nested_max_elements * v.size for u in ends):
        return False  # threads would compute the same sum for each element of a row
    return not any(x in ends for u in ends for x in walk(u.inputs, lambda x: x is not v))
