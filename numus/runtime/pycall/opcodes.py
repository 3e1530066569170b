"""What native calls can do: the steps of their tables, in words and in LLVM IR (`calls_source`)."""

from __future__ import annotations

STEP = 5  # words of a step

# What a step does with its operands (a register unless it says otherwise).
STEPS = {
    "end": "give `a`",
    "argument": "`a` is argument number x",
    "object": "`a` is the object x",
    "call": "`a` is what the object x gives when it is called",
    "get": "`a` is the member y (a descriptor) of `x`",
    "load": "`a` is the slot at offset y of `x`, whose type is known",
    "has": "miss unless the slot at offset x of `a` is the object y",
    "like": "miss unless the slot at offset x of `a` equals the object y",
    "element": "`a` is element y of the tuple `x`",
    "attribute": "`a` is the attribute y (a string) of the object x",
    "is": "`a` is `x`",
    "common": "`a` is `x`, or `y` if `x` is the object z; miss if neither is, and they are two",
    "wider": "`a` is the tuple `x`, or `y` if `x` is empty; miss if neither is, and they differ",
    "number": "`a` is argument x, a float; or of it, if it is an int (y, z: these types)",
    "plus": "`a` is the int `x` plus y",
    "skip": "go on y steps further, if `a` is the object x",
    "same": "miss unless `a` is the object x",
    "holds": "miss unless the dict `a` has y under the key x, or nothing there and z is 1",
    "empty": "miss unless the object x has length 0",
    "differs": "miss if the slot at offset x of `a` is the object y",
    "twins": "miss unless `a` and `x` are one object; or, if y is 1, if they are",
    "counts": "miss unless `a` has length x",
    "holders": "miss unless `a` is held x times; or, if y is 1, more often",
    "digits": "miss unless the slot at offset x of `a` is a number with the bits y as a float",
    "place": "the word at z becomes the int `a` plus y times the int `x`",
    "fresh": "if there is one, `a` is the first of the pieces at x (behind their number) that "
    "nobody uses, the word at z becomes its address, and it goes on y steps further",
    "reach": "the graph that the call makes stands on the node `a` (x: where things are, `REACH`)",
    "reached": "`a` is its depth, y levels above that of what it stands on, and `x` how many bytes "
    "it holds; miss if one is past its limit (the two words at z)",
    "run": "run the launches; miss unless the word at y is x, and that at z is 0 afterwards",
    "new": "`a` is a new object of type x",
    "set": "the member x of `a` becomes `y`",
    "put": "the member x of `a` becomes the object y",
    "link": "the slot at offset x of `a`, which is new, becomes `y`",
    "fill": "the slot at offset x of `a`, which is new, becomes the object y",
    "weak": "`a` is a weak reference to `x`",
    "tuple": "`a` is a new tuple of length x",
    "item": "item x of the tuple `a` becomes `y`",
}
# What `reach` has to know: offsets of slots, the member that tells bytes of memory, and None.
REACH = (
    *("view", "depth", "pinned", "shape", "dtype", "itemsize", "storage", "memory"),
    *("nbytes", "none"),
)
CODES = {name: i for i, name in enumerate(STEPS)}

# Words of a piece (`contract.Piece`): the thing, its address, its parts, then pairs of the address
# of a slot and what it has to hold.
PARTS = 3
SLOTS = 3
PIECE = 2 + PARTS + 2 * SLOTS


def _unused(piece: str) -> str:
    """Sets %unused: whether each part of a piece is held once, and each slot holds what it should.

    The first word of an object, or its lower half, counts the references to it.
    """
    lines = []
    for i in range(PARTS):
        lines += [
            f"  %part{i}_at = getelementptr i64, ptr {piece}, i64 {2 + i}",
            f"  %part{i} = load ptr, ptr %part{i}_at",
            f"  %count{i} = load i32, ptr %part{i}",
            f"  %ok{i} = icmp eq i32 %count{i}, 1",
        ]
    for i in range(PARTS, PARTS + SLOTS):
        word = 2 + PARTS + 2 * (i - PARTS)
        lines += [
            f"  %slot{i}_at = getelementptr i64, ptr {piece}, i64 {word}",
            f"  %slot{i} = load ptr, ptr %slot{i}_at",
            f"  %is{i} = load ptr, ptr %slot{i}",
            f"  %be{i}_at = getelementptr i64, ptr {piece}, i64 {word + 1}",
            f"  %be{i} = load ptr, ptr %be{i}_at",
            f"  %ok{i} = icmp eq ptr %is{i}, %be{i}",
        ]
    known = "%ok0"
    for i in range(1, PARTS + SLOTS):
        name = "%unused" if i == PARTS + SLOTS - 1 else f"%all{i}"
        lines.append(f"  {name} = and i1 {known}, %ok{i}")
        known = name
    return "\n".join(lines)


