"""Pointwise kernels: loop groups without reductions.

Horizontal fusion (multi-tensor apply): small independent results get blocks of their own. One after
the other, in few blocks, they would wait for memory once each, as parameter updates of a training
step would.
"""

from __future__ import annotations

from collections.abc import Sequence

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops import nest
from numus.compiler.lower.loops.nest import ZERO, Loop, ceil_div, delinearize
from numus.compiler.lower.loops.pointwise_transpose import lower_transpose
from numus.compiler.lower.loops.pointwise_unaligned import lower_unaligned
from numus.compiler.lower.loops.problem import LoopProblem, attempt
from numus.compiler.lower.loops.reduce_rows_registers import min_itemsize, vector_width
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.compiler.lower.loops.windows import lower_windows, supports_windows
from numus.compiler.lower.schedule import Candidate
from numus.ir import Stmt


def pointwise_lane(work: StagedGroup, loops: list[Loop]) -> Loop | None:
    """The innermost loop, unless it is too short to fill a vector and another does better."""
    if not loops:
        return None
    width = work.vector_lanes()
    if work.target.subgroup_size:  # threads go on with the next row
        width = min(width, TUNING.max_vector_elements)
    if loops[-1].extent * 2 > width:
        return loops[-1]
    return max(loops, key=lambda d: (min(d.extent, 4 * width), d.axis))


def _outer(p: LoopProblem) -> list[Loop]:
    return [d for d in p.nest.loops if d is not p.lane]


def _strided_loop(p: LoopProblem) -> Loop | None:
    """A loop along which an access is contiguous that is strided along the lanes."""
    min_extent = TUNING.tiled_min_extent
    if p.lanes.extent < min_extent:
        return None
    found = (d for d in _outer(p) if d.extent >= min_extent and p.nest.strided_along(p.lanes, d))
    return next(found, None)


def _stores(p: LoopProblem, e: Emitter, at: nest.Position) -> list[Stmt]:
    return p.stores(e, p.work.stored, p.nest.index(at))


# -- scalars and blocks ---------------------------------------------------------------------------


def _scalar(p: LoopProblem) -> Kernels:
    e = p.work.emitter()
    grid = ir.For(ir.var("g"), ZERO, ir.const(1), "grid", _stores(p, e, {}))
    return [e.finish("scalar", [grid], 1, p.work.notes)]


