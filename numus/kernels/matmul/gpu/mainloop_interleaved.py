"""Slices on their way through a group's memory, where copies are woven into the products.

As in `slices.py`, some slices ahead are being copied while one is multiplied. Here copies are
spread among the products: many at a time wait for each other, and whatever takes the registers that
held their addresses waits for them. None depends on a branch, which would part the products. And
threads begin to read a slice before they are done with the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.mainloop import Side, Sizes

ZERO, ONE = const(0), const(1)


@dataclass(slots=True)
class Steps:
    """What a thread does with a slice, in so many steps along k: two at least.

    `read(step, lane, stage, tag)` gives names with this tag to what a step multiplies;
    `multiply(step, tag)` are its products.
    """

    count: int
    read: Callable[[int, Expr, Expr, str], list[ir.Let]]
    multiply: Callable[[int, str], list[Stmt]]


def woven_pipeline(pair: tuple[Side, Side], which: Expr, sizes: Sizes, steps: Steps) -> list[Stmt]:
    """The loop over all slices of a piece, of operands that are copied and not displaced: twice, in
    runs of 16 bytes and, where these do not begin at whole places, element by element."""
    names = [let.var for let in steps.read(0, ZERO, ZERO, "")]
    kept = [ir.Register(f"kept{i}", v.dtype, lanes=True) for i, v in enumerate(names)]
    runs, wide = [_in_runs(side) for side in pair], 16 // pair[0].shape.dtype.itemsize

    def loop(widths: list[int], tag: str = "") -> list[Stmt]:
        return _woven(pair, which, sizes, steps, kept, widths, tag)

    able = [x for x in runs if x.op != "const" or x.attr]
    if not able:
        return loop([1, 1])
    widths = [wide if x.op != "const" or x.attr else 1 for x in runs]
    whole = able[0] & able[-1]
    return [ir.If(whole, loop(widths, "_runs")), ir.If(~whole, loop([1, 1]))]


def _woven(
    pair: tuple[Side, Side],
    which: Expr,
    sizes: Sizes,
    steps: Steps,
    kept: list[ir.Register],
    widths: list[int],
    tag: str,
) -> list[Stmt]:
    """One of these loops. The group meets before the last step of a slice, in the course of which
    what the next one begins with is read; it is kept in registers."""
    shape = pair[0].shape
    batch, start, count = sizes.piece(which, shape.elements)
    ahead, last = shape.stages - 1, steps.count - 1
    q = ir.var(f"slice{tag}")

    def stage_of(number: Expr) -> Expr:
        return ir.irem(number, const(shape.stages))

    def all_threads(name: str, work: Callable[[Expr], list[Stmt]]) -> Stmt:
        lane = ir.var(f"{name}{tag}")
        return ir.For(lane, ZERO, const(shape.threads), "lanes", work(lane))

    def copies(lane: Expr, number: Expr) -> list[Stmt]:
        a, b = (
            _copies(side, lane, batch, number, sizes.k, run)
            for side, run in zip(pair, widths, strict=True)
        )
        return [*a, *b]

    def keep(lets: list[ir.Let]) -> list[Stmt]:
        return [ir.Set(x, let.var) for x, let in zip(kept, lets, strict=True)]

    def kept_as(lets: list[ir.Let]) -> list[Stmt]:
        return [ir.Let(let.var, ir.read(x)) for x, let in zip(kept, lets, strict=True)]

    def begin(lane: Expr) -> list[Stmt]:
        lets = steps.read(0, lane, stage_of(start), "")
        return [*lets, *keep(lets)]

    def most(lane: Expr) -> list[Stmt]:
        body = kept_as(steps.read(0, lane, ZERO, ""))
        brought = copies(lane, ir.add(q, const(ahead)))
        lets: list[ir.Let] = []
        for step in range(last):
            lets = steps.read(step + 1, lane, stage_of(q), "")
            share = brought[len(brought) * step // last : len(brought) * (step + 1) // last]
            body += [*lets, *_among(steps.multiply(step, ""), share)]
        return body + keep(lets)

    def rest(lane: Expr) -> list[Stmt]:
        old = kept_as(steps.read(last, lane, ZERO, "last_"))
        lets = steps.read(0, lane, stage_of(ir.add(q, ONE)), "after_")
        return [*old, *lets, *steps.multiply(last, "last_"), *keep(lets)]

    out: list[Stmt] = []
    for number in range(ahead):
        here = ir.add(start, const(number))
        out += [all_threads(f"ahead{number}", partial(copies, number=here)), ir.AsyncCommit()]
    body = [
        all_threads("multiply", most),
        ir.AsyncCommit(),
        ir.AsyncWait(ahead - 1),
        all_threads("multiply_last", rest),
    ]
    out += [ir.AsyncWait(ahead - 1), all_threads("begin", begin)]
    return [*out, ir.For(q, start, ir.add(start, count), "serial", body), ir.AsyncWait(0)]


def _among(products: list[Stmt], others: list[Stmt]) -> list[Stmt]:
    """The others among the products, evenly."""
    out: list[Stmt] = []
    for i, product in enumerate(products):
        at, then = (len(others) * j // len(products) for j in (i, i + 1))
        out += [*others[at:then], product]
    return out


def _in_runs(side: Side) -> Expr:
    """Whether runs of 16 bytes can be copied: they begin at whole places, and each of them has
    lines that exist, or none."""
    o, run = side.operand, 16 // side.shape.dtype.itemsize
    if o.plain is None or o.turned:
        return const(False, dt.bool_)
    if side.by_k:
        return o.aligned
    last = ir.add(side.first, const(side.lines))
    return o.aligned & ((last <= o.extent) | ir.irem(o.extent, const(run)).eq(0))


def _copies(
    side: Side, lane: Expr, batch: Expr, number: Expr, k_size: Expr, run: int
) -> list[Stmt]:
    """A thread's share of slice `number`, copied in such runs on no condition: in place of lines
    beyond the last another is copied, which nothing becomes of, and beyond the end of k are zeros.
    """
    o, s, by_k = side.operand, side.shape, side.by_k
    assert o.plain is not None
    total = side.lines * s.elements // run
    stage = ir.irem(number, const(s.stages))
    fast = (s.elements if by_k else side.lines) // run
    down, quick = ir.idiv(lane, const(fast)), ir.mul(ir.irem(lane, const(fast)), const(run))
    begin = ir.mul(number, const(s.elements))
    out: list[Stmt] = []
    for share in range(-(-total // s.threads)):
        below, right = divmod(share * s.threads, fast)
        right = right * run if s.threads < fast else 0
        along = ir.add(quick, const(right))
        line, deep = (down, along) if by_k else (along, down)
        first = ir.minimum(ir.add(side.first, line), o.extent - (1 if by_k else run))
        buffer, index = o.plain(batch, first, ir.add(begin, deep))
        far = const(below, dt.int32)  # in 32 bits: one multiplication
        if by_k and below:
            far = ir.minimum(far, (o.extent - 1 - first).cast(dt.int32))
        if below:
            pitch = o.pitch.cast(dt.int32).cast(ir.INDEX)
            index = ir.add(index, ir.mul(pitch, far.cast(ir.INDEX)))
        if by_k:
            line = ir.add(line, const(below))
        else:
            deep = ir.add(deep, const(below))
        to = side.place(stage, line, deep)
        left = k_size - ir.add(begin, deep)
        limit = left if by_k else ir.select(left > 0, const(run), ZERO)
        copy = ir.AsyncCopy(side.words, to, buffer, index, limit, run * s.dtype.itemsize)
        exists = ir.add(lane, const(share * s.threads)) < const(total)
        out.append(copy if (share + 1) * s.threads <= total else ir.If(exists, [copy]))
    return out
