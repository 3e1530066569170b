"""The comparison and reduction of slots that ranks have gathered, in LLVM IR.

A slot begins with the code of a call and has the rank's payload behind it. One call of native code
does what several of NumPy's would: at this size, calls are what takes the time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from numus.dtypes import DType
from numus.runtime.devices import device

Reduce = Callable[[int, int, int, int], int]

# codes differ: 0; else the reduced payloads are written to the target, in the order of ranks
_TEXT = """
define i32 @numus_reduce_slots(ptr %slots, i64 %ranks, i64 %count, ptr %target) {
entry:
  %code = load i64, ptr %slots
  br label %compare
compare:
  %r = phi i64 [ 1, %entry ], [ %r1, %same ]
  %more = icmp slt i64 %r, %ranks
  br i1 %more, label %next, label %elements
next:
  %at = mul i64 %r, STRIDE
  %p = getelementptr i8, ptr %slots, i64 %at
  %other = load i64, ptr %p
  %r1 = add i64 %r, 1
  %equal = icmp eq i64 %code, %other
  br i1 %equal, label %same, label %differ
same:
  br label %compare
differ:
  ret i32 0
elements:
  %i = phi i64 [ 0, %compare ], [ %i1, %store ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %element, label %done
element:
  %within = mul i64 %i, ITEMSIZE
  %offset = add i64 %within, OFFSET
  %first = getelementptr i8, ptr %slots, i64 %offset
  %begin = load TYPE, ptr %first
  br label %fold
fold:
  %k = phi i64 [ 1, %element ], [ %k1, %step ]
  %sum = phi TYPE [ %begin, %element ], [ %new, %step ]
  %again = icmp slt i64 %k, %ranks
  br i1 %again, label %step, label %store
step:
  %row = mul i64 %k, STRIDE
  %place = add i64 %row, %offset
  %q = getelementptr i8, ptr %slots, i64 %place
  %x = load TYPE, ptr %q
  COMBINE
  %k1 = add i64 %k, 1
  br label %fold
store:
  %out = getelementptr i8, ptr %target, i64 %within
  store TYPE %sum, ptr %out
  %i1 = add i64 %i, 1
  br label %elements
done:
  ret i32 1
}
"""
_LLVM = {"float32": "float", "float64": "double"}
_PARTS = {"complex64": "float32", "complex128": "float64"}  # whose sums are those of their parts


def _combine(dtype: DType, reduction: str, kind: str) -> str | None:
    """The instructions that combine two elements; None where MPI does it."""
    if kind in ("float", "double"):
        name = {"sum": "fadd", "prod": "fmul"}.get(reduction)
        return None if name is None else f"%new = {name} {kind} %sum, %x"
    if reduction in ("sum", "prod"):
        return f"%new = {'add' if reduction == 'sum' else 'mul'} {kind} %sum, %x"
    sign = "s" if dtype.kind == "int" else "u"
    order = "gt" if reduction == "max" else "lt"
    chosen = f"select i1 %wins, {kind} %sum, {kind} %x"
    return f"%wins = icmp {sign}{order} {kind} %sum, %x\n  %new = {chosen}"


@functools.cache
def reducer(dtype: DType, reduction: str, stride: int, offset: int) -> tuple[Reduce, int] | None:
    """A function of the address of the slots, the number of ranks and of elements, and the target,
    which gives 0 where codes differ; and the bytes of an element. None where there is none."""
    if dtype.name in _PARTS:
        if reduction != "sum":
            return None
        kind, size = _LLVM[_PARTS[dtype.name]], dtype.itemsize // 2
    elif dtype.kind == "float" and dtype.name not in _LLVM:
        return None
    else:
        kind, size = _LLVM.get(dtype.name, f"i{dtype.bits}"), dtype.itemsize
    combine = _combine(dtype, reduction, kind)
    if combine is None:
        return None
    text = _TEXT.replace("COMBINE", combine).replace("TYPE", kind)
    for name, number in {"STRIDE": stride, "ITEMSIZE": size, "OFFSET": offset}.items():
        text = text.replace(name, str(number))
    runtime: Any = device("cpu").runtime
    (address,) = runtime.compiler.native(text, ("numus_reduce_slots",))
    # Python's lock is kept: giving it up takes longer than the work
    native: Any = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)(address)
    return native, size
