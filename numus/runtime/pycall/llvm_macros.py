"""Macros of hand-written LLVM IR, and functions shared by the native code of all runtimes.

A record shared with Python is a tuple of the names of its 8-byte words. A word is loaded, or its
address taken, by

    ?%grid = i64 JOB.grid of %job
    ?%grid.at = JOB.grid of %job

and stored by

    ?JOB.grid of %job = i64 %grid

`$NAME$` is a number or text; for a record, its number of words.
"""

from __future__ import annotations

import itertools
import re

from numus.codegen.cpu.target import LlvmTarget

_WORD = re.compile(r"^\s*\?%([\w.]+) = (?:(\w+) )?(\w+)\.([\w ]+) of (%[\w.]+)", re.M)
_STORE = re.compile(r"^\s*\?(\w+)\.(\w+) of (%[\w.]+) = (\w+ %[\w.]+)$", re.M)

# Buffer addresses of a launch, from pairs of a slot and a byte offset.
RESOLVE_BUFFERS = """
define internal void @resolve_buffers(ptr %buffers, ptr %refs, i64 %count, ptr %slots) {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %next, %one ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %ref = getelementptr [2 x i64], ptr %refs, i64 %i
  %slot = load i64, ptr %ref
  %offset.at = getelementptr i64, ptr %ref, i64 1
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


def clock(target: LlvmTarget) -> str:
    """`numus_ticks`, a monotonic clock; constant 0 where no cheap one exists."""
    read = {
        "x86": "call i64 @llvm.readcyclecounter()",
        "arm": 'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
    }.get(target.arch, "add i64 0, 0")
    return f"""
define i64 @numus_ticks() {{
  %now = {read}
  ret i64 %now
}}
declare i64 @llvm.readcyclecounter()
"""


def expand(text: str, **named: tuple[str, ...] | int | str) -> str:
    """Expand the macros; names without a value stay."""

    def word(found: re.Match[str]) -> str:
        name, kind, record, field, pointer = found.groups()
        words = named[record]
        assert isinstance(words, tuple), f"{record} is not a record"
        at = f"%{name}" if kind is None else f"%{name}.word"
        line = f"  {at} = getelementptr i64, ptr {pointer}, i64 {words.index(field)}"
        return line if kind is None else f"{line}\n  %{name} = load {kind}, ptr {at}"

    stores = itertools.count()

    def store(found: re.Match[str]) -> str:
        record, field, pointer, value = found.groups()
        at = f"store.{next(stores)}"
        return f"  ?%{at} = {record}.{field} of {pointer}\n  store {value}, ptr %{at}"

    text = _WORD.sub(word, _STORE.sub(store, text))
    for name, what in named.items():
        text = text.replace(f"${name}$", str(len(what) if isinstance(what, tuple) else what))
    return text
