"""A compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.ir import kernel_text


class CpuProgram:
    """A kernel loaded into this process; immutable."""

    __slots__ = (
        *("_source", "address", "buffers", "formats", "kernel"),
        *("key", "name", "notes", "outputs", "scratch"),
    )

    def __init__(self, kernel: Any, key: str, address: int, source: Callable[[], str]) -> None:
        self.name: str = kernel.name
        self.notes: tuple[str, ...] = kernel.notes
        self.key = key
        self.address = address  # of the native function
        self.buffers = len(kernel.buffers)
        self.outputs = tuple(i for i, b in enumerate(kernel.buffers) if b.access == "write")
        self.scratch = tuple(i for i, b in enumerate(kernel.buffers) if b.access == "scratch")
        self.formats = formats_of(kernel)
        self.kernel = kernel
        self._source = source

    @property
    def source(self) -> str:
        """The LLVM IR it was compiled from."""
        return self._source()

    @property
    def text(self) -> str:
        """The kernel IR it was rendered from."""
        return kernel_text(self.kernel)

    def scratch_nbytes(self, scalars: Sequence[Any]) -> list[int]:
        """Bytes per worker of each scratch buffer."""
        return scratch_nbytes(self.kernel, scalars) if self.scratch else []

    def __repr__(self) -> str:
        return f"CpuProgram({self.name!r})"


def scratch_nbytes(kernel: Any, scalars: Sequence[Any]) -> list[int]:
    """Bytes per worker of each scratch buffer of a kernel, for these scalars."""
    values = {slot: v for (slot, _), v in zip(kernel.scalars, scalars, strict=True)}
    return [
        (b.count(values) * b.dtype.itemsize + 63) & ~63
        for b in kernel.buffers
        if b.access == "scratch"
    ]


def formats_of(kernel: Any) -> str:
    """The `struct` format of a kernel's scalars."""
    return "".join(_format(dtype) for _, dtype in kernel.scalars)


def _format(dtype: Any) -> str:
    if dtype.kind == "float":
        return "d"
    return "Q" if dtype.name == "uint64" else "q"
