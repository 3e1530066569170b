"""Index width: int64 index expressions of a kernel that 32 bits can hold, by interval analysis.

The kernel IR counts in int64; GPUs count faster in 32 bits, and many have nothing else. An
expression is *32-bit* if it is built from loop variables, launch sizes, constants and integers of
32 bits or less. `fits` computes their ranges from the sizes of a launch; where one overflows, the
kernel is rendered with 64-bit indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from numus import ir
from numus.ir import Expr, expressions_of, post_order, statements

_INT32_MAX = (1 << 31) - 1
DATA_DEPENDENT_ITERATIONS = 16  # assumed of loops whose end depends on data: passes of a sort

Range = tuple[int, int]


def is_size(slot: str) -> bool:
    """Whether a scalar argument is a size or schedule parameter, not a user's constant."""
    return ir.ScalarKind.of(slot) is not ir.ScalarKind.CONSTANT


class IndexWidth:
    """The 32-bit expressions of one kernel, in program order."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.int32: set[Expr] = set()
        self._order: list[Expr | ir.For | ir.Let] = []
        seen: set[Expr] = set()
        self._add(post_order((b.size for b in kernel.buffers if b.size is not None), seen))
        for s in statements(kernel.body):
            self._add(post_order(expressions_of(s), seen))
            # a loop whose bounds are wide has a wide variable
            int32_loop = isinstance(s, ir.For) and {s.start, s.stop, s.step} <= self.int32
            if int32_loop or (isinstance(s, ir.Let) and s.value in self.int32):
                assert isinstance(s, (ir.For, ir.Let))
                self.int32.add(s.var)
                self._order.append(s)

    def _add(self, expressions: Iterable[Expr]) -> None:
        for e in expressions:
            if e.dtype is ir.INDEX and self._fits_int32(e):
                self.int32.add(e)
                self._order.append(e)

    def _fits_int32(self, e: Expr) -> bool:
        if e.op == "const":
            return bool(abs(e.attr) <= _INT32_MAX)
        if e.op == "scalar":
            return is_size(e.attr)
        if e.op == "cast":
            source = e.args[0].dtype
            bits = source.bits + (source.kind == "uint")
            return source.kind == "bool" or (source.is_integer and bits < 32)
        if e.op == "select":
            return all(a in self.int32 for a in e.args[1:])
        if e.op in ("and", "ashr"):
            x, y = e.args
            most = _INT32_MAX if e.op == "and" else 31
            return y.op == "const" and 0 <= y.attr <= most and x in self.int32
        return e.op in _RANGES and all(a in self.int32 for a in e.args)

    def loop_iterations(self, sizes: dict[str, int], threads: int, unroll: int) -> int:
        """An upper bound of a thread's loop iterations, with innermost loops unrolled."""
        ranges: dict[Expr, Range] = {}
        self._ranges(sizes, ranges)

        def high(e: Expr) -> int:
            return ranges[e][1] if e in ranges else DATA_DEPENDENT_ITERATIONS

        def count(body: list[ir.Stmt]) -> int:
            total = 0
            for s in body:
                if isinstance(s, ir.If):
                    total += count(s.body)
                elif isinstance(s, ir.For):
                    inner = count(s.body)
                    step = max(1, abs(ranges.get(s.step, (1, 1))[0]))
                    trips = -(-max(0, _max_extent(s, high, ranges)) // step)
                    if s.kind == "lanes":
                        trips = -(-trips // threads)
                    if s.kind == "grid":
                        trips = 1
                    elif not any(isinstance(x, ir.For) for x in statements(s.body)):
                        trips = -(-trips // unroll)
                    total += trips * (1 + inner)
                elif isinstance(s, (ir.BlockReduce, ir.BlockScan)):
                    total += threads.bit_length()
            return total

        return count(self.kernel.body)

    def fits(self, sizes: dict[str, int]) -> bool:
        """Whether every 32-bit expression stays within 32 bits at these sizes."""
        return self._ranges(sizes, {})

    def _ranges(self, sizes: dict[str, int], ranges: dict[Expr, Range]) -> bool:
        for x in self._order:
            if isinstance(x, ir.For):
                low, high = ranges[x.start], ranges[x.stop]
                ranges[x.var] = (min(low[0], high[0]), max(low[1], high[1] - 1))
                step = ranges.get(x.step, (1, 1))
                # a loop variable overshoots its end by up to a step of every thread
                if ranges[x.var][1] + abs(step[1]) * 1024 > _INT32_MAX:
                    return False
            elif isinstance(x, ir.Let):
                ranges[x.var] = ranges[x.value]
            else:
                found = _range(x, ranges, sizes)
                if found[0] < -_INT32_MAX or found[1] > _INT32_MAX:
                    return False
                ranges[x] = found
        return True


def _max_extent(s: ir.For, high: Callable[[Expr], int], ranges: dict[Expr, Range]) -> int:
    """An upper bound of stop - start: the tile size, for a loop over min(start + tile, n)."""
    extent = high(s.stop) - ranges.get(s.start, (0, 0))[0]
    if s.stop.op == "min":
        for end in s.stop.args:
            if end.op == "add" and s.start in end.args:
                size = end.args[1] if end.args[0] is s.start else end.args[0]
                extent = min(extent, high(size))
    return extent


def _quotient(x: Range, y: Range) -> Range:
    largest = max(map(abs, x)) // max(1, y[0])
    return (-largest if x[0] < 0 else 0), largest


def _remainder(x: Range, y: Range) -> Range:
    largest, divisor = max(map(abs, x)), max(map(abs, y))
    largest = min(largest, divisor - 1) if divisor else largest
    return (-largest if x[0] < 0 else 0), largest


def _product(x: Range, y: Range) -> Range:
    ends = [a * b for a in x for b in y]
    return min(ends), max(ends)


_RANGES: dict[str, Callable[[Range, Range], Range]] = {  # of the first and last operand
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "neg": lambda x, _: (-x[1], -x[0]),
    "abs": lambda x, _: (0, max(map(abs, x))),
    "mul": _product,
    "select": lambda x, y: (min(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "and": lambda _, y: (0, y[1]),
    "ashr": lambda x, y: (x[0] >> y[0], x[1] >> y[0]),
    "idiv": _quotient,
    "irem": _remainder,
}


def _range(e: Expr, ranges: dict[Expr, Range], sizes: dict[str, int]) -> Range:
    if e.op in ("const", "scalar"):
        value = e.attr if e.op == "const" else sizes[e.attr]
        return value, value
    if e.op == "cast":
        source = e.args[0].dtype
        if source.kind == "bool":
            return 0, 1
        return (0 if source.kind == "uint" else -(2**source.bits)), 2**source.bits
    args = [ranges[a] for a in e.args if a.dtype is ir.INDEX]
    return _RANGES[e.op](args[0], args[-1])
