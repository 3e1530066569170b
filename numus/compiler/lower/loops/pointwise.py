"""Maps: groups without reductions."""

from __future__ import annotations

from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.nest import (
    ONE,
    ZERO,
    At,
    Dim,
    Space,
    block,
    blocks_of,
    count,
    digits,
    extent_of,
)
from numus.compiler.lower.loops.pointwise_horizontal import lower_beside
from numus.compiler.lower.loops.pointwise_transpose import lower_turned
from numus.compiler.lower.loops.reduce_rows_registers import ACCESS, itemsize, vector_width
from numus.compiler.lower.loops.stages import Work
from numus.ir import Stmt

SIDE = 64  # of a tile, where two loops cross
GROUP_SIDE = 32  # the same for a group of threads, which takes all of the tile at once
# Of groups on NVIDIA GPUs: threads and vectors of each, for little arithmetic and for more.
LITTLE, MORE = (256, 1), (128, 2)
LIGHT, LONG = 24, 400  # operations that are little; and up to which code is written so often
VECTOR = 4  # elements of the usual dtype that a thread loads at a time
CROSSING = 32  # steps that two crossing loops have at least


def lower_map(work: Work, space: Space) -> LoweredKernel:
    """Blocks of rows, or of columns where rows are long; in tiles where memory is crossed."""
    if not space.dims:
        return _scalar(work, space)
    lane = _lane(work, space)
    outer = [d for d in space.dims if d is not lane]
    if lane.extent >= CROSSING:
        for d in outer:
            if d.extent >= CROSSING and space.crosses(d, lane):
                if not work.threads:
                    return _tiled(work, space, lane, d)
                turned = lower_turned(work, space, lane, d)
                return turned or _tiled_group(work, space, lane, d)
    beside = lower_beside(work, space, lane)
    if beside is not None:
        return beside
    if outer and lane.extent < work.threads:
        return _by_vectors(work, space, lane, outer) or _flat(work, space)
    short = lane.extent < work.share() and work.target.subgroup_size > 0
    if outer and short and work.rows_at_once() > 1:
        return _several_rows(work, space, lane, outer)
    return _blocked(work, space, lane, outer)


def _lane(work: Work, space: Space) -> Dim:
    """The innermost loop, unless it is too short to fill a vector and another does better."""
    width = work.lanes()
    last = space.dims[-1]
    if last.extent * 2 > width:
        return last
    return max(space.dims, key=lambda d: (min(d.extent, 4 * width), d.axis))


def _scalar(work: Work, space: Space) -> LoweredKernel:
    e = work.emitter()
    body = _stores(work, space, e, {})
    return e.finish("scalar", [ir.For(ir.var("g"), ZERO, ONE, "grid", body)], 1, work.notes)


def _held(work: Work, space: Space, lane: Dim, outer: list[Dim]) -> LoweredKernel | None:
    """Many small groups, whose threads have a vector or two: some load while others store."""
    width = vector_width(work, lane.extent)
    if not work.target.vector_access_bytes or width * itemsize(work) < ACCESS // 2:
        return None
    e = work.emitter()
    g, t = ir.var("g"), ir.var("t")
    number, row = g, ZERO
    many = e.scalar_arg(0)
    if outer:
        number, row = ir.irem(g, many), ir.idiv(g, many)
    size = e.scalar_arg(0)
    extent = e.dim(lane.extent)
    start = ir.mul(number, size)
    j = ir.add(start, t)
    e.extents[j] = extent
    stores = _stores(work, space, e, {**digits(e, row, outer), lane: j})
    found = {x for s in stores if isinstance(s, ir.Store) for x in ir.walk(s.value, lambda x: True)}
    masked = any(x.op == "load" and len(x.args) > 1 for x in found)
    if masked or len(found) > LONG:
        return None
    reads = [x for x in found if x.op == "load" and t in ir.walk(x.args[0], lambda x: True)]
    e.block_size, vectors = LITTLE if len(found) <= LIGHT else MORE
    if len(reads) > 1:  # one of each: the assembler moves further ones behind what it can compute
        vectors = 1
    share = e.block_size * vectors * width
    blocks = blocks_of(lane.extent, share)
    e.scalar_args[:] = [blocks, share]
    exact = lane.extent % share == 0
    end = ir.const(share) if exact else ir.minimum(size, ir.sub(extent, start))
    loop = ir.For(t, ZERO, end, "lanes", stores, unroll=vectors, width=width, resident=True)
    return e.grid_kernel("map", g, [loop], blocks * count(outer), work.notes)


