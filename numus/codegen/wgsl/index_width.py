"""Which 64-bit integers of a kernel are small: counters and indices, which 32 bits hold.

The kernel IR counts in int64; GPUs count faster in 32 bits, and many have nothing else. An
expression is *narrow* if it is built from loop variables, sizes given at launch, constants and
integers of 32 bits or less. That such expressions fit is not assumed: `fits` works out their ranges
from the sizes of a launch, and where one does not fit the kernel is rendered with wide indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from numus import ir
from numus.ir import Expr, expressions_of, post_order, statements

_LIMIT = (1 << 31) - 1
UNKNOWN = 16  # turns of loops whose end depends on data: passes of a sort, say
_PURE = frozenset("add sub mul idiv irem min max neg abs select".split())

Range = tuple[int, int]


def is_size(slot: str) -> bool:
    """Whether a slot holds a size or a number of the schedule's own, and no constant of a user."""
    return not (slot[0] == "c" and slot[1:2].isdigit())


class Narrow:
    """The narrow expressions of one kernel."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.found: set[Expr] = set()
        self._order: list[Expr | ir.For | ir.Let] = []  # as the kernel meets them
        seen: set[Expr] = set()
        for b in kernel.buffers:
            if b.size is not None:
                self._note(post_order((b.size,), seen))
        for s in statements(kernel.body):
            self._note(post_order(expressions_of(s), seen))
            # a loop whose end depends on data counts as wide as that
            counts = isinstance(s, ir.For) and {s.start, s.stop, s.step} <= self.found
            if counts or (isinstance(s, ir.Let) and s.value in self.found):
                assert isinstance(s, (ir.For, ir.Let))
                self.found.add(s.var)
                self._order.append(s)

    def _note(self, expressions: Iterable[Expr]) -> None:
        for e in expressions:
            if e.dtype is ir.INDEX and self._is_narrow(e):
                self.found.add(e)
                self._order.append(e)

    def _is_narrow(self, e: Expr) -> bool:
        if e.op == "const":
            return bool(abs(e.attr) <= _LIMIT)
        if e.op == "scalar":
            return is_size(e.attr)
        if e.op == "cast":
            source = e.args[0].dtype
            return source.kind == "bool" or (source.is_integer and _bits(source) < 32)
        if e.op == "select":
            return all(a in self.found for a in e.args[1:])
        return e.op in _PURE and all(a in self.found for a in e.args)

    def turns(self, sizes: dict[str, int], threads: int, unroll: int) -> int:
        """How often a thread goes round loops at most, innermost ones `unroll` at a time."""
        ranges: dict[Expr, Range] = {}
        self._ranges(sizes, ranges)

        def high(e: Expr) -> int:
            return ranges[e][1] if e in ranges else UNKNOWN

        def of(body: list[ir.Stmt]) -> int:
            total = 0
            for s in body:
                if isinstance(s, ir.If):
                    total += of(s.body)
                elif isinstance(s, ir.For):
                    inner = of(s.body)
                    step = max(1, abs(ranges.get(s.step, (1, 1))[0]))
                    count = -(-max(0, _length(s, high, ranges)) // step)
                    if s.kind == "lanes":
                        count = -(-count // threads)
                    if s.kind == "grid":
                        count = 1
                    elif not any(isinstance(x, ir.For) for x in statements(s.body)):
                        count = -(-count // unroll)
                    total += count * (1 + inner)
                elif isinstance(s, (ir.BlockReduce, ir.BlockScan, ir.Let)):
                    total += threads.bit_length() if not isinstance(s, ir.Let) else 0
            return total

        return of(self.kernel.body)

    def fits(self, sizes: dict[str, int]) -> bool:
        """Whether every narrow expression stays within 32 bits when the slots hold these."""
        return self._ranges(sizes, {})

    def _ranges(self, sizes: dict[str, int], ranges: dict[Expr, Range]) -> bool:
        for x in self._order:
            if isinstance(x, ir.For):
                low, high = ranges[x.start], ranges[x.stop]
                ranges[x.var] = (min(low[0], high[0]), max(low[1], high[1] - 1))
                step = ranges.get(x.step, (1, 1))
                # a loop's variable passes its end by up to a step of every thread
                if ranges[x.var][1] + abs(step[1]) * 1024 > _LIMIT:
                    return False
            elif isinstance(x, ir.Let):
                ranges[x.var] = ranges[x.value]
            else:
                found = _range(x, ranges, sizes)
                if found[0] < -_LIMIT or found[1] > _LIMIT:
                    return False
                ranges[x] = found
        return True


def _length(s: ir.For, high: Callable[[Expr], int], ranges: dict[Expr, Range]) -> int:
    """How far a loop goes at most: the size of a block, where its end is that of one."""
    most = high(s.stop) - ranges.get(s.start, (0, 0))[0]
    if s.stop.op == "min":
        for end in s.stop.args:
            if end.op == "add" and s.start in end.args:
                size = end.args[1] if end.args[0] is s.start else end.args[0]
                most = min(most, high(size))
    return most


def _bits(dtype: object) -> int:
    bits: int = dtype.bits + (dtype.kind == "uint")  # type: ignore[attr-defined]
    return bits


def _range(e: Expr, ranges: dict[Expr, Range], sizes: dict[str, int]) -> Range:
    if e.op == "const":
        return e.attr, e.attr
    if e.op == "scalar":
        return sizes[e.attr], sizes[e.attr]
    if e.op == "cast":
        source = e.args[0].dtype
        if source.kind == "bool":
            return 0, 1
        return (0, 2**source.bits) if source.kind == "uint" else (-(2**source.bits), 2**source.bits)
    args = [ranges[a] for a in e.args if a.dtype is ir.INDEX]
    (a, b), (c, d) = args[0], args[-1]
    if e.op == "add":
        return a + c, b + d
    if e.op == "sub":
        return a - d, b - c
    if e.op == "neg":
        return -b, -a
    if e.op == "abs":
        return 0, max(abs(a), abs(b))
    if e.op == "mul":
        ends = (a * c, a * d, b * c, b * d)
        return min(ends), max(ends)
    if e.op == "select":
        return min(a, c), max(b, d)
    if e.op == "min":
        return min(a, c), min(b, d)
    if e.op == "max":
        return max(a, c), max(b, d)
    most = max(abs(a), abs(b))
    if e.op == "idiv":
        most //= max(1, c)
    else:
        most = min(most, max(abs(c), abs(d)) - 1) if max(abs(c), abs(d)) else most
    return (-most if a < 0 else 0), most
