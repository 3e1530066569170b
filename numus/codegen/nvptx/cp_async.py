"""Tile products and copies that go on by themselves, as Hopper has them: wgmma and cp.async.

Tiles lie in shared memory in rows of 128 bytes whose runs of 16 bytes are exchanged by the row's
number, which is how wgmma avoids conflicts between banks (`ir.tile_place`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import memory_type
from numus.codegen.nvptx import memory

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

SHARED = memory.SHARED
_STEP = 16  # of k that one instruction multiplies
_BLOCK = 64  # elements of a row: 128 bytes
_SWIZZLE_128 = 1 << 62
_GROUP_OF_ROWS = 1024  # bytes of 8 rows


def _asm(r: Renderer, text: str, constraints: str = "", arguments: str = "") -> None:
    r.t.do(f'call void asm sideeffect "{text}", "{constraints}"({arguments})')


def _copies(r: Renderer) -> bool:
    """Whether the device copies by itself."""
    return r.capability >= 80


def commit(r: Renderer, s: ir.AsyncCommit) -> None:
    if _copies(r):
        _asm(r, "cp.async.commit_group;", "~{memory}")


def wait(r: Renderer, s: ir.AsyncWait) -> None:
    """Everybody's copies are there."""
    if _copies(r):
        _asm(r, f"cp.async.wait_group {s.pending};", "~{memory}")
    if s.fence:
        fence(r, s)
    r.barrier()


def fence(r: Renderer, s: ir.AsyncFence | ir.AsyncWait) -> None:
    _asm(r, "fence.proxy.async.shared::cta;", "~{memory}")


def copy(r: Renderer, s: ir.AsyncCopy) -> None:
    """A run of bytes; fewer are read where it is cut off, and zeros fill the rest."""
    x, t = r.x, r.t
    (to,) = memory.pointers(x, s.dst, s.dst_index)
    (frm,) = memory.pointers(x, s.src, s.src_index)
    limit = x.uniform(s.valid_elements, "a copy's limit")
    size = s.src.dtype.itemsize
    most = s.nbytes // size
    near = t.new(f"ptrtoint {SHARED} {to} to i32")
    # whole lines go past the near cache
    way = f"cp.async.{'cg' if s.nbytes == 16 else 'ca'}.shared.global [$0], [$1], {s.nbytes}"
    given = f"i32 {near}, {x.spaces[s.src]} {frm}"
    if limit == str(most):
        _asm(r, f"{way};", "r,l,~{memory}", given)
        return
    limit = t.call("i64", "llvm.smax.i64", ("i64", limit), ("i64", "0"))
    limit = t.call("i64", "llvm.smin.i64", ("i64", limit), ("i64", str(most)))
    nbytes = t.new(f"trunc i64 {limit} to i32")
    nbytes = t.new(f"mul i32 {nbytes}, {size}")
    _asm(r, f"{way}, $2;", "r,l,r,~{memory}", f"{given}, i32 {nbytes}")


def _descriptor(r: Renderer, operand: ir.MmaOperand, depth: int, *, left: bool) -> str:
    """How wgmma finds a tile: address, distances of its blocks, and the exchange of runs."""
    t = r.t
    where = r.x.uniform(operand.offset, "a tile's place")
    size = operand.buffer.dtype.itemsize
    ty = memory_type(operand.buffer.dtype)
    p = t.new(f"getelementptr {ty}, {SHARED} {r.x.buffers[operand.buffer]}, i64 {where}")
    address = t.new(f"ptrtoint {SHARED} {p} to i64")
    block = 64 * depth * size  # bytes of 64 lines across k
    if left:  # the 64 rows of this thread's warp group
        rows = 64 * _BLOCK * size if operand.k_major else block
        address = t.new(f"add i64 {address}, {t.new(f'mul i64 {r.warp_group}, {rows}')}")
    bits = t.new(f"and i64 {address}, {(1 << 18) - 1}")
    bits = t.new(f"lshr i64 {bits}, 4")
    leading = 1 if operand.k_major else block >> 4
    return t.new(f"or i64 {bits}, {leading << 16 | (_GROUP_OF_ROWS >> 4) << 32 | _SWIZZLE_128}")


