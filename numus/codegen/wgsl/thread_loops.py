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
from numus.codegen.llvm.divergence import LaneStrides, written_by
from numus.codegen.wgsl import memory
from numus.codegen.wgsl.expressions import Expressions
from numus.ir import post_order


@dataclass(frozen=True)
class ThreadLoopTuning:
    """Measured on Mesa's software renderer (lavapipe)."""

    # (most expressions of an iteration, iterations interleaved)
    interleave: tuple[tuple[int, int], ...] = ((24, 8), (80, 4))
    max_packed_expressions: int = 300  # of an iteration, for stores of whole words


TUNING = ThreadLoopTuning()

Iteration = Callable[[ir.For, str], None]


@dataclass(slots=True)
class ThreadLoops:
    """Writes lanes loops; `iteration` writes the body for one value of the loop variable, `loop` a
    serial loop, `statement` a statement of one thread."""

    x: Expressions
    threads: int
    unroll: int
    iteration: Iteration
    loop: Callable[[ir.For, str, str, str, str, bool], None]
    statement: Callable[[ir.Stmt], None]

    def write(self, s: ir.For) -> None:
        x = self.x
        ty, written = x.type(s.var), written_by(s.body)
        start, stop, step = x.loop_bounds(s)
        count = _trip_count(s)
        if count is not None and count <= self.threads:  # at most one each
            x.invalidate(written)
            with x.block("" if count == self.threads else f"if (thread < {count}u)"):
                self.iteration(s, x.let(f"{start} + {ty}(thread) * {step}"))
            x.invalidate(written)
            return
        x.hoist(s)
        by = str(s.step.attr) if s.step.op == "const" else step
        stride = str(self.threads * s.step.attr) if by != step else f"{self.threads} * {step}"
        if self.unroll == 1:
            size = _expression_count(s)
            stores = self._packed_stores(s)
            if stores and size <= TUNING.max_packed_expressions:
                self._store_whole_words(s, ty, start, stop, stores)
                return
            times = next((n for limit, n in TUNING.interleave if size <= limit), 1)
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
        more = f"{i} + {times - 1} * ({stride}) < {stop}"
        with x.block(f"for (; {more}; {i} += {times} * ({stride}))"):
            variables = [i, *(x.let(f"{i} + {k} * ({stride})") for k in range(1, times))]
            self._interleave(s, variables, self.iteration)
        x.invalidate(written_by(s.body))
        return i

    def _interleave(self, s: ir.For, variables: Sequence[str], iteration: Iteration) -> None:
        """The loads of all iterations, then the rest of each."""
        x = self.x
        written = written_by(s.body)
        x.invalidate(written)
        loaded = [self._prefetch(s, at, written) for at in variables]
        for at, known in zip(variables, loaded, strict=True):
            x.invalidate(written)
            with x.scope():
                for e, name in known.items():
                    x.bind(x.values, e, name)
                iteration(s, at)

    def _prefetch(self, s: ir.For, at: str, written: frozenset[Any]) -> dict[ir.Expr, str]:
        """Write the loads of an iteration, and their addresses, ahead of it."""
        x = self.x
        with x.scope() as log:
            x.bind(x.values, s.var, at)
            bound = {inner.var for inner in s.body if isinstance(inner, ir.Let)}
            for e in ir.loads(s.body):
                if _is_prefetchable(e, written, bound):
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
        loaded = {e.attr for e in ir.loads(s.body)}

        def is_packed(t: ir.Store) -> bool:
            return t.mask is None and strides.of(t.index) == 1 and t.buffer not in loaded

        is_unit = s.step.op == "const" and s.step.attr == 1
        return stores if is_unit and all(map(is_packed, stores)) else []

    def _store_whole_words(
        self, s: ir.For, ty: str, start: str, stop: str, stores: list[ir.Store]
    ) -> None:
        """Four elements per thread from the first word boundary on; unaligned ends one by one."""
        x, written = self.x, written_by(s.body)
        x.invalidate(written)
        middle, end = self._aligned_range(s, ty, start, stop, stores)
        self._unaligned_ends(s, ty, start, stop, middle, end)
        i = x.fresh("v")
        first, by = f"{middle} + {ty}(thread) * 4", 4 * self.threads
        with x.block(f"for (var {i}: {ty} = {first}; {i} < {end}; {i} += {by})"):
            bits: list[list[str]] = []
            variables = [i, *(x.let(f"{i} + {k}") for k in range(1, 4))]
            emit = self._stored_bits
            self._interleave(s, variables, lambda s, at: bits.append(emit(s, at, stores)))
            x.invalidate(written)
            with x.scope():
                x.bind(x.values, s.var, i)
                for k, store in enumerate(stores):
                    memory.store_packed(x, store, [words[k] for words in bits])
        x.invalidate(written)

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
        with x.block(f"for (var {j}: {ty} = {ty}(thread); {j} < {count}; {j} += {self.threads})"):
            at = x.let(f"select({end} - {before}, {start}, {j} < {before}) + {j}")
            self._stored_bits(s, at, [])
        x.invalidate(written_by(s.body))

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
    if any(e.op != "const" for e in (s.start, s.stop, s.step)):
        return None
    return len(range(s.start.attr, s.stop.attr, s.step.attr))


def _expression_count(s: ir.For) -> int:
    """The size of a straight-line body; beyond any limit where there is control flow."""
    if any(isinstance(inner, (ir.For, ir.If)) for inner in s.body):
        return 1 << 30
    return len(list(ir.body_expressions(s.body)))


def _is_prefetchable(e: ir.Expr, written: frozenset[Any], bound: set[ir.Expr]) -> bool:
    """Whether an expression depends on nothing that its loop writes or binds."""
    return not any(
        inner in bound
        or inner.op in ("read", "lanes_reduce", "slow_path", "carry")
        or (inner.op == "load" and inner.attr in written)
        for inner in post_order((e,), set())
    )
