"""Row gather and CRC-32, in LLVM IR.

Both have a kernel's interface, a range of blocks and a list of scalars, so that the worker pool
shares their blocks. CRC-32 is by instruction (Arm), carry-less multiplication (x86, Gopal et al.
2009) or slicing-by-8.
"""

from __future__ import annotations

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.llvm_macros import expand

SYMBOLS = ("numus_gather", "numus_checksums")

# Scalars of the two functions, in order. A block copies one chunk of one row of one source.
GATHER = (
    *("indices", "count"),  # of rows, and how many rows exist
    *("kinds", "kind"),  # a row of another kind (i32) is not copied, and sets the error flag
    *("sources", "row_chunks", "chunk"),  # records, chunks of a row in all, bytes of a chunk
    *("move", "error"),
)
SOURCE = (
    *("base", "starts", "stride"),  # row i begins at base + starts[i], or base + i * stride
    *("size", "chunks"),
    *("to", "stream"),  # output, and whether it is written with non-temporal stores
)
CHECKSUMS = ("data", "starts", "sizes", "sums")  # the last is output

_POLYNOMIAL = 0xEDB88320  # of zlib, bit-reflected
STREAM_BYTES = 128  # per iteration of non-temporal stores
_SLICES = 8  # bytes per iteration of slicing-by-8
_LANES = 4  # of 16 bytes, folded in parallel by carry-less multiplication
_FOLD_BYTES = 16 * _LANES


def source(target: LlvmTarget) -> str:
    """The module with the functions named in `SYMBOLS`."""
    checksum = _SLICING_BY_8
    if target.arch == "arm" and "crc" in target.enabled:
        checksum = _ARM_CRC
    elif target.arch == "x86" and "pclmul" in target.enabled:
        checksum = _by_folding()
    far, near = ("<i64 {}, i64 {}>".format(*folding(8 * n)) for n in (_FOLD_BYTES, 16))
    text = expand(
        _GATHER + _CHECKSUMS + _PLAIN + checksum,
        GATHER=GATHER,
        SOURCE=SOURCE,
        CHECKSUMS=CHECKSUMS,
        TABLES=_tables(),
        FAR=far,
        NEAR=near,
        STREAM_BYTES=STREAM_BYTES,
    )
    return f'target triple = "{target.triple}"\n' + text


# -- constants of CRC-32 --------------------------------------------------------------------------


def _step(value: int) -> int:
    """One bit of zeros appended, modulo the polynomial."""
    return value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)


def _tables() -> str:
    """The CRC of each byte followed by 0 to 7 zero bytes."""
    first = list(range(256))
    for _ in range(8):
        first = [_step(x) for x in first]
    slices = [first]
    for _ in range(_SLICES - 1):
        slices.append([x >> 8 ^ first[x & 0xFF] for x in slices[-1]])
    values = ", ".join(f"i32 {x}" for row in slices for x in row)
    return f"[{256 * _SLICES} x i32] [{values}]"


def folding(bits: int) -> tuple[int, int]:
    """Folding constants: multipliers of both halves of 128 bits that shift them by `bits`."""

    def remainder(power: int) -> int:
        """x**power modulo the polynomial, reflected, as pclmulqdq takes it."""
        value = 1 << 31  # one, reflected
        for _ in range(power):
            value = _step(value)
        return value << 1

    return remainder(bits + 32), remainder(bits - 32)


# -- rows -----------------------------------------------------------------------------------------

