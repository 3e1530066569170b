"""LLVM IR text to PTX, by the NVPTX target that LLVM carries: no CUDA toolkit is needed."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from numus.errors import CompileError

# What this LLVM knows to write for. A device that it does not know runs the code of the last one
# before it that all later ones understand.
_KNOWN = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
_COMMON = 90
_VERSIONS = {"sm_75": "+ptx65", "sm_90": "+ptx80", "sm_90a": "+ptx80"}
# Bytes of parameters from which on it takes a later version, and which; those that know the later
# devices know that, too.
_MANY_PARAMETERS, _FOR_MANY, _LATER = 4352, "+ptx81", 100
_TOLD = 128  # bytes that describe a matrix to the copying engine


class Assembler:
    """May be used by several threads at once: each call has a context and a machine of its own."""

    def __init__(self, capability: int) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._llvm = llvm
        self.capability = capability
        # the "a": with what only this generation has
        known = f"sm_{capability}{'a' if capability >= _COMMON else ''}"
        common = max(n for n in _KNOWN if n <= min(capability, _COMMON))
        self.cpu = known if capability in _KNOWN else f"sm_{common}"
        self._for_many = _FOR_MANY if capability < _LATER or self.cpu != known else ""
        # the version of PTX is the oldest that has the device, but for instructions that came later
        self.features = _VERSIONS.get(self.cpu, "")

    def ptx(self, source: str) -> str:
        llvm = self._llvm
        try:
            module = llvm.parse_assembly(source, llvm.create_context())
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM rejects a kernel: {error}\n{source}") from None
        many = _parameter_bytes(module) > _MANY_PARAMETERS
        features = self._for_many if many else self.features
        machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
            cpu=self.cpu, features=features, opt=3, reloc="default", codemodel="default"
        )
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(machine, options)
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)
        return _emitted(machine, module)


def _parameter_bytes(module: Any) -> int:
    """What a launch hands to a module's kernel: words, and what is told of tiles."""
    kernel = next(f for f in module.functions if not f.is_declaration)
    kinds = [b"".join(argument.attributes) for argument in kernel.arguments]
    return sum(_TOLD if b"byval" in kind else 8 for kind in kinds)


def _emitted(machine: Any, module: Any) -> str:
    """`machine.emit_assembly(module)`, where nearly all time goes. llvmlite lets in one thread at a
    time, in case that modules share a context; these do not, so the function is called without.
    """
    library = _library()
    complaint = ctypes.c_char_p()
    code = library.LLVMPY_TargetMachineEmitToMemory(
        machine._ptr, module._ptr, 0, ctypes.byref(complaint)
    )
    if not code:
        raise CompileError(f"LLVM cannot write PTX: {(complaint.value or b'').decode()}")
    try:
        size = library.LLVMPY_GetBufferSize(code)
        return ctypes.string_at(library.LLVMPY_GetBufferStart(code), size).decode("latin1")
    finally:
        library.LLVMPY_DisposeMemoryBuffer(code)


@functools.cache
def _library() -> Any:
    """llvmlite's library, without its lock."""
    from llvmlite.binding import ffi

    library = ctypes.CDLL(ffi.lib._name)
    pointer = ctypes.c_void_p
    library.LLVMPY_TargetMachineEmitToMemory.argtypes = [pointer, pointer, ctypes.c_int, pointer]
    library.LLVMPY_TargetMachineEmitToMemory.restype = pointer
    library.LLVMPY_GetBufferStart.argtypes = [pointer]
    library.LLVMPY_GetBufferStart.restype = pointer
    library.LLVMPY_GetBufferSize.argtypes = [pointer]
    library.LLVMPY_GetBufferSize.restype = ctypes.c_size_t
    library.LLVMPY_DisposeMemoryBuffer.argtypes = [pointer]
    return library
