"""The derivative of attention for groups of threads, of any dtype: scores are computed again.

    P = exp(S - lse)        Z = P ∘ (M ∘ (g v') - delta)        M: what dropout keeps
    dv = (P ∘ M)' g         dk = scale Z' q                     dq = scale Z k

One kernel has a block of queries and walks the keys for dq; another one has a block of keys and
walks the queries, with all of it transposed, for dk and dv. P and Z go through the group's memory;
every sum is one thread's, in a fixed order.
"""

from __future__ import annotations

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.simt_forward import REGISTERS, Plan, plans, reading, sums_of
from numus.kernels.attention.gpu.simt_tiles import ZERO, Lines, Sums, Threads, fill
from numus.kernels.attention.gpu.wgmma_backward import Operands, Sizes
from numus.kernels.math import exp_decay
from numus.target import Target


def choose(
    target: Target, dtype: DType, rows: int, others: int, size: int, width: int, wanted: list[str]
) -> Plan | None:
    """The largest tiles for which there are registers and memory; None where there are none."""
    words = dtype.itemsize // 4
    for p in plans(target, dtype, rows, others, size, width):
        columns = {"q": p.size, "k": p.size, "v": p.width}
        need = sum(
            Lines.bytes(dtype, n, p.rows) + Lines.bytes(dtype, n, p.block)
            for n in (p.size, p.width)
        )
        for name in wanted:
            need += Lines.bytes(dtype, p.block, columns[name])  # rows of the right operand
            need += Lines.bytes(dtype, p.block, p.rows)  # and what they are multiplied by
        sums = sums_of(p, p.block, p.block, *(columns[name] for name in wanted))
        if need <= target.shared_bytes and words * sums <= REGISTERS:
            return p
    return None


