"""Decoupled look-back scan (Merrill & Garland 2016): one pass, a block per tile of each row.

For targets whose blocks make forward progress in launch order.
"""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import row_index, scan_order, temporary
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags
from numus.compiler.lower.scan.problem import ScanProblem
from numus.compiler.lower.schedule import InOrder
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.gpu_block import TileScan
from numus.kernels.scan.gpu_lookback import LookBack
from numus.target import Target

ITEM_BYTES_PER_THREAD = 4 * 48  # measured on one H200


class LookbackScan(InOrder):
    """A single pass in which blocks wait for the prefix of earlier tiles."""

    name = "decoupled look-back"

    def supports(self, problem: ScanProblem, target: Target) -> bool:
        return target.forward_progress

    def lower(self, problem: ScanProblem) -> list[LoweredKernel]:
        val, target = problem.val, problem.target
        items = max(1, ITEM_BYTES_PER_THREAD // max(4, dt.compute_dtype(val.dtype).itemsize))
        scan = TileScan(target.block_size, problem.op, val.dtype, items)
        tiles = -(-problem.length // scan.tile_size)
        entries = LookBack.entries(target.block_size, tiles)
        status = temporary((problem.rows * entries * LookBack.words(scan),), dt.uint64)
        e = Emitter(problem.layouts, block_size=target.block_size)
        g = ir.var("g")
        count = e.scalar_arg(tiles)
        row, tile = ir.idiv(g, count), ir.irem(g, count)
        index = row_index(e, row, val.shape, problem.axis)
        end, position = scan_order(e, val)
        start = ir.mul(tile, const(scan.tile_size))
        stop = ir.minimum(ir.add(start, const(scan.tile_size)), end)
        words = e.buffer(status, "write")
        look_back = LookBack(scan, words, ir.mul(row, e.scalar_arg(entries)), tile, count)

        def read(i: Expr) -> Any:
            return e.value(val.inputs[0], index(position(i)))

        def write(i: Expr, value: Any) -> list[Stmt]:
            result = value if val.dtype.is_complex else value.cast(val.dtype)
            return e.store(val, index(position(i)), result)

        body, _ = scan.scan_tile(start, stop, read, write, look_back.set_carry)
        e.scratch += [*scan.staging, *look_back.scratch]
        name = f"scan_{problem.op}_lookback"
        kernel = e.grid_kernel(name, g, body, problem.rows * tiles, (val.op,))
        return [clear_flags(status, target), kernel]
