"""The schedule of attention of few queries: splits of the keys, which clusters combine, or a second
kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.updated_rows import without_updates
from numus.compiler.lower.attention import gpu_operands
from numus.compiler.lower.attention.problem import AttentionProblem, Reader
from numus.compiler.lower.attention.shared_keys import as_rows, sharing
from numus.compiler.lower.axis import temporary
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import InOrder
from numus.kernels.attention.gpu import split_block, split_combine, split_keys, split_keys_mma
from numus.kernels.attention.gpu.block import FwdOperands
from numus.kernels.common.smem_tiles import round_up
from numus.kernels.math import exp_decay
from numus.target import Target


@dataclass(frozen=True, slots=True)
class SplitTuning:
    """Measured on one H200."""

    max_splits: int = 32  # of a head, which the second kernel reads
    cluster_steps: int = 4  # of a block; for more, a second kernel combines more splits
    # Of the blocks that run at a time, in clusters: more leave gaps in groups of multiprocessors,
    # and the last clusters wait for the first ones to end.
    cluster_share: float = 0.65
    waves: int = 4  # of blocks, where there are more heads than blocks at a time
    wave_steps: int = 8  # at least, of a block of these
    combine_threads: int = 64
    min_busy: float = 0.75  # of the multiprocessors, by the clusters of all heads
    l2_reads: int = 4  # keys are read again while what all read is at most this part of L2
    max_fixed_size: int = 257  # below it, sizes other than the number of keys are constants


TUNING = SplitTuning()


@dataclass(frozen=True)
class Split:
    """Heads whose queries share a matrix, and how its keys are split."""

    heads: int
    tiling: split_block.SplitTile
    kernel: Any
    splits: int
    chunk: int  # keys of a split
    in_cluster: bool  # whose blocks combine the splits


class SplitKeys(InOrder):
    """Few queries of many keys: splits of the keys, which clusters combine, or a second kernel."""

    name = "attention_split_keys"

    def supports(self, problem: AttentionProblem, target: Target) -> bool:
        *_, head_dim, value_dim = problem.dims
        if "out" not in problem.outputs or not problem.is_forward or not (head_dim and value_dim):
            return False
        return any(_tiling(problem, 1, strided) for strided in (False, _is_strided(problem)))

    def lower(self, problem: AttentionProblem) -> Kernels:
        p = problem
        found = plan(p)
        heads, tiling, splits = found.heads, found.tiling, found.splits
        _, _, _, value_dim = p.dims
        batch, queries = p.batch // heads, p.dims[0] * heads
        dtype = dt.compute_dtype(p.inputs["q"].dtype)
        approximate = p.target.approx_math and p.wgmma_dtype is not None
        decay = split_combine.approx_decay if approximate else exp_decay
        e, reader, operands = self._operands(p, tiling.threads, heads)
        e.resident_blocks = tiling.resident_blocks
        sizes = self._sizes(e, p, found)
        given = (tiling, sizes, dtype, ir.var("g"), operands)
        last = (_early(p), decay)
        if found.in_cluster:
            alone = found.kernel(*given, splits, *last)
            e.cluster_blocks = splits
            return [reader.kernel(self.name, alone, batch * splits)]
        shapes = ((batch, queries, splits),) * 2 + ((batch, queries, splits, value_dim),)
        memory = [temporary(shape, dtype) for shape in shapes]
        partials = split_combine.Partials(*(e.buffer(x, "write") for x in memory))
        first = found.kernel(*given, partials, *last)
        steps = [reader.kernel(self.name, first, batch * splits)]
        threads = TUNING.combine_threads
        e, reader, operands = self._operands(p, threads, heads)
        sizes = self._sizes(e, p, found)
        partials = split_combine.Partials(*(e.buffer(x) for x in memory))
        counts = (queries, splits)
        second = split_combine.CombineKernel(
            sizes, dtype, ir.var("g"), operands, partials, counts, threads, decay
        )
        return [*steps, reader.kernel("attention_combine", second, batch * queries)]

    def _operands(
        self, p: AttentionProblem, threads: int, heads: int
    ) -> tuple[Emitter, Reader, FwdOperands]:
        layouts = p.group.input_layouts(p.layouts)
        e = Emitter(layouts, block_size=threads)
        # what a model has of heads: divisions by it would delay loads that wait for earlier kernels
        e.fixed = set(range(TUNING.max_fixed_size)) - {p.dims[1], _visible_keys(p)}
        reader = Reader(p, e, dt.compute_dtype(p.inputs["q"].dtype))
        matrix = partial(gpu_operands.matrix, reader, layouts, updates=True)
        return e, reader, as_rows(reader.forward_operands(matrix), heads, p.dims[0])

    def _sizes(self, e: Emitter, p: AttentionProblem, found: Split) -> split_combine.SplitSizes:
        *_, head_dim, value_dim = map(e.dim, p.dims)
        splits = ir.const(found.splits) if found.in_cluster else e.scalar_arg(found.splits)
        keys, chunk = e.dim(_visible_keys(p)), e.scalar_arg(found.chunk)
        return split_combine.SplitSizes(keys, head_dim, value_dim, splits, chunk)


def plan(p: AttentionProblem) -> Split:
    """As many heads share a matrix as have room in a tile. Fewer, where the splits that one cluster
    combines would leave multiprocessors idle, and L2 serves the keys again."""
    target, keys = p.target, _visible_keys(p)
    layouts, strided = p.group.input_layouts(p.layouts), _is_strided(p)
    group = math.gcd(*(sharing(p.inputs[x], layouts) for x in "kv"))
    fitting = [n for n in range(1, group + 1) if group % n == 0 and _tiling(p, n, strided)]
    heads = fitting[-1]
    nbytes = p.batch // group * sum(p.inputs[x].dtype.itemsize * keys * n for x, n in _widths(p))
    clusters = target.max_cluster_size
    again = target.l2_bytes // max(1, TUNING.l2_reads * nbytes) if clusters > 1 else 0
    few = TUNING.min_busy * target.num_cores
    while heads % 2 == 0 and p.batch // heads * clusters < few and again > 1:
        heads, again = heads // 2, again // 2
    found = _tiling(p, heads, strided)
    assert found is not None
    tiling, kernel = found
    batch = p.batch // heads
    splits, in_cluster = _split_count(target, tiling, batch, keys)
    chunk = round_up(-(-keys // splits), tiling.step)
    splits = -(-keys // chunk)
    return Split(heads, tiling, kernel, splits, chunk, in_cluster or splits == 1)


def _visible_keys(p: AttentionProblem) -> int:
    """Keys that the last query sees."""
    return min(p.dims[:2]) if p.causal else p.dims[1]


def _widths(p: AttentionProblem) -> list[tuple[str, int]]:
    return list(zip("kv", p.dims[2:], strict=True))


def _tiling(
    p: AttentionProblem, heads: int, strided: bool
) -> tuple[split_block.SplitTile, Any] | None:
    """Of the queries of a number of heads: for tensor cores, where they multiply the operands."""
    queries, *rest = p.dims
    dtypes = {p.inputs[name].dtype for name in "qkv"}
    multiplied = dtypes <= {dt.bfloat16, dt.float16} and {x.name for x in dtypes} <= p.target.mma
    if len(dtypes) == 1 and multiplied and strided:
        on_tensor_cores = split_keys_mma.choose(p.target, queries * heads, *rest)
        if on_tensor_cores is not None:
            return on_tensor_cores, split_keys_mma.SplitKeysMmaKernel
    itemsize = max(x.itemsize for x in dtypes)
    teams = split_keys.choose(p.target, itemsize, queries * heads, *rest)
    return None if teams is None else (teams, split_keys.SplitKeysKernel)


def _is_strided(p: AttentionProblem) -> bool:
    """Threads can load vectors of keys and values, where they are aligned."""
    layouts = p.group.input_layouts(p.layouts)
    reader = Reader(p, Emitter(layouts), dt.compute_dtype(p.inputs["q"].dtype))
    found = [gpu_operands.matrix(reader, layouts, name, updates=True) for name in "kv"]
    return all(x.memory is not None for x in found)


def _split_count(
    target: Target, tiling: split_block.SplitTile, batch: int, keys: int
) -> tuple[int, bool]:
    """Blocks of a head: as many as run at a time, each with work for all of its warps; and whether
    they are a cluster, which combines them without a second kernel."""
    at_once, most = target.num_cores * tiling.resident_blocks, -(-keys // tiling.step)
    if batch > at_once:
        wanted = -(-TUNING.waves * at_once // batch)
        return max(1, min(wanted, most // TUNING.wave_steps)), False
    wanted, clusters = min(at_once // batch, most), target.max_cluster_size
    if clusters > 1 and most <= clusters * TUNING.cluster_steps:
        without_gaps = int(at_once * TUNING.cluster_share) // batch
        return max(1, min(wanted, clusters, without_gaps)), True
    return min(wanted, TUNING.max_splits), False


def _early(p: AttentionProblem) -> split_block.Early:
    if not p.target.dependent_launch:
        return split_block.Early.NOTHING
    for x in (p.inputs["k"], p.inputs["v"]):
        around = without_updates(x, p.layouts)
        while around.kind == "view" and around not in p.layouts:
            around = around.inputs[0]
        if around.kind != "leaf":
            return split_block.Early.PREFETCH
    return split_block.Early.LOAD
