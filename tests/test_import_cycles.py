"""No circle of imports: neither when modules run, nor for types alone, but where it is argued."""

from __future__ import annotations

import ast
from pathlib import Path

from source_trees import parsed, statements

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "numus"

# Circles that stay, each with its reason.
ARGUED: dict[frozenset[str], str] = {}


def _modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules that one names, wherever in it: at the top, in functions, for type checkers."""
    found = set()
    for node in statements(parsed(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    # the upper layers are written with the public names: numus itself is no circle
    return {x for x in found if x in modules and x not in ("numus", name)}


def _circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[frozenset[str]] = []

    def visit(v: str) -> None:
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(graph[v]):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                out.append(frozenset(stack[at:]))
            del stack[at:]

    for v in sorted(graph):
        if v not in index:
            visit(v)
    return out


def test_no_circle_of_imports() -> None:
    modules = _modules()
    graph = {name: _imports(name, path, modules) for name, path in modules.items()}
    found = _circles(graph)
    assert not [sorted(c) for c in found if c not in ARGUED]
    assert not [sorted(c) for c in ARGUED if c not in found], "argued, but no longer there"
