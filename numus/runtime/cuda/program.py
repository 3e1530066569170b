"""Programs of CUDA launch lists: compiled kernels, and kernels of vendor libraries."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from numus.ir import kernel_text
from numus.runtime.contract import NativeLaunch
from numus.runtime.cpu.program import formats_of
from numus.runtime.cuda import driver

_MAX_SYMBOL = 80  # characters


def symbol(kernel: Any) -> str:
    """The name of a kernel in profilers: its schedule and operations, truncated."""
    words = re.sub(r"\W+", "_", "_".join((kernel.name, *kernel.notes)))
    return f"numus_{words[:_MAX_SYMBOL]}"


class CudaProgram:
    """A kernel loaded into a device's context; may be shared between threads."""

    __slots__ = (
        *("_allowed_shared", "_source", "address", "block_size", "dynamic_scratch", "formats"),
        *("function", "kernel", "key", "module", "name", "notes", "num_buffers"),
        *("programmatic_launch", "shared_bytes", "static_scratch", "tensor_maps"),
    )

    def __init__(
        self,
        kernel: Any,
        key: str,
        image: bytes,
        block_size: int,
        static_scratch: tuple[int, list[Any]],
        static_limit: int,
        tensor_maps: list[Any],
        programmatic_launch: bool,
        source: Callable[[], str],
    ) -> None:
        self.name: str = kernel.name
        self.notes: tuple[str, ...] = kernel.notes
        self.key = key
        self.kernel = kernel
        self.block_size = block_size
        self.tensor_maps = tensor_maps  # of tensors that TMA reads
        self.programmatic_launch = programmatic_launch  # it waits for earlier kernels by itself
        self._source = source
        doing = f"loading kernel {self.label}"
        self.module = driver.call("cuModuleLoadData", image, doing=doing)
        name = symbol(kernel).encode()
        self.function = driver.call("cuModuleGetFunction", self.module, name, doing=doing)
        self.address = int(self.function)
        nbytes, buffers = static_scratch
        # of constant size: in static shared memory, or first in the dynamic one beyond its limit
        self.static_scratch = frozenset(i for i, b in enumerate(kernel.buffers) if b in buffers)
        self.shared_bytes = nbytes if nbytes > static_limit else 0
        scratch = [i for i, b in enumerate(kernel.buffers) if b.access == "scratch"]
        self.dynamic_scratch = tuple(i for i in scratch if i not in self.static_scratch)
        self.num_buffers = len(kernel.buffers)
        self.formats = formats_of(kernel)
        self._allowed_shared = 0

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

    def allow_shared(self, nbytes: int) -> None:
        """Raise the kernel's limit of dynamic shared memory."""
        if nbytes > self._allowed_shared:
            name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
            key = driver.constant("CUfunction_attribute", name)
            driver.call("cuFuncSetAttribute", self.function, key, nbytes)
            self._allowed_shared = nbytes

    def __repr__(self) -> str:
        return f"CudaProgram({self.name!r})"


class VendorProgram:
    """A kernel of a vendor library; to a launch list, one without scalars and scratch."""

    address = block_size = shared_bytes = 0
    programmatic_launch = False
    formats = ""
    static_scratch: frozenset[int] = frozenset()
    dynamic_scratch: tuple[int, ...] = ()
    tensor_maps: tuple[Any, ...] = ()

    def __init__(self, kernel: Any, launch: Any) -> None:
        self.name: str = kernel.name
        self.notes: tuple[str, ...] = kernel.notes
        self.kernel = kernel
        self.launch = launch
        self.native: NativeLaunch | None = getattr(launch, "native", None)
        self.num_buffers = len(kernel.buffers)

    @property
    def label(self) -> str:
        return f"{self.name!r} ({', '.join(self.notes)})"

    @property
    def source(self) -> str:
        """The problem that the library solves."""
        return str(self.kernel.problem)

    @property
    def text(self) -> str:
        return kernel_text(self.kernel)

    def allow_shared(self, nbytes: int) -> None:
        """The library sets the limit of its kernels itself."""

    def __repr__(self) -> str:
        return f"VendorProgram({self.name!r})"
