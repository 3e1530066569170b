"""Barrier analysis: where the threads of a workgroup must synchronise.

A lanes loop is shared by all threads. Everything else is uniform and every thread runs it, except
stores, which thread 0 makes: a loop that stores and has no lanes inside runs on thread 0 alone. A
barrier stands between accesses of different threads that conflict (read after write, write after
read or write). A workgroup barrier is used wherever it suffices, since a storage barrier waits for
all outstanding loads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, expressions_of, post_order, statements

ALL, FIRST = "all", "first"  # threads that run a statement
WORKGROUP, STORAGE = "workgroup", "storage"  # a barrier for workgroup memory; for buffers too


def _is_lanes_loop(s: ir.Stmt) -> bool:
    return isinstance(s, ir.For) and s.kind == "lanes"


def has_lanes(body: Iterable[ir.Stmt]) -> bool:
    """Whether threads share some of the iterations."""
    return any(_is_lanes_loop(s) or is_collective(s) for s in statements(body))


def is_collective(s: ir.Stmt) -> bool:
    """Whether all threads take part: a reduction or scan of the workgroup."""
    return isinstance(s, (ir.BlockReduce, ir.BlockScan)) or bool(reductions(s))


def reductions(s: ir.Stmt) -> list[Expr]:
    """The reductions of lanes among a statement's expressions."""
    return [e for e in post_order(expressions_of(s), set()) if e.op == "lanes_reduce"]


def runs_on_first(s: ir.Stmt) -> bool:
    """Whether thread 0 alone runs a uniform statement."""
    if isinstance(s, ir.Store):
        return True
    if not isinstance(s, (ir.For, ir.If)) or has_lanes([s]):
        return False
    return any(isinstance(x, ir.Store) for x in statements([s]))


def contains_lanes(s: ir.Stmt) -> bool:
    """Whether lanes loops stand inside a serial loop or condition."""
    return isinstance(s, (ir.For, ir.If)) and not _is_lanes_loop(s) and has_lanes([s])


@dataclass(slots=True)
class Accesses:
    """Writable memory that a statement reads and writes."""

    reads: set[ir.Buffer]
    writes: set[ir.Buffer]


def accesses(body: Iterable[ir.Stmt]) -> Accesses:
    writes = {s.buffer for s in statements(body) if isinstance(s, ir.Store)}
    return Accesses(_reads(ir.body_expressions(body)), writes)


def header_accesses(s: ir.Stmt) -> Accesses:
    """Accesses of a loop or condition before its body."""
    return Accesses(_reads(post_order(expressions_of(s), set())), set())


def _reads(expressions: Iterable[Expr]) -> set[ir.Buffer]:
    return {e.attr for e in expressions if e.op == "load" and e.attr.access != "read"}


Pending = set[tuple[str, str, ir.Buffer]]  # (threads, "r" or "w", buffer) since the last barrier


