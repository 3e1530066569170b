"""Products with one vector by the rows of warps: what fusion asks, and what schedules share.

Fusion asks `streams_rows` which products warps compute (`fusion/row_products.py`): only for these
it puts several into a group, and leaves reductions of the vector, such as the mean square of an
RMSNorm, to the kernels that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of
from numus.compiler.graph.value import Layouts, Value, walk
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.loops.early_prefetch import fetch_row, is_fetched
from numus.compiler.lower.loops.pointwise_transpose import substitute
from numus.compiler.lower.loops.stages import expand_sqdevs
from numus.compiler.lower.matmul.gpu_operands import matrix_layout
from numus.compiler.lower.matmul.vector_expression import VectorExpression
from numus.compiler.lower.reducers import Reducer, reducer
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import row_gemv as kernel
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, VectorOperand
from numus.kernels.vendor.registry import preference
from numus.target import Target

ZERO = const(0)


def matrix_axis(product: Value) -> int:
    """1 where A is the matrix, 2 where B is; the other operand is the vector."""
    if product.kind == "packed_gemv":
        return 2
    _, m, n = product.shape
    return 1 if m > n else 2


def vector_of(product: Value) -> Value:
    """The operand with a single row."""
    return product.inputs[2 - matrix_axis(product)]


def matrix_of(product: Value) -> Value:
    return product.inputs[matrix_axis(product) - 1]


def streams_rows(product: Value, layouts: Layouts, target: Target) -> bool:
    """Warps read the rows of a product's matrix, which is in memory, as vectors."""
    if not (target.subgroup_size and target.vector_access_bytes):
        return False
    if product.kind == "packed_gemv":
        return product.shape[0] == 1
    batch, m, n = product.shape
    if batch != 1 or min(m, n) != 1 or preference() == "vendor":
        return False
    dtypes = (product.dtype, *(x.dtype for x in product.inputs))
    if any(d.kind != "float" or d.itemsize < 2 for d in dtypes):
        return False
    matrix, k = matrix_of(product), product.inputs[0].shape[2]
    tuning, rows, itemsize = kernel.TUNING, max(m, n), matrix.dtype.itemsize
    if rows < tuning.min_rows or k * itemsize < tuning.min_row_bytes:
        return False
    few = rows < tuning.few_rows_per_core * target.num_cores
    if few and k * itemsize > tuning.long_row_bytes:
        return False
    layout = matrix_layout(matrix, layouts, matrix_axis(product))
    vector = MAX_ACCESS_BYTES // itemsize
    return layout is not None and layout.k_major and not (layout.ld % vector or k % vector)


def are_siblings(products: Sequence[Value]) -> bool:
    """One kernel computes these products: of one vector, by matrices of one shape and format."""
    if len(products) > kernel.TUNING.max_products:
        return False
    return len({_signature(p) for p in products}) == 1


def _signature(product: Value) -> object:
    vector = vector_of(product)
    others = [(x.shape, x.dtype) for x in product.inputs if x is not vector]
    return (product.op, product.params, product.shape, product.dtype, vector, *others)


def products_of(group: FusionGroup) -> list[Value]:
    """The products that a group's kernel computes."""
    return [m for m in group.members if m.kind == group.kind]


@dataclass(frozen=True)
class RowsAhead:
    """A warp's rows of the matrices, of which it loads the first elements ahead of all else."""

    matrices: Sequence[Value]
    operands: Sequence[VectorOperand]
    rows: Sequence[Expr]
    loaded: int  # elements of a row
    extent: int  # of a row

    def statements(self, e: Emitter, target: Target, loads: list[Stmt]) -> list[Stmt]:
        """The first loads, and prefetches of what comes after them; of what the program is given,
        before the wait for earlier kernels."""
        if not target.dependent_launch or not all(map(self._is_given, self._bases(e))):
            return loads
        out = list(loads)
        for operand, base in zip(self.operands, self._bases(e), strict=True):
            first = self.loaded if loads else 0
            if operand.address is None or not is_fetched(base, target) or first >= self.extent:
                continue
            for row in self.rows:
                place = operand.address(ZERO, row, const(first))
                out.append(fetch_row(*place, self.extent - first, len(out)))
        return [*out, ir.DependencyWait(loads_before=bool(loads))] if out else []

    def _bases(self, e: Emitter) -> list[Value]:
        found = []
        for x in self.matrices:
            while x not in e.layouts:
                x = x.inputs[0]
            found.append(x)
        return found

    def _is_given(self, base: Value) -> bool:
        return base.kind == "leaf"


