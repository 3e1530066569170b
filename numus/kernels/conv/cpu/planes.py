"""Convolutions without a copy of their windows.

All schedules lay the data out as *planes* in scratch memory: per channel, the part that a block of
work sees, its margins filled with zeros, and elements that windows reach together parted from the
others (a window of stride 2 finds every second element) where vectors are loaded from it. In such a
plane each tap of the window is one displacement of the whole block, so all taps read the same
memory, each at its own offset, which is looked up in a table.

    sliding     vectors run along space; a register tile is outputs x pixels and sums over channels
                and taps, broadcasting a weight and loading pixels at the tap's offset
    spreading   vectors run along outputs; a register tile is pixels x outputs, broadcasting a pixel
                at the tap's offset and loading weights; for small images, strides and spread data
    gathering   for gradients by weights, where the "window" is a whole image and the result small:
                vectors run along outputs; a register tile is (channel, tap) x outputs and sums over
                pixels, broadcasting a pixel and loading outputs

Where vectors run along space, rows of a block follow each other without a seam: a vector may begin
in one row and end in the next, and what lies in the margin between them is computed and not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.target import Target

ZERO, ONE = const(0), const(1)

Triple = tuple[Expr, Expr, Expr]
Read = Callable[..., Expr]


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: broadcast rows by vectors."""

    rows: int
    vectors: int
    width: int  # lanes of a vector

    @property
    def columns(self) -> int:
        return self.vectors * self.width

    @property
    def effort(self) -> float:
        """What a product of vectors costs with its share of loads, two of which cost as much."""
        return 1 + (self.rows + self.vectors) / (2 * self.rows * self.vectors)


