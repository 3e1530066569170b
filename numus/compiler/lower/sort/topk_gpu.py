"""The first few of each row where lanes are threads of a group: selected, or sorted out of it."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis_gpu import Layouts, outside, rows_along
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.scan.gpu import lower_group_sort
from numus.compiler.lower.sort.topk_cpu import topk_by_sorting
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.gpu_block import EACH
from numus.kernels.sort import gpu_radix_select
from numus.kernels.sort.cpu import encode, key_dtype
from numus.kernels.sort.gpu_onesweep import DIGITS
from numus.target import Target

ZERO = const(0)

MOST = 1024  # that are put in order by counting; for more, rows are sorted
PART = 1 << 14  # elements of a row that are worth a group, where there are not enough rows
PARTS_PER_UNIT = 4
LONG = 1 << 13  # elements that are worth all threads a group can have


def lower_group_topk(group: FusionGroup, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """A selection by every group of its row, or of its part of one, and from what these found."""
    (val,) = group.members
    axis, count, _ = val.params
    length = val.inputs[0].shape[axis]
    # targets whose blocks start in order can add in turns as well; a thread for every digit
    atomic = target.forward_progress and target.block_size >= DIGITS
    short = length <= target.block_size * EACH  # groups sort such rows at once
    if not atomic or short or not 0 < count <= min(MOST, length // 4):
        return topk_by_sorting(group, layouts, target, lower_group_sort)
    return _Selecting(val, outside(layouts, val), target).steps()


class _Selecting:
    def __init__(self, val: Value, layouts: Layouts, target: Target) -> None:
        self.val, self.layouts, self.target = val, layouts, target
        self.source = val.inputs[0]
        self.axis, self.count, self.descending = val.params
        length = self.source.shape[self.axis]
        self.rows = self.source.size // length
        self.kinds = key_dtype(self.source.dtype), dt.index_dtype(length)

    def steps(self) -> list[LoweredKernel]:
        length = self.source.shape[self.axis]
        given: tuple[Value, ...] = ()
        out: list[LoweredKernel] = []
        while True:
            wanted = -(-self.target.num_cores * PARTS_PER_UNIT // self.rows)
            parts = max(1, min(wanted, length // max(PART, 4 * self.count)))
            found: tuple[Value, ...] = ()
            if parts > 1:
                shape = (self.rows, parts * self.count)
                found = tuple(
                    Value.fresh("partial", "partial", (), None, shape, t)
                    for i, t in enumerate(self.kinds)
                )
            out.append(self._select(length, parts, given, found))
            if parts == 1:
                return out
            length, given = parts * self.count, found

    def _threads(self, size: int, groups: int) -> int:
        """Threads of groups that have so many elements each."""
        if size >= LONG and groups <= 2 * self.target.num_cores:
            return max(self.target.block_size, self.target.max_block_size)
        return self.target.block_size

    def _select(
        self, length: int, parts: int, given: tuple[Value, ...], found: tuple[Value, ...]
    ) -> LoweredKernel:
        """From what is `given`, or the rows themselves, to what is `found`, or the result."""
        val, axis = self.val, self.axis
        groups = self.rows * parts
        threads = self._threads(length // parts, groups)
        e = Emitter({**self.layouts, **dict.fromkeys(given, (length, 1))}, block_size=threads)
        g = ir.var("g")
        row, part = g, ZERO
        extent, count = e.dim(length), e.dim(self.count)
        start, stop = ZERO, extent
        if parts > 1:
            many = e.scalar_arg(parts)
            row, part = ir.idiv(g, many), ir.irem(g, many)
            start, stop = (ir.idiv(ir.mul(extent, x), many) for x in (part, ir.add(part, const(1))))
        at_row = row if self.rows > 1 else ZERO
        index = rows_along(e, row, self.source.shape, axis)
        into = rows_along(e, row, val.shape, axis)

        def key(i: Expr) -> Expr:
            if given:
                found: Expr = e.value(given[0], (at_row, i))
                return found
            value = e.value(self.source, index(i))
            return encode(value, self.descending, ties=True)

        def place(i: Expr) -> Expr:
            kind = self.kinds[1]
            return e.value(given[1], (at_row, i)) if given else i.cast(kind)

        which = gpu_radix_select.Row(start, stop, count, key, self.kinds[0])
        select = gpu_radix_select.Selection(threads, which)
        e.scratch += select.scratch
        if found:
            first = ir.mul(part, count)

            def put(rank: Expr, key: Expr, i: Expr) -> list[Stmt]:
                at = (at_row, ir.add(first, rank))
                return [*e.store(found[0], at, key), *e.store(found[1], at, place(i))]

            body = select.statements(put)
            return e.grid_kernel("topk_parts", g, body, groups, (val.op,))
        room = const(1 << (self.count - 1).bit_length())
        kept = [ir.Buffer(f"kept{i}", t, "scratch", room) for i, t in enumerate(self.kinds)]
        e.scratch += kept

        def keep(rank: Expr, key: Expr, i: Expr) -> list[Stmt]:
            return [ir.Store(kept[0], rank, key), ir.Store(kept[1], rank, place(i))]

        def write(rank: Expr, i: Expr) -> list[Stmt]:
            return e.store(val, into(rank), ir.load(kept[1], i).cast(val.dtype))

        body = [*select.statements(keep), gpu_radix_select.in_order(count, kept[0], write)]
        return e.grid_kernel("topk", g, body, groups, (val.op,))
