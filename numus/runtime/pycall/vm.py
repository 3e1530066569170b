"""Calls that Python makes without running Python: from tensors to launches and back to tensors.

A small program can take less time than the interpreter needs to look at its arguments. So a call
that is repeated is written down as a table: which members of its arguments to read, what they have
to be, where addresses go, what to run, which objects the result is made of. A native function
(`calls_source`) follows the table, and users call that function: a builtin, made through CPython's
stable interface. Where Python is another one, there are no tables, and calls take the longer way.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numus.runtime.contract import RecycledOutput
from numus.runtime.cpu import thread_pool_source
from numus.runtime.cpu.compiler import Compiler
from numus.runtime.cpu.thread_pool import Pool
from numus.runtime.memory_pool import Memory
from numus.runtime.pycall import vm_source
from numus.runtime.pycall.opcodes import CODES, PARTS, REACH, SLOTS
from numus.runtime.pycall.vm_source import API, HEAD

_WORD = ctypes.sizeof(ctypes.c_void_p)
_FASTCALL = 0x0080  # CPython's METH_FASTCALL
_DESCR_GET, _DESCR_SET = 54, 55  # its Py_tp_descr_get and Py_tp_descr_set
_SHORT_SECONDS = (
    100e-6  # what runs no longer keeps the interpreter's lock: passing it on takes time
)
_RESULTS_KEPT = 2  # pieces of memory for each result: the last one is often still looked at
SMALL_RESULT = 1 << 16  # larger ones are worth an allocation


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Member:
    __slots__ = ("member",)


def _counts_references_first() -> bool:
    """Whether the first word of an object, or its lower half, counts references to it."""
    thing = object()
    word = ctypes.c_uint32.from_address(id(thing))
    before = word.value
    more = [thing, thing, thing]
    return word.value == before + len(more)


@functools.cache
def _offset(kind: type, name: str) -> int:
    """Where objects of a class with `__slots__` keep one of these, in bytes; 0 if nowhere."""
    thing: Any = object.__new__(kind)
    marker = object()
    kind.__dict__[name].__set__(thing, marker)
    words = (ctypes.c_size_t * (kind.__basicsize__ // _WORD)).from_address(id(thing))
    return _WORD * list(words).index(id(marker)) if id(marker) in words else 0


@functools.cache
def possible() -> bool:
    """Whether this Python has what tables need."""
    return (
        sys.implementation.name == "cpython"
        and getattr(sys, "_is_gil_enabled", lambda: True)()
        and _counts_references_first()
        and _offset(_Member, "member") > 0
    )


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Starter(NamedTuple):
    """What runs the launches of a call, natively."""

    run: int  # the address of a function that is given the image's head
    state: int  # the address of a word that says whether things are as they were
    planned: int  # what it was
    failed: int  # the address of a word that is 0 after a run in which all went well


class Calls:
    """The native function, loaded into this process."""

    def __init__(self, compiler: Compiler, pool: Pool) -> None:
        python = ctypes.pythonapi
        self.pool = pool
        self._never = ctypes.c_int64(0)  # runs on the CPU don't fail
        function, bind = compiler.native(vm_source.source(compiler.jit.target), vm_source.SYMBOLS)
        slot = python.PyType_GetSlot
        slot.restype = ctypes.c_void_p
        slot.argtypes = [ctypes.py_object, ctypes.c_int]
        members = type(_Member.__dict__["member"])
        own = {"descr_get": slot(members, _DESCR_GET), "descr_set": slot(members, _DESCR_SET)}
        addresses = [own[name] if name in own else _address(getattr(python, name)) for name in API]
        self._api = (ctypes.c_void_p * len(API))(*addresses)
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(bind)(ctypes.addressof(self._api))
        self._method = _Method(b"jitted", function, _FASTCALL, None)
        self._make = python.PyCFunction_NewEx
        self._make.restype = ctypes.py_object
        self._make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]

    def table(self) -> Table:
        """A call that launches nothing."""
        return Table(self, Starter(0, 0, 0, 0), _Nothing(), _no_memory, ())

    def on_pool(self) -> Starter:
        """What runs launches on the CPU's threads, as many as there are now."""
        pool = self.pool
        state = pool.address + _WORD * thread_pool_source.STARTED
        return Starter(pool.run_address, state, pool.threads, ctypes.addressof(self._never))

    def function(self, words: Sequence[int], keep: Sequence[Any]) -> Callable[..., Any]:
        """The builtin that follows a table; it keeps some things alive."""
        table = (ctypes.c_uint64 * len(words))(*[w & (1 << 64) - 1 for w in words])
        owner = (ctypes.addressof(table), table, self, *keep)
        found: Callable[..., Any] = self._make(ctypes.addressof(self._method), owner, None)
        return found


class _Nothing:
    """The image of a call that launches nothing."""

    head = 0


def _no_memory(nbytes: int) -> Memory:
    raise ValueError("a call that launches nothing has no results in memory")