def _by_vectors(work: Work, space: Space, lane: Dim, outer: list[Dim]) -> LoweredKernel | None:
    """Rows that are too short for a group, several of them: every thread has a vector of one. None
    where some memory does not lie in whole vectors."""
    width = vector_width(work, lane.extent)
    if not space.in_runs(lane, width):
        return None
    if not work.target.vector_access_bytes or width * itemsize(work) < ACCESS // 2:
        return None
    e = work.emitter()
    e.alignment = width
    e.block_size = LITTLE[0]
    per_block = max(1, e.block_size * width // lane.extent)
    g, t = ir.var("g"), ir.var("t")
    extent, total, rows = e.dim(lane.extent), extent_of(e, outer), e.scalar_arg(per_block)
    first = ir.mul(g, rows)
    j = ir.irem(t, extent)
    e.extents[j] = extent
    at = digits(e, ir.add(first, ir.idiv(t, extent)), outer)
    stores = _stores(work, space, e, {**at, lane: j})
    found = {x for s in stores if isinstance(s, ir.Store) for x in ir.walk(s.value, lambda x: True)}
    if any(x.op == "load" and len(x.args) > 1 for x in found) or len(found) > LONG:
        return None
    exact = count(outer) % per_block == 0 and per_block * lane.extent == e.block_size * width
    end = ir.mul(ir.minimum(rows, ir.sub(total, first)), extent)
    if exact:
        end = ir.const(e.block_size * width)
    loop = ir.For(t, ZERO, end, "lanes", stores, unroll=1, width=width, resident=True)
    return e.grid_kernel("map", g, [loop], blocks_of(count(outer), per_block), work.notes)


def _blocked(work: Work, space: Space, lane: Dim, outer: list[Dim]) -> LoweredKernel:
    held = _held(work, space, lane, outer)
    if held is not None:
        return held
    share, threads = work.share(), work.threads
    columns = min(lane.extent, max(share, 256))
    if lane.extent - columns < columns // 2:  # no short rest
        columns = lane.extent
    column_blocks = blocks_of(lane.extent, columns)
    rows = max(1, share // columns) if outer else 1
    e = work.emitter()
    e.block_size = threads
    g = ir.var("g")
    width = e.scalar_arg(columns)
    extent = e.dim(lane.extent)
    j = e.variable("j", extent)
    body: list[Stmt]
    if not outer:
        stores = _stores(work, space, e, {lane: j})
        body = [ir.For(j, *block(ir.mul(g, width), width, extent), "lanes", stores)]
    else:
        row_block, span = g, (ZERO, extent)
        if column_blocks > 1:
            many = e.scalar_arg(column_blocks)
            row_block = ir.idiv(g, many)
            span = block(ir.mul(ir.irem(g, many), width), width, extent)
        per = e.scalar_arg(rows)
        total = extent_of(e, outer)
        r = ir.var("r")
        stores = _stores(work, space, e, {**digits(e, r, outer), lane: j})
        inner = ir.For(j, *span, "lanes", stores)
        body = [ir.For(r, *block(ir.mul(row_block, per), per, total), "serial", [inner])]
    return e.grid_kernel("map", g, body, column_blocks * blocks_of(count(outer), rows), work.notes)


def _several_rows(work: Work, space: Space, lane: Dim, outer: list[Dim]) -> LoweredKernel:
    """Rows that are too short to keep enough loads of a group under way: some of them at once."""
    at_once = work.rows_at_once()
    e = work.emitter()

    def idle(threads: int) -> int:
        return -lane.extent % (threads * VECTOR)

    sizes = (work.threads, work.threads // 2, work.threads // 4)
    e.block_size = min((n for n in sizes if n >= 32), key=idle, default=work.threads)
    g, r, rest = ir.var("g"), ir.var("r"), ir.var("rest")
    extent, total = e.dim(lane.extent), extent_of(e, outer)
    start, stop = block(ir.mul(g, ir.const(at_once)), ir.const(at_once), total)
    whole = ir.add(start, ir.const(at_once)) <= total

    def stores(row: ir.Expr, tag: str) -> ir.Stmt:
        j = e.variable(f"j{tag}", extent)
        count = at_once if not tag else 1
        rows = [ir.add(row, ir.const(k)) for k in range(count)]
        found = [_stores(work, space, e, {**digits(e, x, outer), lane: j}) for x in rows]
        every = [s for one in found for s in one]
        return ir.For(j, ZERO, extent, "lanes", [*_loads(every, tag), *every])

    body: list[Stmt] = [
        ir.If(whole, [ir.Let(r, start), stores(r, "")]),
        ir.If(~whole, [ir.For(rest, start, stop, "serial", [stores(rest, "rest")])]),
    ]
    return e.grid_kernel("map", g, body, blocks_of(count(outer), at_once), work.notes)


def _loads(stores: list[Stmt], tag: str) -> list[Stmt]:
    """Names for all that stores read, to be written before them: loads that do not wait for each
    other are under way at the same time."""
    found: dict[ir.Expr, None] = {}
    for s in stores:
        assert isinstance(s, ir.Store)
        for e in ir.walk(s.value, lambda e: e.op != "load"):
            if e.op == "load" and len(e.args) == 1:
                found[e] = None
    return [ir.Let(ir.var(f"l{tag}{i}", e.dtype), e) for i, e in enumerate(found)]


def _flat(work: Work, space: Space) -> LoweredKernel:
    """All loops as one: rows are too short to keep a group of threads busy."""
    e = work.emitter()
    g = ir.var("g")
    total = extent_of(e, space.dims)
    i = e.variable("i", total)
    stores = _stores(work, space, e, digits(e, i, space.dims))
    size = e.scalar_arg(work.share())
    loop = ir.For(i, *block(ir.mul(g, size), size, total), "lanes", stores)
    return e.grid_kernel("map", g, [loop], blocks_of(count(space.dims), work.share()), work.notes)


def _tiled_group(work: Work, space: Space, lane: Dim, cross: Dim) -> LoweredKernel:
    """The same with a lane for every element of the tile."""
    rest = [d for d in space.dims if d not in (lane, cross)]
    across, down = blocks_of(lane.extent, GROUP_SIDE), blocks_of(cross.extent, GROUP_SIDE)
    e = work.emitter()
    g, t = ir.var("g"), ir.var("t")
    lane_tiles, cross_tiles = e.scalar_arg(across), e.scalar_arg(down)
    side = ir.const(GROUP_SIDE)
    tile = ir.idiv(g, lane_tiles)
    i = ir.add(ir.mul(ir.irem(tile, cross_tiles), side), ir.idiv(t, side))
    j = ir.add(ir.mul(ir.irem(g, lane_tiles), side), ir.irem(t, side))
    at = digits(e, ir.idiv(tile, cross_tiles), rest)
    lane_extent, cross_extent = e.dim(lane.extent), e.dim(cross.extent)
    e.extents[i], e.extents[j] = cross_extent, lane_extent
    stores = _stores(work, space, e, {**at, lane: j, cross: i})
    inside = ir.If((i < cross_extent) & (j < lane_extent), stores)
    body: list[Stmt] = [ir.For(t, ZERO, ir.const(GROUP_SIDE**2), "lanes", [inside])]
    return e.grid_kernel("tiled_map", g, body, across * down * count(rest), work.notes)


def _tiled(work: Work, space: Space, lane: Dim, cross: Dim) -> LoweredKernel:
    """Square tiles over the two crossing loops, so that each cache line is read once."""
    rest = [d for d in space.dims if d not in (lane, cross)]
    across, down = blocks_of(lane.extent, SIDE), blocks_of(cross.extent, SIDE)
    e = work.emitter()
    g = ir.var("g")
    lane_tiles, cross_tiles = e.scalar_arg(across), e.scalar_arg(down)
    size = e.scalar_arg(SIDE)
    t = ir.idiv(g, lane_tiles)
    j0 = ir.mul(ir.irem(g, lane_tiles), size)
    i0 = ir.mul(ir.irem(t, cross_tiles), size)
    at = digits(e, ir.idiv(t, cross_tiles), rest)
    lane_extent, cross_extent = e.dim(lane.extent), e.dim(cross.extent)
    i, j = e.variable("i", cross_extent), e.variable("j", lane_extent)
    stores = _stores(work, space, e, {**at, lane: j, cross: i})
    inner = ir.For(j, *block(j0, size, lane_extent), "lanes", stores)
    body: list[Stmt] = [ir.For(i, *block(i0, size, cross_extent), "serial", [inner])]
    return e.grid_kernel("tiled_map", g, body, across * down * count(rest), work.notes)


def _stores(work: Work, space: Space, e: Emitter, at: At) -> list[Stmt]:
    index = space.index(at)
    out: list[Stmt] = []
    for m in work.stored:
        point = index_of(m.shape, index)
        out += e.store(m, point, e.value(m, point))
    return out
