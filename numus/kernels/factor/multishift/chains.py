"""Chains of small bulges chased along a Hessenberg matrix (Braman, Byers & Mathias 2002, I).

The bulges of a chain, three rows apart, take some steps within a window of the diagonal. Their
reflectors are kept, and what is beside the window and above it takes them afterwards, while a block
of its columns (of its rows, transposed) is in L1 and three rows are in registers: fewer operations
than a product with the accumulated window has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor import francis
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, transposed
from numus.kernels.factor.program import ONE, ZERO, Matrix, Span, fma

TWO, THREE = const(2), const(3)
_UNROLL = 4  # vectors of columns whose reflections hide each other's latency


@dataclass(frozen=True)
class ChainTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    bulges: int = 8
    steps: int = 24  # of a chain in a window

    @property
    def window(self) -> int:
        """The most rows of one."""
        return 3 * (self.bulges - 1) + self.steps + 4

    @property
    def reflectors(self) -> int:
        return self.bulges * self.steps


TUNING = ChainTuning()
KEPT = 5  # numbers of a reflector: v without its 1, and tau times v


class Chase(NamedTuple):
    """What chains work on: H, Zᵀ, the shifts of bulges in rows, and memory for the reflectors of a
    window and for what is above it, transposed."""

    h: Planes
    z: Planes
    shifts: Matrix
    reflectors: Matrix
    above: Planes
    n: Expr


class _Window(NamedTuple):
    """Steps of a chain of bulges in rows lo … hi: from row `top` to row `last`."""

    active: Span
    bulges: Expr
    times: Span
    top: Expr
    last: Expr


def sweep(p: TileProgram, c: Chase, active: Span, bulges: Expr) -> None:
    """All bulges through rows lo … hi, in chains."""
    size = const(TUNING.bulges)
    with p.loop(ZERO, p.let(ir.idiv(ir.add(bulges, const(TUNING.bulges - 1)), size))) as number:
        first = p.let(ir.mul(number, size))
        count = p.let(ir.minimum(ir.sub(bulges, first), size))
        _chain(p, c, active, first, count)


def _chain(p: TileProgram, c: Chase, active: Span, first: Expr, count: Expr) -> None:
    """Bulge b is at row lo + time - 3 b."""
    lo, hi = active
    behind = p.let(ir.mul(THREE, ir.sub(count, ONE)))
    end = p.let(ir.add(ir.sub(hi, lo), behind))
    steps = const(TUNING.steps)
    with p.loop(ZERO, p.let(ir.idiv(ir.add(end, const(TUNING.steps - 1)), steps))) as number:
        start = p.let(ir.mul(number, steps))
        stop = p.let(ir.minimum(ir.add(start, steps), end))
        trailing = ir.sub(ir.sub(ir.add(lo, start), behind), ONE)
        top = p.let(ir.maximum(lo, trailing))
        last = p.let(ir.minimum(hi, ir.add(lo, ir.add(stop, TWO))))
        w = _Window(active, count, (start, stop), top, last)
        # rows above that make no whole vector take reflectors at once
        whole = p.let(ir.mul(ir.idiv(top, const(p.width)), const(p.width)))
        with p.loop(start, stop) as time, p.loop(ZERO, count) as b:
            k = p.let(ir.sub(ir.add(lo, time), ir.mul(THREE, b)))
            with p.when(p.let((k >= lo) & (k < hi))):
                _step(p, c, w, k, ir.add(first, b), _slot(b, ir.sub(time, start)), whole)
        _take_reflectors(p, c.h, w, c.reflectors, (p.let(ir.add(last, ONE)), c.n))
        _take_reflectors(p, c.z, w, c.reflectors, (ZERO, c.n))
        with p.when(p.let(whole > 0)):
            _above(p, c, w, whole)


def _slot(b: Expr, step: Expr) -> Expr:
    return ir.add(ir.mul(b, const(TUNING.steps)), step)


def _step(
    p: TileProgram, c: Chase, w: _Window, k: Expr, bulge: Expr, slot: Expr, above: Expr
) -> None:
    """A reflector of rows k … k + 2, applied within the window."""
    h, (lo, hi) = c.h, w.active
    after = p.let(ir.add(k, ONE))
    third = p.let(ir.minimum(ir.add(k, TWO), hi))
    before = p.let(ir.maximum(ir.sub(k, ONE), ZERO))
    begins, three = p.let(k.eq(lo)), p.let(third > after)
    x, y, z = (p.register() for _ in range(3))
    p.do(ir.Set(x, h[k, before][0]), ir.Set(y, h[after, before][0]))
    p.do(ir.Set(z, select(three, h[third, before][0], p.constant(0.0))))
    with p.when(begins):
        column = _first_column(p, h, k, [c.shifts[const(i), bulge][0] for i in range(3)])
        p.do(*(ir.Set(r, value) for r, value in zip((x, y, z), column, strict=True)))
    beta, tau, v = francis.reflector(p, *(p.let(ir.read(r)) for r in (x, y, z)))
    with p.when(p.let(~begins)):
        with p.when(three):
            h[third, before] = (p.constant(0.0),)
        h[after, before] = (p.constant(0.0),)
        h[k, before] = (beta,)
    for at, value in enumerate((*v, tau, p.let(tau * v[0]), p.let(tau * v[1]))):
        c.reflectors[slot, const(at)] = (value,)
    with p.lanes(k, ir.add(w.last, ONE)) as j:
        francis.combine(p, h, [(k, j), (after, j), (third, j)], v, tau)
    with p.lanes(above, ir.add(ir.minimum(ir.add(k, THREE), hi), ONE)) as i:
        francis.combine(p, h, [(i, k), (i, after), (i, third)], v, tau)


def _first_column(p: TileProgram, h: Planes, lo: Expr, shift: list[Expr]) -> list[Expr]:
    """That of (H - s₁)(H - s₂) scaled, for two real shifts or the real part of a pair, twice, and
    its imaginary part."""
    one, two = p.let(ir.add(lo, ONE)), p.let(ir.add(lo, TWO))
    first, second, imaginary = (p.let(s) for s in shift)
    h00, h01, h10, h11 = (p.let(h[i, j][0]) for i in (lo, one) for j in (lo, one))
    h21 = p.let(h[two, one][0])
    near, far = p.let(h00 - first), p.let(h00 - second)
    length = p.let(ir.unary("abs", far) + imaginary + ir.unary("abs", h10))
    length = p.let(select(length.eq(0.0), p.constant(1.0), length))
    below = p.let(h10 / length)
    x = below * h01 + near * (far / length) + imaginary * (imaginary / length)
    return [p.let(x), p.let(below * (near + (h11 - second))), p.let(below * h21)]


def _take_reflectors(
    p: TileProgram, x: Planes, w: _Window, reflectors: Matrix, columns: Span, above: Expr = ZERO
) -> None:
    """The reflectors of a window on columns of its rows, whose numbers in `x` are less by `above`:
    bulge after bulge, three rows in registers."""
    (lo, hi), (start, stop) = w.active, w.times
    with p.lanes(*columns, unroll=_UNROLL) as j, p.loop(ZERO, w.bulges) as b:
        back = p.let(ir.sub(lo, ir.mul(THREE, b)))
        begin = p.let(ir.maximum(lo, ir.add(back, start)))
        end = p.let(ir.minimum(hi, ir.add(back, stop)))
        with p.when(p.let(begin < end)):
            top = p.let(ir.sub(begin, above))
            upper, middle, lower = (p.register(lanes=True) for _ in range(3))
            p.do(*ir.sets([upper], x[top, j]), *ir.sets([middle], x[ir.add(top, ONE), j]))
            with p.loop(begin, end) as k:
                row = p.let(ir.sub(k, above))
                last = p.let(ir.sub(ir.minimum(ir.add(k, TWO), hi), above))
                slot = _slot(b, ir.sub(ir.sub(k, back), start))
                v1, v2, t0, t1, t2 = (p.let(reflectors[slot, const(at)][0]) for at in range(KEPT))
                p.do(*ir.sets([lower], x[last, j]))
                total = fma(v2, ir.read(lower), fma(v1, ir.read(middle), ir.read(upper)))
                total = p.let(total)
                x[row, j] = (fma(-t0, total, ir.read(upper)),)
                p.do(ir.Set(upper, fma(-t1, total, ir.read(middle))))
                p.do(ir.Set(middle, fma(-t2, total, ir.read(lower))))
            bottom = p.let(ir.sub(end, above))
            x[bottom, j] = (ir.read(upper),)
            with p.when(p.let(end < hi)):  # else that row is not one of the last reflector's
                x[ir.add(bottom, ONE), j] = (ir.read(middle),)


def _above(p: TileProgram, c: Chase, w: _Window, rows: Expr) -> None:
    """The reflectors of a window on the rows above it, from the right."""
    own, width = c.h.moved(ZERO, w.top), const(p.width)
    columns = ir.add(ir.sub(w.last, w.top), const(p.width))
    columns = p.let(ir.mul(ir.idiv(columns, width), width))
    transposed(p, own, c.above, (ZERO, rows), (ZERO, columns))
    _take_reflectors(p, c.above, w, c.reflectors, (ZERO, rows), w.top)
    transposed(p, c.above, own, (ZERO, columns), (ZERO, rows))
