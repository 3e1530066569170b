"""Structured control flow in LLVM IR, shared by the SIMD and the SIMT renderers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from numus import ir
from numus.codegen.llvm.builder import IRBuilder, Value
from numus.codegen.llvm.context import Context
from numus.codegen.llvm.divergence import written_by
from numus.errors import CompileError


class Control(ABC):
    """Emission of statements, into the builder `t`, with the expressions `x`."""

    t: IRBuilder
    x: Context

    @abstractmethod
    def write_body(self, body: list[ir.Stmt]) -> None:
        """Emit a list of statements."""

    @abstractmethod
    def _lanes(self, s: ir.For, start: str, stop: str, step: str) -> None: ...

    @abstractmethod
    def _grid(self, s: ir.For, start: str, stop: str, step: str) -> None: ...

    @abstractmethod
    def _serial(self, s: ir.For, start: str, stop: str, step: str) -> None: ...

    def write_kernel(self, body: list[ir.Stmt], *, needs_grid: bool) -> None:
        """Emit a kernel's body, whose outermost statements are Lets and one grid loop."""
        grids = [s for s in body if isinstance(s, ir.For) and s.kind == "grid"]
        if len(grids) > 1 or (needs_grid and not grids):
            raise CompileError(f"a kernel must have one grid loop, not {len(grids)}")
        if grids and not all(s is grids[0] or isinstance(s, ir.Let) for s in body):
            raise CompileError("outside its grid loop a kernel must only bind values (Let)")
        self.write_body(body)

    def _for(self, s: ir.For) -> None:
        x = self.x
        bounds = [x.uniform(e, "a loop bound") for e in (s.start, s.stop, s.step)]
        if s.kind == "unroll":
            self._unrolled(s)
            return
        x.invalidate(written_by(s.body))
        if s.kind == "lanes" and x.lane is not None:
            raise CompileError("lanes loops must not be nested")
        emit = {"lanes": self._lanes, "grid": self._grid, "serial": self._serial}.get(s.kind)
        if emit is None:
            raise CompileError(f"unknown kind of loop: {s.kind!r}")
        emit(s, *bounds)

    def _let(self, s: ir.Let) -> None:
        x = self.x
        v = x.value(s.value)
        if x.lane is not None:
            x.lane.strides.bind(s.var, s.value)
            if v.vec and x.lane.strides.of(s.var) is not None:
                x.bind(x.bases, s.var, x.base(s.value))
        x.bind(x.values, s.var, v)

    def _scoped(self, body: list[ir.Stmt], kind: str) -> None:
        self.x.push(kind)
        self.write_body(body)
        self.x.pop()

    def _if(self, s: ir.If) -> None:
        condition = self.x.uniform(s.condition, "the condition of an If")
        if condition in ("true", "false"):
            if condition == "true":
                self._scoped(s.body, "plain")
            return
        with self.t.conditional(condition, "then"):
            self._scoped(s.body, "branch")

    def loop(
        self, start: str, stop: str, step: str, body: Callable[[str], None], ty: str = "i64"
    ) -> None:
        """A rotated counted loop; `body` emits an iteration in the loop's scope."""
        t = self.t
        down = step.startswith("-")
        order = "sgt" if down else "slt"
        top, done = t.label("loop"), t.label("done")
        constant = not start.startswith("%") and not stop.startswith("%")
        if constant:
            if (int(start) <= int(stop)) if down else (int(start) >= int(stop)):
                return
        else:
            entry = t.label("ahead")
            t.branch(t.new(f"icmp {order} {ty} {start}, {stop}"), entry, done)
            t.start(entry)
        preheader: list[str] = []
        t.body.append(preheader)
        t.jump(top)
        predecessor = t.block
        t.start(top)
        i, successor = t.name("i"), t.name("i")
        phi = len(t.body)
        t.body.append("")
        self.x.push("loop", preheader)
        body(i)
        self.x.pop()
        t.do(f"{successor} = add nsw {ty} {i}, {step}")
        t.body[phi] = f"  {i} = phi {ty} [ {start}, %{predecessor} ], [ {successor}, %{t.block} ]"
        t.branch(t.new(f"icmp {order} {ty} {successor}, {stop}"), top, done)
        t.start(done)

    def trip_count(self, start: str, stop: str, step: str) -> str:
        """The number of iterations: a literal where known."""
        t = self.t
        if not any(e.startswith("%") for e in (start, stop, step)):
            return str(len(range(int(start), int(stop), int(step))))
        n = stop if start == "0" else t.new(f"sub i64 {stop}, {start}")
        if step != "1":
            n = t.new(f"add i64 {n}, {step}")
            n = t.new(f"sub i64 {n}, 1")
            n = t.new(f"sdiv i64 {n}, {step}")
        return t.call("i64", "llvm.smax.i64", ("i64", n), ("i64", "0"))

    def iteration(self, s: ir.For, value: str) -> None:
        """Emit the body of a loop for one value of its variable, in the current scope."""
        self.bind_loop_var(s, value)
        self.write_body(s.body)

    def bind_loop_var(self, s: ir.For, value: str) -> None:
        """Bind a loop's variable in the current scope."""
        x = self.x
        x.bind(x.values, s.var, Value((value,), False, x.depth))
        if x.lane is not None:
            x.lane.strides.known[s.var] = 0

    def _unrolled(self, s: ir.For) -> None:
        if not all(e.op == "const" for e in (s.start, s.stop, s.step)):
            raise CompileError("an unrolled loop must have constant bounds")
        for i in range(s.start.attr, s.stop.attr, s.step.attr):
            self.x.push()
            self.iteration(s, str(i))
            self.x.pop()
