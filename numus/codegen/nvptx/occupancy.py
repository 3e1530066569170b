"""Occupancy: vectors per thread, and minimum CTAs per SM (which bounds registers per thread)."""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.codegen.llvm.divergence import LaneStrides
from numus.codegen.nvptx import analysis
from numus.codegen.nvptx.context import ACCESS_BYTES
from numus.codegen.nvptx.warp import WARP
from numus.ir import statements

_SM_REGISTERS = 1 << 16
_SM_SHARED_BYTES = 228 << 10


@dataclass(frozen=True, slots=True)
class OccupancyTuning:
    """Measured on one H200."""

    # Lanes loops up to this many operations handle four, two, or one vector at a time: arithmetic
    # of larger ones hides the latency of memory.
    four_vectors_max_ops: int = 40
    two_vectors_max_ops: int = 90
    vector_max_ops: int = 1600
    pointwise_max_vectors: int = 2  # loads and stores share the bandwidth
    resident_overhead_registers: int = 24  # of a thread, besides its part of a row
    in_flight_bytes: int = 48 << 10  # of an SM, to hide the latency of memory
    max_resident_threads: int = 1536  # of an SM; more would have too few registers
    many_lane_words: int = 64  # lane registers from which on occupancy is requested
    overhead_registers: int = 64  # of a thread, besides lane registers and accumulators
    two_cta_accumulators: int = 64  # up to this many, a mainloop leaves room for a second CTA
    warps_ctas: int = 2  # of warps by themselves, that hold vectors in flight
    early_threads: int = 512  # of an SM, that load vectors before earlier kernels end
    lookback_ctas: int = 4  # with spin-waits
    multisplit_lookback_ctas: int = 3


TUNING = OccupancyTuning()


def min_ctas(kernel: ir.Kernel, threads: int) -> int:
    """Minimum CTAs per SM to request; 0: unconstrained."""
    if kernel.resident_blocks:
        return kernel.resident_blocks
    inner = list(statements(kernel.body))
    if any(isinstance(s, ir.WarpRoles) for s in inner):
        return 1  # roles have all registers
    if any(isinstance(s, ir.SpinWait) for s in inner):
        multisplit = any(isinstance(s, ir.WarpMultisplit) for s in inner)
        return TUNING.multisplit_lookback_ctas if multisplit else TUNING.lookback_ctas
    if any(isinstance(s, ir.DependencyWait) and s.loads_before for s in inner):
        return max(1, TUNING.early_threads // threads)
    if analysis.resident_words(kernel):
        ctas, _ = resident_ctas(kernel, threads)
        return ctas if ctas > 1 else 0
    if 0 < analysis.mainloop_registers(kernel) <= TUNING.two_cta_accumulators:
        return 2
    if kernel.persistent:
        return 1  # required by setmaxnreg
    accumulators = analysis.wgmma_accumulators(kernel)
    if any(isinstance(s, ir.Wgmma) and isinstance(s.a, list) for s in inner):
        ctas = _SM_REGISTERS // (threads * (len(accumulators) + TUNING.overhead_registers))
        return ctas if ctas > 1 else 0
    registers = {r for s in inner for r in analysis.registers_of(s) if r.lanes} - accumulators
    words = sum(map(analysis.register_words, registers))
    lets = [s for s in inner if isinstance(s, ir.Let)]
    if kernel.packed_blocks > 1 and any(s.vector for s in lets):
        return TUNING.warps_ctas
    if any(s.early for s in lets):  # ptxas would sink early loads to save registers
        words = max(words, TUNING.many_lane_words)
    ctas = _SM_REGISTERS // (threads * (words + TUNING.overhead_registers))
    shared, _ = analysis.static_scratch(kernel)
    ctas = min(ctas, _SM_SHARED_BYTES // max(shared, 1))
    is_wide = words >= TUNING.many_lane_words or any(s.vector for s in lets)
    return ctas if is_wide and ctas > 1 else 0


def resident_ctas(kernel: ir.Kernel, threads: int) -> tuple[int, bool]:
    """(CTAs per SM of a register-resident kernel, whether transient loads are all issued before any
    use). A register too few costs more than the latency hidden."""
    resident, transient = analysis.resident_words(kernel), analysis.transient_words(kernel)
    in_flight = threads * analysis.first_load_bytes(kernel)
    enough = max(2, -(-TUNING.in_flight_bytes // in_flight))
    registers = resident + TUNING.resident_overhead_registers
    ctas = _ctas_per_sm(registers + transient, threads)
    if transient and ctas >= enough:
        return ctas, True
    return _ctas_per_sm(registers, threads), False


def _ctas_per_sm(registers: int, threads: int) -> int:
    """Registers are allocated by eights, to warps of 4 schedulers."""
    warps = 4 * (_SM_REGISTERS // (4 * WARP * (-(-registers // 8) * 8)))
    return min(warps, TUNING.max_resident_threads // WARP) // (threads // WARP)


def vectorization(loop: ir.For, ops: int) -> tuple[int, int]:
    """(vectors at a time, elements of a vector) of a thread in a lanes loop."""
    scalar_only = (*(ir.For, ir.If, ir.WarpMultisplit, ir.SetFlag, ir.SpinWait, ir.ClusterStore),)
    if loop.step.op != "const" or loop.step.attr != 1 or ops > TUNING.vector_max_ops:
        return 1, 1
    accesses, strides = analysis.accesses(loop), LaneStrides(loop.var, loop.step)
    sizes = [b.dtype.itemsize for b, index, _ in accesses if strides.of(index) == 1]
    has_masks = any(mask for *_, mask in accesses)
    if not sizes or has_masks or any(isinstance(x, scalar_only) for x in loop.body):
        return 1, 1
    width = min(8, ACCESS_BYTES // max(sizes))
    small, medium = TUNING.four_vectors_max_ops, TUNING.two_vectors_max_ops
    vectors = 4 if ops <= small else 2 if ops <= medium else 1
    if not any(isinstance(x, ir.Set) for x in loop.body):
        vectors = min(vectors, TUNING.pointwise_max_vectors)
    return min(vectors, max(1, 16 // width)), width
