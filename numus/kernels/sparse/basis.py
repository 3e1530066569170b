"""Products with the vectors of a basis on a CPU: each is read once, in blocks of elements.

Several vectors at a time keep more loads in flight and reuse those that they are multiplied by.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

Read = Callable[[Expr, Expr], Expr]  # an element of a vector
Span = tuple[Expr, Expr]


def products(
    dtype: DType, vectors: int, others: int, count: Expr, span: Span, basis: Read,
    x: Callable[[int, Expr], Expr],
    write: Callable[[Expr, Expr, Expr], list[Stmt]],
) -> list[Stmt]:  # fmt: skip
    """Sums over a block of elements: of `vectors` of the basis at a time with all others;
    `write(other, vector, sum)` stores one."""
    first, i = ir.var("first"), ir.var("i")
    sums = [
        [ir.Register(f"sum{v}_{o}", dtype, lanes=True) for o in range(others)]
        for v in range(vectors)
    ]
    step: list[Stmt] = [ir.Let(ir.var(f"x{o}", dtype), x(o, i)) for o in range(others)]
    out: list[Stmt] = []
    for v, own in enumerate(sums):
        at, name = ir.minimum(ir.add(first, const(v)), ir.sub(count, ONE)), ir.var(f"v{v}", dtype)
        step.append(ir.Let(name, basis(at, i)))
        stores: list[Stmt] = []
        for o, s in enumerate(own):
            step.append(ir.Set(s, ir.read(s) + name * ir.var(f"x{o}", dtype)))
            stores += write(const(o), ir.add(first, const(v)), ir.lanes_reduce("add", s))
        out.append(ir.If(ir.add(first, const(v)) < count, stores))
    clear: list[Stmt] = [ir.Set(s, const(0, dtype)) for own in sums for s in own]
    body = [*clear, ir.For(i, *span, "lanes", step), *out]
    return [ir.For(first, ZERO, count, "serial", body, step=const(vectors))]


def remainder(
    dtype: DType, unroll: int, count: Expr, span: Span, basis: Read, y: Callable[[Expr], Expr],
    x: Callable[[Expr], Expr], write: Callable[[Expr, Expr], list[Stmt]],
) -> list[Stmt]:  # fmt: skip
    """Elements of x less those of a sum of vectors, one vector after the other."""
    i, vector = ir.var("i"), ir.var("vector")
    left = ir.Register("left", dtype, lanes=True)
    less = ir.Set(left, ir.read(left) - y(vector) * basis(vector, i))
    loop = ir.For(vector, ZERO, count, "serial", [less])
    body = [ir.Set(left, x(i)), loop, *write(i, ir.read(left))]
    return [ir.For(i, *span, "lanes", body, unroll=unroll)]
