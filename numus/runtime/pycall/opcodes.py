"""The instruction set of the fast-call VM, in LLVM IR with macros.

An opcode is a line with its effect on register a and operands x, y, z (a name in backquotes is a
register's content), and its body. Operands are available as words (%x) and pointers (%xp), the
address of register a as %at. A body ends with a branch to `next`, `jump` (skip y instructions),
`guard_failed`, `failed` (the same; one of `EXPECTED_ERRORS` is cleared, others are raised) or
`raised` (a Python error for the caller, as any error of a comparison is). Macros:

    %v = reg %x                 content of a register
    %v = slot %x, %y            slot at an offset of a register's object
    %v = field %object, name    slot at the offset `name` of a PENDING record
    guard eq ptr %v, %w         icmp; continue at `next`, or fail; also `… or failed`
    give %v                     set register a and continue; also `… or raised`, where %v is null
    give_borrowed %v            the same with a new reference
"""

from __future__ import annotations

import itertools
import re

from numus.runtime.pycall.launch_ops import LAUNCH_OPS

INSTRUCTION_WORDS = 5  # opcode, register a, operands x, y, z

_OBJECT_OPS = """
RETURN: return `a`
  %given = reg %a
  store ptr null, ptr %at
  br label %close

LOAD_ARG: `a` = argument x
  %load_arg_ = ptr %args[%x]
  give_borrowed %load_arg_

LOAD_CONST: `a` = object x
  give_borrowed %xp

LOAD_FLOAT_ARG: `a` = argument x, a float, or converted from an int (y, z: these types)
  %float_given = ptr %args[%x]
  !%float_type = ptr PyObject_Type(ptr %float_given)
  !void Py_DecRef(ptr %float_type)
  br eq ptr %float_type, %yp, label %float_itself, label %float_other
float_itself:
  give_borrowed %float_given
float_other:
  br eq ptr %float_type, %zp, label %float_made, label %guard_failed
float_made:
  !%float_ = ptr PyNumber_Float(ptr %float_given)
  give %float_ or failed

LOAD_SLOT: `a` = slot at offset y of `x`, whose type is known
  %loaded = slot %x, %y
  give_borrowed %loaded or guard_failed

LOAD_ITEM: `a` = item y of the tuple `x`
  %load_item_tuple = reg %x
  !%load_item_ = ptr PyTuple_GetItem(ptr %load_item_tuple, i64 %y)
  give_borrowed %load_item_ or failed

GET_MEMBER: `a` = member y (a descriptor) of `x`; guards the type of `x`
  %get_member_object = reg %x
  !%got = ptr descr_get(ptr %yp, ptr %get_member_object, ptr null)
  give %got or failed

GET_ATTR: `a` = attribute y (a string) of the object x
  !%get_attr_ = ptr PyObject_GetAttr(ptr %xp, ptr %yp)
  give %get_attr_ or failed

CALL: `a` = x()
  !%called = ptr PyObject_CallNoArgs(ptr %xp)
  give %called or raised

MOVE: `a` = `x`
  %move_ = reg %x
  %move_before = reg %a
  !void Py_IncRef(ptr %move_)
  store ptr %move_, ptr %at
  !void Py_DecRef(ptr %move_before)
  br label %next

COALESCE: `a` = `x`, or `y` where `x` is the object z; guard: at most one distinct value
  %coalesce_one = reg %x
  %coalesce_other = reg %y
  %coalesce_first = icmp ne ptr %coalesce_one, %zp
  %coalesce_second = icmp ne ptr %coalesce_other, %zp
  %coalesce_two = icmp ne ptr %coalesce_one, %coalesce_other
  %coalesce_both = and i1 %coalesce_first, %coalesce_second
  %coalesce_odd = and i1 %coalesce_both, %coalesce_two
  %coalesce_ = select i1 %coalesce_first, ptr %coalesce_one, ptr %coalesce_other
  br i1 %coalesce_odd, label %guard_failed, label %coalesce_ok
coalesce_ok:
  give_borrowed %coalesce_

BROADCAST_SHAPE: `a` = shape `x`, or `y` where `x` is (); guard: equal, or one is ()
  %shape_one = reg %x
  %shape_other = reg %y
  br eq ptr %shape_one, %shape_other, label %shape_done, label %shape_unequal
shape_unequal:
  !%shape_rank = i64 PyTuple_Size(ptr %shape_one)
  br eq i64 %shape_rank, 0, label %shape_done, label %shape_second
shape_second:
  !%shape_other_rank = i64 PyTuple_Size(ptr %shape_other)
  br eq i64 %shape_other_rank, 0, label %shape_done, label %shape_compare
shape_compare:
  !%shape_compared = i32 PyObject_RichCompareBool(ptr %shape_one, ptr %shape_other, i32 2)
  br slt i32 %shape_compared, 0, label %raised, label %shape_known
shape_known:
  br sgt i32 %shape_compared, 0, label %shape_done, label %guard_failed
shape_done:
  %shape_ = phi ptr [ %shape_one, %BROADCAST_SHAPE ], [ %shape_other, %shape_unequal ],
    [ %shape_one, %shape_second ], [ %shape_one, %shape_known ]
  give_borrowed %shape_

ADD_INT: `a` = the int `x` + y
  %add_int_object = reg %x
  !%add_int_before = i64 PyLong_AsLongLong(ptr %add_int_object)
  %add_int_sum = add i64 %add_int_before, %y
  !%add_int_ = ptr PyLong_FromLongLong(i64 %add_int_sum)
  give %add_int_ or raised

MUL_INT: `a` = the int `x` * the int `y`
  %mul_int_one = reg %x
  %mul_int_other = reg %y
  !%mul_int_ = ptr PyNumber_Multiply(ptr %mul_int_one, ptr %mul_int_other)
  give %mul_int_ or raised

JUMP_IF: skip y instructions if `a` is the object x
  %jump_if_it = reg %a
  br eq ptr %jump_if_it, %xp, label %jump, label %next

NEW: `a` = a new object of type x
  !%made_ = ptr PyType_GenericAlloc(ptr %xp, i64 0)
  give %made_ or raised

NEW_TUPLE: `a` = a new tuple of length x
  !%new_tuple_ = ptr PyTuple_New(i64 %x)
  give %new_tuple_ or raised

NEW_WEAKREF: `a` = weakref.ref(`x`)
  %new_weakref_object = reg %x
  !%new_weakref_ = ptr PyWeakref_NewRef(ptr %new_weakref_object, ptr null)
  give %new_weakref_ or raised

INIT_ITEM: item x of the new tuple `a` = `y`
  %init_item_tuple = reg %a
  %init_item_ = reg %y
  !void Py_IncRef(ptr %init_item_)
  !%init_item_set = i32 PyTuple_SetItem(ptr %init_item_tuple, i64 %x, ptr %init_item_)
  guard eq i32 %init_item_set, 0 or failed

INIT_SLOT: slot at offset x of `a`, which is new, = `y`
  %init_slot_object = reg %a
  %init_slot_at = getelementptr i8, ptr %init_slot_object, i64 %x
  %init_slot_value = reg %y
  !void Py_IncRef(ptr %init_slot_value)
  store ptr %init_slot_value, ptr %init_slot_at
  br label %next

INIT_SLOT_CONST: slot at offset x of `a`, which is new, = object y
  %init_slot_const_object = reg %a
  %init_slot_const_at = getelementptr i8, ptr %init_slot_const_object, i64 %x
  !void Py_IncRef(ptr %yp)
  store ptr %yp, ptr %init_slot_const_at
  br label %next

SET_MEMBER: member x of `a` = `y`
  %set_member_object = reg %a
  %set_member_value = reg %y
  !%set_member_ = i32 descr_set(ptr %xp, ptr %set_member_object, ptr %set_member_value)
  guard eq i32 %set_member_, 0 or failed

SET_MEMBER_CONST: member x of `a` = object y
  %set_member_const_object = reg %a
  !%set_member_const_ = i32 descr_set(ptr %xp, ptr %set_member_const_object, ptr %yp)
  guard eq i32 %set_member_const_, 0 or failed
"""

