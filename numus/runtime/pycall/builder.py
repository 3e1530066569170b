"""Bytecode of the fast-call VM, written instruction by instruction."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numus.runtime.contract import RecycledOutput
from numus.runtime.memory_pool import Memory
from numus.runtime.pycall.launch_ops import OUTPUT_PARTS, OUTPUT_SLOTS, PENDING
from numus.runtime.pycall.opcodes import INSTRUCTION_WORDS, OPCODES
from numus.runtime.pycall.vm import CallVM, Launcher, slot_offset
from numus.runtime.pycall.vm_source import HEADER

_RECYCLED_PER_OUTPUT = 2  # the last result is often still referenced at the next call
MAX_RECYCLED_BYTES = 1 << 16  # larger results are worth an allocation
NO_LAUNCHER = Launcher(0, 0, 0, 0)


class CommandBuffer(Protocol):
    """The launch list of LAUNCH."""

    @property
    def header(self) -> int: ...

    def slot_address(self, slot: int, /) -> int:
        """Address of the word with a buffer's address."""
        ...


class _NoCommands:
    header = 0

    def slot_address(self, slot: int, /) -> int:
        raise ValueError("a call without launches has no buffers")


def _no_memory(nbytes: int) -> Memory:
    raise ValueError("a call without launches has no results in memory")


