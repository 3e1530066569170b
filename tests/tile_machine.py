"""Units that multiply tiles, and copies that go on by themselves, for the imitated thread groups.

Copies arrive when they are waited for. A product is there when it is waited for, too, and until
then nobody may touch what it is made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numus import ir

GARBAGE = 0xA5


class Tiles:
    """What is under way in one group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.begun: list[Any] = []  # copies that no commit has been told of
        self.committed: list[list[Any]] = []
        self.products: list[Any] = []

    def statement(self, s: ir.Stmt, c: Any) -> None:
        if isinstance(s, ir.AsyncCopy):
            self.copy(s, c)
            return
        if isinstance(s, ir.AsyncFence):
            return
        assert c.ids is None, "threads may not be all here"
        if isinstance(s, ir.AsyncCommit):
            self.committed.append(self.begun)
            self.begun = []
        elif isinstance(s, ir.AsyncWait):
            while len(self.committed) > s.pending:
                for memory, at, values in self.committed.pop(0):
                    memory[at] = values
        elif isinstance(s, ir.Wgmma):
            self.product(s, c)
        elif isinstance(s, ir.WgmmaWait):
            while len(self.products) > s.pending:
                sums, result, operands, then = self.products.pop(0)
                for *operand, before in operands:
                    now = self.matrix(*operand, then)
                    assert np.array_equal(now, before, equal_nan=True), "changed too early"
                for register, values in zip(sums, result, strict=True):
                    self.group.registers[register] = values
        else:
            raise AssertionError(s)

    def copy(self, s: ir.AsyncCopy, c: Any) -> None:
        g, n = self.group, len(c.ids)
        to, frm, limit = (
            np.broadcast_to(g.value(e, c), n) for e in (s.dst_index, s.src_index, s.valid_elements)
        )
        size, run = s.src.dtype.itemsize, s.nbytes // s.src.dtype.itemsize
        target, source = (g.memory[b].view(np.uint8) for b in (s.dst, s.src))
        to = to * s.dst.dtype.itemsize
        frm = (frm + g.origins.get(s.src, 0)) * size
        assert np.all(to % s.nbytes == 0), "a copy to no whole place"
        assert np.all((to >= 0) & (to + s.nbytes <= len(target))), "a copy outside of scratch"
        for i, j, count in zip(to, frm, np.clip(limit, 0, run) * size, strict=True):
            values = np.zeros(s.nbytes, np.uint8)
            if count:
                inside = j >= 0 and j + count <= len(source)
                assert inside, f"{g.kernel.name} copies from outside"
                assert source[j:].ctypes.data % s.nbytes == 0, "a copy from no whole place"
                values[:count] = source[j : j + count]
            target[i : i + s.nbytes] = GARBAGE  # until it is waited for
            self.begun.append((target, slice(i, i + s.nbytes), values))

    # -- products ---------------------------------------------------------------------------------

    def product(self, s: ir.Wgmma, c: Any) -> None:
        g = self.group
        threads = g.kernel.block_size
        rows = threads // 2
        right = self.matrix(s.b, s.n, s.k, c)
        places = [self.place(i) for i in range(max(s.n, s.k) // 2)]
        if isinstance(s.a, list):
            left = np.zeros((rows, s.k), np.float32)
            assert len(s.a) == s.k // 2
            for register, (row, column) in zip(s.a, places, strict=False):
                left[row, column] = g.registers[register]
            left = left.astype(s.b.buffer.dtype.np).astype(np.float32)
        else:
            left = self.matrix(s.a, rows, s.k, c)
        whole = left.astype(np.float64) @ right.astype(np.float64).T
        held = {
            r: x for sums, result, *_ in self.products for r, x in zip(sums, result, strict=True)
        }
        result = []
        for register, (row, column) in zip(s.accumulators, places, strict=False):
            own = whole[row, column]
            if not s.zero_init:
                own = own + (held[register] if register in held else g.registers[register])
            result.append(own.astype(np.float32))
        operands = [s.b] if isinstance(s.a, list) else [s.a, s.b]
        sizes = [s.n] if isinstance(s.a, list) else [rows, s.n]
        now = [(o, n, s.k, self.matrix(o, n, s.k, c)) for o, n in zip(operands, sizes, strict=True)]
        self.products.append((s.accumulators, result, now, c))
        assert len(s.accumulators) == s.n // 2

    def place(self, number: int) -> tuple[Any, Any]:
        thread = np.arange(self.group.kernel.block_size)
        row, column = (
            self.group.value(e, _Env(thread))
            for e in ir.accumulator_element(ir.var("thread"), number)
        )
        return row, column

    def matrix(self, o: ir.MmaOperand, lines: int, depth: int, c: Any) -> Any:
        """The operand as [line][k]."""
        g = self.group
        start = int(g.value(o.offset, c))
        line, k = np.meshgrid(np.arange(lines), np.arange(depth), indexing="ij")
        row, column, stored = (line, k, o.tile_mn) if o.k_major else (k, line, depth)
        assert not o.k_major or depth <= 64 or stored >= lines
        run = (column % 64 // 8) ^ (row % 8)
        at = column // 64 * stored * 64 + row * 64 + run * 8 + column % 8
        return g.memory[o.buffer][start + at].astype(np.float32)


class _Env:
    """A context in which the threads are numbered."""

    def __init__(self, thread: Any) -> None:
        self.env, self.ids = {ir.var("thread"): thread}, thread
