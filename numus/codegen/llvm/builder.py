"""LLVM IR as text: types, constants, and an IRBuilder that appends instructions."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from numus import dtypes as dt
from numus.dtypes import DType


class TargetFeatures(Protocol):
    """Target properties that the shared code generation depends on."""

    @property
    def arch(self) -> str: ...
    @property
    def has_f16_conversion(self) -> bool: ...
    @property
    def has_bf16_conversion(self) -> bool: ...
    @property
    def has_float8_conversion(self) -> bool: ...
    @property
    def has_int64_conversion(self) -> bool: ...
    @property
    def byte_dot(self) -> str: ...


_FLOATS = {"float32": "float", "float64": "double"}


def register_type(dtype: DType) -> str:
    """The LLVM type of a value. Low-precision floats are carried as their bits."""
    if dtype.kind == "bool":
        return "i1"
    return _FLOATS.get(dtype.name) or f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    """The LLVM type of an element in a buffer: a bool is a byte."""
    return "i8" if dtype.kind == "bool" else register_type(dtype)


def literal(value: Any, dtype: DType) -> str:
    """An LLVM constant, without its type."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_low_precision:
        import numpy as np

        bits = np.array(value, np.float64).astype(dtype.np).tobytes()
        return str(int.from_bytes(bits, "little"))
    return float_literal(value, dtype)


def float_literal(value: float, dtype: DType) -> str:
    """A float constant: the bits of the double of the same value."""
    if dtype is dt.float32:
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class Shape:
    """A scalar or a vector of `width` lanes; spells types and constants accordingly."""

    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        self.width = width  # 0: a scalar

    def of(self, scalar: str) -> str:
        return f"<{self.width} x {scalar}>" if self.width else scalar

    def type(self, dtype: DType) -> str:
        return self.of(register_type(dtype))

    def const(self, scalar: str, text: str | int) -> str:
        return f"splat ({scalar} {text})" if self.width else str(text)

    def suffix(self, scalar: str) -> str:
        """The suffix of an overloaded intrinsic's name."""
        name = {"float": "f32", "double": "f64", "half": "f16"}.get(scalar, scalar)
        return f"v{self.width}{name}" if self.width else name


SCALAR = Shape(0)


