"""Tile products and copies that go on by themselves, as Hopper has them: wgmma and cp.async.

Tiles lie in shared memory in rows of 128 bytes whose runs of 16 bytes are exchanged by the row's
number, which is how wgmma avoids conflicts between banks (`ir.tile_place`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.render import ptx_memory
from numus.compiler.render.llvm_text import memory_type

if TYPE_CHECKING:
    from numus.compiler.render.ptx import Renderer

SHARED = ptx_memory.SHARED
_STEP = 16  # of k that one instruction multiplies
_SWIZZLE_128 = 1 << 62
_GROUP_OF_ROWS = 1024  # bytes of 8 rows


def _asm(r: Renderer, text: str, constraints: str = "", arguments: str = "") -> None:
    r.t.do(f'call void asm sideeffect "{text}", "{constraints}"({arguments})')


def commit(r: Renderer) -> None:
    _asm(r, "cp.async.commit_group;", "~{memory}")


def wait(r: Renderer, s: ir.AsyncWait) -> None:
    """Everybody's copies are there."""
    _asm(r, f"cp.async.wait_group {s.pending};", "~{memory}")
    r.barrier()


def fence(r: Renderer) -> None:
    _asm(r, "fence.proxy.async.shared::cta;", "~{memory}")


def copy(r: Renderer, s: ir.AsyncCopy) -> None:
    """16 bytes; fewer are read where the run is cut off, and zeros fill the rest."""
    x, t = r.x, r.t
    (to,) = ptx_memory.pointers(x, s.target, s.target_index)
    (frm,) = ptx_memory.pointers(x, s.source, s.source_index)
    limit = x.uniform(s.limit, "a copy's limit")
    size = s.source.dtype.itemsize
    near = t.new(f"ptrtoint {SHARED} {to} to i32")
    if limit == str(16 // size):
        _asm(
            r,
            "cp.async.cg.shared.global [$0], [$1], 16;",
            "r,l,~{memory}",
            f"i32 {near}, {x.spaces[s.source]} {frm}",
        )
        return
    limit = t.call("i64", "llvm.smax.i64", ("i64", limit), ("i64", "0"))
    limit = t.call("i64", "llvm.smin.i64", ("i64", limit), ("i64", str(16 // size)))
    nbytes = t.new(f"trunc i64 {limit} to i32")
    nbytes = t.new(f"mul i32 {nbytes}, {size}")
    _asm(
        r,
        "cp.async.cg.shared.global [$0], [$1], 16, $2;",
        "r,l,r,~{memory}",
        f"i32 {near}, {x.spaces[s.source]} {frm}, i32 {nbytes}",
    )


def _descriptor(r: Renderer, operand: ir.TileOperand, rows: int, depth: int) -> str:
    """How wgmma finds a tile: address, distances of its blocks, and the exchange of runs."""
    t = r.t
    where = r.x.uniform(operand.start, "a tile's place")
    ty = memory_type(operand.buffer.dtype)
    p = t.new(f"getelementptr {ty}, {SHARED} {r.x.buffers[operand.buffer]}, i64 {where}")
    address = t.new(f"ptrtoint {SHARED} {p} to i64")
    if rows:  # the rows of this thread's warp group
        address = t.new(f"add i64 {address}, {t.new(f'mul i64 {r.warp_group}, {rows}')}")
    bits = t.new(f"and i64 {address}, {(1 << 18) - 1}")
    bits = t.new(f"lshr i64 {bits}, 4")
    block = 64 * depth * operand.buffer.dtype.itemsize  # bytes of 64 lines across k
    leading = 1 if operand.along else block >> 4
    return t.new(f"or i64 {bits}, {leading << 16 | (_GROUP_OF_ROWS >> 4) << 32 | _SWIZZLE_128}")


def product(r: Renderer, s: ir.TileProduct) -> None:
    t = r.t
    count = len(s.sums)
    dtype = s.left.buffer.dtype
    kind = "bf16" if dtype is dt.bfloat16 else "f16"
    a = _descriptor(r, s.left, 64 * s.depth * dtype.itemsize, s.depth)
    b = _descriptor(r, s.right, 0, s.depth)
    sums = ",".join(f"${i}" for i in range(count))
    lines = ["wgmma.fence.sync.aligned;"]
    descriptors: list[str] = []
    turned = ", ".join(str(int(not o.along)) for o in (s.left, s.right))
    for step in range(s.depth // _STEP):
        at = 2 * count + len(descriptors)
        for operand, base in ((s.left, a), (s.right, b)):
            # along k within the rows, or on to other groups of rows
            away = step * _STEP * dtype.itemsize
            if not operand.along:
                away = step * _STEP // 8 * _GROUP_OF_ROWS
            descriptors.append(t.new(f"add i64 {base}, {away >> 4}") if step else base)
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{s.columns}k16.f32.{kind}.{kind} "
            f"{{{sums}}}, ${at}, ${at + 1}, 1, 1, 1, {turned};"
        )
    lines.append("wgmma.commit_group.sync.aligned;")
    _with_sums(r, s.sums, " ".join(lines), descriptors)


def wait_products(r: Renderer, s: ir.TileWait) -> None:
    _with_sums(r, s.sums, f"wgmma.wait_group.sync.aligned {s.pending};", [])


def _with_sums(r: Renderer, sums: list[ir.Register], text: str, others: list[str]) -> None:
    """Assembly that reads and writes the sums, which LLVM must not touch meanwhile."""
    x, t = r.x, r.t
    count = len(sums)
    slots = [x.storage(register)[0] for register in sums]
    olds = [t.new(f"load float, ptr {slot}") for slot in slots]
    constraints = ["=f"] * count + [str(i) for i in range(count)] + ["l"] * len(others)
    arguments = [f"float {name}" for name in olds] + [f"i64 {name}" for name in others]
    result = "{ " + ", ".join(["float"] * count) + " }"
    whole = t.new(
        f'call {result} asm sideeffect "{text}", "{",".join([*constraints, "~{memory}"])}"'
        f"({', '.join(arguments)})"
    )
    for i, slot in enumerate(slots):
        t.do(f"store float {t.new(f'extractvalue {result} {whole}, {i}')}, ptr {slot}")
    x.forget(sums)