class RowEpilogue:
    """What is stored of a row, from the products that the kernel binds to `totals`."""

    def __init__(
        self,
        e: Emitter,
        group: FusionGroup,
        totals: dict[Value, Expr],
        at: Sequence[Expr],
        tag: str,
    ) -> None:
        product = group.members[0]
        point = [x for x, extent in zip(at, product.shape, strict=True) if extent != 1]
        for own, total in totals.items():
            e.rebind(own, total.cast(own.dtype))
        self._names: dict[Expr, Expr] = {}
        self._stores: list[Stmt] = []
        for v in group.members:
            if v in group.stored:
                index = index_of(v.shape, point)
                self._stores += e.store(v, index, e.value(v, index))
        own_names = set(totals.values())
        for store in self._stores:
            assert isinstance(store, ir.Store)
            for x in ir.walk(store.value, lambda x: True):
                if x.op == "load" and own_names.isdisjoint(ir.walk(x, lambda y: True)):
                    name = ir.var(f"{tag}_load{len(self._names)}", x.dtype)
                    self._names.setdefault(x, name)

    def loads(self) -> list[Stmt]:
        """Loads that wait for no product: they are on their way while products are computed."""
        return [ir.Let(name, x) for x, name in self._names.items()]

    def stores(self) -> list[Stmt]:
        out: list[Stmt] = []
        for store in self._stores:
            assert isinstance(store, ir.Store)
            out.append(replace(store, value=substitute(store.value, dict(self._names))))
        return out


# -- reductions of the vector ---------------------------------------------------------------------


def has_statistics(x: Value, in_memory: Layouts) -> bool:
    """The expression reads a reduction that its kernel has to compute."""
    return bool(_statistics_of(x, in_memory))


def _statistics_of(x: Value, in_memory: Layouts) -> list[Value]:
    """The reductions that an expression reads and that are not in memory, operands first."""
    found = walk([x], lambda v: v not in in_memory)
    reductions = (v for v in found if v.kind == "reduce" and v not in in_memory)
    return sorted(reductions, key=lambda v: v.id)


def statistics(e: Emitter, vector: Value, width: int) -> list[Stmt]:
    """Reductions of all elements, by a warp for itself, `width` elements of a thread at a time;
    their results are bound."""
    out: list[Stmt] = []
    k = max(vector.shape)
    s = kernel.with_unroll(kernel.RowGemvShape(1, 1, width, 1, vector.dtype), k)
    members, aliases = expand_sqdevs(_statistics_of(vector, e.layouts))
    original = {r: m for m, r in aliases.items()}
    for number, r in enumerate(members):
        for v in walk([r.inputs[0]], lambda v: v not in e.layouts):
            if v.op == "count":
                e.bind(v, e.dim(k).cast(v.dtype))
        how = reducer(r)
        registers = [
            ir.Register(f"stat{number}_{i}", t, lanes=True) for i, t in enumerate(how.dtypes)
        ]
        out += ir.sets(registers, how.initial())
        terms = VectorExpression(e, r.inputs[0], width, f"term{number}")
        loop = kernel.AlongK(s, e.dim(k), not k % (s.step * s.unroll), terms.aligned)
        out += loop.statements(_accumulate(s, terms, how, registers), f"stat{number}")
        finals = ir.variables(f"found{number}", registers)
        out += ir.lets(finals, [ir.lanes_reduce(str(how.lanes), x) for x in registers])
        for v in {r, original.get(r, r)}:
            e.rebind(v, how.finish(list(finals)))
    return out


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
