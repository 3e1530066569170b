"""Warpgroup MMA (wgmma) on tiles in shared memory with the 128-byte swizzle (`ir.swizzle`)."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import IRBuilder, memory_type, register_type
from numus.codegen.nvptx.context import SHARED, KernelContext
from numus.codegen.nvptx.pipeline_stages import CONSUMER_THREADS
from numus.dtypes import DType

_K_BYTES = 32  # of one instruction
_SWIZZLES = {128: 1 << 62, 64: 2 << 62}  # by bytes of a row
_CORE_ROWS = 8  # a row's bytes times these: stride byte offset
_CORE_BYTES = _CORE_ROWS * ir.SWIZZLE_BYTES
_BLOCK = 64  # 16-bit elements of a row
Operands = list[tuple[str, str]]  # (constraint, typed value)


def descriptor(
    t: IRBuilder, address: str, k_major: bool, tile_k: int, ty: str = "i64",
    row_bytes: int = ir.SWIZZLE_BYTES,
) -> str:  # fmt: skip
    """Matrix descriptor: address, leading and stride byte offsets, swizzle mode."""
    leading = 1 if k_major else ir.SWIZZLE_BYTES * tile_k >> 4
    layout = leading << 16 | (_CORE_ROWS * row_bytes >> 4) << 32 | _SWIZZLES[row_bytes]
    bits = t.new(f"lshr {ty} {t.new(f'and {ty} {address}, {(1 << 18) - 1}')}, 4")
    if ty == "i32":
        bits = t.new(f"zext i32 {bits} to i64")
    return t.new(f"or i64 {bits}, {layout}")


def with_accumulators(
    r: KernelContext, into: list[ir.Register], text: str, inputs: Operands, zero_init: bool = False
) -> None:
    """Assembly that writes, and unless `zero_init` reads, the accumulators, so that LLVM does not
    use them meanwhile."""
    ty, count = register_type(into[0].dtype), len(into)
    slots = [r.x.storage(register)[0] for register in into]
    olds = [] if zero_init else [r.t.new(f"load {ty}, ptr {slot}") for slot in slots]
    results = ["=f" if ty == "float" else "=r"] * count
    constraints = [*results, *map(str, range(len(olds))), *(c for c, _ in inputs), "~{memory}"]
    arguments = [*(f"{ty} {name}" for name in olds), *(value for _, value in inputs)]
    r.asm_into(into, text, constraints, arguments)


# -- asynchronous wgmma of 16-bit tiles -----------------------------------------------------------


def _operand_descriptor(
    r: KernelContext, operand: ir.MmaOperand, k: int, warpgroup_bytes: int
) -> str:
    t = r.t
    offset = r.x.uniform(operand.offset, "a tile's offset")
    ty = memory_type(operand.buffer.dtype)
    p = t.new(f"getelementptr {ty}, {SHARED} {r.x.buffers[operand.buffer]}, i64 {offset}")
    address = t.new(f"ptrtoint {SHARED} {p} to i64")
    if warpgroup_bytes:  # from a warpgroup's part to the next
        before = t.new(f"mul i64 {r.warpgroup}, {warpgroup_bytes}")
        address = t.new(f"add i64 {address}, {before}")
    return descriptor(t, address, operand.k_major, k)


def _warpgroup_bytes(s: ir.Wgmma, operand: ir.MmaOperand) -> int:
    """Between the rows of A, or the columns of B, that two warpgroups have."""
    if s.by_columns is (operand is s.a):
        return 0
    mn = s.n if s.by_columns else _BLOCK
    if operand.k_major:
        return mn * ir.SWIZZLE_BYTES
    return mn // _BLOCK * ir.SWIZZLE_BYTES * s.k if mn >= _BLOCK else 2 * mn


def _k_offset(operand: ir.MmaOperand, k: int) -> int:
    """Bytes from the first k to this one."""
    if operand.k_major:
        return k // _BLOCK * operand.tile_mn * ir.SWIZZLE_BYTES + k % _BLOCK * 2
    return k // 8 * _CORE_BYTES


def mma_async(r: KernelContext, s: ir.Wgmma) -> None:
    t = r.t
    kind = "bf16" if s.b.buffer.dtype is dt.bfloat16 else "f16"
    tiles = [o for o in (s.a, s.b) if isinstance(o, ir.MmaOperand)]
    bases = [_operand_descriptor(r, o, s.k, _warpgroup_bytes(s, o)) for o in tiles]
    transposed = ", ".join(str(int(not o.k_major)) for o in tiles)
    count = len(s.accumulators)
    names = ",".join(f"${i}" for i in range(count))
    operands: Operands = []
    first = count * (1 if s.zero_init else 2)
    words = _packed(r, s.a, kind) if isinstance(s.a, list) else []
    lines = ["wgmma.fence.sync.aligned;"]
    instruction_k = _K_BYTES // 2
    for step in range(s.k // instruction_k):
        at = first + len(operands)
        inputs = [f"${at + i}" for i in range(len(tiles))]
        for operand, base in zip(tiles, bases, strict=True):
            offset = _k_offset(operand, step * instruction_k) >> 4
            operands.append(("l", f"i64 {t.new(f'add i64 {base}, {offset}') if offset else base}"))
        if words:
            own = words[4 * step : 4 * step + 4]
            inputs.insert(0, "{" + ",".join(f"${at + 1 + i}" for i in range(4)) + "}")
            operands += [("r", f"i32 {word}") for word in own]
        scale_d = 0 if s.zero_init and step == 0 else 1
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{s.n}k{instruction_k}.f32.{kind}.{kind} "
            f"{{{names}}}, {', '.join(inputs)}, {scale_d}, 1, 1, {transposed};"
        )
    lines.append("wgmma.commit_group.sync.aligned;")
    with_accumulators(r, s.accumulators, " ".join(lines), operands, s.zero_init)


def pack(r: KernelContext, s: ir.PackFragments) -> None:
    kind = "bf16" if s.dtype is dt.bfloat16 else "f16"
    words = _packed(r, s.accumulators, kind)
    for register, word in zip(s.words, words, strict=True):
        r.t.do(f"store i32 {word}, ptr {r.x.storage(register)[0]}")
    r.x.invalidate(s.words)


def _packed(r: KernelContext, registers: list[ir.Register], kind: str) -> list[str]:
    """Adjacent pairs rounded to 16 bits and packed into words."""
    t = r.t
    if registers[0].dtype is dt.int32:
        return [t.new(f"load i32, ptr {r.x.storage(register)[0]}") for register in registers]
    names = [t.new(f"load float, ptr {r.x.storage(register)[0]}") for register in registers]
    convert = f'call i32 asm "cvt.rn.{kind}x2.f32 $0, $1, $2;", "=r,f,f"'
    return [
        t.new(f"{convert}(float {high}, float {low})")
        for low, high in zip(names[::2], names[1::2], strict=True)
    ]


def wait(r: KernelContext, s: ir.WgmmaWait) -> None:
    with_accumulators(r, s.accumulators, f"wgmma.wait_group.sync.aligned {s.pending};", [])


# -- wgmma of one k tile of any dtype -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WgmmaType:
    """A dtype's name in wgmma, its accumulators, and whether it takes MN-major tiles."""

    name: str
    accumulator: str = "f32"
    transposable: bool = False

    def instruction(self, other: WgmmaType, columns: int, itemsize: int) -> str:
        shape = f"m64n{columns}k{_K_BYTES // itemsize}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.accumulator}.{self.name}.{other.name}"


