"""The native side of `calls`: a function of Python's that follows a table of steps, in LLVM IR.

`numus_call` is what the interpreter enters. It reads one step after the other (five words each:
what to do, then up to four operands), works on a few registers that hold references to Python
objects, and ends with a result; or it gives `miss` back, which stands in the first words, together
with what else belongs to the call as a whole. What happens to objects happens through functions of
CPython's stable interface, whose addresses are handed in. Two things are known of their insides,
and have been looked up: where references are counted, and where the `__slots__` of a class are.
"""

from __future__ import annotations

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.cpu import thread_pool_source
from numus.runtime.pycall.llvm_macros import written_out
from numus.runtime.pycall.opcodes import BODIES, CODES, REACH, STEP

# Words at the start of a table; the steps follow.
HEAD = (
    "busy",  # 1 while the table is followed
    "arity",  # how many arguments the call takes
    "miss",  # what is given back when something is not as it was
    *("acquire", "release"),  # of the lock that is held meanwhile; 0 if there is none
    "registers",  # how many there are
    *("image", "run"),  # what `run` starts, and by what
    "ticks",  # how long it took the last time
    "short",  # fewer ticks than this, and the interpreter's lock is kept
)

# Functions of CPython's stable interface, in the order of the table that `numus_bind` is given.
API = (
    *("PyErr_Clear", "PyErr_Fetch", "PyErr_Restore"),
    *("Py_IncRef", "Py_DecRef", "PyObject_CallNoArgs", "PyObject_RichCompareBool"),
    *("PyObject_Size", "PyObject_GetAttr", "PyDict_GetItemWithError", "PyTuple_GetItem"),
    *("PyTuple_New", "PyTuple_SetItem", "PyTuple_Size", "PyLong_AsVoidPtr"),
    *("PyLong_AsLongLong", "PyLong_FromLongLong", "PyFloat_AsDouble", "PyNumber_Float"),
    "PyObject_Type",
    *("PyType_GenericAlloc", "PyWeakref_NewRef", "PyEval_SaveThread", "PyEval_RestoreThread"),
    *("descr_get", "descr_set"),  # of member descriptors, as `PyType_GetSlot` tells them
)

SYMBOLS = ("numus_call", "numus_bind")


def source(target: LlvmTarget) -> str:
    """The module with the functions named in `SYMBOLS`."""
    lines = [
        "@api = internal global ptr null",
        "define void @numus_bind(ptr %table) {\n  store ptr %table, ptr @api\n  ret void\n}",
        _HEAD,
        *(f"    i64 {code}, label %{name}" for name, code in CODES.items()),
        "  ]",
        *(f"{name}:{body}" for name, body in BODIES.items()),
        _TAIL,
    ]
    text = _expand(written_out("\n".join(lines), HEAD=HEAD, REACH=REACH))
    return f'target triple = "{target.triple}"\n' + text + thread_pool_source.ticks(target)


def _expand(text: str) -> str:
    """Write out the short forms: `name(...)` of the interface, registers."""
    out: list[str] = []
    for count, line in enumerate(text.splitlines()):
        bare = line.strip()
        if bare.startswith("!"):  # ![%result =] type Function(arguments)
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
        elif bare.startswith("#"):  # #%pointer = register number
            result, _, number = bare[1:].partition(" = ")
            out.append(f"  {result} = getelementptr ptr, ptr %registers, i64 {number}")
        else:
            out.append(line)
    return "\n".join(out)


