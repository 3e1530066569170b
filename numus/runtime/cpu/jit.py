"""LLVM: IR text to machine code, loaded into this process, and unloaded when unused."""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from numus.codegen.cpu.target import LlvmTarget, host
from numus.codegen.llvm.modules import emitted, parsed, unlocked
from numus.errors import CompileError
from numus.runtime.cpu import elf_loader
from numus.runtime.cpu.code_arena import CodeArena
from numus.runtime.headroom import require_headroom

_HEADROOM_BYTES = 48 << 20  # of LLVM, for a small module
_HEADROOM_BYTES_PER_CHARACTER = 400


class LoadedCode:
    """Machine code in this process, unloaded some time after the last reference to it has gone."""

    __slots__ = ("__weakref__", "addresses")

    def __init__(self, addresses: tuple[int, ...]) -> None:
        self.addresses = addresses  # of the symbols asked for


class _Loaded(weakref.ref[LoadedCode]):
    """A weak reference that knows how to unload its code."""

    __slots__ = ("handle",)

    handle: Any


class _Linker(Protocol):
    def prelink(self, code: bytes) -> bytes:
        """An object in the form in which it is stored and loaded."""

    def load(self, code: bytes, symbols: tuple[str, ...]) -> tuple[tuple[int, ...], Any]:
        """The addresses of symbols of an object, and a handle to unload it by."""

    def unload(self, handle: Any) -> None: ...


class _ArenaLinker:
    """Objects in a code arena."""

    code_model = "small"

    def __init__(self) -> None:
        self.arena = CodeArena()

    def prelink(self, code: bytes) -> bytes:
        return elf_loader.prelink(code)

    def load(self, code: bytes, symbols: tuple[str, ...]) -> tuple[tuple[int, ...], Any]:
        return elf_loader.load(code, symbols, self.arena)

    def unload(self, handle: Any) -> None:
        self.arena.release(handle.address, handle.nbytes)


class _LlvmLinker:
    """LLVM's JITLink, which maps every object on its own.

    It places all sections of an object together. RuntimeDyld allocates them one by one, and aborts
    when, on Arm, one lies 4 GiB from its code.
    """

    code_model = "jitdefault"

    def __init__(self, llvm: Any, machine: Any) -> None:
        self._llvm = llvm
        self._session = llvm.create_lljit_compiler(machine, use_jit_link=True)
        self._names = itertools.count()

    def prelink(self, code: bytes) -> bytes:
        return code

    def load(self, code: bytes, symbols: tuple[str, ...]) -> tuple[tuple[int, ...], Any]:
        library = self._llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in symbols:
            library.export_symbol(symbol)
        try:
            tracker = library.link(self._session, f"numus{next(self._names)}")
        except RuntimeError as error:
            raise CompileError(f"a compiled kernel could not be loaded: {error}") from None
        return tuple(tracker[symbol] for symbol in symbols), tracker

    def unload(self, handle: Any) -> None:
        handle.close()


class _Toolchain:
    """Target machines and passes of LLVM, for one thread at a time."""

    def __init__(self, llvm: Any, target: LlvmTarget, code_model: str) -> None:
        self._llvm = llvm
        # O0: a third of the compile time, for small kernels
        self.machine, self._o0_machine = (
            llvm.Target.from_triple(target.triple).create_target_machine(
                cpu=target.cpu,
                features=target.features,
                opt=opt_level,
                reloc="pic",
                codemodel=code_model,
                jit=True,
            )
            for opt_level in (2, 0)
        )
        # A few clean-up passes: the renderer vectorises and hoists loop invariants itself. LLVM's
        # standard pipelines give the same code at ten times the compile time.
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        self._builder = llvm.create_pass_builder(self.machine, options)
        self._passes, self._o0_passes = (llvm.create_new_module_pass_manager() for _ in range(2))
        for passes in (self._passes, self._o0_passes):
            passes.add_sroa_pass()
            passes.add_simplify_cfg_pass()
        # as long as code generation without optimisation, which gains nothing by it
        self._passes.add_instruction_combine_pass()
        self._passes.add_simplify_cfg_pass()

    @contextlib.contextmanager
    def _module(self, source: str, passes: Any) -> Iterator[Any]:
        """A module after these passes."""
        # LLVM ends the process when memory runs out
        nbytes = _HEADROOM_BYTES + _HEADROOM_BYTES_PER_CHARACTER * len(source)
        require_headroom(nbytes, "compile a kernel")
        library = self._llvm.ffi.lib
        with parsed(library, source) as module:
            run = unlocked(library.LLVMPY_RunNewModulePassManager)
            run(passes, module, self._builder)
            yield module

    def object_code(self, source: str, small: bool) -> bytes:
        machine = self._o0_machine if small else self.machine
        passes = self._o0_passes if small else self._passes
        with self._module(source, passes) as module:
            return emitted(self._llvm.ffi.lib, machine, module, as_object=True)

    def assembly(self, source: str) -> str:
        with self._module(source, self._passes) as module:
            return emitted(self._llvm.ffi.lib, self.machine, module, as_object=False).decode()


class Jit:
    """One per process. The compiler's lock guards all but `object_code`, which threads may call at
    the same time.

    `object_code` compiles to a relocatable object and `link` loads one; the disk cache stands
    between them.
    """

    def __init__(self, target: LlvmTarget | None = None) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()  # the worker loop has inline assembly
        self._llvm = llvm
        self.target = target or host()
        own = sys.platform == "linux" and self.target.triple.startswith("x86_64")
        self._code_model = (_ArenaLinker if own else _LlvmLinker).code_model
        tools = _Toolchain(llvm, self.target, self._code_model)
        self._idle_tools = [tools]
        self._linker: _Linker = _ArenaLinker() if own else _LlvmLinker(llvm, tools.machine)
        self._loaded: dict[int, _Loaded] = {}  # by id
        self._unused: list[_Loaded] = []  # appended to without running any Python

    def object_code(self, source: str, small: bool = False) -> bytes:
        """The object of an LLVM IR module; several threads may compile at once."""
        with self._tools() as tools:
            return self._linker.prelink(tools.object_code(source, small))

    def assembly(self, source: str) -> str:
        """The assembly text."""
        with self._tools() as tools:
            return tools.assembly(source)

    @contextlib.contextmanager
    def _tools(self) -> Iterator[_Toolchain]:
        """A toolchain for this thread alone. They are kept: LLVM does not free all of one."""
        try:
            tools = self._idle_tools.pop()
        except IndexError:
            tools = _Toolchain(self._llvm, self.target, self._code_model)
        try:
            yield tools
        finally:
            self._idle_tools.append(tools)

    def link(self, code: bytes, symbols: tuple[str, ...]) -> LoadedCode:
        """Load an object, for the addresses of these symbols."""
        while self._unused:
            unused = self._unused.pop()
            del self._loaded[id(unused)]
            self._linker.unload(unused.handle)
        addresses, handle = self._linker.load(code, symbols)
        found = LoadedCode(addresses)
        reference = _Loaded(found, self._unused.append)
        reference.handle = handle
        self._loaded[id(reference)] = reference
        return found

    @property
    def loaded_count(self) -> int:
        """The number of objects in memory."""
        return len(self._loaded)
