"""The native loop that goes through launches, in LLVM IR, and how what it reads is laid out."""

from __future__ import annotations

from numus.runtime.cuda import graph_source, vendor_source
from numus.runtime.pycall.llvm_macros import RESOLVE_BUFFERS, expand

# Words of a launch in the image, in the order in which the loop reads them.
RECORD = (
    *("function", "grid", "group", "shared", "parameters", "count", "places", "buffers"),
    *("map count", "maps", "vendor", "attributes"),
)
# A launch may begin while the one before it ends: kernels that let it wait by themselves for what
# came before. The driver's attribute for that: its number, and that it is allowed.
OVERLAPS = (6, 1)
# Words of a matrix that the copying engine is told of, likewise. Its numbers, extents and strides
# in bytes, are products of a scalar and a factor.
MAP = ("slot", "offset", "told", "kind", "extents", "strides", "box", "steps", "numbers")
NUMBER = ("from", "factor", "to")
NUMBERS = 5
TOLD_WORDS, TOLD_ALIGNMENT = 16, 64  # what the driver makes of it
ATTRIBUTE_WORDS = 9

MOST_BLOCKS = (1 << 31) - 1  # of a grid
TOO_MANY = 0xFFFFFFFE  # stands for a code of the driver where a grid has more

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
  %r = getelementptr [$RECORD$ x i64], ptr %records, i64 %n
  ?%function = ptr RECORD.function of %r
  ?%vendor = ptr RECORD.vendor of %r
  %own = icmp ne ptr %function, null
  br i1 %own, label %buffer, label %library
library:
  %no.way = icmp eq ptr %vendor, null
  br i1 %no.way, label %failed, label %ask
ask:
  %v.code = call i32 @numus_cuda_vendor(ptr %vendor, ptr %slots)
  %v.bad = icmp ne i32 %v.code, 0
  br i1 %v.bad, label %failed, label %after
buffer:
  ?%buffer.count = i64 RECORD.count of %r
  ?%places = ptr RECORD.places of %r
  ?%buffers = ptr RECORD.buffers of %r
  call void @resolve_buffers(ptr %buffers, ptr %places, i64 %buffer.count, ptr %slots)
  ?%map.count = i64 RECORD.map count of %r
  ?%maps = ptr RECORD.maps of %r
  br label %map
map:
  %j = phi i64 [ 0, %buffer ], [ %j.next, %told ]
  %j.more = icmp ult i64 %j, %map.count
  br i1 %j.more, label %tell, label %start
tell:
  %map.at = getelementptr [$MAP$ x i64], ptr %maps, i64 %j
  ?%m.slot = i64 MAP.slot of %map.at
  ?%m.offset = i64 MAP.offset of %map.at
  ?%m.told = ptr MAP.told of %map.at
  ?%m.kind = i32 MAP.kind of %map.at
  ?%m.extents = ptr MAP.extents of %map.at
  ?%m.strides = ptr MAP.strides of %map.at
  ?%m.box = ptr MAP.box of %map.at
  ?%m.steps = ptr MAP.steps of %map.at
  ?%m.numbers = ptr MAP.numbers of %map.at
  %m.at = getelementptr i64, ptr %slots, i64 %m.slot
  %m.base = load i64, ptr %m.at
  %m.address = add i64 %m.base, %m.offset
  %m.odd = and i64 %m.address, 15
  %m.whole = icmp eq i64 %m.odd, 0
  br i1 %m.whole, label %number, label %told
number:
  %d = phi i64 [ 0, %tell ], [ %d.next, %number ]
  %number.at = getelementptr [$NUMBER$ x i64], ptr %m.numbers, i64 %d
  ?%d.from = ptr NUMBER.from of %number.at
  ?%d.factor = i64 NUMBER.factor of %number.at
  ?%d.to = ptr NUMBER.to of %number.at
  %d.value = load i64, ptr %d.from
  %d.product = mul i64 %d.value, %d.factor
  store i64 %d.product, ptr %d.to
  %d.next = add i64 %d, 1
  %d.more = icmp ult i64 %d.next, $NUMBERS$
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
  ?%grid.at = ptr RECORD.grid of %r
  %blocks = load i64, ptr %grid.at
  %many = icmp ugt i64 %blocks, $MOST_BLOCKS$
  br i1 %many, label %failed, label %counted
counted:
  %grid = trunc i64 %blocks to i32
  %none = icmp eq i32 %grid, 0
  br i1 %none, label %after, label %go
go:
  ?%group = i32 RECORD.group of %r
  ?%shared = i32 RECORD.shared of %r
  ?%parameters = ptr RECORD.parameters of %r
  ?%attributes = ptr RECORD.attributes of %r
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
  %error = phi i32 [ %m.code, %encode.now ], [ %code, %go ], [ -1, %library ], [ -1, %ask ],
    [ $TOO_MANY$, %start ]
  %step = add i64 %n, 1
  %high = shl i64 %step, 32
  %low = zext i32 %error to i64
  %both = or i64 %high, %low
  ret i64 %both
good:
  ret i64 0
}
"""
SYMBOLS = ("numus_cuda_run", "numus_cuda_call")

_NUMBERS = {"NUMBERS": NUMBERS, "MOST_BLOCKS": MOST_BLOCKS, "TOO_MANY": TOO_MANY}
_RUN = expand(_TEXT, RECORD=RECORD, MAP=MAP, NUMBER=NUMBER, **_NUMBERS)
SOURCE = RESOLVE_BUFFERS + vendor_source.SOURCE + _RUN + graph_source.SOURCE
