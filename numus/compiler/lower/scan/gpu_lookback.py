"""Decoupled look-back scan (Merrill & Garland 2016): one pass, a block per tile of each row.

For targets whose blocks make forward progress in launch order.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ScanProblem, temporary
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.grid_sync import clear_flags
from numus.compiler.lower.schedule import Candidate
from numus.ir import const
from numus.kernels.scan.gpu_block import TileScan
from numus.kernels.scan.gpu_lookback import LookBack

ITEM_BYTES_PER_THREAD = 4 * 48  # measured on one H200


def _lower(p: ScanProblem) -> Kernels:
    """A single pass in which blocks wait for the prefix of earlier tiles."""
    threads = p.target.block_size
    items = max(1, ITEM_BYTES_PER_THREAD // max(4, dt.compute_dtype(p.val.dtype).itemsize))
    scan = TileScan(threads, p.op, p.val.dtype, items)
    tiles = -(-p.length // scan.tile_size)
    entries = LookBack.entries(threads, tiles)
    status = temporary((p.rows * entries * LookBack.words(scan),), dt.uint64)
    e = Emitter(p.layouts, block_size=threads)
    g = ir.var("g")
    count = e.scalar_arg(tiles)
    row, tile = divmod(g, count)
    access = p.access(e, row)
    span = ir.block_range(tile, const(scan.tile_size), e.dim(p.length))
    words = e.buffer(status, "write")
    look_back = LookBack(scan, words, ir.mul(row, e.scalar_arg(entries)), tile, count)
    body, _ = scan.scan_tile(*span, *access, look_back.set_carry)
    e.scratch += [*scan.staging, *look_back.scratch]
    kernel = e.grid_kernel(f"scan_{p.op}_lookback", g, body, p.rows * tiles, (p.val.op,))
    return [clear_flags(status, p.target), kernel]


LOOKBACK_SCAN = Candidate("decoupled look-back", _lower, lambda p: p.target.forward_progress)
