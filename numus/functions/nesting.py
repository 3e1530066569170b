"""Nested sequences of numbers: the types of their elements, found without recursion."""

from __future__ import annotations

import itertools
from typing import Any

from numus.errors import ShapeError

SEQUENCES = (list, tuple, range)
MAX_DEPTH = 64  # NumPy's limit on axes


def leaf_types(obj: Any, op: str) -> set[type]:
    """The types of the elements of nested sequences; those without end are refused."""
    level = list(obj)
    found: set[type] = set()
    for _ in range(MAX_DEPTH):
        types = set(map(type, level))
        nested = {t for t in types if issubclass(t, SEQUENCES)}
        found |= types - nested
        if not nested:
            return found
        # each sequence once: one that holds itself would multiply from level to level
        parts = {id(x): x for x in level if type(x) in nested}
        level = list(itertools.chain.from_iterable(parts.values()))
    raise ShapeError(
        f"{op}: sequences are nested more than {MAX_DEPTH} deep, or hold themselves; a tensor has "
        f"at most {MAX_DEPTH} axes"
    )
