"""The native side of `calls`: a function of Python's that follows a table of steps, in LLVM IR.

`numus_call` is what the interpreter enters. It reads one step after the other (five words each:
what to do, then up to four operands), works on a few registers that hold references to Python
objects, and ends with a result; or it gives `miss` back, which stands in the first words, together
with what else belongs to the call as a whole. What happens to objects happens through functions of
CPython's stable interface, whose addresses are handed in. Two things are known of their insides,
and have been looked up: where references are counted, and where the `__slots__` of a class are.
"""

from __future__ import annotations

from numus.runtime.cpu import pool_source
from numus.runtime.cpu.target import Target
from numus.runtime.native_text import written_out

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
STEP = 5  # words of a step

# Functions of CPython's stable interface, in the order of the table that `numus_bind` is given.
API = (
    *("PyErr_Clear", "PyErr_Fetch", "PyErr_Restore"),
    *("Py_IncRef", "Py_DecRef", "PyObject_CallNoArgs", "PyObject_RichCompareBool"),
    *("PyObject_Size", "PyObject_GetAttr", "PyDict_GetItemWithError", "PyTuple_GetItem"),
    *("PyTuple_New", "PyTuple_SetItem", "PyLong_AsVoidPtr", "PyLong_AsLongLong"),
    "PyFloat_AsDouble",
    *("PyType_GenericAlloc", "PyWeakref_NewRef", "PyEval_SaveThread", "PyEval_RestoreThread"),
    *("descr_get", "descr_set"),  # of member descriptors, as `PyType_GetSlot` tells them
)

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
    "same": "miss unless `a` is the object x",
    "holds": "miss unless the dict `a` has y under the key x, or nothing there and z is 1",
    "empty": "miss unless the object x has length 0",
    "twins": "miss unless `a` and `x` are one object",
    "counts": "miss unless `a` has length x",
    "holders": "miss unless `a` is held x times; or, if y is 1, more often",
    "digits": "miss unless the slot at offset x of `a` is a number with the bits y as a float",
    "place": "the word at z becomes the int `a` plus y times the int `x`",
    "fresh": "`a` is the first of the pieces at x (behind their number) that nobody uses, and the "
    "word at z its address; or else what the object y gives, which sets that word",
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
CODES = {name: i for i, name in enumerate(STEPS)}

# Words of a piece (`contract.Piece`): the thing, its address, its parts, then pairs of the address
# of a slot and what it has to hold.
PARTS = 3
SLOTS = 3
PIECE = 2 + PARTS + 2 * SLOTS

SYMBOLS = ("numus_call", "numus_bind")


def source(target: Target) -> str:
    """The module with the functions named in `SYMBOLS`."""
    bodies = {name: _BODIES[name] for name in STEPS}
    lines = [
        "@api = internal global ptr null",
        "define void @numus_bind(ptr %table) {\n  store ptr %table, ptr @api\n  ret void\n}",
        _HEAD,
        *(f"    i64 {code}, label %{name}" for name, code in CODES.items()),
        "  ]",
        *(f"{name}:{body}" for name, body in bodies.items()),
        _TAIL,
    ]
    text = _expand(written_out("\n".join(lines), HEAD=HEAD))
    return f'target triple = "{target.triple}"\n' + text + pool_source.ticks(target)


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
# pointers. `%at` is the address of register %a. A body ends with a jump to `next`, to `miss`, to
# `failed` (a miss that may have left an error behind), or to `raised` (an error for the caller).
_HEAD = f"""
define ptr @numus_call(ptr %self, ptr %args, i64 %count) {{
entry:
  !%number = ptr PyTuple_GetItem(ptr %self, i64 0)
  !%table = ptr PyLong_AsVoidPtr(ptr %number)
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
follow:
  %step = phi ptr [ %first, %begin ], [ %after, %next ]
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
"""


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


_BODIES = {
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
    "has": """
  %has_object = load ptr, ptr %at
  %has_at = getelementptr i8, ptr %has_object, i64 %x
  %has_ = load ptr, ptr %has_at
  %has_ok = icmp eq ptr %has_, %yp
  br i1 %has_ok, label %next, label %miss""",
    "like": """
  %like_object = load ptr, ptr %at
  %like_at = getelementptr i8, ptr %like_object, i64 %x
  %like_ = load ptr, ptr %like_at
  %like_same = icmp eq ptr %like_, %yp
  br i1 %like_same, label %next, label %look
look:
  %like_null = icmp eq ptr %like_, null
  br i1 %like_null, label %miss, label %alike
alike:
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
    "twins": """
  %twin = load ptr, ptr %at
  #%twins_at = %x
  %twins_other = load ptr, ptr %twins_at
  %twins_ok = icmp eq ptr %twin, %twins_other
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
  br i1 %some, label %ask, label %allocate
ask:
  %tried1 = add i64 %tried, 1
  %skip = mul i64 %tried, {PIECE}
  %piece = getelementptr i64, ptr %pieces, i64 %skip
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
  br label %next
allocate:
  !%allocated = ptr PyObject_CallNoArgs(ptr %yp)
  store ptr %allocated, ptr %at
  %allocate_ok = icmp ne ptr %allocated, null
  br i1 %allocate_ok, label %next, label %raised""",
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
