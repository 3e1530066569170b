"""Bindings of a shader: scalar arguments in the uniform array `P`, buffers, workgroup memory.

The words of `P` are a zero (see `prelude`), the dispatch's width, the worker count, a second zero,
the first element of each buffer, then the kernel's scalars.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from numus import ir
from numus.codegen.wgsl import arithmetic, memory
from numus.codegen.wgsl.context import BufferBinding
from numus.codegen.wgsl.expressions import Expressions
from numus.codegen.wgsl.index_width import is_size
from numus.codegen.wgsl.vectors import vector_widths
from numus.errors import DTypeError

HEADER_WORDS = 4  # of `P`, before the buffers' offsets


@dataclass(frozen=True, slots=True)
class UniformScalar:
    """A scalar argument in `P`: its `struct` format and first word."""

    slot: str
    format: str  # "i", "I", "q", "Q", "f", "d"
    word: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Properties of a launch that its shader is specialised to."""

    wide: bool = False  # 64-bit indices
    unroll: int = 1  # of innermost loops
    # read-only buffers bound as writable, because they are parts of a buffer that is written to
    aliased: frozenset[int] = frozenset()
    # (buffer, bindings) of buffers larger than one binding may be
    segments: tuple[tuple[int, int], ...] = ()
    unaligned: frozenset[int] = frozenset()  # buffers that do not begin at a whole vector
    merged: bool = False  # buffers of one type share a binding: there are too many to bind


DEFAULT_VARIANT = Variant()
_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d"}


@dataclass(slots=True)
class Bindings:
    """Uniform words, bindings and declarations of one shader; `x` writes its expressions.

    Scratch of known size goes to workgroup memory, up to `shared_budget` bytes, and is then added
    to `workgroup_buffers`.
    """

    x: Expressions
    variant: Variant
    per_thread: bool
    shared_budget: int
    workgroup_buffers: set[ir.Buffer]
    globals: list[str] = field(default_factory=list)
    words: int = HEADER_WORDS
    scalars: list[UniformScalar] = field(default_factory=list)
    bound: list[list[int]] = field(default_factory=list)  # the kernel's buffers of each binding
    segment_of: list[int] = field(default_factory=list)  # of its buffer, by binding
    # by element type: the variable and the buffers in it
    merged_by_type: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    scratch: list[tuple[int, int]] = field(default_factory=list)
    widths: dict[ir.Buffer, int] = field(init=False)

    def __post_init__(self) -> None:
        self.widths = vector_widths(self.x.kernel)

    def word(self, at: int) -> str:
        """A word of `P`."""
        return f"P.v[{at // 4}].{'xyzw'[at % 4]}"

    def declare_scalars(self) -> None:
        x = self.x
        self.words += sum(b.access != "scratch" for b in self.x.kernel.buffers)
        for slot, dtype in self.x.kernel.scalars:
            fits_32 = not self.x.target.i64 or (is_size(slot) and not self.variant.wide)
            ty = "i32" if dtype is ir.INDEX and fits_32 else arithmetic.carrier(dtype)
            at = self.words
            self.words += 2 if ty[1:] == "64" else 1
            self.scalars.append(UniformScalar(slot, _FORMATS[ty], at))
            first = self.word(at)
            if ty[1:] == "64":
                first = f"(u64({first}) | (u64({self.word(at + 1)}) << 32u))"
            x.emit(f"let {slot} = {first if ty[0] == 'u' else f'bitcast<{ty}>({first})'};")
            x.scalars[slot] = slot

    def declare_buffers(self) -> None:
        x = self.x
        offset, segments = HEADER_WORDS, dict(self.variant.segments)
        for i, buffer in enumerate(self.x.kernel.buffers):
            storage = memory.storage_of(buffer, self.x.target)
            if self.variant.merged and storage == "packed":
                storage = "atomic"
            carrier = x.type_of(buffer.dtype)
            element = memory.element_type(storage, carrier)
            name = f"b{i}"
            if buffer.access == "scratch":
                self._declare_scratch(i, buffer, name, carrier)
                continue
            x.emit(f"let o{i} = bitcast<i32>({self.word(offset)});")
            offset += 1
            if self.variant.merged:
                variable = self._merge(i, element)
                x.bindings[buffer] = BufferBinding(variable, f"o{i}", storage, element)
                continue
            if buffer.dtype is ir.INDEX and carrier == "i32":
                raise DTypeError("this adapter has no int64: it lacks the feature shader-int64")
            only_read = buffer.access == "read" and i not in self.variant.aliased
            access = "read" if only_read else "read_write"
            count = segments.get(i, 1)
            if count == 1:
                width = self.widths.get(buffer, 1)
                if storage != "plain" or element[1:] != "32" or i in self.variant.unaligned:
                    width = 1
                binding = BufferBinding(name, f"o{i}", storage, element, width=width)
                if width > 1:
                    x.emit(f"let {binding.vector_base} = o{i} / {width};")
                x.bindings[buffer] = binding
                self._bind(i, f"var<storage, {access}> {name}: array<{binding.array}>;")
                continue
            per = self.x.target.max_binding_bytes // _bytes(element)
            binding = BufferBinding(name, f"o{i}", storage, element, count, per)
            x.bindings[buffer] = binding
            for n in range(count):
                self._bind(i, f"var<storage, {access}> {name}_{n}: array<{element}>;", n)
            self.globals += binding.accessors(not only_read)

    def _merge(self, which: int, element: str) -> str:
        """The variable that holds all buffers of an element type."""
        if element not in self.merged_by_type:
            name = f"pool{len(self.merged_by_type)}"
            self._bind(which, f"var<storage, read_write> {name}: array<{element}>;")
            self.merged_by_type[element] = (name, self.bound[-1])
        else:
            self.merged_by_type[element][1].append(which)
        return self.merged_by_type[element][0]

    def _bind(self, which: int, declaration: str, segment: int = 0) -> None:
        self.bound.append([which])
        self.segment_of.append(segment)
        self.globals.append(f"@group(0) @binding({len(self.bound)}) {declaration}")

    def _declare_scratch(self, i: int, buffer: ir.Buffer, name: str, carrier: str) -> None:
        """Scratch in workgroup memory if small and of known size, else in a storage buffer."""
        x = self.x
        if carrier == "bool":
            carrier = "u32"
        size = buffer.scratch_size
        if size.op == "const" and not self.per_thread:
            nbytes = -(-size.attr * _bytes(carrier) // 16) * 16
            if nbytes <= self.shared_budget:
                self.shared_budget -= nbytes
                width = self.widths.get(buffer, 1) if carrier[1:] == "32" else 1
                binding = BufferBinding(name, "", "word", carrier, width=width)
                count = -(-size.attr // width)
                self.globals.append(f"var<workgroup> {name}: array<{binding.array}, {count}>;")
                x.bindings[buffer] = binding
                self.workgroup_buffers.add(buffer)
                return
        self.scratch.append((i, _bytes(carrier)))
        x.bindings[buffer] = BufferBinding(name, f"o{i}", "word", carrier)
        self._bind(i, f"var<storage, read_write> {name}: array<{carrier}>;")


def _bytes(element: str) -> int:
    return 2 if element == "f16" else 8 if element.endswith("64") else 4