def pixel_tile(target: Target, dtype: DType, outputs: int) -> Tile:
    """Rows are outputs, vectors pixels, of which there are many.

    Three vectors by eight rows (two by six, with half the registers) were measured to hide loads
    best. Fewer rows than that leave registers to more vectors.
    """
    registers = target.vector_registers
    vectors = 3 if registers >= 32 else 2
    most = _rows(registers, vectors)
    if outputs < most:
        return Tile(outputs, min(8, (registers - 2) // (outputs + 1)), _width(target, dtype))
    panels = -(-outputs // most)
    return Tile(-(-outputs // panels), vectors, _width(target, dtype))


def output_tile(target: Target, dtype: DType, taps: int, outputs: int, most: int = 64) -> Tile:
    """Rows (`most` of them) are taps, vectors outputs: whichever wastes least and loads least."""
    width = _width(target, dtype)
    wanted = -(-outputs // width)

    def shape(vectors: int) -> Tile:
        panels = -(-taps // min(most, _rows(target.vector_registers, vectors)))
        return Tile(-(-taps // panels), vectors, width)

    def cost(tile: Tile) -> float:
        steps = -(-taps // tile.rows) * -(-wanted // tile.vectors)
        return steps * tile.rows * tile.vectors * tile.effort

    return min(map(shape, range(1, 5)), key=cost)


def _width(target: Target, dtype: DType) -> int:
    return target.vector_bytes // dtype.itemsize


def _rows(registers: int, vectors: int) -> int:
    """Rows of so many vectors that registers have room for, with some to spare."""
    return (registers - vectors) * 7 // 8 // vectors


@dataclass(slots=True)
class Planes:
    """Data as the windows of one block see it: `extents` elements in each of `phases`."""

    buffer: ir.Buffer
    step: Triple  # from one element of a phase to the next
    phases: Triple
    extents: Triple
    size: Expr  # of all phases of a channel
    margins: bool  # whether there are zeros to be written around the data

    def fill(self, channels: Expr, origin: Triple, space: Triple, read: Read) -> list[Stmt]:
        """Copy `read(channel, z, y, x)` from `origin` on; zeros beyond the `space` there is."""
        a, k = ir.var("fill_a"), ir.var("fill_k")
        fs: Triple = (ir.var("fill_fz"), ir.var("fill_fy"), ir.var("fill_fx"))
        qs: Triple = (ir.var("fill_qz"), ir.var("fill_qy"), ir.var("fill_qx"))
        bounds: list[tuple[Expr, Expr]] = []
        lets: list[list[Stmt]] = []
        for axis, name in enumerate("zyx"):
            start, t = ir.add(origin[axis], fs[axis]), self.step[axis]
            before, count = ir.sub(ir.sub(t, ONE), start), self.extents[axis]
            first, last = ir.var(f"fill_{name}0"), ir.var(f"fill_{name}1")
            bounds.append((first, last))
            lets.append(
                [
                    ir.Let(first, over(before, t)),
                    ir.Let(last, ir.minimum(over(ir.add(space[axis], before), t), count)),
                ]
            )
        at = [
            ir.add(ir.add(o, f), ir.mul(q, t))
            for o, f, q, t in zip(origin, fs, qs, self.step, strict=True)
        ]
        value = read(a, *at).cast(self.buffer.dtype)
        place = ir.add(ir.mul(a, self.size), self._place(fs, qs))
        body: list[Stmt] = [ir.Store(self.buffer, place, value)]
        for axis in (2, 1, 0):
            kind = "lanes" if axis == 2 else "serial"
            body = [ir.For(qs[axis], *bounds[axis], kind, body)]
        body = [*(let for part in lets for let in part), *body]
        for axis in (2, 1, 0):
            body = [ir.For(fs[axis], ZERO, self.phases[axis], "serial", body)]
        if self.margins:
            blank = ir.Store(self.buffer, ir.add(ir.mul(a, self.size), k), const(0, self.dtype))
            body = [ir.For(k, ZERO, self.size, "lanes", [blank]), *body]
        return [ir.For(a, ZERO, channels, "serial", body)]

    def offset(self, displacement: Sequence[Expr]) -> Expr:
        """Where the element is that lies so far behind the first."""
        phases = [rest(d, t) for d, t in zip(displacement, self.step, strict=True)]
        places = [quotient(d, t) for d, t in zip(displacement, self.step, strict=True)]
        return self._place(phases, places)

    def _place(self, phases: Sequence[Expr], places: Sequence[Expr]) -> Expr:
        total = ZERO
        for digits, counts in ((phases, self.phases), (places, self.extents)):
            for i, n in zip(digits, counts, strict=True):
                total = ir.add(ir.mul(total, n), i)
        return total

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Task:
    """What task `g` of a schedule works on, and by which tile.

    `data(n, group, channel, z, y, x)` and `weights(group, output, channel, kz, ky, kx)` read an
    element; what `finish` stores, each schedule says.
    """

    g: Expr
    tile: Tile
    dtype: DType
    planes: Planes
    data: Read
    weights: Read
    finish: Callable[..., list[Stmt]]


def quotient(a: Expr, b: Expr) -> Expr:
    return a if b is ONE else ir.idiv(a, b)


def rest(a: Expr, b: Expr) -> Expr:
    return ZERO if b is ONE else ir.irem(a, b)


def over(a: Expr, b: Expr) -> Expr:
    """a / b, zero for negative a."""
    return quotient(ir.maximum(a, 0), b)


def product(numbers: Sequence[Expr]) -> Expr:
    total = ONE
    for n in numbers:
        total = ir.mul(total, n)
    return total


def digits(number: Expr, counts: Triple) -> Triple:
    """A running number as one per axis."""
    z = quotient(number, ir.mul(counts[1], counts[2]))
    y = rest(quotient(number, counts[2]), counts[1])
    return (z if counts[0] is not ONE else ZERO, y, rest(number, counts[2]))


Loop = tuple[Expr, Expr, Expr]
Step = Callable[[Expr], tuple[list[Stmt], list[Expr], list[Expr]]]


def register_tile(
    tile: Tile,
    dtype: DType,
    result: ir.Buffer,
    loops: Sequence[Loop],
    step: Step,
    place: Callable[[Expr, int, int], Expr] | None = None,
) -> list[Stmt]:
    """Sums of products in registers, laid into `result`, or added to what it has at `place`.

    `step(lane)` gives what to name first, the factor of each row, and the vectors.
    """
    j = ir.var("lane")
    sums = [
        [ir.Register(f"c{i}_{v}", dtype, lanes=True) for v in range(tile.vectors)]
        for i in range(tile.rows)
    ]
    lets, factors, vectors = step(j)
    inner = list(lets)
    for i, a in enumerate(factors):
        for v, b in enumerate(vectors):
            old = ir.read(sums[i][v])
            new = ir.fma(a, b, old) if dtype.kind == "float" else old + a * b
            inner.append(ir.Set(sums[i][v], new))
    for variable, first, last in reversed(loops):
        inner = [ir.For(variable, first, last, "serial", inner)]
    body: list[Stmt] = []
    places = [(i, v) for i in range(tile.rows) for v in range(tile.vectors)]
    for i, v in places:
        body.append(ir.Set(sums[i][v], const(0, dtype)))
    body += inner
    for i, v in places:
        value = ir.read(sums[i][v])
        if place is None:
            at = ir.add(j, const(i * tile.columns + v * tile.width))
        else:
            at = place(j, i, v)
            value = ir.load(result, at) + value
        body.append(ir.Store(result, at, value))
    return [ir.For(j, ZERO, const(tile.width), "lanes", body)]
