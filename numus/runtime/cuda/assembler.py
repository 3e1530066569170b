"""LLVM IR text to PTX, by the NVPTX target that LLVM carries: no CUDA toolkit is needed."""

from __future__ import annotations

from typing import Any

from numus.errors import CompileError

# The PTX version that code for a compute capability is written in: as old as its instructions allow,
# so that old drivers take it.
_PTX = ((100, 86), (90, 80), (80, 72), (0, 65))


class Assembler:
    """Not thread-safe: the compiler's lock guards it."""

    def __init__(self, capability: int) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._llvm = llvm
        self.capability = capability
        version = next(v for least, v in _PTX if capability >= least)
        suffix = "a" if capability >= 90 else ""  # with what only this generation has
        self.cpu = f"sm_{capability}{suffix}"
        self.features = f"+ptx{version}"
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
