"""A compiled kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from numus.ir import kernel_text
from numus.runtime.contract import NativeLaunch
from numus.runtime.cpu.program import formats_of
from numus.runtime.cuda import driver

_SYMBOL = 80  # characters of a kernel's name that tell enough


def symbol(kernel: Any) -> str:
    """What profilers call a kernel: how it works, and on what, as far as that is short."""
    words = re.sub(r"\W+", "_", "_".join((kernel.name, *kernel.notes)))
    return f"numus_{words[:_SYMBOL]}"


class CudaProgram:
    """A kernel loaded into a device's context. It may be shared between threads."""

    __slots__ = (
        *("_source", "_taken", "address", "buffers", "fixed", "formats", "function", "group"),
        *("kernel", "key", "maps", "module", "name", "notes", "open", "overlaps", "shared"),
    )

    def __init__(
        self,
        kernel: Any,
        key: str,
        image: bytes,
        group: int,
        fixed: tuple[int, list[Any]],
        static: int,
        maps: list[Any],
        overlaps: bool,
        source: Callable[[], str],
    ) -> None:
        self.name: str = kernel.name
        self.notes: tuple[str, ...] = kernel.notes
        self.key = key
        self.kernel = kernel
        self.group = group
        self.maps = maps  # of matrices that the copying engine reads
        self.overlaps = overlaps  # whether it waits by itself for what came before
        self._source = source
        doing = f"loading kernel {self.label}"
        self.module = driver.call("cuModuleLoadData", image, doing=doing)
        name = symbol(kernel).encode()
        self.function = driver.call("cuModuleGetFunction", self.module, name, doing=doing)
        self.address = int(self.function)
        nbytes, buffers = fixed
        # scratch of constant size: in the kernel's own shared memory, or first in what it is given
        self.fixed = frozenset(i for i, b in enumerate(kernel.buffers) if b in buffers)
        self.shared = nbytes if nbytes > static else 0
        # other scratch
        scratch = [i for i, b in enumerate(kernel.buffers) if b.access == "scratch"]
        self.open = tuple(i for i in scratch if i not in self.fixed)
        self.buffers = len(kernel.buffers)
        self.formats = formats_of(kernel)
        self._taken = 0

    @property
    def label(self) -> str:
        return f"{self.name!r} ({', '.join(self.notes)})"

    @property
    def source(self) -> str:
        """The PTX it was assembled from."""
        return self._source()

    @property
    def text(self) -> str:
        """The kernel IR it was rendered from."""
        return kernel_text(self.kernel)

    def take_shared(self, nbytes: int) -> None:
        """Make sure that the kernel may be given so much shared memory."""
        if nbytes > self._taken:
            name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
            key = driver.constant("CUfunction_attribute", name)
            driver.call("cuFuncSetAttribute", self.function, key, nbytes)
            self._taken = nbytes

    def __repr__(self) -> str:
        return f"CudaProgram({self.name!r})"


class VendorProgram:
    """A kernel from a vendor's library. To the list of launches it is one that takes nothing."""

    address = group = shared = 0
    overlaps = False
    formats = ""
    fixed: frozenset[int] = frozenset()
    open: tuple[int, ...] = ()
    maps: tuple[Any, ...] = ()

    def __init__(self, kernel: Any, launch: Any) -> None:
        self.name: str = kernel.name
        self.notes: tuple[str, ...] = kernel.notes
        self.kernel = kernel
        self.launch = launch
        self.native: NativeLaunch | None = getattr(launch, "native", None)
        self.buffers = len(kernel.buffers)

    @property
    def label(self) -> str:
        return f"{self.name!r} ({', '.join(self.notes)})"

    @property
    def source(self) -> str:
        """What the library is asked for."""
        return str(self.kernel.problem)

    @property
    def text(self) -> str:
        return kernel_text(self.kernel)

    def take_shared(self, nbytes: int) -> None:
        """The library's own kernels see to theirs."""

    def __repr__(self) -> str:
        return f"VendorProgram({self.name!r})"
