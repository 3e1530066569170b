"""Expressions in SIMD vectors."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from numus import ir
from numus.codegen.cpu import cross_lane, memory
from numus.codegen.llvm.builder import SCALAR, Shape, Value, register_type
from numus.codegen.llvm.context import lanes_outside_loop
from numus.codegen.llvm.expressions import Expressions
from numus.errors import CompileError


@dataclass(slots=True)
class VectorExpressions(Expressions):
    """Emission of expressions whose lanes are SIMD lanes."""

    def _load(self, e: ir.Expr) -> Value:
        return memory.load(self, e)

    def _load_level(self, e: ir.Expr) -> int:
        return memory.level(self, e)

    def _is_addressed_by_base(self, index: ir.Expr) -> bool:
        return self.lane_stride(index) in memory.VECTOR_STRIDES

    def _cross_lane(self, e: ir.Expr) -> Value:
        if e.op == "lanes_reduce":
            return cross_lane.reduce(self, *e.attr)
        if e.op == "lanes_min_where":
            register, values = e.attr
            return cross_lane.min_where(self, register, values, self.values[e.args[0]])
        return cross_lane.permute(self, e)

    def splat(self, scalar_type: str, v: Value, shape: Shape) -> str:
        name = v.names[0]
        if not name.startswith("%"):
            return shape.const(scalar_type, name)
        key = f"{shape.width} {name}"
        if key not in self.splats:
            ty, t = shape.of(scalar_type), self.t

            def emit() -> str:
                one = t.new(f"insertelement {ty} poison, {scalar_type} {name}, i64 0")
                zeros = f"<{shape.width} x i32> zeroinitializer"
                return t.new(f"shufflevector {ty} {one}, {ty} poison, {zeros}")

            splat, home = self.hoisted(v.level, emit)
            self.bind(self.splats, key, splat, home)
        return self.splats[key]

    def uniform(self, e: ir.Expr, what: str) -> str:
        v = self.value(e)
        if v.vec:
            raise CompileError(f"{what} varies between lanes: {e!r:.200}")
        return v.names[0]

    def any(self, condition: Value) -> str:
        t = self.t
        if not condition.vec:
            return condition.names[0]
        assert self.lane is not None
        i1 = t.ops(self.lane.shape, "i1")
        total = functools.reduce(lambda a, b: i1("or", a, b), condition.names)
        if self.lane.mask is not None:
            total = i1("and", total, self.lane.mask.names[0])
        return t.call("i1", f"llvm.vector.reduce.or.{i1.shape.suffix('i1')}", (i1.ty, total))

    def _lane_variable(self) -> Value:
        lane, t = self.lane, self.t
        assert lane is not None
        width, ty = lane.shape.width, lane.shape.of("i64")
        start = self.splat("i64", lane.first, lane.shape)
        step = self.splat("i64", lane.step, lane.shape)
        names = []
        for u in range(lane.unroll):
            offset = f"<{', '.join(f'i64 {u * width + i}' for i in range(width))}>"
            if lane.step.names[0] != "1":
                offset = t.new(f"mul {ty} {step}, {offset}")
            names.append(t.new(f"add {ty} {start}, {offset}"))
        return Value(tuple(names), True)

    # -- registers --------------------------------------------------------------------------------

    def register_shape(self, register: ir.Register) -> Shape:
        if not register.lanes:
            return SCALAR
        width = self.plan.register_widths.get(register)
        if width is None:
            raise CompileError(f"register {register.name!r} has lanes but no lanes loop uses it")
        return Shape(width)

    def _read(self, register: ir.Register) -> Value:
        shape = self.register_shape(register)
        ty = shape.type(register.dtype)
        if not register.lanes:
            return Value((self.t.new(f"load {ty}, ptr {self.storage(register)[0]}"),), False)
        if self.lane is None:
            raise lanes_outside_loop(register)
        slots = self.storage(register)[: self.lane.unroll]
        names = tuple(self.t.new(f"load {ty}, ptr {slot}") for slot in slots)
        if self.lane.shape.width != shape.width:  # a scalar tail: the first lane, as <1 x ty>
            first = f"{ty} {names[0]}, {ty} poison, <1 x i32> zeroinitializer"
            names = (self.t.new(f"shufflevector {first}"),)
        return Value(names, True)

    def assignment(self, register: ir.Register, v: Value) -> Iterable[tuple[str, str]]:
        t, lane, slots = self.t, self.lane, self.storage(register)
        shape, scalar = self.register_shape(register), register_type(register.dtype)
        ty, names = shape.of(scalar), v.names
        if register.lanes and lane is None:
            names = (self.splat(scalar, v, shape),) * len(slots)
        elif register.lanes and lane is not None:
            names = self.vectors(v, register.dtype)
            if lane.shape.width != shape.width:  # a scalar tail: only the first lane changes
                old = t.new(f"load {ty}, ptr {slots[0]}")
                element = t.new(f"extractelement <1 x {scalar}> {names[0]}, i64 0")
                names = (t.new(f"insertelement {ty} {old}, {scalar} {element}, i64 0"),)
            elif lane.mask is not None and register in lane.live_in:
                old = t.new(f"load {ty}, ptr {slots[0]}")
                names = (t.ops(shape, scalar).select(lane.mask.names[0], names[0], old),)
        return zip(slots, names, strict=False)
