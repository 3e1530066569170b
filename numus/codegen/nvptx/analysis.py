"""Analyses of a GPU kernel before it is rendered: launch shape, shared memory, registers, loads."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.codegen.nvptx.warp import WARP
from numus.ir import expressions_of, statements


def cta_threads(kernel: ir.Kernel) -> int:
    """Threads of a CTA; SIMD kernels get a warp."""
    return (kernel.block_size or WARP) * kernel.packed_blocks // kernel.cluster_size


def static_scratch(kernel: ir.Kernel) -> tuple[int, list[ir.Buffer]]:
    """(bytes, buffers) of scratch of constant size."""
    scratch = [b for b in kernel.buffers if b.access == "scratch" and b.size is not None]
    buffers = [b for b in scratch if b.scratch_size.op == "const"]
    return sum(scratch_bytes(b) for b in buffers if b.aliases is None), buffers


def scratch_bytes(b: ir.Buffer) -> int:
    return (int(b.scratch_size.attr) * b.dtype.itemsize + 15) & -16


def cross_thread(body: list[ir.Stmt], loaded: frozenset[ir.Buffer]) -> frozenset[ir.Buffer]:
    """Buffers that need barriers: stored to and loaded from."""
    return frozenset(b for s in statements(body) for b in stored_buffers(s)) & loaded


def stored_buffers(s: ir.Stmt) -> tuple[ir.Buffer, ...]:
    """Buffers that a statement writes, flags excluded."""
    if isinstance(s, (ir.Store, ir.AtomicAdd)):
        return (s.buffer,)
    return (s.counters,) if isinstance(s, ir.WarpMultisplit) else ()


def counter_bounds(kernel: ir.Kernel) -> dict[ir.Expr, int]:
    """The largest value of each loop variable that runs between constants, the first not
    negative."""
    loops = [s for s in statements(kernel.body) if isinstance(s, ir.For)]
    ends: dict[ir.Expr, int] = {}
    unknown = set()
    for s in loops:
        if s.start.op == s.stop.op == "const" and s.start.attr >= 0:
            ends[s.var] = max(ends.get(s.var, 0), s.stop.attr - 1)
        else:
            unknown.add(s.var)
    return {v: end for v, end in ends.items() if v not in unknown}


# -- resident loops -------------------------------------------------------------------------------


def resident_words(kernel: ir.Kernel) -> int:
    """Maximum number of registers of a thread that are live between resident loops."""
    spans: dict[ir.Register, list[int]] = {}
    loops = resident_loops(kernel)
    for i, loop in enumerate(loops):
        for register in (r for s in loop.body for r in registers_of(s) if r.lanes):
            spans.setdefault(register, []).append(i)
    live = [
        sum(register_words(r) for r, at in spans.items() if at[0] <= i < at[-1])
        for i in range(len(loops))
    ]
    return max(live, default=0) * max((loop.unroll * loop.width for loop in loops), default=0)


def register_words(register: ir.Register) -> int:
    return max(1, register.dtype.itemsize // 4)


def resident_loops(kernel: ir.Kernel) -> list[ir.For]:
    return [s for s in statements(kernel.body) if isinstance(s, ir.For) and s.resident]


def first_load_bytes(kernel: ir.Kernel) -> int:
    """Bytes in flight per thread in the first resident loop, at least one."""
    loop = resident_loops(kernel)[0]
    size: int = sum(e.attr.dtype.itemsize for e in ir.loads(loop.body) if e.attr.access == "read")
    return max(1, size * loop.unroll * loop.width)


def transient_words(kernel: ir.Kernel) -> int:
    """Maximum number of registers for transient loads of the resident loops after the first."""
    found = [
        sum(e.attr.dtype.itemsize for e in transient_loads(loop)) * loop.unroll * loop.width
        for loop in resident_loops(kernel)[1:]
    ]
    return -(-max(found, default=0) // 4)


def transient_loads(loop: ir.For) -> list[ir.Expr]:
    """Loads of a resident loop that are not set to registers."""
    resident = [s.value for s in loop.body if isinstance(s, ir.Set)]
    plain = [e for e in ir.loads(loop.body) if len(e.args) == 1 and e.attr.access == "read"]
    return [e for e in plain if e not in resident]


def invariant_floats(loop: ir.For) -> list[ir.Expr]:
    """Loop-invariant float arithmetic, operands first."""
    sets = {s.register for s in statements(loop.body) if isinstance(s, ir.Set)}

    def varies(e: ir.Expr) -> bool:
        if e.op == "read":
            return bool(e.attr.lanes) or e.attr in sets
        return e.op in ("load", "lanes_reduce", "slow_path", "carry")

    return [e for e in ir.loop_invariant(loop, varies) if e.args and e.dtype.kind == "float"]


_UNROLL_MAX_OPS = 32  # operations of a loop body worth unrolling for loads in flight


def is_load_bound(loop: ir.For) -> bool:
    """Whether a loop does little but load, from a different address in every iteration."""
    if not all(isinstance(s, (ir.Let, ir.Set)) for s in loop.body) or loop.step.op != "const":
        return False
    found = ir.loads(loop.body)
    return (
        len(list(ir.body_expressions(loop.body))) <= _UNROLL_MAX_OPS
        and loop.step.attr > 0
        and any(e.attr.access == "read" for e in found)
        and all(loop.var in ir.walk(e.args[0], lambda e: True) for e in found)
    )


# -- tensor cores ---------------------------------------------------------------------------------


def wgmma_accumulators(kernel: ir.Kernel) -> set[ir.Register]:
    kinds = (ir.Wgmma, ir.WgmmaMainloop, ir.WgmmaTile)
    return {r for s in statements(kernel.body) if isinstance(s, kinds) for r in s.accumulators}


def mainloops(kernel: ir.Kernel) -> list[ir.WgmmaMainloop]:
    return [s for s in statements(kernel.body) if isinstance(s, ir.WgmmaMainloop)]


_METADATA_REGISTERS = 16  # of a thread: positions of four k tiles, and of the next


def mainloop_registers(kernel: ir.Kernel) -> int:
    """Registers of a thread in mainloops, of accumulators and metadata; 0 without."""

    def registers(s: ir.WgmmaMainloop) -> int:
        metadata = _METADATA_REGISTERS if s.metadata is not None else 0
        return len(s.accumulators) * (1 + promotes(s)) + metadata

    return max(map(registers, mainloops(kernel)), default=0)


def promotes(s: ir.WgmmaMainloop) -> bool:
    """Whether k tiles are accumulated apart and added in float32 (FP8)."""
    dtype = s.a.buffer.dtype
    return dtype.itemsize == 1 and dtype.kind == "float"


def tma_tensors(kernel: ir.Kernel) -> list[ir.TmaTensor]:
    """Tensors loaded by TMA, in the order of the kernel's parameters."""
    return [tensor for s in mainloops(kernel) for tensor in (s.a, s.b)]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Arguments of cuTensorMapEncodeTiled, or with corners of cuTensorMapEncodeIm2col; scalars that
    a launch fills in by name."""

    buffer: int
    itemsize: int
    round_to_tf32: bool
    extents: tuple[str | int, ...]
    strides: tuple[str | int, ...]  # in elements
    box: tuple[int, ...]  # with im2col, channels and pixels
    swizzle_bytes: int
    corners: tuple[int, ...] = ()  # the lower and the upper ones of im2col
    steps: tuple[int, ...] = (1, 1, 1)


def is_whole_program(kernel: ir.Kernel) -> bool:
    """Whether roles have registers of their own: ptxas ignores setmaxnreg in code for linking."""
    return any(isinstance(s, ir.WarpRoles) and s.registers for s in statements(kernel.body))


def tensor_maps(kernel: ir.Kernel) -> list[TensorMap]:
    def tensor_map(tensor: ir.TmaTensor) -> TensorMap:
        dtype, index = tensor.buffer.dtype, kernel.buffers.index(tensor.buffer)
        extents, strides = (tuple(e.attr for e in s) for s in (tensor.extents, tensor.strides))
        row = tensor.row_bytes // dtype.itemsize
        box: tuple[int, ...] = (row, tensor.tile_mn // tensor.sharing if tensor.k_major else row)
        i = tensor.im2col
        if i is not None:
            extents, strides = (tuple(e.attr for e in s) for s in (i.extents, i.strides))
            pixels = (box, tensor.row_bytes, (*i.lower, *i.upper), (1, *i.steps, 1))
            return TensorMap(index, dtype.itemsize, False, extents, strides, *pixels)
        about = (extents, strides, (*box, 1), tensor.row_bytes)
        return TensorMap(index, dtype.itemsize, dtype is dt.float32, *about)

    return [tensor_map(tensor) for tensor in tma_tensors(kernel)]


# -- registers and accesses -----------------------------------------------------------------------


def registers_of(s: ir.Stmt) -> list[ir.Register]:
    """Registers that a statement sets or reads, its body excluded."""
    found = [s.register] if isinstance(s, ir.Set) else []
    if isinstance(s, ir.MmaSync):
        found += s.accumulators
    for root in expressions_of(s):
        found += [e.attr for e in ir.walk(root, lambda e: True) if e.op == "read"]
    return found


def accesses(loop: ir.For) -> list[tuple[ir.Buffer, ir.Expr, bool]]:
    """(buffer, index, is masked) of every load and store of a body."""
    stores = [s for s in statements(loop.body) if isinstance(s, ir.Store)]
    found = [(s.buffer, s.index, s.mask is not None) for s in stores]
    return found + [(e.attr, e.args[0], len(e.args) > 1) for e in ir.loads(loop.body)]
