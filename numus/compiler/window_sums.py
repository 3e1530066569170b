"""Convolutions as sums over single windows (`kernels/window_sums.py`)."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.convolution_parts import Geometry, epilogue
from numus.compiler.convolutions import lower_convolution
from numus.compiler.emit import Emitter, Step
from numus.compiler.groups import Group
from numus.compiler.ir import Expr, Stmt
from numus.compiler.local import Val
from numus.kernels import window_sums
from numus.kernels.window_sums import IMAGES, MOST_TAPS, THREADS
from numus.kernels.windows import Sizes, Triple
from numus.runtime.contract import Facts
from numus.shapes import Shape, size_of


def _enough(facts: Facts) -> int:
    """Threads that keep a device busy."""
    return facts.parallel_units * THREADS


def lower_window_sums(
    group: Group, g: Geometry, layouts: dict[Val, Shape], facts: Facts
) -> list[Step]:
    """A thread for each place; rows of products, however long, where windows are large or there are
    few of them."""
    count = -(-g.batch // IMAGES) * g.groups * g.outputs * size_of(g.extents)
    if size_of(g.taps) > MOST_TAPS or not _enough(facts) <= count < 1 << 31:
        return lower_convolution(group, layouts, facts)
    product = group.members[0]
    dtype = dt.compute_dtype(product.dtype)
    e = Emitter(group.outside(layouts), group=THREADS)

    def three(values: Shape) -> Triple:
        a, b, c = (e.number(n) for n in values)
        return a, b, c

    one = ir.const(1)
    sizes = Sizes(
        batch=e.number(g.batch),
        groups=e.number(g.groups),
        channels=e.number(g.channels),
        outputs=e.number(g.outputs),
        space=three(g.space),
        taps=three(g.taps),
        extents=three(g.extents),
        stride=three(g.stride),
        dilation=three(g.dilation),
        gap=three(g.gap),
        low=three(g.low),
        row_tiles=one,
        column_tiles=one,
        pieces=one,
        slices=one,
        whole=True,
    )
    x, w = product.inputs
    lack = 5 - len(product.shape)

    def data(image: Expr, channel: Expr, at: Triple, mask: Expr) -> Expr:
        value: Expr = e.value(x, (image, channel, *at[lack:]), mask)
        return value.cast(dtype)

    def weights(output: Expr, c: Expr, tap: tuple[int, ...]) -> Expr:
        at = tuple(ir.const(t) for t in tap[lack:])
        value: Expr = e.value(w, (output, c, *at))
        return value.cast(dtype)

    def done(image: Expr, output: Expr, at: Triple, value: Expr) -> list[Stmt]:
        e.forget()
        return epilogue(e, group, (image, output, *at[lack:]), value)

    number = ir.var("g")
    body = window_sums.sums(number, sizes, g.taps, dtype, data, weights, done)
    return [e.blocks("window_sums", number, body, -(-count // THREADS), group.notes)]
