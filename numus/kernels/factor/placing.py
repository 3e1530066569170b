"""The order of eigenvalues and singular values."""

from __future__ import annotations

from numus.ir import Expr, const, select
from numus.kernels.factor.program import INT, ZERO, Matrix, Program


def places(p: Program, keys: Matrix, row: int, n: Expr) -> None:
    """Row `row` + 1 of the keys: where the numbers of row `row` stand in ascending order. All stay
    where they are if one is NaN."""
    own, other = const(row), const(row + 1)

    def bad(i: Expr) -> list[Expr]:
        key = p.let(keys[own, i][0])
        return [select(key.eq(key), const(0, INT), const(1, INT))]

    (count,) = p.reduced("add", ZERO, n, bad, const(0, INT))
    failed = p.let(count.ne(0))
    with p.loop(ZERO, n) as i:
        key = p.let(keys[own, i][0])

        def before(j: Expr, key: Expr = key, i: Expr = i) -> list[Expr]:
            x = p.let(keys[own, j][0])
            first = (x < key) | (x.eq(key) & (j < i))
            return [select(first, const(1, INT), const(0, INT))]

        (found,) = p.reduced("add", ZERO, n, before, const(0, INT))
        keys[other, i] = (select(failed, i.cast(p.real), found.cast(p.real)),)
