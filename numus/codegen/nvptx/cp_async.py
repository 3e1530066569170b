"""Asynchronous copies to shared memory (cp.async)."""

from __future__ import annotations

from numus import ir
from numus.codegen.nvptx import memory
from numus.codegen.nvptx.context import SHARED, KernelContext

_MIN_CAPABILITY = 80


def commit(r: KernelContext, s: ir.AsyncCommit) -> None:
    if r.capability >= _MIN_CAPABILITY:
        r.asm("cp.async.commit_group;", "~{memory}")


def wait(r: KernelContext, s: ir.AsyncWait) -> None:
    if r.capability >= _MIN_CAPABILITY:
        r.asm(f"cp.async.wait_group {s.pending};", "~{memory}")
    if s.fence:
        fence(r, s)
    r.barrier()


def fence(r: KernelContext, s: ir.AsyncFence | ir.AsyncWait) -> None:
    r.asm("fence.proxy.async.shared::cta;", "~{memory}")


def copy(r: KernelContext, s: ir.AsyncCopy) -> None:
    """Elements past `valid_elements` are zero-filled."""
    x, t = r.x, r.t
    (dst,) = memory.pointers(x, s.dst, s.dst_index)
    (src,) = memory.pointers(x, s.src, s.src_index)
    valid = x.uniform(s.valid_elements, "a copy's size")
    size = s.src.dtype.itemsize
    elements = s.nbytes // size
    smem = t.new(f"ptrtoint {SHARED} {dst} to i32")
    cache = "cg" if s.nbytes == 16 else "ca"  # 16-byte copies bypass L1
    text = f"cp.async.{cache}.shared.global [$0], [$1], {s.nbytes}"
    arguments = f"i32 {smem}, {x.spaces[s.src]} {src}"
    if valid == str(elements):
        r.asm(f"{text};", "r,l,~{memory}", arguments)
        return
    valid = t.call("i64", "llvm.smax.i64", ("i64", valid), ("i64", "0"))
    valid = t.call("i64", "llvm.smin.i64", ("i64", valid), ("i64", str(elements)))
    nbytes = t.new(f"trunc i64 {valid} to i32")
    nbytes = t.new(f"mul i32 {nbytes}, {size}")
    r.asm(f"{text}, $2;", "r,l,r,~{memory}", f"{arguments}, i32 {nbytes}")
