"""Direct convolution on CPU vectors (cf. Georganas et al. 2018): padded planes, register tiles.

Schedules copy the input of a block to zero-padded planes in scratch memory, split by stride phase
where vectors are loaded from them. Every tap is then one offset of the whole block, from a table.

    spatial     vectors along space: out_channels × pixels tiles, a weight broadcast (NCHW)
    channels    vectors along output channels: pixels × out_channels tiles, a pixel broadcast
                (NCHWc); for small images, strides and transposed convolutions
    wgrad       weight gradients, whose "window" is an image: (channel, tap) × out_channels tiles
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
    """A register tile of broadcast rows × vectors."""

    rows: int
    vectors: int
    width: int  # lanes of a vector

    @property
    def columns(self) -> int:
        return self.vectors * self.width

    @property
    def cost_per_fma(self) -> float:
        """Cost of an FMA with its share of the loads, at two loads per FMA."""
        return 1 + (self.rows + self.vectors) / (2 * self.rows * self.vectors)


def spatial_tile(target: Target, dtype: DType, out_channels: int) -> Tile:
    """out_channels × pixels: 8 × 3 vectors (6 × 2 with 16 registers) hide loads best (measured on
    Neoverse N1 and Cascade Lake); fewer rows leave registers to more vectors.
    """
    registers = target.vector_registers
    vectors = 3 if registers >= 32 else 2
    max_rows = _rows(registers, vectors)
    if out_channels < max_rows:
        return Tile(
            out_channels, min(8, (registers - 2) // (out_channels + 1)), _width(target, dtype)
        )
    panels = -(-out_channels // max_rows)
    return Tile(-(-out_channels // panels), vectors, _width(target, dtype))


def channel_tile(
    target: Target, dtype: DType, taps: int, out_channels: int, max_rows: int = 64
) -> Tile:
    """taps × out_channels, of at most `max_rows`: least padding and loads."""
    width = _width(target, dtype)
    wanted = -(-out_channels // width)

    def shape(vectors: int) -> Tile:
        panels = -(-taps // min(max_rows, _rows(target.vector_registers, vectors)))
        return Tile(-(-taps // panels), vectors, width)

    def cost(tile: Tile) -> float:
        steps = -(-taps // tile.rows) * -(-wanted // tile.vectors)
        return steps * tile.rows * tile.vectors * tile.cost_per_fma

    return min(map(shape, range(1, 5)), key=cost)


def _width(target: Target, dtype: DType) -> int:
    return target.vector_bytes // dtype.itemsize


def _rows(registers: int, vectors: int) -> int:
    """Rows of so many vectors that fit in 7/8 of the registers."""
    return (registers - vectors) * 7 // 8 // vectors


@dataclass(slots=True)
class InputPlanes:
    """Zero-padded input of one block: `size` elements in each stride phase of a channel."""

    buffer: ir.Buffer
    stride: Triple
    phases: Triple
    size: Triple
    channel_size: Expr  # elements of all phases

    def fill(self, channels: Expr, origin: Triple, space: Triple, read: Read) -> list[Stmt]:
        """Copy `read(channel, z, y, x)` from `origin` on; zeros out of bounds."""
        a, k = ir.var("fill_a"), ir.var("fill_k")
        fs: Triple = (ir.var("fill_fz"), ir.var("fill_fy"), ir.var("fill_fx"))
        qs: Triple = (ir.var("fill_qz"), ir.var("fill_qy"), ir.var("fill_qx"))
        bounds: list[tuple[Expr, Expr]] = []
        lets: list[list[Stmt]] = []
        for axis, name in enumerate("zyx"):
            start, t = origin[axis] + fs[axis], self.stride[axis]
            before, count = t - 1 - start, self.size[axis]
            first, last = ir.var(f"fill_{name}0"), ir.var(f"fill_{name}1")
            bounds.append((first, last))
            lets.append(
                [
                    ir.Let(first, clamped_div(before, t)),
                    ir.Let(last, ir.minimum(clamped_div(space[axis] + before, t), count)),
                ]
            )
        at = [o + f + q * t for o, f, q, t in zip(origin, fs, qs, self.stride, strict=True)]
        value = read(a, *at).cast(self.buffer.dtype)
        to = a * self.channel_size + self._index(fs, qs)
        body: list[Stmt] = [ir.Store(self.buffer, to, value)]
        for axis in (2, 1, 0):
            kind = "lanes" if axis == 2 else "serial"
            body = [ir.For(qs[axis], *bounds[axis], kind, body)]
        body = [*(let for part in lets for let in part), *body]
        for axis in (2, 1, 0):
            body = [ir.For(fs[axis], ZERO, self.phases[axis], "serial", body)]
        clear = ir.Store(self.buffer, a * self.channel_size + k, const(0, self.dtype))
        body = [ir.For(k, ZERO, self.channel_size, "lanes", [clear]), *body]
        return [ir.For(a, ZERO, channels, "serial", body)]

    def offset(self, displacement: Sequence[Expr]) -> Expr:
        """Index of the element at a displacement from the first."""
        phases = [mod(d, t) for d, t in zip(displacement, self.stride, strict=True)]
        inner = [floordiv(d, t) for d, t in zip(displacement, self.stride, strict=True)]
        return self._index(phases, inner)

    def _index(self, phases: Sequence[Expr], inner: Sequence[Expr]) -> Expr:
        total = ZERO
        for indices, counts in ((phases, self.phases), (inner, self.size)):
            for i, n in zip(indices, counts, strict=True):
                total = total * n + i
        return total

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Task:
    """Task `g` of a schedule: its tile and its operands.

    `data(n, group, channel, z, y, x)` and `weights(group, out_channel, channel, kz, ky, kx)` read
    an element; the arguments of `store` depend on the schedule.
    """

    g: Expr
    tile: Tile
    dtype: DType
    planes: InputPlanes
    data: Read
    weights: Read
    store: Callable[..., list[Stmt]]


def floordiv(a: Expr, b: Expr) -> Expr:
    return a if b is ONE else a // b


def mod(a: Expr, b: Expr) -> Expr:
    return ZERO if b is ONE else a % b


def clamped_div(a: Expr, b: Expr) -> Expr:
    """max(a, 0) // b."""
    return floordiv(ir.maximum(a, 0), b)


