"""Products of complex numbers as products of real ones, where lanes are threads.

Complex numbers lie in memory as pairs. A row of A, read as real numbers, times a matrix in which
each number of B stands as (re, im) above (-im, re), is a row of the result as it lies. So B is
written out like that, four numbers for one, and any schedule of real products does the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph import strided_view as views
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.matmul.gpu_operands import along, lying
from numus.ir import const
from numus.shapes import Shape, row_major
from numus.target import Target

ZERO, ONE, TWO = const(0), const(1), const(2)

LEAST = 16  # rows, columns and depth from which on it pays to write B out
CHUNK = 1024  # numbers that a group writes out


def fits_complex(product: Value, target: Target) -> bool:
    """Whether a product is of complex numbers, and large enough."""
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    alike = all(x.dtype is product.dtype for x in product.inputs)
    large = min(m, n, k) >= LEAST and bool(target.vector_access_bytes)
    return product.dtype.is_complex and alike and large


def lower_complex(
    group: FusionGroup,
    layouts: dict[Value, Shape],
    target: Target,
    lower: Callable[[FusionGroup, dict[Value, Shape], Target], list[LoweredKernel]],
) -> list[LoweredKernel]:
    """A kernel that writes B out, the real product as `lower` does it, and what follows."""
    product, *tail = group.members
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    real = dt.real_of(product.dtype)
    layouts = group.input_layouts(layouts)
    steps: list[LoweredKernel] = []
    how = lying(a, layouts, 1)
    if how is None or not how.along:
        made = Value.fresh("copy", "barrier", (a,), None, a.shape, a.dtype)
        alone = FusionGroup.of_stored(made, group.position)
        steps += lower_loops(alone, layouts, target)
        base, line, matrix = made, k, m * k
    else:
        found = views.strided_view(a, layouts)
        assert found is not None
        base, line, matrix = found.base, how.line, how.matrix
    left = Value.fresh("pairs", "barrier", (), None, (batch, m, 2 * k), real)
    step, right, strides = _written_out(b, layouts)
    steps.append(step)
    near = {**layouts, left: (2 * matrix, 2 * line, 1), right: strides}
    whole = Value.fresh("contract", "contract", (left, right), None, (batch, m, 2 * n), real)
    alone = FusionGroup.of_stored(whole, group.position)
    for step in lower(alone, near, target):
        names = {left: base, whole: product}
        step.buffers = [names.get(v, v) for v in step.buffers]
        steps.append(step)
    if tail:
        rest = FusionGroup(tail[0], group.position)
        rest.members = tail
        rest.stored = group.stored - {product}
        steps += lower_loops(rest, {**layouts, product: row_major(product.shape)}, target)
    return steps


def _written_out(b: Value, layouts: dict[Value, Shape]) -> tuple[LoweredKernel, Value, Shape]:
    """A kernel that writes B out along the axis along which it lies; what it fills, and how that
    lies then."""
    batch, k, n = b.shape
    by_k = along(b, layouts, 1)
    real = dt.real_of(b.dtype)
    out = Value.fresh("written_out", "barrier", (), None, (batch, 2 * k, 2 * n), real)
    strides = (4 * k * n, 1, 2 * k) if by_k else (4 * k * n, 2 * n, 1)
    e = Emitter(layouts, block_size=256)
    slow, quick = (n, k) if by_k else (k, n)
    total = batch * slow * quick
    g, lane = ir.var("g"), ir.var("lane")
    start = ir.mul(g, const(CHUNK))
    at = ir.add(start, lane)
    i, j = ir.idiv(at, e.dim(quick)), ir.irem(at, e.dim(quick))
    t = ir.idiv(i, e.dim(slow)) if batch > 1 else ZERO
    i = ir.irem(i, e.dim(slow)) if batch > 1 else i
    re, im = e.value(b, (t, j, i) if by_k else (t, i, j))
    names = ir.var("re", real), ir.var("im", real)
    buffer = e.buffer(out, "write")
    pitch = e.dim(2 * quick)
    line = ir.add(ir.mul(t, e.dim(2 * slow)), ir.mul(i, TWO))
    first = ir.add(ir.mul(line, pitch), ir.mul(j, TWO))
    below = ir.add(first, pitch)
    above, under = (names[0], -names[1]), (names[1], names[0])  # by columns of B
    if not by_k:
        above, under = names, (-names[1], names[0])
    body: list[ir.Stmt] = [ir.Let(names[0], re), ir.Let(names[1], im)]
    for place, pair in ((first, above), (below, under)):
        body += [ir.Store(buffer, ir.add(place, const(u)), v) for u, v in enumerate(pair)]
    end = ir.minimum(const(CHUNK), ir.sub(e.scalar_arg(total), start))
    loop = ir.For(lane, ZERO, end, "lanes", body)
    return e.grid_kernel("write_out", g, [loop], -(-total // CHUNK), ("pack",)), out, strides
