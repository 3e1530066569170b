"""A kernel: arguments, launch shape and body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus.dtypes import DType
from numus.ir.expressions import Buffer
from numus.ir.statements import Stmt


@dataclass(eq=False, slots=True)
class Kernel:
    """`scalars` are (name, dtype) in argument order; `notes` list the fused operations.

    `small` asks for short code rather than fast code. `block_size` is the number of threads of a
    block; 0: lanes are SIMD lanes. Blocks without shared memory may be launched `packed_blocks` at
    a time, the last ones predicated off. A block larger than a CTA spans `cluster_size` CTAs, which
    exchange partial results through distributed shared memory, or through `flags` (a zeroed buffer
    and its words per block). The blocks of a `persistent` kernel loop over the grid. With
    `stores_once`, each element of a result is stored a single time. A `vendor`
    kernel has a `problem` instead of a body (`kernels/vendor/`).
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
    stores_once: bool = False
    vendor: Any = None
    problem: Any = None
    cached_text: str | None = None  # of `printer.kernel_text`
