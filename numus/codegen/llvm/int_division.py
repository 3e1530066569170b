"""Vector integer division through floating point.

SIMD has no integer division, and LLVM would scalarise it. A float of more bits gives the exact
quotient: unless x / y is an integer, it is below the next one by a relative 1 / x at least, which
is more than half an ulp, so rounding never reaches it. 64-bit integers take this path below 2**51,
as indices are; others a scalar loop over the lanes.
"""

from __future__ import annotations

from numus import ir
from numus.codegen.llvm.builder import SCALAR, Shape, Value, register_type
from numus.codegen.llvm.context import Context

_EXACT_BITS = 51  # of a 64-bit integer that is divided as float64
_MAGIC = 0x4338000000000000  # 1.5 * 2**52, whose ulp is 1


def branches(ctx: Context, e: ir.Expr) -> bool:
    """Whether a division is emitted with branches."""
    return _is_wide(e) and any(ctx.values[a].vec for a in e.args)


def _is_wide(e: ir.Expr) -> bool:
    if e.op not in ("idiv", "irem") or e.dtype.bits != 64:
        return False
    divisor = e.args[1]
    return not (divisor.op == "const" and _power_of_two(divisor.attr))


def _power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def divide(ctx: Context, e: ir.Expr) -> Value:
    """A quotient or a remainder; those of the same operands share the division."""
    x, y = e.args
    a, b = ctx.values[x], ctx.values[y]
    vec = a.vec or b.vec
    if not vec:
        return Value(
            (_finish(ctx, SCALAR, e, a.names[0], *_scalar_quotient(ctx, SCALAR, e, a, b)),), False
        )
    shape = ctx.current_lane.shape
    xs, ys = ctx.vectors(a, e.dtype), ctx.vectors(b, e.dtype)
    if not _is_wide(e):
        parts = [_vector_quotient(ctx, shape, e, p, q) for p, q in zip(xs, ys, strict=True)]
    else:
        shared = ctx.quotients.get((xs, ys))
        if shared is None:
            shared = tuple(
                _vector_quotient64(ctx, shape, e, u, p, q)
                for u, (p, q) in enumerate(zip(xs, ys, strict=True))
            )
            ctx.bind(ctx.quotients, (xs, ys), shared)
        parts = list(shared)
    names = tuple(_finish(ctx, shape, e, p, *part) for p, part in zip(xs, parts, strict=True))
    return Value(names, True)


def _scalar_quotient(
    ctx: Context, s: Shape, e: ir.Expr, a: Value, b: Value
) -> tuple[str, str, str]:
    """Scalar (quotient, divisor, condition that the divisor was -1)."""
    y, minus = _divisor(ctx, s, e, b.names[0])
    sign = "s" if e.dtype.kind == "int" else "u"
    return ctx.t.new(f"{sign}div {s.type(e.dtype)} {a.names[0]}, {y}"), y, minus


def _divisor(ctx: Context, s: Shape, e: ir.Expr, y: str) -> tuple[str, str]:
    """A divisor that cannot trap, and the condition that it was -1 (which overflows for the
    smallest integer: it wraps). Inactive lanes may hold a zero."""
    t, dtype, divisor = ctx.t, e.dtype, e.args[1]
    ty, scalar, b = s.type(dtype), register_type(dtype), s.of("i1")
    one = s.const(scalar, 1)
    if s.width and ctx.lane is not None and ctx.lane.mask is not None and divisor.op != "const":
        y = t.new(f"select {b} {ctx.lane.mask.names[0]}, {ty} {y}, {ty} {one}")
    if dtype.kind != "int" or (divisor.op == "const" and divisor.attr != -1):
        return y, ""
    minus = t.new(f"icmp eq {ty} {y}, {s.const(scalar, -1)}")
    return t.new(f"select {b} {minus}, {ty} {one}, {ty} {y}"), minus


def _finish(ctx: Context, s: Shape, e: ir.Expr, x: str, q: str, y: str, minus: str) -> str:
    t, ty = ctx.t, s.type(e.dtype)
    if e.op == "irem":
        whole = t.new(f"mul {ty} {q}, {y}")
        return t.new(f"sub {ty} {x}, {whole}")
    if not minus:
        return q
    negated = t.new(f"sub {ty} {s.const(register_type(e.dtype), 0)}, {x}")
    return t.new(f"select {s.of('i1')} {minus}, {ty} {negated}, {ty} {q}")


def _vector_quotient(ctx: Context, s: Shape, e: ir.Expr, x: str, y: str) -> tuple[str, str, str]:
    t, dtype, ty = ctx.t, e.dtype, s.type(e.dtype)
    y, minus = _divisor(ctx, s, e, y)
    sign = "s" if dtype.kind == "int" else "u"
    if e.args[1].op == "const":  # LLVM multiplies or shifts
        return t.new(f"{sign}div {ty} {x}, {y}"), y, minus
    wide = s.of("double" if dtype.bits == 32 else "float")
    fx = t.new(f"{sign}itofp {ty} {x} to {wide}")
    fy = t.new(f"{sign}itofp {ty} {y} to {wide}")
    q = t.new(f"fdiv {wide} {fx}, {fy}")
    return t.new(f"fpto{sign}i {wide} {q} to {ty}"), y, minus


# -- 64 bits --------------------------------------------------------------------------------------


