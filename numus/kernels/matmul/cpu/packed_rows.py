"""GEMV with packed codes on CPUs: integer sums of planes, scaled once per group.

Lanes go along the words of some rows side by side, so that activations are loaded once for all.
Codes that have one scale a row are added up in integers all along it. Where the lanes of a vector
have several scales, those of the rows are widened into a line of scratch first, and zero points
meet the sums of the activations' groups there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.packed import (
    Operands,
    PackedShape,
    chunk_codes,
    dot_of_planes,
    finish,
    sum_registers,
)

ZERO = const(0)
MAX_UNROLL = 8  # vectors of a group whose integers are added up before they are scaled


@dataclass(frozen=True)
class RowSizes:
    """Sizes that a launch passes: chunks and groups of a row. `width`: lanes of a vector, and
    `shared` of them that surely have one scale, 0: none do."""

    chunks: Expr
    groups: Expr
    width: int
    shared: int


def rows_of_task(
    s: PackedShape, o: Operands, span: tuple[Expr, Expr], sizes: RowSizes
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch of a range of rows."""
    first, stop = span
    r, sums = ir.var("row"), sum_registers(s)
    rows = _Rows(s, o, sizes, sums, r, stop - 1)
    body: list[Stmt] = [ir.Set(x, const(0.0, dt.float32)) for xs in sums for x in xs]
    body += rows.in_groups() if s.packing.group else rows.whole()
    body += finish(s, o, sums, r, stop)
    scratch = [rows.scales] if s.packing.group and not sizes.shared else []
    return [ir.For(r, first, stop, "serial", body, step=const(s.rows))], scratch