_GUARD_OPS = """
IS_CONST: guard: `a` is the object x
  %is_const_ = reg %a
  guard eq ptr %is_const_, %xp

IS: guard: `a` is `x`; with y = 1: IS_NOT
  %is_one_object = reg %a
  %is_other = reg %x
  %is_same = icmp eq ptr %is_one_object, %is_other
  %is_one = icmp eq i64 %y, 0
  guard eq i1 %is_same, %is_one

SLOT_IS: guard: the slot at offset x of `a` is the object y
  %slot_is_ = slot %a, %x
  guard eq ptr %slot_is_, %yp

SLOT_IS_NOT: guard: the slot at offset x of `a` is not the object y
  %slot_is_not_ = slot %a, %x
  guard ne ptr %slot_is_not_, %yp

SLOT_EQ: guard: the slot at offset x of `a` equals the object y
  %slot_eq_ = slot %a, %x
  br eq ptr %slot_eq_, %yp, label %next, label %slot_eq_slow
slot_eq_slow:
  br eq ptr %slot_eq_, null, label %guard_failed, label %slot_eq_compare
slot_eq_compare:
  !%slot_eq_compared = i32 PyObject_RichCompareBool(ptr %slot_eq_, ptr %yp, i32 2)
  br slt i32 %slot_eq_compared, 0, label %raised, label %slot_eq_known
slot_eq_known:
  guard sgt i32 %slot_eq_compared, 0

BITS_EQ: guard: the slot at offset x of `a`, as a double, has the bits y
  %bits_eq_number = slot %a, %x
  !%bits_eq_value = double PyFloat_AsDouble(ptr %bits_eq_number)
  %bits_eq_bits = bitcast double %bits_eq_value to i64
  br eq i64 %bits_eq_bits, %y, label %bits_eq_same, label %failed
bits_eq_same:
  %bits_eq_unsure = fcmp oeq double %bits_eq_value, -1.0  ; or an error
  br i1 %bits_eq_unsure, label %bits_eq_check, label %next
bits_eq_check:
  !%bits_eq_error = ptr PyErr_Occurred()
  guard eq ptr %bits_eq_error, null or failed

DICT_IS: guard: the dict `a` maps x to y, or lacks x and z is 1
  %dict_is_dict = reg %a
  !%dict_is_found = ptr PyDict_GetItemWithError(ptr %dict_is_dict, ptr %xp)
  br eq ptr %dict_is_found, %yp, label %next, label %dict_lacks
dict_lacks:
  br eq ptr %dict_is_found, null, label %dict_null, label %guard_failed
dict_null:
  !%dict_error = ptr PyErr_Occurred()
  br eq ptr %dict_error, null, label %dict_default, label %raised
dict_default:
  guard eq i64 %z, 1

EMPTY: guard: len(x) == 0
  !%length = i64 PyObject_Size(ptr %xp)
  guard eq i64 %length, 0 or failed

LEN_EQ: guard: len(`a`) == x
  %len_eq_object = reg %a
  !%len_eq_length = i64 PyObject_Size(ptr %len_eq_object)
  guard eq i64 %len_eq_length, %x or failed

INT_IS: guard: the int `a` is x; with y = 1: it is not; with y = 2: it is more
  %int_is_object = reg %a
  !%int_is_value = i64 PyLong_AsLongLong(ptr %int_is_object)
  %int_is_same = icmp eq i64 %int_is_value, %x
  %int_is_other = xor i1 %int_is_same, true
  %int_is_more = icmp sgt i64 %int_is_value, %x
  %int_is_plain = icmp eq i64 %y, 0
  %int_is_not = icmp eq i64 %y, 1
  %int_is_odd = select i1 %int_is_not, i1 %int_is_other, i1 %int_is_more
  %int_is_ok = select i1 %int_is_plain, i1 %int_is_same, i1 %int_is_odd
  br i1 %int_is_ok, label %int_is_check, label %failed
int_is_check:
  br eq i64 %int_is_value, -1, label %failed, label %next  ; an error, or no size

SAME_INT: guard: the ints `a` and `x` are equal; with y = 1: they are not
  %same_int_object = reg %a
  %same_int_other = reg %x
  !%same_int_first = i64 PyLong_AsLongLong(ptr %same_int_object)
  !%same_int_second = i64 PyLong_AsLongLong(ptr %same_int_other)
  %same_int_equal = icmp eq i64 %same_int_first, %same_int_second
  %same_int_wanted = icmp eq i64 %y, 0
  guard eq i1 %same_int_equal, %same_int_wanted or failed

REFCOUNT: guard: `a` has x references; with y = 1: more than x
  %refcount_of = reg %a
  %refcount_count = load i32, ptr %refcount_of
  %refcount_wanted = trunc i64 %x to i32
  %refcount_same = icmp eq i32 %refcount_count, %refcount_wanted
  %refcount_more = icmp ugt i32 %refcount_count, %refcount_wanted
  %refcount_others = icmp eq i64 %y, 1
  %refcount_ok = select i1 %refcount_others, i1 %refcount_more, i1 %refcount_same
  br i1 %refcount_ok, label %next, label %guard_failed
"""

