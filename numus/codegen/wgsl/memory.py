"""Buffers in WGSL: where they lie, and how elements narrower than a word get in and out.

Elements of 32 and 64 bits are what they are, and so are halves where the adapter has them; of all
others with 16 or 8 bits several share a word. A thread that writes such an element changes only its
own bits of the word, atomically, so neighbours never disturb each other. Scratch elements take
whole words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numus import dtypes as dt
from numus import ir
from numus.codegen.wgsl import arithmetic
from numus.codegen.wgsl.target import WgslTarget
from numus.dtypes import DType
from numus.ir import expressions_of, post_order, statements

if TYPE_CHECKING:
    from numus.codegen.wgsl.expressions import Values


@dataclass(frozen=True, slots=True)
class Place:
    """How a buffer is declared: its variable, the offset of its first element, its form."""

    name: str
    base: str  # an i32 expression; "" where it is zero
    # "plain", "half", "packed", "shared" (packed and written to), "word" (scratch), "quad" (scratch
    # in vectors of four)
    form: str
    element: str  # the WGSL type of an element
    # Buffers larger than can be bound at once are bound as several windows.
    windows: int = 1
    per_window: int = 0  # elements

    def at(self, index: str) -> str:
        """An element, read."""
        return f"{self.name}[{index}]" if self.windows == 1 else f"get_{self.name}(u32({index}))"

    def put(self, index: str, value: str) -> str:
        """The statement that writes an element."""
        if self.windows == 1:
            return f"{self.name}[{index}] = {value};"
        return f"put_{self.name}(u32({index}), {value});"

    def atomic(self, operation: str, index: str, value: str = "") -> str:
        """An atomic operation on a word."""
        if self.windows == 1:
            return f"atomic{operation}(&{self.name}[{index}]{', ' + value if value else ''})"
        return f"{operation}_{self.name}({index}{', ' + value if value else ''})"

    def functions(self, written: bool) -> list[str]:
        """The functions that find the window in which an element lies."""
        each = range(self.windows)

        def found(result: str) -> str:
            *before, last = (
                result.format(f"{self.name}_{w}[at - {w * self.per_window}u]") for w in each
            )
            tests = (
                f"if (at < {(w + 1) * self.per_window}u) {{ {text} }} "
                for w, text in enumerate(before)
            )
            return f"{{ {''.join(tests)}{last} }}"

        if self.element == "atomic<u32>":
            out = [f"fn Load_{self.name}(at: u32) -> u32 {found('return atomicLoad(&{});')}"]
            for operation in ("Xor", "Store"):
                body = found(f"atomic{operation}(&{{}}, v); return;")
                out.append(f"fn {operation}_{self.name}(at: u32, v: u32) {body}")
            return out
        out = [f"fn get_{self.name}(at: u32) -> {self.element} {found('return {};')}"]
        if written:
            body = found("{} = v; return;")
            out.append(f"fn put_{self.name}(at: u32, v: {self.element}) {body}")
        return out


def form_of(buffer: ir.Buffer, target: WgslTarget) -> str:
    if buffer.access == "scratch":
        return "word"
    if buffer.dtype.bits >= 32:
        return "plain"
    if buffer.dtype is dt.float16 and target.f16:
        return "half"
    return "packed" if buffer.access == "read" else "shared"


def element_of(form: str, carrier: str) -> str:
    """The WGSL type of an element of a buffer."""
    if form == "half":
        return "f16"
    if form == "packed":
        return "u32"
    if form == "shared":
        return "atomic<u32>"
    return carrier


def address(x: Values, place: Place, index: ir.Expr) -> str:
    text = x.index(index)
    return f"{place.base} + {text}" if place.base else text


def load(x: Values, e: ir.Expr) -> str:
    """An element; where the mask is false nothing is read but the first one."""
    buffer: ir.Buffer = e.attr
    place = x.places[buffer]
    if place.form == "quad" and len(e.args) == 1:
        found = quad_of(e)
        if found is not None:
            return f"{x.value(found[0])}.{'xyzw'[found[1]]}"
    at = address(x, place, e.args[0])
    if len(e.args) == 1:
        return fetch(x, buffer.dtype, place, at)
    mask = x.value(e.args[1])
    value = fetch(x, buffer.dtype, place, x.new(f"select(0, {at}, {mask})"))
    zero = arithmetic.literal(0, buffer.dtype, x.type_of(buffer.dtype))
    return f"select({zero}, {value}, {mask})"


def load_wide(x: Values, e: ir.Expr) -> str:
    """A half as the float32 that it is cast to, without a detour over its bits."""
    place = x.places[e.attr]
    at = address(x, place, e.args[0])
    if len(e.args) == 1:
        return f"f32({place.at(at)})"
    mask = x.value(e.args[1])
    at = x.new(f"select(0, {at}, {mask})")
    return f"select(0.0f, f32({place.at(at)}), {mask})"


def quad_of(e: ir.Expr) -> tuple[ir.Expr, int] | None:
    """A load as part of a vector of four neighbours, where it can be shown that those begin at a
    multiple of four: the load of the vector, by its number, and which part.
    """
    index, offset = _apart(e.args[0])
    if not _multiple(index):
        return None
    number = ir.add(_quarter(index), ir.const(offset // 4))
    return ir.make("load4", e.dtype, (number,), e.attr), offset % 4


def _quarter(e: ir.Expr) -> ir.Expr:
    """A quarter of what `_multiple` has found to be a multiple of four. It is worked out here:
    drivers do not know that no sum overflows, and would shift every one."""
    if e.op == "const":
        return ir.const(e.attr // 4)
    a, b = e.args
    if e.op == "add":
        return ir.add(_quarter(a), _quarter(b))
    return ir.mul(_quarter(a), b) if _multiple(a) else ir.mul(a, _quarter(b))


def _apart(index: ir.Expr) -> tuple[ir.Expr, int]:
    """An index as a sum with a constant."""
    if index.op == "add" and index.args[1].op == "const":
        return index.args[0], index.args[1].attr
    return index, 0


def _multiple(e: ir.Expr) -> bool:
    """Whether an index is a multiple of four, as far as one can see."""
    if e.op == "const":
        return bool(e.attr % 4 == 0)
    if e.op == "add":
        return all(_multiple(a) for a in e.args)
    return e.op == "mul" and any(_multiple(a) for a in e.args)


def has_quads(kernel: ir.Kernel, buffer: ir.Buffer) -> bool:
    """Whether neighbours are loaded together from a buffer."""
    seen: set[ir.Expr] = set()
    found: dict[ir.Expr, int] = {}
    for s in statements(kernel.body):
        for e in post_order(expressions_of(s), seen):
            if e.op == "load" and e.attr is buffer and len(e.args) == 1:
                quad = quad_of(e)
                if quad is not None:
                    found[quad[0]] = found.get(quad[0], 0) + 1
    return any(count == 4 for count in found.values())


def fetch(x: Values, dtype: DType, place: Place, at: str) -> str:
    """The element at an address, as it is carried."""
    if place.form == "quad":
        at = x.new(at)
        return f"{place.name}[{at} >> 2u][{at} & 3]"
    if place.form in ("plain", "word"):
        element = place.at(at)
        return f"({element} != 0u)" if dtype.kind == "bool" else element
    if place.form == "half":
        return f"pack2x16float(vec2<f32>(f32({place.at(at)}), 0.0))"
    at = x.new(f"u32({at})")
    per, bits = 32 // dtype.bits, dtype.bits
    where = f"{at} >> {per.bit_length() - 1}u"
    word = place.atomic("Load", where) if place.form == "shared" else place.at(where)
    shift = f"({at} & {per - 1}u) * {bits}u"
    if dtype.kind == "int":
        return f"extractBits(bitcast<i32>({word}), {shift}, {bits}u)"
    value = f"extractBits({word}, {shift}, {bits}u)"
    return f"({value} != 0u)" if dtype.kind == "bool" else value


def store(x: Values, s: ir.Store) -> None:
    """Write an element."""
    place, dtype = x.places[s.buffer], s.buffer.dtype
    ty = x.type_of(dtype)
    at = address(x, place, s.index)
    value = x.carried(s.value, ty)
    if s.mask is not None:
        x.open(f"if ({x.value(s.mask)})")
    if place.form == "quad":
        at = x.new(at)
        x.do(f"{place.name}[{at} >> 2u][{at} & 3] = {value};")
    elif place.form in ("plain", "word"):
        x.do(place.put(at, bits_of(value, ty) if ty == "bool" else value))
    elif place.form == "half":
        x.do(place.put(at, f"f16(unpack2x16float({value}).x)"))
    else:
        _store_shared(x, place, dtype, at, bits_of(value, ty))
    if s.mask is not None:
        x.close()


def bits_of(value: str, ty: str) -> str:
    """A narrow value as the low bits of a u32."""
    if ty == "bool":
        return f"select(0u, 1u, {value})"
    return value if ty == "u32" else f"bitcast<u32>({value})"


def element_bits(x: Values, s: ir.Store) -> str:
    """The bits that a store of an element narrower than a word would write, named."""
    ty = x.type_of(s.buffer.dtype)
    value = bits_of(x.carried(s.value, ty), ty)
    return x.new(f"{value} & {(1 << s.buffer.dtype.bits) - 1}u")


def _store_shared(x: Values, place: Place, dtype: DType, at: str, bits: str) -> None:
    """Nobody else changes these bits of the word: flip those that differ."""
    per, width = 32 // dtype.bits, dtype.bits
    at = x.new(f"u32({at})")
    where = x.new(f"{at} >> {per.bit_length() - 1}u")
    shift = x.new(f"({at} & {per - 1}u) * {width}u")
    old = x.new(f"{place.atomic('Load', where)} >> {shift}")
    mask = (1 << width) - 1
    x.do(place.atomic("Xor", where, f"(({old} ^ {bits}) & {mask}u) << {shift}") + ";")


def store_words(x: Values, s: ir.Store, bits: list[str]) -> None:
    """Write four neighbours, the first of which begins a word: nobody else has a part in it."""
    place, width = x.places[s.buffer], s.buffer.dtype.bits
    per = 32 // width
    at = x.new(f"u32({address(x, place, s.index)} + 0) >> {per.bit_length() - 1}u")
    for word in range(4 // per):
        parts = [
            f"({b} << {k * width}u)" for k, b in enumerate(bits[word * per : (word + 1) * per])
        ]
        x.do(place.atomic("Store", f"{at} + {word}u", " | ".join(parts)) + ";")
