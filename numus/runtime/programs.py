"""Programs of kernels, and the compile log, of all backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus.ir import kernel_text

MAX_PROGRAMS = 512  # of a device, kept for later plans; those in use stay loaded in any case


class KernelProgram:
    """A kernel that a backend runs; may be shared between threads."""

    __slots__ = ("__weakref__", "kernel", "name", "notes")

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.name: str = kernel.name
        self.notes: tuple[str, ...] = kernel.notes  # the operations it fuses

    @property
    def label(self) -> str:
        return f"{self.name!r} ({', '.join(self.notes)})"

    @property
    def text(self) -> str:
        """The kernel IR."""
        return kernel_text(self.kernel)

    @property
    def source(self) -> str:
        """The renderer's output: LLVM IR, PTX, WGSL."""
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def scratch_nbytes(kernel: Any, scalars: Sequence[Any]) -> list[int]:
    """Bytes per worker of each scratch buffer of a kernel, for these scalars."""
    values = {slot: v for (slot, _), v in zip(kernel.scalars, scalars, strict=True)}
    scratch = [b for b in kernel.buffers if b.access == "scratch"]
    return [(b.count(values) * b.dtype.itemsize + 63) & ~63 for b in scratch]


def formats_of(kernel: Any) -> str:
    """The `struct` format of a kernel's scalars."""
    named = {"float": "d", "uint64": "Q"}
    return "".join(named.get(d.kind, named.get(d.name, "q")) for _, d in kernel.scalars)


class CompileLog(list[Any]):
    """Records of compilations and traces, in order; half of them are dropped when it is full."""

    max_records = 1 << 14

    def append(self, record: Any) -> None:
        if len(self) >= self.max_records:
            del self[: self.max_records // 2]
        super().append(record)


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One kernel, compiled or loaded from the disk cache."""

    name: str
    key: str
    notes: tuple[str, ...]  # the operations it fuses
    cause: str  # "compiled" or "disk"
    seconds: float
    program_ref: Callable[[], Any]  # weak: a log keeps no kernel in memory

    @property
    def program(self) -> Any:
        """The program; None if it was unloaded, having been unused for long."""
        return self.program_ref()

    @property
    def source(self) -> str:
        program = self.program
        return "" if program is None else str(program.source)
