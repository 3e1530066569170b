"""Kernels in IR to programs: rendered as LLVM IR, made PTX by LLVM, machine code by the driver.

A kernel is looked up by its text: in this process's table, then on disk, where its machine code is
kept under a key that names everything it depends on.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import threading
import time
from pathlib import Path
from typing import Any

from numus.errors import CompileError
from numus.runtime import cache
from numus.runtime.cuda import driver
from numus.runtime.cuda.assembler import Assembler
from numus.runtime.cuda.program import CudaProgram
from numus.runtime.records import CompileRecord


def _renderer() -> Any:
    # by name: renderers live on a floor above this one
    return importlib.import_module("numus.compiler.render.ptx")


@functools.cache
def _version() -> str:
    """Changes when the code that makes code does."""
    import llvmlite

    digest = hashlib.sha256(llvmlite.__version__.encode())
    here = Path(__file__).parent
    renderer = here.parent.parent / "compiler" / "render"
    for path in [*sorted(renderer.glob("*.py")), here / "assembler.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Compiler:
    """Makes the programs of one device; safe to use from several threads."""

    def __init__(self, capability: int) -> None:
        self.log: list[CompileRecord] = []
        self.capability = capability
        self._lock = threading.RLock()
        self._programs: dict[str, CudaProgram] = {}
        self._driver_version = int(driver.call("cuDriverGetVersion"))

    @functools.cached_property
    def assembler(self) -> Assembler:
        return Assembler(self.capability)

    def compile(self, kernel: Any) -> CudaProgram:
        text: str = kernel.text()
        program = self._programs.get(text)
        if program is not None:
            return program
        with self._lock:
            program = self._programs.get(text)
            if program is None:
                program = self._programs[text] = self._compile(kernel, text)
        return program

    def ptx(self, kernel: Any) -> str:
        renderer = _renderer()
        with self._lock:
            return self.assembler.ptx(renderer.render(kernel, renderer.Target(self.capability)))

    def _compile(self, kernel: Any, text: str) -> CudaProgram:
        began = time.perf_counter()
        renderer = _renderer()
        parts = (text, _version(), str(self.capability), str(self._driver_version))
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        code, cause = cache.get(key), "disk"
        if code is None:
            code, cause = self._machine_code(kernel), "compiled"
            cache.put(key, code)
        fixed = renderer.shared_by_size(kernel)
        program = CudaProgram(
            *(kernel, key, code, renderer.threads(kernel), fixed, renderer.STATIC_SHARED),
            *(renderer.maps(kernel), renderer.waits(self.capability)),
            lambda: self.ptx(kernel),
        )
        seconds = time.perf_counter() - began
        self.log.append(CompileRecord(kernel.name, key, kernel.notes, cause, seconds, program))
        return program

    def _machine_code(self, kernel: Any) -> bytes:
        """The driver assembles PTX; its complaints become the error's text."""
        import ctypes

        ptx = self.ptx(kernel)
        data = ptx.encode() + b"\0"
        log = bytearray(8192)

        def option(name: str) -> Any:
            return driver.constant("CUjit_option", f"CU_JIT_{name}")

        names = [option("ERROR_LOG_BUFFER"), option("ERROR_LOG_BUFFER_SIZE_BYTES")]
        state = driver.call("cuLinkCreate", 2, names, [log, len(log)])
        kind = driver.constant("CUjitInputType", "CU_JIT_INPUT_PTX")
        try:
            driver.call("cuLinkAddData", state, kind, data, len(data), b"kernel", 0, [], [])
            address, size = driver.call("cuLinkComplete", state)
            return ctypes.string_at(int(address), int(size))
        except driver.DriverError as failure:
            said = bytes(log).split(b"\0")[0].decode(errors="replace")
            raise CompileError(
                f"the CUDA driver rejects kernel {kernel.name!r}: {failure}\n{said}\n{ptx}"
            ) from None
        finally:
            driver.call("cuLinkDestroy", state)
