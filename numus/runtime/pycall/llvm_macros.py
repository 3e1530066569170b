"""LLVM IR that is written by hand: a short form, and what native functions of all runtimes share.

Memory that Python and a native function both know is laid out in words of 8 bytes that have names,
told once, as a tuple. Natively, a word is read, or its address taken, by a line of its own:

    ?%grid = i64 JOB.grid of %job
    ?%grid.at = JOB.grid of %job

`$NAME$` stands for a number, or for other text; of a layout, for how many words it has.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"^\s*\?%([\w.]+) = (?:(\w+) )?(\w+)\.([\w ]+) of (%[\w.]+)", re.M)

# Addresses of a launch's buffers: of each, a slot and an offset from what stands there.
PLACE = """
define internal void @place(ptr %buffers, ptr %places, i64 %count, ptr %slots) {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %from = getelementptr [2 x i64], ptr %places, i64 %i
  %slot = load i64, ptr %from
  %offset.at = getelementptr i64, ptr %from, i64 1
  %offset = load i64, ptr %offset.at
  %base.at = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %base.at
  %address = add i64 %base, %offset
  %to = getelementptr i64, ptr %buffers, i64 %i
  store i64 %address, ptr %to
  %next = add i64 %i, 1
  br label %look
done:
  ret void
}
"""


def written_out(text: str, **named: tuple[str, ...] | int | str) -> str:
    """The text with its short forms as LLVM reads them: layouts, and what else names stand for.
    Names that are not told here stay."""

    def word(found: re.Match[str]) -> str:
        name, kind, layout, part, pointer = found.groups()
        words = named[layout]
        assert isinstance(words, tuple), f"{layout} is no layout"
        at = f"%{name}" if kind is None else f"%{name}.word"
        number = words.index(part)
        line = f"  {at} = getelementptr i64, ptr {pointer}, i64 {number}"
        return line if kind is None else f"{line}\n  %{name} = load {kind}, ptr {at}"

    text = _WORD.sub(word, text)
    for name, what in named.items():
        text = text.replace(f"${name}$", str(len(what) if isinstance(what, tuple) else what))
    return text
