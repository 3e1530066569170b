"""Stretches of memory, natively: rows that are copied together, and checksums, in LLVM IR.

Both functions are called as kernels are: with a range of blocks, and a list of scalars. So the
worker pool shares their blocks between threads.
"""

from __future__ import annotations

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.pycall.llvm_macros import written_out

SYMBOLS = ("numus_gather", "numus_checksums")

# Scalars of the two functions, in order. Of each row that is chosen, parts are copied from several
# sources; a block copies one piece of a row's parts.
GATHER = (
    *("places", "count"),  # which rows, of how many there are
    *("kinds", "kind"),  # a row whose kind (i32) is another one is not copied, and leaves a mark
    *("sources", "pieces", "piece"),  # a table, the pieces of a row in it, and bytes of a piece
    *("move", "mark"),
)
SOURCE = (
    *("base", "starts", "step"),  # row i begins at base + starts[i], or base + i * step
    *("size", "parts"),  # its bytes, and how many pieces these are
    *("to", "stream"),  # where rows go, and whether they are stored past the caches
)
CHECKSUMS = ("data", "starts", "sizes", "sums")  # the last are filled in

_POLYNOMIAL = 0xEDB88320  # CRC-32 as zlib has it, bits reflected
LINE = 128  # bytes of a step that stores past the caches
_SLICES = 8  # bytes of a step by tables
_PARTS = 4  # of 16 bytes, in a step by carry-less products
_WIDE = 16 * _PARTS


def source(target: LlvmTarget) -> str:
    """The module with the functions named in `SYMBOLS`."""
    checksum = _BY_TABLES
    if target.arch == "arm" and "crc" in target.enabled:
        checksum = _BY_INSTRUCTION
    elif target.arch == "x86" and "pclmul" in target.enabled:
        checksum = _PLAIN + _by_products()
        far, near = ("<i64 {}, i64 {}>".format(*folding(8 * n)) for n in (_WIDE, 16))
        checksum = written_out(checksum, FAR=far, NEAR=near)
    text = _scalars("gather", GATHER, _GATHER) + _scalars("checksums", CHECKSUMS, _CHECKSUMS)
    text += written_out(checksum, TABLES=_tables())
    return f'target triple = "{target.triple}"\n' + text


def _scalars(name: str, names: tuple[str, ...], body: str) -> str:
    """A function of a range of blocks, whose scalars have names."""
    head = f"define void @numus_{name}(i64 %begin, i64 %end, i64 %worker, ptr %b, ptr %scalars)"
    return f"{head} {{\nentry:\n{_words('scalars', names)}{body}}}\n"


def _words(pointer: str, names: tuple[str, ...]) -> str:
    """Words in memory, read one after the other."""
    lines = [f"?%{name} = i64 WORDS.{name} of %{pointer}" for name in names]
    return written_out("\n".join(lines), WORDS=names) + "\n"


# -- constants of CRC-32 --------------------------------------------------------------------------


def _table() -> list[int]:
    """The remainder of each byte."""
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return found


def _tables() -> str:
    """For each byte, and so many zero bytes behind it, the remainder."""
    first = _table()
    slices = [first]
    for _ in range(_SLICES - 1):
        slices.append([x >> 8 ^ first[x & 0xFF] for x in slices[-1]])
    values = ", ".join(f"i32 {x}" for row in slices for x in row)
    return f"[{256 * _SLICES} x i32] [{values}]"


def folding(bits: int) -> tuple[int, int]:
    """What the lower and the upper half of 128 bits are multiplied by to lie so many bits on."""

    def remainder(power: int) -> int:
        """x to this power modulo the polynomial, reflected, as carry-less products take it."""
        value = 1 << 31  # one, reflected
        for _ in range(power):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        return value << 1

    return remainder(bits + 32), remainder(bits - 32)


# -- rows -----------------------------------------------------------------------------------------

