"""Conditions and the insides of loops in LLVM IR: the same for vectors and for threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from numus import ir
from numus.codegen.llvm.builder import IRBuilder, Value
from numus.codegen.llvm.expressions import Expressions
from numus.errors import CompileError


class Control(ABC):
    """What writes a kernel's statements, with the text `t` and the expressions `x`."""

    t: IRBuilder
    x: Expressions

    @abstractmethod
    def _block(self, body: list[ir.Stmt]) -> None:
        """Write a list of statements."""

    def _let(self, s: ir.Let) -> None:
        x = self.x
        v = x.value(s.value)
        if x.lane is not None:
            x.lane.growths.bind(s.var, s.value)
            if v.vec and x.lane.growths.of(s.var) is not None:
                x.remember(x.bases, s.var, x.base(s.value))
        x.remember(x.values, s.var, v)

    def _scoped(self, body: list[ir.Stmt], kind: str) -> None:
        self.x.push(kind)
        self._block(body)
        self.x.pop()

    def _if(self, s: ir.If) -> None:
        t = self.t
        condition = self.x.uniform(s.condition, "the condition of an If")
        if condition in ("true", "false"):
            if condition == "true":
                self._scoped(s.body, "plain")
            return
        yes, done = t.label("then"), t.label("done")
        t.branch(condition, yes, done)
        t.start(yes)
        self._scoped(s.body, "branch")
        t.jump(done)
        t.start(done)

    def loop(
        self, start: str, stop: str, step: str, body: Callable[[str], None], ty: str = "i64"
    ) -> None:
        """A counted loop, tested at its end; `body` writes an iteration in the loop's scope."""
        t = self.t
        down = step.startswith("-")
        order = "sgt" if down else "slt"
        top, done = t.label("loop"), t.label("done")
        constant = not start.startswith("%") and not stop.startswith("%")
        if constant:
            if (int(start) <= int(stop)) if down else (int(start) >= int(stop)):
                return
        else:
            ahead = t.label("ahead")
            t.branch(t.new(f"icmp {order} {ty} {start}, {stop}"), ahead, done)
            t.start(ahead)
        before: list[str] = []
        t.body.append(before)
        t.jump(top)
        came_from = t.block
        t.start(top)
        i, following = t.name("i"), t.name("i")
        phi = len(t.body)
        t.body.append("")
        self.x.push("loop", before)
        body(i)
        self.x.pop()
        t.do(f"{following} = add nsw {ty} {i}, {step}")
        t.body[phi] = f"  {i} = phi {ty} [ {start}, %{came_from} ], [ {following}, %{t.block} ]"
        t.branch(t.new(f"icmp {order} {ty} {following}, {stop}"), top, done)
        t.start(done)

    def trips(self, start: str, stop: str, step: str) -> str:
        """How many iterations a loop has: a literal where that is known."""
        t = self.t
        if not any(e.startswith("%") for e in (start, stop, step)):
            return str(len(range(int(start), int(stop), int(step))))
        n = stop if start == "0" else t.new(f"sub i64 {stop}, {start}")
        if step != "1":
            n = t.new(f"add i64 {n}, {step}")
            n = t.new(f"sub i64 {n}, 1")
            n = t.new(f"sdiv i64 {n}, {step}")
        return t.call("i64", "llvm.smax.i64", ("i64", n), ("i64", "0"))

    def _iteration(self, s: ir.For, value: str) -> None:
        """The body of a loop, inside a scope of its own, for one value of its variable."""
        self._count(s, value)
        self._block(s.body)

    def _count(self, s: ir.For, value: str) -> None:
        """Give a loop's variable a value, in the current scope."""
        x = self.x
        x.remember(x.values, s.var, Value((value,), False, x.depth))
        if x.lane is not None:
            x.lane.growths.known[s.var] = 0

    def _unrolled(self, s: ir.For) -> None:
        if not all(e.op == "const" for e in (s.start, s.stop, s.step)):
            raise CompileError("an unrolled loop needs constant bounds")
        for i in range(s.start.attr, s.stop.attr, s.step.attr):
            self.x.push()
            self._iteration(s, str(i))
            self.x.pop()
