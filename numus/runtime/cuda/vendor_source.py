"""Native launches of vendor kernels, in LLVM IR, and the layout of their arguments."""

from __future__ import annotations

from numus.runtime.contract import NativeLaunch

# Words of a vendor launch: a function and its 16 arguments; an extra word for a setter that is
# called before it with two numbers, the word's address and size; then a table of address words.
ARGUMENTS = tuple(f"a{i}" for i in range(16))
EXTRA_WORD = len(ARGUMENTS)
VENDOR = ("function", *ARGUMENTS, "extra", "setter", "first", "second", "size", "count")
ADDRESS = ("word", "slot", "offset")
MAX_ADDRESSES = 6
WORDS = len(VENDOR) + len(ADDRESS) * MAX_ADDRESSES

# Gives 0; all ones where Python has to make the launch, as for unaligned memory.
_READ = ", ".join(f"i64 {a}" for a in ARGUMENTS)
_GIVEN = ", ".join(f"i64 %{a}" for a in ARGUMENTS)
TEXT = f"""
define i32 @numus_cuda_ask(ptr %block) {{
  ?ptr setter, ptr function = VENDOR of %block
  br eq ptr %setter, null, label %go, label %before
before:
  ?i64 first, i64 second, at extra, i64 size = VENDOR of %block
  %set = call i32 %setter(i64 %first, i64 %second, ptr %extra.at, i64 %size)
  br eq i32 %set, 0, label %go, label %bad
bad:
  ret i32 %set
go:
  ?{_READ} = VENDOR of %block
  %code = call i32 %function({_GIVEN})
  ret i32 %code
}}
define i32 @numus_cuda_vendor(ptr %block, ptr %slots) {{
  %bits = alloca i64  ; of all addresses: the algorithm needs 16-byte alignment
  store i64 0, ptr %bits
  ?i64 count, at a0 = VENDOR of %block
  %table = getelementptr i64, ptr %block, i64 $VENDOR$
  for %i in 0..%count
  %entry = getelementptr [$ADDRESS$ x i64], ptr %table, i64 %i
  ?i64 word, i64 slot, i64 offset = ADDRESS of %entry
  %base = i64 %slots[%slot]
  %address = add i64 %base, %offset
  %a0.at[%word] = i64 %address
  %bits.before = load i64, ptr %bits
  %bits.now = or i64 %bits.before, %address
  store i64 %bits.now, ptr %bits
  end
  %bits.all = load i64, ptr %bits
  %unaligned = and i64 %bits.all, 15
  br eq i64 %unaligned, 0, label %go, label %python
go:
  %code = call i32 @numus_cuda_ask(ptr %block)
  br eq i32 %code, 0, label %good, label %python
good:
  ret i32 0
python:
  ret i32 -1
}}
"""


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
