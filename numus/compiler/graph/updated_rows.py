"""Attention over a cache that a program updates in place: new rows are read from where they come.

A step of decoding writes the keys and values of a token to a row of its cache, and attends to all
rows. If attention read the updated cache, it would wait for a kernel that does little else. Where
the update is one row, attention reads the old cache, which is an input of the program, and the row
itself: `updated_rows`, the scatter as an expression. The scatter runs later, beside other work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numus.compiler.graph.value import Layouts, Value
from numus.target import Target

UPDATED_ROWS = "updated_rows"
MAX_QUERIES = 8  # of attention that is split along its keys


def read_around_updates(
    values: Sequence[Value], donated: Iterable[tuple[Value, Value]], target: Target
) -> dict[Value, Value]:
    """Copies of the attention that reads results of single updates, and of what depends on it.
    `donated` has pairs of an input and a result that is best written over it."""
    if not target.dependent_launch:
        return {}
    updates = {new for old, new in donated if _is_update(new) and new.inputs[0] is old}
    copies: dict[Value, Value] = {}
    made: dict[Value, Value] = {}
    for v in values if updates else ():
        inputs = tuple(copies.get(x, x) for x in v.inputs)
        if v.kind == "attention":
            named = dict(zip(v.params.names, range(len(inputs)), strict=True))
            if inputs[named["q"]].shape[1] <= MAX_QUERIES:
                around = {named[x] for x in "kv" if x in named}
                inputs = tuple(
                    _around(x, updates, made) if i in around else x for i, x in enumerate(inputs)
                )
        if inputs != v.inputs:
            copies[v] = v.replace(inputs, v.params)
            if v in updates:
                updates.add(copies[v])
    return copies


def _is_update(v: Value) -> bool:
    """One row, or one element of several axes, is set."""
    return v.op == "scatter" and v.params[1] == "set" and v.inputs[2].size == 1


def _around(x: Value, updates: set[Value], made: dict[Value, Value]) -> Value:
    """A view of an updated value as one of `updated_rows`; other values as they are."""
    if x in made:
        return made[x]
    if x in updates:
        found = Value(x.id, UPDATED_ROWS, "gather", x.inputs, x.params, x.shape, x.dtype)
    elif x.kind == "view":
        inputs = tuple(_around(y, updates, made) for y in x.inputs)
        found = x if inputs == x.inputs else x.replace(inputs, x.params)
    else:
        found = x
    made[x] = found
    return found


def without_updates(x: Value, in_memory: Layouts) -> Value:
    """A view of `updated_rows` as one of what they update; other values as they are."""
    if x in in_memory or (x.kind != "view" and x.op != UPDATED_ROWS):
        return x
    source = without_updates(x.inputs[0], in_memory)
    if x.op == UPDATED_ROWS:
        return source
    return x if source is x.inputs[0] else x.replace((source, *x.inputs[1:]), x.params)
