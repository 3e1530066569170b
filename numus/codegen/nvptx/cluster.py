"""Clusters of CTAs: blocks that read each other's shared memory (`Kernel.cluster_blocks`), and
reductions over the CTAs of a block that spans several (`Kernel.cluster_size`).

CTAs of a cluster read and write each other's shared memory, and what one stores in global memory
the others load after a barrier. Larger blocks exchange words through flags in global memory: CTAs
start in order and run on, so all of a block arrive if the device has room for as many at a time.
Either way every CTA reduces in the order of CTAs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from numus import ir
from numus.codegen.llvm.builder import SCALAR, memory_type
from numus.codegen.nvptx import analysis, memory, warp
from numus.codegen.nvptx.context import KernelContext
from numus.codegen.nvptx.warp import WARP, Merge, State
from numus.dtypes import DType
from numus.errors import CompileError

MIN_CAPABILITY = 90
MAX_CLUSTER_SIZE = 8  # portable limit
DISTRIBUTED_SHARED = "ptr addrspace(7)"
_VALID = 1 << 32  # a flag word has 32 bits of a value, and this
_RELAXED = 'syncscope("device") monotonic, align 8'


def is_cluster(kernel: ir.Kernel) -> bool:
    return kernel.cluster_size > 1 and kernel.flags is None


def gather(r: KernelContext, s: ir.ClusterGather) -> None:
    """Read the shared memory of all CTAs. None ends before the others have read its own."""
    t, x, blocks = r.t, r.x, r.kernel.cluster_blocks
    if r.x.lane is not None:
        raise CompileError("scratch of a cluster is gathered outside lanes loops")
    if _is_pushed(r.kernel, s):
        _push(r, s)
        return
    ty, start = memory_type(s.src.dtype), x.uniform(s.start, "where scratch of a cluster is")

    def copy(i: str) -> None:
        rank, at = (t.new(f"{op} i64 {i}, {s.count}") for op in ("udiv", "urem"))
        at = t.new(f"add i64 {at}, {start}")
        own = t.new(f"getelementptr {ty}, ptr addrspace(3) {x.buffers[s.src]}, i64 {at}")
        args = (("ptr addrspace(3)", own), ("i32", t.new(f"trunc i64 {rank} to i32")))
        remote = t.call(DISTRIBUTED_SHARED, "llvm.nvvm.mapa.shared.cluster", *args)
        value = t.new(f"load {ty}, {DISTRIBUTED_SHARED} {remote}")
        to = t.new(f"getelementptr {ty}, ptr addrspace(3) {x.buffers[s.dst]}, i64 {i}")
        t.do(f"store {ty} {value}, ptr addrspace(3) {to}")

    barrier(r)
    r.loop(r.thread, str(blocks * s.count), str(r.block_threads), copy)
    if s.in_turns:
        r.barrier()
    else:
        barrier(r)


def _is_pushed(kernel: ir.Kernel, gather: ir.ClusterGather) -> bool:
    """The only exchange of a kernel, outside its loops."""
    found = [s for s in ir.statements(kernel.body) if isinstance(s, ir.ClusterGather)]
    grid = kernel.body[0]
    once = isinstance(grid, ir.For) and any(s is gather for s in grid.body)
    return found == [gather] and once and not gather.in_turns


def _push(r: KernelContext, s: ir.ClusterGather) -> None:
    """Write to the shared memory of all CTAs, which have begun (`arrive`): one barrier, and no
    round trips. Nobody reads another's, so a CTA may end before they do."""
    t, x = r.t, r.x
    ty, start = memory_type(s.src.dtype), x.uniform(s.start, "where scratch of a cluster is")
    rank = t.new(f"zext i32 {r.special_register('cluster.ctarank')} to i64")
    first = t.new(f"mul i64 {rank}, {s.count}")

    def copy(i: str) -> None:
        at = t.new(f"add i64 {start}, {i}")
        own = t.new(f"getelementptr {ty}, ptr addrspace(3) {x.buffers[s.src]}, i64 {at}")
        value = t.new(f"load {ty}, ptr addrspace(3) {own}")
        place = t.new(f"add i64 {first}, {i}")
        to = t.new(f"getelementptr {ty}, ptr addrspace(3) {x.buffers[s.dst]}, i64 {place}")
        for other in range(r.kernel.cluster_blocks):
            args = (("ptr addrspace(3)", to), ("i32", str(other)))
            remote = t.call(DISTRIBUTED_SHARED, "llvm.nvvm.mapa.shared.cluster", *args)
            t.do(f"store {ty} {value}, {DISTRIBUTED_SHARED} {remote}")

    r.barrier()
    _wait(r)
    r.loop(r.thread, str(s.count), str(r.block_threads), copy)
    barrier(r)


