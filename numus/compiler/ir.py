"""The kernel IR: what a kernel does, said once, before any target's syntax.

A kernel is a list of structured statements (loops and uniform conditions, never jumps: WGSL has
none) over hash-consed scalar expressions. It works on flat buffers and 8-byte scalar slots; every
extent, stride and user constant is a slot, so a kernel serves all sizes of one structure.

The four kinds of loop
    grid      blocks that run in parallel, in any order; the outermost loop of every kernel
    serial    an ordinary loop
    lanes     iterations that run side by side: SIMD lanes on a CPU, threads of a group on a GPU.
              Expressions that depend on its variable are *varying*, the others *uniform*.
    unroll    constant extent, written out

A kernel for a target whose lanes are threads says how many make a group (`Kernel.group`), and may
then do what only threads can: see `Combine`, `Scan`, and docs/design/0004-lanes-as-threads.md.

Narrow floats (float16, bfloat16, the 8-bit ones) appear only in loads, stores, selects and casts;
arithmetic is done in float32. Complex numbers never appear: lowering carries them as pairs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType

INDEX = dt.int64

# What each operation is, by arity. Integers wrap; `min`/`max` propagate NaN as NumPy's do;
# comparisons are IEEE (all false on NaN but `ne`); shifts by the bit width or more are undefined
# here and masked by who builds them; `idiv`/`irem` truncate as C's, and callers keep zero out.
# `exp2` is what a unit of the target makes of 2**x in float32, to 2 ulp, and 0 where that would be
# subnormal: only where there are `tiles` (below), and for what is rounded to 16 bits afterwards.
UNARY = frozenset("neg abs sqrt floor ceil trunc rint not popcount clz cast bitcast exp2".split())
BINARY = frozenset(
    "add sub mul div idiv irem min max and or xor shl lshr ashr mulhi "
    "lt le eq ne gt ge copysign".split()
)
COMPARES = frozenset("lt le eq ne gt ge".split())


class Expr:
    """One scalar value. Equal expressions are the same object (within one build)."""

    __slots__ = ("args", "attr", "dtype", "op")

    def __init__(self, op: str, dtype: DType, args: tuple[Expr, ...], attr: Any) -> None:
        self.op = op
        self.dtype = dtype
        self.args = args
        self.attr = attr

    # Operators build expressions; a Python number takes the dtype of the other side.
    def __add__(self, other: Operand) -> Expr:
        return add(self, _same(other, self))

    def __radd__(self, other: Operand) -> Expr:
        return add(_same(other, self), self)

    def __sub__(self, other: Operand) -> Expr:
        return sub(self, _same(other, self))

    def __rsub__(self, other: Operand) -> Expr:
        return sub(_same(other, self), self)

    def __mul__(self, other: Operand) -> Expr:
        return mul(self, _same(other, self))

    def __rmul__(self, other: Operand) -> Expr:
        return mul(_same(other, self), self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, _same(other, self))

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", _same(other, self), self)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __and__(self, other: Operand) -> Expr:
        return binary("and", self, _same(other, self))

    def __or__(self, other: Operand) -> Expr:
        return binary("or", self, _same(other, self))

    def __xor__(self, other: Operand) -> Expr:
        return binary("xor", self, _same(other, self))

    def __invert__(self) -> Expr:
        return unary("not", self)

    def __lshift__(self, other: Operand) -> Expr:
        return binary("shl", self, _same(other, self))

    def __rshift__(self, other: Operand) -> Expr:
        """Logical for unsigned, arithmetic for signed integers."""
        return binary("ashr" if self.dtype.kind == "int" else "lshr", self, _same(other, self))

    def __lt__(self, other: Operand) -> Expr:
        return binary("lt", self, _same(other, self))

    def __le__(self, other: Operand) -> Expr:
        return binary("le", self, _same(other, self))

    def __gt__(self, other: Operand) -> Expr:
        return binary("gt", self, _same(other, self))

    def __ge__(self, other: Operand) -> Expr:
        return binary("ge", self, _same(other, self))

    def eq(self, other: Operand) -> Expr:
        return binary("eq", self, _same(other, self))

    def ne(self, other: Operand) -> Expr:
        return binary("ne", self, _same(other, self))

    def cast(self, dtype: DType) -> Expr:
        return cast(self, dtype)

    def bitcast(self, dtype: DType) -> Expr:
        return self if dtype is self.dtype else make("bitcast", dtype, (self,))

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        head = f"{self.op}[{self.attr}]" if self.attr is not None else self.op
        return f"{head}({inner})" if inner else head


Operand = Expr | int | float | bool

_table: dict[tuple[Any, ...], Expr] = {}
_constants: dict[tuple[Any, ...], Expr] = {}  # outlive builds: modules keep some of them


def fresh() -> None:
    """Start a new build: forget the expressions of earlier ones."""
    _table.clear()


def make(op: str, dtype: DType, args: tuple[Expr, ...] = (), attr: Any = None) -> Expr:
    """The one expression with these parts."""
    key = (op, dtype, args, attr)
    table = _constants if op == "const" else _table
    found = table.get(key)
    if found is None:
        found = table[key] = Expr(op, dtype, args, attr)
    return found


def walk(e: Expr, past: Callable[[Expr], bool]) -> Iterator[Expr]:
    """An expression and what it is computed from, each once, going on past those that say so."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            yield x
            if past(x):
                stack.extend(x.args)


