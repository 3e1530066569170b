"""Kernel IR to programs: in-memory table, disk cache, LLVM.

A kernel's key is its text. The key of the disk cache names everything the code depends on, so that
entries never become stale.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numus.ir import kernel_text
from numus.runtime import cache
from numus.runtime.cpu.jit import Jit
from numus.runtime.programs import CompileRecord, KernelProgram, formats_of, scratch_nbytes

_JIT = Path(__file__).with_name("jit.py")
_CODEGEN = ("llvm", "cpu")


class CpuProgram(KernelProgram):
    """A kernel loaded into this process; immutable."""

    __slots__ = ("_render", "address", "buffers", "formats", "key", "outputs", "scratch")

    def __init__(self, kernel: Any, key: str, address: int, render: Callable[[], str]) -> None:
        super().__init__(kernel)
        self.key = key
        self.address = address  # of the native function
        self.buffers = len(kernel.buffers)
        self.outputs = tuple(i for i, b in enumerate(kernel.buffers) if b.access == "write")
        self.scratch = tuple(i for i, b in enumerate(kernel.buffers) if b.access == "scratch")
        self.formats = formats_of(kernel)
        self._render = render

    @property
    def source(self) -> str:
        """The LLVM IR it was compiled from."""
        return self._render()

    def scratch_nbytes(self, scalars: Sequence[Any]) -> list[int]:
        """Bytes per worker of each scratch buffer."""
        return scratch_nbytes(self.kernel, scalars) if self.scratch else []


class Compiler:
    """Thread-safe."""

    def __init__(self) -> None:
        self.log: list[CompileRecord] = []
        self._lock = threading.RLock()
        self._programs: dict[str, CpuProgram] = {}
        self._jit: Jit | None = None

    @property
    def jit(self) -> Jit:
        if self._jit is None:
            self._jit = Jit()
        return self._jit

    def after_fork(self) -> None:
        self._lock = threading.RLock()

    def compile(self, kernel: Any) -> CpuProgram:
        text: str = kernel_text(kernel)
        program = self._programs.get(text)
        if program is not None:
            return program
        with self._lock:
            program = self._programs.get(text)
            if program is None:
                program = self._programs[text] = self._compile(kernel, text)
        return program

    def _compile(self, kernel: Any, text: str) -> CpuProgram:
        began = time.perf_counter()
        target = self.jit.target

        def render() -> str:
            # Imported late: with a warm disk cache nothing is rendered.
            from numus.codegen.cpu.renderer import render

            return str(render(kernel, target))

        (address,), key, cause = self._load(text, render, ("kernel",), kernel.small)
        program = CpuProgram(kernel, key, address, render)
        seconds = time.perf_counter() - began
        self.log.append(CompileRecord(kernel.name, key, kernel.notes, cause, seconds, program))
        return program

    def native(self, source: str, symbols: tuple[str, ...]) -> tuple[int, ...]:
        """Addresses of functions of an LLVM IR module, through the disk cache."""
        with self._lock:
            return self._load(source, lambda: source, symbols)[0]

    def _load(
        self, text: str, render: Callable[[], str], symbols: tuple[str, ...], small: bool = False
    ) -> tuple[tuple[int, ...], str, str]:
        jit = self.jit
        target = jit.target
        parts = (text, cache.version(_JIT, *_CODEGEN), repr(target))
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        code, cause = cache.get(key), "disk"
        if code is None:
            code, cause = jit.object_code(render(), small), "compiled"
            cache.put(key, code)
        return jit.link(code, symbols), key, cause

    def assembly(self, program: CpuProgram) -> str:
        with self._lock:
            return self.jit.assembly(program.source)
