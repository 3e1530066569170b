"""The exchange of slots between ranks, their comparison and reduction, in LLVM IR.

A slot begins with the code of a call and has the rank's payload behind it. One call of native code
does what several of mpi4py's and NumPy's would: at this size, calls are what takes the time.
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
define i32 @numus_reduce_slots(
    ptr noalias %slots, i64 %ranks, i64 %count, ptr noalias %target) {
entry:
  %code = load i64, ptr %slots
  br label %compare
compare:
  %r = phi i64 [ 1, %entry ], [ %r1, %same ]
  %more = icmp slt i64 %r, %ranks
  br i1 %more, label %next, label %begin
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
begin:  ; a pass for each rank: the first one adds two slots
  %first = getelementptr i8, ptr %slots, i64 OFFSET
  br label %pass
pass:
  %k = phi i64 [ 1, %begin ], [ %k1, %passed ]
  %sums = phi ptr [ %first, %begin ], [ %target, %passed ]
  %again = icmp slt i64 %k, %ranks
  br i1 %again, label %row, label %done
row:
  %down = mul i64 %k, STRIDE
  %place = add i64 %down, OFFSET
  %values = getelementptr i8, ptr %slots, i64 %place
  br label %elements
elements:
  %i = phi i64 [ 0, %row ], [ %i1, %element ]
  %left = icmp slt i64 %i, %count
  br i1 %left, label %element, label %passed
element:
  %a = getelementptr TYPE, ptr %sums, i64 %i
  %sum = load TYPE, ptr %a
  %b = getelementptr TYPE, ptr %values, i64 %i
  %x = load TYPE, ptr %b
  COMBINE
  %out = getelementptr TYPE, ptr %target, i64 %i
  store TYPE %new, ptr %out
  %i1 = add i64 %i, 1
  br label %elements
passed:
  %k1 = add i64 %k, 1
  br label %pass
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


# Fills the slot of this rank, starts persistent requests and tests them some times.
_PLAN = (
    *("start", "test", "status", "spins", "slot", "nbytes", "requests"),
    *("slots", "ranks", "count", "reduce"),
)
DIFFER, DONE, UNDER_WAY, ARRIVED = range(4)  # what an exchange gives
_EXCHANGE = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i32 @numus_exchange(ptr %plan, i64 %code, ptr %source, ptr %target) {
entry:
  %flag = alloca i32
  LOADS
  store i64 %code, ptr %slot
  %payload = getelementptr i8, ptr %slot, i64 OFFSET
  call void @llvm.memcpy.p0.p0.i64(ptr %payload, ptr %source, i64 %nbytes, i1 false)
  %list = getelementptr i64, ptr %plan, i64 WORDS
  br label %begin
begin:
  %i = phi i64 [ 0, %entry ], [ %i1, %started ]
  %more = icmp slt i64 %i, %requests
  br i1 %more, label %started, label %testing
started:
  %p = getelementptr ptr, ptr %list, i64 %i
  %request = load ptr, ptr %p
  %s = call i32 %start(ptr %request)
  %i1 = add i64 %i, 1
  br label %begin
testing:
  br label %next
next:
  %k = phi i64 [ 0, %testing ], [ %k1, %one ]
  %left = phi i64 [ %spins, %testing ], [ %now, %one ]
  %open = icmp slt i64 %k, %requests
  br i1 %open, label %try, label %arrived
try:
  %now = phi i64 [ %left, %next ], [ %fewer, %again ]
  %q = getelementptr ptr, ptr %list, i64 %k
  %waited = load ptr, ptr %q
  store i32 0, ptr %flag
  %t = call i32 %test(ptr %waited, ptr %flag, ptr %status)
  %found = load i32, ptr %flag
  %is_done = icmp ne i32 %found, 0
  br i1 %is_done, label %one, label %again
again:
  %fewer = sub i64 %now, 1
  %gives_up = icmp sle i64 %fewer, 0
  br i1 %gives_up, label %under_way, label %try
one:
  %k1 = add i64 %k, 1
  br label %next
under_way:
  ret i32 2
arrived:
  %without = icmp eq ptr %reduce, null
  br i1 %without, label %plain, label %reduced
plain:
  ret i32 3
reduced:
  %same = call i32 %reduce(ptr %slots, i64 %ranks, i64 %count, ptr %target)
  ret i32 %same
}
"""
Exchange = Callable[[int, int, int, int], int]


@functools.cache
def exchange(offset: int) -> Exchange:
    """A function of the address of a plan, the code, the payload and the target."""
    loads = []
    for i, name in enumerate(_PLAN):
        kind = "i64" if name in ("spins", "nbytes", "requests", "ranks", "count") else "ptr"
        loads.append(f"%at.{name} = getelementptr i64, ptr %plan, i64 {i}")
        loads.append(f"%{name} = load {kind}, ptr %at.{name}")
    text = _EXCHANGE.replace("LOADS", "\n  ".join(loads))
    text = text.replace("OFFSET", str(offset)).replace("WORDS", str(len(_PLAN)))
    runtime: Any = device("cpu").runtime
    (address,) = runtime.compiler.native(text, ("numus_exchange",))
    native: Any = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)(address)
    return native


def plan(addresses: list[int], **words: int) -> Any:
    """The memory of a plan: addresses of functions and slots, and those of the requests."""
    values = [words[name] for name in _PLAN] + addresses
    return (ctypes.c_int64 * len(values))(*values)


@functools.cache
def reducer(
    dtype: DType, reduction: str, stride: int, offset: int
) -> tuple[Reduce, int, int] | None:
    """A function of the address of the slots, the number of ranks and of elements, and the target,
    which gives 0 where codes differ; its address; the bytes of an element. None where there is
    none."""
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
    for name, number in {"STRIDE": stride, "OFFSET": offset}.items():
        text = text.replace(name, str(number))
    runtime: Any = device("cpu").runtime
    (address,) = runtime.compiler.native(text, ("numus_reduce_slots",))
    # Python's lock is kept: giving it up takes longer than the work
    native: Any = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)(address)
    return native, int(address), size