# -- leaves ---------------------------------------------------------------------------------------


def const(value: Any, dtype: DType = INDEX) -> Expr:
    """A constant. Floats are keyed by their bits, so that -0.0 and NaN stay what they are."""
    if dtype.kind == "float":
        value = float(value)
        return make("const", dtype, (), struct.pack("<d", value))
    if dtype.kind == "bool":
        return make("const", dtype, (), bool(value))
    value = int(value)
    low, high = dt.int_range(dtype)
    if not low <= value <= high:  # wrap as two's complement
        value = (value - low) % (1 << dtype.bits) + low
    return make("const", dtype, (), value)


def const_value(e: Expr) -> Any:
    """The Python value of a constant expression."""
    return struct.unpack("<d", e.attr)[0] if e.dtype.kind == "float" else e.attr


def _same(value: Operand, like: Expr) -> Expr:
    return value if isinstance(value, Expr) else const(value, like.dtype)


def scalar(slot: str, dtype: DType = INDEX) -> Expr:
    """A value given at launch."""
    return make("scalar", dtype, (), slot)


def var(name: str, dtype: DType = INDEX) -> Expr:
    """A loop variable or a `Let`."""
    return make("var", dtype, (), name)


def load(buffer: Buffer, index: Expr, mask: Expr | None = None) -> Expr:
    """An element of a buffer; where the mask is false nothing is read and the value is zero."""
    args = (index,) if mask is None else (index, mask)
    return make("load", buffer.dtype, args, buffer)


def address(buffer: Buffer) -> Expr:
    """Where a buffer begins, in bytes: to ask whether it is aligned."""
    return make("address", INDEX, (), buffer)


def read(register: Register) -> Expr:
    """The current value of a register. Not hash-consed: its value changes between statements."""
    return Expr("read", register.dtype, (), register)


def lanes_reduce(op: str, register: Register) -> Expr:
    """A per-lane register combined over its lanes in a fixed tree: add, mul, min, max, and, or."""
    return Expr("lanes_reduce", register.dtype, (), (op, register))


def lanes_xor(value: Expr, mask: int) -> Expr:
    """The value that the lane at this lane's number xor `mask` has.

    Only in lanes loops that run over exactly one vector: every lane that is asked has to exist. In
    group kernels, where the target lists the feature "shuffles", such a loop has an iteration for
    each thread, and the mask is below 32.
    """
    return make("lanes_xor", value.dtype, (value,), mask)


def lanes_shift(value: Expr, count: int, fill: Expr) -> Expr:
    """The value that the lane `count` before this one has; `fill` in the first lanes. As above."""
    return make("lanes_shift", value.dtype, (value, fill), count)


def lanes_last(value: Expr) -> Expr:
    """The value of the last lane, the same in all. As above."""
    return make("lanes_last", value.dtype, (value,))


# -- builders that simplify -----------------------------------------------------------------------


def unary(op: str, a: Expr) -> Expr:
    if op == "not" and a.op == "not":
        return a.args[0]
    return make(op, a.dtype, (a,))


