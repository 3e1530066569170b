"""Progress and tables in a terminal: a line that is written over, and columns of text.

The text is ASCII, so that every stream can take it. A line that changes is for people who watch:
it is shown on terminals and in notebooks, and nothing of it goes into files and pipes.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

_SECONDS_BETWEEN = 0.1  # of two texts of a line: more often than that nobody reads
_NARROWEST = 8  # characters that a folded column keeps
_UNITS = ("B", "KB", "MB", "GB", "TB")


def is_watched(stream: Any) -> bool:
    """Whether someone sees a stream while it is written: a terminal, or a notebook's cell."""
    if stream is None:
        return False
    notebook = type(stream).__module__.partition(".")[0] == "ipykernel"
    return notebook or bool(stream.isatty())


class Line:
    """One line of progress, written over until it is cleared.

    >>> import io
    >>> from numus.terminal import Line
    >>> stream = io.StringIO()
    >>> with Line(stream, shown=True) as line:
    ...     line.show("1 of 2")
    >>> stream.getvalue()
    '\\r1 of 2\\r      \\r'
    """

    def __init__(self, stream: Any = None, shown: bool | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.shown = is_watched(self.stream) if shown is None else shown
        self._length = 0
        self._next = 0.0

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str, *, now: bool = False) -> None:
        """Write a text over the one before; texts that come too fast are left out unless `now`."""
        if not self.shown or (time.monotonic() < self._next and not now):
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        self._write(f"\r{text}{' ' * (self._length - len(text))}")
        self._length = len(text)
        self._next = time.monotonic() + _SECONDS_BETWEEN

    def clear(self) -> None:
        """Leave an empty line."""
        if self._length:
            self._write(f"\r{' ' * self._length}\r")
        self._length = 0

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def bar(share: float, width: int = 30) -> str:
    """A bar that is full where a share is 1.

    >>> from numus.terminal import bar
    >>> bar(0.5, 10)
    '[#####.....]'
    """
    full = round(min(max(share, 0.0), 1.0) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


def duration_text(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> from numus.terminal import duration_text
    >>> duration_text(3725)
    '1:02:05'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def left_text(began: float, share: float) -> str:
    """How long is left of what began then, at its pace so far."""
    took = time.monotonic() - began
    return f"{duration_text(took * (1 - share) / share)} left" if 0 < share < 1 else ""


def bytes_text(count: float) -> str:
    """A number of bytes in three digits.

    >>> from numus.terminal import bytes_text
    >>> bytes_text(12_345_678)
    '12.3 MB'
    """
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.3g} {_UNITS[unit]}"


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """Columns under their names, those of numbers to the right; long texts are folded to a width.

    >>> from numus.terminal import table
    >>> print(table("sizes", ["of", "MB"], [["a", "3"], ["bc", "12"]], numbers=["MB"]))
    sizes
    of  MB
    --  --
    a    3
    bc  12
    """
    whole = shutil.get_terminal_size().columns if width is None else width
    texts = [list(columns), *(list(row) for row in rows)]
    extents = [max(map(len, column)) for column in zip(*texts, strict=True)]
    while (over := sum(extents) + 2 * (len(extents) - 1) - whole) > 0:
        widest = max(range(len(extents)), key=extents.__getitem__)
        if extents[widest] <= _NARROWEST:
            break
        others = [n for i, n in enumerate(extents) if i != widest]
        extents[widest] = max(extents[widest] - over, _NARROWEST, max(others, default=0) - 1)
    lines = [title] if title else []
    for i, row in enumerate(texts):
        folded = [textwrap.wrap(t, n) or [""] for t, n in zip(row, extents, strict=True)]
        for part in range(max(map(len, folded))):
            cells = [cell[part] if part < len(cell) else "" for cell in folded]
            aligned = [
                text.rjust(n) if name in numbers else text.ljust(n)
                for text, n, name in zip(cells, extents, columns, strict=True)
            ]
            lines.append("  ".join(aligned).rstrip())
        if i == 0:
            lines.append("  ".join("-" * n for n in extents))
    return "\n".join(lines)
