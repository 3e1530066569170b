"""Groups that are spread over several blocks: what the blocks of a group tell each other.

Blocks of a cluster write into each other's shared memory. Others post what they came to on a board
in device memory and wait there for the words of the others: they start in the order of their
numbers and those that have started get on, so all of a group are there in the end, if the device
has room for as many at a time. Either way every block comes to the same, in the order of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numus import ir
from numus.codegen.llvm.builder import memory_type, register_type
from numus.codegen.nvptx import warp
from numus.codegen.nvptx.warp import WARP, Merge, State
from numus.dtypes import DType
from numus.errors import CompileError

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

CLUSTERS_SINCE = 90
MOST_BLOCKS = 8  # of a cluster, on every device that has them
CLUSTER = "ptr addrspace(7)"
_THERE = 1 << 32  # a word carries 32 bits of a value, and this
_SCOPE = 'syncscope("device") monotonic, align 8'


def in_clusters(kernel: ir.Kernel) -> bool:
    return kernel.cluster_size > 1 and kernel.flags is None


def check(r: Renderer) -> None:
    """Say what cannot be written."""
    kernel = r.kernel
    if kernel.cluster_size == 1:
        return
    if kernel.cluster_size & (kernel.cluster_size - 1) or kernel.packed_blocks > 1:
        raise CompileError(f"groups are spread over 2, 4, 8 … blocks, not {kernel.cluster_size}")
    if in_clusters(kernel) and (r.capability < CLUSTERS_SINCE or kernel.cluster_size > MOST_BLOCKS):
        raise CompileError(f"sm_{r.capability} has no clusters of {kernel.cluster_size} blocks")
    if r.talking or any(b.access == "scratch" for b in kernel.buffers):
        raise CompileError("groups that are spread over blocks have no memory in common")


def arrive(r: Renderer) -> None:
    """Tell the cluster that this block is there: others may then write into its memory."""
    if in_clusters(r.kernel):
        r.t.call("void", "llvm.nvvm.barrier.cluster.arrive.relaxed.aligned")


def combined(r: Renderer, dtypes: Sequence[DType], state: State, merge: Merge) -> State:
    """What the blocks of a group come to, of what each of them has."""
    if r.kernel.cluster_size == 1:
        return state
    if r.in_loop:
        raise CompileError("groups that are spread over blocks meet outside of loops")
    if r.kernel.flags is None:
        parts = _through_cluster(r, dtypes, state)
    else:
        parts = _through_board(r, *r.kernel.flags, dtypes, state, merge)
    return warp.in_pairs(parts, merge)


# -- clusters -------------------------------------------------------------------------------------


def _through_cluster(r: Renderer, dtypes: Sequence[DType], state: State) -> list[State]:
    """Thread k of a block writes to block k; all read what has come to their own."""
    t, blocks = r.t, r.kernel.cluster_size
    places = [r.shared(f"[{blocks} x {memory_type(d)}]") for d in dtypes]
    if not r.met:
        r.met = True
        t.call("void", "llvm.nvvm.barrier.cluster.wait.aligned")
    writes, done = t.label("tell"), t.label("told")
    t.branch(t.new(f"icmp ult i32 {r.in_block}, {blocks}"), writes, done)
    t.start(writes)
    for place, d, name in zip(places, dtypes, state, strict=True):
        ty = memory_type(d)
        mine = t.new(f"getelementptr {ty}, ptr addrspace(3) {place}, i32 {r.rank}")
        there = t.call(
            *(CLUSTER, "llvm.nvvm.mapa.shared.cluster"),
            *(("ptr addrspace(3)", mine), ("i32", r.in_block)),
        )
        t.do(f"store {ty} {warp.in_memory(r, d, name)}, {CLUSTER} {there}")
    t.jump(done)
    t.start(done)
    t.call("void", "llvm.nvvm.barrier.cluster.arrive.aligned")
    t.call("void", "llvm.nvvm.barrier.cluster.wait.aligned")
    return warp.read(r, places, dtypes, blocks)


# -- boards ---------------------------------------------------------------------------------------


def _through_board(
    r: Renderer,
    board: ir.Buffer,
    words: int,
    dtypes: Sequence[DType],
    state: State,
    merge: Merge,
) -> list[State]:
    """The first thread of a block posts; a thread for each block waits for its words. What the
    warps of these come to is what all threads read."""
    t, blocks = r.t, r.kernel.cluster_size
    pieces = [x for d, name in zip(dtypes, state, strict=True) for x in _words(r, d, name)]
    first, r.posted = r.posted, r.posted + blocks * len(pieces)
    if r.posted > words or blocks > WARP * r.warps:
        raise CompileError(f"a board of {words} words is too small for kernel {r.kernel.name!r}")
    start = t.new(f"mul i64 {r.block}, {words}")
    start = t.new(f"add i64 {start}, {first}")
    base = t.new(f"getelementptr i64, ptr addrspace(1) {r.x.buffers[board]}, i64 {start}")
    posts, posted = t.label("post"), t.label("posted")
    t.branch(t.new(f"icmp eq i32 {r.in_block}, 0"), posts, posted)
    t.start(posts)
    for k, piece in enumerate(pieces):
        at = t.new(f"add i32 {r.rank}, {k * blocks}")
        place = t.new(f"getelementptr i64, ptr addrspace(1) {base}, i32 {at}")
        wide = t.new(f"or i64 {t.new(f'zext i32 {piece} to i64')}, {_THERE}")
        t.do(f"store atomic i64 {wide}, ptr addrspace(1) {place} {_SCOPE}")
    t.jump(posted)
    t.start(posted)
    whose = t.new(f"and i32 {r.in_block}, {blocks - 1}")  # of a warp with fewer blocks: again
    waiting = -(-blocks // WARP)  # warps
    places = [r.shared(f"[{waiting} x {memory_type(d)}]") for d in dtypes]
    waits, done = t.label("waits"), t.label("done")
    t.branch(t.new(f"icmp ult i32 {r.warp}, {waiting}"), waits, done)
    t.start(waits)
    found = []
    for k in range(len(pieces)):
        at = t.new(f"add i32 {whose}, {k * blocks}")
        place = t.new(f"getelementptr i64, ptr addrspace(1) {base}, i32 {at}")
        again, there = t.label("again"), t.label("there")
        t.jump(again)
        t.start(again)
        word = t.new(f"load atomic i64, ptr addrspace(1) {place} {_SCOPE}")
        t.branch(t.new(f"icmp eq i64 {word}, 0"), again, there)
        t.start(there)
        found.append(t.new(f"trunc i64 {word} to i32"))
    mine = []
    for d in dtypes:
        count = len(_halves(d))
        mine.append(_value(r, d, found[:count]))
        found = found[count:]
    mine = warp.within_warp(r, dtypes, mine, merge, min(blocks, WARP))
    warp.put(r, places, dtypes, mine, r.warp)
    t.jump(done)
    t.start(done)
    r.barrier()
    return warp.read(r, places, dtypes, waiting)


def words_of(dtypes: Sequence[DType]) -> int:
    """Words on a board that a state of these dtypes takes."""
    return sum(len(_halves(d)) for d in dtypes)


def _halves(dtype: DType) -> tuple[int, ...]:
    return (0, 1) if dtype.itemsize == 8 else (0,)


def _words(r: Renderer, dtype: DType, name: str) -> list[str]:
    """The bits of a value, 32 at a time."""
    t, ty = r.t, register_type(dtype)
    if dtype.itemsize == 8:
        bits = t.new(f"bitcast {ty} {name} to i64") if ty == "double" else name
        high = t.new(f"lshr i64 {bits}, 32")
        return [t.new(f"trunc i64 {x} to i32") for x in (bits, high)]
    if ty == "float":
        return [t.new(f"bitcast float {name} to i32")]
    return [name if ty == "i32" else t.new(f"zext {ty} {name} to i32")]


def _value(r: Renderer, dtype: DType, words: list[str]) -> str:
    t, ty = r.t, register_type(dtype)
    if dtype.itemsize == 8:
        low, high = (t.new(f"zext i32 {w} to i64") for w in words)
        whole = t.new(f"or i64 {low}, {t.new(f'shl i64 {high}, 32')}")
        return t.new(f"bitcast i64 {whole} to double") if ty == "double" else whole
    (word,) = words
    if ty == "i32":
        return word
    if ty == "float":
        return t.new(f"bitcast i32 {word} to float")
    return t.new(f"trunc i32 {word} to {ty}")