def _blocked(p: LoopProblem) -> Kernels:
    """Blocks of rows, or of columns where rows are long."""
    work, lane, outer = p.work, p.lanes, _outer(p)
    columns = min(lane.extent, max(work.block_elements(), 256))
    if lane.extent - columns < columns // 2:  # no short remainder
        columns = lane.extent
    column_blocks = ceil_div(lane.extent, columns)
    rows = 1
    if outer:
        count = nest.iterations(outer)
        rows = max(1, work.block_elements() // columns)
        rows = ceil_div(count, _shared(p, ceil_div(count, rows)))
    e = work.emitter()
    g = ir.var("g")
    width = e.scalar_arg(columns)
    extent = e.dim(lane.extent)
    j = e.variable("j", extent)
    body: list[Stmt]
    if not outer:
        span = ir.block_range(g, width, extent)
        stores = p.prefetched(e, _stores(p, e, {lane: j}), j)
        body = [ir.For(j, *span, "lanes", stores)]
    else:
        row_block, span = g, (ZERO, extent)
        if column_blocks > 1:
            blocks = e.scalar_arg(column_blocks)
            row_block = ir.idiv(g, blocks)
            span = ir.block_range(ir.irem(g, blocks), width, extent)
        per_block = e.scalar_arg(rows)
        total = nest.total_extent(e, outer)
        r = ir.var("r")
        stores = _stores(p, e, {**delinearize(e, r, outer), lane: j})
        inner = ir.For(j, *span, "lanes", p.prefetched(e, stores, j))
        row_span = ir.block_range(row_block, per_block, total)
        body = [ir.For(r, *row_span, "serial", [inner])]
    grid = column_blocks * ceil_div(nest.iterations(outer), rows)
    return [e.grid_kernel("pointwise", g, body, grid, work.notes)]


def _shared(p: LoopProblem, blocks: int) -> int:
    """A few blocks more, so that all cores have as many."""
    return ceil_div(blocks, p.target.num_cores) * p.target.num_cores if blocks > 1 else 1


# -- vectors of threads ---------------------------------------------------------------------------


def _has_vectors(p: LoopProblem, width: int) -> bool:
    nbytes = width * min_itemsize(p.work)
    return bool(p.target.vector_access_bytes) and nbytes >= TUNING.max_vector_bytes // 2


def _expressions(stores: Sequence[Stmt]) -> set[ir.Expr]:
    values = (s.value for s in stores if isinstance(s, ir.Store))
    return {x for value in values for x in ir.walk(value, lambda x: True)}


def _is_unrollable(found: set[ir.Expr]) -> bool:
    predicated = any(x.op == "load" and len(x.args) > 1 for x in found)
    return not predicated and len(found) <= TUNING.unrolled_max_ops


def _gathers(found: set[ir.Expr]) -> bool:
    """Whether loads wait for indices."""
    return any(
        y.op == "load" for x in found if x.op == "load" for y in ir.walk(x.args[0], lambda y: True)
    )


def _vectors(p: LoopProblem, only_gathers: bool = False) -> Kernels | None:
    """Many small blocks, whose threads have a vector or two: some load while others store. Where
    they wait for indices, more; short rows then have a warp."""
    work, lane, outer = p.work, p.lanes, _outer(p)
    width = vector_width(work, lane.extent)
    if not _has_vectors(p, width):
        return None
    e = work.emitter()
    g, t = ir.var("g"), ir.var("t")
    number, row = g, ZERO
    count = e.scalar_arg(0)
    if outer:
        number, row = ir.irem(g, count), ir.idiv(g, count)
    size = e.scalar_arg(0)
    extent = e.dim(lane.extent)
    start = ir.mul(number, size)
    j = ir.add(start, t)
    e.extents[j] = extent
    stores = _stores(p, e, {**delinearize(e, row, outer), lane: j})
    found = _expressions(stores)
    gathers = _gathers(found)
    if not _is_unrollable(found) or (only_gathers and not gathers):
        return None
    reads = [x for x in found if x.op == "load" and t in ir.walk(x.args[0], lambda x: True)]
    light = len(found) <= TUNING.light_max_ops
    e.block_size, vectors = TUNING.light_block if light else TUNING.heavy_block
    if len(found) > TUNING.arithmetic_min_ops:  # narrow vectors leave registers to more threads
        itemsize = min_itemsize(work)
        width = min(width, max(2, TUNING.arithmetic_vector_bytes // itemsize))
        if len(found) > TUNING.long_min_ops:
            width = min(width, 2)
        e.block_size, vectors = TUNING.arithmetic_block
        if itemsize > 4:
            vectors //= 2
        elif TUNING.several_min_ops < len(found) <= TUNING.long_min_ops:
            vectors *= 2
    if gathers:
        e.block_size, vectors = TUNING.gather_block
        if lane.extent <= WARP * width * TUNING.gather_warp_vectors:
            e.block_size, e.packed_blocks = WARP, TUNING.packed_rows
            vectors = ceil_div(lane.extent, WARP * width)
    elif len(reads) > 1:  # ptxas sinks further loads below arithmetic
        vectors = 1
    per_block = e.block_size * vectors * width
    blocks = ceil_div(lane.extent, per_block)
    e.scalar_args[:] = [blocks, per_block]
    exact = lane.extent % per_block == 0
    end = ir.const(per_block) if exact else ir.minimum(size, ir.sub(extent, start))
    loop = ir.For(t, ZERO, end, "lanes", stores, unroll=vectors, width=width, resident=True)
    body = [*_row_indices(stores, t), loop]
    return [e.grid_kernel("pointwise", g, body, blocks * nest.iterations(outer), work.notes)]


def _row_indices(stores: Sequence[Stmt], t: ir.Expr) -> list[Stmt]:
    """Bindings of the indices of a block's row: with them, the alignment of accesses is known."""
    found: dict[ir.Expr, None] = {}
    for x in ir.loads(list(stores)):
        for y in ir.walk(x.args[0], lambda y: True):
            if y.op == "load" and t not in ir.walk(y.args[0], lambda z: True):
                found[y] = None
    return [ir.Let(ir.var(f"row{i}", x.dtype), x) for i, x in enumerate(found)]


def _short_row_vectors(p: LoopProblem) -> Kernels | None:
    """Several rows per block, a vector per thread; None where accesses are not aligned to it."""
    work, lane, outer = p.work, p.lanes, _outer(p)
    width = vector_width(work, lane.extent)
    if not p.nest.vectorizable(lane, width) or not _has_vectors(p, width):
        return None
    e = work.emitter()
    e.alignment = width
    e.block_size = TUNING.light_block[0]
    per_block = max(1, e.block_size * width // lane.extent)
    if _used_lanes(lane.extent * per_block, e.block_size * width) < TUNING.row_vectors_used:
        return None
    g, t = ir.var("g"), ir.var("t")
    extent, total = e.dim(lane.extent), nest.total_extent(e, outer)
    elements, count = e.block_size * width, nest.iterations(outer)
    several = TUNING.row_vectors_of_thread  # rows, whose common operands are read once
    if count % (several * per_block) or per_block * lane.extent != elements:
        several = 1
    rows = e.scalar_arg(per_block)
    slot, step = len(e.scalar_args), e.scalar_arg(0)  # rows of a block, once they are known
    first = ir.mul(g, step)
    j = ir.irem(t, extent)
    e.extents[j] = extent
    at = delinearize(e, ir.add(first, ir.idiv(t, extent)), outer)
    stores = _stores(p, e, {**at, lane: j})
    if not _shares_operands(_expressions(stores), g):
        several = 1
    for k in range(1, several):
        row = ir.add(ir.add(first, ir.mul(rows, ir.const(k))), ir.idiv(t, extent))
        stores += _stores(p, e, {**delinearize(e, row, outer), lane: j})
    if not _is_unrollable(_expressions(stores)):
        return None
    e.scalar_args[slot] = several * per_block
    exact = count % per_block == 0 and per_block * lane.extent == elements
    end = ir.mul(ir.minimum(rows, ir.sub(total, first)), extent)
    if exact:
        end = ir.const(elements)
    loop = ir.For(t, ZERO, end, "lanes", stores, unroll=1, width=width, resident=True)
    grid = ceil_div(count, per_block * several)
    return [e.grid_kernel("pointwise", g, [loop], grid, work.notes)]


def _shares_operands(found: set[ir.Expr], block: ir.Expr) -> bool:
    """Most operands are vectors that all rows have in common."""
    loads = [x for x in found if x.op == "load"]
    own = [x for x in loads if block in ir.walk(x.args[0], lambda x: True)]
    return len(loads) - len(own) >= TUNING.row_vectors_shared * len(own)


def _used_lanes(elements: int, lanes: int) -> float:
    """The share of a block's lanes that have an element; 0 where it has more elements."""
    return elements / lanes if elements <= lanes else 0


# -- short rows of threads ------------------------------------------------------------------------


def _multi_row(p: LoopProblem) -> Kernels:
    """Rows too short to keep enough loads in flight: several of them at a time."""
    work, lane, outer = p.work, p.lanes, _outer(p)
    rows = work.rows_per_block()
    e = work.emitter()

    def idle(threads: int) -> int:
        return -lane.extent % (threads * TUNING.multi_row_vector)

    sizes = (work.threads, work.threads // 2, work.threads // 4)
    e.block_size = min((n for n in sizes if n >= WARP), key=idle, default=work.threads)
    g, r, rest = ir.var("g"), ir.var("r"), ir.var("rest")
    extent, total = e.dim(lane.extent), nest.total_extent(e, outer)
    start, stop = ir.block_range(g, ir.const(rows), total)
    whole = ir.add(start, ir.const(rows)) <= total

    def stores(row: ir.Expr, tag: str) -> ir.Stmt:
        j = e.variable(f"j{tag}", extent)
        found: list[Stmt] = []
        for k in range(rows if not tag else 1):
            at = delinearize(e, ir.add(row, ir.const(k)), outer)
            found += _stores(p, e, {**at, lane: j})
        return ir.For(j, ZERO, extent, "lanes", [*_hoisted_loads(found, tag), *found])

    body: list[Stmt] = [
        ir.If(whole, [ir.Let(r, start), stores(r, "")]),
        ir.If(~whole, [ir.For(rest, start, stop, "serial", [stores(rest, "rest")])]),
    ]
    return [e.grid_kernel("pointwise", g, body, ceil_div(nest.iterations(outer), rows), work.notes)]


def _hoisted_loads(stores: list[Stmt], tag: str) -> list[Stmt]:
    """All independent loads, before the stores: they are in flight together."""
    found: dict[ir.Expr, None] = {}
    for s in stores:
        assert isinstance(s, ir.Store)
        for e in ir.walk(s.value, lambda e: e.op != "load"):
            if e.op == "load" and len(e.args) == 1:
                found[e] = None
    return [ir.Let(ir.var(f"l{tag}{i}", e.dtype), e) for i, e in enumerate(found)]


def _flat(p: LoopProblem) -> Kernels:
    """All loops linearised: rows are too short for a block."""
    work, loops = p.work, p.nest.loops
    e = work.emitter()
    g = ir.var("g")
    total = nest.total_extent(e, loops)
    i = e.variable("i", total)
    stores = _stores(p, e, delinearize(e, i, loops))
    per_block = work.block_elements()
    size = e.scalar_arg(per_block)
    loop = ir.For(i, *ir.block_range(g, size, total), "lanes", stores)
    grid = ceil_div(nest.iterations(loops), per_block)
    return [e.grid_kernel("pointwise", g, [loop], grid, work.notes)]


# -- tiles ----------------------------------------------------------------------------------------


def _tiled(p: LoopProblem) -> Kernels:
    """Square tiles over the lanes and a strided loop, so that each cache line is read once: rows of
    SIMD lanes, or a thread for every element."""
    work, lane, strided = p.work, p.lanes, _strided_loop(p)
    assert strided is not None
    side = TUNING.simt_tile if work.threads else TUNING.tile
    rest = [d for d in p.nest.loops if d not in (lane, strided)]
    columns, rows = ceil_div(lane.extent, side), ceil_div(strided.extent, side)
    e = work.emitter()
    g, t = ir.var("g"), ir.var("t")
    column_tiles, row_tiles = e.scalar_arg(columns), e.scalar_arg(rows)
    size = ir.const(side) if work.threads else e.scalar_arg(side)
    tile, column = divmod(g, column_tiles)
    batch, row = divmod(tile, row_tiles)
    at = delinearize(e, batch, rest)
    lane_extent, strided_extent = e.dim(lane.extent), e.dim(strided.extent)
    (i0, i1), (j0, j1) = (
        ir.block_range(number, size, extent)
        for number, extent in ((row, strided_extent), (column, lane_extent))
    )
    body: list[Stmt]
    if work.threads:
        i, j = ir.add(i0, ir.idiv(t, size)), ir.add(j0, ir.irem(t, size))
        e.extents[i], e.extents[j] = strided_extent, lane_extent
        stores = _stores(p, e, {**at, lane: j, strided: i})
        in_bounds = ir.If((i < strided_extent) & (j < lane_extent), stores)
        body = [ir.For(t, ZERO, ir.const(side**2), "lanes", [in_bounds])]
    else:
        i, j = e.variable("i", strided_extent), e.variable("j", lane_extent)
        stores = _stores(p, e, {**at, lane: j, strided: i})
        inner = ir.For(j, j0, j1, "lanes", stores)
        body = [ir.For(i, i0, i1, "serial", [inner])]
    grid = columns * rows * nest.iterations(rest)
    return [e.grid_kernel("pointwise_tiled", g, body, grid, work.notes)]


def _transpose(p: LoopProblem) -> Kernels | None:
    strided = _strided_loop(p)
    return None if strided is None else lower_transpose(p, strided)


# -- horizontal fusion ----------------------------------------------------------------------------


def _horizontal(p: LoopProblem) -> Kernels | None:
    """Blocks for each result; None where results share inputs, or saturate the device together."""
    work, lane, threads = p.work, p.lanes, TUNING.horizontal_threads
    blocks = ceil_div(lane.extent, threads)
    if not work.threads or len(p.nest.loops) > 1:
        return None
    if len(work.stored) < 2 or blocks * 2 > p.target.num_cores:
        return None
    parts = _independent(p)
    if len(parts) < 2:
        return None
    e = work.emitter()
    e.block_size = threads
    g = ir.var("g")
    extent = e.dim(lane.extent)
    part, block = divmod(g, e.scalar_arg(blocks))
    first = ir.mul(block, ir.const(threads))
    body: list[Stmt] = []
    for number, members in enumerate(parts):
        thread = ir.var(f"t{number}")
        j = ir.add(first, thread)
        e.extents[j] = extent
        stores = p.stores(e, members, p.nest.index({lane: j}))
        loop = ir.For(thread, ZERO, ir.const(threads), "lanes", [ir.If(j < extent, stores)])
        body.append(ir.If(part.eq(number), [loop]))
    return [e.grid_kernel("pointwise", g, body, blocks * len(parts), work.notes)]


def _independent(p: LoopProblem) -> list[list[Value]]:
    """Results, grouped by common inputs other than scalars."""
    e = p.work.emitter()
    j = e.variable("j", e.dim(p.lanes.extent))
    parts: list[tuple[set[ir.Buffer], list[Value]]] = []
    for m in p.work.stored:
        reads: set[ir.Buffer] = set()
        for s in p.stores(e, [m], p.nest.index({p.lanes: j})):
            for root in ir.expressions_of(s):
                loads = [x for x in ir.walk(root, lambda x: True) if x.op == "load"]
                reads.update(x.attr for x in loads if j in ir.walk(x.args[0], lambda x: True))
        common = [part for part in parts if not part[0].isdisjoint(reads)]
        parts = [part for part in parts if part not in common]
        members = [*(v for _, found in common for v in found), m]
        parts.append((reads.union(*(own for own, _ in common)), members))
    return [members for _, members in parts]


# -- selection ------------------------------------------------------------------------------------


def _fills_no_block(p: LoopProblem) -> bool:
    return bool(_outer(p)) and p.lanes.extent < p.work.threads


def _wants_several_rows(p: LoopProblem) -> bool:
    short = p.lanes.extent < p.work.block_elements() and p.target.subgroup_size > 0
    return bool(_outer(p)) and short and p.work.rows_per_block() > 1


def _has_narrow_rows(p: LoopProblem) -> bool:
    """Rows of 16-bit elements, of which a thread has eight: enough loads are in flight without
    several rows of each thread."""
    narrow = min_itemsize(p.work) <= TUNING.row_vectors_max_itemsize
    return narrow and _wants_several_rows(p)


POINTWISE = (
    Candidate("scalar", _scalar, lambda p: not p.nest.loops),
    attempt("windows", lower_windows, supports_windows),
    attempt("transpose", _transpose, lambda p: bool(p.work.threads)),
    Candidate("tiled", _tiled, lambda p: _strided_loop(p) is not None),
    attempt("horizontal", _horizontal),
    attempt("unaligned", lower_unaligned),
    attempt("short-row vectors", _short_row_vectors, _fills_no_block),
    Candidate("flat", _flat, _fills_no_block),
    attempt("gathered rows", lambda p: _vectors(p, only_gathers=True), _wants_several_rows),
    attempt("row vectors", _short_row_vectors, _has_narrow_rows),
    Candidate("multi-row", _multi_row, _wants_several_rows),
    attempt("vectors", _vectors),
    Candidate("blocked", _blocked),
)
