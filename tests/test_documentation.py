"""What the documentation says is true: examples run, quotations match, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")  # to another file: neither an anchor nor an address


def _blocks() -> list[tuple[str, str]]:
    """Every block of Python code, with a name to find it by."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", match[1]))
    return found


def _is_quotation(code: str) -> bool:
    """Whether a block begins with the path of the file it is taken from."""
    return code.startswith("# numus/")


EXAMPLES = [pytest.param(c, id=name) for name, c in _blocks() if not _is_quotation(c)]
QUOTATIONS = [pytest.param(c, id=name) for name, c in _blocks() if _is_quotation(c)]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code: str) -> None:
    exec(compile(code, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("code", QUOTATIONS)
def test_quotation_matches_the_source(code: str) -> None:
    path, quoted = code.split("\n", 1)
    assert quoted.strip() in (ROOT / path.removeprefix("# ")).read_text()


NAMED = [page for page in PAGES if "results" not in page.parts and page.name != "conformance.md"]
FILES = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if ".venv" not in path.parts}


@pytest.mark.parametrize("page", NAMED, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_are_there(page: Path) -> None:
    """`kernels/scan.py`, or `scan.py` where it is clear which one is meant."""
    named = set(re.findall(r"`([a-z][\w/]*\.py)`", page.read_text())) - {"tests/test_something.py"}
    assert not [name for name in named if not any(f"/{f}".endswith(f"/{name}") for f in FILES)]


def test_every_page_can_be_found() -> None:
    pages = {page for page in PAGES if page.parent != ROOT and "design" not in page.parts}
    listed = LINK.findall((ROOT / "docs" / "README.md").read_text())
    found = {(ROOT / "docs" / to).resolve() for to in listed} | {ROOT / "docs" / "README.md"}
    assert pages <= found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = [to for to in LINK.findall(page.read_text()) if not (page.parent / to).exists()]
    assert not missing
