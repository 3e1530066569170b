"""The fast-call VM's interpreter loop, in LLVM IR.

`numus_call` is a builtin (METH_FASTCALL): it decodes instructions of five words, works on registers
that own references, and returns a result or the header's `guard_failed` object. Objects are handled
through CPython's stable ABI, whose addresses are passed in. Two internals are probed at start:
where reference counts are, and the offsets of `__slots__`.
"""

from __future__ import annotations

import itertools
import re

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.llvm_macros import clock, expand
from numus.runtime.pycall.launch_ops import PENDING
from numus.runtime.pycall.opcodes import BODIES, INSTRUCTION_WORDS, OPCODES

# Words at the start of a bytecode; the instructions follow.
HEADER = (
    "busy",  # 1 while it runs: a nested call takes the slow path
    "arity",
    "sentinel",  # the object returned when a guard fails
    *("acquire", "release"),  # methods of the lock held meanwhile; 0: no lock
    "num_registers",
    *("commands", "run"),  # command buffer of LAUNCH, and the function that runs it
    "ticks",  # duration of the last launch
    "gil_ticks",  # shorter launches keep the GIL
)

# CPython's stable ABI, in the order of the table passed to `numus_bind`.
API = (
    *("PyErr_Clear", "PyErr_Fetch", "PyErr_Restore", "PyErr_Occurred", "PyErr_ExceptionMatches"),
    *("Py_IncRef", "Py_DecRef", "PyObject_CallNoArgs", "PyObject_RichCompareBool"),
    *("PyObject_Size", "PyObject_GetAttr", "PyDict_GetItemWithError", "PyTuple_GetItem"),
    *("PyTuple_New", "PyTuple_SetItem", "PyTuple_Size", "PyLong_AsVoidPtr"),
    *("PyLong_AsLongLong", "PyLong_FromLongLong", "PyFloat_AsDouble", "PyNumber_Float"),
    "PyNumber_Multiply",
    "PyObject_Type",
    *("PyType_GenericAlloc", "PyWeakref_NewRef", "PyEval_SaveThread", "PyEval_RestoreThread"),
    *("descr_get", "descr_set"),  # of member descriptors, from `PyType_GetSlot`
    "EXPECTED_ERRORS",  # no function, but the object of that name
)
# What an argument of another kind raises where a guard asks; all else is an error for the caller.
EXPECTED_ERRORS = (TypeError, AttributeError, IndexError, OverflowError)

SYMBOLS = ("numus_call", "numus_bind")


def source(target: LlvmTarget) -> str:
    """The module with the functions named in `SYMBOLS`."""
    lines = [
        "@api = internal global ptr null",
        "define void @numus_bind(ptr %table) {\n  store ptr %table, ptr @api\n  ret void\n}",
        _PROLOGUE,
        *(f"    i64 {code}, label %{name}" for name, code in OPCODES.items()),
        "  ]",
        *(f"{name}:{body}" for name, body in BODIES.items()),
        _EPILOGUE.replace("EXPECTED_AT", str(API.index("EXPECTED_ERRORS"))),
    ]
    text = expand(_expand_calls("\n".join(lines)), HEADER=HEADER, PENDING=PENDING)
    return f'target triple = "{target.triple}"\n' + text + clock(target)


def _expand_calls(text: str) -> str:
    """Expand `!%r = type Function(arguments)`: calls of the stable ABI."""
    count = itertools.count()

    def write(found: re.Match[str]) -> str:
        result, kind, name, arguments = found.groups()
        n = f"%api{next(count)}"
        table = f"  {n}t = load ptr, ptr @api\n  {n} = ptr {n}t[{API.index(name)}]"
        return f"{table}\n  {result or ''}call {kind} {n}({arguments}"

    return re.sub(r"^ *!(%\w+ = )?(\w+) (\w+)\((.*)$", write, text, flags=re.M)


