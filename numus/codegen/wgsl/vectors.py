"""Vector accesses: buffers of 32-bit elements as arrays of `vec2` or `vec4`.

A buffer whose accesses fill provably aligned vectors somewhere in a kernel is declared as an array
of these, and single elements of it are components. One access of a thread then takes 8 or 16 bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from numus import ir
from numus.codegen.llvm.divergence import is_multiple
from numus.codegen.wgsl.context import ShaderContext
from numus.ir import Expr, post_order, statements

WIDTHS = (4, 2)
MAX_WIDTH = 4


def _place(index: Expr, width: int) -> tuple[Expr, int] | None:
    """The vector and component of an element; None where alignment is not provable."""
    base, offset = ir.split_constant(index)
    if not is_multiple(base, width):
        return None
    return ir.add(_divided(base, width), ir.const(offset // width)), offset % width


def _divided(e: Expr, width: int) -> Expr:
    """A multiple of the width, divided by it. Here: drivers cannot rule out overflow and would
    shift every term."""
    if e.op == "const":
        return ir.const(e.attr // width)
    a, b = e.args
    if e.op == "add":
        return ir.add(_divided(a, width), _divided(b, width))
    if is_multiple(a, width):
        return ir.mul(_divided(a, width), b)
    return ir.mul(a, _divided(b, width))


def vector_load(e: Expr, width: int) -> tuple[Expr, int] | None:
    """The load of a vector, and the component that an unmasked load takes of it."""
    found = _place(e.args[0], width) if len(e.args) == 1 else None
    return found and (ir.make("load_vector", e.dtype, (found[0],), e.attr), found[1])


def load_vector(x: ShaderContext, e: Expr) -> str:
    binding = x.bindings[e.attr]
    return f"{binding.name}[{_address(binding.vector_base, x.index(e.args[0]))}]"


def _address(base: str, index: str) -> str:
    return f"{base} + {index}" if base else index


def vector_widths(kernel: ir.Kernel) -> dict[ir.Buffer, int]:
    """The buffers of 32-bit words that are accessed by vectors; loads decide, if there are any."""
    found: dict[ir.Buffer, int] = {}
    loads = [e for e in ir.loads(kernel.body) if _has_words(e.attr)]
    for width in WIDTHS:
        parts = (vector_load(e, width) for e in loads)
        for vector, count in Counter(part[0] for part in parts if part).items():
            if count == width:
                found.setdefault(vector.attr, width)
    loaded = {e.attr for e in loads}
    for body in _bodies(kernel.body):
        for i, s in enumerate(body):
            if isinstance(s, ir.Store) and _has_words(s.buffer) and s.buffer not in loaded:
                width = next((w for w in WIDTHS if _whole(body[i : i + w], w)), 1)
                if width > found.get(s.buffer, 1):
                    found[s.buffer] = width
    return found


def _has_words(buffer: ir.Buffer) -> bool:
    """Elements are words of 32 bits, as those of scratch are unless they are longer."""
    dtype = buffer.dtype
    return dtype.bits == 32 or (buffer.access == "scratch" and dtype.kind != "bool")


def _bodies(body: list[ir.Stmt]) -> list[list[ir.Stmt]]:
    """A list of statements and those inside them."""
    return [body, *(s.body for s in statements(body) if isinstance(s, (ir.For, ir.If)))]


def _whole(stores: Sequence[ir.Stmt], width: int) -> Expr | None:
    """Which vector these statements store, and nothing else."""
    first = stores[0]
    if len(stores) < width or not isinstance(first, ir.Store):
        return None
    places = []
    for s in stores:
        if not isinstance(s, ir.Store) or s.buffer is not first.buffer or s.mask is not None:
            return None
        if any(e.op == "load" and e.attr is s.buffer for e in post_order((s.value,), set())):
            return None
        places.append(_place(s.index, width))
    vector = places[0]
    if vector is None or places != [(vector[0], i) for i in range(width)]:
        return None
    return vector[0]


def store_vector(x: ShaderContext, body: Sequence[ir.Stmt]) -> int:
    """Write the vector that the first statements store; how many they are, or 0."""
    first = body[0]
    if not isinstance(first, ir.Store) or x.bindings[first.buffer].width == 1:
        return 0
    binding = x.bindings[first.buffer]
    stores = [s for s in body[: binding.width] if isinstance(s, ir.Store)]
    vector = _whole(stores, binding.width)
    if vector is None:
        return 0
    at = _address(binding.vector_base, x.index(vector))
    values = [x.cast_to(s.value, binding.element) for s in stores]
    x.emit(f"{binding.name}[{at}] = {binding.array}({', '.join(values)});")
    x.invalidate((first.buffer,))
    return binding.width
