"""What a shader is given: numbers, as words of `P`, and memory, as bindings; and its own memory.

`P` is one uniform array of words: two zeros (see `wgsl_prelude`) around how the groups are counted,
where each buffer's elements start, then the kernel's scalars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numus import ir
from numus.codegen.wgsl import arithmetic as ops
from numus.codegen.wgsl import memory
from numus.codegen.wgsl.expressions import Values
from numus.codegen.wgsl.index_width import Narrow, is_size
from numus.codegen.wgsl.target import WgslTarget
from numus.errors import CompileError, DTypeError

# words of `P` before the buffers' offsets: zero, groups in a row, all groups or threads, zero
HEAD = 4


@dataclass(frozen=True, slots=True)
class Word:
    """How a scalar slot is written into `P`: a `struct` format, and the first of its words."""

    slot: str
    format: str  # "i", "I", "q", "Q", "f", "d"
    at: int


_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d"}


class Bindings:
    """Words, bindings and declarations of one shader; `x` writes its expressions.

    `shared`, `pooled`, `windows`: as `wgsl.render` is given them. `room`: bytes of a
    group's memory that scratch buffers may have; those that lie there join `near`.
    """

    def __init__(
        self,
        kernel: ir.Kernel,
        target: WgslTarget,
        wide: bool,
        shared: frozenset[int],
        pooled: bool,
        windows: Mapping[int, int],
        per_thread: bool,
        room: int,
        near: set[ir.Buffer],
    ) -> None:
        self.kernel, self.target, self.wide, self.bound_as_written = kernel, target, wide, shared
        self.pooled, self.windows = pooled, windows
        self.per_thread, self.room, self.near = per_thread, room, near
        self.globals: list[str] = []
        self.words = HEAD
        self.slots: list[Word] = []
        self.bound: list[list[int]] = []  # for each binding the kernel's buffers that lie there
        self.window_of: list[int] = []  # and which of its buffer's windows it is
        self.pools: dict[str, tuple[str, list[int]]] = {}  # by type: a variable, and what is there
        self.scratch: list[tuple[int, int]] = []
        self.x = Values(kernel, target, wide, Narrow(kernel), {}, {})

    def word(self, at: int) -> str:
        """A word of `P`."""
        return f"P.v[{at // 4}].{'xyzw'[at % 4]}"

    def _take(self, count: int) -> int:
        """The first of so many new words of `P`."""
        at = self.words
        self.words += count
        return at

    def take_scalars(self) -> None:
        """Give names to the kernel's scalars."""
        x = self.x
        self.words += sum(b.access != "scratch" for b in self.kernel.buffers)
        for slot, dtype in self.kernel.scalars:
            narrow = not self.target.i64 or (is_size(slot) and not self.wide)
            ty = "i32" if dtype is ir.INDEX and narrow else ops.carrier(dtype)
            at = self._take(2 if ty[1:] == "64" else 1)
            self.slots.append(Word(slot, _FORMATS[ty], at))
            first = self.word(at)
            if ty == "u32":
                text = first
            elif ty[1:] == "32":
                text = f"bitcast<{ty}>({first})"
            else:
                whole = f"(u64({first}) | (u64({self.word(at + 1)}) << 32u))"
                text = whole if ty == "u64" else f"bitcast<{ty}>({whole})"
            x.do(f"let {slot} = {text};")
            x.scalars[slot] = slot

    def take_buffers(self) -> None:
        """Tell where the kernel's buffers are."""
        x = self.x
        offset = HEAD
        for i, buffer in enumerate(self.kernel.buffers):
            form = memory.form_of(buffer, self.target)
            if self.pooled and form == "packed":
                form = "shared"
            carrier = x.type_of(buffer.dtype)
            element = memory.element_of(form, carrier)
            name = f"b{i}"
            if buffer.access == "scratch":
                self._scratch(i, buffer, name, carrier)
                continue
            x.do(f"let o{i} = bitcast<i32>({self.word(offset)});")
            offset += 1
            if self.pooled:
                x.places[buffer] = memory.Place(self._pool(i, element), f"o{i}", form, element)
                continue
            if buffer.dtype is ir.INDEX and carrier == "i32":
                raise DTypeError("this adapter has no int64: it lacks the feature shader-int64")
            only_read = buffer.access == "read" and i not in self.bound_as_written
            access = "read" if only_read else "read_write"
            count = self.windows.get(i, 1)
            if count == 1:
                x.places[buffer] = memory.Place(name, f"o{i}", form, element)
                self._bind(i, f"var<storage, {access}> {name}: array<{element}>;")
                continue
            per = self.target.max_binding_bytes // _element_bytes(element)
            place = memory.Place(name, f"o{i}", form, element, count, per)
            x.places[buffer] = place
            for w in range(count):
                self._bind(i, f"var<storage, {access}> {name}_{w}: array<{element}>;", w)
            self.globals += place.functions(not only_read)

    def _pool(self, which: int, element: str) -> str:
        """The variable in which all buffers of a type lie."""
        if element not in self.pools:
            name = f"pool{len(self.pools)}"
            self._bind(which, f"var<storage, read_write> {name}: array<{element}>;")
            self.pools[element] = (name, self.bound[-1])
        else:
            self.pools[element][1].append(which)
        return self.pools[element][0]

    def _bind(self, which: int, declaration: str, window: int = 0) -> None:
        self.bound.append([which])
        self.window_of.append(window)
        self.globals.append(f"@group(0) @binding({len(self.bound)}) {declaration}")

    def _scratch(self, i: int, buffer: ir.Buffer, name: str, carrier: str) -> None:
        """Memory of a group: shared where it is small and of known size, else a part of a buffer
        that all groups (or threads) share."""
        x = self.x
        if carrier == "bool":
            carrier = "u32"
        if buffer.size is None:
            raise CompileError(f"scratch buffer {buffer.name!r} has no size")
        if buffer.size.op == "const" and not self.per_thread:
            nbytes = -(-buffer.size.attr * _bytes(carrier) // 16) * 16
            if nbytes <= self.room:
                self.room -= nbytes
                count, element, form = buffer.size.attr, carrier, "word"
                if carrier[1:] == "32" and memory.has_quads(self.kernel, buffer):
                    count, element, form = -(-count // 4), f"vec4<{carrier}>", "quad"
                self.globals.append(f"var<workgroup> {name}: array<{element}, {count}>;")
                x.places[buffer] = memory.Place(name, "", form, element)
                self.near.add(buffer)
                return
        self.scratch.append((i, _bytes(carrier)))
        x.places[buffer] = memory.Place(name, f"o{i}", "word", carrier)
        self._bind(i, f"var<storage, read_write> {name}: array<{carrier}>;")


def _element_bytes(element: str) -> int:
    return 2 if element == "f16" else 8 if element.endswith("64") else 4


def _bytes(carrier: str) -> int:
    return 8 if carrier.endswith("64") else 4
