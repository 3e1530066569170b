"""Division of integers: `idiv` and `irem`.

Vectors have no such instruction, and LLVM would take them apart. Floats wide enough give the exact
quotient instead: if x / y is not whole, it is at least 1 / x (relatively) below the next integer,
and that is more than half a last place of the float, so truncation never sees a quotient that was
rounded up to it. 64-bit integers are divided so while they are below 2**51, as indices are; beyond
that a loop over the lanes does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus import ir
from numus.codegen.llvm.builder import SCALAR, Shape, Value, register_type

if TYPE_CHECKING:
    from numus.codegen.llvm.expressions import Expressions

_FITS = 51  # bits of a 64-bit integer that is divided as a float64
_MAGIC = 0x4338000000000000  # 1.5 * 2**52, whose last place is worth 1


def is_fixed(r: Expressions, e: ir.Expr) -> bool:
    """Whether a division is more than straight code."""
    return _is_wide(e) and any(r.values[a].vec for a in e.args)


def _is_wide(e: ir.Expr) -> bool:
    if e.op not in ("idiv", "irem") or e.dtype.bits != 64:
        return False
    divisor = e.args[1]
    return not (divisor.op == "const" and _power_of_two(divisor.attr))


def _power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def divide(r: Expressions, e: ir.Expr) -> Value:
    """A quotient or a remainder; both of the same operands share the work."""
    x, y = e.args
    a, b = r.values[x], r.values[y]
    vec = a.vec or b.vec
    if not vec:
        return Value((_finish(r, SCALAR, e, a.names[0], *_plain(r, SCALAR, e, a, b)),), False)
    assert r.lane is not None
    shape = r.lane.shape
    xs, ys = r.vectors(a, e.dtype), r.vectors(b, e.dtype)
    if not _is_wide(e):
        parts = [_by_vector(r, shape, e, p, q) for p, q in zip(xs, ys, strict=True)]
    else:
        shared = r.quotients.get((xs, ys))
        if shared is None:
            shared = tuple(
                _wide(r, shape, e, u, p, q) for u, (p, q) in enumerate(zip(xs, ys, strict=True))
            )
            r.remember(r.quotients, (xs, ys), shared)
        parts = list(shared)
    names = tuple(_finish(r, shape, e, p, *part) for p, part in zip(xs, parts, strict=True))
    return Value(names, True)


def _plain(r: Expressions, s: Shape, e: ir.Expr, a: Value, b: Value) -> tuple[str, str, str]:
    """Of scalars: quotient, divisor, and where the divisor was -1."""
    y, minus = _divisor(r, s, e, b.names[0])
    sign = "s" if e.dtype.kind == "int" else "u"
    return r.t.new(f"{sign}div {s.type(e.dtype)} {a.names[0]}, {y}"), y, minus


def _divisor(r: Expressions, s: Shape, e: ir.Expr, y: str) -> tuple[str, str]:
    """A divisor without what would trap, and where it was -1 (the smallest integer by -1
    overflows: it wraps here). Lanes that do not exist may hold a zero."""
    t, dtype, divisor = r.t, e.dtype, e.args[1]
    ty, scalar, b = s.type(dtype), register_type(dtype), s.of("i1")
    one = s.const(scalar, 1)
    if s.width and r.lane is not None and r.lane.mask is not None and divisor.op != "const":
        y = t.new(f"select {b} {r.lane.mask.names[0]}, {ty} {y}, {ty} {one}")
    if dtype.kind != "int" or (divisor.op == "const" and divisor.attr != -1):
        return y, ""
    minus = t.new(f"icmp eq {ty} {y}, {s.const(scalar, -1)}")
    return t.new(f"select {b} {minus}, {ty} {one}, {ty} {y}"), minus


def _finish(r: Expressions, s: Shape, e: ir.Expr, x: str, q: str, y: str, minus: str) -> str:
    t, ty = r.t, s.type(e.dtype)
    if e.op == "irem":
        whole = t.new(f"mul {ty} {q}, {y}")
        return t.new(f"sub {ty} {x}, {whole}")
    if not minus:
        return q
    negated = t.new(f"sub {ty} {s.const(register_type(e.dtype), 0)}, {x}")
    return t.new(f"select {s.of('i1')} {minus}, {ty} {negated}, {ty} {q}")


def _by_vector(r: Expressions, s: Shape, e: ir.Expr, x: str, y: str) -> tuple[str, str, str]:
    t, dtype, ty = r.t, e.dtype, s.type(e.dtype)
    y, minus = _divisor(r, s, e, y)
    sign = "s" if dtype.kind == "int" else "u"
    if e.args[1].op == "const":  # LLVM multiplies or shifts
        return t.new(f"{sign}div {ty} {x}, {y}"), y, minus
    wide = s.of("double" if dtype.bits == 32 else "float")
    fx = t.new(f"{sign}itofp {ty} {x} to {wide}")
    fy = t.new(f"{sign}itofp {ty} {y} to {wide}")
    q = t.new(f"fdiv {wide} {fx}, {fy}")
    return t.new(f"fpto{sign}i {wide} {q} to {ty}"), y, minus


# -- 64 bits --------------------------------------------------------------------------------------


def _wide(r: Expressions, s: Shape, e: ir.Expr, u: int, x: str, y: str) -> tuple[str, str, str]:
    t, ty = r.t, s.type(e.dtype)
    y, minus = _divisor(r, s, e, y)
    large = _any_large(r, s, e, u, x, y)
    slow, join = t.label("slow"), t.label("join")
    fx, fy = _to_double(r, s, x), _to_double(r, s, y)
    dd = s.of("double")
    ratio = t.new(f"fdiv {dd} {fx}, {fy}")
    fast = _from_double(r, s, ratio)
    before = t.block
    t.branch(large, slow, join)
    t.start(slow)
    exact = _lane_by_lane(r, s, e, x, y)
    t.jump(join)
    t.start(join)
    return t.new(f"phi {ty} [ {fast}, %{before} ], [ {exact}, %{slow} ]"), y, minus


def _any_large(r: Expressions, s: Shape, e: ir.Expr, u: int, x: str, y: str) -> str:
    """Whether a lane holds an integer that a float might not."""
    t, signed = r.t, e.dtype.kind == "int"
    tests = []
    for operand, name in zip(e.args, (x, y), strict=True):
        v = r.values[operand]
        growth = r.growth(operand)
        if operand.op == "const":
            if abs(operand.attr) >> _FITS:
                tests.append("true")
        elif not v.vec:
            tests.append(_large(r, SCALAR, v.names[0], signed))
        elif growth is not None and e.dtype is ir.INDEX:  # its ends tell
            first = r.base(operand).names[0]
            for lane in (u * s.width, (u + 1) * s.width - 1):
                tests.append(_large(r, SCALAR, t.new(f"add i64 {first}, {growth * lane}"), True))
        else:
            bits = _large(r, s, name, signed)
            if r.lane is not None and r.lane.mask is not None:
                bits = t.new(f"and {s.of('i1')} {bits}, {r.lane.mask.names[0]}")
            name = f"llvm.vector.reduce.or.{s.suffix('i1')}"
            tests.append(t.call("i1", name, (s.of("i1"), bits)))
    total = "false"
    for test in tests:
        total = test if total == "false" else t.new(f"or i1 {total}, {test}")
    return total


def _large(r: Expressions, s: Shape, name: str, signed: bool) -> str:
    """name >= 2**51 or name < -2**51, as one unsigned comparison."""
    ty = s.of("i64")
    if not signed:
        return r.t.new(f"icmp ugt {ty} {name}, {s.const('i64', (1 << _FITS) - 1)}")
    moved = r.t.new(f"add {ty} {name}, {s.const('i64', 1 << _FITS)}")
    return r.t.new(f"icmp ugt {ty} {moved}, {s.const('i64', (1 << (_FITS + 1)) - 1)}")


def _to_double(r: Expressions, s: Shape, name: str) -> str:
    t, it, dd = r.t, s.of("i64"), s.of("double")
    if r.target.converts64:
        return t.new(f"sitofp {it} {name} to {dd}")
    # put the integer into the fraction of a large float, then take that float off again
    placed = t.new(f"add {it} {name}, {s.const('i64', _MAGIC)}")
    placed = t.new(f"bitcast {it} {placed} to {dd}")
    return t.new(f"fsub {dd} {placed}, {s.const('double', f'0x{_MAGIC:016X}')}")


def _from_double(r: Expressions, s: Shape, name: str) -> str:
    t, it, dd = r.t, s.of("i64"), s.of("double")
    if r.target.converts64:
        return t.new(f"fptosi {dd} {name} to {it}")
    whole = t.call(dd, f"llvm.trunc.{s.suffix('double')}", (dd, name))
    placed = t.new(f"fadd {dd} {whole}, {s.const('double', f'0x{_MAGIC:016X}')}")
    placed = t.new(f"bitcast {dd} {placed} to {it}")
    return t.new(f"sub {it} {placed}, {s.const('i64', _MAGIC)}")


def _lane_by_lane(r: Expressions, s: Shape, e: ir.Expr, x: str, y: str) -> str:
    """Through memory and a function of its own: this is rare, so it should be small."""
    t, ty = r.t, s.of("i64")
    sign = "s" if e.dtype.kind == "int" else "u"
    if r.division_space is None:
        r.division_space = (t.alloca(ty), t.alloca(ty))
    at_x, at_y = r.division_space
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
