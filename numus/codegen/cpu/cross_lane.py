"""Cross-lane operations of SIMD vectors: permutations and reductions in a fixed tree."""

from __future__ import annotations

from numus import ir
from numus.codegen.llvm import arithmetic
from numus.codegen.llvm.builder import SCALAR, Shape, Value, register_type
from numus.codegen.llvm.context import Context
from numus.errors import CompileError


def permute(x: Context, e: ir.Expr) -> Value:
    """lanes_xor, lanes_shift and lanes_last as shuffles."""
    v, lane = x.values[e.args[0]], x.lane
    if lane is None or lane.mask is not None or lane.unroll != 1:
        raise CompileError(f"{e.op} needs a lanes loop of exactly one vector")
    width, ty = lane.shape.width, lane.shape.type(e.dtype)
    (name,) = x.vectors(v, e.dtype)
    if e.op == "lanes_last":
        element = f"extractelement {ty} {name}, i64 {width - 1}"
        return Value((x.t.new(element),), False)
    other = "poison"
    numbers = [i ^ e.attr for i in range(width)]
    if e.op == "lanes_shift":
        (other,) = x.vectors(x.values[e.args[1]], e.dtype)
        numbers = [i - e.attr if i >= e.attr else width + i for i in range(width)]
    order = ", ".join(f"i32 {i}" for i in numbers)
    indices = f"<{width} x i32> <{order}>"
    return Value((x.t.new(f"shufflevector {ty} {name}, {ty} {other}, {indices}"),), True)


def reduce(x: Context, op: str, register: ir.Register) -> Value:
    """Tree reduction: vectors pairwise, then halves of one vector."""
    t, dtype = x.t, register.dtype
    shape = x.register_shape(register)
    scalar, ty = register_type(dtype), shape.type(dtype)

    def combine(s: Shape, a: str, b: str) -> str:
        if op in ("min", "max"):
            return arithmetic.min_max(t, s, op, dtype, a, b)
        return arithmetic.binary(t, s, op, dtype, a, b)

    parts = [t.new(f"load {ty}, ptr {slot}") for slot in x.storage(register)]
    while len(parts) > 1:
        pairs = [combine(shape, *parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    whole = parts[0]
    if dtype.kind != "float":  # associative
        name = ("s" if dtype.kind == "int" else "u") + op if op in ("min", "max") else op
        name = f"llvm.vector.reduce.{name}.{shape.suffix(scalar)}"
        return Value((t.call(scalar, name, (ty, whole)),), False)
    while shape.width > 2:
        half = Shape(shape.width // 2)
        low, high = (
            t.new(
                f"shufflevector {shape.of(scalar)} {whole}, {shape.of(scalar)} poison, "
                f"<{half.width} x i32> <{', '.join(f'i32 {i + k}' for i in range(half.width))}>"
            )
            for k in (0, half.width)
        )
        whole, shape = combine(half, low, high), half
    ends = [t.new(f"extractelement {shape.of(scalar)} {whole}, i64 {i}") for i in (0, 1)]
    return Value((combine(SCALAR, ends[0], ends[1]),), False)


def min_where(x: Context, register: ir.Register, values: ir.Register, equal_to: Value) -> Value:
    """The minimum of a register over the lanes where `values` equals a value, or is NaN."""
    t, dtype = x.t, register.dtype
    shape = x.register_shape(register)
    ty, wide = shape.type(dtype), shape.type(values.dtype)
    wanted = x.splat(register_type(values.dtype), equal_to, shape)
    none = x.splat(register_type(dtype), Value((str((1 << (dtype.bits - 1)) - 1),), False), shape)
    parts = []
    for slot, value in zip(x.storage(register), x.storage(values), strict=True):
        found = t.new(f"load {wide}, ptr {value}")
        if values.dtype.kind == "float":
            same = t.new(f"fcmp oeq {wide} {found}, {wanted}")
            nan = t.new(f"fcmp uno {wide} {found}, {found}")
            same = t.new(f"or {shape.of('i1')} {same}, {nan}")
        else:
            same = t.new(f"icmp eq {wide} {found}, {wanted}")
        own = t.new(f"load {ty}, ptr {slot}")
        parts.append(t.new(f"select {shape.of('i1')} {same}, {ty} {own}, {ty} {none}"))
    whole = parts[0]
    for part in parts[1:]:
        whole = arithmetic.min_max(t, shape, "min", dtype, whole, part)
    scalar = register_type(dtype)
    name = f"llvm.vector.reduce.smin.{shape.suffix(scalar)}"
    return Value((t.call(scalar, name, (ty, whole)),), False)
