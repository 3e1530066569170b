"""Programs of CUDA launch lists: compiled kernels, and kernels of vendor libraries."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from numus.codegen.nvptx import renderer
from numus.ir.early_loads import loads_before_wait
from numus.runtime.contract import NativeLaunch
from numus.runtime.cuda import driver
from numus.runtime.programs import KernelProgram, formats_of

_MAX_SYMBOL = 80  # characters
_ATTRIBUTE = "CU_FUNC_ATTRIBUTE_"


def symbol(kernel: Any) -> str:
    """The name of a kernel in profilers: its schedule and operations, truncated."""
    words = re.sub(r"\W+", "_", "_".join((kernel.name, *kernel.notes)))
    return f"numus_{words[:_MAX_SYMBOL]}"


class CudaProgram(KernelProgram):
    """A kernel loaded into a device's context."""

    __slots__ = (
        *("_allowed_shared", "_render", "address", "block_size", "dynamic_scratch", "formats"),
        *("function", "key", "loads_early", "module", "num_buffers", "programmatic_launch"),
        *("retired", "shared_bytes", "static_scratch", "tensor_maps"),
    )

    def __init__(
        self,
        kernel: Any,
        key: str,
        image: bytes,
        programmatic_launch: bool,
        render: Callable[[], str],
        retired: list[Any],
    ) -> None:
        super().__init__(kernel)
        self.retired = retired  # modules to unload, once no kernel runs
        self.key = key
        self.block_size = renderer.cta_threads(kernel)
        self.tensor_maps = renderer.tensor_maps(kernel)  # of tensors that TMA reads
        self.programmatic_launch = programmatic_launch  # it waits for earlier kernels by itself
        self.loads_early = loads_before_wait(kernel)
        self._render = render
        doing = f"loading kernel {self.label}"
        self.module = driver.call("cuModuleLoadData", image, doing=doing)
        name = symbol(kernel).encode()
        self.function = driver.call("cuModuleGetFunction", self.module, name, doing=doing)
        self.address = int(self.function)
        nbytes, buffers = renderer.static_scratch(kernel)
        # of constant size: in static shared memory, or first in the dynamic one beyond its limit
        self.static_scratch = frozenset(i for i, b in enumerate(kernel.buffers) if b in buffers)
        self.shared_bytes = nbytes if nbytes > renderer.STATIC_SHARED else 0
        scratch = [i for i, b in enumerate(kernel.buffers) if b.access == "scratch"]
        self.dynamic_scratch = tuple(i for i in scratch if i not in self.static_scratch)
        self.num_buffers = len(kernel.buffers)
        self.formats = formats_of(kernel)
        self._allowed_shared = 0

    def __del__(self) -> None:
        if hasattr(self, "module"):
            self.retired.append(self.module)

    @property
    def source(self) -> str:
        """The PTX it was assembled from."""
        return self._render()

    def allow_shared(self, nbytes: int) -> None:
        """Raise the kernel's limit of dynamic shared memory."""
        if nbytes > self._allowed_shared:
            name = f"{_ATTRIBUTE}MAX_DYNAMIC_SHARED_SIZE_BYTES"
            key = driver.constant("CUfunction_attribute", name)
            driver.call("cuFuncSetAttribute", self.function, key, nbytes)
            self._allowed_shared = nbytes

    def prefer_carveout(self, percent: int) -> None:
        """Ask for a part of a multiprocessor's memory as shared memory, the rest as L1."""
        key = driver.constant(
            "CUfunction_attribute", f"{_ATTRIBUTE}PREFERRED_SHARED_MEMORY_CARVEOUT"
        )
        driver.call("cuFuncSetAttribute", self.function, key, percent)


class VendorProgram(KernelProgram):
    """A kernel of a vendor library; to a launch list, one without scalars and scratch."""

    address = block_size = shared_bytes = 0
    programmatic_launch = loads_early = False
    formats = ""
    static_scratch: frozenset[int] = frozenset()
    dynamic_scratch: tuple[int, ...] = ()
    tensor_maps: tuple[Any, ...] = ()

    def __init__(self, kernel: Any, launch: Any) -> None:
        super().__init__(kernel)
        self.launch = launch
        self.native: NativeLaunch | None = getattr(launch, "native", None)
        self.is_capturable: bool = getattr(launch, "is_capturable", True)
        self.num_buffers = len(kernel.buffers)

    @property
    def source(self) -> str:
        """The problem that the library solves."""
        return str(self.kernel.problem)

    def allow_shared(self, nbytes: int) -> None:
        """The library sets the limit of its kernels itself."""

    def prefer_carveout(self, percent: int) -> None:
        """The library chooses that of its kernels."""
