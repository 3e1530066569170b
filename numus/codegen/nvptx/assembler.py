"""LLVM IR to PTX by LLVM's NVPTX backend: no CUDA toolkit is needed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from numus.codegen.llvm.modules import emitted, parsed, unlocked

# Capabilities that this LLVM knows. An unknown device gets the latest forward-compatible code.
_KNOWN = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
_FORWARD_COMPATIBLE = 90
_PTX_VERSIONS = {"sm_75": "+ptx65", "sm_90": "+ptx80", "sm_90a": "+ptx80"}
_MAX_PARAMETER_BYTES = 4352  # before PTX 8.1, which capabilities from 100 on imply
_LARGE_PARAMETERS_PTX, _LARGE_PARAMETERS_CAPABILITY = "+ptx81", 100
_TENSOR_MAP_BYTES = 128
# Of instructions that came later, the newest first.
_LATER_PTX = (
    (re.compile(r"wgmma\S+\.s32\.(s8\.u8|u8\.s8) "), "+ptx84"),
    (re.compile(r"wgmma\.mma_async\.sp\."), "+ptx82"),
)


class Assembler:
    """Thread-safe: each call has an LLVM context and a target machine to itself."""

    def __init__(self, capability: int) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._llvm = llvm
        self.capability = capability
        self._idle_tools: dict[str, list[_Tools]] = {}
        # "a": architecture-specific features
        known = f"sm_{capability}{'a' if capability >= _FORWARD_COMPATIBLE else ''}"
        common = max(n for n in _KNOWN if n <= min(capability, _FORWARD_COMPATIBLE))
        self.cpu = known if capability in _KNOWN else f"sm_{common}"
        older = capability < _LARGE_PARAMETERS_CAPABILITY or self.cpu != known
        self._large_features = _LARGE_PARAMETERS_PTX if older else ""
        # the oldest PTX version of the device, except for instructions that came later
        self.features = _PTX_VERSIONS.get(self.cpu, "")

    def ptx(self, source: str) -> str:
        features = self.features
        if _parameter_bytes(source) > _MAX_PARAMETER_BYTES:
            features = self._large_features
        later = (version for pattern, version in _LATER_PTX if pattern.search(source))
        features = next(later, features)
        library = self._llvm.ffi.lib
        with (
            self._tools(features) as tools,
            parsed(library, source) as module,
        ):
            unlocked(library.LLVMPY_RunNewModulePassManager)(tools.passes, module, tools.builder)
            return emitted(library, tools.machine, module, as_object=False).decode("latin1")

    @contextlib.contextmanager
    def _tools(self, features: str) -> Iterator[_Tools]:
        """Tools for this thread alone."""
        idle = self._idle_tools.setdefault(features, [])
        try:
            tools = idle.pop()
        except IndexError:
            tools = _Tools(self._llvm, self.cpu, features)
        try:
            yield tools
        finally:
            idle.append(tools)


class _Tools:
    """A target machine and passes of LLVM, for one thread at a time."""

    def __init__(self, llvm: Any, cpu: str, features: str) -> None:
        self.machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
            cpu=cpu, features=features, opt=3, reloc="default", codemodel="default"
        )
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        self.builder = llvm.create_pass_builder(self.machine, options)
        self.passes = passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()


def _parameter_bytes(source: str) -> int:
    """Size of a kernel's parameters: words and tensor maps."""
    found = re.search(r"^define (?!internal).*?@[\w.]+\((.*)\)", source, re.M)
    parameters = found[1] if found else ""
    maps = parameters.count("byval")
    return _TENSOR_MAP_BYTES * maps + 8 * (len(re.findall(r"%[\w.]+", parameters)) - maps)
