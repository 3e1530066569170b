"""Tables printed row by row, as text or Markdown."""

from __future__ import annotations

from collections.abc import Sequence


class Table:
    """The first column has names, the others numbers."""

    def __init__(self, head: Sequence[str], widths: Sequence[int], markdown: bool) -> None:
        self.widths, self.markdown = widths, markdown
        self.row(*head)
        if markdown:
            self.row("---", *["---:"] * (len(head) - 1))

    def row(self, *cells: str) -> None:
        if self.markdown:
            line = f"| {' | '.join(cells)} |"
        else:
            first, *rest = self.widths
            numbers = [f"{c:>{w}}" for c, w in zip(cells[1:], rest, strict=True)]
            line = " ".join([f"{cells[0]:{first}}", *numbers])
        print(line, flush=True)

    def note(self, text: str) -> None:
        """A line of its own, after the rows."""
        print(f"\n{text}" if self.markdown else text, flush=True)
