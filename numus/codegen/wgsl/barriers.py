"""How a group of threads shares a kernel's statements, and where its threads must meet.

A lanes loop is shared by all threads. Everything else is *uniform* and every thread runs it, but
for stores, which the first thread makes: a loop that stores and holds no lanes is run by that
thread alone. Where one thread touches memory that another has written (or writes what another has
read) since they last met, a barrier stands between: one for the group's own memory alone wherever
that is enough, since a barrier for buffers waits for all loads that are under way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from numus import ir
from numus.ir import Expr, expressions_of, post_order, statements

ALL, FIRST = "all", "first"  # who runs a statement
NEAR, FAR = "near", "far"  # a barrier for the group's own memory; one for buffers too


def has_lanes(body: Iterable[ir.Stmt]) -> bool:
    """Whether some of the work is shared between threads."""
    return any(
        (isinstance(s, ir.For) and s.kind == "lanes") or is_meeting(s) for s in statements(body)
    )


def is_meeting(s: ir.Stmt) -> bool:
    """Whether threads merge what they have."""
    return isinstance(s, (ir.BlockReduce, ir.BlockScan)) or bool(reductions(s))


def reductions(s: ir.Stmt) -> list[Expr]:
    """The reductions of lanes in what a statement evaluates."""
    return [e for e in post_order(expressions_of(s), set()) if e.op == "lanes_reduce"]


def is_solo(s: ir.Stmt) -> bool:
    """Whether one thread runs a uniform statement for all."""
    if isinstance(s, ir.Store):
        return True
    if not isinstance(s, (ir.For, ir.If)) or has_lanes([s]):
        return False
    inner = list(statements([s]))
    stores = any(isinstance(x, ir.Store) for x in inner)
    return stores and not any(is_meeting(x) for x in inner)


@dataclass(slots=True)
class Touched:
    """Memory that a statement reads and writes, of that which anybody writes."""

    reads: set[ir.Buffer] = field(default_factory=set)
    writes: set[ir.Buffer] = field(default_factory=set)


def touched(body: Iterable[ir.Stmt]) -> Touched:
    out = Touched()
    seen: set[Expr] = set()
    for s in statements(body):
        for e in post_order(expressions_of(s), seen):
            if e.op == "load" and e.attr.access != "read":
                out.reads.add(e.attr)
        if isinstance(s, ir.Store):
            out.writes.add(s.buffer)
    return out


Pending = set[tuple[str, str, ir.Buffer]]  # (who, "r" or "w", what) since the last barrier


class Meetings:
    """Knows what threads have done to memory since they last met."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.pending: Pending = set()
        self.private = _private(kernel)
        self.near: set[ir.Buffer] = set()  # those in the group's own memory

    def before(self, who: str, what: Touched) -> str:
        """What must stand between what was done and this: nothing, a barrier for the group's
        memory, or one for buffers as well."""
        clashing = self._clashing(who, what)
        if not clashing:
            return ""
        return NEAR if clashing <= self.near else FAR

    def _clashing(self, who: str, what: Touched) -> set[ir.Buffer]:
        """The memory because of which threads must meet before one (or all) of them do this."""
        pending, out = self.pending, set()
        for b in what.reads - self.private:
            if (ALL, "w", b) in pending or (who == ALL and (FIRST, "w", b) in pending):
                out.add(b)
        other = FIRST if who == ALL else ALL
        for b in what.writes - self.private:
            if (ALL, "r", b) in pending or (who == ALL and (FIRST, "r", b) in pending):
                out.add(b)
            # scratch may be filled twice, an element by one thread first and then by another
            if who == ALL and b.access == "scratch" and (ALL, "w", b) in pending:
                out.add(b)
            if (other, "w", b) in pending:
                out.add(b)
        return out

    def note(self, who: str, what: Touched) -> None:
        self.pending |= {(who, "r", b) for b in what.reads - self.private}
        self.pending |= {(who, "w", b) for b in what.writes - self.private}

    def met(self, where: str) -> None:
        """Threads have met at a barrier of this kind."""
        if where == FAR:
            self.pending.clear()
        else:
            self.pending = {x for x in self.pending if x[2] not in self.near}

    def merged(self) -> None:
        """Threads have merged what they have, through the group's memory."""
        self.met(NEAR)

    def after(self, body: list[ir.Stmt]) -> Pending:
        """What would be pending after a body, which a loop then runs again."""
        saved = set(self.pending)
        self._walk(body)
        found, self.pending = self.pending, saved
        return found

    def _walk(self, body: list[ir.Stmt]) -> None:
        for s in body:
            if isinstance(s, (ir.For, ir.If)) and s_is_shared(s):
                self._step(ALL, touched_head(s))
                before = set(self.pending)
                self._walk(s.body)
                self.pending |= before  # the body may not run at all
            else:
                self._step(FIRST if is_solo(s) else ALL, touched([s]))
            if is_meeting(s):
                self.merged()

    def _step(self, who: str, what: Touched) -> None:
        barrier = self.before(who, what)
        if barrier:
            self.met(barrier)
        self.note(who, what)


