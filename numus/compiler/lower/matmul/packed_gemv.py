"""Schedules of products of floats with packed codes: tensor cores for some vectors, rows of a GPU's
warp for one, rows of a CPU's task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.gpu_operands import matrix_layout, vector_operand
from numus.compiler.lower.matmul.packed import PackedGemvProblem, header_scale
from numus.compiler.lower.matmul.packed_ring import lower_ring, uses_ring
from numus.compiler.lower.matmul.problem import store_epilogue
from numus.compiler.lower.matmul.row_products import (
    RowEpilogues,
    RowsAhead,
    ahead_of_wait,
    products_of,
    statistics,
    vector_loader,
)
from numus.compiler.lower.schedule import Candidate, family
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.gemv import GemvSizes
from numus.kernels.matmul.gpu.packed import byte_mma as byte_kernel
from numus.kernels.matmul.gpu.packed import mma_sync as mma_kernel
from numus.kernels.matmul.gpu.packed.block_gemv import TUNING as BLOCKS
from numus.kernels.matmul.gpu.packed.block_gemv import BlockGemv
from numus.kernels.matmul.gpu.packed.gemv import (
    QUAD,
    WARP,
    IntegerVector,
    PackedGemv,
    PackedGemvOperands,
    PackedGemvShape,
)
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, TRUE, when
from numus.kernels.matmul.gpu.row_gemv import TUNING as ROWS
from numus.kernels.matmul.gpu.row_gemv import LoadVector, block_threads, choose_rows, totals
from numus.kernels.matmul.packed import BYTES, MMA_STEP_CHUNKS, has_mma

ZERO = const(0)


def _uses_mma(p: PackedGemvProblem) -> bool:
    x = p.val.inputs[0]
    if not has_mma(p.packing, p.vectors, x.dtype, p.target) or p.chunks % QUAD:
        return False
    if p.vectors > 1:
        return True
    # warps compute a vector's norm and several products of it; few rows, short groups, headers
    alone = len(products_of(p.group)) == 1 and matrix_layout(x, p.layouts, 1) is not None
    whole = mma_kernel.step_groups(p.packing) == 1 and not p.packing.header
    return alone and whole and mma_kernel.fills_cores(p.target.num_cores, p.rows)


def _uses_bytes(p: PackedGemvProblem) -> bool:
    known = "int8" in p.target.mma and byte_kernel.supports(p.packing, p.vectors, p.chunks)
    return known and _uses_mma(p)


def _lower_bytes(p: PackedGemvProblem) -> Kernels:
    tile = byte_kernel.choose_tile(p.target.num_cores, p.rows, p.chunks)
    e = Emitter(p.layouts, block_size=tile.threads)
    e.resident_blocks = tile.resident_blocks
    blocks = -(-p.rows // byte_kernel.MMA_ROWS)
    return _lower_tiles(p, e, partial(byte_kernel.PackedByteMma, p.packing, tile), blocks)


def _lower_floats(p: PackedGemvProblem) -> Kernels:
    cores = p.target.num_cores
    tile = mma_kernel.choose_tile(cores, p.rows, p.vectors, p.chunks, p.packing)
    e = Emitter(p.layouts, block_size=tile.threads)
    blocks = -(-p.rows // tile.block_rows) * tile.vector_blocks
    return _lower_tiles(p, e, partial(mma_kernel.PackedMma, p.packing, tile), blocks)


def _lower_tiles(
    p: PackedGemvProblem,
    e: Emitter,
    make: Callable[..., byte_kernel.PackedByteMma | mma_kernel.PackedMma],
    blocks: int,
) -> Kernels:
    """Tiles of rows by blocks, whose first loads are ahead of all else."""
    x, block = p.val.inputs[0], ir.var("block")
    vectors, rows, k = (e.dim(n) for n in (p.vectors, p.rows, x.shape[2]))
    kernel = make(
        matrix=p.matrix(e, p.val),
        vectors=vector_operand(e, x, 1, x.dtype, MAX_ACCESS_BYTES // x.dtype.itemsize),
        sizes=GemvSizes(vectors, rows, k, e.scalar_arg(blocks)),
        chunks=(e.dim(p.chunks), p.chunks),
        block=block,
    )
    read = [p.val.inputs[1], *p.numbers(p.val)]
    ahead = ahead_of_wait(e, p.target, read, kernel.first_loads())

    def epilogue(batch: Expr, vector: Expr, row: Expr, value: Expr) -> list[Stmt]:
        return store_epilogue(e, p.group, (vector, row), value.cast(p.val.dtype))

    body, e.scratch = kernel.emit(epilogue)
    body = [*ahead, *body]
    return [e.grid_kernel("packed_gemv_mma", block, body, blocks, p.group.notes)]


def _lower_warps(p: PackedGemvProblem) -> Kernels:
    products = products_of(p.group)
    row_loads = -(-p.chunks // (WARP * QUAD))
    rows, unroll = choose_rows(p.target, len(products), p.rows, row_loads, p.vectors)
    e, block = Emitter(p.layouts, block_size=block_threads()), ir.var("block")
    x = p.val.inputs[0]
    matrices = [p.matrix(e, product) for product in products]
    paired, whole = x.dtype.itemsize == 2, p.chunks % (WARP * QUAD * unroll) == 0
    shape = PackedGemvShape(p.packing, p.vectors, rows, unroll, whole, paired)
    gemv = PackedGemv(shape, matrices, e.dim(p.rows), block)
    codes, operands = [product.inputs[1] for product in products], [m.codes for m in matrices]
    numbers = [x for product in products for x in p.numbers(product)]
    ahead = RowsAhead(codes, operands, gemv.rows, codes[0].shape[2], x, numbers)
    body = ahead.statements(e, p.target, gemv.first_loads(e.dim(p.chunks)))
    if p.vectors == 1:
        body += statistics(e, x, MAX_ACCESS_BYTES // x.dtype.itemsize)
    epilogues = RowEpilogues(e, p.group, gemv.rows)
    for v in range(p.vectors):
        for i in range(rows):
            names = totals(len(products), dt.float32, i, f"_of{v}")
            epilogues.add(v, i, dict(zip(products, names, strict=True)), 2)
    body += epilogues.loads()
    vectors = [_vector(x, v) for v in range(p.vectors)]
    found = [vector_loader(e, x, dt.float32, p.packing.values) for x in vectors]
    aligned = found[0][2]
    for fill, _, own in found:
        body += fill
        aligned = aligned & own
    operands_of_vector = PackedGemvOperands(lambda v: found[v][1], aligned)
    # codes of 4 bits are as fast as floats
    steps_are_whole = p.packing.bits == 8 and p.chunks % MMA_STEP_CHUNKS == 0
    if paired and steps_are_whole and byte_kernel.supports_planes(p.packing, p.vectors, p.chunks):
        planes = byte_kernel.planes_of_block(p.packing, ROWS.warps, p.chunks)
        planes_of = partial(_fill_planes, e, p, planes, found[0][1])
        body += when(aligned, lambda: [planes_of(True)])
        body += when(~aligned, lambda: [planes_of(False)])
        e.scratch += planes.scratch
        integers = IntegerVector(planes.words, planes.numbers)
        operands_of_vector = PackedGemvOperands(lambda v: found[v][1], TRUE, integers)
    body += gemv.body(operands_of_vector, e.dim(p.chunks))
    body += epilogues.statements(
        lambda lane: gemv.finish(lane, lambda v: lambda i: epilogues.stores(v, i))
    )
    blocks = -(-p.rows // (rows * ROWS.warps))
    return [e.grid_kernel("packed_gemv", block, body, blocks, p.group.notes)]


def _fill_planes(
    e: Emitter, p: PackedGemvProblem, planes: byte_kernel.BytePlanes, x: LoadVector, vectors: bool
) -> Stmt:
    """The vector's integers to shared memory."""
    values, name = p.packing.values, "planes" if vectors else "slow_planes"
    end, whole = e.dim(p.chunks) * values, p.chunks == planes.tile.span * planes.tile.steps

    def load(out: list[Stmt], at: Expr, tag: str) -> list[Expr]:
        first = at if whole else ir.minimum(at, end - byte_kernel.UNIT)
        starts = range(0, byte_kernel.UNIT, values)
        found = [v for i in starts for v in x(out, first + i, values, f"{tag}_{i}", vectors)]
        return found if whole else [byte_kernel.zeros_past_end(v, at, end) for v in found]

    return planes.fill(load, name)


