"""Structured control flow in LLVM IR, shared by the SIMD and the SIMT renderers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from numus import ir
from numus.codegen.llvm.builder import IRBuilder, Value, register_type
from numus.codegen.llvm.context import Block, Context
from numus.codegen.llvm.divergence import written_by
from numus.errors import CompileError


class Control(ABC):
    """Emission of statements, into the builder `t`, with the expressions `x`."""

    t: IRBuilder
    x: Context
    # emission by statement class, of statements beyond control flow and assignment
    handlers: ClassVar[dict[type[ir.Stmt], Callable[[Any, Any], None]]]

    @abstractmethod
    def merge(self, body: list[ir.Stmt], first: int) -> int:
        """Emit statements from `first` on as one memory access; returns how many, 0 for none."""

    @abstractmethod
    def _lanes(self, s: ir.For, start: str, stop: str, step: str) -> None: ...

    @abstractmethod
    def _grid(self, s: ir.For, start: str, stop: str, step: str) -> None: ...

    def write_kernel(self, body: list[ir.Stmt], *, needs_grid: bool) -> None:
        """Emit a kernel's body, whose outermost statements are Lets and one grid loop."""
        grids = [s for s in body if isinstance(s, ir.For) and s.kind == "grid"]
        if len(grids) > 1 or (needs_grid and not grids):
            raise CompileError(f"a kernel must have one grid loop, not {len(grids)}")
        if grids and not all(s is grids[0] or isinstance(s, ir.Let) for s in body):
            raise CompileError("outside its grid loop a kernel must only bind values (Let)")
        self.write_body(body)

    def write_body(self, body: list[ir.Stmt]) -> None:
        """Emit a list of statements."""
        self.x.blocks.append(Block(body))
        at = 0
        while at < len(body):
            s, merged = body[at], self.merge(body, at)
            if not merged:
                self._statement(s)
            if isinstance(s, ir.Store):
                self.x.invalidate((s.buffer,))
            at += merged or 1
        self.x.blocks.pop()

    def _statement(self, s: ir.Stmt) -> None:
        if isinstance(s, ir.Let):
            self._let(s)
        elif isinstance(s, ir.Set):
            self._set(s)
        elif isinstance(s, ir.If):
            self._if(s)
        elif isinstance(s, ir.For):
            self._for(s)
        elif type(s) in self.handlers:
            self.handlers[type(s)](self, s)
        else:
            raise CompileError(f"not a statement for this target: {s!r:.200}")

    def _let(self, s: ir.Let) -> None:
        x = self.x
        v = x.value(s.value)
        if x.lane is not None:
            x.lane.strides.bind(s.var, s.value)
            if v.vec and x.lane.strides.of(s.var) is not None:
                x.bind(x.bases, s.var, x.base(s.value))
        x.bind(x.values, s.var, v)

    def _set(self, s: ir.Set) -> None:
        x, register = self.x, s.register
        v = x.value(s.value)
        if v.vec and not register.lanes:
            raise CompileError(f"uniform register {register.name!r} is set to a varying value")
        ty = x.register_shape(register).type(register.dtype)
        for slot, name in x.assignment(register, v):
            self.t.do(f"store {ty} {name}, ptr {slot}")
        x.invalidate((register,))

    def _if(self, s: ir.If) -> None:
        condition = self.x.uniform(s.condition, "the condition of an If")
        if condition == "true":
            with self.x.scope():
                self.write_body(s.body)
        elif condition != "false":
            with self.t.conditional(condition, "then"), self.x.scope("branch"):
                self.write_body(s.body)

    # -- loops ------------------------------------------------------------------------------------

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

    def _unrolled(self, s: ir.For) -> None:
        if not all(e.op == "const" for e in (s.start, s.stop, s.step)):
            raise CompileError("an unrolled loop must have constant bounds")
        for i in range(s.start.attr, s.stop.attr, s.step.attr):
            with self.x.scope():
                self.iteration(s, str(i))

    def loop(
        self, start: str, stop: str, step: str, body: Callable[[str], None], ty: str = "i64"
    ) -> None:
        """A rotated counted loop; `body` emits an iteration in the loop's scope."""
        t = self.t
        down = step.startswith("-")
        order = "sgt" if down else "slt"
        top, done = t.label("loop"), t.label("done")
        if start.startswith("%") or stop.startswith("%"):
            entry = t.label("ahead")
            t.branch(t.new(f"icmp {order} {ty} {start}, {stop}"), entry, done)
            t.start(entry)
        elif (int(start) <= int(stop)) if down else (int(start) >= int(stop)):
            return
        preheader: list[str] = []
        t.body.append(preheader)
        t.jump(top)
        predecessor = t.block
        t.start(top)
        i, successor = t.name("i"), t.name("i")
        phi = len(t.body)
        t.body.append("")
        with self.x.scope("loop", preheader):
            body(i)
        t.do(f"{successor} = add nsw {ty} {i}, {step}")
        t.body[phi] = f"  {i} = phi {ty} [ {start}, %{predecessor} ], [ {successor}, %{t.block} ]"
        t.branch(t.new(f"icmp {order} {ty} {successor}, {stop}"), top, done)
        t.start(done)

    def _serial(self, s: ir.For, start: str, stop: str, step: str) -> None:
        self.loop(start, stop, step, lambda i: self.iteration(s, i), register_type(s.var.dtype))

    def trip_count(self, start: str, stop: str, step: str) -> str:
        """The number of iterations: a literal where known."""
        t = self.t
        if not any(e.startswith("%") for e in (start, stop, step)):
            return str(len(range(int(start), int(stop), int(step))))
        n = stop if start == "0" else t.new(f"sub i64 {stop}, {start}")
        if step != "1":
            n = t.new(f"sub i64 {t.new(f'add i64 {n}, {step}')}, 1")
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
