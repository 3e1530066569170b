"""A ring of vectors in shared memory that each thread fills for itself (cp.async), and alone reads.

What waits there takes no registers: the blocks of two kernels fit side by side on a multiprocessor,
and those of the next one fill their rings while the ones before still multiply. No thread waits for
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES

Place = tuple[ir.Buffer, Expr]  # where a vector begins in memory


@dataclass(slots=True)
class ThreadRing:
    """`depth` stages of a vector of each stream. Halves are kept as words of two."""

    threads: int
    streams: int
    depth: int
    dtype: DType  # of the elements in memory
    nbytes: int = MAX_ACCESS_BYTES  # of a vector
    name: str = "ring"
    buffer: ir.Buffer = field(init=False)

    def __post_init__(self) -> None:
        count = self.threads * self.streams * self.depth * self.words
        self.buffer = ir.Buffer(self.name, self.word, "scratch", const(count))

    @property
    def word(self) -> DType:
        return dt.uint32 if self.dtype.itemsize == 2 else self.dtype

    @property
    def words(self) -> int:
        """Of a vector."""
        return self.nbytes // self.word.itemsize

    def fill(self, lane: Expr, stage: Expr, places: Sequence[Place]) -> list[Stmt]:
        """Copies of a stage: a vector of each stream."""
        return [
            ir.AsyncCopy(
                *(self.buffer, self._at(lane, stage, i), buffer, index),
                *(const(self.nbytes // buffer.dtype.itemsize), self.nbytes),
            )
            for i, (buffer, index) in enumerate(places)
        ]

    def commit(self) -> Stmt:
        """Ends a stage, of which there is one even past the end: the wait counts them."""
        return ir.AsyncCommit()

    def wait(self) -> Stmt:
        """For the oldest stage."""
        return ir.AsyncWait(self.depth - 1, private=True)

    def read(self, out: list[Stmt], lane: Expr, stage: Expr, tag: str) -> list[list[Expr]]:
        """The words of each stream."""
        found = []
        for i in range(self.streams):
            names = [ir.var(f"{tag}_{i}_{e}", self.word) for e in range(self.words)]
            at = self._at(lane, stage, i)
            for e, name in enumerate(names):
                width = 0 if e else self.words
                out.append(ir.Let(name, ir.load(self.buffer, at + e), vector=width))
            found.append(list(names))
        return found

    def read_word(self, lane: Expr, stage: Expr, stream: int, word: Expr) -> Expr:
        """One word of a stream's vector."""
        return ir.load(self.buffer, self._at(lane, stage, stream) + word)

    def _at(self, lane: Expr, stage: Expr, stream: int) -> Expr:
        own = (stage * self.streams + stream) * self.threads + lane
        return own * self.words