def _vector(x: Value, number: int) -> Value:
    """One of the vectors."""
    if x.shape[1] == 1:
        return x
    start = ((0, number, 0), (1, 1, 1))
    return Value.fresh("slice", "view", (x,), start, (1, 1, x.shape[2]), x.dtype)


def _has_no_warps(p: PackedGemvProblem) -> bool:
    return p.target.subgroup_size == 0


def _lower_blocks(p: PackedGemvProblem) -> Kernels:
    packing, block, own = p.packing, ir.var("block"), ir.var("own")
    x, codes, *numbers = p.val.inputs
    layout = matrix_layout(codes, p.layouts, 1)
    quads = layout is not None and layout.k_major and not (packing.header or layout.ld % QUAD)
    run = QUAD if quads and not (p.chunks % QUAD or packing.group % QUAD) else 1
    threads, sums, words = BLOCKS.shape(run)
    rows = max(1, min(sums // p.vectors, p.rows))
    e, first = Emitter(p.layouts, block_size=threads), block * rows

    def word(row: Expr, at: Expr, beyond: int) -> Expr:
        if run == 1 or layout is None:
            found: Expr = e.value(codes, (ZERO, row, at))
            return found
        load = e.value(codes, (ZERO, ZERO, ZERO))  # from an address that is surely aligned
        return ir.load(load.attr, row * e.dim(layout.ld // QUAD) * QUAD + at + beyond)

    def number(which: int) -> Callable[[Expr, Expr], Expr]:
        if packing.header and not which:
            return header_scale(e, packing, codes)
        val = numbers[which]

        def read(row: Expr, group: Expr) -> Expr:
            at = (x if n > 1 else ZERO for x, n in zip((row, group), val.shape, strict=True))
            found: Expr = e.value(val, tuple(at)).cast(dt.float32)
            return found

        return read

    gemv = BlockGemv(
        *(packing, p.vectors, rows, threads, run, words),
        x=lambda v, k: e.value(x, (ZERO, const(v), k)).cast(dt.float32),
        word=word,
        scale=number(0),
        zero=number(1) if len(numbers) > 1 else None,
        first=first,
        count=e.dim(p.rows),
        accesses=e.dim(p.chunks // run),
        whole=p.chunks % (threads * run * words) == 0,
    )
    body, found = gemv.emit()
    stores: list[Stmt] = []
    for v, totals_of in enumerate(found):
        value = totals_of[-1]
        for i, total in reversed(list(enumerate(totals_of[:-1]))):
            value = ir.select(own.eq(i), total, value)
        result = value.cast(p.val.dtype)
        stores += store_epilogue(e, p.group, (const(v), first + own), result)
    stores = [ir.If(first + own < e.dim(p.rows), stores)]
    body.append(ir.For(own, ZERO, const(rows), "lanes", stores))
    return [e.grid_kernel("packed_gemv", block, body, -(-p.rows // rows), p.group.notes)]


def _lower_tasks(p: PackedGemvProblem) -> Kernels:
    """A row at a time, lanes along its words."""
    e, row, c = Emitter(p.layouts), ir.var("row"), ir.var("chunk")
    packing = p.packing
    group = c // packing.group if packing.group else ZERO
    word = e.value(p.val.inputs[1], (ZERO, row, c + group + 1 if packing.header else c))
    word = word ^ (128 * BYTES) if packing.signed else word
    matrix = p.matrix(e, p.val)
    scale, zero = matrix.scale(row, group), const(float(packing.zero), dt.float32)
    zero = zero if matrix.zero is None else matrix.zero(row, group)
    body: list[Stmt] = []
    for v in range(p.vectors):
        total = ir.Register(f"sum{v}", dt.float32, lanes=True)
        part = const(0.0, dt.float32)
        for j in range(packing.values):
            code = (word >> (packing.bits * j)) & ((1 << packing.bits) - 1)
            x = e.value(p.val.inputs[0], (ZERO, const(v), c * packing.values + j))
            part = ir.fma(code.cast(dt.float32) - zero, x.cast(dt.float32), part)
        added = ir.Set(total, ir.fma(part, scale, ir.read(total)))
        found = ir.var(f"total{v}", dt.float32)
        body += [
            ir.Set(total, const(0.0, dt.float32)),
            ir.For(c, ZERO, e.dim(p.chunks), "lanes", [added]),
            ir.Let(found, ir.lanes_reduce("add", total)),
            *store_epilogue(e, p.group, (const(v), row), found.cast(p.val.dtype)),
        ]
    return [e.grid_kernel("packed_gemv", row, body, p.rows, p.group.notes)]


lower_packed_gemv = family(PackedGemvProblem, Candidate("row per task", _lower_tasks))
lower_packed_gemv_gpu = family(
    PackedGemvProblem,
    Candidate("tensor cores, by a ring", lower_ring, uses_ring),
    Candidate("tensor cores, by bytes", _lower_bytes, _uses_bytes),
    Candidate("tensor cores", _lower_floats, _uses_mma),
    Candidate("rows per block", _lower_blocks, _has_no_warps),
    Candidate("rows per warp", _lower_warps),
)
