"""Sparse warpgroup MMA (wgmma.mma_async.sp): A has two of every four elements along k, whose
positions are in registers.

An instruction takes 32 bytes of a row of A, which stand for 64 bytes of B. Of each 16 x 32 elements
that a warp has, the first two threads of every four hold the positions of 16 elements of rows t / 4
and t / 4 + 8, in the halves of a word: the first of them has the first 16 along k, the second the
others (PTX ISA, "Sparse matrix storage for wgmma"). Threads load the positions of two k tiles of
four at a time, which takes a quarter of the accesses, and an instruction names the pair of threads
whose positions it takes.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.codegen.nvptx.context import GLOBAL, KernelContext
from numus.codegen.nvptx.tensor_core.wgmma import Operands, Tile

_K_BYTES = 32  # of A, of one instruction; of B twice as many
_STEPS = ir.SPARSE_SWIZZLE_BYTES // _K_BYTES  # of a k tile
_TILE_BYTES = 8  # of positions, of a row of a k tile
GROUP = 4  # k tiles, of which a pair of threads loads two
_WORDS = GROUP // 2 * _STEPS
_CORE_BYTES = 8 * ir.SWIZZLE_BYTES
_NAMES = {dt.bfloat16: "bf16", dt.float16: "f16"}
_EVEN, _ODD = 0x5410, 0x7632  # selectors of prmt: the low, or the high halves of two words


class MetadataLoader:
    """The positions of a thread's two rows, loaded a group of k tiles ahead. Each pair of threads
    loads half of a group."""

    def __init__(self, r: KernelContext, s: ir.WgmmaMainloop, k_tiles: str) -> None:
        t, x = r.t, r.x
        assert s.metadata is not None
        self.r, self.k_tiles, self.load_bytes = r, k_tiles, s.metadata.load_bytes
        self.buffer = x.buffers[s.metadata.buffer]
        rows = x.uniform(s.metadata.rows, "the rows of A")
        row_bytes = x.uniform(s.metadata.row_bytes, "the bytes of a row's positions")
        matrix = x.uniform(s.metadata.first_byte, "the first byte of a matrix")
        start = x.uniform(s.k_start, "the first k")
        first_byte = t.new(f"add i64 {matrix}, {t.new(f'lshr i64 {start}, 3')}")
        last = t.new(f"sub i64 {rows}, 1")
        warp, lane = (t.new(f"{op} i64 {r.thread}, {n}") for op, n in (("lshr", 5), ("and", 31)))
        own = t.new(f"add i64 {t.new(f'shl i64 {warp}, 4')}, {t.new(f'lshr i64 {lane}, 2')}")
        row = t.new(f"add i64 {x.uniform(s.a.mn_offset, 'a tile')}, {own}")
        self.offsets = []
        for down in (0, 8):  # past the end the last row again, whose products are with zeros
            at = t.new(f"add i64 {row}, {down}")
            at = t.call("i64", "llvm.umin.i64", ("i64", at), ("i64", last))
            at = t.new(f"mul i64 {at}, {row_bytes}")
            self.offsets.append(t.new(f"add i64 {at}, {first_byte}"))
        self.first_tile = t.new(f"and i64 {lane}, {GROUP // 2}")
        odd = t.new(f"trunc i64 {t.new(f'and i64 {lane}, 1')} to i1")
        self.selector = t.new(f"select i1 {odd}, i32 {_ODD}, i32 {_EVEN}")
        self.coming = [[t.alloca("i32") for _ in range(_WORDS)] for _ in range(2)]
        self.load("0")

    def load(self, group: str) -> None:
        """Words of two k tiles from k tile `group` (i64) on; past the end those of the last."""
        t = self.r.t
        tiles = self.load_bytes // _TILE_BYTES  # of a load
        last = t.new(f"sub i64 {self.k_tiles}, {tiles}")
        first = t.new(f"add i64 {group}, {self.first_tile}")
        count = tiles * _STEPS
        for part in range(0, _WORDS, count):
            at = t.new(f"add i64 {first}, {part // _STEPS}")
            at = t.call("i64", "llvm.smin.i64", ("i64", at), ("i64", last))
            at = t.call("i64", "llvm.smax.i64", ("i64", at), ("i64", "0"))
            byte = t.new(f"mul i64 {at}, {_TILE_BYTES}")
            for offset, slots in zip(self.offsets, self.coming, strict=True):
                to = t.new(f"add i64 {offset}, {byte}")
                p = t.new(f"getelementptr i8, {GLOBAL} {self.buffer}, i64 {to}")
                words = t.new(f"load <{count} x i32>, {GLOBAL} {p}, align {self.load_bytes}")
                for i, slot in enumerate(slots[part : part + count]):
                    word = t.new(f"extractelement <{count} x i32> {words}, i32 {i}")
                    t.do(f"store i32 {word}, ptr {slot}")

    def take(self, group: str) -> list[str]:
        """The words of two k tiles from `group` (i64) on, or of the two after those in the other
        threads of four; those of the next group are on their way."""
        t = self.r.t
        words = []
        for upper, lower in zip(*self.coming, strict=True):
            a, b = (t.new(f"load i32, ptr {slot}") for slot in (upper, lower))
            args = (("i32", a), ("i32", b), ("i32", self.selector))
            words.append(t.call("i32", "llvm.nvvm.prmt", *args))
        self.load(t.new(f"add i64 {group}, {GROUP}"))
        return words


def sparse_k_tile_mma(
    r: KernelContext, tiles: tuple[Tile, Tile], columns: int, count: int, words: list[str],
    place: int, accumulate: str | None,
) -> tuple[str, Operands]:  # fmt: skip
    """Assembly of the k tile at a place of a group into `count` accumulators, and its operands. An
    `accumulate` (an i64) of 0 overwrites the accumulators."""
    t = r.t
    (a, _, dtype), (b, k_major, _) = tiles
    names, kind = ",".join(f"${i}" for i in range(count)), _NAMES[dtype]
    lines, operands = ["wgmma.fence.sync.aligned;"], Operands()
    first = 2 * count  # operand, after accumulators out and in
    if accumulate is not None:
        lines.insert(0, f"{{ .reg .pred more; setp.ne.b64 more, ${first + 3 * _STEPS}, 0;")
    b_step = 2 * _K_BYTES if k_major else 2 * _K_BYTES // dtype.itemsize // 8 * _CORE_BYTES
    pair, own = divmod(place, GROUP // 2)  # threads of four that have its positions
    for step, word in enumerate(words[own * _STEPS : (own + 1) * _STEPS]):
        for base, nbytes in ((a, _K_BYTES), (b, b_step)):
            moved = t.new(f"add i64 {base}, {step * nbytes >> 4}") if step else base
            operands.append(("l", f"i64 {moved}"))
        operands.append(("r", f"i32 {word}"))
        at = first + 3 * step
        scale_d = "1" if step or accumulate is None else "more"
        lines.append(
            f"wgmma.mma_async.sp.sync.aligned.m64n{columns}k32.f32.{kind}.{kind} {{{names}}}, "
            f"${at}, ${at + 1}, ${at + 2}, {pair}, {scale_d}, 1, 1, 0, {int(not k_major)};"
        )
    lines.append("wgmma.commit_group.sync.aligned;")
    if accumulate is not None:
        lines.append("}")
        operands.append(("l", f"i64 {accumulate}"))
    return " ".join(lines), operands
