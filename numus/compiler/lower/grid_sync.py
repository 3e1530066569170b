"""Grid synchronisation: flags in global memory by which blocks of one kernel signal each other.

Only on targets with forward progress, where blocks may spin-wait for earlier ones.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.ir import const
from numus.target import Target

ROW_ELEMENTS_PER_THREAD = 8  # that registers have room for in any row kernel
CLEARED_PER_THREAD = 32  # flags


def clear_flags(flags: Value, target: Target) -> LoweredKernel:
    """A memset of flags."""
    e = Emitter({}, block_size=target.block_size)
    g, i = ir.var("g"), ir.var("i")
    per_block = target.block_size * CLEARED_PER_THREAD
    start, stop = ir.block_range(g, const(per_block), e.dim(flags.size))
    loop = ir.For(i, start, stop, "lanes", e.store(flags, (i,), const(0, flags.dtype)))
    return e.grid_kernel("clear_flags", g, [loop], -(-flags.size // per_block), ("zeros",))


def max_waiting_blocks(target: Target) -> int:
    """Blocks that may wait for each other, as all are resident: a power of two."""
    return 1 << target.num_cores.bit_length() - 1 if target.forward_progress else 1


def max_cooperative_row(target: Target) -> int:
    """Elements of a row that such blocks hold in registers (`loops/reduce_rows_registers.py`)."""
    if not target.forward_progress:
        return 0
    return max_waiting_blocks(target) * target.max_block_size * ROW_ELEMENTS_PER_THREAD
