"""Thread loops: lanes loops strided over the threads of a workgroup.

Thread t takes iterations t, t + threads, and so on. Small loops interleave several iterations to
hide memory latency. Where consecutive sub-word elements are stored, a thread takes four of them and
stores whole words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus import ir
from numus.codegen.llvm.divergence import LaneStrides
from numus.codegen.wgsl import memory
from numus.codegen.wgsl.expressions import Expressions
from numus.ir import expressions_of, post_order, statements


@dataclass(frozen=True)
class ThreadLoopTuning:
    """Measured on Mesa's software renderer (lavapipe)."""

    # (most expressions of an iteration, iterations interleaved)
    interleave: tuple[tuple[int, int], ...] = ((24, 8), (80, 4))
    max_packed_expressions: int = 300  # of an iteration, for stores of whole words


TUNING = ThreadLoopTuning()

Iteration = Callable[[ir.For, str], None]


class ThreadLoops:
    """Writes lanes loops; `iteration` writes the body for one value of the loop variable, `loop` a
    serial loop, `statement` a statement of one thread."""

    def __init__(
        self,
        x: Expressions,
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
        start, stop, step = (x.cast_to(e, ty) for e in (s.start, s.stop, s.step))
        count = _trip_count(s)
        if count is not None and count <= self.threads:  # at most one each
            x.invalidate(modified(s.body))
            x.open("" if count == self.threads else f"if (thread < {count}u)")
            self.iteration(s, x.let(f"{start} + {ty}(thread) * {step}"))
            x.close()
            x.invalidate(modified(s.body))
            return
        x.hoist(s)
        by = str(s.step.attr) if s.step.op == "const" else step
        stride = str(self.threads * s.step.attr) if by != step else f"{self.threads} * {step}"
        if self.unroll == 1:
            size = expression_count(s)
            stores = self._packed_stores(s)
            if stores and size <= TUNING.max_packed_expressions:
                self._store_whole_words(s, ty, start, stop, stores)
                return
            times = next((n for most, n in TUNING.interleave if size <= most), 1)
            if times > 1:
                own = self._interleaved(s, ty, times, start, stop, by, stride)
                self.loop(s, ty, own, stop, stride, False)
                return
        own = x.let(f"{start} + {ty}(thread) * {by}")
        self.loop(s, ty, own, stop, stride, False)

    def _interleaved(
        self, s: ir.For, ty: str, times: int, start: str, stop: str, by: str, stride: str
    ) -> str:
        """Interleave `times` iterations, loads before stores; gives where the rest begins."""
        x = self.x
        i = x.fresh("v")
        x.emit(f"var {i}: {ty} = {start} + {ty}(thread) * {by};")
        x.open(f"for (; {i} + {times - 1} * ({stride}) < {stop}; {i} += {times} * ({stride}))")
        variables = [i, *(x.let(f"{i} + {k} * ({stride})") for k in range(1, times))]
        self._interleave(s, variables, self.iteration)
        x.close()
        x.invalidate(modified(s.body))
        return i

    def _interleave(self, s: ir.For, variables: Sequence[str], iteration: Iteration) -> None:
        """The loads of all iterations, then the rest of each."""
        x = self.x
        written = modified(s.body)
        x.invalidate(written)
        loaded = [self._prefetch(s, at, written) for at in variables]
        for at, known in zip(variables, loaded, strict=True):
            x.invalidate(written)
            with x.scope():
                for e, name in known.items():
                    x.bind(x.values, e, name)
                iteration(s, at)

    def _prefetch(self, s: ir.For, at: str, written: list[Any]) -> dict[ir.Expr, str]:
        """Write the loads of an iteration, and their addresses, ahead of it."""
        x = self.x
        with x.scope() as log:
            x.bind(x.values, s.var, at)
            seen: set[ir.Expr] = set()
            bound = {inner.var for inner in s.body if isinstance(inner, ir.Let)}
            for inner in s.body:
                for e in post_order(expressions_of(inner), seen):
                    if e.op == "load" and is_prefetchable(e, written, bound):
                        x.value(e)
            return {key: x.values[key] for table, key, _ in log if table is x.values}

    # -- packed stores ----------------------------------------------------------------------------

    def _packed_stores(self, s: ir.For) -> list[ir.Store]:
        """Stores of consecutive sub-word elements; empty unless all such stores are consecutive."""
        if any(isinstance(inner, (ir.For, ir.If)) for inner in s.body):
            return []
        stores = [
            inner
            for inner in s.body
            if isinstance(inner, ir.Store) and self.x.bindings[inner.buffer].storage == "atomic"
        ]
        strides = LaneStrides(s.var, s.step)
        for inner in s.body:
            if isinstance(inner, ir.Let):
                strides.bind(inner.var, inner.value)
        loaded = {
            e.attr
            for inner in s.body
            for e in post_order(expressions_of(inner), set())
            if e.op == "load"
        }
        if any(
            t.mask is not None or strides.of(t.index) != 1 or t.buffer in loaded for t in stores
        ):
            return []
        return stores if s.step.op == "const" and s.step.attr == 1 else []

    def _store_whole_words(
        self, s: ir.For, ty: str, start: str, stop: str, stores: list[ir.Store]
    ) -> None:
        """Four elements per thread from the first word boundary on; unaligned ends one by one."""
        x = self.x
        x.invalidate(modified(s.body))
        middle, end = self._aligned_range(s, ty, start, stop, stores)
        self._unaligned_ends(s, ty, start, stop, middle, end)
        i = x.fresh("v")
        x.open(
            f"for (var {i}: {ty} = {middle} + {ty}(thread) * 4; {i} < {end}; "
            f"{i} += {4 * self.threads})"
        )
        bits: list[list[str]] = []
        variables = [i, *(x.let(f"{i} + {k}") for k in range(1, 4))]
        self._interleave(s, variables, lambda s, at: bits.append(self._stored_bits(s, at, stores)))
        x.invalidate(modified(s.body))
        with x.scope():
            x.bind(x.values, s.var, i)
            for k, store in enumerate(stores):
                memory.store_packed(x, store, [each[k] for each in bits])
        x.close()
        x.invalidate(modified(s.body))

    def _aligned_range(
        self, s: ir.For, ty: str, start: str, stop: str, stores: list[ir.Store]
    ) -> tuple[str, str]:
        """The iterations between the first and last word boundary; empty where those of the stores
        differ."""
        x = self.x
        with x.scope():
            x.bind(x.values, s.var, start)
            addresses = [memory.address(x, x.bindings[t.buffer], t.index) for t in stores]
            phases = [x.let(f"u32({a}) & 3u") for a in dict.fromkeys(addresses)]
        equal = " && ".join(f"{p} == {phases[0]}" for p in phases[1:]) or "true"
        head = x.let(f"min({start} + {ty}((4u - {phases[0]}) & 3u), {stop})")
        middle = x.let(f"max({start}, select({stop}, {head}, {equal}))")
        return middle, x.let(f"{middle} + ({stop} - {middle}) / 4 * 4")

    def _unaligned_ends(
        self, s: ir.For, ty: str, start: str, stop: str, middle: str, end: str
    ) -> None:
        """Iterations before and after the aligned range, in one loop."""
        x = self.x
        before = x.let(f"{middle} - {start}")
        count = x.let(f"{before} + max({stop} - {end}, 0)")
        j = x.fresh("v")
        x.open(f"for (var {j}: {ty} = {ty}(thread); {j} < {count}; {j} += {self.threads})")
        self._stored_bits(s, x.let(f"select({end} - {before}, {start}, {j} < {before}) + {j}"), [])
        x.close()
        x.invalidate(modified(s.body))

    def _stored_bits(self, s: ir.For, at: str, stores: list[ir.Store]) -> list[str]:
        """One iteration without these stores; gives the bits that they would write."""
        x = self.x
        x.bind(x.values, s.var, at)
        bits: list[str] = []
        for inner in s.body:
            if isinstance(inner, ir.Store) and inner in stores:
                bits.append(memory.packed_bits(x, inner))
            else:
                self.statement(inner)
        return bits


def _trip_count(s: ir.For) -> int | None:
    """The number of iterations, where it is a constant."""
    if any(e.op != "const" for e in (s.start, s.stop, s.step)):
        return None
    return len(range(s.start.attr, s.stop.attr, s.step.attr))


def modified(body: Sequence[ir.Stmt]) -> list[Any]:
    """Registers and buffers that statements write."""
    out: dict[Any, None] = {}
    for s in statements(body):
        if isinstance(s, ir.Set):
            out[s.register] = None
        elif isinstance(s, ir.Store):
            out[s.buffer] = None
    return list(out)


def expression_count(s: ir.For) -> int:
    """The size of a straight-line body; beyond any limit where there is control flow."""
    if any(isinstance(inner, (ir.For, ir.If)) for inner in s.body):
        return 1 << 30
    seen: set[ir.Expr] = set()
    return sum(1 for inner in s.body for _ in post_order(expressions_of(inner), seen))


def is_prefetchable(e: ir.Expr, written: list[Any], bound: set[ir.Expr]) -> bool:
    """Whether an expression depends on nothing that its loop writes or binds."""
    for inner in post_order((e,), set()):
        if inner in bound or inner.op in ("read", "lanes_reduce", "slow_path"):
            return False
        if inner.op == "load" and inner.attr in written:
            return False
    return True
