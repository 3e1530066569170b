"""Products with one vector by the rows of warps: what fusion asks, and what schedules share.

Fusion asks `streams_rows` which products warps compute (`fusion/row_products.py`): only for these
it puts several into a group, and leaves reductions of the vector, such as the mean square of an
RMSNorm, to the kernels that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of
from numus.compiler.graph.value import Layouts, Value, walk
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.loops.early_prefetch import fetch_row, is_fetched, line_elements
from numus.compiler.lower.loops.stages import expand_sqdevs
from numus.compiler.lower.matmul.gpu_operands import matrix_layout
from numus.compiler.lower.matmul.vector_expression import VectorExpression
from numus.compiler.lower.reducers import Reducer, reducer
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.ir.substitution import substitute
from numus.kernels.matmul.gpu import row_gemv as kernel
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, VectorOperand
from numus.kernels.matmul.gpu.row_gemv import (
    WARP,
    LoadVector,
    StagedVector,
    WarpRows,
    block_threads,
)
from numus.kernels.vendor.registry import preference
from numus.target import Target

ZERO = const(0)
STATISTICS_LOADS = 4  # that a thread has in flight


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
    """A block's rows of the matrices; its warps load the first elements ahead of all else."""

    matrices: Sequence[Value]
    operands: Sequence[VectorOperand]
    rows: WarpRows
    extent: int  # elements of a row
    vector: Value
    others: Sequence[Value] = ()  # that the first loads read besides

    def statements(self, e: Emitter, target: Target, loads: list[Stmt]) -> list[Stmt]:
        """The first loads, or else prefetches; of what the program is given, before the wait for
        earlier kernels."""
        found = ahead_of_wait(e, target, [*self.matrices, *self.others], loads)
        if found is not loads:
            return [*_fetches(e, self.vector), *found]
        bases = _bases(e, self.matrices)
        if not target.dependent_launch or not all(map(_is_given, bases)):
            return found
        fetches: list[Stmt] = []
        for operand, base in zip(self.operands, bases, strict=True):
            if operand.address is not None and is_fetched(base, target):
                fetches.append(self._prefetches(operand, len(fetches)))
        return [*fetches, ir.DependencyWait(), *loads] if fetches else loads

    def _prefetches(self, operand: VectorOperand, number: int) -> Stmt:
        """Of a warp's rows, by its lanes."""
        assert operand.address is not None
        lane, line = ir.var(f"fetch_lane{number}"), ir.var(f"line{number}")
        buffer, _ = operand.address(ZERO, ZERO, ZERO)
        per_line = line_elements(buffer.dtype)
        fetches: list[Stmt] = []
        for row in self.rows.clamped(lane):
            place = operand.address(ZERO, row, line * per_line)
            fetches.append(ir.Prefetch(*place, write=False, level=2))
        lines = const(-(-self.extent // per_line))
        loop = ir.For(line, lane % WARP, lines, "serial", fetches, step=const(WARP))
        return ir.For(lane, ZERO, const(block_threads()), "lanes", [loop])


def _fetches(e: Emitter, vector: Value) -> list[Stmt]:
    """Prefetches of what the program is given to compute a vector from, as the weights of a norm:
    no other kernel has read them."""
    out: list[Stmt] = []
    k = max(vector.shape)
    for x in walk([vector], lambda v: v not in e.layouts):
        if x.kind == "leaf" and x is not vector and max(x.shape, default=0) == k:
            first = e.value(x, (ZERO,) * len(x.shape))
            out.append(fetch_row(first.attr, first.args[0], k, len(out)))
    return out


def ahead_of_wait(
    e: Emitter, target: Target, read: Sequence[Value], loads: list[Stmt]
) -> list[Stmt]:
    """Loads before the wait for earlier kernels, where the program is given what they read."""
    if loads and target.dependent_launch and all(map(_is_given, _bases(e, read))):
        return [*loads, ir.DependencyWait(loads_before=True)]
    return loads


def _bases(e: Emitter, values: Sequence[Value]) -> list[Value]:
    """The values in memory of which these are views."""
    found = []
    for x in values:
        while x not in e.layouts:
            x = x.inputs[0]
        found.append(x)
    return found


def _is_given(base: Value) -> bool:
    return base.kind == "leaf"


class RowEpilogues:
    """What the warps of a block store of their rows, from products bound to `totals`."""

    def __init__(self, e: Emitter, group: FusionGroup, rows: WarpRows) -> None:
        self._e, self._group, self._rows = e, group, rows
        self._names: dict[Expr, Expr] = {}
        self._registers: list[ir.Register] = []
        self._stores: dict[tuple[int, int], list[Stmt]] = {}
        self._row = [ir.var(f"row{i}") for i in range(rows.own)]

    def add(self, number: int, row: int, totals: dict[Value, Expr], axis: int) -> None:
        """Of a row of a warp, and of a vector by its number, along the products' other axis."""
        e, product = self._e, self._group.members[0]
        other, own_row = const(number), self._row[row]
        at = (ZERO, *((own_row, other) if axis == 1 else (other, own_row)))[-len(product.shape) :]
        point = [x for x, extent in zip(at, product.shape, strict=True) if extent != 1]
        for own, total in totals.items():
            e.rebind(own, total.cast(own.dtype))
        stores: list[Stmt] = []
        for v in self._group.members:
            if v in self._group.stored:
                index = index_of(v.shape, point)
                stores += e.store(v, index, e.value(v, index))
        self._stores[number, row] = stores
        own_names = set(totals.values())
        for store in stores:
            assert isinstance(store, ir.Store)
            for x in ir.walk(store.value, lambda x: True):
                if x.op != "load" or x in self._names:
                    continue
                if own_names.isdisjoint(ir.walk(x, lambda y: True)):
                    name = self._names[x] = ir.var(f"epilogue_load{len(self._names)}", x.dtype)
                    self._registers.append(ir.Register(name.attr, x.dtype, lanes=True))

    def loads(self) -> list[Stmt]:
        """Loads that wait for no product: they are on their way while products are computed."""
        if not self._names:
            return []
        lane = ir.var("ahead_lane")
        names = list(self._names.values())
        body: list[Stmt] = [*self._lets(lane)]
        body += [ir.Let(name, x) for x, name in self._names.items()]
        body += ir.sets(self._registers, names)
        return [ir.For(lane, ZERO, const(block_threads()), "lanes", body)]

    def statements(self, finish: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        """`finish` adds the products of a lane's warp, and calls `stores`."""
        lane = ir.var("end_lane")
        body = self._lets(lane)
        body += ir.lets(list(self._names.values()), ir.reads(self._registers))
        return [ir.For(lane, ZERO, const(block_threads()), "lanes", [*body, *finish(lane)])]

    def stores(self, number: int, row: int) -> list[Stmt]:
        out: list[Stmt] = []
        for store in self._stores[number, row]:
            assert isinstance(store, ir.Store)
            out.append(replace(store, value=substitute(store.value, dict(self._names))))
        return out

    def _lets(self, lane: Expr) -> list[Stmt]:
        return ir.lets(self._row, self._rows.clamped(lane))


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
    """Reductions of all elements by a block for itself, `width` elements of a thread at a time;
    their results are bound."""
    out: list[Stmt] = []
    k = max(vector.shape)
    threads, unroll = block_threads(), 1
    while unroll < STATISTICS_LOADS and 2 * unroll * threads * width <= k:
        unroll *= 2
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
        whole = k % (threads * width * unroll) == 0
        loop = kernel.AlongK(threads, width, unroll, e.dim(k), whole, terms.aligned)
        out += loop.statements(_accumulate(loop, terms, how, registers), f"stat{number}")
        finals = ir.variables(f"found{number}", registers)
        out += ir.lets(finals, [ir.lanes_reduce(str(how.lanes), x) for x in registers])
        for v in {r, original.get(r, r)}:
            e.rebind(v, how.finish(list(finals)))
    return out


def vector_loader(
    e: Emitter, vector: Value, dtype: DType, count: int
) -> tuple[list[Stmt], LoadVector, Expr]:
    """Statements that compute a vector, how threads load `count` elements of it at a time, and
    whether they may load them as vectors. What has to be computed is so once by a block."""
    elements = VectorExpression(e, vector, count, "element")
    k = max(vector.shape)
    fits = k * vector.dtype.itemsize <= kernel.TUNING.max_staged_bytes
    if elements.is_load or not fits or k % count:
        return [], elements.loader(dtype), elements.aligned
    staged = StagedVector("vector", k, vector.dtype)
    along = kernel.AlongK(block_threads(), count, 1, e.dim(k), False, elements.aligned)
    along = replace(along, whole=k % along.step == 0)
    fill = staged.fill(along, elements.loader(vector.dtype))
    e.scratch.append(staged.buffer)
    return fill, staged.loader(dtype), const(True, dt.bool_)


def _accumulate(
    along: kernel.AlongK, terms: VectorExpression, how: Reducer, registers: list[ir.Register]
) -> Callable[[Expr, int, bool], list[Stmt]]:
    """The body of a loop over the terms of a reduction."""

    def steps(at: Expr, count: int, vectorised: bool) -> list[Stmt]:
        body: list[Stmt] = []
        found = [
            terms.load(
                *(body, at + u * along.step, along.vector),
                *(f"{registers[0].name}_{u}", vectorised),
            )
            for u in range(count)
        ]
        for xs in found:
            part = how.pairwise([how.element(x) for x in xs])
            body += ir.sets(registers, how.merge(ir.reads(registers), part))
        return body

    return steps
