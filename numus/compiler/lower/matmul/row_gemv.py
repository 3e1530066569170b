"""The schedule of products with one vector by warps: several products in one kernel, and what the
vector takes of all its elements.

Fusion asks `streams_rows` which products it computes: only for these it puts several into a group,
and leaves reductions of the vector (the mean square of an RMSNorm) to the kernels that read it
(`fusion/row_products.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Layouts, Value, walk
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.early_prefetch import fetch_row, is_fetched
from numus.compiler.lower.loops.pointwise_transpose import substitute
from numus.compiler.lower.loops.stages import expand_sqdevs
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.matmul.gpu_operands import matrix_layout, vector_operand
from numus.compiler.lower.matmul.problem import MatmulProblem
from numus.compiler.lower.matmul.vector_expression import VectorExpression
from numus.compiler.lower.reducers import Reducer, reducer
from numus.compiler.lower.schedule import InOrder
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import row_gemv as kernel
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES
from numus.kernels.vendor.registry import preference
from numus.target import Target

ZERO = const(0)


def matrix_axis(product: Value) -> int:
    """1 where A is the matrix, 2 where B is; the other operand is the vector."""
    _, m, n = product.shape
    return 1 if m > n else 2


def vector_of(product: Value) -> Value:
    """The operand with a single row."""
    return product.inputs[2 - matrix_axis(product)]


def matrix_of(product: Value) -> Value:
    return product.inputs[matrix_axis(product) - 1]


def streams_rows(product: Value, layouts: Layouts, target: Target) -> bool:
    """Warps read the rows of a product's matrix, which is in memory, as vectors."""
    if not (target.subgroup_size and target.vector_access_bytes) or preference() == "vendor":
        return False
    batch, m, n = product.shape
    if product.kind != "contract" or batch != 1 or min(m, n) != 1:
        return False
    dtypes = (product.dtype, *(x.dtype for x in product.inputs))
    if any(d.kind != "float" or d.itemsize < 2 for d in dtypes):
        return False
    matrix, k = matrix_of(product), product.inputs[0].shape[2]
    tuning, itemsize = kernel.TUNING, matrix.dtype.itemsize
    if max(m, n) < tuning.min_rows or k * itemsize < tuning.min_row_bytes:
        return False
    layout = matrix_layout(matrix, layouts, matrix_axis(product))
    vector = MAX_ACCESS_BYTES // itemsize
    return layout is not None and layout.k_major and not (layout.ld % vector or k % vector)


def are_siblings(products: list[Value]) -> bool:
    """One kernel computes these products: of one vector, by matrices of one shape and dtype."""
    first = products[0]
    if len(products) > kernel.TUNING.max_products:
        return False
    vector, matrix = vector_of(first), matrix_of(first)
    return all(
        (p.shape, p.dtype, vector_of(p)) == (first.shape, first.dtype, vector)
        and (matrix_of(p).shape, matrix_of(p).dtype) == (matrix.shape, matrix.dtype)
        for p in products[1:]
    )


