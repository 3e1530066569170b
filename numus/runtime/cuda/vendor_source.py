"""Native launches of vendor kernels, in LLVM IR, and the layout of their arguments."""

from __future__ import annotations

from numus.runtime.contract import NativeLaunch
from numus.runtime.pycall.llvm_macros import expand

# Words of a vendor launch: a function and its 16 arguments; an extra word for a setter that is
# called before it with two numbers, the word's address and size; then a table of address words.
ARGUMENTS = tuple(f"a{i}" for i in range(16))
EXTRA_WORD = len(ARGUMENTS)
LAUNCH = ("function", *ARGUMENTS, "extra", "setter", "first", "second", "size", "count")
ADDRESS = ("word", "slot", "offset")
MAX_ADDRESSES = 6
WORDS = len(LAUNCH) + len(ADDRESS) * MAX_ADDRESSES

# Gives 0; all ones where Python has to make the launch, as for unaligned memory.
_TEXT = """
define i32 @numus_cuda_ask(ptr %block) {
  ?%setter = ptr LAUNCH.setter of %block
  %simple = icmp eq ptr %setter, null
  br i1 %simple, label %go, label %before
before:
  ?%first = i64 LAUNCH.first of %block
  ?%second = i64 LAUNCH.second of %block
  ?%extra = LAUNCH.extra of %block
  ?%size = i64 LAUNCH.size of %block
  %told = call i32 %setter(i64 %first, i64 %second, ptr %extra, i64 %size)
  %well = icmp eq i32 %told, 0
  br i1 %well, label %go, label %bad
bad:
  ret i32 %told
go:
  ?%function = ptr LAUNCH.function of %block
$READ$
  %code = call i32 %function($GIVEN$)
  ret i32 %code
}
define i32 @numus_cuda_vendor(ptr %block, ptr %slots) {
entry:
  ?%count = i64 LAUNCH.count of %block
  %table = getelementptr i64, ptr %block, i64 $LAUNCH$
  ?%arguments = LAUNCH.a0 of %block
  br label %address
address:
  %i = phi i64 [ 0, %entry ], [ %i.next, %fill ]
  %odd = phi i64 [ 0, %entry ], [ %odd.next, %fill ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %fill, label %look
fill:
  %address.at = getelementptr [$ADDRESS$ x i64], ptr %table, i64 %i
  ?%word = i64 ADDRESS.word of %address.at
  ?%slot = i64 ADDRESS.slot of %address.at
  ?%offset = i64 ADDRESS.offset of %address.at
  %at = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %at
  %where = add i64 %base, %offset
  %to = getelementptr i64, ptr %arguments, i64 %word
  store i64 %where, ptr %to
  %odd.next = or i64 %odd, %where
  %i.next = add i64 %i, 1
  br label %address
look:
  ; the algorithm needs 16-byte alignment
  %rest = and i64 %odd, 15
  %whole = icmp eq i64 %rest, 0
  br i1 %whole, label %go, label %python
go:
  %code = call i32 @numus_cuda_ask(ptr %block)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %python, label %good
good:
  ret i32 0
python:
  ret i32 -1
}
"""


_READ = "\n".join(f"  ?%{a} = i64 LAUNCH.{a} of %block" for a in ARGUMENTS)
_GIVEN = ", ".join(f"i64 %{a}" for a in ARGUMENTS)
SOURCE = expand(_TEXT.replace("$READ$", _READ), LAUNCH=LAUNCH, ADDRESS=ADDRESS, GIVEN=_GIVEN)


def block(native: NativeLaunch, references: list[tuple[int, int]]) -> list[int]:
    """The words of a launch. `references`: slot and offset of each buffer, and of the workspace if
    there is one."""
    known = [a for a in native.addresses if a[1] < len(references)]
    addresses: list[int] = []
    for word, operand, offset in known:
        slot, start = references[operand]
        addresses += [word, slot, start + offset]
    setter = native.setter or (0, 0, 0, 0)
    words = [native.function, *native.arguments, 0, *setter, len(known), *addresses]
    return words + [0] * (WORDS - len(words))
