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

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import VectorOperand
from numus.target import Target

ZERO, TRUE, WARP = const(0), problem.TRUE, 32

# Elements of the vector from a position on, of a thread: (statements, first, count, tag, whether
# vectors are aligned).
LoadVector = Callable[[list[Stmt], Expr, int, str, bool], list[Expr]]
RowEpilogue = Callable[[int], list[Stmt]]  # of a row of the warp, from `totals`


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

    @property
    def iteration(self) -> int:
        """Elements of a row that a warp has in flight."""
        return self.step * self.unroll


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
            many, first = s.iteration, lane * s.vector
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


class RowGemv:
    """The rows of one warp, software-pipelined: while vectors of the rows are multiplied, the next
    ones are on their way. The first ones can be so before anything else is known (`first_loads`).
    """

    def __init__(
        self, shape: RowGemvShape, matrices: Sequence[VectorOperand], rows: Expr, block: Expr
    ) -> None:
        s = self.shape = shape
        self.block, self.row_count = block, rows
        self.rows = rows_of_warp(s, block, rows)
        self.operands = [(matrix, row) for matrix in matrices for row in self.rows]
        self.aligned = TRUE
        for matrix in matrices:
            self.aligned = self.aligned & matrix.aligned
        pipelined = all(m.is_vector(s.vector) for m in matrices)
        self.words = [
            [
                [
                    ir.Register(f"word{u}_{i}_{e}", t, lanes=True)
                    for e in range(s.vector * _stored(m).itemsize // t.itemsize)
                ]
                for i, (m, _) in enumerate(self.operands)
                for t in [_word(_stored(m))]
            ]
            for u in range(s.unroll if pipelined else 0)
        ]
        self.sums = [
            [ir.Register(f"sum{p}_{i}", s.dtype, lanes=True) for i in range(s.rows)]
            for p in range(s.products)
        ]

    def first_loads(self) -> list[Stmt]:
        """The first vectors of each row; they need nothing but the matrices."""
        if not self.words:
            return []
        lane, s = ir.var("first_lane"), self.shape
        places = [lane * s.vector + u * s.step for u in range(s.unroll)]
        loads = [x for u, at in enumerate(places) for x in self._load(u, at)]
        return problem.when(self.aligned, lambda: [ir.For(lane, ZERO, const(WARP), "lanes", loads)])

    def body(self, along: AlongK, vector: LoadVector, epilogue: RowEpilogue) -> list[Stmt]:
        """Everything after `first_loads`; `along` says whether the vector is aligned as well."""
        s = self.shape
        flat = [c for own in self.sums for c in own]
        out: list[Stmt] = [ir.Set(c, const(0, s.dtype)) for c in flat]
        aligned = self.aligned & along.aligned

        def step(at: Expr, count: int, vectorised: bool) -> list[Stmt]:
            return self._step(vector, at, count, vectorised)

        if self.words:
            out += problem.when(aligned, lambda: self._pipeline(along, vector))
            single = replace(along, aligned=~TRUE)
            out += problem.when(~aligned, lambda: single.statements(step, "k"))
        else:
            out += replace(along, aligned=aligned).statements(step, "k")
        for i in range(s.rows):
            found = [ir.lanes_reduce("add", own[i]) for own in self.sums]
            out += ir.lets(totals(s, i), found)
            stores = epilogue(i)
            out += [ir.If(self.block * s.rows + i < self.row_count, stores)] if i else stores
        return out

    def _load(self, u: int, at: Expr) -> list[Stmt]:
        """A vector of each row into its registers."""
        out, sets = list[Stmt](), list[Stmt]()
        for i, ((matrix, row), own) in enumerate(zip(self.operands, self.words[u], strict=True)):
            tag = f"next{u}_{i}"
            names = matrix.load_vectors(out, ZERO, row, at, self.shape.vector, tag)
            sets += ir.sets(own, _packed(names))
        return out + sets

    def _pipeline(self, along: AlongK, vector: LoadVector) -> list[Stmt]:
        """A ring of registers: what was multiplied gives way to what comes an iteration later."""
        s = self.shape
        lane, at, rest = ir.var("k_lane"), ir.var("k_at"), ir.var("k_rest")
        many, first = s.iteration, lane * s.vector
        stop = along.k if along.whole else along.k // many * many
        inner, last = list[Stmt](), list[Stmt]()
        for u in range(s.unroll):
            ahead = u * s.step
            inner += self._multiply(vector, u, at + ahead, f"x{u}")
            inner += self._load(u, at + (many + ahead))
            last += self._multiply(vector, u, stop - many + first + ahead, f"last{u}")
        loop = ir.For(at, first, stop - many, "serial", inner, step=const(many))
        body: list[Stmt] = [loop, *last]
        if not along.whole:
            steps = self._step(vector, rest, 1, True)
            by = const(s.step)
            body.append(ir.For(rest, stop + first, along.k, "serial", steps, step=by))
        return [ir.For(lane, ZERO, const(WARP), "lanes", body)]

    def _multiply(self, vector: LoadVector, u: int, at: Expr, tag: str) -> list[Stmt]:
        """Add the products of a loaded vector of each row."""
        s, body = self.shape, list[Stmt]()
        flat = [c for own in self.sums for c in own]
        xs = vector(body, at, s.vector, tag, True)
        for e, x in enumerate(xs):
            for c, (matrix, _), own in zip(flat, self.operands, self.words[u], strict=True):
                w = _element(own, e, _stored(matrix)).cast(matrix.dtype)
                body.append(ir.Set(c, problem.multiply_add(w, x, ir.read(c))))
        return body

    def _step(self, vector: LoadVector, at: Expr, count: int, vectorised: bool) -> list[Stmt]:
        """Without a pipeline."""
        s, body = self.shape, list[Stmt]()
        flat = [c for own in self.sums for c in own]
        places = [at + u * s.step for u in range(count)]
        weights = [
            [
                matrix.load_along_k(body, ZERO, row, place, s.vector, f"w{u}_{i}", vectorised)
                for i, (matrix, row) in enumerate(self.operands)
            ]
            for u, place in enumerate(places)
        ]
        for u, place in enumerate(places):
            xs = vector(body, place, s.vector, f"x{u}", vectorised)
            for e, x in enumerate(xs):
                for c, ws in zip(flat, weights[u], strict=True):
                    body.append(ir.Set(c, problem.multiply_add(ws[e], x, ir.read(c))))
        return body


def _word(dtype: DType) -> DType:
    """What registers hold of elements: pairs of halves, so that they are as they came."""
    return dt.uint32 if dtype.itemsize == 2 else dtype


def _packed(names: list[Expr]) -> list[Expr]:
    if names[0].dtype.itemsize != 2:
        return names
    bits = [x.bitcast(dt.uint16).cast(dt.uint32) for x in names]
    return [low | (high << 16) for low, high in zip(bits[::2], bits[1::2], strict=True)]


def _element(words: list[ir.Register], e: int, dtype: DType) -> Expr:
    if dtype.itemsize != 2:
        return ir.read(words[e])
    word = ir.read(words[e // 2])
    if dtype is dt.bfloat16:
        return (word & 0xFFFF0000 if e % 2 else word << 16).bitcast(dt.float32)
    return (word >> 16 if e % 2 else word).cast(dt.uint16).bitcast(dtype)


def _stored(matrix: VectorOperand) -> DType:
    """The dtype of its elements in memory."""
    assert matrix.address is not None
    buffer, _ = matrix.address(ZERO, ZERO, ZERO)
    return buffer.dtype