_GATHER = f"""
  %places.p = inttoptr i64 %places to ptr
  %kinds.p = inttoptr i64 %kinds to ptr
  %sources.p = inttoptr i64 %sources to ptr
  %move.p = inttoptr i64 %move to ptr
  %mark.p = inttoptr i64 %mark to ptr
  %kind32 = trunc i64 %kind to i32
  br label %block
block:
  %i = phi i64 [ %begin, %entry ], [ %i1, %next ]
  %row = udiv i64 %i, %pieces
  %number = urem i64 %i, %pieces
  %place.at = getelementptr i64, ptr %places.p, i64 %row
  %given = load i64, ptr %place.at
  %below = icmp slt i64 %given, 0
  %behind = add i64 %given, %count
  %place = select i1 %below, i64 %behind, i64 %given
  %inside = icmp ult i64 %place, %count
  br i1 %inside, label %look, label %odd
look:
  %kind.at = getelementptr i32, ptr %kinds.p, i64 %place
  %found = load i32, ptr %kind.at
  %same = icmp eq i32 %found, %kind32
  br i1 %same, label %search, label %odd
odd:
  store atomic i64 1, ptr %mark.p monotonic, align 8
  br label %next
search:
  %source = phi ptr [ %sources.p, %look ], [ %source1, %past ]
  %part = phi i64 [ %number, %look ], [ %part1, %past ]
{_words("source", SOURCE)}
  %here = icmp ult i64 %part, %parts
  br i1 %here, label %good, label %past
past:
  %part1 = sub i64 %part, %parts
  %source1 = getelementptr i64, ptr %source, i64 {len(SOURCE)}
  br label %search
good:
  %listed = icmp ne i64 %starts, 0
  br i1 %listed, label %listing, label %stepping
listing:
  %starts.p = inttoptr i64 %starts to ptr
  %start.at = getelementptr i64, ptr %starts.p, i64 %place
  %start1 = load i64, ptr %start.at
  br label %copy
stepping:
  %start2 = mul i64 %place, %step
  br label %copy
copy:
  %start = phi i64 [ %start1, %listing ], [ %start2, %stepping ]
  %skip = mul i64 %part, %piece
  %from.row = add i64 %base, %start
  %from.n = add i64 %from.row, %skip
  %from = inttoptr i64 %from.n to ptr
  %to.skip = mul i64 %row, %size
  %to.row = add i64 %to, %to.skip
  %to.n = add i64 %to.row, %skip
  %target = inttoptr i64 %to.n to ptr
  %left = sub i64 %size, %skip
  %n = call i64 @llvm.umin.i64(i64 %left, i64 %piece)
  %streams = icmp ne i64 %stream, 0
  br i1 %streams, label %streamed, label %moved
moved:
  %ignored = call ptr %move.p(ptr %target, ptr %from, i64 %n)
  br label %next
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
  %at1 = add i64 %at, {LINE}
  %more = icmp ult i64 %at1, %n
  br i1 %more, label %streamed, label %next
next:
  %i1 = add i64 %i, 1
  %again = icmp slt i64 %i1, %end
  br i1 %again, label %block, label %done
done:
  fence seq_cst
  ret void
"""

# -- checksums ------------------------------------------------------------------------------------

_CHECKSUMS = """
  %data.p = inttoptr i64 %data to ptr
  %starts.p = inttoptr i64 %starts to ptr
  %sizes.p = inttoptr i64 %sizes to ptr
  %sums.p = inttoptr i64 %sums to ptr
  br label %block
block:
  %i = phi i64 [ %begin, %entry ], [ %i1, %block ]
  %start.at = getelementptr i64, ptr %starts.p, i64 %i
  %start = load i64, ptr %start.at
  %size.at = getelementptr i64, ptr %sizes.p, i64 %i
  %size = load i64, ptr %size.at
  %from = getelementptr i8, ptr %data.p, i64 %start
  %state = call i32 @checksum(i32 -1, ptr %from, i64 %size)
  %sum = xor i32 %state, -1
  %sum.at = getelementptr i32, ptr %sums.p, i64 %i
  store i32 %sum, ptr %sum.at
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %block, label %done
done:
  ret void
"""