def volume(numbers: Sequence[Expr]) -> Expr:
    total = ONE
    for n in numbers:
        total = total * n
    return total


def delinearize(number: Expr, counts: Triple) -> Triple:
    """A linear index as one index per axis."""
    z = floordiv(number, counts[1] * counts[2])
    y = mod(floordiv(number, counts[2]), counts[1])
    return (z if counts[0] is not ONE else ZERO, y, mod(number, counts[2]))


Loop = tuple[Expr, Expr, Expr]
Step = Callable[[Expr], tuple[list[Stmt], list[Expr], list[Expr]]]


def load_vectors(
    name: str, buffer: ir.Buffer, start: Expr, tile: Tile
) -> tuple[list[Stmt], list[Expr]]:
    """Lets of the vectors of a register tile, from `start` on, and their names."""
    names = [ir.var(f"{name}{v}", buffer.dtype) for v in range(tile.vectors)]
    lets: list[Stmt] = [
        ir.Let(x, ir.load(buffer, start + v * tile.width)) for v, x in enumerate(names)
    ]
    return lets, names


def register_tile(
    tile: Tile,
    dtype: DType,
    result: ir.Buffer,
    loops: Sequence[Loop],
    step: Step,
    place: Callable[[Expr, int, int], Expr] | None = None,
) -> list[Stmt]:
    """FMAs into a register tile, stored to `result`, or added to it at `place(lane, row, vector)`.

    `step(lane)` returns Lets, the broadcast factor of each row, and the vectors.
    """
    j = ir.var("lane")
    acc = [
        [ir.Register(f"c{i}_{v}", dtype, lanes=True) for v in range(tile.vectors)]
        for i in range(tile.rows)
    ]
    lets, factors, vectors = step(j)
    inner = list(lets)
    for i, a in enumerate(factors):
        for v, b in enumerate(vectors):
            old = ir.read(acc[i][v])
            new = ir.fma(a, b, old) if dtype.kind == "float" else old + a * b
            inner.append(ir.Set(acc[i][v], new))
    for variable, first, last in reversed(loops):
        inner = [ir.For(variable, first, last, "serial", inner)]
    body: list[Stmt] = []
    elements = [(i, v) for i in range(tile.rows) for v in range(tile.vectors)]
    for i, v in elements:
        body.append(ir.Set(acc[i][v], const(0, dtype)))
    body += inner
    for i, v in elements:
        value = ir.read(acc[i][v])
        if place is None:
            at = j + (i * tile.columns + v * tile.width)
        else:
            at = place(j, i, v)
            value = ir.load(result, at) + value
        body.append(ir.Store(result, at, value))
    return [ir.For(j, ZERO, const(tile.width), "lanes", body)]
