"""Statements that every target has: loops, conditions, names, registers and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from numus.ir.expressions import Buffer, Expr, Register, const


class Stmt:
    __slots__ = ()


@dataclass(eq=False, slots=True)
class For(Stmt):
    """for var in range(start, stop, step). A lanes loop covers its whole range, tail included.

    `unroll` of a lanes loop: how many vectors an iteration handles; registers that are `lanes`
    and set in the loop then hold that many vectors, which hides the latency of a reduction.
    `width` of a lanes loop: the lanes of a vector, where that is not for the target to choose.
    `held`, where lanes are threads: each of them takes `unroll` vectors of `width` neighbours, all
    at once, so there are no more iterations than threads have room for. Registers that are `lanes`
    and known to several such loops keep what they hold for every iteration. `full` of the vectors,
    the first ones, are there for all threads, whatever the sizes a launch is about.
    """

    var: Expr
    start: Expr
    stop: Expr
    kind: str  # grid, serial, lanes, unroll
    body: list[Stmt]
    step: Expr = field(default_factory=lambda: const(1))
    unroll: int = 1
    width: int = 0
    resident: bool = False
    full_vectors: int = 0


@dataclass(eq=False, slots=True)
class If(Stmt):
    """Uniform condition; in a lanes loop of a group kernel it may vary."""

    condition: Expr
    body: list[Stmt]


@dataclass(eq=False, slots=True)
class Let(Stmt):
    """Name a value at this point of the program, so that later statements see it as it is now.

    `ahead`: it is a load of scratch memory that is needed much later, and has to begin here.
    `run`: so many names from here on are loads of neighbours, which are known to lie at a whole
    access of so many: at most 16 bytes, in a lanes loop.
    """

    var: Expr
    value: Expr
    early: bool = False
    vector: int = 0


@dataclass(eq=False, slots=True)
class Set(Stmt):
    """Give a register its (first or next) value."""

    register: Register
    value: Expr


@dataclass(eq=False, slots=True)
class Store(Stmt):
    """`run`: so many stores from here on are to neighbours, which are known to lie at a whole
    access of so many: at most 16 bytes, in a lanes loop."""

    buffer: Buffer
    index: Expr
    value: Expr
    mask: Expr | None = None
    vector: int = 0


@dataclass(eq=False, slots=True)
class BlockReduce(Stmt):
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
class BlockScan(Stmt):
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
    """A hint: this element is going to be written soon; or read, but so late that the second cache
    is near enough. It may lie outside the buffer.
    """

    buffer: Buffer
    index: Expr
    write: bool = True
