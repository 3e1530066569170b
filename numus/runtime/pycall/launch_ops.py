"""Opcodes of the fast-call VM for launches, recycled outputs and the bounds of pending graphs."""

from __future__ import annotations

# Record read by ADD_OPERAND: offsets of slots, the descriptor of Memory.nbytes, and None.
PENDING = (
    *("view", "depth", "retained_bytes", "shape", "dtype", "itemsize", "storage", "memory"),
    *("nbytes", "none"),
)
# Words of a recycled output (`contract.RecycledOutput`): the object, its address, its parts, then
# pairs of a slot's address and the object the slot must hold.
OUTPUT_PARTS = 3
OUTPUT_SLOTS = 2
OUTPUT_WORDS = 2 + OUTPUT_PARTS + 2 * OUTPUT_SLOTS


def _check_unused(output: str) -> str:
    """Sets %unused: every part has one reference, and every slot holds its idle value.

    The first word of an object, or its lower half, is its reference count.
    """
    lines = []
    for i in range(OUTPUT_PARTS):
        lines += [
            f"  %part{i} = ptr {output}[{2 + i}]",
            f"  %count{i} = load i32, ptr %part{i}",
            f"  %ok{i} = icmp eq i32 %count{i}, 1",
        ]
    for i in range(OUTPUT_PARTS, OUTPUT_PARTS + OUTPUT_SLOTS):
        word = 2 + OUTPUT_PARTS + 2 * (i - OUTPUT_PARTS)
        lines += [
            f"  %slot{i} = ptr {output}[{word}]",
            f"  %is{i} = load ptr, ptr %slot{i}",
            f"  %be{i} = ptr {output}[{word + 1}]",
            f"  %ok{i} = icmp eq ptr %is{i}, %be{i}",
        ]
    known = "%ok0"
    for i in range(1, OUTPUT_PARTS + OUTPUT_SLOTS):
        name = "%unused" if i == OUTPUT_PARTS + OUTPUT_SLOTS - 1 else f"%all{i}"
        lines.append(f"  {name} = and i1 {known}, %ok{i}")
        known = name
    return "\n".join(lines)


