"""Cross-lane operations of SIMD vectors: permutations and reductions in a fixed tree."""

from __future__ import annotations

import functools

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm import arithmetic
from numus.codegen.llvm.builder import SCALAR, Shape, Value, register_type
from numus.codegen.llvm.context import Context
from numus.errors import CompileError


def permute(x: Context, e: ir.Expr) -> Value:
    """lanes_xor, lanes_shift and lanes_last as shuffles; lanes_compress, lanes_count."""
    v, lane = x.values[e.args[0]], x.lane
    if e.op == "lanes_xor" and e.attr is None:
        raise CompileError("lanes_xor by a variable mask is not supported on CPUs")
    if lane is None or lane.mask is not None or lane.unroll != 1:
        raise CompileError(f"{e.op} needs a lanes loop of exactly one vector")
    width, ty = lane.shape.width, lane.shape.type(e.dtype)
    (name,) = x.vectors(v, e.args[0].dtype)
    if e.op == "lanes_count":
        bits = x.t.new(f"bitcast {lane.shape.of('i1')} {name} to i{width}")
        count = x.t.call(f"i{width}", f"llvm.ctpop.i{width}", (f"i{width}", bits))
        if width < 64:
            count = x.t.new(f"zext i{width} {count} to i64")
        return Value((count,), False)
    if e.op == "lanes_compress":
        (mask,) = x.vectors(x.values[e.args[1]], dt.bool_)
        function = f"llvm.experimental.vector.compress.{lane.shape.suffix(register_type(e.dtype))}"
        operands = (ty, name), (lane.shape.of("i1"), mask), (ty, "poison")
        return Value((x.t.call(ty, function, *operands),), True)
    if e.op == "lanes_last":
        element = f"extractelement {ty} {name}, i64 {width - 1}"
        return Value((x.t.new(element),), False)
    other = "poison"
    numbers = [i ^ e.attr for i in range(width)]
    if e.op == "lanes_shift":
        (other,) = x.vectors(x.values[e.args[1]], e.dtype)
        numbers = [i - e.attr if i >= e.attr else width + i for i in range(width)]
    return Value((x.t.shuffle(ty, name, other, numbers),), True)


def reduce(x: Context, op: str, register: ir.Register) -> Value:
    """Tree reduction: vectors pairwise, then halves of one vector."""
    t, dtype = x.t, register.dtype
    shape = x.register_shape(register)
    scalar, ty = register_type(dtype), shape.type(dtype)

    def combine(s: Shape, a: str, b: str) -> str:
        return arithmetic.combine(t, s, op, dtype, a, b)

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
        half, ty = Shape(shape.width // 2), shape.of(scalar)
        low, high = (
            t.shuffle(ty, whole, "poison", range(k, k + half.width)) for k in (0, half.width)
        )
        whole, shape = combine(half, low, high), half
    ends = [t.new(f"extractelement {shape.of(scalar)} {whole}, i64 {i}") for i in (0, 1)]
    return Value((combine(SCALAR, ends[0], ends[1]),), False)


def min_where(x: Context, register: ir.Register, values: ir.Register, equal_to: Value) -> Value:
    """The minimum of a register over the lanes where `values` equals a value, or is NaN."""
    t, dtype = x.t, register.dtype
    shape = x.register_shape(register)
    own, other = t.ops(shape, register_type(dtype)), t.ops(shape, register_type(values.dtype))
    wanted = x.splat(other.scalar, equal_to, shape)
    parts = []
    for slot, value in zip(x.storage(register), x.storage(values), strict=True):
        found = t.new(f"load {other.ty}, ptr {value}")
        if values.dtype.kind == "float":
            same, nan = other("fcmp oeq", found, wanted), other("fcmp uno", found, found)
            same = t.ops(shape, "i1")("or", same, nan)
        else:
            same = other("icmp eq", found, wanted)
        index = t.new(f"load {own.ty}, ptr {slot}")
        parts.append(own.select(same, index, (1 << (dtype.bits - 1)) - 1))
    whole = functools.reduce(lambda a, b: own.call("smin", a, b), parts)
    name = f"llvm.vector.reduce.smin.{shape.suffix(own.scalar)}"
    return Value((t.call(own.scalar, name, (own.ty, whole)),), False)
