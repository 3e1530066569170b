"""Syntax trees of Python modules."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator


def parsed(text: str) -> ast.Module:
    """The tree of a module; garbage collections would visit every node again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if enabled:
            gc.enable()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements, also those inside of others, and no expressions: a fifth of the nodes."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, ())
            if isinstance(inner, list):  # the body of a lambda is an expression
                todo += inner
