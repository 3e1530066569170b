"""How a vendor's kernel is launched natively, in LLVM IR, and how what it reads is laid out."""

from __future__ import annotations

from numus.runtime.contract import NativeLaunch

# Words of a vendor's launch. First a function of so many words, and these words; one more, beside
# them, is for a function that may be called before: it is given two numbers, where that word lies,
# and its size.
ARGUMENTS = 16
BESIDE = ARGUMENTS
_PRIOR = 1 + ARGUMENTS + 1
# Then, which of the words are addresses: how many, and for each the word, the slot, and an offset.
MOST_ADDRESSES = 6
_COUNT = _PRIOR + 4
_TABLE = _COUNT + 1
WORDS = _TABLE + 3 * MOST_ADDRESSES

# Gives 0; all ones where Python has to do it: memory that is not aligned, say.
_TEXT = """
define i32 @numus_cuda_ask(ptr %block) {
  %p.at = getelementptr i64, ptr %block, i64 @PRIOR@
  %prior = load ptr, ptr %p.at
  %simple = icmp eq ptr %prior, null
  br i1 %simple, label %go, label %before
before:
  %p1.at = getelementptr i64, ptr %block, i64 @PRIOR1@
  %p1 = load i64, ptr %p1.at
  %p2.at = getelementptr i64, ptr %block, i64 @PRIOR2@
  %p2 = load i64, ptr %p2.at
  %p3.at = getelementptr i64, ptr %block, i64 @PRIOR3@
  %p3 = load i64, ptr %p3.at
  %beside = getelementptr i64, ptr %block, i64 @BESIDE@
  %told = call i32 %prior(i64 %p1, i64 %p2, ptr %beside, i64 %p3)
  %well = icmp eq i32 %told, 0
  br i1 %well, label %go, label %bad
bad:
  ret i32 %told
go:
  %function = load ptr, ptr %block
@LOAD@
  %code = call i32 %function(@ARGUMENTS@)
  ret i32 %code
}
define i32 @numus_cuda_vendor(ptr %block, ptr %slots) {
entry:
  %count.at = getelementptr i64, ptr %block, i64 @COUNT@
  %count = load i64, ptr %count.at
  %table = getelementptr i64, ptr %block, i64 @TABLE@
  %arguments = getelementptr i64, ptr %block, i64 1
  br label %address
address:
  %i = phi i64 [ 0, %entry ], [ %i.next, %fill ]
  %odd = phi i64 [ 0, %entry ], [ %odd.next, %fill ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %fill, label %look
fill:
  %t0 = getelementptr [3 x i64], ptr %table, i64 %i
  %word = load i64, ptr %t0
  %t1 = getelementptr i64, ptr %t0, i64 1
  %slot = load i64, ptr %t1
  %t2 = getelementptr i64, ptr %t0, i64 2
  %offset = load i64, ptr %t2
  %at = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %at
  %where = add i64 %base, %offset
  %to = getelementptr i64, ptr %arguments, i64 %word
  store i64 %where, ptr %to
  %odd.next = or i64 %odd, %where
  %i.next = add i64 %i, 1
  br label %address
look:
  ; the algorithm is for memory at whole 16 bytes
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


def _written_out(text: str) -> str:
    """The text with the lines in which every word is read, and the words' places."""
    load = [
        f"  %a{i}p = getelementptr i64, ptr %block, i64 {1 + i}\n  %a{i} = load i64, ptr %a{i}p"
        for i in range(ARGUMENTS)
    ]
    marks = {
        "LOAD": "\n".join(load),
        "ARGUMENTS": ", ".join(f"i64 %a{i}" for i in range(ARGUMENTS)),
        **{f"PRIOR{n}": _PRIOR + n for n in (1, 2, 3)},
        **{"PRIOR": _PRIOR, "BESIDE": 1 + BESIDE, "COUNT": _COUNT, "TABLE": _TABLE},
    }
    for name, value in marks.items():
        text = text.replace(f"@{name}@", str(value))
    return text


SOURCE = _written_out(_TEXT)


def block(native: NativeLaunch, places: list[tuple[int, int]]) -> list[int]:
    """The words of a launch. `places`: the slot and offset of each buffer, the workspace after the
    others if there is one."""
    known = [a for a in native.addresses if a[1] < len(places)]  # without a workspace, not its
    addresses: list[int] = []
    for word, operand, offset in known:
        slot, more = places[operand]
        addresses += [word, slot, offset + more]
    prior = native.prior or (0, 0, 0, 0)
    words = [native.function, *native.arguments, 0, *prior, len(known), *addresses]
    return words + [0] * (WORDS - len(words))
