"""Lanes loops of threads that are lanes of a vector: each thread takes a run of neighbours.

Where software imitates a GPU, the lanes of a vector access memory one after the other, and each
access costs the same however much it brings. So a thread takes 4 or 8 neighbouring iterations, and
loads and stores what they touch at once. That takes accesses which begin runs at the same
iteration; whether they do is seen at run time, and what is left over is done one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numus.compiler import ir
from numus.compiler.ir import below, expressions_of, statements
from numus.compiler.render import wgsl_memory as memory
from numus.compiler.render.llvm_lanes import Growths
from numus.compiler.render.wgsl_memory import LONG, SHORT, Run, run_of
from numus.compiler.render.wgsl_values import Values

LIGHT, HEAVY = 90, 400  # expressions of an iteration up to which runs are long, or used at all

Wide = Callable[[ir.Buffer, Run], str | None]  # how runs of a buffer are accessed
Statement = Callable[[ir.Stmt], None]  # writes one for a thread by itself


class Runs:
    """Writes lanes loops by runs; `wide` gives the variable for runs of a buffer, if there is."""

    def __init__(self, x: Values, threads: int, statement: Statement, wide: Wide) -> None:
        self.x, self.threads, self.statement, self.wide = x, threads, statement, wide

    def write(self, s: ir.For, ty: str, start: str, stop: str) -> bool:
        """Write a loop, if it is one that gains by runs; whether it is."""
        x = self.x
        heavy = weight(s)
        if x.target.lockstep != self.threads or x.kernel.small or heavy > HEAVY:
            return False
        if s.step.op != "const" or s.step.attr != 1:
            return False
        run = run_of(LONG if heavy <= LIGHT else SHORT, x.target.i64)
        loads, stores = self._accesses(s, run)
        if not loads and not any(x.places[t.buffer].form == "plain" for t in stores):
            return False
        accesses: list[ir.Expr | ir.Store] = [*loads, *stores]
        write = partial(self._run, s, run, loads, stores)
        self.by_runs(s, ty, start, stop, run.count, accesses, write)
        return True

    def by_runs(
        self,
        s: ir.For,
        ty: str,
        start: str,
        stop: str,
        count: int,
        accesses: Sequence[ir.Expr | ir.Store],
        write: Callable[[str], None],
    ) -> None:
        """A loop over whole runs of `count` iterations, each of which begins where `accesses` begin
        runs of as many elements; `write` is given its first iteration. The others are done one by
        one before."""
        x = self.x
        x.forget(changed(s.body))
        middle, end = self._middle(s, ty, start, stop, count, accesses)
        self._one_by_one(s, ty, start, stop, middle, end)
        i = x.name("v")
        x.open(
            f"for (var {i}: {ty} = {middle} + {ty}(thread) * {count}; {i} < {end}; "
            f"{i} += {count * self.threads})"
        )
        write(i)
        x.close()
        x.forget(changed(s.body))

    def iteration(self, s: ir.For, at: str, apart: Sequence[ir.Store] = ()) -> list[str]:
        """One iteration, but for some stores: the bits that they would write."""
        x = self.x
        x.remember(x.values, s.var, at)
        bits: list[str] = []
        for inner in s.body:
            if isinstance(inner, ir.Store) and inner in apart:
                bits.append(memory.element_bits(x, inner))
            else:
                self.statement(inner)
        return bits

    def _accesses(self, s: ir.For, run: Run) -> tuple[list[ir.Expr], list[ir.Store]]:
        """Loads that runs have in common with their neighbours, and such stores."""
        x = self.x
        growths = Growths(s.var, s.step)
        for inner in s.body:
            if isinstance(inner, ir.Let):
                growths.bind(inner.var, inner.value)
        changes = changed(s.body)
        named = {inner.var for inner in s.body if isinstance(inner, ir.Let)}
        loads: list[ir.Expr] = []
        touched = set()
        for e in _always(s.body):
            if e.op != "load":
                continue
            touched.add(e.attr)
            alone = len(e.args) == 1 and growths.of(e.args[0]) == 1
            if alone and is_free(e, changes, named) and self.wide(e.attr, run):
                loads.append(e)
        stores = []
        for t in s.body:
            if isinstance(t, ir.Store) and t.mask is None and t.buffer not in touched:
                packed = x.places[t.buffer].form == "shared"
                if growths.of(t.index) == 1 and (packed or self.wide(t.buffer, run)):
                    stores.append(t)
        return loads, stores

    def _middle(
        self,
        s: ir.For,
        ty: str,
        start: str,
        stop: str,
        count: int,
        accesses: Sequence[ir.Expr | ir.Store],
    ) -> tuple[str, str]:
        """The iterations from the first to the last whole run; none where runs do not agree."""
        x = self.x
        with x.scope():
            x.remember(x.values, s.var, start)
            places = [
                memory.address(x, x.places[a.attr], a.args[0])
                if isinstance(a, ir.Expr)
                else memory.address(x, x.places[a.buffer], a.index)
                for a in accesses
            ]
            firsts = [x.new(f"u32({place}) & {count - 1}u") for place in dict.fromkeys(places)]
        even = " && ".join(f"{first} == {firsts[0]}" for first in firsts[1:]) or "true"
        head = x.new(f"min({start} + {ty}(({count}u - {firsts[0]}) & {count - 1}u), {stop})")
        middle = x.new(f"max({start}, select({stop}, {head}, {even}))")
        return middle, x.new(f"{middle} + ({stop} - {middle}) / {count} * {count}")

    def _one_by_one(self, s: ir.For, ty: str, start: str, stop: str, middle: str, end: str) -> None:
        """What lies before and after the runs, in one loop."""
        x = self.x
        before = x.new(f"{middle} - {start}")
        count = x.new(f"{before} + max({stop} - {end}, 0)")
        j = x.name("v")
        x.open(f"for (var {j}: {ty} = {ty}(thread); {j} < {count}; {j} += {self.threads})")
        at = x.new(f"select({end} - {before}, {start}, {j} < {before}) + {j}")
        self.iteration(s, at)
        x.close()
        x.forget(changed(s.body))

    def _run(
        self, s: ir.For, run: Run, loads: list[ir.Expr], stores: list[ir.Store], i: str
    ) -> None:
        """The iterations of one run: what they load, each of them, what they store."""
        x = self.x
        parts: list[dict[ir.Expr, str]] = [{} for _ in range(run.count)]
        with x.scope():
            x.remember(x.values, s.var, i)
            for e in loads:
                at = memory.address(x, x.places[e.attr], e.args[0])
                vector = x.new(f"{self.wide(e.attr, run)}[({at}) >> {run.count.bit_length() - 1}u]")
                carrier = x.type_of(e.dtype)
                for k, known in enumerate(parts):
                    known[e] = x.new(run.part(vector, k, carrier))
        changes = changed(s.body)
        bits: list[list[str]] = []
        for k, known in enumerate(parts):
            x.forget(changes)
            with x.scope():
                for e, name in known.items():
                    x.remember(x.values, e, name)
                bits.append(self.iteration(s, x.new(f"{i} + {k}") if k else i, stores))
        x.forget(changes)
        with x.scope():
            x.remember(x.values, s.var, i)
            for number, t in enumerate(stores):
                self._store(t, run, [each[number] for each in bits])

    def _store(self, t: ir.Store, run: Run, bits: list[str]) -> None:
        x = self.x
        if x.places[t.buffer].form == "shared":
            for first in range(0, run.count, SHORT):
                memory.store_words(x, t, bits[first : first + SHORT], first)
            return
        memory.put_run(x, t, run, bits)


def _always(body: Sequence[ir.Stmt]) -> list[ir.Expr]:
    """What statements evaluate whatever the data are: the slow sides of guards are left out."""
    found: dict[ir.Expr, None] = {}
    stack = [e for s in body for e in expressions_of(s)]
    while stack:
        e = stack.pop()
        if e not in found:
            found[e] = None
            stack.extend((e.args[0], e.args[2]) if e.op == "guard" else e.args)
    return list(found)


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
    return sum(1 for inner in s.body for _ in below(expressions_of(inner), seen))


def is_free(e: ir.Expr, changes: list[Any], named: set[ir.Expr]) -> bool:
    """Whether an expression stands on nothing that its loop changes or names."""
    for inner in below((e,), set()):
        if inner in named or inner.op in ("read", "lanes_reduce", "guard"):
            return False
        if inner.op == "load" and inner.attr in changes:
            return False
    return True
