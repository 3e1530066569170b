"""Lanes loops in WGSL: how the threads of a group share their iterations.

Thread t takes the iterations t, t + group, and so on. Light loops have several iterations under way
at a time. Where elements that share words are stored next to each other, a thread takes all that
lie in a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus import ir
from numus.codegen.llvm.divergence import LaneStrides
from numus.codegen.wgsl import memory
from numus.codegen.wgsl.expressions import Values
from numus.ir import expressions_of, post_order, statements

TOGETHER = ((24, 8), (80, 4))  # iterations that are under way at a time, by expressions in each
WORDS = 300  # the same for one whose results share words

Iteration = Callable[[ir.For, str], None]


class Lanes:
    """Writes lanes loops; `iteration` writes the body for one value of the variable, `statement` a
    statement for a thread by itself."""

    def __init__(
        self,
        x: Values,
        threads: int,
        unroll: int,
        iteration: Iteration,
        loop: Callable[[ir.For, str, str, str, str, bool], None],
        statement: Callable[[ir.Stmt], None],
    ) -> None:
        self.x, self.threads, self.unroll = x, threads, unroll
        self.iteration, self.loop, self.statement = iteration, loop, statement

    def write(self, s: ir.For) -> None:
        x = self.x
        ty = x.type(s.var)
        start, stop, step = (x.carried(e, ty) for e in (s.start, s.stop, s.step))
        count = _trips(s)
        if count is not None and count <= self.threads:  # one each, at most
            x.forget(changed(s.body))
            x.open("" if count == self.threads else f"if (thread < {count}u)")
            self.iteration(s, x.new(f"{start} + {ty}(thread) * {step}"))
            x.close()
            x.forget(changed(s.body))
            return
        x.hoist(s)
        by = str(s.step.attr) if s.step.op == "const" else step
        stride = str(self.threads * s.step.attr) if by != step else f"{self.threads} * {step}"
        if self.unroll == 1:
            packed = self._packed(s)
            if packed and weight(s) <= WORDS:
                self._by_words(s, ty, start, stop, packed)
                return
            times = next((n for most, n in TOGETHER if weight(s) <= most), 1)
            if times > 1:
                own = self._together(s, ty, times, start, stop, by, stride)
                self.loop(s, ty, own, stop, stride, False)
                return
        own = x.new(f"{start} + {ty}(thread) * {by}")
        self.loop(s, ty, own, stop, stride, False)

    def _together(
        self, s: ir.For, ty: str, times: int, start: str, stop: str, by: str, stride: str
    ) -> str:
        """Several iterations at a time, as long as there are so many: all of them are loaded before
        any is stored, which hides the latency of memory. Gives where the others begin.
        """
        x = self.x
        i = x.name("v")
        x.do(f"var {i}: {ty} = {start} + {ty}(thread) * {by};")
        x.open(f"for (; {i} + {times - 1} * ({stride}) < {stop}; {i} += {times} * ({stride}))")
        places = [i, *(x.new(f"{i} + {k} * ({stride})") for k in range(1, times))]
        self._all(s, places, self.iteration)
        x.close()
        x.forget(changed(s.body))
        return i

    def _all(self, s: ir.For, places: Sequence[str], iteration: Iteration) -> None:
        """Iterations side by side: first what they load, then the rest of each."""
        x = self.x
        changes = changed(s.body)
        x.forget(changes)
        loaded = [self._prefetch(s, at, changes) for at in places]
        for at, known in zip(places, loaded, strict=True):
            x.forget(changes)
            with x.scope():
                for e, name in known.items():
                    x.remember(x.values, e, name)
                iteration(s, at)

    def _prefetch(self, s: ir.For, at: str, changes: list[Any]) -> dict[ir.Expr, str]:
        """Write the loads of an iteration ahead of it, and what their addresses take."""
        x = self.x
        with x.scope() as written:
            x.remember(x.values, s.var, at)
            seen: set[ir.Expr] = set()
            named = {inner.var for inner in s.body if isinstance(inner, ir.Let)}
            for inner in s.body:
                for e in post_order(expressions_of(inner), seen):
                    if e.op == "load" and is_free(e, changes, named):
                        x.value(e)
            return {key: x.values[key] for table, key, _ in written if table is x.values}

    # -- elements that share words ----------------------------------------------------------------

    def _packed(self, s: ir.For) -> list[ir.Store]:
        """Stores of elements that share words; none where some are not next to each other."""
        if any(isinstance(inner, (ir.For, ir.If)) for inner in s.body):
            return []
        stores = [
            inner
            for inner in s.body
            if isinstance(inner, ir.Store) and self.x.places[inner.buffer].form == "shared"
        ]
        growths = LaneStrides(s.var, s.step)
        for inner in s.body:
            if isinstance(inner, ir.Let):
                growths.bind(inner.var, inner.value)
        loaded = {
            e.attr
            for inner in s.body
            for e in post_order(expressions_of(inner), set())
            if e.op == "load"
        }
        if any(
            t.mask is not None or growths.of(t.index) != 1 or t.buffer in loaded for t in stores
        ):
            return []
        return stores if s.step.op == "const" and s.step.attr == 1 else []

    def _by_words(self, s: ir.For, ty: str, start: str, stop: str, stores: list[ir.Store]) -> None:
        """Four elements to a thread, from where a word begins; the others one by one before."""
        x = self.x
        x.forget(changed(s.body))
        middle, end = self._middle(s, ty, start, stop, stores)
        self._one_by_one(s, ty, start, stop, middle, end)
        i = x.name("v")
        x.open(
            f"for (var {i}: {ty} = {middle} + {ty}(thread) * 4; {i} < {end}; "
            f"{i} += {4 * self.threads})"
        )
        bits: list[list[str]] = []
        places = [i, *(x.new(f"{i} + {k}") for k in range(1, 4))]
        self._all(s, places, lambda s, at: bits.append(self._apart(s, at, stores)))
        x.forget(changed(s.body))
        with x.scope():
            x.remember(x.values, s.var, i)
            for k, store in enumerate(stores):
                memory.store_words(x, store, [each[k] for each in bits])
        x.close()
        x.forget(changed(s.body))

    def _middle(
        self, s: ir.For, ty: str, start: str, stop: str, stores: list[ir.Store]
    ) -> tuple[str, str]:
        """The iterations from the first to the last whole word; none where stores begin words at
        different ones."""
        x = self.x
        with x.scope():
            x.remember(x.values, s.var, start)
            places = [memory.address(x, x.places[t.buffer], t.index) for t in stores]
            firsts = [x.new(f"u32({place}) & 3u") for place in dict.fromkeys(places)]
        even = " && ".join(f"{first} == {firsts[0]}" for first in firsts[1:]) or "true"
        head = x.new(f"min({start} + {ty}((4u - {firsts[0]}) & 3u), {stop})")
        middle = x.new(f"max({start}, select({stop}, {head}, {even}))")
        return middle, x.new(f"{middle} + ({stop} - {middle}) / 4 * 4")

    def _one_by_one(self, s: ir.For, ty: str, start: str, stop: str, middle: str, end: str) -> None:
        """What lies before and after the words, in one loop."""
        x = self.x
        before = x.new(f"{middle} - {start}")
        count = x.new(f"{before} + max({stop} - {end}, 0)")
        j = x.name("v")
        x.open(f"for (var {j}: {ty} = {ty}(thread); {j} < {count}; {j} += {self.threads})")
        self._apart(s, x.new(f"select({end} - {before}, {start}, {j} < {before}) + {j}"), [])
        x.close()
        x.forget(changed(s.body))

    def _apart(self, s: ir.For, at: str, stores: list[ir.Store]) -> list[str]:
        """One iteration, but for some stores: the bits that they would write."""
        x = self.x
        x.remember(x.values, s.var, at)
        bits: list[str] = []
        for inner in s.body:
            if isinstance(inner, ir.Store) and inner in stores:
                bits.append(memory.element_bits(x, inner))
            else:
                self.statement(inner)
        return bits


def _trips(s: ir.For) -> int | None:
    """How many iterations a loop has, where that is known."""
    if any(e.op != "const" for e in (s.start, s.stop, s.step)):
        return None
    return len(range(s.start.attr, s.stop.attr, s.step.attr))


def changed(body: Sequence[ir.Stmt]) -> list[Any]:
    """Registers and buffers that statements give new values."""
    out: dict[Any, None] = {}
    for s in statements(body):
        if isinstance(s, ir.Set):
            out[s.register] = None
        elif isinstance(s, ir.Store):
            out[s.buffer] = None
    return list(out)


def weight(s: ir.For) -> int:
    """How much straight code a loop is; more than any bound where it is not straight."""
    if any(isinstance(inner, (ir.For, ir.If)) for inner in s.body):
        return 1 << 30
    seen: set[ir.Expr] = set()
    return sum(1 for inner in s.body for _ in post_order(expressions_of(inner), seen))


def is_free(e: ir.Expr, changes: list[Any], named: set[ir.Expr]) -> bool:
    """Whether an expression stands on nothing that its loop changes or names."""
    for inner in post_order((e,), set()):
        if inner in named or inner.op in ("read", "lanes_reduce", "slow_path"):
            return False
        if inner.op == "load" and inner.attr in changes:
            return False
    return True
