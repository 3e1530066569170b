"""Products of tiles of every dtype that Hopper's units take: what wgmma is told.

A tile has lines of TILE_BYTES (`ir.tile_place`); what is multiplied at a time is one line deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import register_type
from numus.codegen.nvptx import memory
from numus.dtypes import DType

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

SHARED = memory.SHARED
_STEP = 32  # bytes of k that one instruction multiplies
_SWIZZLE_128 = 1 << 62
_GROUP_OF_ROWS = 1024  # bytes of 8 rows
WORKERS = 256  # threads that multiply; others are beside them


def asm(r: Renderer, text: str, constraints: str = "", arguments: str = "") -> None:
    r.t.do(f'call void asm sideeffect "{text}", "{constraints}"({arguments})')


def layout_bits(along: bool, depth: int) -> int:
    """What a descriptor tells besides the address: distances of blocks and groups of rows."""
    leading = 1 if along else ir.SWIZZLE_BYTES * depth >> 4
    return leading << 16 | (_GROUP_OF_ROWS >> 4) << 32 | _SWIZZLE_128


@dataclass(frozen=True, slots=True)
class Unit:
    """How wgmma takes a dtype."""

    name: str
    sums: str = "f32"
    turns: bool = False  # whether it reads tiles whose neighbours lie across k

    def instruction(self, other: Unit, columns: int, itemsize: int) -> str:
        shape = f"m64n{columns}k{_STEP // itemsize}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.sums}.{self.name}.{other.name}"


Tile = tuple[str, bool, DType]  # a descriptor, whether neighbours lie along k, and the dtype

UNITS = {
    dt.bfloat16: Unit("bf16", turns=True),
    dt.float16: Unit("f16", turns=True),
    dt.float32: Unit("tf32"),
    dt.float8_e4m3fn: Unit("e4m3"),
    dt.float8_e5m2: Unit("e5m2"),
    dt.int8: Unit("s8", "s32"),
    dt.uint8: Unit("u8", "s32"),
}


def multiply(
    r: Renderer,
    tiles: tuple[Tile, Tile],
    columns: int,
    sums: str,
    at: int,
    fresh: bool = False,
    onto: str | None = None,
) -> tuple[str, list[str]]:
    """Assembly that multiplies two tiles of one line of TILE_BYTES along k, and the descriptors
    that it takes as its operands from number `at` on. `fresh` sums are overwritten, and so are
    others where `onto` (an i64, the last operand) is 0."""
    t = r.t
    left, right = (UNITS[dtype] for *_, dtype in tiles)
    lines = ["wgmma.fence.sync.aligned;"]
    steps = ir.SWIZZLE_BYTES // _STEP
    if fresh:
        lines.insert(0, "{ .reg .pred more; setp.ne.b32 more, 0, 0;")
    elif onto is not None:
        lines.insert(0, f"{{ .reg .pred more; setp.ne.b64 more, ${at + 2 * steps}, 0;")
    descriptors: list[str] = []
    instruction = left.instruction(right, columns, tiles[0][2].itemsize)
    turned = ", ".join(str(int(not along)) for _, along, _ in tiles)
    for step in range(steps):
        for base, along, dtype in tiles:
            # along k within the rows, or on to other groups of rows
            away = step * _STEP
            if not along:
                away = step * (_STEP // dtype.itemsize) // 8 * _GROUP_OF_ROWS
            descriptors.append(t.new(f"add i64 {base}, {away >> 4}") if step else base)
        adds = "1" if step or not (fresh or onto) else "more"
        signs = "" if left.sums == "s32" else ", 1, 1"
        turns = f", {turned}" if left.turns else ""
        pair = f"${at + 2 * step}, ${at + 2 * step + 1}"
        lines.append(f"{instruction} {{{sums}}}, {pair}, {adds}{signs}{turns};")
    lines.append("wgmma.commit_group.sync.aligned;")
    if fresh or onto:
        lines.append("}")
    return " ".join(lines), [*descriptors, onto] if onto else descriptors


def share(rows: int, columns: int, along: bool, itemsize: int) -> tuple[int, tuple[int, int]]:
    """How many columns every 128 threads multiply, and by how many bytes what they read of A and B
    lies behind what those before them read: 64 rows are all of them, or the columns are halved."""
    if rows > 64:
        return columns, (64 * ir.SWIZZLE_BYTES, 0)
    half = columns // 2
    in_line = not along and half * itemsize < ir.SWIZZLE_BYTES
    return half, (0, half * (itemsize if in_line else ir.SWIZZLE_BYTES))


def slice_product(r: Renderer, s: ir.WgmmaTile) -> None:
    """Of two tiles that threads have filled, by those of them that multiply."""
    t, x = r.t, r.x
    mine, done = t.label("mine"), t.label("done")
    t.branch(t.new(f"icmp ult i32 {r.warp}, {WORKERS // 32}"), mine, done)
    t.start(mine)
    x.push("branch")
    base = t.new(f"ptrtoint {SHARED} {x.buffers[s.scratch]} to i64")
    dtype = s.scratch.dtype
    columns, away = share(s.m, s.n, s.k_major[1], dtype.itemsize)
    places = (base, t.new(f"add i64 {base}, {s.m * ir.SWIZZLE_BYTES}"))
    depth = ir.SWIZZLE_BYTES // dtype.itemsize
    tiles = []
    for place, own, along in zip(places, away, s.k_major, strict=True):
        address = t.new(f"add i64 {place}, {t.new(f'mul i64 {r.warp_group}, {own}')}")
        bits = t.new(f"lshr i64 {t.new(f'and i64 {address}, {(1 << 18) - 1}')}, 4")
        tiles.append((t.new(f"or i64 {bits}, {layout_bits(along, depth)}"), along, dtype))
    count = len(s.accumulators)
    names = ",".join(f"${i}" for i in range(count))
    onto = None if s.accumulate is None else x.uniform(s.accumulate, "the number of a slice")
    text, descriptors = multiply(r, (tiles[0], tiles[1]), columns, names, 2 * count, onto=onto)
    with_sums(r, s.accumulators, f"{text} wgmma.wait_group.sync.aligned 0;", descriptors)
    x.pop()
    t.jump(done)
    t.start(done)


def with_sums(r: Renderer, sums: list[ir.Register], text: str, others: list[str]) -> None:
    """Assembly that reads and writes the sums, which LLVM must not touch meanwhile."""
    x, t = r.x, r.t
    count = len(sums)
    slots = [x.storage(register)[0] for register in sums]
    ty = register_type(sums[0].dtype)
    kind = "=f" if ty == "float" else "=r"
    olds = [t.new(f"load {ty}, ptr {slot}") for slot in slots]
    constraints = [kind] * count + [str(i) for i in range(count)] + ["l"] * len(others)
    arguments = [f"{ty} {name}" for name in olds] + [f"i64 {name}" for name in others]
    result = "{ " + ", ".join([ty] * count) + " }"
    whole = t.new(
        f'call {result} asm sideeffect "{text}", "{",".join([*constraints, "~{memory}"])}"'
        f"({', '.join(arguments)})"
    )
    for i, slot in enumerate(slots):
        t.do(f"store {ty} {t.new(f'extractvalue {result} {whole}, {i}')}, ptr {slot}")
    x.forget(sums)
