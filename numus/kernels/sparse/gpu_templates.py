"""Products of compressed sparse rows with a vector on GPUs, by templates of rows.

Each thread sums a row, so that loads of the vector are coalesced, and columns are offsets from the
row's number. Values are streamed through shared memory by blocks that stay for many rows: those of
the next rows are on their way while these are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.gpu_rows import ThreadRows, multiply_add

ZERO, ONE = const(0), const(1)
PADDING = 7  # offsets after those of a template, that may be read and are not used

At = Callable[[Expr], Expr]  # an element by number


@dataclass(frozen=True)
class RowTemplates:
    """How threads see the structure of a matrix with templates.

    `pointer(row)` is where a row begins, as it is loaded, and `bound` makes a number of an entry of
    it; `template(row)` is where the offsets of a row begin, negative where it has none; `offset(i)`
    one of them. Templates and offsets are int32, as are columns by templates, none of which is out
    of bounds; those of a template are followed by `PADDING` offsets of the row, too. `nnz` entries
    are there.
    """

    pointer: At
    bound: At
    template: At
    offset: At
    nnz: Expr


class TiledRows:
    """The rows of a block, a tile of one row per thread after the other. `depth` values of each
    thread are in flight, and then `unroll` elements of the vector."""

    def __init__(
        self, rows: ThreadRows, templates: RowTemplates, threads: int, depth: int, unroll: int
    ) -> None:
        assert unroll <= PADDING + 1
        self.rows, self.templates = rows, templates
        self.threads, self.depth, self.unroll = threads, depth, unroll
        self.size = threads * depth
        dtype, index = rows.dtype, templates.pointer(ZERO).dtype
        self.staged = ir.Buffer("staged", dtype, "scratch", const(self.size + unroll))
        self.total = ir.Register("total", dtype, lanes=True)
        self.values = [ir.Register(f"value{u}", dtype, lanes=True) for u in range(depth)]
        about = {"template": dt.int32, "first": index, "last": index}
        self.coming = {n: ir.Register(f"next_{n}", t, lanes=True) for n, t in about.items()}
        self.here = {n: ir.Register(n, t, lanes=True) for n, t in about.items()}
        # where the entries of this tile begin, of the next, and of the one after that
        self.begins = [ir.Register(f"begins{k}", index) for k in range(3)]
        self.thread = ir.var("thread")

    @cached_property
    def places(self) -> list[Expr]:
        """Of a thread's values among those of a tile."""
        return [ir.add(self.thread, const(u * self.threads)) for u in range(self.depth)]

    def multiply(self, start: Expr, stop: Expr) -> list[Stmt]:
        """The products of rows from `start` to `stop`, which are not none."""
        tile, low, high, following, part = (
            ir.var(n) for n in ("tile", "low", "high", "following", "part")
        )
        begins, pointer, bound = self.begins, self.templates.pointer, self.templates.bound

        def begin_of(tile: Expr, number: int) -> Expr:
            """Where a later tile begins, as it is loaded."""
            return pointer(ir.minimum(ir.add(tile, const(number * self.threads)), stop))

        row = ir.add(tile, self.thread)
        store = self.rows.store(row, ZERO, ir.reads([self.total]), False)
        rotate = [ir.Set(self.here[name], ir.read(r)) for name, r in self.coming.items()]
        clear = ir.Set(self.total, const(0, self.rows.dtype))
        own = ir.minimum(row, ir.sub(stop, ONE))
        body: list[Stmt] = [
            ir.Let(low, bound(ir.read(begins[0]))),
            ir.Let(high, bound(ir.read(begins[1]))),
            self._stage(ir.reads(self.values), [*rotate, clear]),
            ir.Let(following, ir.add(tile, const(self.threads))),
            ir.If(following < stop, [self._look_up(following, stop), *self._load(high)]),
            ir.Set(begins[0], ir.read(begins[1])),
            ir.Set(begins[1], ir.read(begins[2])),
            ir.Set(begins[2], begin_of(tile, 3)),
            self._add(own, low),
            ir.For(
                *(part, ir.add(low, const(self.size)), high, "serial"),
                [self._stage(self._entries(part, True), []), self._add(own, part)],
                step=const(self.size),
            ),
            self._every([ir.If(row < stop, store)]),
        ]
        return [
            *ir.sets(begins, [begin_of(start, k) for k in range(3)]),
            self._look_up(start, stop),
            *self._load(bound(ir.read(begins[0]))),
            ir.For(tile, start, stop, "serial", body, step=const(self.threads)),
        ]

    def _every(self, body: list[Stmt]) -> Stmt:
        return ir.For(self.thread, ZERO, const(self.threads), "lanes", body, width=1)

    def _entries(self, part: Expr, clamped: bool) -> list[Expr]:
        """Values of a part of a tile; others than those of its rows may be among them."""
        entries = [ir.add(part, place) for place in self.places]
        if clamped:
            last = ir.sub(self.templates.nnz, ONE)
            entries = [ir.minimum(entry, last) for entry in entries]
        return [self.rows.value(entry) for entry in entries]

    def _load(self, part: Expr) -> list[Stmt]:
        inside = ~(self.templates.nnz < ir.add(part, const(self.size)))
        return [
            ir.If(inside, [self._every(ir.sets(self.values, self._entries(part, False)))]),
            ir.If(~inside, [self._every(ir.sets(self.values, self._entries(part, True)))]),
        ]

    def _look_up(self, tile: Expr, stop: Expr) -> Stmt:
        """What a thread needs to know of its row, long before it does."""
        row = ir.minimum(ir.add(tile, self.thread), ir.sub(stop, ONE))
        pointer = self.templates.pointer
        found = [self.templates.template(row), pointer(row), pointer(ir.add(row, ONE))]
        return self._every(ir.sets(list(self.coming.values()), found))

    def _stage(self, values: list[Expr], more: list[Stmt]) -> Stmt:
        names = [ir.var(f"staged{u}", self.rows.dtype) for u in range(self.depth)]
        stores = zip(self.places, names, strict=True)
        return self._every(
            [*ir.lets(names, values), *(ir.Store(self.staged, i, x) for i, x in stores), *more]
        )

    def _add(self, row: Expr, part: Expr) -> Stmt:
        begin, end, begins = ir.var("begin"), ir.var("end"), ir.var("begins")
        first, last = (self.templates.bound(ir.read(self.here[n])) for n in ("first", "last"))
        is_listed = ~(ir.read(self.here["template"]) < const(0, dt.int32))
        return self._every([
            ir.Let(begins, first),
            ir.Let(begin, ir.maximum(begins, part)),
            ir.Let(end, ir.minimum(last, ir.add(part, const(self.size)))),
            ir.If(is_listed, self._listed(row, part, begins, begin, end)),
            ir.If(~is_listed, [self._other(part, begin, end)]),
        ])  # fmt: skip

    def _listed(self, row: Expr, part: Expr, begins: Expr, begin: Expr, end: Expr) -> list[Stmt]:
        """`unroll` entries at a time; those past the end are not added."""
        entry, listed, number = ir.var("entry"), ir.var("listed"), ir.var("number", dt.int32)
        left = ir.var("left", dt.int32)
        out: list[Stmt] = [ir.Let(left, ir.sub(end, entry).cast(dt.int32))]
        columns = [ir.var(f"column{u}") for u in range(self.unroll)]
        for u, column in enumerate(columns):
            offset = self.templates.offset(ir.add(ir.add(listed, entry), const(u)))
            out.append(ir.Let(column, (number + offset).cast(dt.int64)))
        load = self.rows.load
        xs = [load(out, c, ZERO, 1, f"x{u}", False)[0] for u, c in enumerate(columns)]
        for u, x in enumerate(xs):
            value = ir.load(self.staged, ir.add(ir.sub(entry, part), const(u)))
            before, is_own = ir.read(self.total), const(u, dt.int32) < left
            after = multiply_add(value, x, before)
            out.append(ir.Set(self.total, ir.select(is_own, after, before) if u else after))
        template = ir.read(self.here["template"]).cast(dt.int64)
        return [
            ir.Let(number, row.cast(dt.int32)),
            ir.Let(listed, ir.sub(template, begins)),
            ir.For(entry, begin, end, "serial", out, step=const(self.unroll)),
        ]

    def _other(self, part: Expr, begin: Expr, end: Expr) -> Stmt:
        """By the indices."""
        entry = ir.var("entry")
        out: list[Stmt] = []
        (x,) = self.rows.load(out, self.rows.column(entry), ZERO, 1, "x", False)
        value = ir.load(self.staged, ir.sub(entry, part))
        out.append(ir.Set(self.total, multiply_add(value, x, ir.read(self.total))))
        return ir.For(entry, begin, end, "serial", out)