class BytecodeBuilder:
    """Registers are numbers; every object that an instruction names is kept alive.

    Args:
        max_recycled_bytes: of all results, up to which output buffers are recycled.
        before_launch: writes instructions just before LAUNCH.
    """

    def __init__(
        self,
        vm: CallVM,
        launcher: Launcher = NO_LAUNCHER,
        commands: CommandBuffer | None = None,
        allocate: Callable[[int], Memory] = _no_memory,
        keep_alive: Sequence[Any] = (),
        max_recycled_bytes: int = MAX_RECYCLED_BYTES,
        before_launch: Callable[[BytecodeBuilder], None] | None = None,
    ) -> None:
        self._vm = vm
        self._launcher = launcher
        self._commands: CommandBuffer = commands or _NoCommands()
        self._allocate = allocate
        self._keep_alive: list[Any] = [self._commands, *keep_alive]
        self._max_recycled_bytes = max_recycled_bytes
        self._before_launch = before_launch
        self._code: list[int] = []  # flat: thousands of tuples would set off garbage collections
        self._registers = 0
        self._new: set[int] = set()  # registers with objects that have not escaped yet

    def _object(self, x: Any) -> int:
        self._keep_alive.append(x)
        return id(x)

    def _emit(self, name: str, a: int, x: int = 0, y: int = 0, z: int = 0) -> int:
        self._code += (OPCODES[name], a, x, y, z)
        return a

    def _register(self) -> int:
        self._registers += 1
        return self._registers - 1

    # -- loads ------------------------------------------------------------------------------------

    def load_arg(self, index: int) -> int:
        return self._emit("LOAD_ARG", self._register(), index)

    def load_float_arg(self, index: int) -> int:
        """A float argument, or an int converted to float."""
        return self._emit("LOAD_FLOAT_ARG", self._register(), index, id(float), id(int))

    def load_const(self, thing: Any) -> int:
        return self._emit("LOAD_CONST", self._register(), self._object(thing))

    def call(self, function: Callable[[], Any]) -> int:
        return self._emit("CALL", self._register(), self._object(function))

    def get_attr(self, thing: Any, name: str) -> int:
        name = sys.intern(name)
        return self._emit("GET_ATTR", self._register(), self._object(thing), self._object(name))

    def get_member(self, register: int, kind: type, name: str) -> int:
        """A slot; guards that the object is of this type."""
        member = self._object(kind.__dict__[name])
        return self._emit("GET_MEMBER", self._register(), register, member)

    def load_slot(self, register: int, kind: type, name: str) -> int:
        """A slot of an object known to be of this type."""
        return self._emit("LOAD_SLOT", self._register(), register, slot_offset(kind, name))

    def load_item(self, register: int, index: int) -> int:
        return self._emit("LOAD_ITEM", self._register(), register, index)

    def coalesce(self, register: int, other: int, nothing: Any) -> int:
        """The common object of two registers, either of which may hold `nothing` instead."""
        return self._emit("COALESCE", self._register(), register, other, self._object(nothing))

    def broadcast_shape(self, register: int, other: int) -> int:
        """The common shape of two registers, either of which may hold ()."""
        return self._emit("BROADCAST_SHAPE", self._register(), register, other)

    def add_int(self, register: int, number: int) -> int:
        return self._emit("ADD_INT", self._register(), register, number)

    def mul_int(self, register: int, other: int) -> int:
        """The product of ints in registers."""
        return self._emit("MUL_INT", self._register(), register, other)

    def move(self, register: int, source: int) -> None:
        self._emit("MOVE", register, source)

    def skip_if(self, register: int, thing: Any) -> Callable[[], None]:
        """Begin instructions skipped where a register holds an object; call the result at their
        end."""
        return self._begin_skip("JUMP_IF", register, self._object(thing))

    def _begin_skip(self, name: str, a: int, x: int, z: int = 0) -> Callable[[], None]:
        self._emit(name, a, x, 0, z)
        first = len(self._code)

        def end() -> None:
            skipped = (len(self._code) - first) // INSTRUCTION_WORDS
            self._code[first - INSTRUCTION_WORDS : first] = (OPCODES[name], a, x, skipped, z)

        return end

    # -- guards -----------------------------------------------------------------------------------

    def is_const(self, register: int, thing: Any) -> None:
        self._emit("IS_CONST", register, self._object(thing))

    def is_same(self, register: int, other: int) -> None:
        self._emit("IS", register, other)

    def is_not(self, register: int, other: int) -> None:
        self._emit("IS", register, other, 1)

    def slot_is(self, register: int, kind: type, name: str, thing: Any) -> None:
        self._emit("SLOT_IS", register, slot_offset(kind, name), self._object(thing))

    def slot_is_not(self, register: int, kind: type, name: str, thing: Any) -> None:
        self._emit("SLOT_IS_NOT", register, slot_offset(kind, name), self._object(thing))

    def slot_eq(self, register: int, kind: type, name: str, thing: Any) -> None:
        self._emit("SLOT_EQ", register, slot_offset(kind, name), self._object(thing))

    def slot_bits_eq(self, register: int, kind: type, name: str, number: float) -> None:
        """Guards that a slot holds a number of these bits as a double."""
        (word,) = struct.unpack("=q", struct.pack("=d", number))
        self._emit("BITS_EQ", register, slot_offset(kind, name), word)

    def dict_is(self, register: int, key: str, thing: Any, default: bool) -> None:
        """Guards that a dict maps a key to an object; with `default`, it may lack the key."""
        key = sys.intern(key)
        self._emit("DICT_IS", register, self._object(key), self._object(thing), int(default))

    def len_eq(self, register: int, length: int) -> None:
        self._emit("LEN_EQ", register, length)

    def is_empty(self, container: Any) -> None:
        self._emit("EMPTY", 0, self._object(container))

    def int_is(self, register: int, number: int) -> None:
        """Guards a size: an int that is not negative."""
        self._emit("INT_IS", register, number)

    def int_is_not(self, register: int, number: int) -> None:
        self._emit("INT_IS", register, number, 1)

    def int_above(self, register: int, number: int) -> None:
        self._emit("INT_IS", register, number, 2)

    def same_int(self, register: int, other: int) -> None:
        self._emit("SAME_INT", register, other)

    def different_ints(self, register: int, other: int) -> None:
        self._emit("SAME_INT", register, other, 1)

    def refcount(self, register: int, count: int, *, more: bool = False) -> None:
        """Guards an object's references, this register's included: `count`, or `more` than that."""
        self._emit("REFCOUNT", register, count, int(more))

    # -- launches ---------------------------------------------------------------------------------

    def store_address(self, slot: int, memory: int, offset: int, itemsize: int) -> None:
        """Set a buffer's address from registers with its memory and its offset in elements."""
        address = self.get_member(memory, Memory, "address")
        self._emit("STORE_ADDRESS", address, offset, itemsize, self._commands.slot_address(slot))

    def allocate(self, nbytes: int) -> int:
        """Memory that lives until the call ends, or as long as it is referenced."""
        return self.call(functools.partial(self._allocate, nbytes))

    def new_output(
        self,
        slot: int,
        nbytes: int,
        make: Callable[[Memory], Any],
        write: Callable[[int], int],
        recycle: Callable[[Any], RecycledOutput],
        total: int | None = None,
    ) -> int:
        """An object on memory for a result, whose address goes to a slot.

        Where all results (`total` bytes) are small, a few are made now and recycled whenever they
        are unused. Further ones are made by the instructions of `write`, from a register with
        fresh memory.
        """
        count = _RECYCLED_PER_OUTPUT if (total or nbytes) <= self._max_recycled_bytes else 0
        outputs: list[Any] = []
        words = [count]
        for _ in range(count):
            memory = self._allocate(nbytes)
            output, parts, idle = recycle(make(memory))
            if (len(parts), len(idle)) != (OUTPUT_PARTS, OUTPUT_SLOTS):
                expected = f"{OUTPUT_PARTS} parts and {OUTPUT_SLOTS} slots"
                raise ValueError(f"a recycled output must have {expected}")
            outputs.append(output)
            words += [id(output), memory.address, *[id(part) for part in parts]]
            for owner, kind, name, value in idle:
                words += [id(owner) + slot_offset(kind, name), id(value)]
        table = (ctypes.c_uint64 * len(words))(*words)
        # the tuple owns the one reference of an unused output
        self._keep_alive += [table, tuple(outputs)]
        made = self._register()
        address = self._commands.slot_address(slot)
        end = self._begin_skip("RECYCLE", made, ctypes.addressof(table), address)
        own = self.allocate(nbytes)
        self.store_address(slot, own, self.load_const(0), 1)
        self.move(made, write(own))
        end()
        return made

    def launch(self) -> None:
        if self._before_launch is not None:
            self._before_launch(self)
        how = self._launcher
        self._emit("LAUNCH", 0, how.expected, how.state, how.error)

    # -- bounds of the pending graph --------------------------------------------------------------

    def add_operands(
        self, registers: Sequence[int], node: type, dtype: type, view: type, storage: type
    ) -> None:
        """Account for the nodes that the graph under construction reads."""
        owners = {"itemsize": dtype, "storage": view, "memory": storage}
        words = {name: slot_offset(owners.get(name, node), name) for name in PENDING[:-2]}
        words |= {"nbytes": id(Memory.__dict__["nbytes"]), "none": id(None)}
        record = (ctypes.c_uint64 * len(PENDING))(*[words[name] for name in PENDING])
        self._keep_alive.append(record)
        for register in registers:
            self._emit("ADD_OPERAND", register, ctypes.addressof(record))

    def pending_bounds(self, levels: int, limits: tuple[int, int]) -> tuple[int, int]:
        """Depth and retained bytes of a graph of some levels on the operands; guards their
        limits."""
        bounds = (ctypes.c_int64 * 2)(*limits)
        self._keep_alive.append(bounds)
        depth, retained_bytes = self._register(), self._register()
        self._emit("PENDING_BOUNDS", depth, retained_bytes, levels, ctypes.addressof(bounds))
        return depth, retained_bytes

    # -- new objects ------------------------------------------------------------------------------

    def new(self, kind: type) -> int:
        self._new.add(self._registers)
        return self._emit("NEW", self._register(), self._object(kind))

    def set_slot(self, register: int, kind: type, name: str, value: int) -> None:
        """Set a slot to the object in another register."""
        if register in self._new:
            self._emit("INIT_SLOT", register, slot_offset(kind, name), value)
        else:
            self._emit("SET_MEMBER", register, self._object(kind.__dict__[name]), value)

    def set_const(self, register: int, kind: type, name: str, thing: Any) -> None:
        if register in self._new:
            self._emit("INIT_SLOT_CONST", register, slot_offset(kind, name), self._object(thing))
        else:
            member = self._object(kind.__dict__[name])
            self._emit("SET_MEMBER_CONST", register, member, self._object(thing))

    def new_weakref(self, register: int) -> int:
        return self._emit("NEW_WEAKREF", self._register(), register)

    def new_tuple(self, registers: Sequence[int]) -> int:
        made = self._emit("NEW_TUPLE", self._register(), len(registers))
        for i, register in enumerate(registers):
            self._emit("INIT_ITEM", made, i, register)
        return made

    def function(
        self, arity: int, result: int, guard_failed: Any, lock: Any = None
    ) -> Callable[..., Any]:
        """The builtin of `arity` arguments that returns a register, or `guard_failed`. It holds the
        lock meanwhile."""
        self._emit("RETURN", result)
        header = {
            "busy": 0,
            "arity": arity,
            "sentinel": self._object(guard_failed),
            "acquire": 0 if lock is None else self._object(lock.acquire),
            "release": 0 if lock is None else self._object(lock.release),
            "num_registers": self._registers,
            "commands": self._commands.header,
            "run": self._launcher.entry,
            "ticks": -1,
            "gil_ticks": self._vm.keep_gil_ticks,
        }
        words = [*(header[name] for name in HEADER), *self._code]
        return self._vm.function(words, self._keep_alive)
