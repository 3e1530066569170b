"""GEMV with a warp per few rows of K-major matrices, software-pipelined through registers.

All matrices of a kernel are multiplied by one vector, as the gate and the up projection of a gated
MLP are, and a warp has the same rows of each, so that an epilogue may combine them. Lanes load 16
bytes of a row at a time into a ring of registers, the first ones before anything else is known.
What the vector takes of all its elements (the mean square of an RMSNorm) every block computes
itself, which costs less than a kernel of its own before this one; a vector that has to be computed
is staged in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.vector_registers import element, packed, vector_registers
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import VectorOperand
from numus.target import Target

ZERO, TRUE, WARP = const(0), problem.TRUE, 32

# Elements of the vector from a position on, of a thread: (statements, first, count, tag, whether
# vectors are aligned).
LoadVector = Callable[[list[Stmt], Expr, int, str, bool], list[Expr]]
# Of a row of the warp, from `totals`: stores of its first lane.
Epilogue = Callable[[int], list[Stmt]]


@dataclass(frozen=True)
class RowGemvTuning:
    """Measured on one H200."""

    min_rows: int = 64
    min_row_bytes: int = 512  # that a warp loads at a time: with less, most threads would idle
    few_rows_per_core: int = 8  # of which long ones take more than a warp,
    long_row_bytes: int = 16 << 10
    max_products: int = 3
    warps: int = 4  # of a block
    blocks_per_core: int = 4  # in flight: with no more, all begin before earlier kernels end
    max_rows: int = 8  # of a warp, of all matrices, so that there are no more blocks,
    many_rows: int = 4  # or else
    min_loads: int = 8  # of 16 bytes, that a thread has in flight,
    max_loads: int = 16
    in_flight_bytes: int = 64 << 10  # of an SM
    max_staged_bytes: int = 16 << 10  # of a vector


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
    vector = problem.MAX_ACCESS_BYTES // itemsize
    own, unroll = choose_rows(target, products, rows, k // (WARP * vector))
    return RowGemvShape(products, own, vector, unroll, dtype)


def choose_rows(
    target: Target, products: int, rows: int, row_loads: int, vectors: int = 1
) -> tuple[int, int]:
    """Rows of each matrix that a warp has, and how many of a row's loads are in flight."""
    most = TUNING.blocks_per_core * TUNING.warps  # warps of an SM
    own = -(-rows // (most * target.num_cores))
    if own * products * vectors > TUNING.max_rows:
        own = max(1, TUNING.many_rows // (products * vectors))
    warps = min(most, -(-rows // (own * target.num_cores)))
    loads = TUNING.in_flight_bytes // (warps * WARP * problem.MAX_ACCESS_BYTES)
    loads = min(max(loads, TUNING.min_loads), TUNING.max_loads)
    unroll = max(1, min(loads // (own * products), row_loads))
    whole = next(u for u in range(unroll, 0, -1) if row_loads % u == 0)
    return own, whole if 2 * whole >= unroll else unroll


def block_threads() -> int:
    return WARP * TUNING.warps


def totals(products: int, dtype: DType, row: int, tag: str = "") -> list[Expr]:
    """The names of a row's products, one for each matrix."""
    return [ir.var(f"total{p}_{row}{tag}", dtype) for p in range(products)]


@dataclass(frozen=True, slots=True)
class WarpRows:
    """The rows of each matrix that the warps of a block have."""

    block: Expr
    own: int  # of a warp
    count: Expr

    def first(self, lane: Expr) -> Expr:
        warp = self.block * TUNING.warps + lane // WARP
        return warp * self.own if self.own > 1 else warp

    def clamped(self, lane: Expr) -> list[Expr]:
        """Past the end the last one again."""
        first = self.first(lane)
        return [ir.minimum(first + i, self.count - 1) for i in range(self.own)]

    def finish(
        self, lane: Expr, sums: Sequence[Sequence[ir.Register]], epilogue: Epilogue, tag: str = ""
    ) -> list[Stmt]:
        """Add what the lanes of a warp have of each row, and store. `sums[i]` are those of row i,
        for one product after the other."""
        out: list[Stmt] = []
        for i, own in enumerate(sums):
            names = totals(len(own), own[0].dtype, i, tag)
            for register, name in zip(own, names, strict=True):
                total: Expr = ir.read(register)
                for mask in (16, 8, 4, 2, 1):
                    part = name if mask == 1 else ir.var(f"{name.attr}_{mask}", name.dtype)
                    out.append(ir.Let(part, total + ir.lanes_xor(total, mask)))
                    total = part
            is_own = (lane % WARP).eq(0) & (self.first(lane) + i < self.count)
            out.append(ir.If(is_own, epilogue(i)))
        return out


@dataclass(frozen=True, slots=True)
class AlongK:
    """The loop of some threads over k."""

    threads: int
    vector: int  # elements of a thread's load
    unroll: int
    k: Expr
    whole: bool  # k is a multiple of all that is in flight
    aligned: Expr  # operands, so that vectors are loaded

    @property
    def step(self) -> int:
        return self.threads * self.vector

    def loop(self, lane: Expr, body: Callable[[Expr, int], list[Stmt]], name: str) -> list[Stmt]:
        """`body` takes a position, and how many loads come ahead."""
        at, rest = ir.var(f"{name}_at"), ir.var(f"{name}_rest")
        many, first = self.step * self.unroll, lane % self.threads * self.vector
        stop = self.k if self.whole else self.k // many * many
        steps = body(at, self.unroll)
        out: list[Stmt] = [ir.For(at, first, stop, "serial", steps, step=const(many))]
        if not self.whole:
            by = const(self.step)
            out.append(ir.For(rest, stop + first, self.k, "serial", body(rest, 1), step=by))
        return out

    def statements(self, body: Callable[[Expr, int, bool], list[Stmt]], name: str) -> list[Stmt]:
        """The loop of a block's threads; `body` also takes whether loads are vectors."""

        def lanes(vectorised: bool) -> list[Stmt]:
            lane = ir.var(f"{name}_lane")
            inner = self.loop(lane, lambda at, count: body(at, count, vectorised), name)
            return [ir.For(lane, ZERO, const(block_threads()), "lanes", inner)]

        out = problem.when(self.aligned, lambda: lanes(True))
        return out + problem.when(~self.aligned, lambda: lanes(False))


class StagedVector:
    """A vector that a block computes into shared memory."""

    def __init__(self, name: str, length: int, dtype: DType) -> None:
        self.buffer = ir.Buffer(name, dtype, "scratch", const(length))

    def fill(self, along: AlongK, load: LoadVector) -> list[Stmt]:
        def steps(at: Expr, count: int, vectorised: bool) -> list[Stmt]:
            out: list[Stmt] = []
            for u in range(count):
                first = at + u * along.step
                xs = load(out, first, along.vector, f"fill{u}", vectorised)
                width = min(along.vector, problem.MAX_ACCESS_BYTES // self.buffer.dtype.itemsize)
                for i, x in enumerate(xs):
                    value = x.cast(self.buffer.dtype)
                    vector = 0 if i % width else width
                    out.append(ir.Store(self.buffer, first + i, value, vector=vector))
            return out

        return along.statements(steps, f"{self.buffer.name}_fill")

    def loader(self, dtype: DType) -> LoadVector:
        def load(out: list[Stmt], first: Expr, count: int, tag: str, vectors: bool) -> list[Expr]:
            own = self.buffer.dtype
            width = min(count, problem.MAX_ACCESS_BYTES // own.itemsize) if vectors else 1
            names = [ir.var(f"{tag}_{u}", own) for u in range(count)]
            for u, name in enumerate(names):
                value = ir.load(self.buffer, first + u)
                out.append(ir.Let(name, value, vector=0 if u % width or width == 1 else width))
            return [name.cast(dtype) for name in names]

        return load


class RowGemv:
    """The rows of a block's warps, software-pipelined: while vectors of the rows are multiplied,
    the next ones are on their way."""

    def __init__(
        self, shape: RowGemvShape, matrices: Sequence[VectorOperand], rows: Expr, block: Expr
    ) -> None:
        s = self.shape = shape
        self.matrices = [matrix for matrix in matrices for _ in range(s.rows)]
        self.rows = WarpRows(block, s.rows, rows)
        self.aligned = TRUE
        for matrix in matrices:
            self.aligned = self.aligned & matrix.aligned
        pipelined = all(m.is_vector(s.vector) for m in matrices)
        self.words = [
            [
                vector_registers(f"word{u}_{i}", _stored(m), s.vector)
                for i, m in enumerate(self.matrices)
            ]
            for u in range(s.unroll if pipelined else 0)
        ]
        self.sums = [ir.Register(f"sum{i}", s.dtype, lanes=True) for i in range(len(self.matrices))]

    def first_loads(self) -> list[Stmt]:
        """The first vectors of each row; they need nothing but the matrices."""
        if not self.words:
            return []
        lane, s = ir.var("first_lane"), self.shape
        at = lane % WARP * s.vector
        loads = [x for u in range(s.unroll) for x in self._load(lane, u, at + u * s.step)]
        return problem.when(self.aligned, lambda: _of_block(lane, loads))

    def body(self, k: int, length: Expr, aligned: Expr, vector: LoadVector) -> list[Stmt]:
        """The sums of each lane; k is known, and `length` the same at run time. The vector is
        `aligned`, or loaded element by element."""
        s = self.shape
        out: list[Stmt] = [ir.Set(c, const(0, s.dtype)) for c in self.sums]
        both = self.aligned & aligned
        lane = ir.var("k_lane")

        def step(vectorised: bool) -> Callable[[Expr, int], list[Stmt]]:
            return lambda at, count: self._step(vector, lane, at, count, vectorised)

        if self.words:
            steps = self._pipeline(k, length, vector, lane)
            out += problem.when(both, lambda: _of_block(lane, steps))
        else:
            along = AlongK(WARP, s.vector, s.unroll, length, k % s.iteration == 0, TRUE)
            out += problem.when(both, lambda: _of_block(lane, along.loop(lane, step(True), "k")))
        slow = AlongK(WARP, s.vector, 1, length, k % s.step == 0, TRUE)
        return out + problem.when(~both, lambda: _of_block(lane, slow.loop(lane, step(False), "k")))

    def finish(self, lane: Expr, epilogue: Epilogue) -> list[Stmt]:
        s = self.shape
        sums = [[self.sums[p * s.rows + i] for p in range(s.products)] for i in range(s.rows)]
        return self.rows.finish(lane, sums, epilogue)

    def _operands(self, lane: Expr) -> list[tuple[VectorOperand, Expr]]:
        own = self.rows.clamped(lane) * self.shape.products
        return list(zip(self.matrices, own, strict=True))

    def _load(self, lane: Expr, u: int, at: Expr) -> list[Stmt]:
        """A vector of each row into its registers."""
        out, sets = list[Stmt](), list[Stmt]()
        operands = zip(self._operands(lane), self.words[u], strict=True)
        for i, ((matrix, row), own) in enumerate(operands):
            tag = f"next{u}_{i}"
            names = matrix.load_vectors(out, ZERO, row, at, self.shape.vector, tag)
            sets += ir.sets(own, packed(names))
        return out + sets

    def _pipeline(self, k: int, length: Expr, vector: LoadVector, lane: Expr) -> list[Stmt]:
        """A ring of registers: what was multiplied gives way to what comes an iteration later. The
        last iteration may have less: its vectors past the end are predicated off."""
        s, at = self.shape, ir.var("k_at")
        many, first = s.iteration, lane % WARP * s.vector
        stop = (length - 1) // many * many  # of those with all vectors, ahead of the last one
        whole = [(u + 1) * s.step <= (k - 1) % many + 1 for u in range(s.unroll)]

        def inside(u: int, place: Expr, body: list[Stmt]) -> list[Stmt]:
            return body if whole[u] else [ir.If(place < length, body)]

        inner, last = list[Stmt](), list[Stmt]()
        for u in range(s.unroll):
            ahead = u * s.step
            coming = at + (many + ahead)
            inner += self._multiply(vector, u, at + ahead, f"x{u}")
            inner += inside(u, coming, self._load(lane, u, coming))
            at_last = stop + first + ahead
            last += inside(u, at_last, self._multiply(vector, u, at_last, f"last{u}"))
        return [ir.For(at, first, stop, "serial", inner, step=const(many)), *last]

    def _multiply(self, vector: LoadVector, u: int, at: Expr, tag: str) -> list[Stmt]:
        """Add the products of a loaded vector of each row."""
        body: list[Stmt] = []
        xs = vector(body, at, self.shape.vector, tag, True)
        for e, x in enumerate(xs):
            for c, matrix, own in zip(self.sums, self.matrices, self.words[u], strict=True):
                w = element(own, e, _stored(matrix)).cast(matrix.dtype)
                body.append(ir.Set(c, problem.multiply_add(w, x, ir.read(c))))
        return body

    def _step(
        self, vector: LoadVector, lane: Expr, at: Expr, count: int, vectorised: bool
    ) -> list[Stmt]:
        """Without a pipeline."""
        s, body = self.shape, list[Stmt]()
        places = [at + u * s.step for u in range(count)]
        weights = [
            [
                matrix.load_along_k(body, ZERO, row, place, s.vector, f"w{u}_{i}", vectorised)
                for i, (matrix, row) in enumerate(self._operands(lane))
            ]
            for u, place in enumerate(places)
        ]
        for u, place in enumerate(places):
            xs = vector(body, place, s.vector, f"x{u}", vectorised)
            for e, x in enumerate(xs):
                for c, ws in zip(self.sums, weights[u], strict=True):
                    body.append(ir.Set(c, problem.multiply_add(ws[e], x, ir.read(c))))
        return body


def _of_block(lane: Expr, body: list[Stmt]) -> list[Stmt]:
    return [ir.For(lane, ZERO, const(block_threads()), "lanes", body)]


def _stored(matrix: VectorOperand) -> DType:
    """The dtype of its elements in memory."""
    assert matrix.address is not None
    buffer, _ = matrix.address(ZERO, ZERO, ZERO)
    return buffer.dtype