_PROLOGUE = f"""
define ptr @numus_call(ptr %self, ptr %args, i64 %count) {{
entry:
  !%capsule = ptr PyTuple_GetItem(ptr %self, i64 0)
  !%code = ptr PyLong_AsVoidPtr(ptr %capsule)
  ?at busy, i64 arity, ptr sentinel, ptr acquire, ptr release, i64 num_registers = HEADER of %code
  br eq i64 %arity, %count, label %lock, label %slow_path
slow_path:
  !void Py_IncRef(ptr %sentinel)
  ret ptr %sentinel
lock:
  %has_lock = icmp ne ptr %acquire, null
  br i1 %has_lock, label %take, label %have
take:
  !%locked = ptr PyObject_CallNoArgs(ptr %acquire)
  br eq ptr %locked, null, label %stop, label %took
stop:
  ret ptr null
took:
  !void Py_DecRef(ptr %locked)
  br label %have
have:
  %registers = alloca ptr, i64 %num_registers
  %error = alloca ptr
  %error_value = alloca ptr
  %error_trace = alloca ptr
  %depth = alloca i64  ; of the operands' pending graph: see ADD_OPERAND
  %retained = alloca i64
  %direct = alloca i64
  store i64 0, ptr %depth
  store i64 0, ptr %retained
  store i64 0, ptr %direct
  %bytes = shl i64 %num_registers, 3
  call void @llvm.memset.p0.i64(ptr %registers, i8 0, i64 %bytes, i1 false)
  %busy = load i64, ptr %busy.at
  br eq i64 %busy, 0, label %begin, label %unlock
begin:
  store i64 1, ptr %busy.at
  %first = getelementptr i64, ptr %code, i64 {len(HEADER)}
  br label %decode
next:
  %after = getelementptr i64, ptr %instruction, i64 {INSTRUCTION_WORDS}
  br label %decode
jump:
  %skip = add i64 %y, 1
  %skip_words = mul i64 %skip, {INSTRUCTION_WORDS}
  %target = getelementptr i64, ptr %instruction, i64 %skip_words
  br label %decode
decode:
  %instruction = phi ptr [ %first, %begin ], [ %after, %next ], [ %target, %jump ]
  %opcode = load i64, ptr %instruction
  %a = i64 %instruction[1]
  %x = i64 %instruction[2]
  %xp = inttoptr i64 %x to ptr
  %y = i64 %instruction[3]
  %yp = inttoptr i64 %y to ptr
  %z = i64 %instruction[4]
  %zp = inttoptr i64 %z to ptr
  %at = getelementptr ptr, ptr %registers, i64 %a
  switch i64 %opcode, label %guard_failed ["""

_EPILOGUE = """
failed:
  !%error_type = ptr PyErr_Occurred()
  br eq ptr %error_type, null, label %guard_failed, label %failed_error
failed_error:
  %expected_table = load ptr, ptr @api
  %expected = ptr %expected_table[EXPECTED_AT]
  !%is_expected = i32 PyErr_ExceptionMatches(ptr %expected)
  br eq i32 %is_expected, 0, label %raised, label %failed_expected
failed_expected:
  !void PyErr_Clear()
  br label %guard_failed
raised:
  ; saved while the lock is released
  !void PyErr_Fetch(ptr %error, ptr %error_value, ptr %error_trace)
  br label %close
guard_failed:
  br label %close
close:
  %made = phi ptr [ null, %guard_failed ], [ null, %raised ], [ %given, %RETURN ]
  %wrong = phi i1 [ false, %guard_failed ], [ true, %raised ], [ false, %RETURN ]
  store i64 0, ptr %busy.at
  br label %unlock
unlock:
  %result = phi ptr [ null, %have ], [ %made, %close ]
  %raise = phi i1 [ false, %have ], [ %wrong, %close ]
  br i1 %has_lock, label %release_lock, label %decref
release_lock:
  !%released = ptr PyObject_CallNoArgs(ptr %release)
  !void Py_DecRef(ptr %released)
  br label %decref
decref:
  for %i in 0..%num_registers
  %owned = ptr %registers[%i]
  !void Py_DecRef(ptr %owned)
  end
  br i1 %raise, label %restore, label %no_error
restore:
  %error1 = load ptr, ptr %error
  %error2 = load ptr, ptr %error_value
  %error3 = load ptr, ptr %error_trace
  !void PyErr_Restore(ptr %error1, ptr %error2, ptr %error3)
  ret ptr null
no_error:
  br eq ptr %result, null, label %slow_path, label %return
return:
  ret ptr %result
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""
