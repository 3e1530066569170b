"""Contraction groups that a vendor's library does: plain matrices in, the epilogue afterwards."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Step
from numus.compiler.fuse import Group
from numus.compiler.local import Val
from numus.compiler.loops import lower_loops
from numus.compiler.lying import lying
from numus.kernels.choice import choose
from numus.kernels.vendor_products import Matrix, Product
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major


def lower_vendor_product(
    group: Group, layouts: dict[Val, Shape], facts: Facts
) -> list[Step] | None:
    """The steps of a group whose product a library does; None where numus does it itself."""
    product, *tail = group.members
    a, b = product.inputs
    if product.size == 0 or a.shape[2] == 0 or a.dtype is not b.dtype:
        return None
    rounds = product.params == "tf32" and a.dtype is dt.float32
    if product.params is not None and not rounds:  # another precision: numus's kernels know it
        return None
    inside = set(group.members)
    layouts = {v: s for v, s in layouts.items() if v not in inside}
    found = [_matrix(x, layouts) for x in (a, b)]
    extra = 2 * nbytes(product) if tail else 0
    extra += sum(2 * nbytes(x) for x, place in zip((a, b), found, strict=True) if place is None)
    left, right = (
        place[1] if place is not None else Matrix(0, x.shape[1] * x.shape[2], x.shape[2], False)
        for x, place in zip((a, b), found, strict=True)
    )
    batch, m, n = product.shape
    names = (a.dtype.name, product.dtype.name)
    question = Product(
        *(batch, m, n, a.shape[2], *names, left, right, extra), tail=bool(tail), rounds=rounds
    )
    vendor = choose("contract", question, facts)
    if vendor is None:
        return None
    steps: list[Step] = []
    sources: list[Val] = []
    for i, (x, place) in enumerate(zip((a, b), found, strict=True)):
        if place is not None:
            sources.append(place[0])
            continue
        copy = Val(-40 - i, "copy", "barrier", (x,), None, x.shape, x.dtype)
        alone = Group(copy, group.position)
        alone.stored = {copy}
        steps += lower_loops(alone, layouts, facts)
        sources.append(copy)
    buffers = tuple(
        ir.Buffer(f"b{i}", dt.real_of(v.dtype), access)
        for i, (v, access) in enumerate(
            zip((*sources, product), ("read", "read", "write"), strict=True)
        )
    )
    notes = (product.op,)
    kernel = ir.Kernel(vendor.name, buffers, (), [], notes, vendor=vendor, work=question)
    steps.append(Step(kernel, [*sources, product], [], 1, []))
    if tail:
        rest = Group(tail[0], group.position)
        rest.members = tail
        rest.stored = group.stored - {product}
        steps += lower_loops(rest, {**layouts, product: row_major(product.shape)}, facts)
    return steps


def nbytes(x: Val) -> int:
    return x.size * x.dtype.itemsize


def _matrix(x: Val, layouts: dict[Val, Shape]) -> tuple[Val, Matrix] | None:
    """The value in whose memory an operand lies, and how; None where it is more than memory, or its
    lines are not contiguous."""
    found = lying(x, layouts)
    if found is None:
        return None
    step, row, column = found.strides
    _, rows, columns = x.shape
    if step < 0 or found.offset < 0:
        return None
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return found.base, Matrix(found.offset, step, max(row, columns), False)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return found.base, Matrix(found.offset, step, max(column, rows), True)
    return None
