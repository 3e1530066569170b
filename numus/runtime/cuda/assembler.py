"""LLVM IR text to PTX, by the NVPTX target that LLVM carries: no CUDA toolkit is needed."""

from __future__ import annotations

from typing import Any

from numus.errors import CompileError

# What this LLVM knows to write for. A device that came later runs the code of the last one before
# it that all later ones understand.
_KNOWN = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
_COMMON = 90
_VERSIONS = {"sm_75": "+ptx65", "sm_90": "+ptx80", "sm_90a": "+ptx80"}


class Assembler:
    """Not thread-safe: the compiler's lock guards it."""

    def __init__(self, capability: int) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._llvm = llvm
        self.capability = capability
        # the "a": with what only this generation has
        known = f"sm_{capability}{'a' if capability >= _COMMON else ''}"
        self.cpu = known if capability in _KNOWN else f"sm_{_COMMON}"
        # the version of PTX is the oldest that has the device, but for instructions that came later
        self.features = _VERSIONS.get(self.cpu, "")
        self._machine: Any = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
            cpu=self.cpu, features=self.features, opt=3, reloc="default", codemodel="default"
        )

    def ptx(self, source: str) -> str:
        llvm = self._llvm
        try:
            module = llvm.parse_assembly(source)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM rejects a kernel: {error}\n{source}") from None
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(self._machine, options)
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)
        return str(self._machine.emit_assembly(module))
