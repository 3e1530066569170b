"""The native launch loop in LLVM IR, and the layout of the command buffer that it reads."""

from __future__ import annotations

from numus.runtime.cuda import graph_source, hazards, vendor_source
from numus.runtime.llvm_macros import RESOLVE_BUFFERS, expand

# Words of a launch.
RECORD = (
    *("function", "grid", "block_size", "shared", "parameters", "count", "references", "buffers"),
    *("map_count", "maps", "vendor", "attributes", "copies", "hazards"),
)
# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, allowed: a kernel may begin while the one
# before it ends, and waits for its results by itself.
PROGRAMMATIC_LAUNCH = (6, 1)
# Words of a TMA tensor. Its `count` sizes (extents, and strides in bytes) are a scalar times a
# factor. `im2col` is the address of the encoder of tensors in that mode, with corners of the box of
# pixels; 0 of others.
TENSOR_MAP = (
    "slot",
    "offset",
    "encoded",
    "dtype",
    "extents",
    "strides",
    "box",
    "steps",
    "sizes",
    "swizzle",
    *("rank", "count", "im2col", "lower", "upper"),
)
SIZE = ("from", "factor", "to")
MAX_RANK = 5
MAP_SIZES = 2 * MAX_RANK - 1
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
  ; the driver's description of a launch: sizes of grid and block, shared memory, stream, attributes
  %config = alloca [7 x i64]
  store [7 x i64] [i64 4294967296, i64 1, i64 4294967297, i64 0, i64 0, i64 0, i64 0], ptr %config
  %c.block = getelementptr i32, ptr %config, i64 3
  %c.shared = getelementptr i32, ptr %config, i64 6
  %c.stream = getelementptr i64, ptr %config, i64 4
  %c.attributes = getelementptr i64, ptr %config, i64 5
  %c.count = getelementptr i64, ptr %config, i64 6
  store ptr %stream, ptr %c.stream
  for %n in 0..%count
  %r = getelementptr [$RECORD$ x i64], ptr %records, i64 %n
  ?ptr function, ptr vendor, ptr grid = RECORD of %r
  br ne ptr %function, null, label %buffer, label %library
library:
  br eq ptr %vendor, null, label %failed, label %ask
ask:
  %v.code = call i32 @numus_cuda_vendor(ptr %vendor, ptr %slots)
  br ne i32 %v.code, 0, label %failed, label %asked
asked:
  ?ptr vendor.hazards = RECORD of %r
  call void @numus_cuda_writes(ptr %vendor.hazards, ptr null)
  br label %n.latch
buffer:
  ?i64 r.count, ptr references, ptr buffers, i64 map_count, ptr maps = RECORD of %r
  call void @resolve_buffers(ptr %buffers, ptr %references, i64 %r.count, ptr %slots)
  ?i64 copies = RECORD of %r
  br eq i64 %copies, 0, label %works, label %copier
copier:  ; there is nothing to copy in place
  %c.from = i64 %buffers[0]
  %c.to = i64 %buffers[1]
  br eq i64 %c.from, %c.to, label %n.latch, label %works
works:
  for %j in 0..%map_count
  %map = getelementptr [$TENSOR_MAP$ x i64], ptr %maps, i64 %j
  ?i64 slot, i64 offset, ptr encoded, i32 dtype, ptr extents, ptr strides = TENSOR_MAP of %map
  ?ptr box, ptr steps, ptr sizes, i32 swizzle, i32 rank, i64 m.count = TENSOR_MAP of %map
  %base = i64 %slots[%slot]
  %address = add i64 %base, %offset
  %unaligned = and i64 %address, 15
  br eq i64 %unaligned, 0, label %aligned, label %j.latch
