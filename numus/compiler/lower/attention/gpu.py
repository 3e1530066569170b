"""GPU schedules of attention, in order of preference: wgmma, SIMT, the CPU's loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.updated_rows import without_updates
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.affine import accesses
from numus.compiler.lower.attention.cpu import CpuBackward, CpuForward
from numus.compiler.lower.attention.problem import AttentionKernel, AttentionProblem, Reader
from numus.compiler.lower.axis import temporary
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import InOrder, Schedule, select
from numus.dtypes import DType
from numus.ir import Expr
from numus.ir.substitution import substitute
from numus.kernels.attention.gpu import (
    simt_backward,
    simt_forward,
    split_combine,
    split_keys,
    wgmma_backward,
    wgmma_forward,
    wgmma_pipelined,
)
from numus.kernels.attention.gpu.block import BwdOperands, FwdOperands, Sizes, Tiling
from numus.kernels.common.smem_tiles import (
    VECTOR,
    Matrix,
    RowUpdate,
    StridedMatrix,
    Vector,
    round_up,
)
from numus.kernels.math import exp_decay
from numus.target import Target

ZERO = ir.const(0)


@dataclass(frozen=True)
class GpuSchedule(InOrder):
    """A kernel with compile-time tiles, supported where `tiling` finds some that fit."""

    name: str
    tiling: Callable[[AttentionProblem], Tiling | None]
    kernel: Callable[..., AttentionKernel]
    wgmma: bool

    def supports(self, problem: AttentionProblem, target: Target) -> bool:
        return self.tiling(problem) is not None

    def lower(self, problem: AttentionProblem) -> Kernels:
        p, tiling = problem, self.tiling(problem)
        assert tiling is not None
        layouts = p.group.input_layouts(p.layouts)
        e = Emitter(layouts, block_size=tiling.threads)
        reader = Reader(p, e, _compute_dtype(p))
        matrix, vector = partial(_matrix, reader, layouts), partial(_vector, reader, layouts)
        tasks = -(-_resident_rows(p)[0] // tiling.rows)
        queries, keys, head_dim, value_dim = p.dims
        grid, counts = p.batch * tasks, {}
        if tiling.persistent:
            grid = min(grid, p.target.num_cores)
            rounds = -(-p.batch * tasks // grid)
            counts = {"all_tasks": p.batch * tasks, "blocks": grid, "rounds": rounds}
        sizes = Sizes(
            queries=e.dim(queries),
            keys=e.dim(keys),
            head_dim=ZERO if p.is_forward else e.dim(head_dim),
            value_dim=e.dim(value_dim),
            tasks=e.scalar_arg(tasks),
            **{name: e.scalar_arg(n) for name, n in counts.items()},
        )
        operands: FwdOperands | BwdOperands
        if p.is_forward:
            operands = reader.forward_operands(matrix)
        else:
            operands = reader.backward_operands(matrix, vector)
        dtype = p.wgmma_dtype if self.wgmma else _compute_dtype(p)
        kernel = self.kernel(tiling, sizes, dtype, ir.var("g"), operands)
        return [reader.kernel(self.name, kernel, grid)]


def _compute_dtype(p: AttentionProblem) -> DType:
    return dt.compute_dtype(p.inputs["q"].dtype)


def _resident_rows(p: AttentionProblem) -> tuple[int, int]:
    """Rows of which a thread block keeps a tile, and streamed rows."""
    queries, keys, *_ = p.dims
    return (queries, keys) if p.is_forward or "q" in p.outputs else (keys, queries)


def _has_elements(p: AttentionProblem) -> bool:
    *_, head_dim, value_dim = p.dims
    return head_dim > 0 and (value_dim > 0 or list(p.outputs) == ["lse"])


def _wgmma_forward(p: AttentionProblem) -> Tiling | None:
    if p.wgmma_dtype is None or not _has_elements(p):
        return None
    return wgmma_forward.choose(p.target, *p.dims, p.score_operands)


def _wgmma_pipelined(p: AttentionProblem) -> Tiling | None:
    if p.wgmma_dtype is None or "out" not in p.outputs:
        return None
    return wgmma_pipelined.choose(p.target, *p.dims, p.score_operands, p.causal)


def _simt_forward(p: AttentionProblem) -> Tiling | None:
    if not p.target.subgroup_size or not _has_elements(p):
        return None
    return simt_forward.choose(p.target, _compute_dtype(p), *p.dims)


def _prefers_wgmma(p: AttentionProblem) -> bool:
    return p.wgmma_dtype is not None and max(p.dims[2:]) <= wgmma_forward.MAX_HEAD_DIM


def _wgmma_backward(p: AttentionProblem) -> Tiling | None:
    if not _prefers_wgmma(p) or not _has_elements(p):
        return None
    *_, head_dim, value_dim = p.dims
    columns = sum(round_up(value_dim if name == "v" else head_dim, 16) for name in p.outputs)
    needs = (columns, list(p.outputs) != ["v"], p.score_operands)
    return wgmma_backward.choose(p.target, head_dim, value_dim, *needs)


def _simt_backward(p: AttentionProblem) -> Tiling | None:
    # gradients that wgmma cannot accumulate together, it computes one by one
    if _prefers_wgmma(p) or not p.target.subgroup_size or not _has_elements(p):
        return None
    dims = (*_resident_rows(p), *p.dims[2:])
    return simt_backward.choose(p.target, _compute_dtype(p), *dims, list(p.outputs))


class SplitKeys(InOrder):
    """Few queries of many keys: splits of the keys, which clusters combine, or a second kernel."""

    name = "attention_split_keys"

    def supports(self, problem: AttentionProblem, target: Target) -> bool:
        has_output = "out" in problem.outputs and problem.is_forward
        return has_output and _has_elements(problem) and self._tiling(problem) is not None

    def _tiling(self, p: AttentionProblem) -> split_keys.SplitTiling | None:
        itemsize = max(p.inputs[name].dtype.itemsize for name in "qkv")
        return split_keys.choose(p.target, itemsize, *p.dims)

    def lower(self, problem: AttentionProblem) -> Kernels:
        p, tiling = problem, self._tiling(problem)
        assert tiling is not None
        queries, keys, _, value_dim = p.dims
        splits = split_keys.split_count(p.target, tiling, p.batch, keys)
        chunk = round_up(-(-keys // splits), tiling.step)
        splits = -(-keys // chunk)
        dtype = _compute_dtype(p)
        approximate = p.target.approx_math and p.wgmma_dtype is not None
        decay = split_combine.approx_decay if approximate else exp_decay
        e, reader, operands = self._operands(p, tiling.threads)
        e.resident_blocks = tiling.resident_blocks
        sizes = self._sizes(e, p, splits, chunk)
        given = (tiling, sizes, dtype, ir.var("g"), operands)
        last = (_early(p), decay)
        if splits <= p.target.max_cluster_size:
            alone = split_keys.SplitKeysKernel(*given, splits, *last)
            e.cluster_blocks = splits
            return [reader.kernel(self.name, alone, p.batch * splits)]
        shapes = ((p.batch, queries, splits),) * 2 + ((p.batch, queries, splits, value_dim),)
        memory = [temporary(shape, dtype) for shape in shapes]
        partials = split_combine.Partials(*(e.buffer(x, "write") for x in memory))
        first = split_keys.SplitKeysKernel(*given, partials, *last)
        steps = [reader.kernel(self.name, first, p.batch * splits)]
        threads = split_keys.TUNING.combine_threads
        e, reader, operands = self._operands(p, threads)
        sizes = self._sizes(e, p, splits, chunk)
        partials = split_combine.Partials(*(e.buffer(x) for x in memory))
        counts = (queries, splits)
        second = split_combine.CombineKernel(
            sizes, dtype, ir.var("g"), operands, partials, counts, threads, decay
        )
        return [*steps, reader.kernel("attention_combine", second, p.batch * queries)]

    def _operands(self, p: AttentionProblem, threads: int) -> tuple[Emitter, Reader, FwdOperands]:
        layouts = p.group.input_layouts(p.layouts)
        e = Emitter(layouts, block_size=threads)
        reader = Reader(p, e, _compute_dtype(p))
        return e, reader, reader.forward_operands(partial(_matrix, reader, layouts, updates=True))

    def _sizes(
        self, e: Emitter, p: AttentionProblem, splits: int, chunk: int
    ) -> split_combine.SplitSizes:
        _, keys, head_dim, value_dim = map(e.dim, p.dims)
        return split_combine.SplitSizes(
            keys, head_dim, value_dim, e.scalar_arg(splits), e.scalar_arg(chunk)
        )


def _early(p: AttentionProblem) -> split_keys.Early:
    if not p.target.dependent_launch:
        return split_keys.Early.NOTHING
    for x in (p.inputs["k"], p.inputs["v"]):
        around = without_updates(x, p.layouts)
        while around.kind == "view" and around not in p.layouts:
            around = around.inputs[0]
        if around.kind != "leaf":
            return split_keys.Early.PREFETCH
    return split_keys.Early.LOAD


FORWARD: Sequence[Schedule[AttentionProblem]] = (
    SplitKeys(),
    GpuSchedule("attention_wgmma", _wgmma_pipelined, wgmma_pipelined.PipelinedKernel, True),
    GpuSchedule("attention_wgmma", _wgmma_forward, wgmma_forward.ForwardKernel, True),
    GpuSchedule("attention_simt", _simt_forward, simt_forward.ForwardKernel, False),
    CpuForward(),
)
BACKWARD: Sequence[Schedule[AttentionProblem]] = (
    GpuSchedule("attention_wgmma_grad", _wgmma_backward, wgmma_backward.BackwardKernel, True),
    GpuSchedule("attention_simt_grad", _simt_backward, simt_backward.BackwardKernel, False),
)


def lower_attention(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    problem = AttentionProblem.of(group, layouts, target)
    if problem.is_forward:
        return select(FORWARD, problem).lower(problem)
    return _lower_backward(problem)


def _lower_backward(problem: AttentionProblem) -> Kernels:
    """A kernel for dq and one for dk and dv, or one for each where a thread cannot hold both."""
    parts = [problem.only("q"), problem.only("k", "v")]
    kernels: Kernels = []
    while parts:
        part = parts.pop(0)
        if not part.outputs:
            continue
        if any(s.supports(part, part.target) for s in BACKWARD):
            kernels += select(BACKWARD, part).lower(part)
        elif len(part.outputs) > 1:
            parts = [*(part.only(name) for name in part.outputs), *parts]
        else:
            return CpuBackward().lower(problem)
    return kernels


# -- operands -------------------------------------------------------------------------------------


def _matrix(reader: Reader, layouts: Layouts, name: str, updates: bool = False) -> Matrix:
    """`updates`: of a matrix with a replaced row, the schedule reads memory and that row apart."""
    x, e = reader.inputs[name], reader.e
    around = without_updates(x, layouts) if updates else x
    columns, stride = e.dim(x.shape[2]), _row_stride(around, layouts)

    def read(n: Expr, row: Expr, column: Expr, mask: Expr) -> Expr:
        return reader.element(name, n, row, column, mask=mask)

    update = None if around is x else _row_update(reader, name)
    if stride is None or stride % VECTOR or (update is None and around is not x):
        return Matrix(read, columns, None)
    return Matrix(read, columns, _strided(reader, around, e.dim(stride)), update)


def _row_update(reader: Reader, name: str) -> RowUpdate | None:
    """The replaced row of a matrix; None where it is not a whole row, at one place."""
    x, e = reader.inputs[name], reader.e
    n, row, column = (e.variable(f"{name}_at{i}", e.dim(m)) for i, m in enumerate(x.shape))
    found = reader.element(name, n, row, column)
    if found.op != "select" or found.args[0].op != "eq":
        return None
    is_there, new, _ = found.args
    at = is_there.args
    varies = [{n, row, column} & {*ir.walk(y, lambda y: True)} for y in (*at, new)]
    if varies[0]:
        at, varies[:2] = at[::-1], varies[1::-1]
    if varies[0] or row in varies[2]:
        return None
    return RowUpdate(
        at[0].cast(dt.int64),
        lambda k, i: substitute(at[1], {n: k, row: i}),
        lambda k, j: substitute(new, {n: k, column: j}),
    )


def _vector(reader: Reader, layouts: Layouts, name: str) -> Vector:
    def read(n: Expr, row: Expr, mask: Expr) -> Expr:
        return reader.element(name, n, row, mask=mask)

    x = reader.inputs[name]
    strided = _row_stride(x, layouts) is not None
    return Vector(read, _strided(reader, x, ZERO) if strided else None)


def _strided(reader: Reader, x: Value, stride: Expr) -> StridedMatrix:
    def first_load(n: Expr) -> Expr:
        index = [n, *[ZERO] * (len(x.shape) - 1)]
        at = tuple(ZERO if m == 1 else i for m, i in zip(x.shape, index, strict=True))
        found: Expr = reader.e.value(x, at)
        return found

    def first(n: Expr) -> Expr:
        return first_load(n).args[0]

    def aligned(n: Expr) -> Expr:
        start = ir.address(buffer) + first(n) * x.dtype.itemsize
        return (start & ir.const(15)).eq(0)

    buffer: ir.Buffer = first_load(ZERO).attr
    return StridedMatrix(buffer, first, stride, aligned)


def _row_stride(x: Value, layouts: Layouts) -> int | None:
    """Stride of rows in memory; None for expressions, and for rows that are not contiguous."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.dim(n)) for i, n in enumerate(x.shape)]
    inner, column = set(names[1:]), names[-1]
    value = e.value(x, tuple(names))
    if not isinstance(value, Expr) or value.op != "load" or len(value.args) > 1:
        return None
    strides = [p for p in accesses(e) if inner & p.keys()]
    if len(strides) != 1 or strides[0].get(column, 0) != 1:
        return None
    return strides[0].get(names[1], 0)
