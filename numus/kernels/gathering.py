"""Convolutions whose window is larger than their result: vectors run along outputs.

Gradients by weights are of this kind: the "window" is a whole image of cotangents, the result a few
taps. See `kernels/convolution.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType
from numus.kernels.convolution import (
    ONE,
    ZERO,
    Planes,
    Read,
    Tile,
    Triple,
    digits,
    product,
    quotient,
    register_tile,
    rest,
)


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
    task = ir.idiv(g, s.parts)
    n0 = ir.mul(ir.irem(task, s.image_tasks), s.batch)
    task = ir.idiv(task, s.image_tasks)
    o0 = ir.mul(ir.irem(task, s.output_tasks), ir.mul(s.task_panels, columns))
    group = ir.idiv(task, s.output_tasks)
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
    places = product(s.extents)

    # -- where each row of the tile begins; rows that do not exist read the first place
    row = ir.var("row")
    place = digits(ir.irem(row, places), s.extents)
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
    within = rest(u, per_channel)
    height, width = ir.var("height"), ir.var("width")
    decode: list[Stmt] = [
        ir.Let(c, quotient(u, per_channel)),
        ir.Let(kz, quotient(within, ir.mul(s.blocks[0], s.blocks[1]))),
        ir.Let(ky0, ir.mul(rest(quotient(within, s.blocks[1]), s.blocks[0]), s.block[0])),
        ir.Let(kx0, ir.mul(rest(within, s.blocks[1]), s.block[1])),
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

    multiply = register_tile(
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
