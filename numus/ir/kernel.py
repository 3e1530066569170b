"""A whole kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus.dtypes import DType
from numus.ir.expressions import Buffer
from numus.ir.printer import Printer
from numus.ir.statements import Stmt


@dataclass(eq=False, slots=True)
class Kernel:
    """`scalars` are (slot, dtype) in argument order; `notes` what it fuses.

    A `small` kernel is for little data: the renderer keeps its code short rather than quick.
    `group` is the number of threads whose lanes it was written for; 0: lanes are SIMD.
    Groups that share nothing may run as one: a block is then `pack` of them, and the last one may
    have some that are past the end of the grid. A group that is more than a block is `spread` over
    several; they tell each other what they came to in memory of theirs that the others can write
    to, or on a `board` (memory that an earlier kernel has set to zero, words of it for each group).
    A group that `stays` takes one number of the grid after the other: there are fewer groups then.
    Where a vendor's kernel does the `work`, there is no body (`kernels/choice.py`).
    """

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[tuple[str, DType], ...]
    body: list[Stmt]
    notes: tuple[str, ...] = ()
    small: bool = False
    block_size: int = 0
    packed_blocks: int = 1
    cluster_size: int = 1
    flags: tuple[Buffer, int] | None = None
    persistent: bool = False
    vendor: Any = None
    problem: Any = None
    _text: str | None = None

    def text(self) -> str:
        """The kernel, readable; equal kernels have equal texts (names and notes left out)."""
        if self._text is None:
            self._text = Printer(self).text()
        return self._text
