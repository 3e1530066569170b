"""The fast-call VM's interpreter loop, in LLVM IR.

`numus_call` is a builtin (METH_FASTCALL): it decodes instructions of five words, works on registers
that own references, and returns a result or the header's `guard_failed` object. Objects are handled
through CPython's stable ABI, whose addresses are passed in. Two internals are probed at start:
where reference counts are, and the offsets of `__slots__`.
"""

from __future__ import annotations

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.pycall.launch_ops import PENDING
from numus.runtime.pycall.llvm_macros import clock, expand
from numus.runtime.pycall.opcodes import BODIES, INSTRUCTION_WORDS, OPCODES

# Words at the start of a bytecode; the instructions follow.
HEADER = (
    "busy",  # 1 while it runs: a nested call takes the slow path
    "arity",
    "guard_failed",  # the object returned when a guard fails
    *("acquire", "release"),  # methods of the lock held meanwhile; 0: no lock
    "registers",  # their count
    *("commands", "entry"),  # command buffer of LAUNCH, and the function that runs it
    "ticks",  # duration of the last launch
    "gil_ticks",  # shorter launches keep the GIL
)

# CPython's stable ABI, in the order of the table passed to `numus_bind`.
API = (
    *("PyErr_Clear", "PyErr_Fetch", "PyErr_Restore"),
    *("Py_IncRef", "Py_DecRef", "PyObject_CallNoArgs", "PyObject_RichCompareBool"),
    *("PyObject_Size", "PyObject_GetAttr", "PyDict_GetItemWithError", "PyTuple_GetItem"),
    *("PyTuple_New", "PyTuple_SetItem", "PyTuple_Size", "PyLong_AsVoidPtr"),
    *("PyLong_AsLongLong", "PyLong_FromLongLong", "PyFloat_AsDouble", "PyNumber_Float"),
    "PyObject_Type",
    *("PyType_GenericAlloc", "PyWeakref_NewRef", "PyEval_SaveThread", "PyEval_RestoreThread"),
    *("descr_get", "descr_set"),  # of member descriptors, from `PyType_GetSlot`
)

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
        _EPILOGUE,
    ]
    text = _expand_calls(expand("\n".join(lines), HEADER=HEADER, PENDING=PENDING))
    return f'target triple = "{target.triple}"\n' + text + clock(target)


def _expand_calls(text: str) -> str:
    """Expand `!%r = type Function(arguments)` (stable ABI) and `#%pointer = register number`."""
    out: list[str] = []
    for count, line in enumerate(text.splitlines()):
        bare = line.strip()
        if bare.startswith("!"):
            before, _, call = bare[1:].rpartition("= ") if "= " in bare else ("", "", bare[1:])
            kind, _, rest = call.partition(" ")
            name, _, arguments = rest.partition("(")
            n = f"api{count}"
            target = f"{before.strip()} = " if before else ""
            out += [
                f"  %{n}t = load ptr, ptr @api",
                f"  %{n}a = getelementptr ptr, ptr %{n}t, i64 {API.index(name)}",
                f"  %{n} = load ptr, ptr %{n}a",
                f"  {target}call {kind} %{n}({arguments}",
            ]
        elif bare.startswith("#"):
            result, _, number = bare[1:].partition(" = ")
            out.append(f"  {result} = getelementptr ptr, ptr %registers, i64 {number}")
        else:
            out.append(line)
    return "\n".join(out)


_PROLOGUE = f"""
define ptr @numus_call(ptr %self, ptr %args, i64 %count) {{
entry:
  !%capsule = ptr PyTuple_GetItem(ptr %self, i64 0)
  !%code = ptr PyLong_AsVoidPtr(ptr %capsule)
  ?%busy = HEADER.busy of %code
  ?%arity_at = HEADER.arity of %code
  ?%sentinel_at = HEADER.guard_failed of %code
  ?%acquire_at = HEADER.acquire of %code
  ?%release_at = HEADER.release of %code
  ?%registers_at = HEADER.registers of %code
  %sentinel = load ptr, ptr %sentinel_at
  %arity = load i64, ptr %arity_at
  %fits = icmp eq i64 %arity, %count
  br i1 %fits, label %lock, label %slow_path
slow_path:
  !void Py_IncRef(ptr %sentinel)
  ret ptr %sentinel
lock:
  %acquire = load ptr, ptr %acquire_at
  %has_lock = icmp ne ptr %acquire, null
  br i1 %has_lock, label %take, label %have
take:
  !%locked = ptr PyObject_CallNoArgs(ptr %acquire)
  %interrupted = icmp eq ptr %locked, null
  br i1 %interrupted, label %stop, label %took
stop:
  ret ptr null
took:
  !void Py_DecRef(ptr %locked)
  br label %have
have:
  %number_of = load i64, ptr %registers_at
  %registers = alloca ptr, i64 %number_of
  %error = alloca ptr
  %error_value = alloca ptr
  %error_trace = alloca ptr
  %depth = alloca i64  ; of the operands' pending graph: see ADD_OPERAND
  %retained = alloca i64
  %direct = alloca i64
  store i64 0, ptr %depth
  store i64 0, ptr %retained
  store i64 0, ptr %direct
  %bytes = shl i64 %number_of, 3
  call void @llvm.memset.p0.i64(ptr %registers, i8 0, i64 %bytes, i1 false)
  %is_busy = load i64, ptr %busy
  %free = icmp eq i64 %is_busy, 0
  br i1 %free, label %begin, label %unlock
begin:
  store i64 1, ptr %busy
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
  %p1 = getelementptr i64, ptr %instruction, i64 1
  %a = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %instruction, i64 2
  %x = load i64, ptr %p2
  %xp = inttoptr i64 %x to ptr
  %p3 = getelementptr i64, ptr %instruction, i64 3
  %y = load i64, ptr %p3
  %yp = inttoptr i64 %y to ptr
  %p4 = getelementptr i64, ptr %instruction, i64 4
  %z = load i64, ptr %p4
  %zp = inttoptr i64 %z to ptr
  #%at = %a
  switch i64 %opcode, label %guard_failed ["""

_EPILOGUE = """
failed:
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
  store i64 0, ptr %busy
  br label %unlock
unlock:
  %result = phi ptr [ null, %have ], [ %made, %close ]
  %raise = phi i1 [ false, %have ], [ %wrong, %close ]
  br i1 %has_lock, label %release_lock, label %decref
release_lock:
  %release = load ptr, ptr %release_at
  !%released = ptr PyObject_CallNoArgs(ptr %release)
  !void Py_DecRef(ptr %released)
  br label %decref
decref:
  %i = phi i64 [ 0, %unlock ], [ 0, %release_lock ], [ %j, %decref_next ]
  %left = icmp slt i64 %i, %number_of
  br i1 %left, label %one, label %done
one:
  #%owned_at = %i
  %owned_ref = load ptr, ptr %owned_at
  !void Py_DecRef(ptr %owned_ref)
  br label %decref_next
decref_next:
  %j = add i64 %i, 1
  br label %decref
done:
  br i1 %raise, label %restore, label %no_error
restore:
  %error1 = load ptr, ptr %error
  %error2 = load ptr, ptr %error_value
  %error3 = load ptr, ptr %error_trace
  !void PyErr_Restore(ptr %error1, ptr %error2, ptr %error3)
  ret ptr null
no_error:
  %has_failed = icmp eq ptr %result, null
  br i1 %has_failed, label %slow_path, label %return
return:
  ret ptr %result
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""