# Operands of the step at hand: %a is a number, %x %y %z are words, %xp %yp %zp the same as
# pointers. `%at` is the address of register %a. A body ends with a jump to `next` (or `jump`, over
# %y steps), to `miss`, to `failed` (a miss that may have left an error behind), or to `raised` (an
# error for the caller).
_HEAD = f"""
define ptr @numus_call(ptr %self, ptr %args, i64 %count) {{
entry:
  !%owned = ptr PyTuple_GetItem(ptr %self, i64 0)
  !%table = ptr PyLong_AsVoidPtr(ptr %owned)
  ?%busy = HEAD.busy of %table
  ?%arity_at = HEAD.arity of %table
  ?%miss_at = HEAD.miss of %table
  ?%acquire_at = HEAD.acquire of %table
  ?%release_at = HEAD.release of %table
  ?%registers_at = HEAD.registers of %table
  %nothing = load ptr, ptr %miss_at
  %arity = load i64, ptr %arity_at
  %fits = icmp eq i64 %arity, %count
  br i1 %fits, label %lock, label %other
other:
  !void Py_IncRef(ptr %nothing)
  ret ptr %nothing
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
  %depth = alloca i64  ; how far the operands' pending graph reaches: see `reach`
  %pinned = alloca i64
  %direct = alloca i64
  store i64 0, ptr %depth
  store i64 0, ptr %pinned
  store i64 0, ptr %direct
  %bytes = shl i64 %number_of, 3
  call void @llvm.memset.p0.i64(ptr %registers, i8 0, i64 %bytes, i1 false)
  %is_busy = load i64, ptr %busy
  %free = icmp eq i64 %is_busy, 0
  br i1 %free, label %begin, label %unlock
begin:
  store i64 1, ptr %busy
  %first = getelementptr i64, ptr %table, i64 {len(HEAD)}
  br label %follow
next:
  %after = getelementptr i64, ptr %step, i64 {STEP}
  br label %follow
jump:
  %onward = add i64 %y, 1
  %onward_words = mul i64 %onward, {STEP}
  %skipped = getelementptr i64, ptr %step, i64 %onward_words
  br label %follow
follow:
  %step = phi ptr [ %first, %begin ], [ %after, %next ], [ %skipped, %jump ]
  %code = load i64, ptr %step
  %p1 = getelementptr i64, ptr %step, i64 1
  %a = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %step, i64 2
  %x = load i64, ptr %p2
  %xp = inttoptr i64 %x to ptr
  %p3 = getelementptr i64, ptr %step, i64 3
  %y = load i64, ptr %p3
  %yp = inttoptr i64 %y to ptr
  %p4 = getelementptr i64, ptr %step, i64 4
  %z = load i64, ptr %p4
  %zp = inttoptr i64 %z to ptr
  #%at = %a
  switch i64 %code, label %miss ["""

_TAIL = """
failed:
  !void PyErr_Clear()
  br label %miss
raised:
  ; put aside while the lock is given back
  !void PyErr_Fetch(ptr %error, ptr %error_value, ptr %error_trace)
  br label %close
miss:
  br label %close
close:
  %made = phi ptr [ null, %miss ], [ null, %raised ], [ %given, %end ]
  %wrong = phi i1 [ false, %miss ], [ true, %raised ], [ false, %end ]
  store i64 0, ptr %busy
  br label %unlock
unlock:
  %result = phi ptr [ null, %have ], [ %made, %close ]
  %raise = phi i1 [ false, %have ], [ %wrong, %close ]
  br i1 %has_lock, label %give_back, label %drop
give_back:
  %release = load ptr, ptr %release_at
  !%released = ptr PyObject_CallNoArgs(ptr %release)
  !void Py_DecRef(ptr %released)
  br label %drop
drop:
  %i = phi i64 [ 0, %unlock ], [ 0, %give_back ], [ %j, %dropped ]
  %left = icmp slt i64 %i, %number_of
  br i1 %left, label %one, label %done
one:
  #%held_at = %i
  %held = load ptr, ptr %held_at
  !void Py_DecRef(ptr %held)
  br label %dropped
dropped:
  %j = add i64 %i, 1
  br label %drop
done:
  br i1 %raise, label %restore, label %fine
restore:
  %error1 = load ptr, ptr %error
  %error2 = load ptr, ptr %error_value
  %error3 = load ptr, ptr %error_trace
  !void PyErr_Restore(ptr %error1, ptr %error2, ptr %error3)
  ret ptr null
fine:
  %missed = icmp eq ptr %result, null
  br i1 %missed, label %other, label %give
give:
  ret ptr %result
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""