_OP = re.compile(r"^([A-Z_]+): (.*)$", re.M)
_names = itertools.count()


def _load(found: re.Match[str]) -> str:
    value, how, source, key = found.groups()
    n = f"{how}{next(_names)}"
    if how == "field":
        lines, offset = [f"?i64 {n}.{key} = PENDING of %xp"], f"%{n}.{key}"
    else:
        lines, offset = [f"%{n}r = ptr %registers[{source}]"], key
        if key is None:
            return f"{value} = ptr %registers[{source}]"
        source = f"%{n}r"
    lines.append(f"%{n}p = getelementptr i8, ptr {source}, i64 {offset}")
    return "\n  ".join([*lines, f"{value} = load ptr, ptr %{n}p"])


def _guard(found: re.Match[str]) -> str:
    condition, label = found.groups()
    return f"br {condition}, label %next, label %{label or 'guard_failed'}"


def _give(found: re.Match[str]) -> str:
    borrowed, value, label = found.groups()
    lines = [f"!void Py_IncRef(ptr {value})"] if borrowed else []
    lines.append(f"store ptr {value}, ptr %at")
    to = f"br ne ptr {value}, null, label %next, label %{label}" if label else "br label %next"
    return "\n  ".join([*lines, to])


def _expand(text: str) -> str:
    text = re.sub(r"(%\w+) = (reg|slot|field) (%\w+)(?:, (%?\w+))?", _load, text)
    text = re.sub(r"(?<=  )guard (.*?)(?: or (\w+))?$", _guard, text, flags=re.M)
    return re.sub(r"(?<=  )give(_borrowed)? (%\w+)(?: or (\w+))?$", _give, text, flags=re.M)


def _parse(text: str) -> dict[str, str]:
    _, *parts = _OP.split(text)
    return {name: _expand(body) for name, _, body in zip(*[iter(parts)] * 3, strict=True)}


BODIES = _parse(_OBJECT_OPS + _GUARD_OPS + LAUNCH_OPS)
OPCODES = {name: number for number, name in enumerate(BODIES)}
