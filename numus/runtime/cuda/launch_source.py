"""The native loop that goes through launches, in LLVM IR, and how what it reads is laid out."""

from __future__ import annotations

from numus.runtime.cuda import vendor_source

# Words of a launch in the image, in the order in which the loop reads them.
RECORD = (
    *("function", "grid", "group", "shared", "parameters", "count", "places", "buffers"),
    *("map count", "maps", "vendor", "attributes"),
)
# A launch may begin while the one before it ends: kernels that let it wait by themselves for what
# came before. The driver's attribute for that: its number, and that it is allowed.
OVERLAPS = (6, 1)
# Words that a native call of Python's hands on to the loop.
HEAD = ("launch", "encode", "records", "count", "slots", "stream", "failed", "last", "number")
# Words of a matrix that the copying engine is told of, likewise. Its numbers, extents and strides
# in bytes, are products of a scalar and a factor.
MAP = ("slot", "offset", "told", "kind", "extents", "strides", "box", "steps", "numbers")
NUMBERS = 5
TOLD_WORDS, TOLD_ALIGNMENT = 16, 64  # what the driver makes of it
ATTRIBUTE_WORDS = 9

# Goes through the launches of an image; gives 0, or the number of the one that failed, from 1 on,
# in the upper half and the driver's code in the lower (all ones: a vendor's, for Python to do).
# A matrix that does not lie at a whole 16 bytes is not told of: kernels do without the engine then.
_TEXT = """
define i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count, ptr %slots,
    ptr %stream) {
entry:
  ; the driver's description of a launch: sizes of grid and group, shared memory, stream, attributes
  %config = alloca [7 x i64]
  store [7 x i64] [i64 4294967296, i64 1, i64 4294967297, i64 0, i64 0, i64 0, i64 0], ptr %config
  %c.group = getelementptr i32, ptr %config, i64 3
  %c.shared = getelementptr i32, ptr %config, i64 6
  %c.stream = getelementptr i64, ptr %config, i64 4
  %c.attributes = getelementptr i64, ptr %config, i64 5
  %c.count = getelementptr i64, ptr %config, i64 6
  store ptr %stream, ptr %c.stream
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %m, %after ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %one, label %good
one:
  %r = getelementptr [12 x i64], ptr %records, i64 %n
  %function = load ptr, ptr %r
  %r1 = getelementptr i64, ptr %r, i64 1
  %grid.at = load ptr, ptr %r1
  %grid.wide = load i64, ptr %grid.at
  %grid = trunc i64 %grid.wide to i32
  %r2 = getelementptr i64, ptr %r, i64 2
  %group.wide = load i64, ptr %r2
  %group = trunc i64 %group.wide to i32
  %r3 = getelementptr i64, ptr %r, i64 3
  %shared.wide = load i64, ptr %r3
  %shared = trunc i64 %shared.wide to i32
  %r4 = getelementptr i64, ptr %r, i64 4
  %parameters = load ptr, ptr %r4
  %r5 = getelementptr i64, ptr %r, i64 5
  %buffer.count = load i64, ptr %r5
  %r6 = getelementptr i64, ptr %r, i64 6
  %places = load ptr, ptr %r6
  %r7 = getelementptr i64, ptr %r, i64 7
  %buffers = load ptr, ptr %r7
  %r8 = getelementptr i64, ptr %r, i64 8
  %map.count = load i64, ptr %r8
  %r9 = getelementptr i64, ptr %r, i64 9
  %maps = load ptr, ptr %r9
  %r10 = getelementptr i64, ptr %r, i64 10
  %vendor = load ptr, ptr %r10
  %own = icmp ne ptr %function, null
  br i1 %own, label %buffer, label %library
library:
  %no.way = icmp eq ptr %vendor, null
  br i1 %no.way, label %failed, label %ask
ask:
  %v.code = call i32 @numus_cuda_vendor(ptr %vendor, ptr %slots, ptr %stream)
  %v.bad = icmp ne i32 %v.code, 0
  br i1 %v.bad, label %failed, label %after
buffer:
  %b = phi i64 [ 0, %one ], [ %b.next, %fill ]
  %b.more = icmp ult i64 %b, %buffer.count
  br i1 %b.more, label %fill, label %map
fill:
  %place = getelementptr [2 x i64], ptr %places, i64 %b
  %slot = load i64, ptr %place
  %offset.at = getelementptr i64, ptr %place, i64 1
  %offset = load i64, ptr %offset.at
  %address.at = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %address.at
  %address = add i64 %base, %offset
  %to = getelementptr i64, ptr %buffers, i64 %b
  store i64 %address, ptr %to
  %b.next = add i64 %b, 1
  br label %buffer
map:
  %j = phi i64 [ 0, %buffer ], [ %j.next, %told ]
  %j.more = icmp ult i64 %j, %map.count
  br i1 %j.more, label %tell, label %start
tell:
  %m0 = getelementptr [9 x i64], ptr %maps, i64 %j
  %m.slot = load i64, ptr %m0
  %m1 = getelementptr i64, ptr %m0, i64 1
  %m.offset = load i64, ptr %m1
  %m2 = getelementptr i64, ptr %m0, i64 2
  %m.told = load ptr, ptr %m2
  %m3 = getelementptr i64, ptr %m0, i64 3
  %m.kind.wide = load i64, ptr %m3
  %m.kind = trunc i64 %m.kind.wide to i32
  %m4 = getelementptr i64, ptr %m0, i64 4
  %m.extents = load ptr, ptr %m4
  %m5 = getelementptr i64, ptr %m0, i64 5
  %m.strides = load ptr, ptr %m5
  %m6 = getelementptr i64, ptr %m0, i64 6
  %m.box = load ptr, ptr %m6
  %m7 = getelementptr i64, ptr %m0, i64 7
  %m.steps = load ptr, ptr %m7
  %m8 = getelementptr i64, ptr %m0, i64 8
  %m.numbers = load ptr, ptr %m8
  %m.at = getelementptr i64, ptr %slots, i64 %m.slot
  %m.base = load i64, ptr %m.at
  %m.address = add i64 %m.base, %m.offset
  %m.odd = and i64 %m.address, 15
  %m.whole = icmp eq i64 %m.odd, 0
  br i1 %m.whole, label %number, label %told
number:
  %d = phi i64 [ 0, %tell ], [ %d.next, %number ]
  %d0 = getelementptr [3 x i64], ptr %m.numbers, i64 %d
  %d.from = load ptr, ptr %d0
  %d1 = getelementptr i64, ptr %d0, i64 1
  %d.factor = load i64, ptr %d1
  %d2 = getelementptr i64, ptr %d0, i64 2
  %d.to = load ptr, ptr %d2
  %d.value = load i64, ptr %d.from
  %d.product = mul i64 %d.value, %d.factor
  store i64 %d.product, ptr %d.to
  %d.next = add i64 %d, 1
  %d.more = icmp ult i64 %d.next, 5
  br i1 %d.more, label %number, label %encode.now
encode.now:
  %m.pointer = inttoptr i64 %m.address to ptr
  %m.code = call i32 %encode(ptr %m.told, i32 %m.kind, i32 3, ptr %m.pointer, ptr %m.extents,
    ptr %m.strides, ptr %m.box, ptr %m.steps, i32 0, i32 3, i32 3, i32 0)
  %m.bad = icmp ne i32 %m.code, 0
  br i1 %m.bad, label %failed, label %told
told:
  %j.next = add i64 %j, 1
  br label %map
start:
  %none = icmp eq i32 %grid, 0
  br i1 %none, label %after, label %go
go:
  %r11 = getelementptr i64, ptr %r, i64 11
  %attributes = load ptr, ptr %r11
  %attributed = icmp ne ptr %attributes, null
  %attribute.count = zext i1 %attributed to i64
  store i32 %grid, ptr %config
  store i32 %group, ptr %c.group
  store i32 %shared, ptr %c.shared
  store ptr %attributes, ptr %c.attributes
  store i64 %attribute.count, ptr %c.count
  %code = call i32 %launch(ptr %config, ptr %function, ptr %parameters, ptr null)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %after
after:
  %m = add i64 %n, 1
  br label %next
failed:
  %error = phi i32 [ %m.code, %encode.now ], [ %code, %go ], [ -1, %library ], [ -1, %ask ]
  %step = add i64 %n, 1
  %high = shl i64 %step, 32
  %low = zext i32 %error to i64
  %both = or i64 %high, %low
  ret i64 %both
good:
  ret i64 0
}
define void @numus_cuda_call(ptr %head) {
@HEAD@
  %failure = call i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count,
    ptr %slots, ptr %stream)
  store i64 %failure, ptr %failed
  store i64 %number, ptr %last
  ret void
}
"""
SYMBOLS = ("numus_cuda_run", "numus_cuda_call")


def _written_out(source: str) -> str:
    """The source with the lines in which every word is read."""
    head = [
        f"  %h{i} = getelementptr i64, ptr %head, i64 {i}\n"
        f"  %{name} = load {'i64' if name in ('count', 'number') else 'ptr'}, ptr %h{i}"
        for i, name in enumerate(HEAD)
    ]
    return source.replace("@HEAD@", "\n".join(head))


SOURCE = vendor_source.SOURCE + _written_out(_TEXT)
