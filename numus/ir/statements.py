"""Kernels, and statements of every target: control flow, bindings, memory, block collectives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numus.dtypes import DType
from numus.ir.expressions import Buffer, Expr, Register, const


class Stmt:
    __slots__ = ()


@dataclass(eq=False, slots=True)
class For(Stmt):
    """for var in range(start, stop, step). A lanes loop covers its whole range, tail included.

    `unroll` vectors are handled per iteration of a lanes loop; `lanes` registers set in it hold as
    many, which hides the latency of a reduction. `width`: lanes per vector, 0 if the target
    chooses. A `resident` loop has a single iteration of `unroll` vectors of `width` contiguous
    elements per thread, so that `lanes` registers shared by several such loops stay in machine
    registers; its first `full_vectors` vectors need no bounds check at any size.
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
    """Uniform condition; in a lanes loop of a GPU kernel it may diverge."""

    condition: Expr
    body: list[Stmt]


@dataclass(eq=False, slots=True)
class Let(Stmt):
    """Binding of a value at this point of the program.

    `early`: a shared-memory load issued here although its use is far. `vector` = n: this and the
    next n-1 Lets load consecutive, aligned elements: one vector load, at most 16 bytes, in a lanes
    loop. `relaxed`: a compiler may contract and reorder its sums and products.
    """

    var: Expr
    value: Expr
    early: bool = False
    vector: int = 0
    relaxed: bool = False


@dataclass(eq=False, slots=True)
class Set(Stmt):
    """Assignment to a register."""

    register: Register
    value: Expr


@dataclass(eq=False, slots=True)
class Store(Stmt):
    """`vector` = n: this and the next n-1 Stores write consecutive, aligned elements: one vector
    store, at most 16 bytes, in a lanes loop. `streams`: into memory around the caches, where whole
    lines are stored."""

    buffer: Buffer
    index: Expr
    value: Expr
    mask: Expr | None = None
    vector: int = 0
    streams: bool = False


@dataclass(eq=False, slots=True)
class BlockReduce(Stmt):
    """Block-wide reduction of per-lane registers in a fixed tree.

    `merged` combines two states, bound to `left` and `right` (commutative); `results` bind the
    total in all threads. Only in GPU kernels, outside lanes loops.
    """

    registers: list[Register]
    left: list[Expr]
    right: list[Expr]
    merged: list[Expr]
    results: list[Expr]


@dataclass(eq=False, slots=True)
class BlockScan(Stmt):
    """Block-wide exclusive scan: each thread's registers become the combined state of the threads
    before it (`initial` for the first); `results` bind the total."""

    registers: list[Register]
    left: list[Expr]
    right: list[Expr]
    merged: list[Expr]
    initial: list[Expr]
    results: list[Expr]


@dataclass(eq=False, slots=True)
class Prefetch(Stmt):
    """Prefetch hint into L1 or L2. May be out of bounds. `lanes`: for every lane, not the first."""

    buffer: Buffer
    index: Expr
    write: bool = True
    level: int = 1
    lanes: bool = False


@dataclass(eq=False, slots=True)
class DependencyWait(Stmt):
    """Wait for the kernels before this one, where a kernel may begin before they end (programmatic
    dependent launch). Statements before it store nothing, and load (`loads_before`) only inputs of
    the program, which none of its kernels overwrites before. A kernel without one waits first of
    all."""

    loads_before: bool = False


@dataclass(eq=False, slots=True)
class Kernel:
    """`scalars` are (name, dtype) in argument order; `notes` list the fused operations.

    `small` asks for short code rather than fast code. `block_size` is the number of threads of a
    block; 0: lanes are SIMD lanes. Blocks without shared memory may be launched `packed_blocks` at
    a time, the last ones predicated off. A block larger than a CTA spans `cluster_size` CTAs, which
    exchange partial results through distributed shared memory, or through `flags` (a zeroed buffer
    and its words per block). The blocks of a `persistent` kernel loop over the grid. With
    `stores_once`, each element of a result is stored a single time. Registers are to suffice for
    `resident_blocks` on a multiprocessor (0: the renderer chooses). One that `copies` its first
    buffer to its second does nothing where both are the same memory. `cluster_blocks` blocks run
    side by side, and read each other's scratch (`ClusterGather`). A `vendor` kernel has a `problem`
    instead of a body (`kernels/vendor/`).
    """

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[tuple[str, DType], ...]
    body: list[Stmt]
    notes: tuple[str, ...] = ()
    small: bool = False
    block_size: int = 0
    packed_blocks: int = 1
    cluster_size: int = 1
    flags: tuple[Buffer, int] | None = None
    persistent: bool = False
    stores_once: bool = False
    resident_blocks: int = 0
    copies: bool = False
    cluster_blocks: int = 1
    vendor: Any = None
    problem: Any = None
    cached_text: str | None = None  # of `printer.kernel_text`
    cached_digest: bytes | None = None  # of that text
