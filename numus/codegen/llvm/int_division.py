"""Vector integer division through floating point.

SIMD has no integer division, and LLVM would scalarise it. A float of more bits gives the exact
quotient: unless x / y is an integer, it is below the next one by a relative 1 / x at least, which
is more than half an ulp, so rounding never reaches it. 64-bit integers take this path below 2**51,
as indices are; others a scalar loop over the lanes.
"""

from __future__ import annotations

import functools

from numus import ir
from numus.codegen.llvm.builder import SCALAR, Ops, Shape, Value, register_type
from numus.codegen.llvm.context import Context

_EXACT_BITS = 51  # of a 64-bit integer that is divided as float64
_MAGIC_FLOAT = 1.5 * 2.0**52  # whose ulp is 1
_MAGIC = 0x4338000000000000  # its bits


Quotient = tuple[str, str, str]  # (quotient, divisor, condition that the divisor was -1)


def branches(ctx: Context, e: ir.Expr) -> bool:
    """Whether a division is emitted with branches."""
    return _is_wide(e) and any(ctx.values[a].vec for a in e.args)


def _is_wide(e: ir.Expr) -> bool:
    divisor = e.args[1]
    is_power_of_two = divisor.op == "const" and divisor.attr.bit_count() == 1 and divisor.attr > 0
    return e.dtype.bits == 64 and not is_power_of_two


def divide(ctx: Context, e: ir.Expr) -> Value:
    """A quotient or a remainder; those of the same operands share the division."""
    a, b = (ctx.values[x] for x in e.args)
    if not a.vec and not b.vec:
        x, y = a.names[0], b.names[0]
        return Value((_finish(ctx, SCALAR, e, x, _quotient(ctx, SCALAR, e, x, y)),), False)
    shape = ctx.current_lane.shape
    xs, ys = ctx.vectors(a, e.dtype), ctx.vectors(b, e.dtype)
    pairs = list(zip(xs, ys, strict=True))
    if not _is_wide(e):
        parts = tuple(_quotient(ctx, shape, e, p, q) for p, q in pairs)
    elif (xs, ys) in ctx.quotients:
        parts = ctx.quotients[xs, ys]
    else:
        parts = tuple(_quotient64(ctx, shape, e, u, p, q) for u, (p, q) in enumerate(pairs))
        ctx.bind(ctx.quotients, (xs, ys), parts)
    names = tuple(_finish(ctx, shape, e, p, part) for p, part in zip(xs, parts, strict=True))
    return Value(names, True)


def _ops(ctx: Context, s: Shape, e: ir.Expr) -> Ops:
    return ctx.t.ops(s, register_type(e.dtype))


def _sign(e: ir.Expr) -> str:
    return "s" if e.dtype.kind == "int" else "u"


def _divisor(ctx: Context, s: Shape, e: ir.Expr, y: str) -> tuple[str, str]:
    """A divisor that cannot trap, and the condition that it was -1 (which overflows for the
    smallest integer: it wraps). Inactive lanes may hold a zero."""
    ops, divisor = _ops(ctx, s, e), e.args[1]
    if s.width and ctx.lane is not None and ctx.lane.mask is not None and divisor.op != "const":
        y = ops.select(ctx.lane.mask.names[0], y, 1)
    if e.dtype.kind != "int" or (divisor.op == "const" and divisor.attr != -1):
        return y, ""
    minus = ops("icmp eq", y, -1)
    return ops.select(minus, 1, y), minus


def _finish(ctx: Context, s: Shape, e: ir.Expr, x: str, quotient: Quotient) -> str:
    ops, (q, y, minus) = _ops(ctx, s, e), quotient
    if e.op == "irem":
        return ops("sub", x, ops("mul", q, y))
    return ops.select(minus, ops("sub", 0, x), q) if minus else q


def _quotient(ctx: Context, s: Shape, e: ir.Expr, x: str, y: str) -> Quotient:
    ops, sign = _ops(ctx, s, e), _sign(e)
    y, minus = _divisor(ctx, s, e, y)
    if not s.width or e.args[1].op == "const":  # LLVM multiplies or shifts
        return ops(f"{sign}div", x, y), y, minus
    wide = ctx.t.ops(s, "double" if e.dtype.bits == 32 else "float")
    fx, fy = (ops.to(f"{sign}itofp", v, wide.scalar) for v in (x, y))
    return wide.to(f"fpto{sign}i", wide("fdiv", fx, fy), ops.scalar), y, minus


# -- 64 bits --------------------------------------------------------------------------------------


def _quotient64(ctx: Context, s: Shape, e: ir.Expr, u: int, x: str, y: str) -> Quotient:
    y, minus = _divisor(ctx, s, e, y)
    large = _any_large(ctx, s, e, u, x, y)
    fx, fy = _to_double(ctx, s, x), _to_double(ctx, s, y)
    fast = _from_double(ctx, s, ctx.t.ops(s, "double")("fdiv", fx, fy))
    ty = s.type(e.dtype)
    exact = ctx.t.value_if(large, "slow", lambda: _lane_by_lane(ctx, s, e, x, y), ty, fast)
    return exact, y, minus


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
            bits, i1 = _large(ctx, s, name, signed), t.ops(s, "i1")
            if ctx.lane is not None and ctx.lane.mask is not None:
                bits = i1("and", bits, ctx.lane.mask.names[0])
            name = f"llvm.vector.reduce.or.{s.suffix('i1')}"
            tests.append(t.call("i1", name, (i1.ty, bits)))
    if not tests:
        return "false"
    return functools.reduce(lambda total, test: t.new(f"or i1 {total}, {test}"), tests)


def _large(ctx: Context, s: Shape, name: str, signed: bool) -> str:
    """name >= 2**51 or name < -2**51, as one unsigned comparison."""
    i64 = ctx.t.ops(s, "i64")
    if not signed:
        return i64("icmp ugt", name, (1 << _EXACT_BITS) - 1)
    return i64("icmp ugt", i64("add", name, 1 << _EXACT_BITS), (1 << (_EXACT_BITS + 1)) - 1)


def _to_double(ctx: Context, s: Shape, name: str) -> str:
    i64 = ctx.t.ops(s, "i64")
    if ctx.t.target.has_int64_conversion:
        return i64.to("sitofp", name, "double")
    # the integer in the fraction of a large float, which is then subtracted
    return ctx.t.ops(s, "double")(
        "fsub", i64.to("bitcast", i64("add", name, _MAGIC), "double"), _MAGIC_FLOAT
    )


def _from_double(ctx: Context, s: Shape, name: str) -> str:
    i64, f64 = ctx.t.ops(s, "i64"), ctx.t.ops(s, "double")
    if ctx.t.target.has_int64_conversion:
        return f64.to("fptosi", name, "i64")
    moved = f64("fadd", f64.call("trunc", name), _MAGIC_FLOAT)
    return i64("sub", f64.to("bitcast", moved, "i64"), _MAGIC)


def _lane_by_lane(ctx: Context, s: Shape, e: ir.Expr, x: str, y: str) -> str:
    """Through memory and an outlined function: rare, so it should be small."""
    t, ty = ctx.t, s.of("i64")
    if ctx.division_scratch is None:
        ctx.division_scratch = (t.alloca(ty), t.alloca(ty))
    at_x, at_y = ctx.division_scratch
    t.do(f"store {ty} {x}, ptr {at_x}")
    t.do(f"store {ty} {y}, ptr {at_y}")
    name = f"{_sign(e)}div_lanes"
    t.functions[name] = _LOOP.replace("NAME", name).replace("DIV", f"{_sign(e)}div")
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
