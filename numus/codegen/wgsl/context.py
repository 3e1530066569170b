"""ShaderContext: the WGSL text of one kernel under construction, with names, scopes and types."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.codegen import invalidation
from numus.codegen.invalidation import MemoryDependences, UndoLog
from numus.codegen.wgsl import arithmetic
from numus.codegen.wgsl.index_width import IndexWidth
from numus.codegen.wgsl.target import WgslTarget
from numus.errors import DTypeError
from numus.ir import Expr


@dataclass(frozen=True, slots=True)
class BufferBinding:
    """The declaration of a buffer: its variable, the offset of its first element, its storage.

    A buffer larger than one binding may be is bound in several segments.
    """

    name: str
    base: str  # an i32 expression; "" where it is zero
    # "plain", "half", "packed" (several elements to a word), "atomic" (packed and written to),
    # "word" (scratch)
    storage: str
    element: str  # the WGSL type of an element
    segments: int = 1
    segment_elements: int = 0
    width: int = 1  # of the vectors that it is an array of

    @property
    def array(self) -> str:
        """The WGSL type of what it is an array of."""
        return self.element if self.width == 1 else f"vec{self.width}<{self.element}>"

    @property
    def vector_base(self) -> str:
        """The offset of its first vector."""
        return f"{self.base}v" if self.base else ""

    def load(self, index: str) -> str:
        if self.segments > 1:
            return f"get_{self.name}(u32({index}))"
        return f"{self.name}[{self._place(index)}]"

    def store(self, index: str, value: str) -> str:
        if self.segments > 1:
            return f"put_{self.name}(u32({index}), {value});"
        return f"{self.name}[{self._place(index)}] = {value};"

    def _place(self, index: str) -> str:
        """Of a single element."""
        if self.width == 1:
            return index
        shift = self.width.bit_length() - 1
        return f"({index}) >> {shift}u][({index}) & {self.width - 1}"

    def atomic(self, operation: str, index: str, value: str = "") -> str:
        """An atomic operation on a word."""
        given = f", {value}" if value else ""
        if self.segments == 1:
            return f"atomic{operation}(&{self.name}[{index}]{given})"
        return f"{operation}_{self.name}({index}{given})"

    def accessors(self, written: bool) -> list[str]:
        """Functions that select the segment of an element."""

        def dispatch(result: str) -> str:
            *before, last = (
                result.format(f"{self.name}_{s}[at - {s * self.segment_elements}u]")
                for s in range(self.segments)
            )
            tests = (
                f"if (at < {(s + 1) * self.segment_elements}u) {{ {text} }} "
                for s, text in enumerate(before)
            )
            return f"{{ {''.join(tests)}{last} }}"

        if self.element == "atomic<u32>":
            out = [f"fn Load_{self.name}(at: u32) -> u32 {dispatch('return atomicLoad(&{});')}"]
            for operation in ("Xor", "Store"):
                body = dispatch(f"atomic{operation}(&{{}}, v); return;")
                out.append(f"fn {operation}_{self.name}(at: u32, v: u32) {body}")
            return out
        out = [f"fn get_{self.name}(at: u32) -> {self.element} {dispatch('return {};')}"]
        if written:
            body = dispatch("{} = v; return;")
            out.append(f"fn put_{self.name}(at: u32, v: {self.element}) {body}")
        return out


@dataclass(slots=True)
class ShaderContext(ABC):
    """Text, names and scopes of a shader. Bindings made in a scope are undone at its end."""

    kernel: ir.Kernel
    target: WgslTarget
    wide: bool  # 64-bit indices
    index_width: IndexWidth
    scalars: dict[str, str]
    bindings: dict[ir.Buffer, BufferBinding]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    names: int = 0
    registers: dict[ir.Register, str] = field(default_factory=dict)
    values: dict[Expr, str] = field(default_factory=dict)
    indices: dict[Expr, str] = field(default_factory=dict)  # low 32 bits of wide expressions
    dependences: MemoryDependences = field(default_factory=MemoryDependences)
    undo: list[UndoLog] = field(default_factory=lambda: [[]])

    @abstractmethod
    def value(self, root: Expr) -> str:
        """An expression as a WGSL expression."""

    @abstractmethod
    def index(self, e: Expr) -> str:
        """An expression as a 32-bit index."""

    @abstractmethod
    def cast_to(self, e: Expr, ty: str) -> str:
        """An expression as a value of another integer width."""

    def loop_bounds(self, s: ir.For) -> tuple[str, str, str]:
        """Start, stop and step of a loop, in the type of its variable."""
        ty = self.type(s.var)
        return self.cast_to(s.start, ty), self.cast_to(s.stop, ty), self.cast_to(s.step, ty)

    # -- text and scopes --------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def fresh(self, prefix: str = "t") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def let(self, text: str) -> str:
        """Name a value."""
        name = self.fresh()
        self.emit(f"let {name} = {text};")
        return name

    def open(self, head: str) -> None:
        self.emit(f"{head} {{")
        self.depth += 1
        self.undo.append([])

    def close(self) -> None:
        invalidation.undo(self.undo.pop())
        self.depth -= 1
        self.emit("}")

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A WGSL block, and its scope."""
        self.open(head)
        yield
        self.close()

    @contextlib.contextmanager
    def scope(self) -> Iterator[UndoLog]:
        """A scope without a WGSL block: its text stays in force."""
        log: UndoLog = []
        self.undo.append(log)
        yield log
        invalidation.undo(self.undo.pop())

    def bind(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        invalidation.bind(self.undo[-1], table, key, value)

    def invalidate(self, changed: Iterable[Any]) -> None:
        """Registers or buffers have new values: drop expressions computed from the old ones."""
        for e in self.dependences.invalidated_by(changed):
            self.values.pop(e, None)
            self.indices.pop(e, None)

    # -- types ------------------------------------------------------------------------------------

    def type(self, e: Expr) -> str:
        """The WGSL type of an expression."""
        if e.dtype is ir.INDEX and (not self.target.i64 or (not self.wide and self.fits_int32(e))):
            return "i32"
        return self.type_of(e.dtype)

    def type_of(self, dtype: dt.DType) -> str:
        """The type of registers and memory of a dtype."""
        if dtype is ir.INDEX and not self.target.i64:
            return "i32"
        carrier = arithmetic.carrier(dtype)
        if carrier == "f64" and not self.target.f64:
            raise DTypeError("this adapter has no float64: it lacks the feature shader-f64")
        if carrier == "u64" and not self.target.i64:
            raise DTypeError("this adapter has no uint64: it lacks the feature shader-int64")
        return carrier

    def fits_int32(self, e: Expr) -> bool:
        return e in self.index_width.int32