def _vector_quotient64(
    ctx: Context, s: Shape, e: ir.Expr, u: int, x: str, y: str
) -> tuple[str, str, str]:
    t, ty = ctx.t, s.type(e.dtype)
    y, minus = _divisor(ctx, s, e, y)
    large = _any_large(ctx, s, e, u, x, y)
    slow, join = t.label("slow"), t.label("join")
    fx, fy = _to_double(ctx, s, x), _to_double(ctx, s, y)
    dd = s.of("double")
    ratio = t.new(f"fdiv {dd} {fx}, {fy}")
    fast = _from_double(ctx, s, ratio)
    before = t.block
    t.branch(large, slow, join)
    t.start(slow)
    exact = _lane_by_lane(ctx, s, e, x, y)
    t.jump(join)
    t.start(join)
    return t.new(f"phi {ty} [ {fast}, %{before} ], [ {exact}, %{slow} ]"), y, minus


def _any_large(ctx: Context, s: Shape, e: ir.Expr, u: int, x: str, y: str) -> str:
    """Whether any lane has an integer that float64 may not represent."""
    t, signed = ctx.t, e.dtype.kind == "int"
    tests = []
    for operand, name in zip(e.args, (x, y), strict=True):
        v = ctx.values[operand]
        stride = ctx.lane_stride(operand)
        if operand.op == "const":
            if abs(operand.attr) >> _EXACT_BITS:
                tests.append("true")
        elif not v.vec:
            tests.append(_large(ctx, SCALAR, v.names[0], signed))
        elif stride is not None and e.dtype is ir.INDEX:  # monotonic: test both ends
            first = ctx.base(operand).names[0]
            for lane in (u * s.width, (u + 1) * s.width - 1):
                tests.append(_large(ctx, SCALAR, t.new(f"add i64 {first}, {stride * lane}"), True))
        else:
            bits = _large(ctx, s, name, signed)
            if ctx.lane is not None and ctx.lane.mask is not None:
                bits = t.new(f"and {s.of('i1')} {bits}, {ctx.lane.mask.names[0]}")
            name = f"llvm.vector.reduce.or.{s.suffix('i1')}"
            tests.append(t.call("i1", name, (s.of("i1"), bits)))
    total = "false"
    for test in tests:
        total = test if total == "false" else t.new(f"or i1 {total}, {test}")
    return total


def _large(ctx: Context, s: Shape, name: str, signed: bool) -> str:
    """name >= 2**51 or name < -2**51, as one unsigned comparison."""
    ty = s.of("i64")
    if not signed:
        return ctx.t.new(f"icmp ugt {ty} {name}, {s.const('i64', (1 << _EXACT_BITS) - 1)}")
    moved = ctx.t.new(f"add {ty} {name}, {s.const('i64', 1 << _EXACT_BITS)}")
    return ctx.t.new(f"icmp ugt {ty} {moved}, {s.const('i64', (1 << (_EXACT_BITS + 1)) - 1)}")


def _to_double(ctx: Context, s: Shape, name: str) -> str:
    t, it, dd = ctx.t, s.of("i64"), s.of("double")
    if ctx.t.target.has_int64_conversion:
        return t.new(f"sitofp {it} {name} to {dd}")
    # the integer in the fraction of a large float, which is then subtracted
    placed = t.new(f"add {it} {name}, {s.const('i64', _MAGIC)}")
    placed = t.new(f"bitcast {it} {placed} to {dd}")
    return t.new(f"fsub {dd} {placed}, {s.const('double', f'0x{_MAGIC:016X}')}")


def _from_double(ctx: Context, s: Shape, name: str) -> str:
    t, it, dd = ctx.t, s.of("i64"), s.of("double")
    if ctx.t.target.has_int64_conversion:
        return t.new(f"fptosi {dd} {name} to {it}")
    whole = t.call(dd, f"llvm.trunc.{s.suffix('double')}", (dd, name))
    placed = t.new(f"fadd {dd} {whole}, {s.const('double', f'0x{_MAGIC:016X}')}")
    placed = t.new(f"bitcast {dd} {placed} to {it}")
    return t.new(f"sub {it} {placed}, {s.const('i64', _MAGIC)}")


def _lane_by_lane(ctx: Context, s: Shape, e: ir.Expr, x: str, y: str) -> str:
    """Through memory and an outlined function: rare, so it should be small."""
    t, ty = ctx.t, s.of("i64")
    sign = "s" if e.dtype.kind == "int" else "u"
    if ctx.division_scratch is None:
        ctx.division_scratch = (t.alloca(ty), t.alloca(ty))
    at_x, at_y = ctx.division_scratch
    t.do(f"store {ty} {x}, ptr {at_x}")
    t.do(f"store {ty} {y}, ptr {at_y}")
    name = f"{sign}div_lanes"
    t.functions[name] = _LOOP.replace("NAME", name).replace("DIV", f"{sign}div")
    t.do(f"call void @{name}(ptr {at_x}, ptr {at_y}, i64 {s.width})")
    return t.new(f"load {ty}, ptr {at_x}")


_LOOP = """define internal void @NAME(ptr %x, ptr %y, i64 %count) noinline nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %px = getelementptr i64, ptr %x, i64 %i
  %py = getelementptr i64, ptr %y, i64 %i
  %a = load i64, ptr %px
  %b = load i64, ptr %py
  %q = DIV i64 %a, %b
  store i64 %q, ptr %px
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
