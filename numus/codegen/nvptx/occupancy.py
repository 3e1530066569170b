"""How much a thread of a GPU does at a time, and how many registers it may have for that."""

from __future__ import annotations

from numus import ir
from numus.codegen.llvm.divergence import LaneStrides
from numus.codegen.nvptx import analysis, tma_pipeline
from numus.ir import statements

ACCESS = 16  # bytes of the widest access
# Bodies with more operations than these are written for several vectors at a time no more, for
# single vectors no more: their arithmetic hides the latency of memory, and code grows.
_FOUR, _TWO, _VECTORS = 40, 90, 1600
_OF_A_MAP = 2  # vectors at a time where nothing is added up: reading and writing share the memory
_FOR_HELD = 24  # registers of a thread besides those that hold its part of a row
# Bytes that are on their way to a multiprocessor, at least: enough to hide how long they take.
_ON_THE_WAY = 48 << 10
_THREADS = 1536  # that wait by turns at most: more of them would have too few registers
_MANY = 64  # registers with lanes, in words
_OTHERS = 64  # that threads need besides
_REGISTERS, _SHARED = 1 << 16, 228 << 10  # of a multiprocessor: registers, bytes (at most)


def share(kernel: ir.Kernel, threads: int) -> str:
    """The attribute by which threads that keep many values in registers leave room for other groups
    of them, if they do not need all there is; nothing where they may have what they like."""
    inside = list(statements(kernel.body))
    if any(isinstance(s, ir.SpinWait) for s in inside):
        tallying = any(isinstance(s, ir.WarpMultisplit) for s in inside)
        return f'"nvvm.minctasm"="{3 if tallying else 4}"'
    if analysis.held_words(kernel):
        groups, _ = held(kernel, threads)
        return f'"nvvm.minctasm"="{groups}"' if groups > 1 else ""
    if 0 < tma_pipeline.registers(kernel) <= tma_pipeline.SHARED_SUMS:
        return '"nvvm.minctasm"="2"'
    if kernel.persistent:
        return '"nvvm.minctasm"="1"'  # without which registers do not change hands
    sums = analysis.tile_sums(kernel)
    if any(isinstance(s, ir.Wgmma) and isinstance(s.a, list) for s in inside):
        groups = _REGISTERS // (threads * (len(sums) + _OTHERS))
        return f'"nvvm.minctasm"="{groups}"' if groups > 1 else ""
    registers = {r for s in inside for r in analysis.registers_of(s) if r.lanes} - sums
    words = sum(max(1, r.dtype.itemsize // 4) for r in registers)
    lets = [s for s in inside if isinstance(s, ir.Let)]
    if any(s.early for s in lets):  # takes registers that the assembler saves if it is not told
        words = max(words, _MANY)
    groups = _REGISTERS // (threads * (words + _OTHERS))
    near, _ = analysis.shared_by_size(kernel)
    groups = min(groups, _SHARED // max(near, 1))
    many = words >= _MANY or any(s.vector for s in lets)
    return f'"nvvm.minctasm"="{groups}"' if many and groups > 1 else ""


def held(kernel: ir.Kernel, threads: int) -> tuple[int, bool]:
    """(groups that keep rows at a time, whether what they read besides them is all under way before
    anything is computed of it). One register too few costs more than the latency that is hidden."""
    kept, besides = analysis.held_words(kernel), analysis.words_besides(kernel)
    enough = max(2, -(-_ON_THE_WAY // (threads * analysis.read_at_once(kernel))))
    groups = _groups(kept + besides + _FOR_HELD, threads)
    if besides and groups >= enough:
        return groups, True
    return _groups(kept + _FOR_HELD, threads), False


def _groups(registers: int, threads: int) -> int:
    """How many groups have room whose threads need so many registers: these are given in eights, to
    warps, of which each of 4 schedulers has a quarter."""
    warps = 4 * (_REGISTERS // (4 * 32 * (-(-registers // 8) * 8)))
    return min(warps, _THREADS // 32) // (threads // 32)


def shape(loop: ir.For, size: int) -> tuple[int, int]:
    """(vectors at a time, elements of a vector) of a lanes loop with so many operations."""
    if loop.step.op != "const" or loop.step.attr != 1 or size > _VECTORS:
        return 1, 1
    if any(
        isinstance(x, (ir.For, ir.If, ir.WarpMultisplit, ir.SetFlag, ir.SpinWait))
        for x in loop.body
    ):
        return 1, 1
    accesses = analysis.accesses(loop)
    if any(mask for *_, mask in accesses):
        return 1, 1
    growths = LaneStrides(loop.var, loop.step)
    sizes = [b.dtype.itemsize for b, index, _ in accesses if growths.of(index) == 1]
    if not sizes:
        return 1, 1
    width = min(8, ACCESS // max(sizes))
    many = 4 if size <= _FOUR else 2 if size <= _TWO else 1
    if not any(isinstance(x, ir.Set) for x in loop.body):
        many = min(many, _OF_A_MAP)
    return min(many, max(1, 16 // width)), width