class RowGemv(InOrder):
    name = "row_gemv"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        return streams_rows(problem.matmul, problem.input_layouts, target)

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p = problem
        products = [m for m in p.group.members if m.kind == "contract"]
        matrices, rows = [matrix_of(m) for m in products], max(p.m, p.n)
        dtype = _dtype_of(p.matmul)
        itemsize = matrices[0].dtype.itemsize
        shape = kernel.choose_shape(p.target, itemsize, dtype, len(products), rows, p.k)
        e, block = Emitter(p.input_layouts, block_size=kernel.WARP), ir.var("block")
        e.packed_blocks = LOOPS.packed_rows
        axis = matrix_axis(p.matmul)
        operands = [vector_operand(e, x, axis, dtype, shape.vector) for x in matrices]
        aligned = operands[0].aligned
        for x in operands[1:]:
            aligned = aligned & x.aligned
        call = kernel.RowGemvCall(
            *(shape, e.dim(rows), e.dim(p.k), not p.k % (shape.step * shape.unroll)),
            *(operands, None, None, aligned),
        )
        row0 = block * shape.rows if shape.rows > 1 else block
        fetches = _fetches(e, call, matrices, row0, p.target)
        vector = vector_of(p.matmul)
        body = _statistics(e, call, vector)
        elements = VectorExpression(e, vector, shape.vector, "element")
        call.aligned = call.aligned & elements.aligned

        def load(out: list[Stmt], first: Expr, count: int, tag: str, vectors: bool) -> list[Expr]:
            """Names of the elements: several rows use each."""
            found = elements.load(out, first, count, tag, vectors)
            names = [ir.var(f"{tag}_{u}", dtype) for u in range(count)]
            out += ir.lets(names, [x.cast(dtype) for x in found])
            return names

        call.vector = load
        # what an epilogue adds comes from memory while the products are on their way
        epilogues: list[_Epilogue] = []
        for i in range(shape.rows):
            row = ir.var(f"row{i}")
            totals = dict(zip(products, kernel.totals(shape, i), strict=True))
            epilogues.append(_Epilogue(e, p, totals, row))
            body.append(ir.Let(row, ir.minimum(row0 + i, call.rows - 1) if i else row0))
            body += epilogues[i].loads()
        call.epilogue = lambda i: epilogues[i].stores()
        body += kernel.row_gemv(call, row0)
        steps = [*fetches, *([ir.DependencyWait()] if fetches else []), *body]
        grid = -(-rows // shape.rows)
        return [e.grid_kernel(self.name, block, steps, grid, p.group.notes)]


def _dtype_of(product: Value) -> DType:
    """Products of 16-bit floats are not rounded one by one."""
    found = dt.compute_dtype(product.dtype)
    for x in product.inputs:
        found = dt.promote(found, dt.compute_dtype(x.dtype))
    return found


def _fetches(
    e: Emitter, call: kernel.RowGemvCall, matrices: list[Value], row0: Expr, target: Target
) -> list[Stmt]:
    """Prefetches of a warp's rows of what the program is given."""
    out: list[Stmt] = []
    for x, operand in zip(matrices, call.matrices, strict=True):
        base = x
        while base not in e.layouts:
            base = base.inputs[0]
        if operand.address is None or not is_fetched(base, target):
            continue
        for i in range(call.shape.rows):
            row = ir.minimum(row0 + i, call.rows - 1) if i else row0
            extent = x.shape[1] if x.shape[1] != max(x.shape) else x.shape[2]
            start = operand.address(ZERO, row, ZERO)
            out.append(fetch_row(*start, extent, len(out)))
    return out


class _Epilogue:
    """What is stored of a row, from the products that the kernel binds to `totals`."""

    def __init__(self, e: Emitter, p: MatmulProblem, totals: dict[Value, Expr], row: Expr) -> None:
        for product, total in totals.items():
            e.rebind(product, total.cast(product.dtype))
        self._names: dict[Expr, Expr] = {}
        self._stores: list[ir.Store] = []
        for v in p.group.members:
            if v in p.group.stored:
                index = index_of(v.shape, [row])
                self._stores += e.store(v, index, e.value(v, index))  # type: ignore[arg-type]
        own = set(totals.values())
        for store in self._stores:
            for x in ir.walk(store.value, lambda x: True):
                if x.op == "load" and own.isdisjoint(ir.walk(x, lambda y: True)):
                    name = ir.var(f"{row.attr}_load{len(self._names)}", x.dtype)
                    self._names.setdefault(x, name)

    def loads(self) -> list[Stmt]:
        """Loads that wait for no product."""
        return [ir.Let(name, x) for x, name in self._names.items()]

    def stores(self) -> list[Stmt]:
        return [
            replace(store, value=substitute(store.value, dict(self._names)))
            for store in self._stores
        ]


# -- reductions of the vector -------------------------------------------------------------------


def row_statistics_of(x: Value, in_memory: Layouts) -> list[Value]:
    """The reductions that an expression reads and that are not in memory, operands first."""
    found = walk([x], lambda v: v not in in_memory)
    return sorted((v for v in found if v.kind == "reduce" and v not in in_memory), key=_id)


def _id(v: Value) -> int:
    return v.id


def _accumulate(
    s: kernel.RowGemvShape, terms: VectorExpression, how: Reducer, registers: list[ir.Register]
) -> Callable[[Expr, int, bool], list[Stmt]]:
    """The body of a loop over the terms of a reduction."""

    def steps(at: Expr, count: int, vectorised: bool) -> list[Stmt]:
        body: list[Stmt] = []
        found = [
            terms.load(body, at + u * s.step, s.vector, f"{registers[0].name}_{u}", vectorised)
            for u in range(count)
        ]
        for xs in found:
            part = how.pairwise([how.element(x) for x in xs])
            body += ir.sets(registers, how.merge(ir.reads(registers), part))
        return body

    return steps


def _statistics(e: Emitter, call: kernel.RowGemvCall, vector: Value) -> list[Stmt]:
    """Reductions of all elements, by a warp for itself; their results are bound."""
    out: list[Stmt] = []
    k, s = max(vector.shape), call.shape
    s = kernel.with_unroll(replace(s, products=1, rows=1), k)  # all of it in flight
    members, aliases = expand_sqdevs(row_statistics_of(vector, e.layouts))
    original = {r: m for m, r in aliases.items()}
    for number, r in enumerate(members):
        for v in walk([r.inputs[0]], lambda v: v not in e.layouts):
            if v.op == "count":
                e.bind(v, call.k.cast(v.dtype))
        how = reducer(r)
        registers = [
            ir.Register(f"stat{number}_{i}", t, lanes=True) for i, t in enumerate(how.dtypes)
        ]
        out += ir.sets(registers, how.initial())
        terms = VectorExpression(e, r.inputs[0], s.vector, f"term{number}")
        own = replace(call, shape=s, whole=not k % (s.step * s.unroll), aligned=terms.aligned)
        out += kernel.loads_of_k(own, _accumulate(s, terms, how, registers), f"stat{number}")
        finals = ir.variables(f"found{number}", registers)
        out += ir.lets(finals, [ir.lanes_reduce(str(how.lanes), x) for x in registers])
        e.rebind(r, how.finish(list(finals)))
        if r in original:
            e.rebind(original[r], how.finish(list(finals)))
    return out
