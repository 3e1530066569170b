"""Macros of hand-written LLVM IR, and functions shared by the native code of all runtimes.

A record shared with Python names its 8-byte words, in order or by offset. A line loads several of
them, or takes their addresses (`at`), into registers named after them; a prefix is left out of the
name. It stores likewise:

    ?ptr function, i64 grid, at ticks = JOB of %job         %function, %grid, %ticks.at
    ?JOB of %job = ptr function, i64 job.grid               from %function, %job.grid

Elements of arrays, fused compare-and-branch, and counting loops:

    %x = i64 %array[%i]                                     %array[%i] = i64 %x
    br slt i64 %i, %count, label %yes, label %no
    for %i in 0..%count                                     … end, continue: br label %i.latch

`$NAME$` is a number or text; for a record, its number of words.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Mapping
from typing import Any

from numus.codegen.cpu.target import LlvmTarget

_LOAD = re.compile(r"^ *\?([\w., ]+) = (\w+) of (%[\w.]+)$", re.M)
_STORE = re.compile(r"^ *\?(\w+) of (%[\w.]+) = ([\w., ]+)$", re.M)
_LOAD_ELEMENT = re.compile(r"^ *(%[\w.]+) = (\w+) ([%@][\w.]+)\[(%?[\w.]+)\]$", re.M)
_STORE_ELEMENT = re.compile(r"^ *(%[\w.]+)\[(%?[\w.]+)\] = (\w+) (\S+)$", re.M)
_BRANCH = re.compile(r"^ *br ((?:eq|ne|[su][gl][et]) \w+ \S+, \S+), (label .*)$", re.M)
_LOOP = re.compile(r"^ *(?:for %([\w.]+) in (\S+)\.\.(\S+)|end)$", re.M)

# Buffer addresses of a launch, from pairs of a slot and a byte offset.
RESOLVE_BUFFERS = """
define internal void @resolve_buffers(ptr %buffers, ptr %refs, i64 %count, ptr %slots) {
  for %i in 0..%count
  %ref = getelementptr [2 x i64], ptr %refs, i64 %i
  %slot = load i64, ptr %ref
  %offset = i64 %ref[1]
  %base = i64 %slots[%slot]
  %address = add i64 %base, %offset
  %buffers[%i] = i64 %address
  end
  ret void
}
"""

_FOR = """  br label %{0}.for
{0}.for:
  br label %{0}.head
{0}.head:
  %{0} = phi i64 [ {1}, %{0}.for ], [ %{0}.next, %{0}.latch ]
  %{0}.more = icmp slt i64 %{0}, {2}
  br i1 %{0}.more, label %{0}.body, label %{0}.end
{0}.body:"""
_END = """  br label %{0}.latch
{0}.latch:
  %{0}.next = add i64 %{0}, 1
  br label %{0}.head
{0}.end:"""


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


def function_address(function: Any) -> int:
    """The address of a ctypes function, for native code."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


Record = tuple[str, ...] | Mapping[str, int]


def expand(text: str, **named: Record | int | str) -> str:
    """Expand the macros of whole functions."""
    count = itertools.count()
    loops: list[str] = []

    def address(record: str, pointer: str, name: str, to: str) -> str:
        words, field = named[record], name.rpartition(".")[2]
        assert isinstance(words, tuple | Mapping), f"{record} is not a record"
        offset = words.index(field) if isinstance(words, tuple) else words[field]
        return f"  {to} = getelementptr i64, ptr {pointer}, i64 {offset}"

    def load(found: re.Match[str]) -> str:
        lines = []
        for kind, name in (word.split() for word in found[1].split(",")):
            at = f"%{name}.at" if kind == "at" else f"%{name}.word"
            lines.append(address(found[2], found[3], name, at))
            if kind != "at":
                lines.append(f"  %{name} = load {kind}, ptr {at}")
        return "\n".join(lines)

    def store(found: re.Match[str]) -> str:
        lines = []
        for kind, name in (word.split() for word in found[3].split(",")):
            at = f"%store.{next(count)}"
            lines.append(address(found[1], found[2], name, at))
            lines.append(f"  store {kind} %{name}, ptr {at}")
        return "\n".join(lines)

    def load_element(found: re.Match[str]) -> str:
        to, kind, array, index = found.groups()
        at = f"  {to}.word = getelementptr {kind}, ptr {array}, i64 {index}"
        return f"{at}\n  {to} = load {kind}, ptr {to}.word"

    def store_element(found: re.Match[str]) -> str:
        array, index, kind, value = found.groups()
        to = f"%store.{next(count)}"
        at = f"  {to} = getelementptr {kind}, ptr {array}, i64 {index}"
        return f"{at}\n  store {kind} {value}, ptr {to}"

    def branch(found: re.Match[str]) -> str:
        flag = f"%branch.{next(count)}"
        return f"  {flag} = icmp {found[1]}\n  br i1 {flag}, {found[2]}"

    def loop(found: re.Match[str]) -> str:
        if found[1] is None:
            return _END.format(loops.pop())
        loops.append(found[1])
        return _FOR.format(*found.groups())

    for name, value in named.items():
        words = len(value) if isinstance(value, tuple | Mapping) else value
        text = text.replace(f"${name}$", str(words))
    for macro, write in (
        *((_LOAD, load), (_STORE, store), (_LOAD_ELEMENT, load_element)),
        *((_STORE_ELEMENT, store_element), (_BRANCH, branch), (_LOOP, loop)),
    ):
        text = macro.sub(write, text)
    return text