def _slices() -> str:
    """Eight bytes at a time: each is looked up in the table of how far it is from the end. Those
    that the last sum does not touch come first, as they need not wait for it.
    """
    text, before = "", "0"
    for i in reversed(range(_SLICES)):
        text += f"""
  %shifted{i} = lshr i64 {"%mixed" if i < 4 else "%word"}, {8 * i}
  %byte{i} = and i64 %shifted{i}, 255
  %entry{i} = add i64 %byte{i}, {256 * (_SLICES - 1 - i)}
  %e{i} = getelementptr i32, ptr @tables, i64 %entry{i}
  %part{i} = load i32, ptr %e{i}
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
  %any = icmp ult i64 %at, %whole
  br i1 %any, label %step, label %rest
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
  %left = icmp ult i64 %k, %n
  br i1 %left, label %single, label %done
single:
  %q = getelementptr i8, ptr %from, i64 %k
  %byte = load i8, ptr %q
  %wide = zext i8 %byte to i32
  %mix = xor i32 %last, %wide
  %low = and i32 %mix, 255
  %low64 = zext i32 %low to i64
  %e = getelementptr i32, ptr @tables, i64 %low64
  %found = load i32, ptr %e
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

_BY_TABLES = (
    _PLAIN
    + """
define internal i32 @checksum(i32 %state, ptr %from, i64 %n) {
  %sum = call i32 @plain(i32 %state, ptr %from, i64 %n)
  ret i32 %sum
}
"""
)

_BY_INSTRUCTION = (
    _PLAIN
    + """
declare i32 @llvm.aarch64.crc32x(i32, i64)

define internal i32 @checksum(i32 %state, ptr %from, i64 %n) {
entry:
  %whole = and i64 %n, -8
  br label %look
look:
  %at = phi i64 [ 0, %entry ], [ %at1, %step ]
  %now = phi i32 [ %state, %entry ], [ %now1, %step ]
  %any = icmp ult i64 %at, %whole
  br i1 %any, label %step, label %rest
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
)


def _fold(name: str, x: str, distance: str, onto: str) -> str:
    """What 16 bytes add to bytes further on."""
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
        for i in range(_PARTS)
    )


def _by_products() -> str:
    """A message is a polynomial of which the remainder is sought. 16 bytes of it, multiplied by
    what is left of the powers behind them, may be added to the bytes further on; several such parts
    are under way at once. The last 16 bytes have the remainder of the whole.
    """
    parts = range(_PARTS)
    begins = ["%mixed", *(f"%l{i}" for i in parts[1:])]
    states = "".join(
        f"\n  %x{i} = phi <2 x i64> [ {begin}, %first ], [ %y{i}, %step ]"
        for i, begin in enumerate(begins)
    )
    steps = "".join(_fold(f"y{i}", f"%x{i}", "$FAR$", f"%m{i}") for i in parts)
    joins = "".join(
        _fold(f"j{i}", "%x0" if i == 1 else f"%j{i - 1}", "$NEAR$", f"%x{i}") for i in parts[1:]
    )
    return f"""
declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8)

define internal i32 @checksum(i32 %state, ptr %from, i64 %n) {{
entry:
  %last = alloca <2 x i64>
  %long = icmp uge i64 %n, {_WIDE}
  br i1 %long, label %first, label %short
short:
  %sum = call i32 @plain(i32 %state, ptr %from, i64 %n)
  ret i32 %sum
first:{_loads("l", "%from")}
  %state64 = zext i32 %state to i64
  %begin = insertelement <2 x i64> zeroinitializer, i64 %state64, i32 0
  %mixed = xor <2 x i64> %l0, %begin
  br label %look
look:
  %at = phi i64 [ {_WIDE}, %first ], [ %at1, %step ]{states}
  %at1 = add i64 %at, {_WIDE}
  %more = icmp ule i64 %at1, %n
  br i1 %more, label %step, label %join
step:
  %base = getelementptr i8, ptr %from, i64 %at{_loads("m", "%base")}{steps}
  br label %look
join:{joins}
  store <2 x i64> %j{_PARTS - 1}, ptr %last
  %folded = call i32 @plain(i32 0, ptr %last, i64 16)
  %tail = getelementptr i8, ptr %from, i64 %at
  %left = sub i64 %n, %at
  %whole = call i32 @plain(i32 %folded, ptr %tail, i64 %left)
  ret i32 %whole
}}
"""
