"""Opcodes of the fast-call VM that read, move and make Python objects, and jump."""

from __future__ import annotations

from numus.runtime.pycall.op import Op

OBJECT_OPS = {
    "RETURN": Op(
        "return `a`",
        """
  %given = load ptr, ptr %at
  store ptr null, ptr %at
  br label %close""",
    ),
    "LOAD_ARG": Op(
        "`a` = argument x",
        """
  %load_arg_at = getelementptr ptr, ptr %args, i64 %x
  %load_arg_ = load ptr, ptr %load_arg_at
  !void Py_IncRef(ptr %load_arg_)
  store ptr %load_arg_, ptr %at
  br label %next""",
    ),
    "LOAD_CONST": Op(
        "`a` = object x",
        """
  !void Py_IncRef(ptr %xp)
  store ptr %xp, ptr %at
  br label %next""",
    ),
    "LOAD_FLOAT_ARG": Op(
        "`a` = argument x, a float, or converted from an int (y, z: these types)",
        """
  %float_at = getelementptr ptr, ptr %args, i64 %x
  %float_given = load ptr, ptr %float_at
  !%float_type = ptr PyObject_Type(ptr %float_given)
  !void Py_DecRef(ptr %float_type)
  %float_float = icmp eq ptr %float_type, %yp
  br i1 %float_float, label %float_itself, label %float_other
float_itself:
  !void Py_IncRef(ptr %float_given)
  store ptr %float_given, ptr %at
  br label %next
float_other:
  %float_int = icmp eq ptr %float_type, %zp
  br i1 %float_int, label %float_made, label %guard_failed
float_made:
  !%float_ = ptr PyNumber_Float(ptr %float_given)
  store ptr %float_, ptr %at
  %float_ok = icmp ne ptr %float_, null
  br i1 %float_ok, label %next, label %failed""",
    ),
    "LOAD_SLOT": Op(
        "`a` = slot at offset y of `x`, whose type is known",
        """
  #%load_slot_from = %x
  %load_slot_object = load ptr, ptr %load_slot_from
  %load_slot_at = getelementptr i8, ptr %load_slot_object, i64 %y
  %loaded = load ptr, ptr %load_slot_at
  !void Py_IncRef(ptr %loaded)
  store ptr %loaded, ptr %at
  %load_slot_ok = icmp ne ptr %loaded, null
  br i1 %load_slot_ok, label %next, label %guard_failed""",
    ),
    "LOAD_ITEM": Op(
        "`a` = item y of the tuple `x`",
        """
  #%load_item_of = %x
  %load_item_tuple = load ptr, ptr %load_item_of
  !%load_item_ = ptr PyTuple_GetItem(ptr %load_item_tuple, i64 %y)
  !void Py_IncRef(ptr %load_item_)
  store ptr %load_item_, ptr %at
  %load_item_ok = icmp ne ptr %load_item_, null
  br i1 %load_item_ok, label %next, label %failed""",
    ),
    "GET_MEMBER": Op(
        "`a` = member y (a descriptor) of `x`; guards the type of `x`",
        """
  #%get_member_from = %x
  %get_member_object = load ptr, ptr %get_member_from
  !%got = ptr descr_get(ptr %yp, ptr %get_member_object, ptr null)
  store ptr %got, ptr %at
  %get_member_ok = icmp ne ptr %got, null
  br i1 %get_member_ok, label %next, label %failed""",
    ),
    "GET_ATTR": Op(
        "`a` = attribute y (a string) of the object x",
        """
  !%get_attr_ = ptr PyObject_GetAttr(ptr %xp, ptr %yp)
  store ptr %get_attr_, ptr %at
  %get_attr_ok = icmp ne ptr %get_attr_, null
  br i1 %get_attr_ok, label %next, label %failed""",
    ),
    "CALL": Op(
        "`a` = x()",
        """
  !%called = ptr PyObject_CallNoArgs(ptr %xp)
  store ptr %called, ptr %at
  %call_ok = icmp ne ptr %called, null
  br i1 %call_ok, label %next, label %raised""",
    ),
    "MOVE": Op(
        "`a` = `x`",
        """
  #%move_from = %x
  %move_ = load ptr, ptr %move_from
  %move_before = load ptr, ptr %at
  !void Py_IncRef(ptr %move_)
  store ptr %move_, ptr %at
  !void Py_DecRef(ptr %move_before)
  br label %next""",
    ),
    "COALESCE": Op(
        "`a` = `x`, or `y` where `x` is the object z; guard: at most one distinct value",
        """
  #%coalesce_x = %x
  %coalesce_one = load ptr, ptr %coalesce_x
  #%coalesce_y = %y
  %coalesce_other = load ptr, ptr %coalesce_y
  %coalesce_first = icmp ne ptr %coalesce_one, %zp
  %coalesce_second = icmp ne ptr %coalesce_other, %zp
  %coalesce_two = icmp ne ptr %coalesce_one, %coalesce_other
  %coalesce_both = and i1 %coalesce_first, %coalesce_second
  %coalesce_odd = and i1 %coalesce_both, %coalesce_two
  %coalesce_ = select i1 %coalesce_first, ptr %coalesce_one, ptr %coalesce_other
  br i1 %coalesce_odd, label %guard_failed, label %coalesce_ok
coalesce_ok:
  !void Py_IncRef(ptr %coalesce_)
  store ptr %coalesce_, ptr %at
  br label %next""",
    ),
    "BROADCAST_SHAPE": Op(
        "`a` = shape `x`, or `y` where `x` is (); guard: equal, or one is ()",
        """
  #%shape_x = %x
  %shape_one = load ptr, ptr %shape_x
  #%shape_y = %y
  %shape_other = load ptr, ptr %shape_y
  %shape_same = icmp eq ptr %shape_one, %shape_other
  br i1 %shape_same, label %shape_done, label %shape_unequal
shape_unequal:
  !%shape_rank = i64 PyTuple_Size(ptr %shape_one)
  %shape_none = icmp eq i64 %shape_rank, 0
  br i1 %shape_none, label %shape_done, label %shape_second
shape_second:
  !%shape_other_rank = i64 PyTuple_Size(ptr %shape_other)
  %shape_other_none = icmp eq i64 %shape_other_rank, 0
  br i1 %shape_other_none, label %shape_done, label %shape_compare
shape_compare:
  !%shape_compared = i32 PyObject_RichCompareBool(ptr %shape_one, ptr %shape_other, i32 2)
  %shape_ok = icmp sgt i32 %shape_compared, 0
  br i1 %shape_ok, label %shape_done, label %failed
shape_done:
  %shape_ = phi ptr [ %shape_one, %BROADCAST_SHAPE ], [ %shape_other, %shape_unequal ],
    [ %shape_one, %shape_second ], [ %shape_one, %shape_compare ]
  !void Py_IncRef(ptr %shape_)
  store ptr %shape_, ptr %at
  br label %next""",
    ),
    "ADD_INT": Op(
        "`a` = the int `x` + y",
        """
  #%add_int_x = %x
  %add_int_object = load ptr, ptr %add_int_x
  !%add_int_before = i64 PyLong_AsLongLong(ptr %add_int_object)
  %add_int_sum = add i64 %add_int_before, %y
  !%add_int_ = ptr PyLong_FromLongLong(i64 %add_int_sum)
  store ptr %add_int_, ptr %at
  %add_int_ok = icmp ne ptr %add_int_, null
  br i1 %add_int_ok, label %next, label %raised""",
    ),
    "JUMP_IF": Op(
        "skip y instructions if `a` is the object x",
        """
  %jump_if_it = load ptr, ptr %at
  %jump_if_is = icmp eq ptr %jump_if_it, %xp
  br i1 %jump_if_is, label %jump, label %next""",
    ),
    "NEW": Op(
        "`a` = a new object of type x",
        """
  !%made_ = ptr PyType_GenericAlloc(ptr %xp, i64 0)
  store ptr %made_, ptr %at
  %new_ok = icmp ne ptr %made_, null
  br i1 %new_ok, label %next, label %raised""",
    ),
    "NEW_TUPLE": Op(
        "`a` = a new tuple of length x",
        """
  !%new_tuple_ = ptr PyTuple_New(i64 %x)
  store ptr %new_tuple_, ptr %at
  %new_tuple_ok = icmp ne ptr %new_tuple_, null
  br i1 %new_tuple_ok, label %next, label %raised""",
    ),
    "NEW_WEAKREF": Op(
        "`a` = weakref.ref(`x`)",
        """
  #%new_weakref_of = %x
  %new_weakref_object = load ptr, ptr %new_weakref_of
  !%new_weakref_ = ptr PyWeakref_NewRef(ptr %new_weakref_object, ptr null)
  store ptr %new_weakref_, ptr %at
  %new_weakref_ok = icmp ne ptr %new_weakref_, null
  br i1 %new_weakref_ok, label %next, label %raised""",
    ),
    "INIT_ITEM": Op(
        "item x of the new tuple `a` = `y`",
        """
  %init_item_tuple = load ptr, ptr %at
  #%init_item_at = %y
  %init_item_ = load ptr, ptr %init_item_at
  !void Py_IncRef(ptr %init_item_)
  !%init_item_set = i32 PyTuple_SetItem(ptr %init_item_tuple, i64 %x, ptr %init_item_)
  %init_item_ok = icmp eq i32 %init_item_set, 0
  br i1 %init_item_ok, label %next, label %failed""",
    ),
    "INIT_SLOT": Op(
        "slot at offset x of `a`, which is new, = `y`",
        """
  %init_slot_object = load ptr, ptr %at
  %init_slot_at = getelementptr i8, ptr %init_slot_object, i64 %x
  #%init_slot_from = %y
  %init_slot_value = load ptr, ptr %init_slot_from
  !void Py_IncRef(ptr %init_slot_value)
  store ptr %init_slot_value, ptr %init_slot_at
  br label %next""",
    ),
    "INIT_SLOT_CONST": Op(
        "slot at offset x of `a`, which is new, = object y",
        """
  %init_slot_const_object = load ptr, ptr %at
  %init_slot_const_at = getelementptr i8, ptr %init_slot_const_object, i64 %x
  !void Py_IncRef(ptr %yp)
  store ptr %yp, ptr %init_slot_const_at
  br label %next""",
    ),
    "SET_MEMBER": Op(
        "member x of `a` = `y`",
        """
  %set_member_object = load ptr, ptr %at
  #%set_member_from = %y
  %set_member_value = load ptr, ptr %set_member_from
  !%set_member_ = i32 descr_set(ptr %xp, ptr %set_member_object, ptr %set_member_value)
  %set_member_ok = icmp eq i32 %set_member_, 0
  br i1 %set_member_ok, label %next, label %failed""",
    ),
    "SET_MEMBER_CONST": Op(
        "member x of `a` = object y",
        """
  %set_member_const_object = load ptr, ptr %at
  !%set_member_const_ = i32 descr_set(ptr %xp, ptr %set_member_const_object, ptr %yp)
  %set_member_const_ok = icmp eq i32 %set_member_const_, 0
  br i1 %set_member_const_ok, label %next, label %failed""",
    ),
}
