"""LLVM IR text to machine code, and machine code into this process."""

from __future__ import annotations

import itertools
from typing import Any

from numus.codegen.cpu.target import LlvmTarget, host
from numus.errors import CompileError


class Jit:
    """One per process; not thread-safe: the compiler's lock guards it.

    Code is made in two steps, so that the disk cache can stand between them: `object_code` turns
    text into a relocatable object, `link` places such an object in memory.
    """

    def __init__(self, target: LlvmTarget | None = None) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()  # the worker loop has a line of assembly
        self._llvm = llvm
        self.target = target or host()
        self._machine = self._make_machine(2)
        self._hasty_machine = self._make_machine(0)  # a third of the time, for small kernels
        # JITLink puts all sections of an object side by side. LLVM's older linker asks for memory
        # section by section, and ends the process when, on Arm, one lies 4 GiB from its code.
        self._linker: Any = llvm.create_lljit_compiler(self._machine, use_jit_link=True)
        self._trackers: list[Any] = []  # what they track is unloaded when they go
        self._names = itertools.count()

    def _make_machine(self, effort: int) -> Any:
        return self._llvm.Target.from_triple(self.target.triple).create_target_machine(
            cpu=self.target.cpu,
            features=self.target.features,
            opt=effort,
            reloc="pic",
            codemodel="jitdefault",
            jit=True,
        )

    def _optimise(self, module: Any) -> None:
        """Little is left to do: the renderer writes vectors, and moves code out of loops, itself.

        LLVM's standard pipelines give the same code for ten times the time.
        """
        llvm = self._llvm
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(self._machine, options)
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()  # stack slots to registers
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)

    def _module(self, source: str) -> Any:
        try:
            module = self._llvm.parse_assembly(source)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM rejects a kernel: {error}\n{source}") from None
        self._optimise(module)
        return module

    def object_code(self, source: str, small: bool = False) -> bytes:
        machine = self._hasty_machine if small else self._machine
        return bytes(machine.emit_object(self._module(source)))

    def assembly(self, source: str) -> str:
        """What the machine will run, readable."""
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
