"""Retired words: identifiers, error messages and documentation use the terms of the field.

docs/glossary.md has the terms that are particular to numus. Words that also have an ordinary use
("held", "product", "unit") are not listed here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_trees import parsed, statements

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "numus").rglob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

# Words of an identifier, and what to say instead.
RETIRED = {
    "akin": "can_fuse",
    "alike": "dedup, lowering cache",
    "beside": "horizontal fusion",
    "board": "flags",
    "boards": "flags",
    "crosses": "strided access",
    "facts": "target",
    "frugal": "rematerialize",
    "growths": "divergence, lane stride",
    "hop": "stride",
    "laying": "relayout",
    "leaning": "shifted variance",
    "likeness": "signature",
    "lockstep": "software GPU",
    "lying": "strided view, layout",
    "natively": "fast call",
    "quicker": "is_faster",
    "relieve": "flush",
    "remembered": "cached",
    "spared": "saved for backward",
    "strangers": "misses",
    "stretches": "byte ranges",
    "tailed": "epilogue",
    "takeovers": "donation",
    "talking": "needs barrier",
    "tally": "multisplit",
    "turned": "transpose",
    "turning": "transpose",
    "woven": "interleaved",
}
# Phrases of error messages and of the documentation.
PHRASES = re.compile(
    r"\b(lockstep|woven|strangers|akin|frugal|spared|laying|do(es)? not part into"
    r"|(import|between|the|each|top) floors?|faces of|way out|turned over|copying engine"
    r"|tile units?|groups? of threads|held rows?|a board|on the board|whoever)\b",
    re.IGNORECASE,
)
CONCATENATION = re.compile(r'"\s*f?"')  # where a message goes on in the next line
CODE = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)


def words(identifier: str) -> list[str]:
    """The words of a snake-case or camel-case identifier."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower().split("_")


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that is defined or used, with its line."""
    for node in ast.walk(tree):
        for field in ("name", "id", "attr", "arg", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield getattr(node, "lineno", 0), name


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The literal text of raised errors, with its line."""
    for statement in statements(tree):
        if isinstance(statement, ast.Raise):
            for node in ast.walk(statement):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.lineno, node.value


def retired(path: Path) -> Iterator[str]:
    """Retired words of a module, with their lines."""
    text = path.read_text()
    lower = text.lower()
    names = any(word in lower for word in RETIRED)
    phrases = PHRASES.search(CONCATENATION.sub("", text))
    tree = parsed(text if names or phrases else "")  # most modules have none of these letters
    for line, name in [(1, path.stem), *identifiers(tree)]:
        for word in words(name):
            if word in RETIRED:
                yield f"{path.relative_to(ROOT)}:{line}: {name} (say {RETIRED[word]})"
    for line, text in messages(tree):
        if PHRASES.search(text):
            yield f"{path.relative_to(ROOT)}:{line}: {text!r}"


def test_names_and_errors() -> None:
    assert not [found for path in SOURCES for found in retired(path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documentation(page: Path) -> None:
    assert not [match[0] for match in PHRASES.finditer(CODE.sub("", page.read_text()))]
