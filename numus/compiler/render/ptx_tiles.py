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
    """Everybody's copies are there, and the unit that multiplies sees them."""
    _asm(r, f"cp.async.wait_group {s.pending};", "~{memory}")
    _asm(r, "fence.proxy.async.shared::cta;", "~{memory}")
    r.barrier()


def copy(r: Renderer, s: ir.AsyncCopy) -> None:
    """Whole runs by the copy unit; what is cut off or not aligned element by element."""
    x, t = r.x, r.t
    dtype = s.source.dtype
    ty, size = memory_type(dtype), dtype.itemsize
    assert s.count * size == 16
    (to,) = ptx_memory.pointers(x, s.target, s.target_index)
    (frm,) = ptx_memory.pointers(x, s.source, s.source_index)
    limit = x.uniform(s.limit, "a copy's limit")
    space = x.spaces[s.source]
    address = t.new(f"ptrtoint {space} {frm} to i64")
    odd = t.new(f"and i64 {address}, 15")
    fits = t.new(f"icmp sge i64 {limit}, {s.count}")
    whole = t.new(f"and i1 {fits}, {t.new(f'icmp eq i64 {odd}, 0')}")
    quick, slow, done = t.label("copy"), t.label("pieces"), t.label("done")
    t.branch(whole, quick, slow)
    t.start(quick)
    near = t.new(f"ptrtoint {SHARED} {to} to i32")
    _asm(
        r,
        "cp.async.cg.shared.global [$0], [$1], 16;",
        "r,l,~{memory}",
        f"i32 {near}, i64 {address}",
    )
    t.jump(done)
    t.start(slow)
    for i in range(s.count):
        there = t.new(f"icmp sgt i64 {limit}, {i}")
        inside, join, before = t.label("load"), t.label("join"), t.block
        t.branch(there, inside, join)
        t.start(inside)
        p = t.new(f"getelementptr {ty}, {space} {frm}, i64 {i}")
        value = t.new(f"load {ty}, {space} {p}, align {size}")
        t.jump(join)
        t.start(join)
        value = t.new(f"phi {ty} [ 0, %{before} ], [ {value}, %{inside} ]")
        p = t.new(f"getelementptr {ty}, {SHARED} {to}, i64 {i}")
        t.do(f"store {ty} {value}, {SHARED} {p}, align {size}")
    t.jump(done)
    t.start(done)


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
    x, t = r.x, r.t
    count = len(s.sums)
    slots = [x.storage(register)[0] for register in s.sums]
    olds = [t.new(f"load float, ptr {slot}") for slot in slots]
    outputs = ",".join(["=f"] * count)
    tied = ",".join(str(i) for i in range(count))
    arguments = [f"float {name}" for name in olds]
    result = "{ " + ", ".join(["float"] * count) + " }"
    if s.wait:
        text, constraints = "wgmma.wait_group.sync.aligned 0;", f"{outputs},{tied}"
    else:
        dtype = s.left.buffer.dtype
        kind = "bf16" if dtype is dt.bfloat16 else "f16"
        half = 64 * s.depth * dtype.itemsize  # bytes of 64 rows
        a = _descriptor(r, s.left, half, s.depth)
        b = _descriptor(r, s.right, 0, s.depth)
        sums = ",".join(f"${i}" for i in range(count))
        lines = ["wgmma.fence.sync.aligned;"]
        descriptors: list[str] = []
        for step in range(s.depth // _STEP):
            names = []
            for operand, base in ((s.left, a), (s.right, b)):
                # along k within the rows, or on to other groups of rows
                away = step * _STEP * dtype.itemsize
                if not operand.along:
                    away = step * _STEP // 8 * _GROUP_OF_ROWS
                names.append(t.new(f"add i64 {base}, {away >> 4}") if step else base)
            at = 2 * count + len(descriptors)
            descriptors += names
            turned = ", ".join(str(int(not o.along)) for o in (s.left, s.right))
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{s.columns}k16.f32.{kind}.{kind} "
                f"{{{sums}}}, ${at}, ${at + 1}, 1, 1, 1, {turned};"
            )
        lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 1;"]
        text = " ".join(lines)
        constraints = ",".join([outputs, tied, *(["l"] * len(descriptors)), "~{memory}"])
        arguments += [f"i64 {name}" for name in descriptors]
    whole = t.new(f'call {result} asm sideeffect "{text}", "{constraints}"({", ".join(arguments)})')
    for i, slot in enumerate(slots):
        t.do(f"store float {t.new(f'extractvalue {result} {whole}, {i}')}, ptr {slot}")
    x.forget(s.sums)