def store(r: KernelContext, s: ir.ClusterStore) -> None:
    """To distributed shared memory: nobody waits for it but at a barrier."""
    t, x = r.t, r.x
    rank = t.new(f"trunc i64 {x.uniform(s.rank, 'a block of a cluster')} to i32")
    (own,) = memory.pointers(x, s.buffer, s.index)
    args = (("ptr addrspace(3)", own), ("i32", rank))
    remote = t.call(DISTRIBUTED_SHARED, "llvm.nvvm.mapa.shared.cluster", *args)
    ty = memory_type(s.buffer.dtype)
    value = t.to_memory(SCALAR, s.buffer.dtype, x.uniform(s.value, "a value"))
    t.do(f"store {ty} {value}, {DISTRIBUTED_SHARED} {remote}")


def wait_for_blocks(r: KernelContext, s: ir.ClusterBarrier) -> None:
    if s.begun:
        _wait(r)
    else:
        barrier(r)


def check(r: KernelContext) -> None:
    """Raise for kernels that cannot be rendered."""
    kernel = r.kernel
    if kernel.cluster_blocks > 1 and (
        r.capability < MIN_CAPABILITY
        or kernel.cluster_blocks > MAX_CLUSTER_SIZE
        or kernel.cluster_size * kernel.packed_blocks > 1
        or (kernel.persistent and not any(t.sharing > 1 for t in analysis.tma_tensors(kernel)))
    ):
        raise CompileError(
            f"sm_{r.capability} has no clusters of {kernel.cluster_blocks} blocks of this kind"
        )
    size = kernel.cluster_size
    if size == 1:
        return
    if size & (size - 1) or kernel.packed_blocks > 1:
        raise CompileError(f"cluster_size={size} must be a power of two, of unpacked blocks")
    if is_cluster(kernel) and (r.capability < MIN_CAPABILITY or size > MAX_CLUSTER_SIZE):
        raise CompileError(f"sm_{r.capability} has no clusters of {size} CTAs")
    shares = r.cross_thread and not is_cluster(kernel)
    if shares or any(b.access == "scratch" for b in kernel.buffers):
        raise CompileError(f"kernel {kernel.name!r} of {size} CTAs must not use shared memory")


def arrive(r: KernelContext) -> None:
    """Arrive at the cluster barrier: this CTA's shared memory may be written to."""
    inner = list(ir.statements(r.kernel.body))
    gathers = (s for s in inner if isinstance(s, ir.ClusterGather))
    begun = any(isinstance(s, ir.ClusterBarrier) and s.begun for s in inner)
    if begun or any(_is_pushed(r.kernel, s) for s in gathers):
        r.t.call("void", "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned")
    if is_cluster(r.kernel):
        r.t.call("void", "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned")
        if r.cross_thread:  # barriers follow, maybe in loops
            _wait(r)


def arrive_again(r: KernelContext) -> None:
    """In a loop: others may write what a reduction of the previous iteration was read from."""
    if is_cluster(r.kernel) and r.loop_depth > 0:
        if not r.cluster_waited:
            raise CompileError("reductions over several CTAs must be outside loops")
        r.t.call("void", "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned")
        r.cluster_waited = False


def _wait(r: KernelContext) -> None:
    if not r.cluster_waited:
        r.cluster_waited = True
        r.t.call("void", "llvm.nvvm.barrier.cluster.wait.aligned")


def barrier(r: KernelContext) -> None:
    """A barrier of all CTAs, which orders accesses to global memory."""
    r.t.call("void", "llvm.nvvm.barrier.cluster.arrive.aligned")
    r.t.call("void", "llvm.nvvm.barrier.cluster.wait.aligned")


def reduce(r: KernelContext, dtypes: Sequence[DType], state: State, merge: Merge) -> State:
    """Reduce the states of a block's CTAs."""
    if r.kernel.cluster_size == 1:
        return state
    if r.kernel.flags is None:
        states = _exchange_shared(r, dtypes, state)
    elif r.loop_depth > 0:
        raise CompileError("reductions over several CTAs must be outside loops")
    else:
        states = _exchange_flags(r, dtypes, state, merge)
    return warp.tree_reduce(states, merge)