_GATHER = """
define void @numus_gather(i64 %begin, i64 %end, i64 %worker, ptr %b, ptr %scalars) {
  ?ptr indices, i64 count, ptr kinds, i32 kind, ptr sources = GATHER of %scalars
  ?i64 row_chunks, i64 chunk, ptr move, ptr error = GATHER of %scalars
  for %i in %begin..%end
  %row = udiv i64 %i, %row_chunks
  %number = urem i64 %i, %row_chunks
  %given = i64 %indices[%row]
  %negative = icmp slt i64 %given, 0
  %wrapped = add i64 %given, %count
  %index = select i1 %negative, i64 %wrapped, i64 %given
  br ult i64 %index, %count, label %look, label %invalid
look:
  %found = i32 %kinds[%index]
  br eq i32 %found, %kind, label %search, label %invalid
invalid:
  store atomic i64 1, ptr %error monotonic, align 8
  br label %i.latch
search:
  %source = phi ptr [ %sources, %look ], [ %source1, %past ]
  %chunk_index = phi i64 [ %number, %look ], [ %chunk_index1, %past ]
  ?i64 base, ptr starts, i64 stride, i64 size, i64 chunks, i64 to, i64 stream = SOURCE of %source
  br ult i64 %chunk_index, %chunks, label %here, label %past
past:
  %chunk_index1 = sub i64 %chunk_index, %chunks
  %source1 = getelementptr i64, ptr %source, i64 $SOURCE$
  br label %search
here:
  br ne ptr %starts, null, label %listed, label %strided
listed:
  %start1 = i64 %starts[%index]
  br label %copy
strided:
  %start2 = mul i64 %index, %stride
  br label %copy
copy:
  %start = phi i64 [ %start1, %listed ], [ %start2, %strided ]
  %skip = mul i64 %chunk_index, %chunk
  %from.row = add i64 %base, %start
  %from.n = add i64 %from.row, %skip
  %from = inttoptr i64 %from.n to ptr
  %to.skip = mul i64 %row, %size
  %to.row = add i64 %to, %to.skip
  %to.n = add i64 %to.row, %skip
  %target = inttoptr i64 %to.n to ptr
  %left = sub i64 %size, %skip
  %n = call i64 @llvm.umin.i64(i64 %left, i64 %chunk)
  br ne i64 %stream, 0, label %streamed, label %moved
moved:
  %ignored = call ptr %move(ptr %target, ptr %from, i64 %n)
  br label %i.latch
streamed:
  %at = phi i64 [ 0, %copy ], [ %at1, %streamed ]
  %f0 = getelementptr i8, ptr %from, i64 %at
  %f1 = getelementptr i8, ptr %f0, i64 64
  %t0 = getelementptr i8, ptr %target, i64 %at
  %t1 = getelementptr i8, ptr %t0, i64 64
  %v0 = load <16 x i32>, ptr %f0, align 1
  %v1 = load <16 x i32>, ptr %f1, align 1
  store <16 x i32> %v0, ptr %t0, align 64, !nontemporal !0
  store <16 x i32> %v1, ptr %t1, align 64, !nontemporal !0
  %at1 = add i64 %at, $STREAM_BYTES$
  br ult i64 %at1, %n, label %streamed, label %done
done:
  end
  fence seq_cst
  ret void
}
"""

# -- checksums ------------------------------------------------------------------------------------

_CHECKSUMS = """
define void @numus_checksums(i64 %begin, i64 %end, i64 %worker, ptr %b, ptr %scalars) {
  ?ptr data, ptr starts, ptr sizes, ptr sums = CHECKSUMS of %scalars
  for %i in %begin..%end
  %start = i64 %starts[%i]
  %size = i64 %sizes[%i]
  %from = getelementptr i8, ptr %data, i64 %start
  %state = call i32 @checksum(i32 -1, ptr %from, i64 %size)
  %sum = xor i32 %state, -1
  %sums[%i] = i32 %sum
  end
  ret void
}
"""


def _slices() -> str:
    """Slicing-by-8. Bytes independent of the last sum come first: they need not wait for it."""
    text, before = "", "0"
    for i in reversed(range(_SLICES)):
        text += f"""
  %shifted{i} = lshr i64 {"%mixed" if i < 4 else "%word"}, {8 * i}
  %byte{i} = and i64 %shifted{i}, 255
  %entry{i} = add i64 %byte{i}, {256 * (_SLICES - 1 - i)}
  %part{i} = i32 @tables[%entry{i}]
  %sum{i} = xor i32 {before}, %part{i}"""
        before = f"%sum{i}"
    return text


_PLAIN = f"""
@tables = internal constant $TABLES$

define internal i32 @plain(i32 %state, ptr %from, i64 %n) noinline {{
entry:
  %whole = and i64 %n, -{_SLICES}
  br label %look
look:
  %at = phi i64 [ 0, %entry ], [ %at1, %step ]
  %now = phi i32 [ %state, %entry ], [ %sum0, %step ]
  br ult i64 %at, %whole, label %step, label %rest
step:
  %p = getelementptr i8, ptr %from, i64 %at
  %word = load i64, ptr %p, align 1
  %now64 = zext i32 %now to i64
  %mixed = xor i64 %word, %now64{_slices()}
  %at1 = add i64 %at, {_SLICES}
  br label %look
rest:
  %k = phi i64 [ %whole, %look ], [ %k1, %single ]
  %last = phi i32 [ %now, %look ], [ %last1, %single ]
  br ult i64 %k, %n, label %single, label %done
single:
  %byte = i8 %from[%k]
  %wide = zext i8 %byte to i32
  %mix = xor i32 %last, %wide
  %low = and i32 %mix, 255
  %low64 = zext i32 %low to i64
  %found = i32 @tables[%low64]
  %rest8 = lshr i32 %last, 8
  %last1 = xor i32 %found, %rest8
  %k1 = add i64 %k, 1
  br label %rest
done:
  ret i32 %last
}}
declare i64 @llvm.umin.i64(i64, i64)
!0 = !{{i32 1}}
"""