class IRBuilder:
    """A function under construction for a target: instructions, labels, allocas, declarations.

    Instructions are appended to `lines`, the insertion point: `body`, or the preheader of a loop, a
    nested list in `body` that grows while the loop is emitted.
    """

    def __init__(self, target: TargetFeatures) -> None:
        self.target = target
        self.body: list[Any] = []
        self.lines: list[Any] = self.body
        self.allocas: list[str] = []
        self.declares: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.count = 0
        self.block = "entry"

    def name(self, prefix: str = "t") -> str:
        self.count += 1
        return f"%{prefix}{self.count}"

    def new(self, instruction: str) -> str:
        """Append an instruction; returns its result's name."""
        self.count += 1
        name = f"%t{self.count}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def alloca(self, type_: str) -> str:
        name = self.name("r")
        self.allocas.append(f"  {name} = alloca {type_}, align 64")
        return name

    def label(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.lines.append(f"  br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.lines.append(f"  br i1 {condition}, label %{yes}, label %{no}")

    @contextlib.contextmanager
    def conditional(self, condition: str, label: str) -> Iterator[None]:
        """A block that runs if the condition holds."""
        then, done = self.label(label), self.label("done")
        self.branch(condition, then, done)
        self.start(then)
        yield
        self.jump(done)
        self.start(done)

    def either(self, condition: str, *arms: tuple[str, Callable[[], None]]) -> None:
        """Two labelled blocks: one if the condition holds, the other if not."""
        labels = [self.label(label) for label, _ in arms]
        done = self.label("done")
        self.branch(condition, *labels)
        for label, (_, emit) in zip(labels, arms, strict=True):
            self.start(label)
            emit()
            self.jump(done)
        self.start(done)

    def value_if(
        self, condition: str, label: str, emit: Callable[[], str], ty: str, default: str
    ) -> str:
        """A value computed in a block of its own if the condition holds, else `default`."""
        then, join, before = self.label(label), self.label("join"), self.block
        self.branch(condition, then, join)
        self.start(then)
        name = emit()
        self.jump(join)
        self.start(join)
        return self.new(f"phi {ty} [ {default}, %{before} ], [ {name}, %{then} ]")

    def affine(self, index: str, step: str, start: str) -> str:
        """start + index * step, in i64."""
        if step != "1":
            index = self.new(f"mul i64 {index}, {step}")
        return index if start == "0" else self.new(f"add i64 {index}, {start}")

    def shuffle(self, ty: str, a: str, b: str, lanes: Sequence[int]) -> str:
        indices = f"<{len(lanes)} x i32> <{', '.join(f'i32 {i}' for i in lanes)}>"
        return self.new(f"shufflevector {ty} {a}, {ty} {b}, {indices}")

    def from_memory(self, shape: Shape, dtype: DType, name: str) -> str:
        """A loaded element: bools are bytes in memory."""
        return self.ops(shape, "i8")("icmp ne", name, 0) if dtype.kind == "bool" else name

    def to_memory(self, shape: Shape, dtype: DType, name: str) -> str:
        return self.ops(shape, "i1").to("zext", name, "i8") if dtype.kind == "bool" else name

    def ops(self, shape: Shape, scalar: str) -> Ops:
        return Ops(self, shape, scalar)

    def define_function(self, head: str) -> list[str]:
        """The function with this head, then the functions and declarations that it uses."""
        body = itertools.chain(*(x if isinstance(x, list) else [x] for x in self.body))
        outlined = [*self.functions.values(), *self.declares.values()]
        return [f"{head} {{", "entry:", *self.allocas, *body, "  ret void", "}", "", *outlined, ""]

    def call(self, result: str, name: str, *args: tuple[str, str], tags: str = "") -> str:
        """Call an intrinsic with (type, value) arguments; returns its result's name, if any."""
        if name not in self.declares:
            # attributes such as `align 4` belong to the call, not to the declaration
            types = ", ".join(t.split(" align ")[0] for t, _ in args)
            self.declares[name] = f"declare {result} @{name}({types})"
        text = f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)}){tags}"
        if result == "void":
            self.do(text)
            return ""
        return self.new(text)


class Ops:
    """Instructions on operands of one type, where Python numbers are constants."""

    def __init__(self, t: IRBuilder, shape: Shape, scalar: str) -> None:
        self.t, self.shape, self.scalar = t, shape, scalar
        self.ty = shape.of(scalar)

    def const(self, value: float) -> str:
        if self.scalar in _FLOATS.values():
            dtype = dt.float32 if self.scalar == "float" else dt.float64
            return self.shape.const(self.scalar, float_literal(value, dtype))
        return self.shape.const(self.scalar, int(value))

    def __call__(self, op: str, *operands: str | float) -> str:
        texts = (x if isinstance(x, str) else self.const(x) for x in operands)
        return self.t.new(f"{op} {self.ty} {', '.join(texts)}")

    def select(self, condition: str, yes: str | float, no: str | float) -> str:
        yes, no = (x if isinstance(x, str) else self.const(x) for x in (yes, no))
        i1 = self.shape.of("i1")
        return self.t.new(f"select {i1} {condition}, {self.ty} {yes}, {self.ty} {no}")

    def to(self, op: str, x: str, scalar: str) -> str:
        """Conversion to another type."""
        return self.t.new(f"{op} {self.ty} {x} to {self.shape.of(scalar)}")

    def call(self, name: str, *operands: str, extra: tuple[tuple[str, str], ...] = ()) -> str:
        """An overloaded intrinsic, with further arguments of other types."""
        args = (*((self.ty, x) for x in operands), *extra)
        return self.t.call(self.ty, f"llvm.{name}.{self.shape.suffix(self.scalar)}", *args)


class Value:
    """LLVM names of an emitted value: one scalar, or the vectors of a varying one.

    `level` is the innermost scope that it depends on, for loop-invariant code motion.
    """

    __slots__ = ("level", "names", "vec")

    def __init__(self, names: tuple[str, ...], vec: bool, level: int = 0) -> None:
        self.names = names
        self.vec = vec
        self.level = level
