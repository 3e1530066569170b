"""One opcode of the fast-call VM."""

from __future__ import annotations

from typing import NamedTuple


class Op(NamedTuple):
    """An opcode: its effect on register `a` and operands x, y, z, and its body in LLVM IR.

    A name in backquotes is a register's content. A body ends with a branch to `next`, `jump` (skip
    y instructions), `guard_failed`, `failed` (the same, with a Python error to clear) or `raised`
    (a Python error for the caller). See `vm_source` for the short forms.
    """

    doc: str
    body: str
