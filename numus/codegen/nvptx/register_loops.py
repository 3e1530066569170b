"""Loops all of whose iterations threads hold at once: what is read is all under way at a time, and
registers keep it for the loops to come.

By vectors where memory is aligned, which is found out at run time. What threads have more of than
there are iterations reads, stores and sets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numus import ir
from numus.codegen.llvm.builder import Value
from numus.codegen.llvm.divergence import computed_from
from numus.codegen.nvptx import analysis, thread_loops

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

Known = Sequence[tuple[ir.Expr, Value]]


def write(r: Renderer, s: ir.For, count: str) -> None:
    """A held loop of `count` iterations."""
    t = r.t
    many, width = r.shapes[s]
    first = r.thread if width == 1 else t.new(f"mul i64 {r.thread}, {width}")
    starts = [v * r.group * width for v in range(many)]
    active: list[str] = []  # whether an iteration exists; none where all do
    if count != str(many * width * r.group):
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
    whole, single, done = t.label("whole"), t.label("single"), t.label("done")
    t.branch(aligned, whole, single)
    for label, vector in ((whole, width), (single, 1)):
        t.start(label)
        loop.write(vector)
        t.jump(done)
    t.start(done)


class _Loop:
    def __init__(
        self,
        r: Renderer,
        s: ir.For,
        first: str,
        offsets: tuple[int, ...],
        active: list[str],
        width: int,
    ) -> None:
        self.r, self.s, self.first = r, s, first
        self.offsets, self.active, self.width = offsets, active, width

    def write(self, vector: int) -> None:
        """What the row is read for begins before anything waits; then one vector after the other,
        where it exists. What else it needs begins at once as well, if there is room, or while the
        vector before is computed."""
        x = self.r.x
        early, late = self._loads()
        if self.r.at_once:
            early, late = [*early, *late], []
        x.push("branch")
        for e in analysis.steady(self.s):  # branches would keep to themselves what they compute
            x.value(e)
        ahead = self._begun(early, slice(None), vector)
        starts = range(0, len(self.offsets), self.width)
        vectors = [slice(k, k + self.width) for k in starts]
        own = self._begun(late, vectors[0], vector)
        results = self._results() if late else []
        found: list[Known] = []
        for at, following in zip(vectors, [*vectors[1:], None], strict=True):
            next_own = [] if following is None else self._begun(late, following, vector)
            whole = [(e, Value(v.names[at] if v.vec else v.names, v.vec)) for e, v in ahead]
            known: Known = [*whole, *own]
            if results and self._is_full(at):
                known = self._begun(results, at, vector, known)
            if results:
                found.append(known)
            else:
                self._vector(at, vector, known)
            own = next_own
        for at, known in zip(vectors, found, strict=False):
            self._vector(at, vector, known)
        x.pop()

    def _is_full(self, at: slice) -> bool:
        """Whether some of the iterations exist for every thread."""
        return not self.active or self.active[at.start] == "true"

    def _results(self) -> list[ir.Expr]:
        """What is stored, of a loop that does nothing else: all of it is computed before the first
        is stored, since no load may go before a store that could be to the same memory."""
        stores = [y for y in self.s.body if isinstance(y, ir.Store)]
        alone = len(stores) == len(self.s.body) and self._is_full(slice(0, None))
        return [y.value for y in stores] if alone else []

    def _vector(self, at: slice, vector: int, known: Known) -> None:
        """The body for some of the iterations, if they exist."""
        r, t, x = self.r, self.r.t, self.r.x
        yes, done = t.label("there"), t.label("done")
        full = self._is_full(at)
        if not full:
            t.branch(self.active[at.start], yes, done)
            t.start(yes)
        x.push("branch")
        self._enter(at, vector, known)
        r._block(self.s.body)
        x.lane = None
        x.pop()
        if not full:
            t.jump(done)
            t.start(done)

    def _enter(self, at: slice, vector: int, known: Known) -> None:
        """Begin some of the iterations, of which some values are known."""
        r, x = self.r, self.r.x
        thread_loops.enter(r, self.s, self.first, "1", self.offsets[at], vector)
        x.thread_lane.slot = at.start or 0
        for e, v in known:
            x.remember(x.values, e, Value(v.names, v.vec, x.depth))

    def _begun(
        self,
        values: list[ir.Expr],
        at: slice,
        vector: int,
        known: Known = (),
    ) -> Known:
        """Values of some of the iterations."""
        x = self.r.x
        x.push("branch")
        self._enter(at, vector, known)
        x.thread_lane.active = tuple(self.active[at])
        found = [(e, x.value(e)) for e in values]
        x.lane = None
        x.pop()
        return found

    def _loads(self) -> tuple[list[ir.Expr], list[ir.Expr]]:
        """The loads that begin together: of a kernel's first such loop all, of others those of what
        threads keep; and those that begin a vector ahead."""
        r, s = self.r, self.s
        besides = analysis.read_besides(s)
        found = [
            e
            for e in analysis.loads(s)
            if len(e.args) == 1 and computed_from(e.args[0], r.x.values, s.var)
        ]
        late = [] if r.held[0] is s else [e for e in found if e in besides]
        kept = [y.value for y in s.body if isinstance(y, ir.Set)]
        return [e for e in found if r.held[0] is s or e in kept], late
