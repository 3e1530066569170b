"""Register-resident loops: each thread handles all of its iterations at once, in registers.

All loads are in flight at a time, by vectors where memory is aligned (tested at run time).
Iterations past the end are predicated off.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from numus import ir
from numus.codegen.llvm.builder import Value
from numus.codegen.llvm.divergence import is_computable
from numus.codegen.nvptx import analysis, thread_loops
from numus.codegen.nvptx.context import KernelContext

Known = Sequence[tuple[ir.Expr, Value]]


def write(r: KernelContext, s: ir.For, count: str) -> None:
    """A resident loop of `count` iterations."""
    t = r.t
    vectors, width = r.shapes[s]
    first = r.thread if width == 1 else t.new(f"mul i64 {r.thread}, {width}")
    starts = [v * r.block_threads * width for v in range(vectors)]
    active: list[str] = []
    if count != str(vectors * width * r.block_threads):
        active = ["true"] * (s.full_vectors * width)
        for start in starts[s.full_vectors :]:
            at = t.new(f"add i64 {first}, {start}") if start else first
            active += [t.new(f"icmp slt i64 {at}, {count}")] * width
    offsets = tuple(start + u for start in starts for u in range(width))
    aligned = (thread_loops.aligned(r, s, "0", "1", width) or "false") if width > 1 else "true"
    loop = _Loop(r, s, first, offsets, active, width)
    if aligned in ("true", "false"):
        loop.write(width if aligned == "true" else 1)
        return
    arms = ("vector", lambda: loop.write(width)), ("scalar", lambda: loop.write(1))
    t.either(aligned, *arms)


@dataclass(slots=True)
class _Loop:
    """A resident loop; slices select some of its iterations."""

    r: KernelContext
    s: ir.For
    first: str
    offsets: tuple[int, ...]
    active: list[str]  # predicates; empty: all
    width: int

    def write(self, access: int) -> None:
        """Issue the loads of the row, then compute vector by vector. Transient loads are issued
        with them if registers suffice, or else one vector ahead."""
        x = self.r.x
        upfront, ahead = self._loads()
        if self.r.issue_loads_first:
            upfront, ahead = [*upfront, *ahead], []
        with x.scope("branch"):
            for e in analysis.invariant_floats(self.s):  # else each branch would recompute them
                x.value(e)
            loaded = self._emit(upfront, slice(None), access)
            vectors = [slice(k, k + self.width) for k in range(0, len(self.offsets), self.width)]
            own = self._emit(ahead, vectors[0], access)
            results = self._results() if ahead else []
            found: list[Known] = []
            for at, following in zip(vectors, [*vectors[1:], None], strict=True):
                next_own = [] if following is None else self._emit(ahead, following, access)
                row = [(e, Value(v.names[at] if v.vec else v.names, v.vec)) for e, v in loaded]
                known: Known = [*row, *own]
                if results and self._is_full(at):
                    known = self._emit(results, at, access, known)
                if results:
                    found.append(known)
                else:
                    self._vector(at, access, known)
                own = next_own
            for at, known in zip(vectors, found, strict=False):
                self._vector(at, access, known)

    def _is_full(self, at: slice) -> bool:
        """Whether iterations exist for every thread."""
        return not self.active or self.active[at.start] == "true"

    def _results(self) -> list[ir.Expr]:
        """Stored values of a loop that only stores: all are computed before the first store, which
        no later load could be moved across."""
        stores = [y for y in self.s.body if isinstance(y, ir.Store)]
        only_stores = len(stores) == len(self.s.body) and self._is_full(slice(0, None))
        return [y.value for y in stores] if only_stores else []

    def _vector(self, at: slice, access: int, known: Known) -> None:
        """The body for some of the iterations, predicated."""
        r, full = self.r, self._is_full(at)
        active = nullcontext() if full else r.t.conditional(self.active[at.start], "active")
        with active, r.x.scope("branch"):
            self._enter(at, access, known)
            r.write_body(self.s.body)

    def _enter(self, at: slice, access: int, known: Known) -> None:
        """Begin some of the iterations, with known values."""
        x = self.r.x
        thread_loops.enter(self.r, self.s, self.first, "1", self.offsets[at], access)
        x.thread_lane.slot = at.start or 0
        for e, v in known:
            x.bind(x.values, e, Value(v.names, v.vec, x.depth))

    def _emit(self, values: list[ir.Expr], at: slice, access: int, known: Known = ()) -> Known:
        x = self.r.x
        with x.scope("branch"):
            self._enter(at, access, known)
            x.thread_lane.active = tuple(self.active[at])
            return [(e, x.value(e)) for e in values]

    def _loads(self) -> tuple[list[ir.Expr], list[ir.Expr]]:
        """(loads issued together, loads issued one vector ahead): of the kernel's first resident
        loop all, of others those set to registers; and transient ones."""
        r, s = self.r, self.s
        transient = analysis.transient_loads(s)
        plain = [e for e in ir.loads(s.body) if len(e.args) == 1]
        found = [e for e in plain if is_computable(e.args[0], r.x.values, s.var)]
        is_first = r.resident_loops[0] is s
        ahead = [] if is_first else [e for e in found if e in transient]
        set_values = [y.value for y in s.body if isinstance(y, ir.Set)]
        return [e for e in found if is_first or e in set_values], ahead