def binary(op: str, a: Expr, b: Expr) -> Expr:
    if a.dtype is not b.dtype:
        raise TypeError(f"IR {op}: {a.dtype} with {b.dtype}")
    if op in COMPARES:
        if a.op == "const" and b.op == "const":
            x, y = const_value(a), const_value(b)
            results = {"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y}
            return const(results.get(op, x != y), dt.bool_)
        return make(op, dt.bool_, (a, b))
    if a.dtype is dt.bool_ and op in ("and", "or"):
        for x, y in ((a, b), (b, a)):
            if x.op == "const":
                return y if x.attr == (op == "and") else x
        if a is b:
            return a
    return make(op, a.dtype, (a, b))


def add(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        if a.op == "const" and b.op != "const":
            a, b = b, a
        if b.op == "const":
            if b.attr == 0:
                return a
            if a.op == "const":
                return const(a.attr + b.attr, a.dtype)
            if a.op == "add" and a.args[1].op == "const":
                return add(a.args[0], const(a.args[1].attr + b.attr, a.dtype))
        elif a.op == "add" and a.args[1].op == "const":
            return add(add(a.args[0], b), a.args[1])
        elif b.op == "add":
            return add(add(a, b.args[0]), b.args[1])
        # (x // c) * c + x % c is x, wherever the two stand in a sum
        whole = _rejoin(a, b)
        if whole is not None:
            return whole
        if a.op == "add":
            whole = _rejoin(a.args[1], b)
            if whole is not None:
                return add(a.args[0], whole)
    return binary("add", a, b)


def _rejoin(a: Expr, b: Expr) -> Expr | None:
    for quotient, rest in ((a, b), (b, a)):
        if rest.op != "irem":
            continue
        x, c = rest.args
        scale: Expr | None = None
        if quotient.op == "mul":
            for q, s in (quotient.args, quotient.args[::-1]):
                if q.op == "idiv" and q.args == (x, c) and s is c:
                    return x
                # ((x // c) % d) * c + x % c is x % (c * d)
                if (
                    q.op == "irem"
                    and s is c
                    and q.args[0].op == "idiv"
                    and q.args[0].args == (x, c)
                ):
                    scale = q.args[1]
        if scale is not None:
            return irem(x, mul(c, scale))
    return None


def sub(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        if b.op == "const":
            return add(a, const(-b.attr, a.dtype))
        if a is b:
            return const(0, a.dtype)
    return binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        if a.op == "const" and b.op != "const":
            a, b = b, a
        if b.op == "const":
            if b.attr == 1:
                return a
            if b.attr == 0:
                return b
            if a.op == "const":
                return const(a.attr * b.attr, a.dtype)
            if a.op == "mul" and a.args[1].op == "const":
                return mul(a.args[0], const(a.args[1].attr * b.attr, a.dtype))
    return binary("mul", a, b)


def idiv(a: Expr, b: Expr) -> Expr:
    return binary("idiv", a, b)


def irem(a: Expr, b: Expr) -> Expr:
    return binary("irem", a, b)


def cast(a: Expr, dtype: DType) -> Expr:
    if a.dtype is dtype:
        return a
    if a.op == "const" and not a.dtype.is_narrow_float and not dtype.is_narrow_float:
        value = const_value(a)
        if dtype.kind != "float" and isinstance(value, float):
            return make("cast", dtype, (a,))
        if dtype is dt.bool_ or dtype.is_integer or dtype is dt.float64:
            return const(value != 0 if dtype is dt.bool_ else value, dtype)
        if abs(value) <= 1 << 20 and value == int(value):  # exact in float32
            return const(value, dtype)
    return make("cast", dtype, (a,))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    if condition.op == "const":
        return yes if condition.attr else no
    if yes is no:
        return yes
    return make("select", yes.dtype, (condition, yes, no))


def fma(a: Expr, b: Operand, c: Operand) -> Expr:
    """a * b + c with one rounding."""
    return make("fma", a.dtype, (a, _same(b, a), _same(c, a)))


def minimum(a: Expr, b: Operand) -> Expr:
    return binary("min", a, _same(b, a))


def maximum(a: Expr, b: Operand) -> Expr:
    return binary("max", a, _same(b, a))


def sqrt(a: Expr) -> Expr:
    return unary("sqrt", a)


def exp2(a: Expr) -> Expr:
    """2**a by the target's own unit: see `UNARY`."""
    return unary("exp2", a)


def isnan(a: Expr) -> Expr:
    return make("ne", dt.bool_, (a, a))


def guard(rare: Expr, slow: Expr, usual: Expr) -> Expr:
    """`slow` where `rare` holds, `usual` elsewhere; `slow` is skipped when no lane needs it.

    Unlike `select`, only what `usual` and `rare` use is computed always.
    """
    return make("guard", usual.dtype, (rare, slow, usual))


# -- memory, registers, statements ----------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Buffer:
    """A flat array the kernel is given (or, `scratch`, one per worker, of `size` elements)."""

    name: str
    dtype: DType
    access: str  # "read", "write", "scratch"
    size: Expr | None = None  # scratch only: elements needed by one worker
    over: Buffer | None = None  # scratch only: another, no longer needed, in whose place it may lie


@dataclass(eq=False, slots=True)
class Register:
    """A mutable local. `lanes`: one value per lane of the enclosing or coming lanes loop."""

    name: str
    dtype: DType
    lanes: bool = False


class Stmt:
    __slots__ = ()


@dataclass(eq=False, slots=True)
class For(Stmt):
    """for var in range(start, stop, step). A lanes loop covers its whole range, tail included.

    `unroll` of a lanes loop: how many vectors an iteration handles; registers that are `lanes`
    and set in the loop then hold that many vectors, which hides the latency of a reduction.
    `width` of a lanes loop: the lanes of a vector, where that is not for the target to choose.
    """

    var: Expr
    start: Expr
    stop: Expr
    kind: str  # grid, serial, lanes, unroll
    body: list[Stmt]
    step: Expr = field(default_factory=lambda: const(1))
    unroll: int = 1
    width: int = 0


@dataclass(eq=False, slots=True)
class If(Stmt):
    """Uniform condition; in a lanes loop of a group kernel it may vary."""

    condition: Expr
    body: list[Stmt]


@dataclass(eq=False, slots=True)
class Let(Stmt):
    """Name a value at this point of the program, so that later statements see it as it is now.

    `ahead`: it is a load of scratch memory that is needed much later, and has to begin here.
    """

    var: Expr
    value: Expr
    ahead: bool = False


@dataclass(eq=False, slots=True)
class Set(Stmt):
    """Give a register its (first or next) value."""

    register: Register
    value: Expr


@dataclass(eq=False, slots=True)
class Store(Stmt):
    buffer: Buffer
    index: Expr
    value: Expr
    mask: Expr | None = None


@dataclass(eq=False, slots=True)
class Combine(Stmt):
    """Merge what the threads of a group have in `registers` (per-lane ones) in a fixed tree.

    `merged` says what two states, named `left` and `right`, come to, in whichever order they
    stand; `results` are variables that name the outcome from here on. Only in group kernels,
    outside lanes loops.
    """

    registers: list[Register]
    left: list[Expr]
    right: list[Expr]
    merged: list[Expr]
    results: list[Expr]


@dataclass(eq=False, slots=True)
class Scan(Stmt):
    """The same in order: each thread's registers become the merged states of the threads before it
    (`initial` for the first); `results` name what all of them come to.
    """

    registers: list[Register]
    left: list[Expr]
    right: list[Expr]
    merged: list[Expr]
    initial: list[Expr]
    results: list[Expr]


@dataclass(eq=False, slots=True)
class Prefetch(Stmt):
    """A hint: this element is going to be written soon. It may lie outside the buffer."""

    buffer: Buffer
    index: Expr


# What threads of a group do in turn, and what groups tell each other, stands inside lanes loops.


@dataclass(eq=False, slots=True)
class Add(Stmt):
    """Add an integer to an element of memory, whoever else is adding to it at the same time."""

    buffer: Buffer
    index: Expr
    value: Expr


@dataclass(eq=False, slots=True)
class Tally(Stmt):
    """Every thread counts itself at a place of `counters`, and learns how many came before it.

    32 neighbouring threads form a team and come in order. The place is `start`, which is the same
    for all of a team and for no other, plus `digit`, which has so many `bits`. Every thread of the
    group has to be there.
    """

    counters: Buffer  # scratch, of 32-bit integers
    start: Expr
    digit: Expr
    bits: int
    result: Expr  # a variable of the counters' dtype


# On targets whose facts list the feature "ordered", blocks of a grid start in order, and those that
# have started get on: they may wait for what earlier ones tell.


@dataclass(eq=False, slots=True)
class Post(Stmt):
    """Put a word, which is not 0, on a board: memory that was all zeros when the kernel started.
    Nothing is said of other memory."""

    board: Buffer  # of 32- or 64-bit unsigned integers
    index: Expr
    value: Expr


@dataclass(eq=False, slots=True)
class Posted:
    """The first `count` of these words of a board, from `index` on, `stride` apart; the results of
    others are 0."""

    index: Expr
    stride: int
    count: Expr
    results: list[Expr]  # variables of the board's dtype


@dataclass(eq=False, slots=True)
class Await(Stmt):
    """Name words of a board as soon as all of them are there. Those who post them are this block,
    before this statement, and earlier ones."""

    board: Buffer
    words: list[Posted]


def between(s: Stmt) -> list[Expr]:
    """What the statements above are given."""
    if isinstance(s, Add):
        return [s.index, s.value]
    if isinstance(s, Tally):
        return [s.start, s.digit]
    if isinstance(s, Post):
        return [s.index, s.value]
    return [e for run in s.words for e in (run.index, run.count)] if isinstance(s, Await) else []


# Targets whose facts list the feature "tiles" have units that multiply whole tiles in the group's
# memory, and copies into it that go on by themselves.


@dataclass(eq=False, slots=True)
class AsyncCopy(Stmt):
    """Begin to copy a run of 16 bytes (or 4, or 8), of which the first `limit` elements exist: the
    others become zero. Both ends are aligned to it.

    Inside a lanes loop. What is copied is there after an `AsyncWait`.
    """

    target: Buffer  # scratch
    target_index: Expr
    source: Buffer
    source_index: Expr
    limit: Expr
    nbytes: int = 16


@dataclass(eq=False, slots=True)
class AsyncCommit(Stmt):
    """The copies begun since the last one belong together. Outside lanes loops."""


@dataclass(eq=False, slots=True)
class AsyncFence(Stmt):
    """What this thread has stored in scratch memory will be seen by tile products after the next
    `AsyncWait`."""


@dataclass(eq=False, slots=True)
class AsyncWait(Stmt):
    """Wait until all but the last `pending` committed sets of copies are there, in all threads.

    With a `fence`, tile products see what was copied as well as what was stored.
    """

    pending: int
    fence: bool = False


@dataclass(eq=False, slots=True)
class TileOperand:
    """A tile in scratch memory, `depth` along k: lines of k one after the other (`along`), or lines
    of neighbours across k in blocks of 64; in runs of 8 elements, exchanged as `tile_place` says.

    A matrix whose columns lie in blocks of 64 is both: with columns as k, its `lines` lie between
    one block and the next; with rows as k, `depth` rows do.
    """

    buffer: Buffer
    start: Expr  # in elements
    along: bool
    lines: int = 0  # that are stored, where k goes on beyond 64


@dataclass(eq=False, slots=True)
class TileProduct(Stmt):
    """Every 128 threads begin to add 64 rows of the product of two tiles to the sums in their
    registers, which are there after a `TileWait`. Outside lanes loops.

    A left operand in registers lies there as sums do (`sum_place`), and is rounded to the dtype of
    the right one. Those that are `fresh` begin with zeros, whatever the sums held.
    """

    sums: list[Register]  # per lane, float32
    left: TileOperand | list[Register]
    right: TileOperand
    columns: int
    depth: int
    fresh: bool = False


@dataclass(eq=False, slots=True)
class TileWait(Stmt):
    """Wait until all but the last `pending` tile products into these sums are done."""

    sums: list[Register]
    pending: int


def sum_place(thread: Expr, number: int) -> tuple[Expr, Expr]:
    """The row and the column of a tile product that a thread has in its `number`-th sum: of every
    8 columns, two neighbours in each of two rows."""
    warp, lane = idiv(thread, const(32)), irem(thread, const(32))
    row = add(mul(warp, const(16)), idiv(lane, const(4)))
    column = mul(irem(lane, const(4)), const(2))
    down, across = number // 2 % 2 * 8, number // 4 * 8 + number % 2
    return add(row, const(down)), add(column, const(across))


@dataclass(eq=False, slots=True)
class TileSource:
    """Matrices in memory of which an engine brings tiles: 16-byte aligned lines of neighbours.

    All extents and strides are slots or constants. A line of neighbours runs along k, or across it.
    """

    buffer: Buffer
    along: bool
    extents: tuple[Expr, Expr, Expr]  # neighbours, lines of them, matrices
    strides: tuple[Expr, Expr]  # from line to line and from matrix to matrix, in elements
    first: Expr  # row of A, column of B, at which the tile begins
    lines: int  # how many rows or columns it has
    matrix: Expr  # which one


@dataclass(eq=False, slots=True)
class TileSum(Stmt):
    """Every 128 of the first 256 threads add 64 rows of a product of tiles to their sums: over
    `slices` of TILE_BYTES along k, the first of which begins at `start`. Another 32 threads bring
    the tiles, `stages` ahead. What `scratch` holds is lost. Outside lanes loops.
    """

    sums: list[Register]  # per lane, as `TileProduct` has them
    left: TileSource
    right: TileSource
    start: Expr  # in elements
    slices: Expr
    stages: int
    scratch: Buffer


@dataclass(eq=False, slots=True)
class TileSlice(Stmt):
    """One slice of such a sum that threads have put into `scratch` themselves, by `tile_place`: the
    rows of A first, then the columns of B. It is done when the statement is."""

    sums: list[Register]
    scratch: Buffer
    rows: int
    columns: int
    along: tuple[bool, bool]


@dataclass(eq=False, slots=True)
class WarpProduct(Stmt):
    """Every 32 threads add a product of 16 rows and 8 columns to their sums. Thread t has, of line
    t / 4 (and, of A, of 8 lines on) the words t % 4 and t % 4 + 4 along k; of C two neighbours in
    each of these lines. A word is 4 bytes of elements, or a float64. Inside a lanes loop that gives
    every thread one iteration.
    """

    sums: list[Register]  # 4, per lane
    left: list[Expr]  # 4: lines first, then places
    right: list[Expr]  # 2
    dtype: DType  # of elements


TILE_BYTES = 128  # of a line of a tile


def tile_scratch(dtype: DType, rows: int, columns: int, stages: int) -> int:
    """Elements of scratch that a `TileSum` needs: slices, and what tells that they are there."""
    return (stages * ((rows + columns) * TILE_BYTES + 16)) // dtype.itemsize


def tile_place(along: bool, line: Expr, k: Expr, depth: int, itemsize: int) -> Expr:
    """Where the run of 16 bytes that begins at a line and a k lies in a tile: in lines of
    TILE_BYTES, whose runs are exchanged by the number of the line."""
    run, wide = const(16 // itemsize), const(TILE_BYTES // itemsize)
    eight = const(8)
    if along:
        at = binary("xor", idiv(k, run), irem(line, eight))
        return add(mul(line, wide), mul(at, run))
    at = binary("xor", idiv(irem(line, wide), run), irem(k, eight))
    block = mul(idiv(line, wide), const(TILE_BYTES // itemsize * depth))
    return add(add(block, mul(k, wide)), mul(at, run))


@dataclass(eq=False, slots=True)
class Kernel:
    """A whole kernel. `scalars` are (slot, dtype) in argument order; `notes` what it fuses.

    A `small` kernel is for little data: the renderer keeps its code short rather than quick.
    `group` is the number of threads whose lanes it was written for; 0: lanes are SIMD.
    Where a vendor's kernel does the `work`, there is no body (`kernels/choice.py`).
    """

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[tuple[str, DType], ...]
    body: list[Stmt]
    notes: tuple[str, ...] = ()
    small: bool = False
    group: int = 0
    vendor: Any = None
    work: Any = None
    _text: str | None = None

    def text(self) -> str:
        """The kernel, readable; equal kernels have equal texts (names and notes left out)."""
        if self._text is None:
            self._text = _Printer(self).text()
        return self._text


# -- printing -------------------------------------------------------------------------------------


class _Printer:
    """Numbers every value in order of first use, so that the text depends on structure alone."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.names: dict[Any, str] = {}
        self.count = 0
        self.scopes: list[list[Any]] = [[]]

    def text(self) -> str:
        k = self.kernel
        if k.vendor is not None:
            self.lines.append(f"{k.vendor.name}: {k.work}")
        if k.small:
            self.lines.append("small")
        if k.group:
            self.lines.append(f"group {k.group}")
        for i, b in enumerate(k.buffers):
            self.names[b] = f"b{i}"
            size = f"[{self.expr(b.size, 0)}]" if b.size is not None else ""
            size += f" over {self.names[b.over]}" if b.over is not None else ""
            self.lines.append(f"{b.access} b{i}: {b.dtype.name}{size}")
        for slot, dtype in k.scalars:
            self.lines.append(f"scalar {slot}: {dtype.name}")
        self.block(k.body, 0)
        return "\n".join(self.lines) + "\n"

    def name(self, thing: Any, prefix: str) -> str:
        if thing not in self.names:
            self.names[thing] = f"{prefix}{self.count}"
            self.count += 1
            self.scopes[-1].append(thing)
        return self.names[thing]

    def expr(self, e: Expr, depth: int) -> str:
        if e.op == "const":
            return f"{const_value(e)!r}" + ("" if e.dtype is INDEX else f":{e.dtype.name}")
        if e.op == "scalar":
            return str(e.attr)
        if e.op == "address":
            return f"address {self.names[e.attr]}"
        if e.op == "var":
            return self.name(e, "v")
        if e.op == "read":
            return self.name(e.attr, "r")
        if e.op == "lanes_reduce":
            return f"lanes_{e.attr[0]}({self.name(e.attr[1], 'r')})"
        if e in self.names:
            return self.names[e]
        # operands first, iteratively: chains may be thousands deep
        stack = [e]
        while stack:
            top = stack[-1]
            if top in self.names:
                stack.pop()
                continue
            missing = [a for a in top.args if a.args and a not in self.names]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            args = ", ".join(self.expr(a, depth) for a in top.args)
            head = top.op
            if top.op == "load":
                head = f"load {self.names[top.attr]}"
            elif top.attr is not None:
                head = f"{top.op}[{top.attr}]"
            name = self.name(top, "t")
            self.lines.append(f"{'  ' * depth}{name}: {top.dtype.name} = {head}({args})")
        return self.names[e]

    def block(self, body: Iterable[Stmt], depth: int) -> None:
        pad = "  " * depth
        for s in body:
            if isinstance(s, For):
                start, stop, step = (self.expr(x, depth) for x in (s.start, s.stop, s.step))
                by = f" by {step}" if step != "1" else ""
                times = f" x{s.unroll}" if s.unroll != 1 else ""
                times += f" by vectors of {s.width}" if s.width else ""
                self.lines.append(
                    f"{pad}for {self.name(s.var, 'v')} in {start}..{stop}{by}: {s.kind}{times}"
                )
                self.inner(s.body, depth + 1)
            elif isinstance(s, If):
                condition = self.expr(s.condition, depth)
                self.lines.append(f"{pad}if {condition}:")
                self.inner(s.body, depth + 1)
            elif isinstance(s, Let):
                value = self.expr(s.value, depth)
                ahead = " ahead" if s.ahead else ""
                self.lines.append(f"{pad}{self.name(s.var, 'v')} = {value}{ahead}")
            elif isinstance(s, Set):
                value = self.expr(s.value, depth)
                lanes = " per lane" if s.register.lanes else ""
                dtype = s.register.dtype.name
                self.lines.append(
                    f"{pad}set {self.name(s.register, 'r')}: {dtype}{lanes} = {value}"
                )
            elif isinstance(s, Store):
                index, value = self.expr(s.index, depth), self.expr(s.value, depth)
                mask = f" if {self.expr(s.mask, depth)}" if s.mask is not None else ""
                self.lines.append(f"{pad}{self.names[s.buffer]}[{index}] = {value}{mask}")
            elif isinstance(s, (Combine, Scan)):
                self.across(s, depth)
            elif isinstance(s, Prefetch):
                self.lines.append(
                    f"{pad}prefetch {self.names[s.buffer]}[{self.expr(s.index, depth)}]"
                )
            elif isinstance(s, (Add, Tally, Post, Await)):
                self.between(s, depth)
            else:
                self.tiles(s, depth)

    def between(self, s: Stmt, depth: int) -> None:
        pad = "  " * depth
        given = [self.expr(e, depth) for e in between(s)]
        if isinstance(s, Add):
            self.lines.append(f"{pad}{self.names[s.buffer]}[{given[0]}] += {given[1]}")
        elif isinstance(s, Tally):
            name, counters = self.name(s.result, "v"), self.names[s.counters]
            self.lines.append(
                f"{pad}{name} = tally {counters}[{given[0]} + {given[1]} of {s.bits} bits]"
            )
        elif isinstance(s, Post):
            self.lines.append(f"{pad}post {self.names[s.board]}[{given[0]}] = {given[1]}")
        elif isinstance(s, Await):
            for run, index, count in zip(s.words, given[::2], given[1::2], strict=True):
                names = ", ".join(self.name(v, "v") for v in run.results)
                where = f"{self.names[s.board]}[{index} by {run.stride}]"
                self.lines.append(f"{pad}{names} = await {where} upto {count}")

    def tiles(self, s: Stmt, depth: int) -> None:
        pad = "  " * depth
        if isinstance(s, AsyncCopy):
            to, frm, limit = (
                self.expr(e, depth) for e in (s.target_index, s.source_index, s.limit)
            )
            target, source = self.names[s.target], self.names[s.source]
            what = f"copy {s.nbytes} {target}[{to}] = {source}[{frm}]"
            self.lines.append(f"{pad}{what} upto {limit}")
        elif isinstance(s, TileWait):
            sums = ", ".join(self.name(r, "r") for r in s.sums)
            self.lines.append(f"{pad}tile wait {s.pending}: {sums}")
        elif isinstance(s, AsyncCommit):
            self.lines.append(f"{pad}commit")
        elif isinstance(s, AsyncFence):
            self.lines.append(f"{pad}fence")
        elif isinstance(s, AsyncWait):
            self.lines.append(f"{pad}wait {s.pending}{' fence' if s.fence else ''}")
        elif isinstance(s, TileProduct):
            sums = ", ".join(self.name(r, "r") for r in s.sums)
            left, right = (self.operand(o, depth) for o in (s.left, s.right))
            what = f"tile {s.columns} {s.depth}{' fresh' if s.fresh else ''}"
            self.lines.append(f"{pad}{what} {left} {right}: {sums}")

        else:
            self.units(s, depth)

    def units(self, s: Stmt, depth: int) -> None:
        pad = "  " * depth
        if isinstance(s, WarpProduct):
            words = ", ".join(self.expr(e, depth) for e in (*s.left, *s.right))
            sums = ", ".join(self.name(r, "r") for r in s.sums)
            self.lines.append(f"{pad}product {s.dtype.name} {words}: {sums}")
        elif isinstance(s, TileSlice):
            sums = ", ".join(self.name(r, "r") for r in s.sums)
            what = f"slice {self.names[s.scratch]} {s.rows} {s.columns} {s.along}"
            self.lines.append(f"{pad}{what}: {sums}")
        elif isinstance(s, TileSum):
            start, slices = self.expr(s.start, depth), self.expr(s.slices, depth)
            for side in (s.left, s.right):
                how = "along" if side.along else "across"
                numbers = (*side.extents, *side.strides, side.first, side.matrix)
                values = ", ".join(self.expr(e, depth) for e in numbers)
                self.lines.append(f"{pad}{how} {self.names[side.buffer]}({values}) x{side.lines}")
            sums = ", ".join(self.name(r, "r") for r in s.sums)
            scratch = self.names[s.scratch]
            self.lines.append(f"{pad}sum {start} +{slices} by {s.stages} in {scratch}: {sums}")

    def operand(self, o: TileOperand | list[Register], depth: int) -> str:
        if isinstance(o, list):
            return f"({', '.join(self.name(r, 'r') for r in o)})"
        lines = f" of {o.lines}" if o.lines else ""
        where = f"{self.names[o.buffer]}[{self.expr(o.start, depth)}]"
        return f"{where}{'' if o.along else 't'}{lines}"

    def across(self, s: Combine | Scan, depth: int) -> None:
        pad = "  " * depth
        registers = ", ".join(self.name(r, "r") for r in s.registers)
        start = ""
        if isinstance(s, Scan):
            start = f" from {', '.join(self.expr(x, depth) for x in s.initial)}"
        sides = [", ".join(self.name(v, "v") for v in side) for side in (s.left, s.right)]
        head = "scan" if isinstance(s, Scan) else "combine"
        self.lines.append(f"{pad}{head} {registers}{start}: ({sides[0]}), ({sides[1]})")
        self.scopes.append([])
        merged = ", ".join(self.expr(x, depth + 1) for x in s.merged)
        for thing in self.scopes.pop():
            del self.names[thing]
        results = ", ".join(self.name(v, "v") for v in s.results)
        self.lines.append(f"{pad}  {results} = {merged}")

    def inner(self, body: Iterable[Stmt], depth: int) -> None:
        """A block whose values are not visible after it."""
        self.scopes.append([])
        self.block(body, depth)
        for thing in self.scopes.pop():
            del self.names[thing]
