"""LLVM (ORC JIT): IR text to machine code, loaded into this process."""

from __future__ import annotations

import itertools
from typing import Any

from numus.codegen.cpu.target import LlvmTarget, host
from numus.errors import CompileError


class Jit:
    """One per process; not thread-safe: the compiler's lock guards it.

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
        self._machine = self._make_machine(2)
        self._o0_machine = self._make_machine(0)  # a third of the compile time, for small kernels
        # JITLink places all sections of an object together. RuntimeDyld allocates them one by one,
        # and aborts when, on Arm, one lies 4 GiB from its code.
        self._linker: Any = llvm.create_lljit_compiler(self._machine, use_jit_link=True)
        self._trackers: list[Any] = []  # an object is unloaded with its tracker
        self._names = itertools.count()

    def _make_machine(self, opt_level: int) -> Any:
        return self._llvm.Target.from_triple(self.target.triple).create_target_machine(
            cpu=self.target.cpu,
            features=self.target.features,
            opt=opt_level,
            reloc="pic",
            codemodel="jitdefault",
            jit=True,
        )

    def _optimise(self, module: Any) -> None:
        """A few clean-up passes: the renderer vectorises and hoists loop invariants itself.

        LLVM's standard pipelines give the same code at ten times the compile time.
        """
        llvm = self._llvm
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(self._machine, options)
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)

    def _module(self, source: str) -> Any:
        try:
            module = self._llvm.parse_assembly(source)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM rejects the kernel: {error}\n{source}") from None
        self._optimise(module)
        return module

    def object_code(self, source: str, small: bool = False) -> bytes:
        machine = self._o0_machine if small else self._machine
        return bytes(machine.emit_object(self._module(source)))

    def assembly(self, source: str) -> str:
        """The assembly text."""
        return str(self._machine.emit_assembly(self._module(source)))

    def link(self, code: bytes, symbols: tuple[str, ...]) -> tuple[int, ...]:
        """Addresses of symbols of an object; it stays loaded until the process ends."""
        library = self._llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in symbols:
            library.export_symbol(symbol)
        try:
            tracker = library.link(self._linker, f"numus{next(self._names)}")
        except RuntimeError as error:
            raise CompileError(f"a compiled kernel could not be loaded: {error}") from None
        self._trackers.append(tracker)
        return tuple(tracker[symbol] for symbol in symbols)