class Table:
    """A call, written step by step. Registers are numbers; objects are kept alive."""

    def __init__(
        self,
        calls: Calls,
        starter: Starter,
        image: Any,
        allocate: Callable[[int], Memory],
        keep: Sequence[Any],
        small: int = SMALL_RESULT,
        prepare: Callable[[Table], None] | None = None,
    ) -> None:
        self._prepare = prepare  # writes what is to be done just before it runs
        self._small = small  # bytes of results for which memory is kept
        self._calls = calls
        self._starter = starter
        self._allocate = allocate
        self._image = image
        self._keep: list[Any] = [image, *keep]
        self._steps: list[tuple[int, ...]] = []
        self._registers = 0
        self._new: set[int] = set()  # registers with objects that nobody else has seen yet

    def _object(self, x: Any) -> int:
        self._keep.append(x)
        return id(x)

    def _step(self, name: str, a: int, x: int = 0, y: int = 0, z: int = 0) -> int:
        self._steps.append((CODES[name], a, x, y, z))
        return a

    def _register(self) -> int:
        self._registers += 1
        return self._registers - 1

    # -- looking at things ------------------------------------------------------------------------

    def argument(self, index: int) -> int:
        return self._step("argument", self._register(), index)

    def object(self, thing: Any) -> int:
        return self._step("object", self._register(), self._object(thing))

    def call(self, function: Callable[[], Any]) -> int:
        return self._step("call", self._register(), self._object(function))

    def attribute(self, thing: Any, name: str) -> int:
        name = sys.intern(name)
        return self._step("attribute", self._register(), self._object(thing), self._object(name))

    def get(self, register: int, kind: type, name: str) -> int:
        """A slot of what is in a register; a miss, if that is not an object of this type."""
        member = self._object(kind.__dict__[name])
        return self._step("get", self._register(), register, member)

    def load(self, register: int, kind: type, name: str) -> int:
        """A slot of what is in a register, which is known to be an object of this type."""
        return self._step("load", self._register(), register, _offset(kind, name))

    def has(self, register: int, kind: type, name: str, thing: Any) -> None:
        """That a slot of an object of this type holds something."""
        self._step("has", register, _offset(kind, name), self._object(thing))

    def like(self, register: int, kind: type, name: str, thing: Any) -> None:
        """That a slot of an object of this type holds something equal to this."""
        self._step("like", register, _offset(kind, name), self._object(thing))

    def element(self, register: int, index: int) -> int:
        """One of a tuple."""
        return self._step("element", self._register(), register, index)

    def common(self, register: int, other: int, nothing: Any) -> int:
        """What two registers both hold, or one of them, if the other holds nothing."""
        return self._step("common", self._register(), register, other, self._object(nothing))

    def wider(self, register: int, other: int) -> int:
        """The tuple that two registers both hold, or one of them, if the other's is empty."""
        return self._step("wider", self._register(), register, other)

    def move(self, register: int, other: int) -> None:
        """Let a register hold what another does."""
        self._step("is", register, other)

    def number(self, index: int) -> int:
        """An argument that is a Python float, or an int as one."""
        return self._step("number", self._register(), index, id(float), id(int))

    def plus(self, register: int, number: int) -> int:
        """An int and a number more."""
        return self._step("plus", self._register(), register, number)

    def unless(self, register: int, thing: Any) -> Callable[[], None]:
        """Begin steps that are left out if a register holds something; to be called at their
        end."""
        return self._leaving_out("skip", register, self._object(thing))

    def _leaving_out(self, name: str, a: int, x: int, z: int = 0) -> Callable[[], None]:
        first = len(self._steps) + 1
        self._step(name, a, x, 0, z)

        def end() -> None:
            self._steps[first - 1] = (CODES[name], a, x, len(self._steps) - first, z)

        return end

    def same(self, register: int, thing: Any) -> None:
        self._step("same", register, self._object(thing))

    def differs(self, register: int, kind: type, name: str, thing: Any) -> None:
        """That a slot of an object of this type holds something else."""
        self._step("differs", register, _offset(kind, name), self._object(thing))

    def twins(self, register: int, other: int) -> None:
        """That two registers hold the same thing."""
        self._step("twins", register, other)

    def others(self, register: int, other: int) -> None:
        """That two registers hold two things."""
        self._step("twins", register, other, 1)

    def counts(self, register: int, length: int) -> None:
        """That a container has so many items."""
        self._step("counts", register, length)

    def held(self, register: int, count: int, *, others: bool) -> None:
        """That an object is held so often, its register counted; or by `others` as well."""
        self._step("holders", register, count, int(others))

    def digits(self, register: int, kind: type, name: str, number: float) -> None:
        """That a slot of an object of this type holds this very number, as a float."""
        (word,) = struct.unpack("=q", struct.pack("=d", number))
        self._step("digits", register, _offset(kind, name), word)

    def holds(self, register: int, key: str, thing: Any, default: bool) -> None:
        """That a dict has this under a key; or nothing, if that is what nothing means."""
        key = sys.intern(key)
        self._step("holds", register, self._object(key), self._object(thing), int(default))

    def empty(self, container: Any) -> None:
        self._step("empty", 0, self._object(container))

    # -- running ----------------------------------------------------------------------------------

    def place(self, slot: int, memory: int, offset: int, itemsize: int) -> None:
        """The address of an input: its memory and its offset in elements are in registers."""
        address = self.get(memory, Memory, "address")
        self._step("place", address, offset, itemsize, self._image.word(slot))

    def memory(self, nbytes: int) -> int:
        """Memory that is there until the call ends, unless somebody else holds it then."""
        return self.call(functools.partial(self._allocate, nbytes))

    def fresh(
        self,
        slot: int,
        nbytes: int,
        make: Callable[[Memory], Any],
        write: Callable[[int], int],
        piece_of: Callable[[Any], RecycledOutput],
        total: int | None = None,
    ) -> int:
        """What is made of memory for a result, whose address goes to a slot. Some are made now, to
        be given again and again, where all results (`total` bytes) are small; further ones by the
        steps that `write` writes, for the register that holds their memory.
        """
        count = _RESULTS_KEPT if (total or nbytes) <= self._small else 0
        kept: list[Any] = []
        words = [count]
        for _ in range(count):
            memory = self._allocate(nbytes)
            thing, parts, idle = piece_of(make(memory))
            if (len(parts), len(idle)) != (PARTS, SLOTS):
                raise ValueError(f"a piece has {PARTS} parts and {SLOTS} slots to be looked at")
            kept.append(thing)
            words += [id(thing), memory.address, *[id(part) for part in parts]]
            for owner, kind, name, held in idle:
                words += [id(owner) + _offset(kind, name), id(held)]
        pieces = (ctypes.c_uint64 * len(words))(*words)
        # the tuple is what holds them: one that nobody else uses has one reference
        self._keep += [pieces, tuple(kept)]
        made = self._register()
        word = self._image.word(slot)
        end = self._leaving_out("fresh", made, ctypes.addressof(pieces), word)
        own = self.memory(nbytes)
        self.place(slot, own, self.object(0), 1)
        self.move(made, write(own))
        end()
        return made

    def run(self) -> None:
        if self._prepare is not None:
            self._prepare(self)
        how = self._starter
        self._step("run", 0, how.planned, how.state, how.failed)

    # -- graphs -----------------------------------------------------------------------------------

    def reach(
        self, registers: Sequence[int], node: type, dtype: type, view: type, storage: type
    ) -> None:
        """These hold what the graph that is made stands on: nodes, whose types are told."""
        owners = {"itemsize": dtype, "storage": view, "memory": storage}
        words = {name: _offset(owners.get(name, node), name) for name in REACH[:-2]}
        words |= {"nbytes": id(Memory.__dict__["nbytes"]), "none": id(None)}
        where = (ctypes.c_uint64 * len(REACH))(*[words[name] for name in REACH])
        self._keep.append(where)
        for register in registers:
            self._step("reach", register, ctypes.addressof(where))

    def reached(self, levels: int, limits: tuple[int, int]) -> tuple[int, int]:
        """How deep the graph is, so many levels above what it stands on, and how many bytes it
        holds: a miss past the limits of both."""
        bounds = (ctypes.c_int64 * 2)(*limits)
        self._keep.append(bounds)
        depth, pinned = self._register(), self._register()
        self._step("reached", depth, pinned, levels, ctypes.addressof(bounds))
        return depth, pinned

    # -- making things ----------------------------------------------------------------------------

    def new(self, kind: type) -> int:
        self._new.add(self._registers)
        return self._step("new", self._register(), self._object(kind))

    def set(self, register: int, kind: type, name: str, value: int) -> None:
        """Set a slot to what is in another register."""
        if register in self._new:
            self._step("link", register, _offset(kind, name), value)
        else:
            self._step("set", register, self._object(kind.__dict__[name]), value)

    def put(self, register: int, kind: type, name: str, thing: Any) -> None:
        """Set a slot to some object."""
        if register in self._new:
            self._step("fill", register, _offset(kind, name), self._object(thing))
        else:
            self._step("put", register, self._object(kind.__dict__[name]), self._object(thing))

    def weak(self, register: int) -> int:
        return self._step("weak", self._register(), register)

    def tuple(self, registers: Sequence[int]) -> int:
        made = self._step("tuple", self._register(), len(registers))
        for i, register in enumerate(registers):
            self._step("item", made, i, register)
        return made

    def function(self, arity: int, result: int, miss: Any, lock: Any = None) -> Callable[..., Any]:
        """The call as a function of `arity` arguments, which gives what is in a register; `miss`
        where something is not as it should be. The lock is held meanwhile, if there is one.
        """
        self._step("end", result)
        pool = self._calls.pool
        head = {
            "busy": 0,
            "arity": arity,
            "miss": self._object(miss),
            "acquire": 0 if lock is None else self._object(lock.acquire),
            "release": 0 if lock is None else self._object(lock.release),
            "registers": self._registers,
            "image": self._image.head,
            "run": self._starter.run,
            "ticks": -1,
            "short": int(_SHORT_SECONDS * pool.ticks_per_second),
        }
        words = [head[name] for name in HEAD] + [word for step in self._steps for word in step]
        self._keep.append(pool)
        return self._calls.function(words, self._keep)
