"""Products of threads that are lanes of a vector: which get that kernel, and how they read."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Emitter, Step
from numus.compiler.group_operands import along, lying, work_of
from numus.compiler.groups import Group
from numus.compiler.ir import Expr, const
from numus.compiler.local import Val
from numus.compiler.products import in_pieces
from numus.dtypes import DType
from numus.kernels import vector_contraction as vectors
from numus.runtime.contract import Facts
from numus.shapes import Shape

ZERO = const(0)

RUN = vectors.RUN
PIECE = 256  # of k, that is worth a sum of its own


def fits_vectors(product: Val, facts: Facts) -> bool:
    """Whether threads are lanes of a vector, which exchange numbers of 4 bytes."""
    _, m, n = product.shape
    dtype = dt.compute_dtype(product.dtype)
    if not facts.lockstep or dtype not in (dt.float32, dt.int32, dt.uint32):
        return False
    return min(m, n) >= facts.lockstep


def lower_vectors(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    tiles = vectors.Tiles(facts.lockstep)
    groups = batch * -(-m // tiles.rows) * -(-n // tiles.columns)
    pieces = max(1, min(2 * facts.parallel_units // groups, k // PIECE), -(-k // 65536))
    if pieces > 1:
        return in_pieces(group, layouts, facts, pieces, _vectors)
    return _vectors(group, layouts, facts)


def _vectors(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    dtype = dt.compute_dtype(product.dtype)
    layouts = group.outside(layouts)
    tiles = vectors.Tiles(facts.lockstep)
    e = Emitter(layouts, group=tiles.lanes)
    row_tiles, column_tiles = -(-m // tiles.rows), -(-n // tiles.columns)
    sizes = vectors.Sizes(
        *(e.number(x) for x in (m, n, k)),
        *(e.parameter(x) for x in (k // RUN, row_tiles, column_tiles)),
    )
    sides = (
        _operand(e, x, line, layouts, dtype, batch > 1) for line, x in enumerate(product.inputs, 1)
    )
    g = ir.var("g")
    work = work_of(e, group, tiles, sizes, dtype, sides)
    body, e.scratch = vectors.contraction(work, g, rest=k % RUN != 0)
    return [e.blocks("vector_contraction", g, body, batch * row_tiles * column_tiles, group.notes)]


def _operand(
    e: Emitter, x: Val, line: int, layouts: dict[Val, Shape], dtype: DType, batched: bool
) -> vectors.Operand:
    """An operand whose lines are counted along axis `line`: by whole runs where it is memory that
    is cut up evenly, else element by element."""
    extent = x.shape[line]
    last = ir.sub(e.number(extent), const(1))
    how = lying(x, layouts, line)
    by_k = along(x, layouts, 3 - line) if how is None else how.along

    def read(t: Expr, i: Expr, p: Expr) -> Expr:
        i = ir.minimum(i, last)
        e.extents[i] = e.number(extent)
        index = (i, p) if line == 1 else (p, i)
        value: Expr = e.value(x, (t if batched else ZERO, *index))
        return value.cast(dtype)

    def each(t: Expr, i: Expr, p: Expr) -> list[Expr]:
        places = [const(c) for c in range(RUN)]
        if by_k:
            return [read(t, i, ir.add(ir.mul(p, const(RUN)), c)) for c in places]
        return [read(t, ir.add(ir.mul(i, const(RUN)), c), p) for c in places]

    inner = x.shape[3 - line] if by_k else extent
    even = how is not None and not (how.line % RUN or how.matrix % RUN or inner % RUN)
    if how is None or not even or x.dtype is not dtype:
        return vectors.Operand(by_k, read, each)
    buffer = e.value(x, (ZERO, ZERO, ZERO)).attr
    pitch, matrix = (e.parameter(n // RUN) for n in (how.line, how.matrix))
    end = e.parameter((extent if by_k else extent // RUN) - 1)

    def run(t: Expr, i: Expr, p: Expr) -> list[Expr]:
        i = ir.minimum(i, end)
        slow, quick = (i, p) if by_k else (p, i)
        at = ir.add(ir.mul(slow, pitch), quick)
        if batched:
            at = ir.add(ir.mul(t, matrix), at)
        first = ir.mul(at, const(RUN))
        return [ir.load(buffer, ir.add(first, const(c))) for c in range(RUN)]

    return vectors.Operand(by_k, read, run)
