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
    rows = -(-out_channels // -(-out_channels // max_rows))
    if out_channels < max_rows:
        rows, vectors = out_channels, min(8, (registers - 2) // (out_channels + 1))
    return Tile(rows, vectors, target.vector_bytes // dtype.itemsize)


def channel_tile(
    target: Target, dtype: DType, taps: int, out_channels: int, max_rows: int = 64
) -> Tile:
    """taps × out_channels, of at most `max_rows`: minimum padding and loads."""
    width = target.vector_bytes // dtype.itemsize
    wanted = -(-out_channels // width)

    def shape(vectors: int) -> Tile:
        panels = -(-taps // min(max_rows, _rows(target.vector_registers, vectors)))
        return Tile(-(-taps // panels), vectors, width)

    def cost(tile: Tile) -> float:
        steps = -(-taps // tile.rows) * -(-wanted // tile.vectors)
        return steps * tile.rows * tile.vectors * tile.cost_per_fma

    return min(map(shape, range(1, 5)), key=cost)


def _rows(registers: int, vectors: int) -> int:
    """Rows that fit in 7/8 of the registers."""
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
        fs, qs = triple_vars("fill_f"), triple_vars("fill_q")
        at = [o + f + q * t for o, f, q, t in zip(origin, fs, qs, self.stride, strict=True)]
        to = a * self.channel_size + self._index(fs, qs)
        body: list[Stmt] = [ir.Store(self.buffer, to, read(a, *at).cast(self.buffer.dtype))]
        lets: list[Stmt] = []
        for axis, name in reversed(list(enumerate("zyx"))):
            t, first, last = self.stride[axis], ir.var(f"fill_{name}0"), ir.var(f"fill_{name}1")
            before = t - 1 - (origin[axis] + fs[axis])
            end = ir.minimum(_clamped_div(space[axis] + before, t), self.size[axis])
            lets = [ir.Let(first, _clamped_div(before, t)), ir.Let(last, end), *lets]
            body = [ir.For(qs[axis], first, last, "lanes" if axis == 2 else "serial", body)]
        body = loop_nest([*lets, *body], *zip(fs, self.phases, strict=True))
        zero = const(0, self.buffer.dtype)
        clear = ir.Store(self.buffer, a * self.channel_size + k, zero)
        body = [ir.For(k, ZERO, self.channel_size, "lanes", [clear]), *body]
        return loop_nest(body, (a, channels))

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


@dataclass(frozen=True, slots=True)
class Task:
    """Task `g` of a schedule: its tile and its operands.

    `data(n, group, channel, z, y, x)` and `weights(group, out_channel, channel, kz, ky, kx)` read
    an element, `store(n, group, out_channel, z, y, x, value)` stores one.
    """

    g: Expr
    tile: Tile
    dtype: DType
    planes: InputPlanes
    data: Read
    weights: Read
    store: Callable[..., list[Stmt]]


def triple_vars(name: str) -> Triple:
    return ir.var(f"{name}z"), ir.var(f"{name}y"), ir.var(f"{name}x")


def loop_nest(body: list[Stmt], *loops: tuple[Expr, Expr]) -> list[Stmt]:
    """Serial loops over [0, stop) around a body, the outermost first."""
    for variable, stop in reversed(loops):
        body = [ir.For(variable, ZERO, stop, "serial", body)]
    return body


def floordiv(a: Expr, b: Expr) -> Expr:
    return a if b is ONE else a // b


def mod(a: Expr, b: Expr) -> Expr:
    return ZERO if b is ONE else a % b


def _clamped_div(a: Expr, b: Expr) -> Expr:
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
# Lets, the broadcast factor of each row, and the vectors
Factors = tuple[list[Stmt], list[Expr], list[Expr]]


def load_vectors(
    name: str, buffer: ir.Buffer, start: Expr, tile: Tile
) -> tuple[list[Stmt], list[Expr]]:
    """Lets of the vectors of a register tile, from `start` on, and their names."""
    names = [ir.var(f"{name}{v}", buffer.dtype) for v in range(tile.vectors)]
    loads = [ir.load(buffer, start + v * tile.width) for v in range(tile.vectors)]
    return [ir.Let(x, load) for x, load in zip(names, loads, strict=True)], names


def prefetch_weights(
    buffer: ir.Buffer, start: Expr, tile: Tile, lines: int, first: Expr, step: Expr, steps: Expr
) -> list[Stmt]:
    """Prefetches of packed weights from `start` on, a share for each step of a register tile.

    Hardware prefetchers stop at the ends of pages, and a block of weights is read while it arrives
    by its first register tile alone: each tile asks for as many `lines` in a step as make all of
    the next block together. `first` is the first row of the tile.
    """
    line = tile.width  # a vector is at most a cache line
    at = start + (first // tile.rows * steps + step) * (lines * line)
    return [ir.Prefetch(buffer, at + i * line, write=False, level=2) for i in range(lines)]


Registers = dict[tuple[int, int], ir.Register]  # by row and vector
Finish = Callable[[Expr, Registers], list[Stmt]]


def register_tile(
    tile: Tile, dtype: DType, loops: Sequence[Loop], step: Callable[[Expr], Factors], finish: Finish
) -> list[Stmt]:
    """FMAs of `step(lane)` into a register tile of zeros, then `finish(lane, registers)`."""
    j = ir.var("lane")
    elements = [(i, v) for i in range(tile.rows) for v in range(tile.vectors)]
    acc = {(i, v): ir.Register(f"c{i}_{v}", dtype, lanes=True) for i, v in elements}
    lets, factors, vectors = step(j)
    inner = list(lets)
    for i, v in elements:
        a, b, old = factors[i], vectors[v], ir.read(acc[i, v])
        inner.append(ir.Set(acc[i, v], ir.fma(a, b, old) if dtype.kind == "float" else old + a * b))
    for variable, first, last in reversed(loops):
        inner = [ir.For(variable, first, last, "serial", inner)]
    body = [*(ir.Set(c, const(0, dtype)) for c in acc.values()), *inner, *finish(j, acc)]
    return [ir.For(j, ZERO, const(tile.width), "lanes", body)]


def add_to(result: ir.Buffer, index: Callable[[Expr, int, int], Expr]) -> Finish:
    """Adds a register tile to `result` at `index(lane, row, vector)`."""

    def finish(lane: Expr, acc: Registers) -> list[Stmt]:
        at = [(index(lane, *x), c) for x, c in acc.items()]
        return [ir.Store(result, i, ir.load(result, i) + ir.read(c)) for i, c in at]

    return finish