def attention_grad(
    plan: Plan, sizes: Sizes, dtype: DType, g: Expr, operands: Operands, causal: bool
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g, and its scratch: that of queries, or that of keys."""
    group = _Group(plan, sizes, dtype, g, operands, causal)
    return group.body(), group.scratch


class _Group:
    """A block of rows (queries or keys) meets blocks of the others."""

    def __init__(
        self, plan: Plan, sizes: Sizes, dtype: DType, g: Expr, o: Operands, causal: bool
    ) -> None:
        self.plan, self.s, self.o, self.causal, self.dtype = plan, sizes, o, causal, dtype
        self.threads = Threads.of(plan.threads)
        self.by_query = "q" in o.writes
        self.n = ir.idiv(g, sizes.tasks)
        # under a causal mask later queries, and earlier keys, have more to do: they come first
        number = ir.irem(g, sizes.tasks)
        if self.by_query:
            number = ir.sub(ir.sub(sizes.tasks, const(1)), number)
        self.first = ir.mul(number, const(plan.rows))
        self.rows, self.others = sizes.queries, sizes.keys
        if not self.by_query:
            self.rows, self.others = sizes.keys, sizes.queries
        elif causal:  # no later keys are seen
            last = ir.minimum(ir.add(self.first, const(plan.rows)), sizes.queries)
            self.others = ir.minimum(sizes.keys, last)
        self.own, self.walked = (
            (("q", "g"), ("k", "v")) if self.by_query else (("k", "v"), ("q", "g"))
        )
        self.columns = {"q": plan.size, "k": plan.size, "v": plan.width, "g": plan.width}
        self.changes = o.changes
        self.scratch: list[ir.Buffer] = []

        def lines(name: str, depth: int, width: int) -> Lines:
            found = Lines(name, dtype, depth, width)
            self.scratch.append(found.buffer)
            return found

        needed = "qkvg" if self.changes else "qkg"
        self.turned = {
            x: lines(f"{x}_turned", self.columns[x], plan.rows if x in self.own else plan.block)
            for x in needed
            if self.changes or x != "g"
        }
        # result: its sums, what they are made of, how they are written
        self.results: dict[str, tuple[Sums, Lines, Lines]] = {}
        for result, other in (("q", "k"), ("k", "q"), ("v", "g")):
            if result in o.writes:
                sums = Sums(f"d{result}", self.threads, dtype, plan.rows, self.columns[result])
                left = lines(f"{result}_left", plan.block, plan.rows)
                right = lines(f"{result}_right", plan.block, self.columns[other])
                self.results[result] = (sums, left, right)
        self.scores = Sums("s", self.threads, dtype, plan.rows, plan.block)
        self.change = Sums("d", self.threads, dtype, plan.rows, plan.block)

    def body(self) -> list[Stmt]:
        p = self.plan
        out: list[Stmt] = []
        for sums, _, _ in self.results.values():
            out += sums.clear()
        for name in self.own:
            if name in self.turned:
                out.append(self._fill(name, self.first, p.rows, self.rows))
        b = ir.var("block")
        body: list[Stmt] = []
        for name in self.walked:
            if name in self.turned or name in self._rights():
                body.append(self._fill(name, b, p.block, self.others))
        body.append(self.threads.loop("weights", lambda lane: self._weights(lane, b)))
        body += [self._add(result) for result in self.results]
        start = ZERO
        if self.causal and not self.by_query:  # no earlier queries look at these keys
            start = ir.mul(ir.idiv(self.first, const(p.block)), const(p.block))
        out.append(ir.For(b, start, self.others, "serial", body, step=const(p.block)))
        return [*out, *(self._leave(result) for result in self.results)]

    def _add(self, result: str) -> Stmt:
        """What a block adds to a result."""
        sums, left, right = self.results[result]
        return self.threads.loop(f"add_{result}", lambda lane: [sums.add(lane, left, right)])

    def _leave(self, result: str) -> Stmt:
        s, o = self.s, self.o
        sums, _, _ = self.results[result]
        write = o.writes[result]
        columns = s.width if result == "v" else s.size

        def leave(lane: Expr) -> list[Stmt]:
            stores: list[Stmt] = []
            for i, j in sums.places():
                row, column = ir.add(self.first, sums.row(lane, i)), sums.column(lane, j)
                value = sums.read(i, j)
                done = write(self.n, row, column, value if result == "v" else value * o.scale)
                stores.append(ir.If((row < self.rows) & (column < columns), done))
            return stores

        return self.threads.loop(f"leave_{result}", leave)

    def _rights(self) -> dict[str, Lines]:
        """The operands whose rows are right operands of results."""
        of = {"q": "k", "k": "q", "v": "g"}
        return {of[result]: right for result, (_, _, right) in self.results.items()}

    def _fill(self, name: str, first: Expr, rows: int, limit: Expr) -> Stmt:
        matrix = getattr(self.o, name)
        return fill(
            *(name, self.threads, self.dtype, reading(matrix, self.n, first, self.dtype)),
            *(rows, self.columns[name]),
            lambda r, c: (ir.add(first, r) < limit) & (c < matrix.columns),
            turned=self.turned.get(name),
            plain=self._rights().get(name) if name in self.walked else None,
        )

    def _weights(self, lane: Expr, b: Expr) -> list[Stmt]:
        """P and Z, laid where products find them."""
        s, o, dtype = self.s, self.o, self.dtype
        zero = const(0, dtype)
        own, own_g = (self.turned.get(x) for x in self.own)
        other, other_g = (self.turned.get(x) for x in self.walked)
        assert own is not None
        assert other is not None
        body: list[Stmt] = [*self.scores.clear(), self.scores.add(lane, own, other)]
        if self.changes:
            assert own_g is not None
            assert other_g is not None
            body += [*self.change.clear(), self.change.add(lane, own_g, other_g)]
        lines = self.scores.down if self.by_query else self.scores.across
        lses: list[Expr] = []
        deltas: list[Expr] = []
        for i in range(lines):
            query = self._query(lane, b, i, i)
            for name, vector, found in (("lse", o.lse, lses), ("delta", o.delta, deltas)):
                if name == "lse" or self.changes:
                    found.append(ir.var(f"{name}{i}", dtype))
                    body.append(ir.Let(found[i], vector.read(self.n, query, query < s.queries)))
        for i, j in self.scores.places():
            query, key = self._query(lane, b, i, j), self._key(lane, b, i, j)
            number = i if self.by_query else j
            near = (ir.minimum(query, s.queries - 1), ir.minimum(key, s.keys - 1))
            meet = (query < s.queries) & (key < s.keys)
            if self.causal:
                meet = meet & (key <= query)
            value = self.scores.read(i, j) * o.scale
            if o.bias is not None:
                value = value + o.bias(self.n, *near)
            weight, kept = ir.var(f"weight{i}_{j}", dtype), ir.var(f"kept{i}_{j}", dtype)
            body.append(ir.Let(weight, select(meet, exp_decay(value - lses[number]), zero)))
            if o.keep is not None:
                body.append(ir.Let(kept, o.keep(self.n, *near)))
            row, column = self.scores.row(lane, i), self.scores.column(lane, j)
            for result, (_, left, _) in self.results.items():
                if result == "v":
                    entry = weight if o.keep is None else weight * kept
                else:
                    change = self.change.read(i, j)
                    change = change if o.keep is None else change * kept
                    entry = select(meet, weight * (change - deltas[number]), zero)
                body.append(ir.Store(left.buffer, left.at(column, row), entry))
        return body

    def _query(self, lane: Expr, b: Expr, i: int, j: int) -> Expr:
        if self.by_query:
            return ir.add(self.first, self.scores.row(lane, i))
        return ir.add(b, self.scores.column(lane, j))

    def _key(self, lane: Expr, b: Expr, i: int, j: int) -> Expr:
        if self.by_query:
            return ir.add(b, self.scores.column(lane, j))
        return ir.add(self.first, self.scores.row(lane, i))