class BarrierAnalysis:
    """Accesses of threads since their last barrier."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.pending: Pending = set()
        self.private = _thread_private(kernel)
        self.workgroup_buffers: set[ir.Buffer] = set()

    def required(self, threads: str, by: Accesses) -> str:
        """The barrier needed before these accesses; "" for none."""
        conflicts = self._conflicts(threads, by)
        if not conflicts:
            return ""
        return WORKGROUP if conflicts <= self.workgroup_buffers else STORAGE

    def _conflicts(self, threads: str, by: Accesses) -> set[ir.Buffer]:
        def pending(access: str, b: ir.Buffer, *by: str) -> bool:
            return any((t, access, b) in self.pending for t in by)

        others = (ALL, FIRST) if threads == ALL else (ALL,)  # whose accesses may conflict
        out = {b for b in by.reads - self.private if pending("w", b, *others)}
        for b in by.writes - self.private:
            # two lanes loops may give one element of scratch to different threads
            writers = others if b.access == "scratch" else others[-1:]
            if pending("r", b, *others) or pending("w", b, *writers):
                out.add(b)
        return out

    def record(self, threads: str, by: Accesses) -> None:
        self.pending |= {(threads, "r", b) for b in by.reads - self.private}
        self.pending |= {(threads, "w", b) for b in by.writes - self.private}

    def passed(self, barrier: str) -> None:
        """All threads have passed a barrier of this kind."""
        if barrier == STORAGE:
            self.pending.clear()
        else:
            self.pending = {x for x in self.pending if x[2] not in self.workgroup_buffers}

    def pending_after(self, body: list[ir.Stmt]) -> Pending:
        """Accesses pending at the end of a loop body, when it runs again."""
        saved = set(self.pending)
        self._walk(body)
        found, self.pending = self.pending, saved
        return found

    def _walk(self, body: list[ir.Stmt]) -> None:
        for s in body:
            if isinstance(s, (ir.For, ir.If)) and contains_lanes(s):
                self._step(ALL, header_accesses(s))
                before = set(self.pending)
                self._walk(s.body)
                self.pending |= before  # the body may not run at all
            else:
                self._step(FIRST if runs_on_first(s) else ALL, accesses([s]))
            if is_collective(s):
                self.passed(WORKGROUP)

    def _step(self, threads: str, by: Accesses) -> None:
        barrier = self.required(threads, by)
        if barrier:
            self.passed(barrier)
        self.record(threads, by)


# -- thread-private scratch -----------------------------------------------------------------------

IndexForm = tuple[object, ...]
IndexForms = dict[ir.Buffer, set[IndexForm | None]]


def _thread_private(kernel: ir.Kernel) -> set[ir.Buffer]:
    """Scratch of which each element is accessed by one thread only: every access is in a lanes
    loop, and equal iterations of equal ranges access the same element in all of them.
    """
    forms: IndexForms = {}
    if any(b.access == "scratch" for b in kernel.buffers):
        _collect_forms(kernel.body, {}, None, forms)
    return {b for b, found in forms.items() if len(found) == 1 and None not in found}


def _collect_forms(
    body: Iterable[ir.Stmt], ranges: dict[Expr, object], lane: ir.For | None, forms: IndexForms
) -> None:
    for s in body:
        inner = post_order(expressions_of(s), set())
        indices = [(e.attr, e.args[0]) for e in inner if e.op == "load"]
        if isinstance(s, ir.Store):
            indices.append((s.buffer, s.index))
        for buffer, index in indices:
            if buffer.access == "scratch":
                form = None if lane is None else _index_form(index, ranges, lane)
                forms.setdefault(buffer, set()).add(form)
        if isinstance(s, ir.For):
            own = {**ranges, s.var: (s.kind, s.start, s.stop, s.step)}
            _collect_forms(s.body, own, s if s.kind == "lanes" else lane, forms)
        elif isinstance(s, ir.If):
            _collect_forms(s.body, ranges, lane, forms)


def _index_form(index: Expr, ranges: dict[Expr, object], lane: ir.For) -> IndexForm | None:
    """An index as a function of its loops' ranges; None where lanes may share an element."""
    terms: list[Expr] = []
    stack = [index]
    while stack:
        e = stack.pop()
        if e.op == "add":
            stack.extend(e.args)
        elif e.op == "sub" and e.args[1] is not lane.var:
            stack.append(e.args[0])
            terms.append(ir.unary("neg", e.args[1]))
        else:
            terms.append(e)
    if terms.count(lane.var) != 1:
        return None
    parts: list[object] = []
    for t in (t for t in terms if t is not lane.var):
        leaves = list(post_order((t,), set()))
        if lane.var in leaves or any(x.op in ("load", "read") for x in leaves):
            return None
        if any(x.op == "var" and x not in ranges for x in leaves):
            return None  # bound by a Let, which may have another value elsewhere
        if t.op == "mul" and t.args[0] in ranges:  # serial loops of equal range are equal
            parts.append((ranges[t.args[0]], t.args[1]))
        else:
            parts.append(ranges.get(t, t))
    return (lane.start, lane.stop, lane.step, frozenset(parts), len(parts))
