"""Kernel IR to programs: in-memory table, disk cache, LLVM.

A kernel's key is its text. The key of the disk cache names everything the code depends on, so that
entries never become stale.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numus import config
from numus.errors import CompileError
from numus.ir.printer import kernel_digest
from numus.lru import LruTable
from numus.runtime import cache
from numus.runtime.compile_progress import CompileProgress
from numus.runtime.cpu.jit import Jit, LoadedCode
from numus.runtime.locks import Rank, new_lock
from numus.runtime.programs import (
    MAX_PROGRAMS,
    CompileLog,
    CompileRecord,
    KernelProgram,
    formats_of,
    scratch_nbytes,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_JIT = Path(__file__).with_name("jit.py")
_CODEGEN = ("llvm", "cpu")


class CpuProgram(KernelProgram):
    """A kernel loaded into this process; immutable."""

    __slots__ = ("_render", "address", "buffers", "code", "formats", "key", "outputs", "scratch")

    def __init__(self, kernel: Any, key: str, code: LoadedCode, render: Callable[[], str]) -> None:
        super().__init__(kernel)
        self.key = key
        self.code = code
        (self.address,) = code.addresses  # of the native function
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
        self.log = CompileLog()
        self.opt_level = config.opt_level()
        self._lock = new_lock(Rank.COMPILER)
        self._programs: LruTable[bytes, CpuProgram] = LruTable(MAX_PROGRAMS)
        self._jit: Jit | None = None
        # compiled and not linked yet, by key: the code, and the seconds that it took
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._stored: dict[str, bytes | None] = {}  # what the disk has, for kernels to be linked
        self._native: list[LoadedCode] = []  # in use until the process ends

    @property
    def jit(self) -> Jit:
        if self._jit is None:
            with self._lock:
                if self._jit is None:
                    self._jit = Jit()
        return self._jit

    def compile_all(self, kernels: Sequence[Any]) -> list[CpuProgram]:
        """Programs of several kernels. LLVM compiles new ones in threads of their own, while the
        next are rendered."""
        digests = [kernel_digest(kernel) for kernel in kernels]
        known = [self._programs.get(digest) for digest in digests]
        programs = [program for program in known if program is not None]
        if len(programs) == len(kernels):
            return programs
        with self._lock:
            new = dict(zip(digests, kernels, strict=True))
            missing = []
            for digest, kernel in new.items():
                if self._programs.get(digest) is None:
                    key = self._key(digest)
                    code = self._stored[key] = cache.get(key)
                    if code is None:
                        missing.append(kernel)
            try:
                if len(missing) > 1:
                    self._compile_objects(missing)
                return [self.compile(kernel) for kernel in kernels]
            finally:
                self._objects.clear()
                self._stored.clear()

    def has_code(self, kernel: Any) -> bool:
        """Whether a kernel is compiled, in memory or on disk."""
        digest = kernel_digest(kernel)
        return self._programs.get(digest) is not None or cache.get(self._key(digest)) is not None

    def _compile_objects(self, kernels: list[Any]) -> None:
        """Compile kernels concurrently, to be linked next."""
        from concurrent.futures import ThreadPoolExecutor  # imported late: a warm cache needs none

        workers = ThreadPoolExecutor(min(config.default_threads(), len(kernels)))
        try:
            with CompileProgress(len(kernels)) as progress:
                tasks = []
                for kernel in kernels:
                    began = time.perf_counter()
                    source = self._render(kernel)
                    is_short = self._is_short(kernel)
                    task = self._submitted(workers, source, is_short, began)
                    tasks.append((self._key(kernel_digest(kernel)), task))
                    progress.update(sum(t.done() for _, t in tasks))
                for done, (key, task) in enumerate(tasks):
                    progress.update(done)
                    self._objects[key] = task.result()
        finally:
            workers.shutdown(cancel_futures=True)

    def _submitted(
        self, workers: ThreadPoolExecutor, source: str, small: bool, began: float
    ) -> Future[tuple[bytes, float]]:
        try:
            return workers.submit(self._timed_object_code, source, small, began)
        except RuntimeError:  # the system has no memory for another thread
            from concurrent.futures import Future

            task: Future[tuple[bytes, float]] = Future()
            task.set_result(self._timed_object_code(source, small, began))
            return task

    def _timed_object_code(self, source: str, small: bool, began: float) -> tuple[bytes, float]:
        code = self.jit.object_code(source, small)
        return code, time.perf_counter() - began

    def _is_short(self, kernel: Any) -> bool:
        """Whether a kernel is compiled without optimisation."""
        return self.opt_level == 0 or bool(kernel.small)

    def _render(self, kernel: Any) -> str:
        # Imported late: with a warm disk cache nothing is rendered.
        from numus.codegen.cpu.renderer import render

        return str(render(kernel, self.jit.target))

    def _key(self, digest: bytes) -> str:
        """The key of code on disk, for the digest of its text."""
        parts = (digest.hex(), *self._generator, f"O{self.opt_level}")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @cached_property
    def _generator(self) -> tuple[str, str]:
        """What code depends on, besides a kernel and the optimisation level."""
        return cache.version(_JIT, *_CODEGEN), repr(self.jit.target)

    def compile(self, kernel: Any) -> CpuProgram:
        digest = kernel_digest(kernel)
        program = self._programs.get(digest)
        if program is not None:
            return program
        with self._lock:
            program = self._programs.get(digest)
            if program is None:
                program = self._programs[digest] = self._compile(kernel, digest)
                kernel.cached_text = None  # longer than its code
        return program

    def _compile(self, kernel: Any, digest: bytes) -> CpuProgram:
        began = time.perf_counter()
        render = partial(self._render, kernel)
        code, key, cause = self._load(digest, render, ("kernel",), self._is_short(kernel))
        program = CpuProgram(kernel, key, code, render)
        seconds = time.perf_counter() - began + self._objects.pop(key, (b"", 0.0))[1]
        record = (kernel.name, key, kernel.notes, cause, seconds, weakref.ref(program))
        self.log.append(CompileRecord(*record))
        return program

    def native(self, source: str, symbols: tuple[str, ...]) -> tuple[int, ...]:
        """Addresses of functions of an LLVM IR module, through the disk cache."""
        with self._lock:
            digest = hashlib.sha256(source.encode()).digest()
            found = self._load(digest, lambda: source, symbols)[0]
            self._native.append(found)
            return found.addresses

    def load(self, source: str, symbols: tuple[str, ...]) -> LoadedCode:
        """An LLVM IR module that is of this process alone: nothing is stored."""
        with self._lock:
            return self.jit.link(self.jit.object_code(source, small=True), symbols)

    def _load(
        self,
        digest: bytes,
        render: Callable[[], str],
        symbols: tuple[str, ...],
        small: bool = False,
    ) -> tuple[LoadedCode, str, str]:
        jit = self.jit
        key = self._key(digest)
        code = self._objects[key][0] if key in self._objects else None
        known = None
        if code is None:
            known = self._stored[key] if key in self._stored else cache.get(key)
        if known is not None:
            with contextlib.suppress(CompileError):  # an object that does not load is made anew
                return jit.link(known, symbols), key, "disk"
        if code is None:
            code = jit.object_code(render(), small)
        cache.put(key, code)
        return jit.link(code, symbols), key, "compiled"

    def assembly(self, program: CpuProgram) -> str:
        with self._lock:
            return self.jit.assembly(program.source)
