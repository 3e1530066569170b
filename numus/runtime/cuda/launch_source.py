"""The native launch loop in LLVM IR, and the layout of the command buffer that it reads."""

from __future__ import annotations

from numus.runtime.cuda import graph_source, vendor_source
from numus.runtime.pycall.llvm_macros import RESOLVE_BUFFERS, expand

# Words of a launch.
RECORD = (
    *("function", "grid", "block size", "shared", "parameters", "count", "references", "buffers"),
    *("map count", "maps", "vendor", "attributes"),
)
# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, allowed: a kernel may begin while the one
# before it ends, and waits for its results by itself.
PROGRAMMATIC_LAUNCH = (6, 1)
# Words of a TMA tensor. Its sizes (extents, and strides in bytes) are a scalar times a factor.
TENSOR_MAP = ("slot", "offset", "encoded", "dtype", "extents", "strides", "box", "steps", "sizes")
SIZE = ("from", "factor", "to")
MAP_SIZES = 5
ENCODED_WORDS, ENCODED_ALIGNMENT = 16, 64  # of a CUtensorMap
ATTRIBUTE_WORDS = 9

MAX_BLOCKS = (1 << 31) - 1  # of a grid
GRID_TOO_LARGE = 0xFFFFFFFE  # an error code of ours, next to the driver's

# Runs the launches of a command buffer; gives 0, or the failed one (from 1 on) in the upper half
# and the driver's code in the lower (all ones: a vendor launch that Python has to make). A tensor
# that is not aligned to 16 bytes is not encoded: kernels do without TMA then.
_TEXT = """
define i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count, ptr %slots,
    ptr %stream) {
entry:
  ; the driver's description of a launch: sizes of grid and block, shared memory, stream, attributes
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
  ?%places = ptr RECORD.references of %r
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
  %map.at = getelementptr [$TENSOR_MAP$ x i64], ptr %maps, i64 %j
  ?%m.slot = i64 TENSOR_MAP.slot of %map.at
  ?%m.offset = i64 TENSOR_MAP.offset of %map.at
  ?%m.told = ptr TENSOR_MAP.encoded of %map.at
  ?%m.kind = i32 TENSOR_MAP.dtype of %map.at
  ?%m.extents = ptr TENSOR_MAP.extents of %map.at
  ?%m.strides = ptr TENSOR_MAP.strides of %map.at
  ?%m.box = ptr TENSOR_MAP.box of %map.at
  ?%m.steps = ptr TENSOR_MAP.steps of %map.at
  ?%m.numbers = ptr TENSOR_MAP.sizes of %map.at
  %m.at = getelementptr i64, ptr %slots, i64 %m.slot
  %m.base = load i64, ptr %m.at
  %m.address = add i64 %m.base, %m.offset
  %m.odd = and i64 %m.address, 15
  %m.whole = icmp eq i64 %m.odd, 0
  br i1 %m.whole, label %number, label %told
number:
  %d = phi i64 [ 0, %tell ], [ %d.next, %number ]
  %number.at = getelementptr [$SIZE$ x i64], ptr %m.numbers, i64 %d
  ?%d.from = ptr SIZE.from of %number.at
  ?%d.factor = i64 SIZE.factor of %number.at
  ?%d.to = ptr SIZE.to of %number.at
  %d.value = load i64, ptr %d.from
  %d.product = mul i64 %d.value, %d.factor
  store i64 %d.product, ptr %d.to
  %d.next = add i64 %d, 1
  %d.more = icmp ult i64 %d.next, $MAP_SIZES$
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
  %many = icmp ugt i64 %blocks, $MAX_BLOCKS$
  br i1 %many, label %failed, label %counted
counted:
  %grid = trunc i64 %blocks to i32
  %none = icmp eq i32 %grid, 0
  br i1 %none, label %after, label %go
go:
  ?%group = i32 RECORD.block size of %r
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
    [ $GRID_TOO_LARGE$, %start ]
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

_CONSTANTS = {
    "MAP_SIZES": MAP_SIZES,
    "MAX_BLOCKS": MAX_BLOCKS,
    "GRID_TOO_LARGE": GRID_TOO_LARGE,
}
_RUN = expand(_TEXT, RECORD=RECORD, TENSOR_MAP=TENSOR_MAP, SIZE=SIZE, **_CONSTANTS)
SOURCE = RESOLVE_BUFFERS + vendor_source.SOURCE + _RUN + graph_source.SOURCE
