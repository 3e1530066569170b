"""What code for this CPU may use, as LLVM describes it."""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A CPU to compile for. `features` is LLVM's list, as in "+avx2,+fma,-avx512f"."""

    triple: str
    cpu: str
    features: str

    @functools.cached_property
    def enabled(self) -> frozenset[str]:
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))

    @functools.cached_property
    def arch(self) -> str:
        """ "x86", "arm" (64-bit), or "other"."""
        head = self.triple.partition("-")[0]
        if head in ("x86_64", "amd64", "i686"):
            return "x86"
        return "arm" if head in ("aarch64", "arm64") else "other"

    @functools.cached_property
    def lanes_bytes(self) -> int:
        """The width of a vector register."""
        if self.arch == "x86":
            # the 512-bit forms of every integer operation came with BW and DQ, masks with VL
            if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= self.enabled:
                return 64
            if "avx" in self.enabled:
                return 32
        return 16

    @functools.cached_property
    def vector_registers(self) -> int:
        if self.arch == "x86":
            return 32 if self.lanes_bytes == 64 else 16
        return 32

    @functools.cached_property
    def masks(self) -> bool:
        """Whether masked vector loads and stores of every type are single instructions."""
        return self.lanes_bytes == 64

    @functools.cached_property
    def half(self) -> bool:
        """Whether the hardware converts between float16 and float32."""
        return self.arch == "arm" or "f16c" in self.enabled


@functools.cache
def host() -> Target:
    """The CPU this process runs on."""
    import llvmlite.binding as llvm

    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on some systems: the baseline of the architecture
        features = ""
    return Target(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)
