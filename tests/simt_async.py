"""Asynchronous copies and wgmma of the SIMT interpreter.

Both complete when they are waited for; until then a wgmma's operands must not change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numus import ir

GARBAGE = 0xA5


class Pipeline:
    """Operations in flight in one block."""

    def __init__(self, block: Any) -> None:
        self.block = block
        self.uncommitted: list[Any] = []
        self.committed: list[list[Any]] = []
        self.in_flight: list[Any] = []

    def statement(self, s: ir.Stmt, c: Any) -> None:
        if isinstance(s, ir.AsyncCopy):
            self.copy(s, c)
            return
        if isinstance(s, ir.AsyncFence):
            return
        assert c.ids is None, "a divergent wait"
        if isinstance(s, ir.AsyncCommit):
            self.committed.append(self.uncommitted)
            self.uncommitted = []
        elif isinstance(s, ir.AsyncWait):
            while len(self.committed) > s.pending:
                for memory, at, values in self.committed.pop(0):
                    memory[at] = values
        elif isinstance(s, ir.Wgmma):
            self.wgmma(s, c)
        elif isinstance(s, ir.WgmmaWait):
            while len(self.in_flight) > s.pending:
                sums, result, operands, then = self.in_flight.pop(0)
                for *operand, before in operands:
                    now = self.matrix(*operand, then)
                    assert np.array_equal(now, before, equal_nan=True), "an operand changed early"
                for register, values in zip(sums, result, strict=True):
                    self.block.registers[register] = values
        else:
            raise AssertionError(s)

    def copy(self, s: ir.AsyncCopy, c: Any) -> None:
        g, n = self.block, len(c.ids)
        to, frm, valid = (
            np.broadcast_to(g.value(e, c), n) for e in (s.dst_index, s.src_index, s.valid_elements)
        )
        size, elements = s.src.dtype.itemsize, s.nbytes // s.src.dtype.itemsize
        target, source = (g.memory[b].view(np.uint8) for b in (s.dst, s.src))
        to = to * s.dst.dtype.itemsize
        frm = (frm + g.origins.get(s.src, 0)) * size
        assert np.all(to % s.nbytes == 0), "an unaligned copy"
        assert np.all((to >= 0) & (to + s.nbytes <= len(target))), "a copy out of bounds"
        for i, j, count in zip(to, frm, np.clip(valid, 0, elements) * size, strict=True):
            values = np.zeros(s.nbytes, np.uint8)
            if count:
                inside = j >= 0 and j + count <= len(source)
                assert inside, f"{g.kernel.name} copies out of bounds"
                assert source[j:].ctypes.data % s.nbytes == 0, "an unaligned copy"
                values[:count] = source[j : j + count]
            target[i : i + s.nbytes] = GARBAGE  # until it is waited for
            self.uncommitted.append((target, slice(i, i + s.nbytes), values))

    # -- wgmma ------------------------------------------------------------------------------------

    def wgmma(self, s: ir.Wgmma, c: Any) -> None:
        g = self.block
        threads = g.kernel.block_size
        rows = threads // 2
        right = self.matrix(s.b, s.n, s.k, c)
        elements = [self.element(i) for i in range(max(s.n, s.k) // 2)]
        if isinstance(s.a, list):
            left = np.zeros((rows, s.k), np.float32)
            assert len(s.a) == s.k // 2
            for register, (row, column) in zip(s.a, elements, strict=False):
                left[row, column] = g.registers[register]
            left = left.astype(s.b.buffer.dtype.np).astype(np.float32)
        else:
            left = self.matrix(s.a, rows, s.k, c)
        whole = left.astype(np.float64) @ right.astype(np.float64).T
        pending = {
            r: x for sums, result, *_ in self.in_flight for r, x in zip(sums, result, strict=True)
        }
        result = []
        for register, (row, column) in zip(s.accumulators, elements, strict=False):
            own = whole[row, column]
            if not s.zero_init:
                own = own + (pending[register] if register in pending else g.registers[register])
            result.append(own.astype(np.float32))
        operands = [s.b] if isinstance(s.a, list) else [s.a, s.b]
        sizes = [s.n] if isinstance(s.a, list) else [rows, s.n]
        now = [(o, n, s.k, self.matrix(o, n, s.k, c)) for o, n in zip(operands, sizes, strict=True)]
        self.in_flight.append((s.accumulators, result, now, c))
        assert len(s.accumulators) == s.n // 2

    def element(self, number: int) -> tuple[Any, Any]:
        thread = np.arange(self.block.kernel.block_size)
        row, column = (
            self.block.value(e, _Env(thread))
            for e in ir.accumulator_element(ir.var("thread"), number)
        )
        return row, column

    def matrix(self, o: ir.MmaOperand, rows: int, depth: int, c: Any) -> Any:
        """The operand as [row][k]."""
        g = self.block
        start = int(g.value(o.offset, c))
        mn, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
        row, column, stored = (mn, k, o.tile_mn) if o.k_major else (k, mn, depth)
        assert not o.k_major or depth <= 64 or stored >= rows
        chunk = (column % 64 // 8) ^ (row % 8)
        at = column // 64 * stored * 64 + row * 64 + chunk * 8 + column % 8
        return g.memory[o.buffer][start + at].astype(np.float32)


class _Env:
    """A context that binds the thread index."""

    def __init__(self, thread: Any) -> None:
        self.env, self.ids = {ir.var("thread"): thread}, thread