def _exchange_shared(r: KernelContext, dtypes: Sequence[DType], state: State) -> list[State]:
    """Thread k of a CTA writes to CTA k's shared memory; all read their own CTA's."""
    t, size = r.t, r.kernel.cluster_size
    arrays = [r.shared(f"[{size} x {memory_type(d)}]") for d in dtypes]
    _wait(r)
    with t.conditional(t.new(f"icmp ult i32 {r.cta_thread}, {size}"), "write"):
        for array, d, name in zip(arrays, dtypes, state, strict=True):
            ty = memory_type(d)
            own = t.new(f"getelementptr {ty}, ptr addrspace(3) {array}, i32 {r.cta_rank}")
            args = (("ptr addrspace(3)", own), ("i32", r.cta_thread))
            remote = t.call(DISTRIBUTED_SHARED, "llvm.nvvm.mapa.shared.cluster", *args)
            t.do(f"store {ty} {t.to_memory(SCALAR, d, name)}, {DISTRIBUTED_SHARED} {remote}")
    barrier(r)
    return warp.load_states(t, arrays, dtypes, size)


def _exchange_flags(
    r: KernelContext, dtypes: Sequence[DType], state: State, merge: Merge
) -> list[State]:
    """The first thread of a CTA sets its flags; a thread per CTA spins on them. Their warps' totals
    are read by all threads."""
    assert r.kernel.flags is not None
    t, size, (flags, words_per_block) = r.t, r.kernel.cluster_size, r.kernel.flags
    words = [w for d, name in zip(dtypes, state, strict=True) for w in warp.to_words(t, d, name)]
    first, r.flags_used = r.flags_used, r.flags_used + size * len(words)
    if r.flags_used > words_per_block or size > WARP * r.warps:
        raise CompileError(
            f"kernel {r.kernel.name!r}: {words_per_block} flag words per block are too few"
        )
    start = t.new(f"mul i64 {r.block}, {words_per_block}")
    start = t.new(f"add i64 {start}, {first}")
    base = t.new(f"getelementptr i64, ptr addrspace(1) {r.x.buffers[flags]}, i64 {start}")
    with t.conditional(t.new(f"icmp eq i32 {r.cta_thread}, 0"), "set"):
        for k, word in enumerate(words):
            index = t.new(f"add i32 {r.cta_rank}, {k * size}")
            pointer = t.new(f"getelementptr i64, ptr addrspace(1) {base}, i32 {index}")
            flag = t.new(f"or i64 {t.new(f'zext i32 {word} to i64')}, {_VALID}")
            t.do(f"store atomic i64 {flag}, ptr addrspace(1) {pointer} {_RELAXED}")
    rank = t.new(f"and i32 {r.cta_thread}, {size - 1}")  # wraps around in a partial warp
    waiting_warps = -(-size // WARP)
    arrays = [r.shared(f"[{waiting_warps} x {memory_type(d)}]") for d in dtypes]
    with t.conditional(t.new(f"icmp ult i32 {r.warp}, {waiting_warps}"), "waits"):
        found = []
        for k in range(len(words)):
            index = t.new(f"add i32 {rank}, {k * size}")
            pointer = t.new(f"getelementptr i64, ptr addrspace(1) {base}, i32 {index}")
            again, valid = t.label("again"), t.label("valid")
            t.jump(again)
            t.start(again)
            word = t.new(f"load atomic i64, ptr addrspace(1) {pointer} {_RELAXED}")
            t.branch(t.new(f"icmp eq i64 {word}, 0"), again, valid)
            t.start(valid)
            found.append(t.new(f"trunc i64 {word} to i32"))
        rest = iter(found)
        parts = [list(itertools.islice(rest, flag_words([d]))) for d in dtypes]
        own = [warp.from_words(t, d, part) for d, part in zip(dtypes, parts, strict=True)]
        own = warp.warp_reduce(t, r.lane, dtypes, own, merge, min(size, WARP))
        warp.store_state(t, arrays, dtypes, own, r.warp)
    r.barrier()
    return warp.load_states(t, arrays, dtypes, waiting_warps)


def flag_words(dtypes: Sequence[DType]) -> int:
    """Flag words of one state."""
    return sum(2 if d.itemsize == 8 else 1 for d in dtypes)
