"""Asynchronous copies and wgmma of the SIMT interpreter.

Both complete when they are waited for; until then a wgmma's operands must not change.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import simt_expressions

from numus import dtypes as dt
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
            self.complete(s.pending)
        elif isinstance(s, ir.PackFragments):
            self.pack(s)
        elif isinstance(s, ir.Wgmma):
            self.wgmma(s, c)
        elif isinstance(s, ir.WgmmaWait):
            while len(self.in_flight) > s.pending:
                sums, result, operands, then = self.in_flight.pop(0)
                for *operand, before in operands:
                    now = self.matrix(*operand, then)
                    assert np.array_equal(now, before, equal_nan=True), "an operand changed early"
                for register, values in zip(sums, result, strict=True):
                    self.block.registers[register] = values.copy()
        else:
            raise AssertionError(s)

    def complete(self, pending: int = -1) -> None:
        """All but the last committed groups of copies; those that are not committed too by
        default."""
        if pending < 0:
            self.committed.append(self.uncommitted)
            self.uncommitted = []
        while len(self.committed) > max(pending, 0):
            for memory, at, values in self.committed.pop(0):
                memory[at] = values

    def pack(self, s: ir.PackFragments) -> None:
        registers = self.block.registers
        for i, word in enumerate(s.words):
            pair = [registers[r].astype(s.dtype.np) for r in s.accumulators[2 * i : 2 * i + 2]]
            low, high = (x.view(np.uint16).astype(np.uint32) for x in pair)
            registers[word] = (low | high << 16).view(np.int32)

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
        counts = np.clip(valid, 0, elements) * size
        copied = counts > 0
        inside = (frm >= 0) & (frm + counts <= len(source))
        assert inside[copied].all(), f"{g.kernel.name} copies out of bounds"
        addresses = source.ctypes.data + frm
        assert np.all(addresses[copied] % s.nbytes == 0), "an unaligned copy"
        lanes = np.arange(s.nbytes)
        here = lanes < counts[:, None]
        values = np.zeros(here.shape, np.uint8)
        values[here] = source[(frm[:, None] + lanes)[here]]
        at = to[:, None] + lanes
        target[at] = GARBAGE  # until it is waited for
        self.uncommitted.append((target, at, values))

    # -- wgmma ------------------------------------------------------------------------------------

    def wgmma(self, s: ir.Wgmma, c: Any) -> None:
        g = self.block
        threads = g.threads
        rows = 64 if s.by_columns else threads // 2
        columns = s.n * (threads // 2 // rows)
        right = self.matrix(s.b, columns, s.k, c)
        elements = [_element(threads, i) for i in range(max(s.n, s.k) // 2)]
        if isinstance(s.a, list):
            left = np.zeros((rows, s.k), np.float32)
            values = self.fragments(s)
            assert len(values) == s.k // 2
            for value, (row, column) in zip(values, elements, strict=False):
                left[row, column] = value[:threads]
            left = left.astype(s.b.buffer.dtype.np).astype(np.float32)
        else:
            left = self.matrix(s.a, rows, s.k, c)
        whole = left.astype(np.float64) @ right.astype(np.float64).T
        pending = {
            r: x for sums, result, *_ in self.in_flight for r, x in zip(sums, result, strict=True)
        }
        result = []
        for register, (row, column) in zip(s.accumulators, elements, strict=False):
            own = whole[row % rows, column + row // rows * s.n]
            if not s.zero_init:
                before = pending[register] if register in pending else g.registers[register]
                own = own + before[:threads]
            result.append(own.astype(np.float32))
        operands = [s.b] if isinstance(s.a, list) else [s.a, s.b]
        sizes = [columns] if isinstance(s.a, list) else [rows, columns]
        now = [(o, n, s.k, self.matrix(o, n, s.k, c)) for o, n in zip(operands, sizes, strict=True)]
        self.in_flight.append((s.accumulators, result, now, c))
        assert len(s.accumulators) == s.n // 2

    def fragments(self, s: ir.Wgmma) -> list[Any]:
        """A operand in registers, an element of each thread after the other."""
        assert isinstance(s.a, list)
        values = [self.block.registers[r] for r in s.a]
        if s.a[0].dtype is not dt.int32:
            return values
        halves = [v.view(np.uint16).reshape(-1, 2).view(s.b.buffer.dtype.np) for v in values]
        return [half[:, i].astype(np.float32) for half in halves for i in range(2)]

    def matrix(self, o: ir.MmaOperand, rows: int, depth: int, c: Any) -> Any:
        """The operand as [row][k]."""
        g = self.block
        start = int(g.value(o.offset, c))
        at = _swizzled(o.k_major, o.tile_mn, rows, depth)
        return g.memory[o.buffer][start + at].astype(np.float32)


@functools.cache
def _element(threads: int, number: int) -> tuple[Any, Any]:
    """(row, column) of each thread's accumulator of a number."""
    thread = ir.var("thread")
    c = Bindings({thread: np.arange(threads)})
    row, column = ir.accumulator_element(thread, number)
    return tuple(simt_expressions.evaluate(e, None, c, {}) for e in (row, column))


@functools.cache
def _swizzled(k_major: bool, tile_mn: int, rows: int, depth: int) -> Any:
    """The offset of every element of an operand, as [row][k]."""
    mn, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
    row, column, stored = (mn, k, tile_mn) if k_major else (k, mn, depth)
    assert not k_major or depth <= 64 or stored >= rows
    chunk = (column % 64 // 8) ^ (row % 8)
    return column // 64 * stored * 64 + row * 64 + chunk * 8 + column % 8


class Bindings:
    """A context that has variables alone."""

    def __init__(self, env: dict[ir.Expr, Any]) -> None:
        self.env = env
