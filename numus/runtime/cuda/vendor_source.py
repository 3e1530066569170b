"""How a vendor's kernel is launched natively, in LLVM IR, and how what is read for it is laid out.

A library takes longer to launch a small kernel than the kernel takes to run. So a launch that comes
again with the very same addresses is kept as a CUDA graph of its own, a few for each place at which
it stands, and started as such.
"""

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
# At last, the graphs: the driver's functions (none: no graphs are made), which is replaced next,
# and for each itself and the addresses it is for.
FUNCTIONS = (
    *("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"),
    *("cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy", "cuStreamIsCapturing"),
)
GRAPHS = 4
_DRIVER = _TABLE + 3 * MOST_ADDRESSES
_NEXT = _DRIVER + 1
_ENTRIES = _NEXT + 1
_ENTRY = 1 + MOST_ADDRESSES
WORDS = _ENTRIES + GRAPHS * _ENTRY
ENTRIES = tuple(_ENTRIES + n * _ENTRY for n in range(GRAPHS))  # where the graphs are

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
define i1 @numus_cuda_capturing(ptr %driver, ptr %stream) {
  ; whether somebody records what is launched: no graph can be made or let go then
  %state = alloca i32
  store i32 0, ptr %state
  %i.at = getelementptr ptr, ptr %driver, i64 6
  %ask = load ptr, ptr %i.at
  %code = call i32 %ask(ptr %stream, ptr %state)
  %value = load i32, ptr %state
  %either = or i32 %code, %value
  %yes = icmp ne i32 %either, 0
  ret i1 %yes
}
define i32 @numus_cuda_vendor(ptr %block, ptr %slots, ptr %stream) {
entry:
  %now = alloca [@MOST@ x i64]
  %graph = alloca ptr
  store [@MOST@ x i64] zeroinitializer, ptr %now
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
  %own = getelementptr i64, ptr %now, i64 %i
  store i64 %where, ptr %own
  %odd.next = or i64 %odd, %where
  %i.next = add i64 %i, 1
  br label %address
look:
  ; the algorithm is for memory at whole 16 bytes
  %rest = and i64 %odd, 15
  %whole = icmp eq i64 %rest, 0
  br i1 %whole, label %aligned, label %python
aligned:
  %driver.at = getelementptr i64, ptr %block, i64 @DRIVER@
  %driver = load ptr, ptr %driver.at
  %none = icmp eq ptr %driver, null
  br i1 %none, label %plain, label %seek
seek:
  %e = phi i64 [ 0, %aligned ], [ %e.next, %another ]
  %entries = getelementptr i64, ptr %block, i64 @ENTRIES@
  %held = getelementptr [@ENTRY@ x i64], ptr %entries, i64 %e
@COMPARE@
  br i1 %same, label %known, label %another
another:
  %e.next = add i64 %e, 1
  %e.more = icmp ult i64 %e.next, @GRAPHS@
  br i1 %e.more, label %seek, label %new
known:
  %exec = load ptr, ptr %held
  %made = icmp ne ptr %exec, null
  br i1 %made, label %start, label %capture
start:
  %l.at = getelementptr ptr, ptr %driver, i64 4
  %launch = load ptr, ptr %l.at
  %ready = load ptr, ptr %held
  %launched = call i32 %launch(ptr %ready, ptr %stream)
  %fine = icmp eq i32 %launched, 0
  br i1 %fine, label %good, label %python
capture:
  %c.capturing = call i1 @numus_cuda_capturing(ptr %driver, ptr %stream)
  br i1 %c.capturing, label %plain, label %begin.it
begin.it:
  %begin = load ptr, ptr %driver
  %begun = call i32 %begin(ptr %stream, i32 1)  ; what other threads do is no matter
  %begins = icmp eq i32 %begun, 0
  br i1 %begins, label %record, label %plain
record:
  %asked = call i32 @numus_cuda_ask(ptr %block)
  %n.at = getelementptr ptr, ptr %driver, i64 1
  %end = load ptr, ptr %n.at
  store ptr null, ptr %graph
  %ended = call i32 %end(ptr %stream, ptr %graph)
  %wrong = or i32 %asked, %ended
  %right = icmp eq i32 %wrong, 0
  br i1 %right, label %make, label %never
make:
  %m.at = getelementptr ptr, ptr %driver, i64 2
  %instantiate = load ptr, ptr %m.at
  %captured = load ptr, ptr %graph
  %instantiated = call i32 %instantiate(ptr %held, ptr %captured, i64 0)
  %d.at = getelementptr ptr, ptr %driver, i64 3
  %destroy = load ptr, ptr %d.at
  %destroyed = call i32 %destroy(ptr %captured)
  %usable = icmp eq i32 %instantiated, 0
  br i1 %usable, label %start, label %never
never:
  store ptr null, ptr %held
  store ptr null, ptr %driver.at
  br label %plain
new:
  %next.at = getelementptr i64, ptr %block, i64 @NEXT@
  %next = load i64, ptr %next.at
  %oldest = getelementptr [@ENTRY@ x i64], ptr %entries, i64 %next
  %old = load ptr, ptr %oldest
  %empty = icmp eq ptr %old, null
  br i1 %empty, label %remember, label %free
free:
  %f.capturing = call i1 @numus_cuda_capturing(ptr %driver, ptr %stream)
  br i1 %f.capturing, label %plain, label %destroy.it
destroy.it:
  %f.at = getelementptr ptr, ptr %driver, i64 5
  %let.go = load ptr, ptr %f.at
  %gone = call i32 %let.go(ptr %old)
  br label %remember
remember:
  store ptr null, ptr %oldest
  %keys = getelementptr i64, ptr %oldest, i64 1
  %all = load [@MOST@ x i64], ptr %now
  store [@MOST@ x i64] %all, ptr %keys
  %after = add i64 %next, 1
  %after.next = urem i64 %after, @GRAPHS@
  store i64 %after.next, ptr %next.at
  br label %plain
plain:
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
    compare = []
    for i in range(MOST_ADDRESSES):
        before = "true" if i == 0 else f"%s{i - 1}"
        name = "%same" if i == MOST_ADDRESSES - 1 else f"%s{i}"
        compare += [
            f"  %k{i}.at = getelementptr i64, ptr %held, i64 {1 + i}",
            f"  %k{i} = load i64, ptr %k{i}.at",
            f"  %n{i}.at = getelementptr i64, ptr %now, i64 {i}",
            f"  %n{i} = load i64, ptr %n{i}.at",
            f"  %q{i} = icmp eq i64 %k{i}, %n{i}",
            f"  {name} = and i1 {before}, %q{i}",
        ]
    marks = {
        "LOAD": "\n".join(load),
        "COMPARE": "\n".join(compare),
        "ARGUMENTS": ", ".join(f"i64 %a{i}" for i in range(ARGUMENTS)),
        **{f"PRIOR{n}": _PRIOR + n for n in (1, 2, 3)},
        **{"PRIOR": _PRIOR, "BESIDE": 1 + BESIDE, "COUNT": _COUNT, "TABLE": _TABLE},
        **{"DRIVER": _DRIVER, "NEXT": _NEXT, "ENTRIES": _ENTRIES, "ENTRY": _ENTRY},
        **{"GRAPHS": GRAPHS, "MOST": MOST_ADDRESSES},
    }
    for name, value in marks.items():
        text = text.replace(f"@{name}@", str(value))
    return text


SOURCE = _written_out(_TEXT)


def block(native: NativeLaunch, places: list[tuple[int, int]], driver: int) -> list[int]:
    """The words of a launch. `places`: the slot and offset of each buffer, the workspace after the
    others if there is one; `driver`: where the driver's functions are, or 0."""
    known = [a for a in native.addresses if a[1] < len(places)]  # without a workspace, not its
    addresses: list[int] = []
    for word, operand, offset in known:
        slot, more = places[operand]
        addresses += [word, slot, offset + more]
    addresses += [0] * (3 * MOST_ADDRESSES - len(addresses))
    prior = native.prior or (0, 0, 0, 0)
    words = [native.function, *native.arguments, 0, *prior, len(known), *addresses, driver, 0]
    return words + [0] * (WORDS - len(words))