_SLICING_BY_8 = """
define internal i32 @checksum(i32 %state, ptr %from, i64 %n) {
  %sum = call i32 @plain(i32 %state, ptr %from, i64 %n)
  ret i32 %sum
}
"""

_ARM_CRC = """
declare i32 @llvm.aarch64.crc32x(i32, i64)

define internal i32 @checksum(i32 %state, ptr %from, i64 %n) {
entry:
  %whole = and i64 %n, -8
  br label %look
look:
  %at = phi i64 [ 0, %entry ], [ %at1, %step ]
  %now = phi i32 [ %state, %entry ], [ %now1, %step ]
  br ult i64 %at, %whole, label %step, label %rest
step:
  %p = getelementptr i8, ptr %from, i64 %at
  %word = load i64, ptr %p, align 1
  %now1 = call i32 @llvm.aarch64.crc32x(i32 %now, i64 %word)
  %at1 = add i64 %at, 8
  br label %look
rest:
  %q = getelementptr i8, ptr %from, i64 %whole
  %left = sub i64 %n, %whole
  %sum = call i32 @plain(i32 %now, ptr %q, i64 %left)
  ret i32 %sum
}
"""


def _fold(name: str, x: str, distance: str, onto: str) -> str:
    """Fold 16 bytes onto later ones."""
    product = "call <2 x i64> @llvm.x86.pclmulqdq"
    return f"""
  %{name}.l = {product}(<2 x i64> {x}, <2 x i64> {distance}, i8 0)
  %{name}.h = {product}(<2 x i64> {x}, <2 x i64> {distance}, i8 17)
  %{name}.b = xor <2 x i64> %{name}.l, %{name}.h
  %{name} = xor <2 x i64> %{name}.b, {onto}"""


def _loads(name: str, base: str) -> str:
    return "".join(
        f"\n  %{name}{i}.at = getelementptr i8, ptr {base}, i64 {16 * i}"
        f"\n  %{name}{i} = load <2 x i64>, ptr %{name}{i}.at, align 1"
        for i in range(_LANES)
    )


def _by_folding() -> str:
    """CRC-32 by folding (Gopal et al. 2009), `_LANES` accumulators in flight. The last 16 bytes
    have the CRC of the whole.
    """
    lanes = range(_LANES)
    begins = ["%mixed", *(f"%l{i}" for i in lanes[1:])]
    states = "".join(
        f"\n  %x{i} = phi <2 x i64> [ {begin}, %first ], [ %y{i}, %step ]"
        for i, begin in enumerate(begins)
    )
    steps = "".join(_fold(f"y{i}", f"%x{i}", "$FAR$", f"%m{i}") for i in lanes)
    joins = "".join(
        _fold(f"j{i}", "%x0" if i == 1 else f"%j{i - 1}", "$NEAR$", f"%x{i}") for i in lanes[1:]
    )
    return f"""
declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8)

define internal i32 @checksum(i32 %state, ptr %from, i64 %n) {{
entry:
  %last = alloca <2 x i64>
  br uge i64 %n, {_FOLD_BYTES}, label %first, label %short
short:
  %sum = call i32 @plain(i32 %state, ptr %from, i64 %n)
  ret i32 %sum
first:{_loads("l", "%from")}
  %state64 = zext i32 %state to i64
  %begin = insertelement <2 x i64> zeroinitializer, i64 %state64, i32 0
  %mixed = xor <2 x i64> %l0, %begin
  br label %look
look:
  %at = phi i64 [ {_FOLD_BYTES}, %first ], [ %at1, %step ]{states}
  %at1 = add i64 %at, {_FOLD_BYTES}
  br ule i64 %at1, %n, label %step, label %join
step:
  %base = getelementptr i8, ptr %from, i64 %at{_loads("m", "%base")}{steps}
  br label %look
join:{joins}
  store <2 x i64> %j{_LANES - 1}, ptr %last
  %folded = call i32 @plain(i32 0, ptr %last, i64 16)
  %tail = getelementptr i8, ptr %from, i64 %at
  %left = sub i64 %n, %at
  %whole = call i32 @plain(i32 %folded, ptr %tail, i64 %left)
  ret i32 %whole
}}
"""