def s_is_shared(s: ir.For | ir.If) -> bool:
    """A loop or condition with lanes inside, but no lanes loop itself."""
    return not (isinstance(s, ir.For) and s.kind == "lanes") and has_lanes([s])


def touched_head(s: ir.Stmt) -> Touched:
    """What a statement reads before its body."""
    out = Touched()
    for e in post_order(expressions_of(s), set()):
        if e.op == "load" and e.attr.access != "read":
            out.reads.add(e.attr)
    return out


# -- scratch that only looks shared ---------------------------------------------------------------


def _private(kernel: ir.Kernel) -> set[ir.Buffer]:
    """Scratch each element of which only one thread ever touches: every access is in a lanes loop,
    and in all of them the same iteration of loops over the same range has the same element.
    """
    forms: dict[ir.Buffer, set[tuple[object, ...]]] = {}
    shared: set[ir.Buffer] = set()
    scratch = {b for b in kernel.buffers if b.access == "scratch"}
    if not scratch:
        return set()
    _collect(kernel.body, {}, None, forms, shared)
    return {b for b in scratch if b not in shared and len(forms.get(b, ())) == 1}


def _collect(
    body: Iterable[ir.Stmt],
    names: dict[Expr, object],
    lane: ir.For | None,
    forms: dict[ir.Buffer, set[tuple[object, ...]]],
    shared: set[ir.Buffer],
) -> None:
    for s in body:
        accesses = [
            (e.attr, e.args[0]) for e in post_order(expressions_of(s), set()) if e.op == "load"
        ]
        if isinstance(s, ir.Store):
            accesses.append((s.buffer, s.index))
        for buffer, index in accesses:
            if buffer.access != "scratch":
                continue
            form = None if lane is None else _form(index, names, lane)
            if form is None:
                shared.add(buffer)
            else:
                forms.setdefault(buffer, set()).add(form)
        if isinstance(s, ir.For):
            inner = dict(names)
            inner[s.var] = (s.kind, s.start, s.stop, s.step)
            _collect(s.body, inner, s if s.kind == "lanes" else lane, forms, shared)
        elif isinstance(s, ir.If):
            _collect(s.body, names, lane, forms, shared)


def _form(index: Expr, names: dict[Expr, object], lane: ir.For) -> tuple[object, ...] | None:
    """An index as a function of the ranges of its loops; None where lanes may share an element."""
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
    rest = [t for t in terms if t is not lane.var]
    parts: list[object] = []
    for t in rest:
        leaves = list(post_order((t,), set()))
        if lane.var in leaves or any(x.op in ("load", "read") for x in leaves):
            return None
        if any(x.op == "var" and x not in names for x in leaves):
            return None  # named by a Let, which may be another value elsewhere
        if any(x in names for x in leaves):
            # a serial loop's variable: equal in form where the loops are
            if t.op == "mul" and t.args[0] in names:
                parts.append((names[t.args[0]], t.args[1]))
                continue
            if t in names:
                parts.append(names[t])
                continue
        parts.append(t)
    return (lane.start, lane.stop, lane.step, frozenset(parts), len(parts))
