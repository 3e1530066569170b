"""LLVM IR to PTX by LLVM's NVPTX backend: no CUDA toolkit is needed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from typing import Any

from numus.errors import CompileError

# Capabilities that this LLVM knows. An unknown device gets the latest forward-compatible code.
_KNOWN = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
_FORWARD_COMPATIBLE = 90
_PTX_VERSIONS = {"sm_75": "+ptx65", "sm_90": "+ptx80", "sm_90a": "+ptx80"}
_MAX_PARAMETER_BYTES = 4352  # before PTX 8.1, which capabilities from 100 on imply
_LARGE_PARAMETERS_PTX, _LARGE_PARAMETERS_CAPABILITY = "+ptx81", 100
_TENSOR_MAP_BYTES = 128


class Assembler:
    """Thread-safe: each call has its own LLVM context and target machine."""

    def __init__(self, capability: int) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._llvm = llvm
        self.capability = capability
        # "a": architecture-specific features
        known = f"sm_{capability}{'a' if capability >= _FORWARD_COMPATIBLE else ''}"
        common = max(n for n in _KNOWN if n <= min(capability, _FORWARD_COMPATIBLE))
        self.cpu = known if capability in _KNOWN else f"sm_{common}"
        older = capability < _LARGE_PARAMETERS_CAPABILITY or self.cpu != known
        self._large_features = _LARGE_PARAMETERS_PTX if older else ""
        # the oldest PTX version of the device, except for instructions that came later
        self.features = _PTX_VERSIONS.get(self.cpu, "")

    def ptx(self, source: str) -> str:
        # LLVM's objects are freed here: an interrupt would be lost in a destructor
        with contextlib.ExitStack() as owned:
            return self._ptx(source, owned.enter_context)

    def _ptx(self, source: str, own: Callable[[Any], Any]) -> str:
        llvm = self._llvm
        context = own(llvm.create_context())
        try:
            module = own(llvm.parse_assembly(source, context))
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM rejects a kernel: {error}\n{source}") from None
        is_large = _parameter_bytes(module) > _MAX_PARAMETER_BYTES
        features = self._large_features if is_large else self.features
        machine = own(
            llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
                cpu=self.cpu, features=features, opt=3, reloc="default", codemodel="default"
            )
        )
        options = own(llvm.create_pipeline_tuning_options(speed_level=2))
        builder = own(llvm.create_pass_builder(machine, options))
        passes = own(llvm.create_new_module_pass_manager())
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, builder)
        return _emit_assembly(machine, module)


def _parameter_bytes(module: Any) -> int:
    """Size of a kernel's parameters: words and tensor maps."""
    kernel = next(f for f in module.functions if not f.is_declaration)
    kinds = [b"".join(argument.attributes) for argument in kernel.arguments]
    return sum(_TENSOR_MAP_BYTES if b"byval" in kind else 8 for kind in kinds)


def _emit_assembly(machine: Any, module: Any) -> str:
    """`machine.emit_assembly(module)` without llvmlite's lock: most of the time is spent here, and
    modules do not share a context."""
    library = _library()
    message = ctypes.c_char_p()
    code = library.LLVMPY_TargetMachineEmitToMemory(
        machine._ptr, module._ptr, 0, ctypes.byref(message)
    )
    if not code:
        raise CompileError(f"LLVM cannot emit PTX: {(message.value or b'').decode()}")
    try:
        size = library.LLVMPY_GetBufferSize(code)
        return ctypes.string_at(library.LLVMPY_GetBufferStart(code), size).decode("latin1")
    finally:
        library.LLVMPY_DisposeMemoryBuffer(code)


@functools.cache
def _library() -> Any:
    from llvmlite.binding import ffi

    library = ctypes.CDLL(ffi.lib._name)
    pointer = ctypes.c_void_p
    emit, start = library.LLVMPY_TargetMachineEmitToMemory, library.LLVMPY_GetBufferStart
    size, dispose = library.LLVMPY_GetBufferSize, library.LLVMPY_DisposeMemoryBuffer
    emit.argtypes = [pointer, pointer, ctypes.c_int, pointer]
    start.argtypes = size.argtypes = dispose.argtypes = [pointer]
    emit.restype = start.restype = pointer
    size.restype = ctypes.c_size_t
    return library