@dataclass(frozen=True)
class _Rows:
    """Rows side by side; those past the last repeat it, and are not stored."""

    s: PackedShape
    o: Operands
    sizes: RowSizes
    sums: list[list[ir.Register]]
    row0: Expr
    last: Expr
    scales: ir.Buffer = field(init=False)

    def __post_init__(self) -> None:
        size = self.sizes.groups * self.s.rows
        object.__setattr__(self, "scales", ir.Buffer("scales", dt.float32, "scratch", size))

    def row(self, i: int) -> Expr:
        return ir.minimum(self.row0 + i, self.last)

    # -- one scale a row --------------------------------------------------------------------------

    def whole(self) -> list[Stmt]:
        """Integers of each plane, which are widened before they could overflow."""
        s, c, lane, start = self.s, ir.var("chunk"), ir.var("lane"), ir.var("start")
        p, planes = s.packing, range(s.planes)
        largest = (1 << p.bits) - 1
        length = const((1 << 31) // (4 * p.fields * largest * 128))
        dots = [
            [[ir.Register(f"dot{i}_{v}_{k}", dt.int32, lanes=True) for k in planes] for v in own]
            for i, own in enumerate(range(s.vectors) for _ in range(s.rows))
        ]
        step: list[Stmt] = []
        for i, row_dots in enumerate(dots):
            fetch, codes = self.codes(i, start + c, ZERO, "")
            step += fetch
            for v, registers in enumerate(row_dots):
                for plane, register in enumerate(registers):
                    total = ir.read(register)
                    for f, code in enumerate(codes):
                        x = self.o.x(v, plane, f, start + c)
                        total = ir.dot4(total, code, x, largest)
                    step.append(ir.Set(register, total))
        widen: list[Stmt] = []
        for row_dots, row_sums in zip(dots, self.sums, strict=True):
            for registers, register in zip(row_dots, row_sums, strict=True):
                total = ir.read(registers[0]).cast(dt.float32)
                for d in registers[1:]:
                    total = ir.fma(total, 256.0, ir.read(d).cast(dt.float32))
                widen.append(ir.Set(register, ir.read(register) + total))
        width, left = self.sizes.width, ir.minimum(length, self.sizes.chunks - start)
        zeros = [ir.Set(d, const(0, dt.int32)) for own in dots for ds in own for d in ds]
        body: list[Stmt] = [
            *zeros,
            ir.For(c, ZERO, left, "lanes", step, width=width),
            ir.For(lane, ZERO, const(width), "lanes", widen, width=width),
        ]
        begin = [x for i in range(s.rows) for x in self.begin(i, width)]
        return [*begin, ir.For(start, ZERO, self.sizes.chunks, "serial", body, step=length)]

    # -- a scale for each group -------------------------------------------------------------------

    def in_groups(self) -> list[Stmt]:
        p, sizes, c, g = self.s.packing, self.sizes, ir.var("chunk"), ir.var("group")
        width = sizes.shared or sizes.width
        if not sizes.shared:
            begin = [x for i in range(self.s.rows) for x in self.begin(i, width)]
            step = self.scaled([c], c // p.group)
            return [*begin, ir.For(c, ZERO, sizes.chunks, "lanes", step, width=width)]
        vectors = p.group // width
        count = next(n for n in range(MAX_UNROLL, 0, -1) if vectors % n == 0)
        at = ir.var("of_group")
        first = g * p.group + at if vectors > count else g * p.group
        chunks = [first + c + n * width for n in range(count)]
        step = self.scaled(chunks, g)
        body: Stmt = ir.For(c, ZERO, const(width), "lanes", step, width=width)
        if vectors > count:
            body = ir.For(at, ZERO, const(p.group), "serial", [body], step=const(count * width))
        return [ir.For(g, ZERO, sizes.groups, "serial", [body])]

    def begin(self, i: int, width: int) -> list[Stmt]:
        """The scales of a row into scratch; what its zero points come to, into its sums."""
        p, o, g = self.s.packing, self.o, ir.var("group")
        scale, one = ir.var("scale", dt.float32), const(1.0, dt.float32)
        out: list[Stmt] = []
        if p.group:
            out.append(ir.Let(scale, o.group_scale(p, self.row(i), g)))
            out.append(ir.Store(self.scales, self.sizes.groups * i + g, scale))
        if p.zero or o.zero is not None:
            zero = const(float(p.zero), dt.float32) if o.zero is None else o.zero(self.row(i), g)
            by = (scale if p.group else one) * zero
            for v, register in enumerate(self.sums[i]):
                out.append(ir.Set(register, ir.fma(-by, o.x_sum(v, g), ir.read(register))))
        return [ir.For(g, ZERO, self.sizes.groups, "lanes", out, width=width)] if out else []

    def scaled(self, chunks: list[Expr], group: Expr) -> list[Stmt]:
        """Some chunks that share a scale, added to the sums."""
        s, out = self.s, list[Stmt]()
        for i, row_sums in enumerate(self.sums):
            codes: list[Expr] = []
            for n, chunk in enumerate(chunks):
                fetch, own = self.codes(i, chunk, group, f"_{n}")
                out += fetch
                codes += own
            shared = self.sizes.shared
            scale = ir.load(self.scales, self.sizes.groups * i + group)
            scale = self.o.group_scale(s.packing, self.row(i), group) if shared else scale
            for v, register in enumerate(row_sums):
                xs = [
                    [self.o.x(v, k, f, chunk) for chunk in chunks for f in range(s.packing.fields)]
                    for k in range(s.planes)
                ]
                total = dot_of_planes(codes, xs, (1 << s.packing.bits) - 1)
                if shared:  # each lane subtracts its part
                    part = len(chunks) / s.packing.group
                    total = self.without_zero(total, i, v, group, part)
                out.append(ir.Set(register, ir.fma(total, scale, ir.read(register))))
        return out

    def without_zero(self, total: Expr, i: int, v: int, group: Expr, part: float) -> Expr:
        """A part of what the zero points of a group come to, subtracted."""
        o, p = self.o, self.s.packing
        if o.zero is not None:
            return ir.fma(-(o.zero(self.row(i), group) * part), o.x_sum(v, group), total)
        return ir.fma(o.x_sum(v, group), -p.zero * part, total) if p.zero else total

    def codes(self, i: int, chunk: Expr, group: Expr, tag: str) -> tuple[list[Stmt], list[Expr]]:
        """Words of codes of a row, field by field, and the prefetch of the next rows' words."""
        p, o = self.s.packing, self.o
        out, found = chunk_codes(p, o, (self.row(i), chunk, group), f"{i}{tag}")
        ahead: list[Stmt] = []
        for stream in p.streams:
            at = p.first_word(chunk, group) + stream.word
            far = o.word(self.row0 + (i + self.s.rows), at)
            if far.op == "load":
                ahead.append(ir.Prefetch(far.attr, far.args[0], write=False))
        return ahead + out, found
