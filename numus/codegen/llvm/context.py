"""Emission context of a kernel in LLVM IR: bindings, scopes, loop-invariant code motion, lanes.

Modules that emit one kind of operation know this class alone. Inside a lanes loop a varying value
is `unroll` vectors emitted side by side, so that inner loops and conditions are shared by them; a
uniform value stays scalar and is splat where a vector is needed.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numus import ir
from numus.codegen import invalidation
from numus.codegen.invalidation import MemoryDependences, UndoLog
from numus.codegen.llvm.builder import SCALAR, IRBuilder, Shape, Value, register_type
from numus.codegen.llvm.divergence import LanePlan, LaneStrides
from numus.dtypes import DType
from numus.errors import CompileError

T = TypeVar("T")


@dataclass(slots=True)
class Lane:
    """The lanes loop being emitted."""

    var: ir.Expr
    strides: LaneStrides
    shape: Shape
    unroll: int
    first: Value  # the scalar value of `var` in lane 0 of vector 0
    step: Value
    mask: Value | None = None  # active lanes, where not all are
    live_in: frozenset[ir.Register] = frozenset()
    nontemporal: frozenset[ir.Store] = frozenset()
    aligned: bool = False  # lane 0 of every vector is at a multiple of the width


@dataclass(slots=True)
class Block:
    """The statement list being emitted, and its loads that are made together: pairs of stride 2
    (complex numbers), adjacent elements of lanes that lie apart."""

    body: list[ir.Stmt]
    pairs: dict[ir.Expr, tuple[ir.Expr, ir.Expr]] | None = None
    groups: dict[ir.Expr, list[ir.Expr]] | None = None  # loads that are transposed together


@dataclass(slots=True)
class Scope:
    """A region of the program: "loop", "branch" (conditional), or "plain"."""

    kind: str
    preheader: list[Any]
    undo: UndoLog = field(default_factory=list)


@dataclass(slots=True)
class Context(ABC):
    """State of emission; bindings are undone when their scope ends."""

    plan: LanePlan
    t: IRBuilder
    scalars: dict[str, str]
    buffers: dict[ir.Buffer, str]
    tags: dict[ir.Buffer, str]  # metadata of each buffer's accesses
    lane: Lane | None = None
    registers: dict[ir.Register, list[str]] = field(default_factory=dict)
    values: dict[ir.Expr, Value] = field(default_factory=dict)
    bases: dict[ir.Expr, Value] = field(default_factory=dict)  # lane-0 values of affine indices
    splats: dict[str, str] = field(default_factory=dict)
    dependences: MemoryDependences = field(default_factory=MemoryDependences)
    scopes: list[Scope] = field(default_factory=lambda: [Scope("branch", [])])
    blocks: list[Block] = field(default_factory=list)
    # quotients of 64-bit vectors by the names of their operands, see int_division.py
    quotients: dict[tuple[tuple[str, ...], ...], tuple[tuple[str, str, str], ...]] = field(
        default_factory=dict
    )
    division_scratch: tuple[str, str] | None = None

    @abstractmethod
    def value(self, root: ir.Expr) -> Value:
        """Emit an expression, unless it is emitted already."""

    @abstractmethod
    def base(self, e: ir.Expr) -> Value:
        """The scalar value of an affine index in the first lane."""

    @abstractmethod
    def splat(self, scalar_type: str, v: Value, shape: Shape) -> str:
        """A scalar in every lane."""

    @abstractmethod
    def uniform(self, e: ir.Expr, what: str) -> str:
        """The scalar of an expression that must be uniform."""

    @abstractmethod
    def any(self, condition: Value) -> str:
        """Whether a condition holds in any active lane."""

    @abstractmethod
    def register_shape(self, register: ir.Register) -> Shape:
        """The shape of one slot of a register."""

    @abstractmethod
    def assignment(self, register: ir.Register, v: Value) -> Iterable[tuple[str, str]]:
        """(slot, name to store) pairs that set a register to a value."""

    # -- scopes -----------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    def push(self, kind: str = "plain", preheader: list[Any] | None = None) -> None:
        self.scopes.append(Scope(kind, [] if preheader is None else preheader))

    def pop(self) -> None:
        invalidation.undo(self.scopes.pop().undo)

    @contextlib.contextmanager
    def scope(self, kind: str = "plain", preheader: list[Any] | None = None) -> Iterator[None]:
        """A scope; a lanes loop begun in it ends with it."""
        lane = self.lane
        self.push(kind, preheader)
        yield
        self.pop()
        self.lane = lane

    def bind(self, table: dict[Any, Any], key: Any, value: Any, home: int = -1) -> None:
        """Set an entry of a table until the scope `home` ends."""
        invalidation.bind(self.scopes[home].undo, table, key, value)

    def insertion_point(self, level: int) -> tuple[int, list[Any]]:
        """(scope until whose end it is valid, lines) for a value that depends on `level`.

        Hoisted out of every loop inside `level`, but not out of branches; a preheader runs only if
        its loop does.
        """
        home, lines = self.depth, self.t.body
        for j in range(self.depth, level, -1):
            scope = self.scopes[j]
            if scope.kind == "branch":
                break
            if scope.kind == "loop":
                home, lines = j, scope.preheader
            elif lines is self.t.body:
                home = j - 1
        return home, lines

    def hoisted(self, level: int, emit: Callable[[], T]) -> tuple[T, int]:
        """Emit at the insertion point of `level`; (result, scope until whose end it is valid)."""
        home, lines = self.insertion_point(level)
        saved, self.t.lines = self.t.lines, lines
        found = emit()
        self.t.lines = saved
        return found, home

    def define(self, e: ir.Expr, v: Value, home: int = -1) -> None:
        self.dependences.record(e)
        self.bind(self.values, e, v, home)

    def invalidate(self, written: Iterable[Any]) -> None:
        """Drop values computed from registers or buffers that are written."""
        for e in self.dependences.invalidated_by(written):
            self.values.pop(e, None)
            self.bases.pop(e, None)

    # -- lanes ------------------------------------------------------------------------------------

    def lane_stride(self, e: ir.Expr) -> int | None:
        return 0 if self.lane is None else self.lane.strides.of(e)

    @property
    def current_lane(self) -> Lane:
        assert self.lane is not None
        return self.lane

    def vectors(self, v: Value, dtype: DType) -> tuple[str, ...]:
        """A value as the vectors of the current lanes loop."""
        if v.vec:
            return v.names
        lane = self.current_lane
        return (self.splat(register_type(dtype), v, lane.shape),) * lane.unroll

    def each(self, args: Iterable[ir.Expr], emit: Callable[..., str]) -> Value:
        """Emit an operation on scalars, or once per vector if an argument varies."""
        operands = [(self.values[a], a.dtype) for a in args]
        if not any(v.vec for v, _ in operands):
            return Value((emit(SCALAR, *(v.names[0] for v, _ in operands)),), False)
        columns = [self.vectors(v, dtype) for v, dtype in operands]
        shape = self.current_lane.shape
        return Value(tuple(emit(shape, *names) for names in zip(*columns, strict=True)), True)

    def storage(self, register: ir.Register) -> list[str]:
        """The stack slots of a register, promoted to machine registers by LLVM."""
        slots = self.registers.get(register)
        if slots is None:
            count = self.plan.vectors.get(register, 1) if register.lanes else 1
            ty = self.register_shape(register).type(register.dtype)
            slots = self.registers[register] = [self.t.alloca(ty) for _ in range(count)]
        return slots


def lanes_outside_loop(register: ir.Register) -> CompileError:
    return CompileError(
        f"register {register.name!r} has lanes: outside a lanes loop it can only be reduced"
    )
