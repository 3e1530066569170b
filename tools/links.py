"""Check of internal links in the documentation: `python -m tools.links`.

A link to another page must name a file, one with an anchor a heading of it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def pages() -> list[Path]:
    """All pages of the documentation."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as on GitHub and the site."""
    text = _FENCE.sub("", page.read_text())
    names = (re.sub(r"[`*]", "", heading).strip().lower() for heading in _HEADING.findall(text))
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", name)) for name in names}


def broken(page: Path) -> list[str]:
    """Broken links of a page."""
    found = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (
            anchor and other.suffix == ".md" and anchor not in anchors(other)
        ):
            found.append(link)
    return found


def main() -> int:
    missing = [f"{page.relative_to(ROOT)}: {link}" for page in pages() for link in broken(page)]
    print("\n".join(missing) or "no broken internal links")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
