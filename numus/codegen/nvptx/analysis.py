"""What is known of a kernel for threads before it is written."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.codegen.nvptx.warp import WARP
from numus.ir import expressions_of, post_order, statements


def threads(kernel: ir.Kernel) -> int:
    """Threads of a block. Lanes that were meant to be SIMD find room in a warp."""
    return (kernel.block_size or WARP) * kernel.packed_blocks // kernel.cluster_size


def shared_by_size(kernel: ir.Kernel) -> tuple[int, list[ir.Buffer]]:
    """Bytes of the scratch buffers of constant size, and those buffers."""
    fixed = [
        b
        for b in kernel.buffers
        if b.access == "scratch" and b.size is not None and b.size.op == "const"
    ]
    return sum(scratch_bytes(b) for b in fixed if b.aliases is None), fixed


def scratch_bytes(b: ir.Buffer) -> int:
    assert b.size is not None
    return (int(b.size.attr) * b.dtype.itemsize + 15) & -16


def communicating(kernel: ir.Kernel, loaded: frozenset[ir.Buffer]) -> frozenset[ir.Buffer]:
    """Buffers by which threads tell each other something: stored to and loaded from."""
    stored = {b for s in statements(kernel.body) for b in changes(s)}
    return frozenset(stored & loaded)


def changes(s: ir.Stmt) -> tuple[ir.Buffer, ...]:
    """The memory that a statement changes, boards left out."""
    if isinstance(s, (ir.Store, ir.AtomicAdd)):
        return (s.buffer,)
    return (s.counters,) if isinstance(s, ir.WarpMultisplit) else ()


def held_words(kernel: ir.Kernel) -> int:
    """Registers that a thread keeps from one held loop to the next, at most."""
    spans: dict[ir.Register, list[int]] = {}
    loops = held_loops(kernel)
    for i, loop in enumerate(loops):
        for register in (r for s in loop.body for r in registers_of(s) if r.lanes):
            spans.setdefault(register, []).append(i)
    words = {r: max(1, r.dtype.itemsize // 4) for r in spans}
    most = max(
        (
            sum(words[r] for r, at in spans.items() if at[0] <= i < at[-1])
            for i in range(len(loops))
        ),
        default=0,
    )
    return most * max((loop.unroll * loop.width for loop in loops), default=0)


def held_loops(kernel: ir.Kernel) -> list[ir.For]:
    return [s for s in statements(kernel.body) if isinstance(s, ir.For) and s.resident]


def read_at_once(kernel: ir.Kernel) -> int:
    """Bytes that a thread begins to read in the first held loop, at least one."""
    loop = held_loops(kernel)[0]
    size: int = sum(e.attr.dtype.itemsize for e in loads(loop) if e.attr.access == "read")
    return max(1, size * loop.unroll * loop.width)


def words_besides(kernel: ir.Kernel) -> int:
    """Registers for what held loops after the first read and do not keep, at most."""
    found = [
        sum(e.attr.dtype.itemsize for e in read_besides(loop)) * loop.unroll * loop.width
        for loop in held_loops(kernel)[1:]
    ]
    return -(-max(found, default=0) // 4)


def read_besides(loop: ir.For) -> list[ir.Expr]:
    """The loads of a body that threads do not keep for other loops."""
    kept = [s.value for s in loop.body if isinstance(s, ir.Set)]
    return [
        e for e in loads(loop) if len(e.args) == 1 and e.attr.access == "read" and e not in kept
    ]


def steady(loop: ir.For) -> list[ir.Expr]:
    """What is the same in all iterations and takes arithmetic, operands first."""
    sets = {s.register for s in statements(loop.body) if isinstance(s, ir.Set)}

    def changing(e: ir.Expr) -> bool:
        if e.op == "read":
            return bool(e.attr.lanes) or e.attr in sets
        return e.op in ("load", "lanes_reduce", "slow_path")

    return [e for e in ir.loop_invariant(loop, changing) if e.args and e.dtype.kind == "float"]


_SHORT = 32  # operations of a loop's body that is written several times


def reads_on(loop: ir.For) -> bool:
    """Whether a loop does little but read memory, and in every iteration somewhere else."""
    if not all(isinstance(s, (ir.Let, ir.Set)) for s in loop.body) or loop.step.op != "const":
        return False
    found = loads(loop)
    size = {e for s in loop.body for x in expressions_of(s) for e in ir.walk(x, lambda e: True)}
    return (
        len(size) <= _SHORT
        and loop.step.attr > 0
        and any(e.attr.access == "read" for e in found)
        and all(loop.var in ir.walk(e.args[0], lambda e: True) for e in found)
    )


def tile_sums(kernel: ir.Kernel) -> set[ir.Register]:
    kinds = (ir.Wgmma, ir.WgmmaMainloop, ir.WgmmaTile)
    products = [s for s in statements(kernel.body) if isinstance(s, kinds)]
    return {register for s in products for register in s.accumulators}


def tile_sources(kernel: ir.Kernel) -> list[ir.TmaTensor]:
    """The matrices of which an engine brings tiles, in the order of the kernel's parameters."""
    sums = [s for s in statements(kernel.body) if isinstance(s, ir.WgmmaMainloop)]
    return [source for s in sums for source in (s.a, s.b)]


@dataclass(frozen=True, slots=True)
class Map:
    """A matrix as the engine has to be told of it: what a launch fills in comes as a scalar's name
    or as a number."""

    buffer: int
    itemsize: int
    rounds: bool  # whether elements lose the digits that the tile units do not look at
    extents: tuple[str | int, ...]
    strides: tuple[str | int, ...]  # in elements
    box: tuple[int, int, int]


def maps(kernel: ir.Kernel) -> list[Map]:
    """What the engine has to be told before a launch."""
    found = []
    for source in tile_sources(kernel):
        dtype = source.buffer.dtype
        wide = ir.SWIZZLE_BYTES // dtype.itemsize
        found.append(
            Map(
                kernel.buffers.index(source.buffer),
                dtype.itemsize,
                dtype is dt.float32,
                tuple(e.attr for e in source.extents),
                tuple(e.attr for e in source.strides),
                (wide, source.tile_mn if source.k_major else wide, 1),
            )
        )
    return found


def registers_of(s: ir.Stmt) -> list[ir.Register]:
    """The registers that a statement sets or reads, those of statements inside it left out."""
    found = [s.register] if isinstance(s, ir.Set) else []
    if isinstance(s, ir.MmaSync):
        found += s.accumulators
    for root in expressions_of(s):
        found += [e.attr for e in ir.walk(root, lambda e: True) if e.op == "read"]
    return found


def accesses(loop: ir.For) -> list[tuple[ir.Buffer, ir.Expr, bool]]:
    """Every load and store of a body: buffer, index, whether it is masked."""
    stores = [s for s in statements(loop.body) if isinstance(s, ir.Store)]
    out = [(s.buffer, s.index, s.mask is not None) for s in stores]
    return out + [(e.attr, e.args[0], len(e.args) > 1) for e in loads(loop)]


def loads(loop: ir.For) -> list[ir.Expr]:
    """Every load of a body, once."""
    seen: set[ir.Expr] = set()
    inner = statements(loop.body)
    return [e for s in inner for e in post_order(expressions_of(s), seen) if e.op == "load"]