def _slot_compared(name: str, how: str) -> str:
    """Whether a slot of the object in a register holds a certain object, or another."""
    return f"""
  %{name}_object = load ptr, ptr %at
  %{name}_at = getelementptr i8, ptr %{name}_object, i64 %x
  %{name}_ = load ptr, ptr %{name}_at
  %{name}_ok = icmp {how} ptr %{name}_, %yp
  br i1 %{name}_ok, label %next, label %miss"""


BODIES = {
    "end": """
  %given = load ptr, ptr %at
  store ptr null, ptr %at
  br label %close""",
    "argument": """
  %argument_at = getelementptr ptr, ptr %args, i64 %x
  %argument_ = load ptr, ptr %argument_at
  !void Py_IncRef(ptr %argument_)
  store ptr %argument_, ptr %at
  br label %next""",
    "object": """
  !void Py_IncRef(ptr %xp)
  store ptr %xp, ptr %at
  br label %next""",
    "call": """
  !%called = ptr PyObject_CallNoArgs(ptr %xp)
  store ptr %called, ptr %at
  %call_ok = icmp ne ptr %called, null
  br i1 %call_ok, label %next, label %raised""",
    "get": """
  #%get_from = %x
  %get_object = load ptr, ptr %get_from
  !%got = ptr descr_get(ptr %yp, ptr %get_object, ptr null)
  store ptr %got, ptr %at
  %get_ok = icmp ne ptr %got, null
  br i1 %get_ok, label %next, label %failed""",
    "load": """
  #%load_from = %x
  %load_object = load ptr, ptr %load_from
  %load_at = getelementptr i8, ptr %load_object, i64 %y
  %loaded = load ptr, ptr %load_at
  !void Py_IncRef(ptr %loaded)
  store ptr %loaded, ptr %at
  %load_ok = icmp ne ptr %loaded, null
  br i1 %load_ok, label %next, label %miss""",
    "has": _slot_compared("has", "eq"),
    "like": """
  %like_object = load ptr, ptr %at
  %like_at = getelementptr i8, ptr %like_object, i64 %x
  %like_ = load ptr, ptr %like_at
  %like_same = icmp eq ptr %like_, %yp
  br i1 %like_same, label %next, label %look
look:
  %like_null = icmp eq ptr %like_, null
  br i1 %like_null, label %miss, label %like_compare
like_compare:
  !%like_compared = i32 PyObject_RichCompareBool(ptr %like_, ptr %yp, i32 2)
  %like_ok = icmp sgt i32 %like_compared, 0
  br i1 %like_ok, label %next, label %failed""",
    "element": """
  #%element_of = %x
  %element_tuple = load ptr, ptr %element_of
  !%element_ = ptr PyTuple_GetItem(ptr %element_tuple, i64 %y)
  !void Py_IncRef(ptr %element_)
  store ptr %element_, ptr %at
  %element_ok = icmp ne ptr %element_, null
  br i1 %element_ok, label %next, label %failed""",
    "attribute": """
  !%attribute_ = ptr PyObject_GetAttr(ptr %xp, ptr %yp)
  store ptr %attribute_, ptr %at
  %attribute_ok = icmp ne ptr %attribute_, null
  br i1 %attribute_ok, label %next, label %failed""",
    "is": """
  #%is_from = %x
  %is_ = load ptr, ptr %is_from
  %is_before = load ptr, ptr %at
  !void Py_IncRef(ptr %is_)
  store ptr %is_, ptr %at
  !void Py_DecRef(ptr %is_before)
  br label %next""",
    "common": """
  #%common_x = %x
  %common_one = load ptr, ptr %common_x
  #%common_y = %y
  %common_other = load ptr, ptr %common_y
  %common_first = icmp ne ptr %common_one, %zp
  %common_second = icmp ne ptr %common_other, %zp
  %common_two = icmp ne ptr %common_one, %common_other
  %common_both = and i1 %common_first, %common_second
  %common_odd = and i1 %common_both, %common_two
  %common_ = select i1 %common_first, ptr %common_one, ptr %common_other
  br i1 %common_odd, label %miss, label %common_ok
common_ok:
  !void Py_IncRef(ptr %common_)
  store ptr %common_, ptr %at
  br label %next""",
    "wider": """
  #%wider_x = %x
  %wider_one = load ptr, ptr %wider_x
  #%wider_y = %y
  %wider_other = load ptr, ptr %wider_y
  %wider_same = icmp eq ptr %wider_one, %wider_other
  br i1 %wider_same, label %wider_give, label %wider_look
wider_look:
  !%wider_rank = i64 PyTuple_Size(ptr %wider_one)
  %wider_none = icmp eq i64 %wider_rank, 0
  br i1 %wider_none, label %wider_give, label %wider_second
wider_second:
  !%wider_other_rank = i64 PyTuple_Size(ptr %wider_other)
  %wider_other_none = icmp eq i64 %wider_other_rank, 0
  br i1 %wider_other_none, label %wider_give, label %wider_compare
wider_compare:
  !%wider_compared = i32 PyObject_RichCompareBool(ptr %wider_one, ptr %wider_other, i32 2)
  %wider_ok = icmp sgt i32 %wider_compared, 0
  br i1 %wider_ok, label %wider_give, label %failed
wider_give:
  %wider_ = phi ptr [ %wider_one, %wider ], [ %wider_other, %wider_look ],
    [ %wider_one, %wider_second ], [ %wider_one, %wider_compare ]
  !void Py_IncRef(ptr %wider_)
  store ptr %wider_, ptr %at
  br label %next""",
    "number": """
  %number_at = getelementptr ptr, ptr %args, i64 %x
  %number_given = load ptr, ptr %number_at
  !%number_type = ptr PyObject_Type(ptr %number_given)
  !void Py_DecRef(ptr %number_type)
  %number_float = icmp eq ptr %number_type, %yp
  br i1 %number_float, label %number_itself, label %number_other
number_itself:
  !void Py_IncRef(ptr %number_given)
  store ptr %number_given, ptr %at
  br label %next
number_other:
  %number_int = icmp eq ptr %number_type, %zp
  br i1 %number_int, label %number_made, label %miss
number_made:
  !%number_ = ptr PyNumber_Float(ptr %number_given)
  store ptr %number_, ptr %at
  %number_ok = icmp ne ptr %number_, null
  br i1 %number_ok, label %next, label %failed""",
    "plus": """
  #%plus_x = %x
  %plus_object = load ptr, ptr %plus_x
  !%plus_before = i64 PyLong_AsLongLong(ptr %plus_object)
  %plus_sum = add i64 %plus_before, %y
  !%plus_ = ptr PyLong_FromLongLong(i64 %plus_sum)
  store ptr %plus_, ptr %at
  %plus_ok = icmp ne ptr %plus_, null
  br i1 %plus_ok, label %next, label %raised""",
    "skip": """
  %skip_it = load ptr, ptr %at
  %skip_is = icmp eq ptr %skip_it, %xp
  br i1 %skip_is, label %jump, label %next""",
    "same": """
  %same_ = load ptr, ptr %at
  %same_ok = icmp eq ptr %same_, %xp
  br i1 %same_ok, label %next, label %miss""",
    "holds": """
  %holder = load ptr, ptr %at
  !%held_there = ptr PyDict_GetItemWithError(ptr %holder, ptr %xp)
  %holds_ok = icmp eq ptr %held_there, %yp
  br i1 %holds_ok, label %next, label %lacks
lacks:
  %holds_none = icmp eq ptr %held_there, null
  %default = icmp eq i64 %z, 1
  %lacks_ok = and i1 %holds_none, %default
  br i1 %lacks_ok, label %next, label %failed""",
    "empty": """
  !%length = i64 PyObject_Size(ptr %xp)
  %empty_ok = icmp eq i64 %length, 0
  br i1 %empty_ok, label %next, label %failed""",
    "differs": _slot_compared("differs", "ne"),
    "twins": """
  %twin = load ptr, ptr %at
  #%twins_at = %x
  %twins_other = load ptr, ptr %twins_at
  %twins_same = icmp eq ptr %twin, %twins_other
  %twins_one = icmp eq i64 %y, 0
  %twins_ok = icmp eq i1 %twins_same, %twins_one
  br i1 %twins_ok, label %next, label %miss""",
    "counts": """
  %counted = load ptr, ptr %at
  !%counts_length = i64 PyObject_Size(ptr %counted)
  %counts_ok = icmp eq i64 %counts_length, %x
  br i1 %counts_ok, label %next, label %failed""",
    "holders": """
  %holders_of = load ptr, ptr %at
  %holders_count = load i32, ptr %holders_of
  %holders_wanted = trunc i64 %x to i32
  %holders_same = icmp eq i32 %holders_count, %holders_wanted
  %holders_more = icmp ugt i32 %holders_count, %holders_wanted
  %holders_others = icmp eq i64 %y, 1
  %holders_ok = select i1 %holders_others, i1 %holders_more, i1 %holders_same
  br i1 %holders_ok, label %next, label %miss""",
    "digits": """
  %digits_object = load ptr, ptr %at
  %digits_at = getelementptr i8, ptr %digits_object, i64 %x
  %digits_number = load ptr, ptr %digits_at
  !%digits_value = double PyFloat_AsDouble(ptr %digits_number)
  %digits_bits = bitcast double %digits_value to i64
  %digits_ok = icmp eq i64 %digits_bits, %y
  br i1 %digits_ok, label %next, label %failed""",
    "place": """
  #%offset_at = %x
  %offset_object = load ptr, ptr %offset_at
  !%offset = i64 PyLong_AsLongLong(ptr %offset_object)
  %offset_bytes = mul i64 %offset, %y
  %place_object = load ptr, ptr %at
  !%place_base = ptr PyLong_AsVoidPtr(ptr %place_object)
  %place_number = ptrtoint ptr %place_base to i64
  %place_sum = add i64 %place_number, %offset_bytes
  store i64 %place_sum, ptr %zp
  br label %next""",
    "fresh": f"""
  %room = load i64, ptr %xp
  %pieces = getelementptr i64, ptr %xp, i64 1
  br label %search
search:
  %tried = phi i64 [ 0, %fresh ], [ %tried1, %taken ]
  %some = icmp slt i64 %tried, %room
  br i1 %some, label %ask, label %next
ask:
  %tried1 = add i64 %tried, 1
  %before_it = mul i64 %tried, {PIECE}
  %piece = getelementptr i64, ptr %pieces, i64 %before_it
{_unused("%piece")}
  br i1 %unused, label %reuse, label %taken
taken:
  br label %search
reuse:
  %thing = load ptr, ptr %piece
  %there_at = getelementptr i64, ptr %piece, i64 1
  %there = load i64, ptr %there_at
  store i64 %there, ptr %zp
  !void Py_IncRef(ptr %thing)
  store ptr %thing, ptr %at
  br label %jump""",
    "reach": """
  ?%reach_view_offset = i64 REACH.view of %xp
  ?%reach_none = ptr REACH.none of %xp
  %reach_node = load ptr, ptr %at
  %reach_view_at = getelementptr i8, ptr %reach_node, i64 %reach_view_offset
  %reach_view = load ptr, ptr %reach_view_at
  %reach_pending = icmp eq ptr %reach_view, %reach_none
  br i1 %reach_pending, label %reach_through, label %reach_there
reach_through:
  ; of a pending node: how deep it is, and what it holds already
  ?%reach_depth_offset = i64 REACH.depth of %xp
  %reach_depth_at = getelementptr i8, ptr %reach_node, i64 %reach_depth_offset
  %reach_depth_object = load ptr, ptr %reach_depth_at
  !%reach_depth = i64 PyLong_AsLongLong(ptr %reach_depth_object)
  %depth_before = load i64, ptr %depth
  %depth_now = call i64 @llvm.smax.i64(i64 %reach_depth, i64 %depth_before)
  store i64 %depth_now, ptr %depth
  ?%reach_pinned_offset = i64 REACH.pinned of %xp
  %reach_pinned_at = getelementptr i8, ptr %reach_node, i64 %reach_pinned_offset
  %reach_pinned_object = load ptr, ptr %reach_pinned_at
  !%reach_pinned = i64 PyLong_AsLongLong(ptr %reach_pinned_object)
  %pinned_before = load i64, ptr %pinned
  %pinned_now = call i64 @llvm.smax.i64(i64 %reach_pinned, i64 %pinned_before)
  store i64 %pinned_now, ptr %pinned
  br label %next
reach_there:
  ; of a value: its elements' bytes, or the memory's where the same elements are seen often
  ?%reach_storage_offset = i64 REACH.storage of %xp
  %reach_storage_at = getelementptr i8, ptr %reach_view, i64 %reach_storage_offset
  %reach_storage = load ptr, ptr %reach_storage_at
  ?%reach_memory_offset = i64 REACH.memory of %xp
  %reach_memory_at = getelementptr i8, ptr %reach_storage, i64 %reach_memory_offset
  %reach_memory = load ptr, ptr %reach_memory_at
  ?%reach_nbytes = ptr REACH.nbytes of %xp
  !%reach_held_object = ptr descr_get(ptr %reach_nbytes, ptr %reach_memory, ptr null)
  %reach_is_memory = icmp ne ptr %reach_held_object, null
  br i1 %reach_is_memory, label %reach_size, label %failed
reach_size:
  !%reach_held = i64 PyLong_AsLongLong(ptr %reach_held_object)
  !void Py_DecRef(ptr %reach_held_object)
  ?%reach_dtype_offset = i64 REACH.dtype of %xp
  %reach_dtype_at = getelementptr i8, ptr %reach_node, i64 %reach_dtype_offset
  %reach_dtype = load ptr, ptr %reach_dtype_at
  ?%reach_item_offset = i64 REACH.itemsize of %xp
  %reach_item_at = getelementptr i8, ptr %reach_dtype, i64 %reach_item_offset
  %reach_item_object = load ptr, ptr %reach_item_at
  !%reach_item = i64 PyLong_AsLongLong(ptr %reach_item_object)
  ?%reach_shape_offset = i64 REACH.shape of %xp
  %reach_shape_at = getelementptr i8, ptr %reach_node, i64 %reach_shape_offset
  %reach_shape = load ptr, ptr %reach_shape_at
  !%reach_rank = i64 PyTuple_Size(ptr %reach_shape)
  br label %reach_axis
reach_axis:
  %reach_i = phi i64 [ 0, %reach_size ], [ %reach_j, %reach_extent ]
  %reach_bytes = phi i64 [ %reach_item, %reach_size ], [ %reach_more, %reach_extent ]
  %reach_left = icmp slt i64 %reach_i, %reach_rank
  br i1 %reach_left, label %reach_extent, label %reach_all
reach_extent:
  !%reach_extent_object = ptr PyTuple_GetItem(ptr %reach_shape, i64 %reach_i)
  !%reach_n = i64 PyLong_AsLongLong(ptr %reach_extent_object)
  %reach_more = mul i64 %reach_bytes, %reach_n
  %reach_j = add i64 %reach_i, 1
  br label %reach_axis
reach_all:
  %reach_own = call i64 @llvm.smin.i64(i64 %reach_bytes, i64 %reach_held)
  %direct_before = load i64, ptr %direct
  %direct_now = add i64 %direct_before, %reach_own
  store i64 %direct_now, ptr %direct
  br label %next""",
    "reached": """
  %reached_below = load i64, ptr %depth
  %reached_depth = add i64 %reached_below, %y
  %reached_pinned = load i64, ptr %pinned
  %reached_direct = load i64, ptr %direct
  %reached_bytes = add i64 %reached_pinned, %reached_direct
  %reached_deepest = load i64, ptr %zp
  %reached_most_at = getelementptr i64, ptr %zp, i64 1
  %reached_most = load i64, ptr %reached_most_at
  %reached_deep = icmp sgt i64 %reached_depth, %reached_deepest
  %reached_much = icmp sgt i64 %reached_bytes, %reached_most
  %reached_before = icmp sgt i64 %reached_pinned, %reached_direct
  %reached_full = and i1 %reached_much, %reached_before
  %reached_past = or i1 %reached_deep, %reached_full
  br i1 %reached_past, label %miss, label %reached_ok
reached_ok:
  !%reached_depth_object = ptr PyLong_FromLongLong(i64 %reached_depth)
  store ptr %reached_depth_object, ptr %at
  !%reached_bytes_object = ptr PyLong_FromLongLong(i64 %reached_bytes)
  #%reached_bytes_at = %x
  store ptr %reached_bytes_object, ptr %reached_bytes_at
  br label %next""",
    "run": """
  ?%image_at = HEAD.image of %table
  ?%run_at = HEAD.run of %table
  ?%ticks_at = HEAD.ticks of %table
  ?%short_at = HEAD.short of %table
  %state = load atomic i64, ptr %yp monotonic, align 8
  %as_planned = icmp eq i64 %state, %x
  br i1 %as_planned, label %launch, label %miss
launch:
  %image = load ptr, ptr %image_at
  %start = load ptr, ptr %run_at
  %ticks = load i64, ptr %ticks_at
  %short = load i64, ptr %short_at
  %before = call i64 @numus_ticks()
  %is_short = icmp ult i64 %ticks, %short
  br i1 %is_short, label %quick, label %slow
quick:
  call void %start(ptr %image)
  br label %ran
slow:
  !%thread = ptr PyEval_SaveThread()
  call void %start(ptr %image)
  !void PyEval_RestoreThread(ptr %thread)
  br label %ran
ran:
  %now = call i64 @numus_ticks()
  %passed = sub i64 %now, %before
  store i64 %passed, ptr %ticks_at
  %wrong_ = load i64, ptr %zp
  %ran_ok = icmp eq i64 %wrong_, 0
  br i1 %ran_ok, label %next, label %miss""",
    "new": """
  !%made_ = ptr PyType_GenericAlloc(ptr %xp, i64 0)
  store ptr %made_, ptr %at
  %new_ok = icmp ne ptr %made_, null
  br i1 %new_ok, label %next, label %raised""",
    "set": """
  %set_object = load ptr, ptr %at
  #%set_from = %y
  %set_value = load ptr, ptr %set_from
  !%set_ = i32 descr_set(ptr %xp, ptr %set_object, ptr %set_value)
  %set_ok = icmp eq i32 %set_, 0
  br i1 %set_ok, label %next, label %failed""",
    "put": """
  %put_object = load ptr, ptr %at
  !%put_ = i32 descr_set(ptr %xp, ptr %put_object, ptr %yp)
  %put_ok = icmp eq i32 %put_, 0
  br i1 %put_ok, label %next, label %failed""",
    "link": """
  %link_object = load ptr, ptr %at
  %link_at = getelementptr i8, ptr %link_object, i64 %x
  #%link_from = %y
  %link_value = load ptr, ptr %link_from
  !void Py_IncRef(ptr %link_value)
  store ptr %link_value, ptr %link_at
  br label %next""",
    "fill": """
  %fill_object = load ptr, ptr %at
  %fill_at = getelementptr i8, ptr %fill_object, i64 %x
  !void Py_IncRef(ptr %yp)
  store ptr %yp, ptr %fill_at
  br label %next""",
    "weak": """
  #%weak_of = %x
  %weak_object = load ptr, ptr %weak_of
  !%weak_ = ptr PyWeakref_NewRef(ptr %weak_object, ptr null)
  store ptr %weak_, ptr %at
  %weak_ok = icmp ne ptr %weak_, null
  br i1 %weak_ok, label %next, label %raised""",
    "tuple": """
  !%tuple_ = ptr PyTuple_New(i64 %x)
  store ptr %tuple_, ptr %at
  %tuple_ok = icmp ne ptr %tuple_, null
  br i1 %tuple_ok, label %next, label %raised""",
    "item": """
  %item_tuple = load ptr, ptr %at
  #%item_at = %y
  %item_ = load ptr, ptr %item_at
  !void Py_IncRef(ptr %item_)
  !%item_set = i32 PyTuple_SetItem(ptr %item_tuple, i64 %x, ptr %item_)
  %item_ok = icmp eq i32 %item_set, 0
  br i1 %item_ok, label %next, label %failed""",
}
