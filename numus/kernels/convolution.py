"""Convolutions without a copy of their windows.

Both schedules lay the data out as *planes* in scratch memory: per channel, the part that a block of
work sees, its margins filled with zeros, and elements that windows reach together parted from the
others (a window of stride 2 finds every second element). In such a plane each tap of the window is
one displacement of the whole block, so all taps read the same memory, each at its own offset, which
is looked up in a table.

    sliding     vectors run along space; a register tile is outputs x pixels and sums over channels
                and taps, broadcasting a weight and loading pixels at the tap's offset
    gathering   for gradients by weights, where the "window" is a whole image and the result small:
                vectors run along outputs; a register tile is (channel, tap) x outputs and sums over
                pixels, broadcasting a pixel and loading outputs

Rows of a block follow each other in a plane without a seam: a vector may begin in one row and end
in the next, and what lies in the margin between them is computed and not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType, bool_
from numus.runtime.contract import Facts

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


def choose_tile(facts: Facts, dtype: DType, rows: int, columns: int, split: int = 1) -> Tile:
    """The register tile that wastes least of a product of this size.

    A step takes a multiplication per row and vector, of which two run at a time, and a load per row
    and per vector, two at a time (`split`: how many a vector counts for, where it is not aligned).
    """
    width = facts.lanes_bytes // dtype.itemsize
    best: tuple[float, int, Tile] | None = None
    for vectors in range(1, 9):
        most = (facts.vector_registers - 2 - vectors) // vectors
        for r in range(1, min(most, rows) + 1):
            tiles = -(-rows // r) * -(-columns // (vectors * width))
            # multiplications hide loads, though not wholly
            loads = r + split * vectors
            cost = tiles * (max(r * vectors, loads) + loads / 2)
            key = (cost, -r * vectors, Tile(r, vectors, width))
            if best is None or key[:2] < best[:2]:
                best = key
    assert best is not None
    return best[2]


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
                    ir.Let(first, _over(before, t)),
                    ir.Let(last, ir.minimum(_over(ir.add(space[axis], before), t), count)),
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
            body = [*lets[axis], ir.For(qs[axis], *bounds[axis], kind, body)]
            body = [ir.For(fs[axis], ZERO, self.phases[axis], "serial", body)]
        if self.margins:
            blank = ir.Store(self.buffer, ir.add(ir.mul(a, self.size), k), const(0, self.dtype))
            body = [ir.For(k, ZERO, self.size, "lanes", [blank]), *body]
        return [ir.For(a, ZERO, channels, "serial", body)]

    def offset(self, displacement: Sequence[Expr]) -> Expr:
        """Where the element is that lies so far behind the first."""
        phases = [_rest(d, t) for d, t in zip(displacement, self.step, strict=True)]
        places = [_quotient(d, t) for d, t in zip(displacement, self.step, strict=True)]
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


def _quotient(a: Expr, b: Expr) -> Expr:
    return a if b is ONE else ir.idiv(a, b)


def _rest(a: Expr, b: Expr) -> Expr:
    return ZERO if b is ONE else ir.irem(a, b)


def _over(a: Expr, b: Expr) -> Expr:
    """a / b, zero for negative a."""
    return _quotient(ir.maximum(a, 0), b)


# -- sliding --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sliding:
    """The numbers of a launch, as expressions. Of triples the last is the innermost axis."""

    channels: Expr  # of a group
    outputs: Expr
    space: Triple  # of the data
    extents: Triple  # of the result
    taps: Triple
    stride: Triple
    dilation: Triple
    gap: Triple
    low: Triple
    nearest: Triple  # the first element that any tap reaches, from a block's origin
    counts: Triple  # results of one phase
    block: tuple[Expr, Expr]  # rows and columns of a block
    blocks: tuple[Expr, Expr]  # how many there are
    entries: Expr  # taps of a phase, at most, times channels
    task_panels: Expr  # panels of outputs in a task
    output_tasks: Expr
    units: Expr  # blocks of all images
    task_units: Expr
    unit_tasks: Expr


def sliding(
    s: Sliding,
    tile: Tile,
    dtype: DType,
    planes: Planes,
    g: Expr,
    data: Read,
    weights: Read,
    finish: Callable[..., list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of task g: `data(n, group, channel, z, y, x)`, `weights(group, output, channel, kz,
    ky, kx)`, and `finish(n, group, output, z, y, x, value)`, which stores an element.
    """
    rows, columns = const(tile.rows), const(tile.columns)
    group = ir.idiv(g, ir.mul(s.output_tasks, s.unit_tasks))
    output_task = ir.irem(ir.idiv(g, s.unit_tasks), s.output_tasks)
    first_output = ir.mul(output_task, ir.mul(s.task_panels, rows))
    left = ir.idiv(ir.add(ir.sub(s.outputs, first_output), ir.sub(rows, ONE)), rows)
    panels = ir.minimum(s.task_panels, left)
    u0 = ir.mul(ir.irem(g, s.unit_tasks), s.task_units)
    u1 = ir.minimum(ir.add(u0, s.task_units), s.units)

    phases = _product(s.gap)
    offsets = ir.Buffer("offsets", ir.INDEX, "scratch", ir.mul(phases, s.entries))
    counts = ir.Buffer("counts", ir.INDEX, "scratch", phases)
    panel_size = ir.mul(s.entries, rows)
    packed = ir.Buffer(
        "packed", dtype, "scratch", ir.mul(ir.mul(phases, s.task_panels), panel_size)
    )
    result = ir.Buffer("tile", dtype, "scratch", const(tile.rows * tile.columns))

    phase = ir.var("phase")
    turn = _digits(phase, s.gap)

    # -- the table of offsets and the packed weights, once per task
    def tables() -> list[Stmt]:
        c = ir.var("tap_c")
        ks: Triple = (ir.var("tap_z"), ir.var("tap_y"), ir.var("tap_x"))
        entry = ir.Register("entry", ir.INDEX)
        at = [
            ir.sub(ir.add(ir.mul(r, t), ir.mul(k, d)), low)
            for r, t, k, d, low in zip(turn, s.stride, ks, s.dilation, s.low, strict=True)
        ]
        fits = const(True, bool_)
        for a, gap in zip(at, s.gap, strict=True):
            if gap is not ONE:
                fits = fits & ir.irem(a, gap).eq(ZERO)
        displacement = [
            ir.sub(_quotient(a, gap), near)
            for a, gap, near in zip(at, s.gap, s.nearest, strict=True)
        ]
        here = ir.var("entry_at")
        offset = ir.add(ir.mul(c, planes.size), planes.offset(displacement))
        i, panel = ir.var("pack_i"), ir.var("pack_panel")
        o = ir.add(first_output, ir.add(ir.mul(panel, rows), i))
        weight = weights(group, ir.minimum(o, ir.sub(s.outputs, ONE)), c, *ks)
        to = ir.add(
            ir.add(ir.mul(_panel(phase, panel), panel_size), ir.mul(here, rows)),
            i,
        )
        line = ir.For(i, ZERO, rows, "lanes", [ir.Store(packed, to, weight.cast(dtype))])
        body: list[Stmt] = [
            ir.Let(here, ir.read(entry)),
            ir.Store(offsets, ir.add(ir.mul(phase, s.entries), here), offset),
            ir.For(panel, ZERO, panels, "serial", [line]),
            ir.Set(entry, ir.add(ir.read(entry), ONE)),
        ]
        if fits.op != "const":
            body = [ir.If(fits, body)]
        for k, n in zip(reversed(ks), reversed(s.taps), strict=True):
            body = [ir.For(k, ZERO, n, "serial", body)]
        body = [
            ir.Set(entry, ZERO),
            ir.For(c, ZERO, s.channels, "serial", body),
            ir.Store(counts, phase, ir.read(entry)),
        ]
        return [ir.For(phase, ZERO, phases, "serial", body)]

    def _panel(phase: Expr, panel: Expr) -> Expr:
        return ir.add(ir.mul(phase, s.task_panels), panel)

    # -- one block
    u = ir.var("unit")
    per_image = ir.mul(ir.mul(s.counts[0], s.blocks[0]), s.blocks[1])
    n, z, y0, x0 = (ir.var(name) for name in ("image", "block_z", "block_y", "block_x"))
    within = ir.irem(u, per_image)
    decode: list[Stmt] = [
        ir.Let(n, ir.idiv(u, per_image)),
        ir.Let(z, _quotient(within, ir.mul(s.blocks[0], s.blocks[1]))),
        ir.Let(y0, ir.mul(_rest(_quotient(within, s.blocks[1]), s.blocks[0]), s.block[0])),
        ir.Let(x0, ir.mul(_rest(within, s.blocks[1]), s.block[1])),
    ]
    starts = [
        ir.add(ir.mul(q, t), near)
        for q, t, near in zip((z, y0, x0), s.stride, s.nearest, strict=True)
    ]
    origin: Triple = (ir.var("origin_z"), ir.var("origin_y"), ir.var("origin_x"))
    decode += [ir.Let(v, e) for v, e in zip(origin, starts, strict=True)]
    fill = planes.fill(s.channels, origin, s.space, lambda c, z, y, x: data(n, group, c, z, y, x))

    # -- the results of one phase of a block
    def room(extent: Expr, turn: Expr, gap: Expr, start: Expr, size: Expr) -> Expr:
        """How many results of this phase a block has along an axis."""
        total = _quotient(ir.add(ir.sub(extent, turn), ir.sub(gap, ONE)), gap)
        return ir.minimum(size, ir.sub(total, start))

    height, width = ir.var("height"), ir.var("width")
    bounds: list[Stmt] = [
        ir.Let(height, room(s.extents[1], turn[1], s.gap[1], y0, s.block[0])),
        ir.Let(width, room(s.extents[2], turn[2], s.gap[2], x0, s.block[1])),
    ]
    line = planes.extents[2]
    flat = ir.add(ir.mul(ir.sub(height, ONE), line), width)
    p, panel, r = ir.var("pixel"), ir.var("panel"), ir.var("entry")
    a0 = ir.mul(_panel(phase, panel), panel_size)
    t0 = ir.mul(phase, s.entries)

    def step(j: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
        at = ir.add(ir.load(offsets, ir.add(t0, r)), p)
        lets: list[Stmt] = []
        pixels = []
        for v in range(tile.vectors):
            name = ir.var(f"pixels{v}", dtype)
            where = ir.add(ir.add(at, j), const(v * tile.width))
            lets.append(ir.Let(name, ir.load(planes.buffer, where)))
            pixels.append(name)
        base = ir.add(a0, ir.mul(r, rows))
        return (
            lets,
            [ir.load(packed, ir.add(base, const(i))) for i in range(tile.rows)],
            pixels,
        )

    multiply = _register_tile(tile, dtype, result, [(r, ZERO, ir.load(counts, phase))], step)
    y, x, i = ir.var("out_y"), ir.var("out_x"), ir.var("out_i")
    y_first, y_last = ir.var("y_first"), ir.var("y_last")
    value = ir.load(result, ir.add(ir.mul(i, columns), ir.sub(ir.add(ir.mul(y, line), x), p)))
    o = ir.add(first_output, ir.add(ir.mul(panel, rows), i))
    spread = [
        ir.add(ir.mul(q, gap), r)
        for q, gap, r in zip((z, ir.add(y0, y), ir.add(x0, x)), s.gap, turn, strict=True)
    ]
    store = finish(n, group, o, *spread, value)
    passed = ir.sub(p, ir.mul(y, line))
    from_x, to_x = ir.maximum(passed, 0), ir.minimum(ir.add(passed, columns), width)
    last_row = ir.minimum(rows, ir.sub(s.outputs, ir.add(first_output, ir.mul(panel, rows))))
    stores = ir.For(
        i,
        ZERO,
        last_row,
        "serial",
        [ir.For(y, y_first, y_last, "serial", [ir.For(x, from_x, to_x, "lanes", store)])],
    )
    end = ir.sub(ir.minimum(ir.add(p, columns), flat), ONE)
    tiles: list[Stmt] = [
        ir.Let(y_first, ir.idiv(p, line)),
        ir.Let(y_last, ir.add(ir.idiv(end, line), ONE)),
        ir.For(panel, ZERO, panels, "serial", [*multiply, stores]),
    ]
    turns: list[Stmt] = [*bounds, ir.For(p, ZERO, flat, "serial", tiles, step=columns)]
    in_range = ir.mul(z, s.gap[0]) + turn[0] < s.extents[0]
    if s.gap[0] is not ONE:
        turns = [ir.If(in_range, turns)]
    block: list[Stmt] = [*decode, *fill, ir.For(phase, ZERO, phases, "serial", turns)]
    body = [*tables(), ir.For(u, u0, u1, "serial", block)]
    return body, [planes.buffer, packed, offsets, counts, result]


def _product(numbers: Sequence[Expr]) -> Expr:
    total = ONE
    for n in numbers:
        total = ir.mul(total, n)
    return total


def _digits(number: Expr, counts: Triple) -> Triple:
    """A running number as one per axis."""
    z = _quotient(number, ir.mul(counts[1], counts[2]))
    y = _rest(_quotient(number, counts[2]), counts[1])
    return (z if counts[0] is not ONE else ZERO, y, _rest(number, counts[2]))


Loop = tuple[Expr, Expr, Expr]
Step = Callable[[Expr], tuple[list[Stmt], list[Expr], list[Expr]]]


def _register_tile(
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


# -- gathering ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Gathering:
    """The numbers of a launch, as expressions."""

    batch: Expr  # images whose planes a task has, at most
    images: Expr  # all of them
    outputs: Expr  # of a group
    space: Triple
    extents: Triple  # of the result
    taps: Triple
    stride: Triple
    dilation: Triple
    low: Triple
    block: tuple[Expr, Expr]  # rows and columns of taps in a block
    blocks: tuple[Expr, Expr]
    row_tiles: Expr  # register tiles that the rows of a task take
    image_tasks: Expr
    task_panels: Expr
    output_tasks: Expr
    units: Expr  # blocks of taps of all channels
    part_units: Expr
    parts: Expr


def gathering(
    s: Gathering,
    tile: Tile,
    dtype: DType,
    planes: Planes,
    g: Expr,
    data: Read,
    weights: Read,
    finish: Callable[..., list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of task g: `data` and `weights` as for `sliding`; `finish(part, group, row, output,
    value)` stores the sum of one part for row (image, z, y, x), a running number.
    """
    rows, columns = const(tile.rows), const(tile.columns)
    part = ir.irem(g, s.parts)
    rest = ir.idiv(g, s.parts)
    n0 = ir.mul(ir.irem(rest, s.image_tasks), s.batch)
    rest = ir.idiv(rest, s.image_tasks)
    o0 = ir.mul(ir.irem(rest, s.output_tasks), ir.mul(s.task_panels, columns))
    group = ir.idiv(rest, s.output_tasks)
    count = ir.minimum(s.batch, ir.sub(s.images, n0))
    left = ir.idiv(ir.add(ir.sub(s.outputs, o0), ir.sub(columns, ONE)), columns)
    panels = ir.minimum(s.task_panels, left)
    u0 = ir.mul(part, s.part_units)
    u1 = ir.minimum(ir.add(u0, s.part_units), s.units)

    tile_size = const(tile.rows * tile.columns)
    offsets = ir.Buffer("offsets", ir.INDEX, "scratch", ir.mul(s.row_tiles, rows))
    area = ir.mul(s.block[0], s.block[1])
    packed = ir.Buffer("packed", dtype, "scratch", ir.mul(ir.mul(area, s.task_panels), columns))
    sums = ir.Buffer(
        "sums", dtype, "scratch", ir.mul(ir.mul(s.task_panels, s.row_tiles), tile_size)
    )
    places = _product(s.extents)

    # -- where each row of the tile begins; rows that do not exist read the first place
    row = ir.var("row")
    place = _digits(ir.irem(row, places), s.extents)
    reached = [ir.mul(p, t) for p, t in zip(place, s.stride, strict=True)]
    offset = ir.add(ir.mul(ir.idiv(row, places), planes.size), planes.offset(reached))
    exists = row < ir.mul(count, places)
    table = ir.For(
        row,
        ZERO,
        ir.mul(s.row_tiles, rows),
        "serial",
        [ir.Store(offsets, row, ir.select(exists, offset, ZERO))],
    )
    k = ir.var("sums_k")
    blank = ir.For(
        k,
        ZERO,
        ir.mul(ir.mul(panels, s.row_tiles), tile_size),
        "lanes",
        [ir.Store(sums, k, const(0, dtype))],
    )

    # -- one block of taps
    u = ir.var("unit")
    per_channel = ir.mul(ir.mul(s.taps[0], s.blocks[0]), s.blocks[1])
    c, kz, ky0, kx0 = (ir.var(name) for name in ("channel", "block_z", "block_y", "block_x"))
    within = _rest(u, per_channel)
    height, width = ir.var("height"), ir.var("width")
    decode: list[Stmt] = [
        ir.Let(c, _quotient(u, per_channel)),
        ir.Let(kz, _quotient(within, ir.mul(s.blocks[0], s.blocks[1]))),
        ir.Let(ky0, ir.mul(_rest(_quotient(within, s.blocks[1]), s.blocks[0]), s.block[0])),
        ir.Let(kx0, ir.mul(_rest(within, s.blocks[1]), s.block[1])),
        ir.Let(height, ir.minimum(s.block[0], ir.sub(s.taps[1], ky0))),
        ir.Let(width, ir.minimum(s.block[1], ir.sub(s.taps[2], kx0))),
    ]
    origin: Triple = (ir.var("origin_z"), ir.var("origin_y"), ir.var("origin_x"))
    decode += [
        ir.Let(v, ir.sub(ir.mul(k, d), low))
        for v, k, d, low in zip(origin, (kz, ky0, kx0), s.dilation, s.low, strict=True)
    ]
    fill = planes.fill(
        count, origin, s.space, lambda a, z, y, x: data(ir.add(n0, a), group, c, z, y, x)
    )

    panel, j, y, x = (ir.var(f"pack_{name}") for name in ("panel", "j", "y", "x"))
    tap = ir.add(ir.mul(y, width), x)
    to = ir.add(ir.mul(ir.add(ir.mul(panel, area), tap), columns), j)
    o = ir.minimum(ir.add(o0, ir.add(ir.mul(panel, columns), j)), ir.sub(s.outputs, ONE))
    weight = weights(group, o, c, kz, ir.add(ky0, y), ir.add(kx0, x)).cast(dtype)
    pack: list[Stmt] = [ir.For(j, ZERO, columns, "lanes", [ir.Store(packed, to, weight)])]
    for v, stop in ((x, width), (y, height), (panel, panels)):
        pack = [ir.For(v, ZERO, stop, "serial", pack)]

    # -- its products
    panel, t, y, x = (ir.var(f"sum_{name}") for name in ("panel", "tile", "y", "x"))
    a0 = ir.mul(ir.mul(panel, area), columns)
    starts = [ir.var(f"start{i}") for i in range(tile.rows)]
    names: list[Stmt] = [
        ir.Let(v, ir.load(offsets, ir.add(ir.mul(t, rows), const(i)))) for i, v in enumerate(starts)
    ]

    def step(lane: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
        lets: list[Stmt] = []
        vectors = []
        base = ir.add(a0, ir.mul(ir.add(ir.mul(y, width), x), columns))
        for v in range(tile.vectors):
            name = ir.var(f"outputs{v}", dtype)
            where = ir.add(ir.add(base, lane), const(v * tile.width))
            lets.append(ir.Let(name, ir.load(packed, where)))
            vectors.append(name)
        at = ir.add(ir.mul(y, planes.extents[2]), x)
        return lets, [ir.load(planes.buffer, ir.add(v, at)) for v in starts], vectors

    home = ir.mul(ir.add(ir.mul(panel, s.row_tiles), t), tile_size)

    def where(lane: Expr, i: int, v: int) -> Expr:
        return ir.add(ir.add(home, lane), const(i * tile.columns + v * tile.width))

    multiply = _register_tile(
        tile,
        dtype,
        sums,
        [(y, ZERO, height), (x, ZERO, width)],
        step,
        where,
    )
    products = ir.For(t, ZERO, s.row_tiles, "serial", [*names, *multiply])
    block = [*decode, *fill, *pack, ir.For(panel, ZERO, panels, "serial", [products])]

    # -- what a part came to
    panel, r, j = (ir.var(f"out_{name}") for name in ("panel", "row", "j"))
    first = ir.mul(ir.mul(panel, s.row_tiles), tile_size)
    value = ir.load(sums, ir.add(ir.add(first, ir.mul(r, columns)), j))
    start = ir.add(o0, ir.mul(panel, columns))
    store = finish(part, group, ir.add(ir.mul(n0, places), r), ir.add(start, j), value)
    stop = ir.minimum(columns, ir.sub(s.outputs, start))
    line = ir.For(r, ZERO, ir.mul(count, places), "serial", [ir.For(j, ZERO, stop, "lanes", store)])
    out = ir.For(panel, ZERO, panels, "serial", [line])
    body: list[Stmt] = [table, blank, ir.For(u, u0, u1, "serial", block), out]
    return body, [planes.buffer, packed, offsets, sums]