def _step(operand: ir.MmaOperand, step: int) -> int:
    """How many bytes the k of a step lie behind the first: in its rows, or in other rows."""
    size, k = operand.buffer.dtype.itemsize, step * _STEP
    if operand.k_major:
        return k // _BLOCK * operand.tile_mn * _BLOCK * size + k % _BLOCK * size
    return k // 8 * _GROUP_OF_ROWS


def product(r: Renderer, s: ir.Wgmma) -> None:
    t = r.t
    dtype = s.b.buffer.dtype
    kind = "bf16" if dtype is dt.bfloat16 else "f16"
    in_memory = isinstance(s.a, ir.MmaOperand)
    sides = [o for o in (s.a, s.b) if isinstance(o, ir.MmaOperand)]
    bases = [_descriptor(r, o, s.k, left=o is s.a) for o in sides]
    turned = ", ".join(str(int(not o.k_major)) for o in sides)
    sums = ",".join(f"${i}" for i in range(len(s.accumulators)))
    others: list[tuple[str, str]] = []  # what else the assembly is given: constraint, value
    first = len(s.accumulators) * (1 if s.zero_init else 2)
    words = [] if in_memory else _packed(r, s.a, kind)  # type: ignore[arg-type]
    lines = ["wgmma.fence.sync.aligned;"]
    for step in range(s.k // _STEP):
        at = first + len(others)
        names = [f"${at + i}" for i in range(len(sides))]
        for operand, base in zip(sides, bases, strict=True):
            away = _step(operand, step) >> 4
            others.append(("l", f"i64 {t.new(f'add i64 {base}, {away}') if away else base}"))
        if not in_memory:
            own = words[4 * step : 4 * step + 4]
            names.insert(0, "{" + ",".join(f"${at + 1 + i}" for i in range(4)) + "}")
            others += [("r", f"i32 {word}") for word in own]
        keeps = 0 if s.zero_init and step == 0 else 1
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{s.n}k16.f32.{kind}.{kind} "
            f"{{{sums}}}, {', '.join(names)}, {keeps}, 1, 1, {turned};"
        )
    lines.append("wgmma.commit_group.sync.aligned;")
    _with_sums(r, s.accumulators, " ".join(lines), others, fresh=s.zero_init)


def _packed(r: Renderer, registers: list[ir.Register], kind: str) -> list[str]:
    """Pairs of neighbours, rounded to 16 bits, in one register each: the lower one in its lower
    half."""
    t = r.t
    names = [t.new(f"load float, ptr {r.x.storage(register)[0]}") for register in registers]
    return [
        t.new(
            f'call i32 asm "cvt.rn.{kind}x2.f32 $0, $1, $2;", "=r,f,f"(float {high}, float {low})'
        )
        for low, high in zip(names[::2], names[1::2], strict=True)
    ]


def wait_products(r: Renderer, s: ir.WgmmaWait) -> None:
    _with_sums(r, s.accumulators, f"wgmma.wait_group.sync.aligned {s.pending};", [])


def _with_sums(
    r: Renderer,
    sums: list[ir.Register],
    text: str,
    others: list[tuple[str, str]],
    fresh: bool = False,
) -> None:
    """Assembly that reads (unless they are fresh) and writes the sums, which LLVM must not touch
    meanwhile."""
    x, t = r.x, r.t
    count = len(sums)
    slots = [x.storage(register)[0] for register in sums]
    olds = [] if fresh else [t.new(f"load float, ptr {slot}") for slot in slots]
    constraints = [*["=f"] * count, *map(str, range(len(olds))), *(c for c, _ in others)]
    arguments = [*(f"float {name}" for name in olds), *(value for _, value in others)]
    result = "{ " + ", ".join(["float"] * count) + " }"
    whole = t.new(
        f'call {result} asm sideeffect "{text}", "{",".join([*constraints, "~{memory}"])}"'
        f"({', '.join(arguments)})"
    )
    for i, slot in enumerate(slots):
        t.do(f"store float {t.new(f'extractvalue {result} {whole}, {i}')}, ptr {slot}")
    x.forget(sums)