Tile = tuple[str, bool, DType]  # descriptor, K-major, dtype

_TYPES = {
    dt.bfloat16: WgmmaType("bf16", transposable=True),
    dt.float16: WgmmaType("f16", transposable=True),
    dt.float32: WgmmaType("tf32"),
    dt.float8_e4m3fn: WgmmaType("e4m3"),
    dt.float8_e5m2: WgmmaType("e5m2"),
    dt.int8: WgmmaType("s8", "s32"),
    dt.uint8: WgmmaType("u8", "s32"),
}


def k_tile_mma(
    t: IRBuilder, tiles: tuple[Tile, Tile], columns: int, count: int, accumulate: str | None = None
) -> tuple[str, Operands]:
    """Assembly of one k tile (SWIZZLE_BYTES) into `count` accumulators, and its operands. `""`
    overwrites the accumulators, and so does an `accumulate` (an i64, the last operand) of 0."""
    zero_init = accumulate == ""
    first = count if zero_init else 2 * count  # operand, after accumulators out and in
    a, b = (_TYPES[dtype] for *_, dtype in tiles)
    names = ",".join(f"${i}" for i in range(count))
    lines = ["wgmma.fence.sync.aligned;"]
    steps = ir.SWIZZLE_BYTES // _K_BYTES
    if zero_init:
        lines.insert(0, "{ .reg .pred more; setp.ne.b32 more, 0, 0;")
    elif accumulate:
        lines.insert(0, f"{{ .reg .pred more; setp.ne.b64 more, ${first + 2 * steps}, 0;")
    descriptors: list[str] = []
    instruction = a.instruction(b, columns, tiles[0][2].itemsize)
    transposed = ", ".join(str(int(not k_major)) for _, k_major, _ in tiles)
    for step in range(steps):
        for base, k_major, dtype in tiles:
            offset = step * _K_BYTES
            if not k_major:
                offset = step * (_K_BYTES // dtype.itemsize) // 8 * _CORE_BYTES
            descriptors.append(t.new(f"add i64 {base}, {offset >> 4}") if step else base)
        scale_d = "1" if step or accumulate is None else "more"
        signs = "" if a.accumulator == "s32" else ", 1, 1"
        transpose = f", {transposed}" if a.transposable else ""
        pair = f"${first + 2 * step}, ${first + 2 * step + 1}"
        lines.append(f"{instruction} {{{names}}}, {pair}, {scale_d}{signs}{transpose};")
    lines.append("wgmma.commit_group.sync.aligned;")
    if accumulate is not None:
        lines.append("}")
    operands = [*descriptors, accumulate] if accumulate else descriptors
    return " ".join(lines), [("l", f"i64 {name}") for name in operands]


def warpgroup_tile(
    rows: int, columns: int, k_major: bool, itemsize: int, row_bytes: int = ir.SWIZZLE_BYTES
) -> tuple[int, tuple[int, int]]:
    """(columns of a warpgroup, byte offsets of A and B from one warpgroup to the next): 64 rows
    each, or half of the columns where there are only 64."""
    if rows > 64:
        return columns, (64 * row_bytes, 0)
    half = columns // 2
    in_row = not k_major and half * itemsize < ir.SWIZZLE_BYTES
    return half, (0, half * (itemsize if in_row else ir.SWIZZLE_BYTES))


def mma_k_tile(r: KernelContext, s: ir.WgmmaTile) -> None:
    """One k tile that threads have stored, by the consumer warps."""
    t, x = r.t, r.x
    is_consumer = t.new(f"icmp ult i32 {r.warp}, {CONSUMER_THREADS // 32}")
    with t.conditional(is_consumer, "consumer"), x.scope("branch"):
        base = t.new(f"ptrtoint {SHARED} {x.buffers[s.scratch]} to i64")
        dtype = s.scratch.dtype
        columns, strides = warpgroup_tile(s.m, s.n, s.k_major[1], dtype.itemsize)
        bases = (base, t.new(f"add i64 {base}, {s.m * ir.SWIZZLE_BYTES}"))
        tile_k = ir.SWIZZLE_BYTES // dtype.itemsize
        tiles = []
        dtypes = (dtype, s.b_dtype or dtype)
        for start, stride, k_major, own in zip(bases, strides, s.k_major, dtypes, strict=True):
            address = t.new(f"add i64 {start}, {t.new(f'mul i64 {r.warpgroup}, {stride}')}")
            tiles.append((descriptor(t, address, k_major, tile_k), k_major, own))
        count = len(s.accumulators)
        accumulate = None if s.accumulate is None else x.uniform(s.accumulate, "accumulate")
        pair = (tiles[0], tiles[1])
        text, operands = k_tile_mma(t, pair, columns, count, accumulate)
        text += " wgmma.wait_group.sync.aligned 0;"
        with_accumulators(r, s.accumulators, text, operands)
