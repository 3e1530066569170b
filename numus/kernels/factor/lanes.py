"""Kernels on many small matrices per block, one in each SIMD lane.

Their elements lie interleaved in scratch memory: element (i, j) of all matrices is one vector, and
no loop over rows or columns has a remainder. Branches of single matrices become selections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.kernels.factor.program import ZERO, Matrix, Number, Program, Span


class LaneProgram(Program):
    """Statements for `width * unroll` matrices; all loops within `matrices()` are serial."""

    def __init__(self, real: DType, components: int, width: int, unroll: int) -> None:
        super().__init__(real, components, simt=False)
        self.width, self.unroll = width, unroll
        self.lane: Expr = ZERO
        self.along_rows = False

    @contextlib.contextmanager
    def matrices(self) -> Iterator[None]:
        outer, self.lane = self.lane, ir.var(self._name())
        with self._nested() as body:
            yield
        count = const(self.width * self.unroll)
        lanes = ir.For(self.lane, ZERO, count, "lanes", body)
        lanes.unroll, lanes.width = self.unroll, self.width
        self.do(lanes)
        self.lane = outer

    @contextlib.contextmanager
    def vector(self) -> Iterator[Expr]:
        """One vector, of lanes that are not matrices."""
        lane = ir.var(self._name())
        with self._nested() as body:
            yield lane
        loop = ir.For(lane, ZERO, const(self.width), "lanes", body)
        loop.width = self.width
        self.do(loop)

    def skip_unless(self, condition: Expr) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def register(self, dtype: DType | None = None, lanes: bool = False) -> ir.Register:
        return super().register(dtype, lanes=True)

    def lanes(
        self, start: Expr, stop: Expr, unroll: int = 1
    ) -> contextlib.AbstractContextManager[Expr]:
        return self.loop(start, stop)

    @contextlib.contextmanager
    def each(self, rows: Span, columns: Span, upper: bool = False) -> Iterator[tuple[Expr, Expr]]:
        with self.loop(*rows) as i, self.loop(i if upper else columns[0], columns[1]) as j:
            yield i, j

    def reduced(
        self, op: str, start: Expr, stop: Expr, terms: Callable[[Expr], Sequence[Expr]], first: Expr
    ) -> list[Expr]:
        made: list[ir.Register] = []
        with self._nested() as body:
            i = ir.var(self._name())
            for term in terms(i):
                made.append(self.register(term.dtype))
                self.do(ir.Set(made[-1], ir.binary(op, ir.read(made[-1]), term)))
        self.do(*(ir.Set(r, first) for r in made), ir.For(i, start, stop, "serial", body))
        return [self.let(ir.read(r)) for r in made]


class LaneMatrix(Matrix):
    """The matrices of all lanes, interleaved in scratch memory."""

    def __init__(self, p: LaneProgram, buffer: ir.Buffer, columns: Expr) -> None:
        super().__init__(p, buffer, ZERO, columns)
        self._lanes = p

    def _at(self, i: Expr, j: Expr) -> list[Expr]:
        return self.places(i, j, self._lanes.lane)

    def of_lane(self, i: Expr, j: Expr, lane: Expr) -> Number:
        """An element of one matrix."""
        return tuple(ir.load(self.buffer, k) for k in self.places(i, j, lane))

    def places(self, i: Expr, j: Expr, lane: Expr) -> list[Expr]:
        p = self._lanes
        count = p.width * p.unroll
        element = ir.add(ir.mul(i, self._stride), j)
        first = ir.add(ir.mul(element, const(p.components * count)), lane)
        return [ir.add(first, const(part * count)) for part in range(p.components)]

    def fill(self, rows: Expr, columns: Expr, element: Callable[..., Number]) -> None:
        """Every `element(lane, i, j)`, one after the other: gathers are slower on many CPUs."""
        p = self._lanes
        with p.loop(ZERO, rows) as i, p.loop(ZERO, columns) as j:
            for lane in range(p.width * p.unroll):
                pairs = zip(self.places(i, j, const(lane)), element(lane, i, j), strict=True)
                p.do(*(ir.Store(self.buffer, k, part) for k, part in pairs))

    def empty(self, rows: Expr, columns: Expr, outs: Sequence[Matrix]) -> None:
        """All elements to a matrix of each lane."""
        p = self._lanes
        with p.loop(ZERO, rows) as i, p.loop(ZERO, columns) as j:
            for lane, out in enumerate(outs):
                places = self.places(i, j, const(lane))
                out[i, j] = tuple(ir.load(self.buffer, k) for k in places)


def moved(p: Program, source: Matrix, to: Matrix, rows: Expr, columns: Expr) -> None:
    """A copy from one memory to another."""
    with p.matrices(), p.each((ZERO, rows), (ZERO, columns)) as (i, j):
        x: Number = source[i, j]
        to[i, j] = x
