"""GEMV with a warp per few rows of K-major matrices: registers and shuffles, no barrier.

All matrices of a kernel are multiplied by one vector, as the gate and the up projection of a gated
MLP are, and a warp has the same rows of each, so that an epilogue may combine them. Lanes load 16
bytes of a row at a time, several of them ahead of their products. What the vector takes of all its
elements (the mean square of an RMSNorm) every warp computes itself: reading a few KiB from L1 again
costs less than a kernel of its own before this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import VectorOperand
from numus.target import Target

ZERO, WARP = const(0), 32

# Elements of the vector from a position on, of a thread: (statements, first, count, tag, whether
# vectors are aligned).
LoadVector = Callable[[list[Stmt], Expr, int, str, bool], list[Expr]]


@dataclass(frozen=True)
class RowGemvTuning:
    """For one H200: 16 warps of an SM with 4 KiB each in flight are twice what its share of the
    memory's bandwidth takes."""

    min_rows: int = 64
    min_row_bytes: int = 512  # that a warp loads at a time: with less, most threads would idle
    few_rows_per_core: int = 8  # of which long ones take more than a warp,
    long_row_bytes: int = 16 << 10
    max_products: int = 3
    max_rows: int = 4  # of a warp, of all matrices
    warps_per_core: int = 16  # that are worth more than loading the vector less often
    loads: int = 8  # of 16 bytes, that a thread has in flight


TUNING = RowGemvTuning()


@dataclass(frozen=True, slots=True)
class RowGemvShape:
    products: int  # matrices
    rows: int  # of each matrix, of a warp
    vector: int  # elements of a thread's load
    unroll: int  # loads of a row ahead of their products
    dtype: DType  # of the products

    @property
    def step(self) -> int:
        """Elements of a row that a warp loads at a time."""
        return WARP * self.vector


def choose_shape(
    target: Target, itemsize: int, dtype: DType, products: int, rows: int, k: int
) -> RowGemvShape:
    own = max(1, TUNING.max_rows // products)
    while own > 1 and rows < own * TUNING.warps_per_core * target.num_cores:
        own //= 2
    vector = problem.MAX_ACCESS_BYTES // itemsize
    return with_unroll(RowGemvShape(products, own, vector, 1, dtype), k)


def with_unroll(s: RowGemvShape, k: int) -> RowGemvShape:
    """As many loads in flight as registers have room for, of rows of k elements."""
    unroll = max(1, TUNING.loads // (s.rows * s.products))
    while unroll > 1 and unroll * s.step > k:
        unroll //= 2
    return replace(s, unroll=unroll)


def totals(s: RowGemvShape, row: int) -> list[Expr]:
    """The names of a row's products, one for each matrix."""
    return [ir.var(f"total{p}_{row}", s.dtype) for p in range(s.products)]


def rows_of_warp(s: RowGemvShape, block: Expr, rows: Expr) -> list[Expr]:
    """The rows of each matrix that a warp has; past the end the last one again."""
    first = block * s.rows if s.rows > 1 else block
    return [ir.minimum(first + i, rows - 1) if i else first for i in range(s.rows)]


@dataclass(frozen=True, slots=True)
class AlongK:
    """A warp's loop over k."""

    shape: RowGemvShape
    k: Expr
    whole: bool  # k is a multiple of all that a warp has in flight of a row
    aligned: Expr  # the operands, so that vectors are loaded

    def statements(self, body: Callable[[Expr, int, bool], list[Stmt]], name: str) -> list[Stmt]:
        """`body` takes a position, how many loads come ahead, and whether they are vectors."""
        s, lane = self.shape, ir.var(f"{name}_lane")

        def loop(vectorised: bool) -> list[Stmt]:
            at, rest = ir.var(f"{name}_at"), ir.var(f"{name}_rest")
            many, first = s.step * s.unroll, lane * s.vector
            stop = self.k if self.whole else self.k // many * many
            steps = body(at, s.unroll, vectorised)
            inner: list[Stmt] = [ir.For(at, first, stop, "serial", steps, step=const(many))]
            if not self.whole:
                steps = body(rest, 1, vectorised)
                by = const(s.step)
                inner.append(ir.For(rest, stop + first, self.k, "serial", steps, step=by))
            return [ir.For(lane, ZERO, const(WARP), "lanes", inner)]

        out = problem.when(self.aligned, lambda: loop(True))
        return out + problem.when(~self.aligned, lambda: loop(False))


@dataclass(frozen=True, slots=True)
class RowGemvCall:
    """Operands of a kernel."""

    along: AlongK
    rows: Expr  # of each matrix
    matrices: Sequence[VectorOperand]
    vector: LoadVector
    epilogue: Callable[[int], list[Stmt]]  # of a row of the warp, from `totals`


def row_gemv(call: RowGemvCall, block: Expr) -> list[Stmt]:
    """The rows of one warp."""
    s = call.along.shape
    sums = [
        [ir.Register(f"sum{p}_{i}", s.dtype, lanes=True) for i in range(s.rows)]
        for p in range(s.products)
    ]
    flat = [c for own in sums for c in own]
    rows = rows_of_warp(s, block, call.rows)
    operands = [(matrix, row) for matrix in call.matrices for row in rows]

    def steps(at: Expr, count: int, vectorised: bool) -> list[Stmt]:
        body: list[Stmt] = []
        places = [at + u * s.step for u in range(count)]
        weights = [
            [
                matrix.load_along_k(body, ZERO, row, place, s.vector, f"w{u}_{i}", vectorised)
                for i, (matrix, row) in enumerate(operands)
            ]
            for u, place in enumerate(places)
        ]
        for u, place in enumerate(places):
            xs = call.vector(body, place, s.vector, f"x{u}", vectorised)
            for e, x in enumerate(xs):
                for c, ws in zip(flat, weights[u], strict=True):
                    body.append(ir.Set(c, problem.multiply_add(ws[e], x, ir.read(c))))
        return body

    out: list[Stmt] = [ir.Set(c, const(0, s.dtype)) for c in flat]
    out += call.along.statements(steps, "k")
    for i in range(s.rows):
        found = [ir.lanes_reduce("add", own[i]) for own in sums]
        out += ir.lets(totals(s, i), found)
        stores = call.epilogue(i)
        out += [ir.If(block * s.rows + i < call.rows, stores)] if i else stores
    return out
