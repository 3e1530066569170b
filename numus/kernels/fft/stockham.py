"""Mixed-radix Stockham transforms: autosorting passes between two scratch buffers (Stockham 1966).

A pass of radix r, after passes whose radices multiply to s, transforms r points n / r apart and
writes them s apart: results end in order, and no pass permutes. The first pass reads the operand
through `read`, the last one writes the result through `write`; code fused before and after the
transform lies in these two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Bindings, Complex, add, butterfly_in_turn, fma, mul, sub
from numus.kernels.fft.prefetch import fetch_operands, fetch_results, spread_rows
from numus.kernels.fft.radices import is_in_registers

ZERO, ONE = const(0), const(1)
NONE = (ZERO, ZERO)
BLOCK_TERMS = 8  # of a sum over the points of a large prime

# A vector of rows that stays in L1 with the next one. Half of a Cascade Lake core's.
SHORT_ROWS_BYTES = 1 << 14

Transform = tuple[Expr, Expr]  # of a block: the first of a vector, which of them
Place = tuple[ir.Buffer, Expr]  # of a number in scratch memory
Read = Callable[[Transform, Expr], Complex]  # transform, position
Write = Callable[[Transform, Expr, Complex], list[Stmt]]
# exp(-2 pi i group k / length) of the first pass: adjacent in memory by groups
FirstRoots = Callable[[Expr, int], Complex]


@dataclass(frozen=True)
class Block:
    """The transforms of one block or task, and how its loops run over them.

    `width` transforms of `length` points share scratch memory, of which `count` exist. Lanes run
    over the transforms of the block where `simd_lanes` is 0 < width, else along each of them.
    """

    length: int
    radices: tuple[int, ...]
    largest_odd: int  # radix of a butterfly in registers
    dtype: DType  # of the real and imaginary parts
    width: int
    count: Expr
    full: bool  # every block has all of them
    vector: int  # SIMD lanes
    # SIMD lanes are transforms, but points are what is adjacent in the operand, in the result
    adjacent_points: tuple[bool, bool]
    size: Callable[[int], Expr]  # a number as an argument of the kernel
    paired: bool  # parts of results are pairs in memory
    first_roots: FirstRoots | None = None  # of lanes along a transform
    # exp(-2 pi i k / 2 length): the points are pairs of a real signal, whose transform is stored
    real_roots: Callable[[Expr], Complex] | None = None
    name: str = ""  # of one of several blocks in a kernel
    fetches: bool = False  # what operands are read and results stored next
    next_read: Read | None = None  # of the next transform, where lanes are along each


class Points(Protocol):
    """What a loop over a large prime reads of a block."""

    @property
    def length(self) -> int: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def size(self) -> Callable[[int], Expr]: ...


@dataclass(frozen=True)
class Pass:
    number: int
    radix: int
    stride: int  # s
    groups: int  # m = n / (r s)


def passes_of(length: int, radices: tuple[int, ...]) -> list[Pass]:
    found, stride = [], 1
    for i, r in enumerate(radices):
        found.append(Pass(i, r, stride, length // (r * stride)))
        stride *= r
    return found


def stockham(
    block: Block, twiddle: Callable[[Expr], Complex], read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The statements of a block, and its scratch. `twiddle(k)` is exp(-2 pi i k / length)."""
    passes = passes_of(block.length, block.radices)
    into, out_of = _copies(block, len(passes))
    stages = len(passes) + into + out_of
    buffers = min(2, stages - 1)
    elements = (block.length + bool(block.real_roots)) * block.width
    # SIMD lanes of both parts share a buffer, at one address but for a constant
    shared = block.width > 1
    scratch: list[tuple[ir.Buffer, ...]] = []
    for i in range(buffers):
        names = [f"{block.name}z{i}"] if shared else [f"{block.name}{x}{i}" for x in ("re", "im")]
        count = block.size(2 * elements if shared else elements)
        scratch.append(tuple(ir.Buffer(n, block.dtype, "scratch", count) for n in names))

    def at(buffers: tuple[ir.Buffer, ...], w: Transform, position: Expr) -> list[Place]:
        """Where both parts of a point are."""
        lane = ir.add(*w)
        if shared:
            real = ir.add(ir.mul(position, const(2 * block.width)), lane)
            return [(buffers[0], real), (buffers[0], ir.add(real, const(block.width)))]
        return [(b, ir.add(ir.mul(position, const(block.width)), lane)) for b in buffers]

    def accessors(stage: int) -> tuple[Read, Write]:
        source = scratch[(stage - 1) % 2] if stage else None
        target = scratch[stage % 2] if stage < stages - 1 else None

        def load(w: Transform, i: Expr) -> Complex:
            if source is None:
                return read(w, i)
            real, imaginary = (ir.load(*place) for place in at(source, w, i))
            return real, imaginary

        def put(w: Transform, i: Expr, z: Complex) -> list[Stmt]:
            if target is None:
                return write(w, i, z)
            return [ir.Store(*place, x) for place, x in zip(at(target, w, i), z, strict=True)]

        return load, put

    out: list[Stmt] = _copy_loops(block, "in", *accessors(0)) if into else []
    for p in passes:
        out += _pass_loops(block, p, twiddle, *accessors(p.number + into))
    rows_nbytes = 2 * block.dtype.itemsize * block.length * block.width
    is_short = block.width == block.vector and rows_nbytes < SHORT_ROWS_BYTES
    if block.real_roots:
        load, put = accessors(stages - 1)
        out += _periodic(block, load, accessors(stages - 2)[1])
        out += _copy_loops(block, "out", _unpacked(block, load), put)
    elif out_of:
        out += _copy_loops(block, "out", *accessors(stages - 1))
        if block.fetches and into and is_short:
            turns = [(block.length // r, r) for r in block.radices]
            turns = [*_chunks(block, False), *turns, *_chunks(block, True)]
            spread_rows(block.length, block.width, block.dtype, read, write, out, turns)
    return out, [b for buffers in scratch for b in buffers]


def _copies(block: Block, passes: int) -> tuple[bool, bool]:
    """Whether operands and results are transposed on their own: a single pass has all points of its
    transforms in registers."""
    into, out_of = block.adjacent_points
    alone = block.width == 1 or passes == 1
    return into and not alone, bool(block.real_roots) or (out_of and not alone)


def _stores_last(statements: list[Stmt]) -> list[Stmt]:
    """Stores of each buffer in turn, after all that they store: adjacent elements are transposed
    together."""
    stores = [s for s in statements if isinstance(s, ir.Store)]
    buffers = list(dict.fromkeys(s.buffer for s in stores))
    stores.sort(key=lambda s: buffers.index(s.buffer))
    return [*(s for s in statements if not isinstance(s, ir.Store)), *stores]


def _chunk(block: Block, is_out: bool) -> int:
    """Points of each transform that are copied at a time."""
    if not block.adjacent_points[is_out]:
        return 1
    return block.vector if is_out and not block.paired else max(1, block.vector // 2)


def _chunks(block: Block, is_out: bool) -> list[tuple[int, int]]:
    """Iterations of the loops that copy, and points that each copies."""
    chunk = _chunk(block, is_out)
    whole, rest = divmod(block.length, chunk)
    return [(n, points) for n, points in ((whole, chunk), (1, rest)) if n and points]


def _copy_loops(block: Block, name: str, load: Read, put: Write) -> list[Stmt]:
    """Points between memory, where those of a transform are adjacent, and scratch memory, where
    lanes are: a vector of adjacent parts at a time."""
    points = block.length + (name == "out" and block.real_roots is not None)
    c = ir.var(f"c_{name}")
    if block.width == 1:
        end = block.size(block.length)
        lanes = ir.For(c, ZERO, end, "lanes", put(NONE, c, load(NONE, c)))
        return [lanes, *(put(NONE, end, load(NONE, end)) if points > block.length else [])]
    is_out = name == "out"
    chunk = _chunk(block, is_out)

    rows_nbytes = 2 * block.dtype.itemsize * block.length * block.vector

    def ahead(w: Transform, start: Expr) -> list[Stmt]:
        """What the next iteration reads or stores, where lanes are long rows."""
        if not block.fetches or chunk == 1 or rows_nbytes < SHORT_ROWS_BYTES:
            return []
        following = ir.add(start, const(chunk))
        z = load(w, following)
        return fetch_results(put(w, following, z)) if is_out else fetch_operands(z)

    def body(start: Expr, count: int) -> Stmt:
        def copy(w: Transform) -> list[Stmt]:
            z = Bindings(f"z_{name}")
            points = [z.bind(load(w, ir.add(start, const(j))), False) for j in range(count)]
            stores = [s for j, p in enumerate(points) for s in put(w, ir.add(start, const(j)), p)]
            return _stores_last([*ahead(w, start), *z.statements, *stores])

        return _over_transforms(block, name, copy)

    whole, rest = divmod(points, chunk)
    out: list[Stmt] = []
    if whole:
        each = [body(ir.mul(c, const(chunk)), chunk)]
        out.append(ir.For(c, ZERO, block.size(whole), "serial", each))
    if rest:
        out.append(body(block.size(whole * chunk), rest))
    return out


def _periodic(block: Block, load: Read, put: Write) -> list[Stmt]:
    """The first point of each transform, once more after the last."""
    length = block.size(block.length)

    def copy(w: Transform) -> list[Stmt]:
        return put(w, length, load(w, ZERO))

    return copy(NONE) if block.width == 1 else [_over_transforms(block, "end", copy)]


def _unpacked(block: Block, load: Read) -> Read:
    """The transform x of a real signal, from that of its pairs: those of even and of odd elements
    are its Hermitian and anti-Hermitian parts."""
    real_roots = block.real_roots
    assert real_roots is not None

    def read(w: Transform, k: Expr) -> Complex:
        (a, b), (c, d) = load(w, k), load(w, ir.sub(block.size(block.length), k))
        half = const(0.5, block.dtype)
        even, odd = ((a + c) * half, (b - d) * half), ((b + d) * half, (c - a) * half)
        return add(even, mul(odd, real_roots(k)))

    return read


def _over_transforms(block: Block, name: str, body: Callable[[Transform], list[Stmt]]) -> Stmt:
    """A lane per transform: a vector of them, or several."""
    v, w = ir.var(f"v_{name}"), ir.var(f"w_{name}")
    count = const(block.width) if block.full else block.count
    if block.width <= block.vector:
        return ir.For(w, ZERO, count, "lanes", body((ZERO, w)))
    vector = const(block.vector)
    start = ir.mul(v, vector)
    lanes = vector if block.full else ir.minimum(ir.sub(count, start), vector)
    vectors = ir.idiv(ir.add(count, const(block.vector - 1)), vector)
    inner = ir.For(w, ZERO, lanes, "lanes", body((start, w)))
    return ir.For(v, ZERO, vectors, "serial", [inner])


Body = Callable[[Expr, Expr, Transform], list[Stmt]]  # group, position in it, transform


def _pass_loops(
    block: Block,
    p: Pass,
    twiddle: Callable[[Expr], Complex],
    load: Read,
    put: Write,
) -> list[Stmt]:
    """The loops of a pass over its butterflies."""
    size = block.size
    stride = size(p.stride) if p.stride > 1 else ONE
    input_stride = size(block.length // p.radix) if p.groups * p.stride > 1 else ONE
    first_roots = block.first_roots if p.stride == 1 and block.width == 1 else None
    are_many = p.groups * p.stride > 1
    reads_ahead = block.fetches and p.stride == 1 and (are_many or block.next_read is not None)
    stores_ahead = block.fetches and are_many and p.groups == 1

    in_registers = is_in_registers(p.radix, block.largest_odd)
    radix = const(p.radix) if in_registers else size(p.radix)

    def body(group: Expr, q: Expr, w: Transform) -> list[Stmt]:
        start = ir.add(ir.mul(group, stride), q)  # of the points read
        to = ir.add(ir.mul(ir.mul(group, stride), radix), q)

        def point(j: Expr) -> Complex:
            return load(w, ir.add(start, ir.mul(input_stride, j)))

        def root(k: Expr) -> Complex:
            return twiddle(ir.mul(ir.mul(group, stride), k))

        def rotated(k: Expr, z: Complex) -> Complex:
            if p.groups == 1:
                return z
            return mul(z, first_roots(group, k.attr) if first_roots else root(k))

        def store(k: Expr, z: Complex) -> list[Stmt]:
            return put(w, ir.add(to, ir.mul(stride, k)), z)

        def operands(j: Expr) -> list[Stmt]:
            if not reads_ahead:
                return []
            at = ir.add(start, ir.mul(input_stride, j))
            if block.next_read:
                return fetch_operands(block.next_read(w, at))
            following, step = _next_iteration(block, w)
            return fetch_operands(load(following, ir.add(at, step)))

        def results(k: Expr, z: Complex) -> list[Stmt]:
            if not stores_ahead:
                return []
            following, step = _next_iteration(block, w)
            return fetch_results(put(following, ir.add(ir.add(to, step), ir.mul(stride, k)), z))

        if in_registers:
            return register_butterfly(p, point, rotated, store, operands, results)
        return loop_butterfly(p, block, twiddle, point, rotated, store)

    return _loops(block, p, body)


def _next_iteration(block: Block, w: Transform) -> tuple[Transform, Expr]:
    """The transforms of the next iteration, and how much further on their points are: the next
    vector of columns, whose lines follow those of this one. Points of one vector often lie powers
    of two apart, in few sets of the caches, which those of the next position share."""
    if block.width == 1:
        return w, const(block.vector)
    if block.width <= block.vector:
        return w, ONE
    start = ir.add(w[0], const(block.vector))
    wraps = ir.idiv(start, const(block.width))
    return (ir.sub(start, ir.mul(wraps, const(block.width))), w[1]), wraps


def register_butterfly(
    p: Pass,
    point: Callable[[Expr], Complex],
    rotated: Callable[[Expr, Complex], Complex],
    store: Callable[[Expr, Complex], list[Stmt]],
    operands_ahead: Callable[[Expr], list[Stmt]],
    results_ahead: Callable[[Expr, Complex], list[Stmt]],
) -> list[Stmt]:
    """A radix in registers."""
    out = Bindings(f"z{p.number}")

    def load(j: Expr) -> Complex:
        z = out.bind(point(j), relaxed=False)
        out.statements += operands_ahead(j)
        return z

    stores: dict[int, list[Stmt]] = {}
    for k, z in butterfly_in_turn([partial(load, const(j)) for j in range(p.radix)], out):
        value = out.bind(rotated(const(k), z)) if k else z
        out.statements += results_ahead(const(k), value)
        stores[k] = store(const(k), value)
        if p.stride > 1:
            out.statements += stores[k]
    if p.stride == 1:
        out.statements += _stores_last([s for k in sorted(stores) for s in stores[k]])
    return out.statements


def is_multiple(index: Expr, n: int) -> bool:
    """Whether an index is provably a multiple of n."""
    if index.op == "const":
        return int(index.attr) % n == 0
    if index.op == "mul":
        return any(is_multiple(x, n) for x in index.args)
    return index.op == "add" and all(is_multiple(x, n) for x in index.args)


def pair(statements: list[Stmt], loads: bool = True, stores: bool = False) -> None:
    """Accesses of both parts of a number as one of twice the width, by threads."""
    for a, b in pairwise(statements):
        if loads and isinstance(a, ir.Let) and isinstance(b, ir.Let):
            x, y = a.value, b.value
            if x.op == y.op == "load" and x.attr is y.attr and len(x.args) == len(y.args) == 1:
                is_pair = y.args[0] is ir.add(x.args[0], ONE) and x.attr.access != "write"
                a.vector = 2 if is_pair and is_multiple(x.args[0], 2) else a.vector
        if stores and isinstance(a, ir.Store) and isinstance(b, ir.Store):
            is_pair = a.buffer is b.buffer and b.index is ir.add(a.index, ONE) and a.mask is b.mask
            a.vector = 2 if is_pair and a.mask is None and is_multiple(a.index, 2) else a.vector


def loop_butterfly(
    p: Pass,
    block: Points,
    twiddle: Callable[[Expr], Complex],
    point: Callable[[Expr], Complex],
    rotated: Callable[[Expr, Complex], Complex],
    store: Callable[[Expr, Complex], list[Stmt]],
) -> list[Stmt]:
    """A prime radix, two results at a time from sums and differences of opposite points: one loop
    serves all such primes. Terms are added up in blocks, whose rounding errors hardly grow."""
    radix, step = block.size(p.radix), block.size(block.length // p.radix)
    half = ir.idiv(ir.add(radix, ONE), const(2))
    sums = [ir.Register(f"{part}{p.number}", block.dtype, lanes=True) for part in ("er", "ei")]
    odds = [ir.Register(f"{part}{p.number}", block.dtype, lanes=True) for part in ("or", "oi")]
    every = [*sums, *odds]
    partial = [ir.Register(f"p{r.name}", block.dtype, lanes=True) for r in every]
    zero = const(0.0, block.dtype)
    i, j, k = (ir.var(f"{name}{p.number}") for name in "ijk")

    def opposite(at: Expr) -> tuple[Complex, Complex]:
        a, b = point(at), point(ir.sub(radix, at))
        return add(a, b), sub(a, b)

    def accumulated(registers: list[ir.Register]) -> Complex:
        return ir.read(registers[0]), ir.read(registers[1])

    total = add(accumulated(sums), opposite(i)[0])
    out: list[Stmt] = [
        *ir.sets(sums, point(ZERO)),
        ir.For(i, ONE, half, "serial", ir.assign(sums, total, f"total{p.number}")[0]),
    ]
    dc = Bindings(f"dc{p.number}")
    constant = dc.bind(accumulated(sums))
    out += [*dc.statements, *store(ZERO, constant)]
    c, s = twiddle(ir.mul(ir.irem(ir.mul(j, k), radix), step))
    even, odd = opposite(j)
    old_even, old_odd = accumulated(partial[:2]), accumulated(partial[2:])
    new = [
        *(fma(x, c, y) for x, y in zip(even, old_even, strict=True)),
        *(fma(x, s, y) for x, y in zip(odd, old_odd, strict=True)),
    ]
    z = Bindings(f"z{p.number}")
    a, b = z.bind(accumulated(sums)), z.bind(accumulated(odds))
    last = ir.sub(radix, k)
    here = z.bind(rotated(k, z.bind((a[0] - b[1], a[1] + b[0]))))
    there = z.bind(rotated(last, z.bind((a[0] + b[1], a[1] - b[0]))))
    number = ir.var(f"b{p.number}")
    start = ir.add(ir.mul(number, const(BLOCK_TERMS)), ONE)
    stop = ir.minimum(ir.add(start, const(BLOCK_TERMS)), half)
    blocks = ir.idiv(ir.add(half, const(BLOCK_TERMS - 2)), const(BLOCK_TERMS))
    added = [ir.read(r) + ir.read(q) for r, q in zip(every, partial, strict=True)]
    block_sum: list[Stmt] = [
        *ir.sets(partial, (zero,) * 4),
        ir.For(j, start, stop, "serial", ir.assign(partial, new, f"term{p.number}")[0]),
        *ir.assign(every, added, f"block{p.number}")[0],
    ]
    body_stmts: list[Stmt] = [
        *ir.sets(sums, point(ZERO)),
        *ir.sets(odds, (zero, zero)),
        ir.For(number, ZERO, blocks, "serial", block_sum),
        *z.statements,
        *store(k, here),
        *store(last, there),
    ]
    return [*out, ir.For(k, ONE, half, "serial", body_stmts)]


def _loops(block: Block, p: Pass, body: Body) -> list[Stmt]:
    size = block.size
    group, q = (ir.var(f"{name}{p.number}") for name in ("group", "q"))
    groups, stride = size(p.groups), size(p.stride)
    if block.width > 1:
        if p.stride == 1:  # no loop: nothing is worth holding from one lane to the next
            q = ZERO
        inner = _over_transforms(block, str(p.number), lambda w: body(group, q, w))
        loop: Stmt = ir.For(q, ZERO, stride, "serial", [inner]) if p.stride > 1 else inner
        return [ir.For(group, ZERO, groups, "serial", [loop])]
    if p.stride >= block.vector or p.groups == 1:
        along: Stmt = ir.For(q, ZERO, stride, "lanes", body(group, q, NONE))
        return [ir.For(group, ZERO, groups, "serial", [along])]
    across: Stmt = ir.For(group, ZERO, groups, "lanes", body(group, q, NONE))
    return [ir.For(q, ZERO, stride, "serial", [across])]
