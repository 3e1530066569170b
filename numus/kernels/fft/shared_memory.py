"""Stockham transforms of a block of threads, through shared memory (Govindaraju et al. 2008).

A thread has one butterfly in registers at a time. Between two passes, points go through shared
memory as pairs, with a gap after every 16 of them: strides of powers of two meet all banks. Where
two buffers would leave a multiprocessor too few blocks, all threads read before any of them stores,
and one buffer does.

The factors of a pass are powers of one root of unity of each thread. Those of long transforms that
are split into columns belong to the passes over a column, too: point g of the first n / r points of
column c is multiplied by exp(-2 pi i k (c + C g) / (C n)), with C the number of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, split_constant
from numus.kernels.fft.butterflies import Bindings, Complex, add, butterfly_in_order, mul, sub
from numus.kernels.fft.indices import quotient, remainder
from numus.kernels.fft.radices import is_in_registers
from numus.kernels.fft.stockham import (
    ONE,
    ZERO,
    Pass,
    Read,
    Transform,
    Write,
    is_multiple,
    loop_butterfly,
    pair,
    passes_of,
)

BANK_PERIOD = 16  # points between gaps

# exp(-2 pi i e (c + C g) / (C n / stride)), as factors: pass, group g, transform (column c), e
Rotation = Callable[[Pass, Expr, Transform, Expr], list[Complex]]
Factor = Callable[[Expr], Complex | None]  # that a point is multiplied by; None: it is zero


def padded_offset(point: int) -> int:
    """Where a point is in a shared buffer."""
    return point + point // BANK_PERIOD


def padded(points: int) -> int:
    """Points of a shared buffer and its gaps."""
    return points + -(-points // BANK_PERIOD)


@dataclass(frozen=True)
class ThreadBlock:
    """The transforms of one block: `width` of `length` points, of which `count` exist."""

    length: int
    radices: tuple[int, ...]
    largest_odd: int  # radix of a butterfly in registers
    dtype: DType  # of the real and imaginary parts
    width: int
    count: Expr
    full: bool  # every block has all of them
    threads: int
    in_place: bool  # one buffer instead of two
    transforms_first: tuple[bool, bool]  # adjacent threads: of adjacent transforms, in first, last
    interleaved: bool  # transforms alternate in shared memory, else they lie one after another
    columns: bool  # of longer transforms: the last pass has factors, too
    # parts of operands, of results: pairs in memory, aligned as such
    paired: tuple[bool, bool]
    name: str = ""  # of one of two transforms in a kernel: values of each have names of their own

    def size(self, n: int) -> Expr:
        return const(n)

    @property
    def points_of_thread(self) -> int:
        """The most points that a thread has in a pass."""
        points = self.length * self.width
        return max(r * -(-points // r // self.threads) for r in self.radices)


def shared_stockham(
    block: ThreadBlock,
    root: Callable[[Expr], Complex],
    rotation: Rotation,
    read: Read,
    write: Write,
    factors: tuple[Factor | None, Factor | None] = (None, None),
    scratch: list[ir.Buffer] | None = None,
    stays: bool = False,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The statements of a block, and its shared memory, unless that is given. `root(k)` is
    exp(-2 pi i k / length); `factors` are those of the operand and of the results, which are in the
    last buffer if they stay."""
    passes = passes_of(block.length, block.radices)
    count = min(1 if block.in_place else 2, len(passes) - (not stays))
    scratch = scratch or [shared_buffer(block, f"z{i}") for i in range(count)]
    out: list[Stmt] = []
    for p in passes:
        is_last = p.number == len(passes) - 1
        source = scratch[(p.number - 1) % count] if p.number else None
        target = None if is_last and not stays else scratch[p.number % count]
        load = read if source is None else loads(block, source)
        store = write if target is None else stores(block, target)
        scales = factors[0] if source is None else None, factors[1] if target is None else None
        t = ir.var(f"{block.name}t{p.number}")
        count_of_pass = block.length // p.radix * block.width
        in_place = source is not None and source is target
        reads: list[Stmt] = []  # those of all turns are under way together
        rest: list[Stmt] = []
        later: list[Stmt] = []
        for turn in range(-(-count_of_pass // block.threads)):
            at = ir.add(t, const(turn * block.threads))
            held = _Held(block, p, turn, store)
            one = _Butterfly(block, p, at, root, rotation, scales, turn, target is None)
            own_reads, own_rest = one.statements(load, held if in_place else store)
            pair(held.stores, False, True)
            if (turn + 1) * block.threads <= count_of_pass:
                reads, rest, later = reads + own_reads, rest + own_rest, later + held.stores
                continue
            exists = ir.binary("lt", at, const(count_of_pass))
            rest.append(ir.If(exists, [*own_reads, *own_rest]))
            later.append(ir.If(exists, held.stores))
        threads = const(block.threads)
        out.append(ir.For(t, ZERO, threads, "lanes", [*reads, *rest]))
        if in_place:
            out.append(ir.For(t, ZERO, threads, "lanes", later))
    return out, scratch


def real_shared_stockham(
    block: ThreadBlock,
    root: Callable[[Expr], Complex],
    rotation: Rotation,
    real_root: Callable[[Expr], Complex],
    read: Read,
    write: Write,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The transform of real signals, whose pairs are the points of the block: unpacked from shared
    memory. `real_root(k)` is exp(-pi i k / length)."""
    out, scratch = shared_stockham(block, root, rotation, read, write, stays=True)
    last = scratch[(len(block.radices) - 1) % len(scratch)]
    t, load, length = ir.var("t_out"), loads(block, last), const(block.length)
    pairs = block.length // 2 + 1  # of results k and length - k, from the same points
    w, k = (ZERO, quotient(t, pairs)), remainder(t, pairs)
    z = Bindings("z_out")

    def periodic(i: Expr) -> Complex:
        return z.bind(load(w, ir.select(ir.binary("lt", i, length), i, ZERO)))

    (a, b), (c, d) = periodic(k), periodic(ir.sub(length, k))
    half = const(0.5, block.dtype)
    even, odd = ((a + c) * half, (b - d) * half), ((b + d) * half, (c - a) * half)
    even, rotated = z.bind(even), z.bind(mul(odd, z.bind(real_root(k))))
    low, high = z.bind(add(even, rotated)), z.bind(sub(even, rotated))
    puts = [*write(w, k, low), *write(w, ir.sub(length, k), (high[0], -high[1]))]
    for statements in (z.statements, puts):
        pair(statements, True, block.paired[1])
    if block.width > 1 and not block.full:
        puts = [ir.If(ir.binary("lt", w[1], block.count), puts)]
    count = const(pairs * block.width)
    out.append(ir.For(t, ZERO, count, "lanes", [*z.statements, *puts]))
    return out, scratch


def shared_buffer(block: ThreadBlock, name: str) -> ir.Buffer:
    size = const(2 * padded(block.length * block.width))
    return ir.Buffer(name, block.dtype, "scratch", size)


def _place(block: ThreadBlock, w: Transform, position: Expr) -> Expr:
    """Where the real part of a point is; the imaginary part follows."""
    first, offset = split_constant(position)
    lane, step = ir.add(*w), 1
    if block.interleaved or block.width == 1:
        start, step = ir.add(ir.mul(first, const(block.width)), lane), block.width
    else:
        start = ir.add(ir.mul(lane, const(block.length)), first)
    # gaps before the start and before the offset add up where no unit is carried: the addresses
    # of a thread then differ by constants
    offset *= step
    if offset % BANK_PERIOD and not is_multiple(start, BANK_PERIOD):
        start, offset = ir.add(start, const(offset)), 0
    gapped = ir.add(start, quotient(start, BANK_PERIOD))
    return ir.mul(ir.add(gapped, const(padded_offset(offset))), const(2))


def loads(block: ThreadBlock, source: ir.Buffer) -> Read:
    def load(w: Transform, i: Expr) -> Complex:
        at = _place(block, w, i)
        return ir.load(source, at), ir.load(source, ir.add(at, ONE))

    return load


def stores(block: ThreadBlock, target: ir.Buffer) -> Write:
    def store(w: Transform, i: Expr, z: Complex) -> list[Stmt]:
        at = _place(block, w, i)
        return [ir.Store(target, at, z[0]), ir.Store(target, ir.add(at, ONE), z[1])]

    return store


class _Held:
    """Results of a butterfly in registers, until all threads have read their points."""

    def __init__(self, block: ThreadBlock, p: Pass, turn: int, store: Write) -> None:
        self.name, self.dtype, self.store = f"{block.name}h{p.number}_{turn}_", block.dtype, store
        self.stores: list[Stmt] = []

    def __call__(self, w: Transform, i: Expr, z: Complex) -> list[Stmt]:
        name = f"{self.name}{len(self.stores) // 2}"
        parts = [ir.Register(f"{name}{part}", self.dtype, lanes=True) for part in "ri"]
        self.stores += self.store(w, i, (ir.read(parts[0]), ir.read(parts[1])))
        return ir.sets(parts, z)


@dataclass(frozen=True)
class _Butterfly:
    """Butterfly `t` of a pass."""

    block: ThreadBlock
    p: Pass
    t: Expr
    root: Callable[[Expr], Complex]
    rotation: Rotation
    factors: tuple[Factor | None, Factor | None] = (None, None)
    turn: int = 0
    is_out: bool = False  # results leave the block

    def statements(self, load: Read, store: Write) -> tuple[list[Stmt], list[Stmt]]:
        """Those that read its points, and the rest."""
        block, p = self.block, self.p
        group, q, w = self._place()
        first = ir.add(ir.mul(group, const(p.stride)), q)  # of the points read
        to = ir.add(ir.mul(group, const(p.stride * p.radix)), q)
        some = block.width > 1 and not block.full
        at = w  # of what is read: a transform past the end is the last one again
        if some and p.number == 0:
            at = ZERO, ir.minimum(w[1], ir.sub(block.count, ONE))
        rotates = p.groups > 1 or block.columns

        def point(j: Expr) -> Complex:
            return load(at, ir.add(first, ir.mul(j, const(block.length // p.radix))))

        def factors(k: Expr) -> list[Complex]:
            return self.rotation(p, group, w, k)

        def put(k: Expr, z: Complex) -> list[Stmt]:
            stores = store(w, ir.add(to, ir.mul(k, const(p.stride))), z)
            pair(stores, False, block.paired[1] or not self.is_out)
            exists = ir.binary("lt", w[1], block.count)
            return [ir.If(exists, stores)] if some and self.is_out and stores else stores

        if not is_in_registers(p.radix, block.largest_odd):

            def rotated(k: Expr, z: Complex) -> Complex:
                return reduce(mul, factors(k), z) if rotates else z

            return [], loop_butterfly(p, block, self.root, point, rotated, put)
        out = Bindings(f"{block.name}z{p.number}_{self.turn}")
        points = self._points(first, point, out)
        reads, out.statements = out.statements, []
        self._results(points, to, factors if rotates else None, put, out)
        for found in (reads, out.statements):
            pair(found, block.paired[0] or p.number > 0)
        return reads, out.statements

    def _place(self) -> tuple[Expr, Expr, Transform]:
        """The group of this butterfly, its position in it, its transform."""
        block, p, t = self.block, self.p, self.t
        each = block.length // p.radix
        if block.width == 1:
            i, which = t, ZERO
        elif block.transforms_first[0 if p.number == 0 else 1]:
            i, which = quotient(t, block.width), remainder(t, block.width)
        else:
            i, which = remainder(t, each), quotient(t, each)
        w = (ZERO, which)
        if p.groups == 1:
            return ZERO, i, w
        return (i, ZERO, w) if p.stride == 1 else (*_divided(i, p.stride), w)

    def _points(
        self, first: Expr, point: Callable[[Expr], Complex], out: Bindings
    ) -> list[Complex]:
        step = self.block.length // self.p.radix
        return [
            self._scaled(0, ir.add(first, const(step * j)), partial(point, const(j)), out)
            for j in range(self.p.radix)
        ]

    def _results(
        self,
        points: list[Complex],
        to: Expr,
        factors: Callable[[Expr], list[Complex]] | None,
        put: Callable[[Expr, Complex], list[Stmt]],
        out: Bindings,
    ) -> None:
        powers = _Powers(factors, self.p.radix, out) if factors else None
        for k, z in butterfly_in_order(points, out):
            value = out.bind(mul(z, powers[k])) if powers and k else z
            at = ir.add(to, const(self.p.stride * k))
            value = self._scaled(1, at, partial(_itself, value), out)
            out.statements += put(const(k), value)

    def _scaled(self, which: int, at: Expr, point: Callable[[], Complex], out: Bindings) -> Complex:
        """A point of the operand or the result, times its factor."""
        factor = self.factors[which]
        if factor is None:
            return point() if which else out.bind(point(), relaxed=False)
        scale = factor(at)
        if scale is None:
            zero = const(0.0, self.block.dtype)
            return zero, zero
        z, by = out.bind(point(), relaxed=False), out.bind(scale)
        return out.bind(mul(z, by))


class _Powers:
    """Powers of a root of unity: of exponents 2^i they are loaded, others are products of two in
    a square of few, so that few registers hold them."""

    def __init__(self, factors: Callable[[Expr], list[Complex]], count: int, out: Bindings) -> None:
        self.out = out
        self.low = 1 << (((count - 1).bit_length() + 1) // 2)
        self.found: dict[int, Complex] = {}
        for i in range((count - 1).bit_length()):
            first, *others = [out.bind(z) for z in factors(const(1 << i))]
            self.found[1 << i] = out.bind(mul(first, others[0])) if others else first

    def __getitem__(self, k: int) -> Complex:
        if k not in self.found:
            high, low = k - k % self.low, k % self.low
            if not high or not low:
                high = 1 << (k.bit_length() - 1)
                low = k - high
            product = self.out.bind(mul(self[high], self[low]))
            if k >= self.low and k % self.low:
                return product
            self.found[k] = product
        return self.found[k]


def _divided(x: Expr, n: int) -> tuple[Expr, Expr]:
    return quotient(x, n), remainder(x, n)


def _itself(value: Complex) -> Complex:
    return value
