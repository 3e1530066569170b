"""Compiler of CUDA kernels: IR to LLVM IR, to PTX by LLVM, to machine code by the driver.

Programs are cached by the digest of a kernel's text in this process, and machine code on disk under
a key that names everything it depends on.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from numus.codegen.nvptx import assembler, renderer
from numus.codegen.nvptx.assembler import Assembler
from numus.errors import CompileError
from numus.ir.printer import kernel_digest
from numus.lru import LruTable
from numus.runtime import cache
from numus.runtime.cuda import driver
from numus.runtime.cuda.program import CudaProgram, symbol
from numus.runtime.locks import Rank, new_lock
from numus.runtime.programs import MAX_PROGRAMS, CompileLog, CompileRecord

_CODEGEN = ("llvm", "nvptx")
_RETIRED_MODULES = 64  # of dropped programs, unloaded at once: it takes a synchronisation


class Compiler:
    """Compiles the programs of one device; thread-safe. `activate` makes its context current, and
    `unload` unloads modules of dropped programs."""

    def __init__(
        self, capability: int, activate: Callable[[], None], unload: Callable[[list[Any]], None]
    ) -> None:
        self.log = CompileLog()
        self.capability = capability
        self._activate = activate
        self._unload = unload
        self.retired: list[Any] = []
        self._lock = new_lock(Rank.COMPILER)
        self._programs: LruTable[str, CudaProgram] = LruTable(MAX_PROGRAMS)
        self._driver_version = int(driver.call("cuDriverGetVersion"))

    @functools.cached_property
    def assembler(self) -> Assembler:
        return Assembler(self.capability)

    def compile_all(self, kernels: Sequence[Any]) -> list[CudaProgram]:
        """Programs of several kernels; new ones are assembled in a thread pool, while the next
        ones are rendered."""
        digests = [kernel_digest(kernel).hex() for kernel in kernels]
        with self._lock:
            known = {d: self._programs.get(d) for d in digests}  # kept here: tables forget
            found = {d: p for d, p in known.items() if p is not None}
            new = {d: k for d, k in zip(digests, kernels, strict=True) if d not in found}
            if len(new) == 1:
                for digest, kernel in new.items():
                    found[digest] = _Build(self, kernel, digest).program()
            elif new:
                with ThreadPoolExecutor(min(len(new), os.cpu_count() or 1)) as pool:
                    builds = {d: _Build(self, kernel, d, pool) for d, kernel in new.items()}
                    for digest, build in builds.items():
                        found[digest] = build.program()
            for digest in new:
                self._programs[digest] = found[digest]
        if len(self.retired) >= _RETIRED_MODULES:
            modules, self.retired[:] = list(self.retired), []
            self._unload(modules)
        return [found[digest] for digest in digests]

    def render(self, kernel: Any) -> str:
        return str(renderer.render(kernel, renderer.NvptxTarget(self.capability), symbol(kernel)))

    def ptx(self, kernel: Any) -> str:
        with self._lock:
            source = self.render(kernel)
        return self.assembler.ptx(source)

    def key(self, digest: str, name: str) -> str:
        """The disk cache's key: a digest of everything that machine code depends on, the kernel's
        text above all."""
        version = cache.version(Path(assembler.__file__), *_CODEGEN)
        parts = (digest, name, version, str(self.capability), str(self._driver_version))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def whole_program(self, source: str) -> bytes:
        """PTX that the driver assembles whenever it loads it, and caches: not as a part to link."""
        return self.assembler.ptx(source).encode() + b"\0"

    def machine_code(self, name: str, source: str) -> bytes:
        """PTX assembled by the driver, whose log becomes the error's text."""
        self._activate()
        ptx = self.assembler.ptx(source)
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
        except driver.DriverError as error:
            message = bytes(log).split(b"\0")[0].decode(errors="replace")
            text = f"the CUDA driver rejects kernel {name!r}: {error}\n{message}\n{ptx}"
            raise CompileError(text) from None
        finally:
            driver.call("cuLinkDestroy", state)


class _Build:
    """A kernel being compiled: read from disk, or rendered and assembled (in a pool, if given)."""

    def __init__(
        self, compiler: Compiler, kernel: Any, digest: str, pool: ThreadPoolExecutor | None = None
    ) -> None:
        self._compiler, self._kernel = compiler, kernel
        self._key = compiler.key(digest, symbol(kernel))
        began = time.perf_counter()
        code = cache.get(self._key)
        self._cause = "disk" if code is not None else "compiled"
        self._seconds = 0.0
        self._code: Callable[[], bytes]
        if code is not None:
            self._code = partial(bytes, code)
        else:
            source = compiler.render(kernel)
            assemble = partial(self._assemble, source)
            self._code = assemble if pool is None else pool.submit(assemble).result
        self._seconds += time.perf_counter() - began

    def _assemble(self, source: str) -> bytes:
        began = time.perf_counter()
        if renderer.is_whole_program(self._kernel):
            code = self._compiler.whole_program(source)
        else:
            code = self._compiler.machine_code(self._kernel.name, source)
        cache.put(self._key, code)
        self._seconds += time.perf_counter() - began
        return code

    def program(self) -> CudaProgram:
        code = self._code()
        began = time.perf_counter()
        compiler, kernel = self._compiler, self._kernel
        overlaps = renderer.has_dependent_launch(compiler.capability)
        how = (overlaps, partial(compiler.ptx, kernel), compiler.retired)
        program = CudaProgram(kernel, self._key, code, *how)
        seconds = self._seconds + time.perf_counter() - began
        record = (kernel.name, self._key, kernel.notes, self._cause, seconds, weakref.ref(program))
        compiler.log.append(CompileRecord(*record))
        return program
