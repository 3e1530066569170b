"""How text is cut into words before merges: GPT-2's pattern, with Unicode's letters and numbers."""

from __future__ import annotations

import functools
import re

__all__: list[str] = []

# Unicode's White_Space; Python's \s has four separators more
SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"


@functools.cache
def pattern() -> re.Pattern[str]:
    """Contractions, words, numbers and other signs with the space before them, runs of spaces."""
    # Python's \w has letters and all that is numeric; \d only decimal digits
    numerals = [
        c
        for c in map(chr, range(0x110000))
        if c.isnumeric() and not c.isdecimal() and not c.isalpha()
    ]
    others = _ranges([ord(c) for c in numerals])
    letter, number, sign = f"[^\\W\\d_{others}]", f"[\\d{others}]", f"(?:[^{SPACE}\\w]|_)"
    return re.compile(
        f"'(?:[stmd]|re|ve|ll)| ?{letter}+| ?{number}+| ?{sign}+"
        f"|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
    )


def _ranges(points: list[int]) -> str:
    """A character class of sorted code points, neighbours as ranges."""
    text, at = [], 0
    while at < len(points):
        end = at
        while end + 1 < len(points) and points[end + 1] == points[end] + 1:
            end += 1
        first, last = (re.escape(chr(points[i])) for i in (at, end))
        text.append(first if at == end else f"{first}-{last}")
        at = end + 1
    return "".join(text)


def words(text: str) -> list[str]:
    """The words that merges stay within; together they are the text."""
    return pattern().findall(text)


@functools.cache
def byte_letters() -> tuple[str, ...]:
    """GPT-2's printable letter for each byte, by which files name tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return tuple(chr(b) if b in printable else chr(next(spare)) for b in range(256))


@functools.cache
def letter_bytes() -> dict[str, int]:
    """The byte of each letter."""
    return {letter: byte for byte, letter in enumerate(byte_letters())}