LAUNCH_OPS = """
STORE_ADDRESS: the word at z = the int `a` + y * the int `x`
  %offset_object = reg %x
  !%offset = i64 PyLong_AsLongLong(ptr %offset_object)
  %offset_bytes = mul i64 %offset, %y
  %address_object = reg %a
  !%address_base = ptr PyLong_AsVoidPtr(ptr %address_object)
  %address_number = ptrtoint ptr %address_base to i64
  %address_sum = add i64 %address_number, %offset_bytes
  store i64 %address_sum, ptr %zp
  br label %next

RECYCLE: an unused output of those at x: `a` = it, word z = its address, skip y instructions
  %recycle_count = load i64, ptr %xp
  %recycle_first = getelementptr i64, ptr %xp, i64 1
  br label %search
search:
  %tried = phi i64 [ 0, %RECYCLE ], [ %tried1, %in_use ]
  br slt i64 %tried, %recycle_count, label %ask, label %next
ask:
  %tried1 = add i64 %tried, 1
  %recycle_words = mul i64 %tried, $OUTPUT_WORDS$
  %output = getelementptr i64, ptr %recycle_first, i64 %recycle_words
  $UNUSED$
  br i1 %unused, label %reuse, label %in_use
in_use:
  br label %search
reuse:
  %recycled = load ptr, ptr %output
  %recycled_address = i64 %output[1]
  store i64 %recycled_address, ptr %zp
  !void Py_IncRef(ptr %recycled)
  store ptr %recycled, ptr %at
  br label %jump

LAUNCH: run the command buffer; guard: the word at y is x before, that at z is 0 afterwards
  %state = load atomic i64, ptr %yp monotonic, align 8
  br eq i64 %state, %x, label %launch, label %guard_failed
launch:
  ?ptr commands, ptr run, at ticks, i64 gil_ticks = HEADER of %code
  %ticks = load i64, ptr %ticks.at
  %before = call i64 @numus_ticks()
  br ult i64 %ticks, %gil_ticks, label %with_gil, label %without_gil
with_gil:
  call void %run(ptr %commands)
  br label %ran
without_gil:
  !%thread = ptr PyEval_SaveThread()
  call void %run(ptr %commands)
  !void PyEval_RestoreThread(ptr %thread)
  br label %ran
ran:
  %now = call i64 @numus_ticks()
  %passed = sub i64 %now, %before
  store i64 %passed, ptr %ticks.at
  %wrong_ = load i64, ptr %zp
  guard eq i64 %wrong_, 0

ADD_OPERAND: account for the operand `a` of the graph under construction (x: a PENDING record)
  ?ptr none, ptr nbytes = PENDING of %xp
  %operand_node = reg %a
  %operand_view = field %operand_node, view
  br eq ptr %operand_view, %none, label %operand_pending_node, label %operand_realised
operand_pending_node:
  ; a pending node: its depth and the bytes it retains
  %operand_depth_object = field %operand_node, depth
  !%operand_depth = i64 PyLong_AsLongLong(ptr %operand_depth_object)
  %depth_before = load i64, ptr %depth
  %depth_now = call i64 @llvm.smax.i64(i64 %operand_depth, i64 %depth_before)
  store i64 %depth_now, ptr %depth
  %operand_retained_object = field %operand_node, retained_bytes
  !%operand_retained = i64 PyLong_AsLongLong(ptr %operand_retained_object)
  %retained_before = load i64, ptr %retained
  %retained_now = call i64 @llvm.smax.i64(i64 %operand_retained, i64 %retained_before)
  store i64 %retained_now, ptr %retained
  br label %next
operand_realised:
  ; a value: the bytes of its elements, at most those of its memory (broadcast strides)
  %operand_storage = field %operand_view, storage
  %operand_memory = field %operand_storage, memory
  !%operand_memory_bytes_object = ptr descr_get(ptr %nbytes, ptr %operand_memory, ptr null)
  br ne ptr %operand_memory_bytes_object, null, label %operand_size, label %failed
operand_size:
  !%operand_memory_bytes = i64 PyLong_AsLongLong(ptr %operand_memory_bytes_object)
  !void Py_DecRef(ptr %operand_memory_bytes_object)
  %operand_dtype = field %operand_node, dtype
  %operand_item_object = field %operand_dtype, itemsize
  !%operand_item = i64 PyLong_AsLongLong(ptr %operand_item_object)
  %operand_shape = field %operand_node, shape
  !%operand_rank = i64 PyTuple_Size(ptr %operand_shape)
  br label %operand_axis
operand_axis:
  %operand_i = phi i64 [ 0, %operand_size ], [ %operand_j, %operand_extent ]
  %operand_bytes = phi i64 [ %operand_item, %operand_size ], [ %operand_more, %operand_extent ]
  br slt i64 %operand_i, %operand_rank, label %operand_extent, label %operand_all
operand_extent:
  !%operand_extent_object = ptr PyTuple_GetItem(ptr %operand_shape, i64 %operand_i)
  !%operand_n = i64 PyLong_AsLongLong(ptr %operand_extent_object)
  %operand_more = mul i64 %operand_bytes, %operand_n
  %operand_j = add i64 %operand_i, 1
  br label %operand_axis
operand_all:
  %operand_own = call i64 @llvm.smin.i64(i64 %operand_bytes, i64 %operand_memory_bytes)
  %direct_before = load i64, ptr %direct
  %direct_now = add i64 %direct_before, %operand_own
  store i64 %direct_now, ptr %direct
  br label %next

PENDING_BOUNDS: `a`, `x` = depth (+ y) and retained bytes of the graph; guard: the limits at z
  %bounds_below = load i64, ptr %depth
  %bounds_depth = add i64 %bounds_below, %y
  %bounds_retained = load i64, ptr %retained
  %bounds_direct = load i64, ptr %direct
  %bounds_bytes = add i64 %bounds_retained, %bounds_direct
  %bounds_max_depth = load i64, ptr %zp
  %bounds_max_bytes = i64 %zp[1]
  %bounds_deep = icmp sgt i64 %bounds_depth, %bounds_max_depth
  %bounds_large = icmp sgt i64 %bounds_bytes, %bounds_max_bytes
  %bounds_inherited = icmp sgt i64 %bounds_retained, %bounds_direct
  %bounds_flush = and i1 %bounds_large, %bounds_inherited
  %bounds_exceeded = or i1 %bounds_deep, %bounds_flush
  br i1 %bounds_exceeded, label %guard_failed, label %bounds_ok
bounds_ok:
  !%bounds_depth_object = ptr PyLong_FromLongLong(i64 %bounds_depth)
  store ptr %bounds_depth_object, ptr %at
  !%bounds_bytes_object = ptr PyLong_FromLongLong(i64 %bounds_bytes)
  %registers[%x] = ptr %bounds_bytes_object
  br label %next
""".replace("$OUTPUT_WORDS$", str(OUTPUT_WORDS)).replace("  $UNUSED$", _check_unused("%output"))
