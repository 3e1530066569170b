"""Guards of the fast-call VM: they leave the call to the slow path where they fail."""

from __future__ import annotations

from numus.runtime.pycall.op import Op


def _compare_slot(name: str, predicate: str) -> str:
    return f"""
  %{name}_object = load ptr, ptr %at
  %{name}_at = getelementptr i8, ptr %{name}_object, i64 %x
  %{name}_ = load ptr, ptr %{name}_at
  %{name}_ok = icmp {predicate} ptr %{name}_, %yp
  br i1 %{name}_ok, label %next, label %guard_failed"""


GUARD_OPS = {
    "IS_CONST": Op(
        "guard: `a` is the object x",
        """
  %is_const_ = load ptr, ptr %at
  %is_const_ok = icmp eq ptr %is_const_, %xp
  br i1 %is_const_ok, label %next, label %guard_failed""",
    ),
    "IS": Op(
        "guard: `a` is `x`; with y = 1: IS_NOT",
        """
  %is_one_object = load ptr, ptr %at
  #%is_at = %x
  %is_other = load ptr, ptr %is_at
  %is_same = icmp eq ptr %is_one_object, %is_other
  %is_one = icmp eq i64 %y, 0
  %is_ok = icmp eq i1 %is_same, %is_one
  br i1 %is_ok, label %next, label %guard_failed""",
    ),
    "SLOT_IS": Op(
        "guard: the slot at offset x of `a` is the object y",
        _compare_slot("slot_is", "eq"),
    ),
    "SLOT_IS_NOT": Op(
        "guard: the slot at offset x of `a` is not the object y",
        _compare_slot("slot_is_not", "ne"),
    ),
    "SLOT_EQ": Op(
        "guard: the slot at offset x of `a` equals the object y",
        """
  %slot_eq_object = load ptr, ptr %at
  %slot_eq_at = getelementptr i8, ptr %slot_eq_object, i64 %x
  %slot_eq_ = load ptr, ptr %slot_eq_at
  %slot_eq_same = icmp eq ptr %slot_eq_, %yp
  br i1 %slot_eq_same, label %next, label %slot_eq_slow
slot_eq_slow:
  %slot_eq_null = icmp eq ptr %slot_eq_, null
  br i1 %slot_eq_null, label %guard_failed, label %slot_eq_compare
slot_eq_compare:
  !%slot_eq_compared = i32 PyObject_RichCompareBool(ptr %slot_eq_, ptr %yp, i32 2)
  %slot_eq_ok = icmp sgt i32 %slot_eq_compared, 0
  br i1 %slot_eq_ok, label %next, label %failed""",
    ),
    "BITS_EQ": Op(
        "guard: the slot at offset x of `a`, as a double, has the bits y",
        """
  %bits_eq_object = load ptr, ptr %at
  %bits_eq_at = getelementptr i8, ptr %bits_eq_object, i64 %x
  %bits_eq_number = load ptr, ptr %bits_eq_at
  !%bits_eq_value = double PyFloat_AsDouble(ptr %bits_eq_number)
  %bits_eq_bits = bitcast double %bits_eq_value to i64
  %bits_eq_ok = icmp eq i64 %bits_eq_bits, %y
  br i1 %bits_eq_ok, label %next, label %failed""",
    ),
    "DICT_IS": Op(
        "guard: the dict `a` maps x to y, or lacks x and z is 1",
        """
  %dict_is_dict = load ptr, ptr %at
  !%dict_is_found = ptr PyDict_GetItemWithError(ptr %dict_is_dict, ptr %xp)
  %dict_is_ok = icmp eq ptr %dict_is_found, %yp
  br i1 %dict_is_ok, label %next, label %dict_lacks
dict_lacks:
  %dict_is_none = icmp eq ptr %dict_is_found, null
  %default = icmp eq i64 %z, 1
  %dict_lacks_ok = and i1 %dict_is_none, %default
  br i1 %dict_lacks_ok, label %next, label %failed""",
    ),
    "EMPTY": Op(
        "guard: len(x) == 0",
        """
  !%length = i64 PyObject_Size(ptr %xp)
  %empty_ok = icmp eq i64 %length, 0
  br i1 %empty_ok, label %next, label %failed""",
    ),
    "LEN_EQ": Op(
        "guard: len(`a`) == x",
        """
  %len_eq_object = load ptr, ptr %at
  !%len_eq_length = i64 PyObject_Size(ptr %len_eq_object)
  %len_eq_ok = icmp eq i64 %len_eq_length, %x
  br i1 %len_eq_ok, label %next, label %failed""",
    ),
    "REFCOUNT": Op(
        "guard: `a` has x references; with y = 1: more than x",
        """
  %refcount_of = load ptr, ptr %at
  %refcount_count = load i32, ptr %refcount_of
  %refcount_wanted = trunc i64 %x to i32
  %refcount_same = icmp eq i32 %refcount_count, %refcount_wanted
  %refcount_more = icmp ugt i32 %refcount_count, %refcount_wanted
  %refcount_others = icmp eq i64 %y, 1
  %refcount_ok = select i1 %refcount_others, i1 %refcount_more, i1 %refcount_same
  br i1 %refcount_ok, label %next, label %guard_failed""",
    ),
}