aligned:
  for %d in 0..%m.count
  %size = getelementptr [$SIZE$ x i64], ptr %sizes, i64 %d
  ?ptr from, i64 factor, ptr to = SIZE of %size
  %scalar = load i64, ptr %from
  %product = mul i64 %scalar, %factor
  store i64 %product, ptr %to
  end
  %pointer = inttoptr i64 %address to ptr
  ?ptr im2col = TENSOR_MAP of %map
  br eq ptr %im2col, null, label %tiled, label %pixels
tiled:
  %m.code = call i32 %encode(ptr %encoded, i32 %dtype, i32 %rank, ptr %pointer, ptr %extents,
    ptr %strides, ptr %box, ptr %steps, i32 0, i32 %swizzle, i32 3, i32 0)
  br ne i32 %m.code, 0, label %failed, label %j.latch
pixels:
  ?ptr lower, ptr upper = TENSOR_MAP of %map
  %channels = i32 %box[0]
  %column = i32 %box[1]
  %p.code = call i32 %im2col(ptr %encoded, i32 %dtype, i32 %rank, ptr %pointer, ptr %extents,
    ptr %strides, ptr %lower, ptr %upper, i32 %channels, i32 %column, ptr %steps, i32 0,
    i32 %swizzle, i32 3, i32 0)
  br ne i32 %p.code, 0, label %failed, label %j.latch
  end
  %blocks = load i64, ptr %grid
  br ugt i64 %blocks, $MAX_BLOCKS$, label %failed, label %counted
counted:
  %blocks32 = trunc i64 %blocks to i32
  br eq i64 %blocks, 0, label %n.latch, label %go
go:
  ?i32 block_size, i32 shared, ptr parameters, ptr wanted.attributes, ptr hazards = RECORD of %r
  br eq ptr %wanted.attributes, null, label %alone, label %check
check:
  %clashes = call i1 @numus_cuda_clashes(ptr %hazards, ptr %buffers)
  br i1 %clashes, label %alone, label %overlap
alone:  ; all that was written before is there when it begins
  ?ptr written = TABLE of %hazards
  store i64 0, ptr %written
  br label %overlap
overlap:
  %attributes = phi ptr [ %wanted.attributes, %check ], [ null, %alone ]
  %attributed = icmp ne ptr %attributes, null
  %attribute.count = zext i1 %attributed to i64
  store i32 %blocks32, ptr %config
  store i32 %block_size, ptr %c.block
  store i32 %shared, ptr %c.shared
  store ptr %attributes, ptr %c.attributes
  store i64 %attribute.count, ptr %c.count
  %code = call i32 %launch(ptr %config, ptr %function, ptr %parameters, ptr null)
  br ne i32 %code, 0, label %failed, label %launched
launched:
  call void @numus_cuda_writes(ptr %hazards, ptr %buffers)
  br label %n.latch
failed:
  %error = phi i32 [ %m.code, %tiled ], [ %p.code, %pixels ], [ %code, %overlap ], [ -1, %library ],
    [ -1, %ask ], [ $GRID_TOO_LARGE$, %j.end ]
  %step = add i64 %n, 1
  %high = shl i64 %step, 32
  %low = zext i32 %error to i64
  %both = or i64 %high, %low
  ret i64 %both
  end
  ret i64 0
}
"""
SYMBOLS = ("numus_cuda_run", "numus_cuda_call")

SOURCE = expand(
    RESOLVE_BUFFERS + vendor_source.TEXT + hazards.TEXT + _TEXT + graph_source.TEXT,
    RECORD=RECORD,
    TENSOR_MAP=TENSOR_MAP,
    SIZE=SIZE,
    MAX_BLOCKS=MAX_BLOCKS,
    GRID_TOO_LARGE=GRID_TOO_LARGE,
    VENDOR=vendor_source.VENDOR,
    TABLE=hazards.TABLE,
    ENTRY=hazards.ENTRY,
    ADDRESS=vendor_source.ADDRESS,
    HEAD=graph_source.HEAD,
    FUNCTIONS=graph_source.FUNCTIONS,
    GRAPHS=graph_source.GRAPHS,
)
